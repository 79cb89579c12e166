"""Compute in C++ what no library has, or has fast; built once, where a compiler is at hand.

* :mod:`reductions`: norms and weighted sums of per-sample gradients.
* :mod:`attention`, :mod:`activations`: operations of the forward and backward pass.

Without a compiler, or where a run leaves products to torch (`Microbatches(products="torch")`), libraries compute in their
place. At one shape of the microbatch a contribution's numbers are the same bits whoever else is in it, and on any number of
threads; how large it is decides which operations are worth a kernel.
"""
