"""Stands in for code of libraries that was read, and watches over it.

``known`` tells whether a function is one that was read; what is of another version, or a user's own, is left as it is.
``spectrum`` draws the masks of SpecAugment, ``states`` lets a recurrence go on from no state that it kept.
"""
