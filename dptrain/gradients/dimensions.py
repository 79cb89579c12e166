"""Finds the dimension in which examples lie, for layers that hold time or anything else before them, (T, B, D).

Nothing but sizes is looked at, in the probes alone: the dimension whose size was the number of rows in every call, over two
numbers of rows at least. One number would not do, since a length may happen to equal it. What was found stays for the run, so
that a microbatch of as many rows as positions is no question; a call in which the rows are not there is refused. That what lies
there are the examples is for the proofs at the start to show: their gradients add up to autograd's own under uneven weights,
and are the same in other company.
"""

from collections.abc import Sequence


class Dimension:
    """Where examples lie in a tensor of every call of a module; 0 as long as nothing else is shown.

    Guarantee: another dimension than 0 is found only if it alone had the size of the microbatch in all that was seen, and 0 had
    it not, over two numbers of rows, or over one row that is all there ever is.
    """

    def __init__(self) -> None:
        self._fits: frozenset[int] | None = None
        self._counts: frozenset[int] = frozenset()

    def see(self, sizes: Sequence[int], rows: int) -> None:
        """Looks at the sizes of one tensor of a call over so many rows that are nobody's."""
        fits = frozenset(dim for dim, size in enumerate(sizes) if size == rows)
        self._fits = fits if self._fits is None else self._fits & fits
        self._counts |= {rows}

    def may_be(self, dim: int) -> bool:
        """Tells whether all that was seen had the rows in this one."""
        return self._fits is not None and dim in self._fits

    @property
    def anywhere(self) -> bool:
        """Tells whether all that was seen had the rows in the same one, if anything was."""
        return self._fits is None or bool(self._fits)

    @property
    def known(self) -> bool:
        """Tells whether two numbers of rows were seen."""
        return len(self._counts) > 1

    @property
    def found(self) -> int:
        """Returns the dimension."""
        shown = self.known or self._counts == {1}
        if not shown or self._fits is None or 0 in self._fits or len(self._fits) != 1:
            return 0
        return next(iter(self._fits))
