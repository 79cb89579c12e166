"""Follow whether statement A has held so far, and whether the optimizer lets it hold; it only ever becomes weaker."""

import enum
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from dptrain.errors import NotPrivateUse
from ledger.leaves import HELD


class IsolationNotice(UserWarning):
    """Statement A does not hold of this run any more, or never did; every epsilon is as before."""


class Isolation:
    """The state of statement A (docs/guarantee.md) in this run.

    Guarantee:
        Once weakened it stays weakened, by the first reason. Where the policy requires A, whatever weakens it raises instead,
        so that ``told`` is ``HELD`` as long as the run goes on.

    Attributes:
        told: ``HELD``, or the first reason why statement A is weaker: what the ledger records.
    """

    def __init__(self, *, required: bool) -> None:
        """Starts with nothing known against it.

        Args:
            required: whether the signed policy requires statement A.
        """
        self.told = HELD
        self._required = required

    @property
    def held(self) -> bool:
        """Tell if nothing weakened it so far."""
        return self.told == HELD

    def weaken(self, reason: str, instead: str) -> None:
        """Takes note that statement A does not hold from here on; says so once.

        Args:
            reason: what happened, for the record. instead: what keeps A.

        Raises:
            NotPrivateUse: code ISOLATION, the policy requires statement A.
        """
        if self._required:
            raise NotPrivateUse(
                "ISOLATION",
                f"{reason}: with that a contribution may move blocks outside those of its class within a step, and the policy "
                f"requires that none does ([isolation] required = true); {instead}",
            )
        if not self.held:
            return
        self.told = reason
        warnings.warn(
            f"statement A (direct isolation) does not hold of this run: {reason}. With that a contribution may move blocks "
            "outside those of its class within a step; epsilon is not touched. The ledger records it, and every release will "
            f"say so; to keep A, {instead}",
            IsolationNotice,
            stacklevel=3,
        )

    def carry(self, *told: str) -> None:
        """Goes on from what ledger and checkpoint of a resumed run say."""
        self.told = next((word for word in (self.told, *told) if word != HELD), HELD)


class Reach(enum.Enum):
    """The inputs of an update of one coordinate, and of its state, besides public numbers."""

    COORDINATE = "its own past gradients and values"
    TENSOR = "past gradients and values of its own tensor"
    UNKNOWN = "anything"


KNOWN: Final[dict[type[torch.optim.Optimizer], Reach]] = {
    torch.optim.SGD: Reach.COORDINATE,
    torch.optim.AdamW: Reach.COORDINATE,
    torch.optim.Adam: Reach.COORDINATE,
    torch.optim.NAdam: Reach.COORDINATE,
    torch.optim.RAdam: Reach.COORDINATE,
    torch.optim.Adamax: Reach.COORDINATE,
    torch.optim.Adagrad: Reach.COORDINATE,
    torch.optim.Adadelta: Reach.COORDINATE,
    torch.optim.RMSprop: Reach.COORDINATE,
    torch.optim.Rprop: Reach.COORDINATE,
    torch.optim.ASGD: Reach.COORDINATE,
    torch.optim.Adafactor: Reach.TENSOR,
    torch.optim.Muon: Reach.TENSOR,
}
"""The optimizers of torch under which statement A holds, by exact type: a subclass may step otherwise.

Each is held by ``tests/guarantees/test_statement_a.py``, which swaps a payload under every form of it (single tensor, foreach,
fused) and every option that changes what it computes; but for ``capturable``, which torch takes on other devices only. None of
the options of torch 2.13 couples tensors: foreach and fused forms do the same arithmetic tensor by tensor, and what is kept
beside a tensor (step counts, products of momenta) follows from the number of steps. Adafactor and Muon scale or mix a tensor
as a whole.
"""

_REFUSED: Final = {
    torch.optim.LBFGS: (
        "CLOSURE_OPTIMIZER",
        "LBFGS evaluates gradients inside step(); use an optimizer that takes one",
    ),
    torch.optim.SparseAdam: (
        "SPARSE_OPTIMIZER",
        "SparseAdam steps on sparse gradients only, and what is released is noise in every coordinate; use Adam",
    ),
}


def refuse_unusable(optimizer: torch.optim.Optimizer) -> None:
    """Raises NotPrivateUse for an optimizer that cannot take what is released, before anything is charged."""
    for kind, (code, sentence) in _REFUSED.items():
        if isinstance(optimizer, kind):
            raise NotPrivateUse(code, sentence)
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if zero is not None and isinstance(optimizer, zero.ZeroRedundancyOptimizer):
        raise NotPrivateUse(
            "OPTIMIZER_SHARDED",
            "ZeroRedundancyOptimizer keeps a part of its state on each rank, which no checkpoint of one rank holds; use the "
            "optimizer inside it under DistributedDataParallel, or fully_shard (FSDP2), which shards its state too",
        )


_COMPOSED: Final[dict[type[torch.optim.Optimizer], Callable[[Any], torch.optim.Optimizer]]] = {}


def compose(kind: type[torch.optim.Optimizer], others: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Lists an optimizer of ours that keeps the tensors of a block together, pair by pair, and has another one for the rest.

    Args:
        kind: its exact type. others: returns the other one.
    """
    _COMPOSED[kind] = others


def reach(optimizer: torch.optim.Optimizer) -> Reach:
    """Return how far one coordinate's gradient reaches in a step; ``UNKNOWN`` for an optimizer that is not on the list.

    One that moves pairs reaches as far as the one that it has for all other tensors: both factors of a pair lie in one block.
    """
    others = _COMPOSED.get(type(optimizer))
    return KNOWN.get(type(optimizer), Reach.UNKNOWN) if others is None else reach(others(optimizer))


def shadowed(optimizer: torch.optim.Optimizer) -> str:
    """Returns the name of a method that an instance replaces, but for ``step``, which schedulers wrap; else ""."""
    methods = (name for name in vars(optimizer) if name != "step" and callable(getattr(type(optimizer), name, None)))
    return next(methods, "")


def weakness(given: Any, inner: torch.optim.Optimizer) -> str:
    """Return what the choice of an optimizer means for statement A: ``HELD``, or why it is weaker.

    Guarantee: where this says ``HELD`` and a step takes the released gradients as they are, the update and the state of every
    tensor are a function of that tensor's own released gradients and of public numbers.

    Args:
        given: the optimizer as the user has it, in a wrapper or not; a wrapper may do more in a step.
        inner: the optimizer of torch that it is, or holds.
    """
    if inner is not given and not _of_accelerate(given):
        return f"what wraps the optimizer ({_name(given)}) is not known to leave its step alone"
    if reach(inner) is Reach.UNKNOWN:
        inner = _COMPOSED.get(type(inner), lambda own: own)(inner)
        return f"optimizer {_name(inner)} is not known to keep tensors apart"
    for own in (inner, _COMPOSED.get(type(inner), lambda own: own)(inner)):
        if name := shadowed(own):
            return f"method {name} of optimizer {_name(own)} was replaced"
    return HELD


def _of_accelerate(wrapper: Any) -> bool:
    """Tell if it is accelerate's own wrapper, which passes a step on; a subclass of it is not."""
    module = sys.modules.get("accelerate.optimizer")
    return module is not None and type(wrapper) is module.AcceleratedOptimizer


def _name(thing: Any) -> str:
    """The name of a class as a leaf of the ledger takes it."""
    return ascii(type(thing).__name__)[1:-1][:80]
