"""Computes epsilon of sampled Gaussian steps by their privacy loss distributions, with a bound on all that is rounded.

`composed` is the accountant. It asks `contour`, a short sum, where losses are smooth, and
else `tilted`, the sum of `losses` on a grid.
"""
