"""Finds the dimension in which examples lie, for layers that hold time or anything else before them, (T, B, D).

Nothing but sizes is looked at, in the probes alone: the dimension whose size was the number of rows in every call, over two
numbers of rows. One number would not do, since a length may happen to equal it. What is proved at the start stays for the run,
so that a microbatch of as many rows as positions is no question; a call in which the rows are not there is refused. That what
lies there are the examples is for the proofs to show: their gradients add up to autograd's own under uneven weights, and are
the same in other company.
"""

from collections.abc import Sequence


class Dimension:
    """Finds where examples lie in one tensor of every call of a module.

    Guarantee: a dimension other than 0 is found only where it alone had the size of the microbatch in all that was seen, over
    two numbers of rows, or over one row that is all there ever is. What was used in a proof is no other from then on.
    """

    def __init__(self) -> None:
        self._fits: frozenset[int] | None = None
        self._counts: frozenset[int] = frozenset()
        self._at: int | None = None
        self.fixed = False
        """Tells whether it was used."""
        self.lost = False
        """Tells whether the rows were elsewhere after that."""

    def see(self, sizes: Sequence[int], rows: int) -> None:
        """Looks at the sizes of the tensor in a call over so many rows that are nobody's."""
        if self.fixed:
            self.lost = self.lost or (self._at is not None and tuple(sizes[self._at : self._at + 1]) != (rows,))
            return
        fits = frozenset(dim for dim, size in enumerate(sizes) if size == rows)
        self._fits = fits if self._fits is None else self._fits & fits
        self._counts |= {rows}

    def fix(self) -> None:
        """Lets it stay what it is, if anything was seen."""
        if self._fits is not None and not self.fixed:
            self._at, self.fixed = self.where, True

    @property
    def where(self) -> int | None:
        """Returns the dimension, and None where there is none or one too many."""
        if self.fixed or not self._fits:
            return self._at
        if 0 in self._fits:
            return 0
        shown = len(self._counts) > 1 or self._counts == {1}
        return next(iter(self._fits)) if shown and len(self._fits) == 1 else None

    @property
    def found(self) -> int:
        """Returns the dimension; 0 as long as nothing else is shown."""
        return self.where or 0

    def may_be(self, dim: int) -> bool:
        """Tells whether nothing that was seen speaks against this one."""
        return self._fits is None or dim in self._fits

    @property
    def nowhere(self) -> bool:
        """Tells whether no dimension had the rows."""
        return self._fits is not None and not self._fits

    @property
    def open(self) -> bool:
        """Tells whether it may be found, or was, and is still there."""
        return not self.lost and not (self.fixed and self._at is None) and not self.nowhere
