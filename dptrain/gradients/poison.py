"""A probe inside modules that run again: other contributions' rows are replaced, and a contribution's own must not notice.

P1 begins at outputs of modules, so that it is blind inside of them. Here the module runs once more on a whole probe microbatch,
and then with all rows but one contribution's replaced: floating numbers by huge ones, others by that contribution's own. What
the module makes of the one's own rows, the gradients that it gives back for them, and their gradient of its tensors stay as
they were up to rounding of their own values; other rows get no gradient at all. The scale of the others hides nothing of it:
whatever part of them enters is huge.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from dptrain.errors import CoupledModel
from dptrain.gradients.forms import promote
from dptrain.gradients.generic import GenericRule, Replay, rows_of
from dptrain.gradients.registry import Call

HUGE = {torch.float16: 2.0**8, torch.bfloat16: 2.0**30}
"""Gives what numbers of others are multiplied by, by the type of a tensor; 2**30 in wider ones."""

SAME = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Gives what own numbers may differ by, over the largest of their feature: a kernel may round rows by what stands beside
them. Wider than the tolerance of P2, since others are huge."""

SAME_IN_HALF = 5e-2

FEATURE = 2.0**-20
"""The part of the largest of all features that a feature is taken to have at least."""


def check_poisoned(rule: GenericRule, call: Call, grad: torch.Tensor, *, below: bool = True) -> None:
    """Compares what a module makes of one contribution's rows among others and among poisoned ones; the first, and the last.

    The last, since what goes through rows in order ends there, and the first, since what goes around begins there.

    Args:
        rule: of the module. call: the module's call in a probe microbatch. grad: the gradient of its output. below: whether
            something lies below that gradients of its inputs go to; where nothing does, they may be left out.

    Raises:
        CoupledModel: code CROSS_SAMPLE_GRADIENT.
        UnsupportedModule: code NO_RULE, the module does not run on such rows.
    """
    if call.contributions < 2:
        return
    leaves, spec = tree_flatten((call.inputs, call.kwargs))
    dims = rule.dims_of(call, leaves)
    for chosen in (call.contributions - 1, 0):
        one = _One(rule, call, leaves, spec, dims, grad, chosen, below)
        try:
            clean, *poisoned = [one.seen(given) for given in (leaves, one.poisoned(1.0), one.poisoned(-1.0))]
        except torch.OutOfMemoryError:
            raise  # says nothing about the module
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            raise rule.runs_not("on a microbatch whose other rows are replaced", sorted(call.wanted), error) from None
        pairs = (pair for found in poisoned for pair in zip(_WHAT, clean, found, strict=True))
        for what, a, b in pairs:
            if not _alike(a, b):
                raise CoupledModel(
                    "CROSS_SAMPLE_GRADIENT",
                    f"inside {rule.described}, which runs again, {what} of one example follow from other examples of the batch "
                    "(seen with the rows of others replaced by huge numbers): a mean or a roll over the batch, what the batch "
                    "shares; make each row a function of its own example",
                )


_WHAT = ("outputs", "gradients")


class _One:
    """Runs of one module in which one contribution's output alone counts."""

    def __init__(
        self,
        rule: GenericRule,
        call: Call,
        leaves: list[Any],
        spec: Any,
        dims: list[int | None],
        grad: torch.Tensor,
        one: int,
        below: bool,
    ) -> None:
        self._below = below
        self._rule, self._call, self._leaves, self._spec, self._dims, self._grad = rule, call, leaves, spec, dims, grad
        self._start, self._count = one * call.examples, call.examples

    def _own(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        return value.narrow(dim, self._start, self._count)

    def poisoned(self, sign: float) -> list[Any]:
        """Returns the inputs with the rows of all others replaced; what the microbatch shares stays.

        Args:
            sign: of what is huge: the largest of a batch shows under one alone, the least under the other.
        """
        return [
            leaf if dim is None or not isinstance(leaf, torch.Tensor) else self._replaced(leaf, dim, sign)
            for leaf, dim in zip(self._leaves, self._dims, strict=True)
        ]

    def _replaced(self, value: torch.Tensor, dim: int, sign: float) -> torch.Tensor:
        if value.is_floating_point():
            factor = HUGE.get(value.dtype, 2.0**30)
            # What hides, the lowest number in a mask of floats, stays as it is.
            other = torch.where(value.abs() < factor, (value.abs() + 1) * (sign * factor), value)
        else:
            first = self._own(value, dim).narrow(dim, 0, 1)
            other = first.expand_as(value).clone()
        other.narrow(dim, self._start, self._count).copy_(self._own(value, dim))
        return other

    def seen(self, leaves: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """See :meth:`_seen`; a module may write what it is given, or ask for its gradient, but no tensor takes both."""
        ways = (True, False) if self._below else (True, False, None)
        for fresh in ways[:-1]:
            try:
                return self._seen(leaves, fresh)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                continue
        return self._seen(leaves, ways[-1])

    def _seen(self, leaves: list[Any], fresh: bool | None) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Own rows of the output; and gradients of own rows of inputs, and whether any flows to other rows.

        Args:
            fresh: whether the module gets no leaves of the graph; None for no gradients of inputs.
        """
        rule, call = self._rule, self._call
        dim = rule.dimension(call.output)
        names = dict(rule.module.named_parameters(recurse=rule.whole, remove_duplicate=False))
        own = {key: names[key].detach() for key in call.wanted}
        given, sources = list(leaves), []
        for place, (leaf, at) in enumerate(zip(leaves, self._dims, strict=True)):
            if at is None:
                continue
            given[place] = leaf.detach().clone()
            if fresh is not None and leaf.is_floating_point():
                sources.append((given[place].requires_grad_(True), at))
        with torch.enable_grad(), Replay(call.draws, rows_of(0, call.rows, call.rows)):
            entered = [
                leaf.view_as(leaf) if fresh and isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf
                for leaf in given
            ]
            out = rule.rerun(call, own, {key: key for key in own}, entered, self._spec)
            by_rows = out.dim() > dim and out.shape[dim] == call.rows
            mine = self._own(out, dim) if by_rows else out
            if not mine.requires_grad or not sources:
                return [mine.detach()], []
            if by_rows:
                weight = self._own(self._grad, dim)
            else:
                weight = self._grad.sum(dim, keepdim=True) if self._grad.shape != out.shape else self._grad
            inputs = [leaf for leaf, _ in sources]
            found = torch.autograd.grad(mine, inputs, weight.to(out.dtype), allow_unused=True)
        grads: list[torch.Tensor] = []
        for (leaf, at), value in zip(sources, found, strict=True):
            value = torch.zeros_like(leaf) if value is None else value
            grads.append(self._own(value, at).clone())
            if by_rows:
                others = value.clone()
                self._own(others, at).zero_()
                # What is not finite (zero times what a poisoned row overflowed to) is of the other's own making.
                crossing = bool((others.isfinite() & (others != 0)).any())
                grads.append(torch.full((), float("nan") if crossing else 0.0))
        return [mine.detach()], grads


def _alike(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(_same(one, other) for one, other in zip(a, b, strict=True))


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tells whether two runs agree up to rounding, feature by feature; a gradient that crossed rows agrees with nothing."""
    if a.dim() == 0 and (bool(a.isnan()) or bool(b.isnan())):
        return False
    if torch.equal(a, b):
        return True
    share = SAME.get(a.dtype, SAME_IN_HALF)
    x, y = (promote(value).double().reshape(-1, value.shape[-1] if value.dim() else 1) for value in (a, b))
    finite = x.isfinite()
    if not bool((finite == y.isfinite()).all()):
        return False
    gap, size = (x - y).where(finite, 0.0).abs(), x.where(finite, 0.0).abs().amax(0)
    return bool((gap <= share * torch.maximum(size, FEATURE * size.max())).all())
