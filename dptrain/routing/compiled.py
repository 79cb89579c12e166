"""The compiled form of a microbatch: what the hook form does, as one graph per kind of microbatch.

A graph is made when a microbatch of its kind first comes, and compared with the hook form before it is used; so it is at every
doubling of its runs and of the changes of the parameters that it met, and at least every 256th time. The rows of these
comparisons are nobody's (those of the probes), so that no contribution can stop a run or send others to another form. What a
graph depends on is in its key: sizes, types and devices of all tensors, the active blocks, autocast, and the plain Python
state of the modules, their configuration and the loss function (train or eval, a temperature). What cannot be made into a
graph runs in the hook form, with a notice that says why.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import nn
from torch._inductor import cpp_builder
from torch._inductor.exc import InvalidCxxCompiler

from dptrain import native
from dptrain.clipping.fast import Pieces
from dptrain.data.microbatch import Microbatch
from dptrain.errors import CompileRefused, LossShape
from dptrain.routing import building, pystate
from dptrain.routing.graphs import Armed, NotTraceable, StepGraph, make_graph, state_of, values_of
from dptrain.routing.repeated import Loss, RepeatedLoss, cut
from dptrain.routing.router import Router
from dptrain.routing.synthetic_rows import ProbeRows

AGREEMENT = {torch.float64: 1e-6, torch.float32: 2e-3}
"""Accepted distance of the compiled form from the hook form, relative to the largest of a column; float64 models may round to
float32 inside (the RMS norms of transformers do)."""
HALF_AGREEMENT = 5e-2
"""Likewise under autocast, where both forms round to 8 bits in different places."""

HALF = (torch.bfloat16, torch.float16)

GRAPHS = 32
"""Graphs of one run; kinds of microbatch beyond that run in the hook form."""

STATES = 4
"""Graphs of one size that differ in Python state alone; beyond that, it is something that changes all the time."""


class CompileNotice(UserWarning):
    """Some microbatches run in the hook form, with the same result."""


EVERY = 256
"""Counts the runs of a graph of which one at least is compared with the hook form: less than 1 % of the time of a long run."""


SHARES = 8
"""Shares of a microbatch over which the hook form runs in a comparison, one after the other."""


@dataclass
class _Entry:
    """One kind of microbatch: its graph, or None for the hook form; how often it ran, and what it met."""

    graph: StepGraph | None
    ran: int = 0
    version: int = 0
    changes: int = 0
    differed: bool = False

    def due(self, version: int) -> bool:
        """Tells whether this run is to be compared with the hook form.

        The first is the microbatch that was traced, and cannot show what of it was frozen into the graph; the second can.
        """
        changed = self.ran > 0 and version != self.version
        self.ran += 1
        self.version = version
        self.changes += changed
        return self.ran % EVERY == 0 or _power_of_two(self.ran) or (changed and _power_of_two(self.changes))

    def systematic(self, others: int) -> bool:
        """Tells whether losses of two contributions or more differ in this comparison and did in the one before."""
        before, self.differed = self.differed, others >= 2
        return before and self.differed


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


class CompiledLoss:
    """A per-example loss whose forward and backward pass is one compiled graph inside a private microbatch.

    Called like the loss that it was made from, with ``(model, rows)``. Outside the microbatches of a step (in an evaluation,
    in the probes at start) it is that loss.

    Guarantee: what reaches the router are the pieces of the armed microbatch as its hooks would have found them, up to the
    rounding of the order of operations; mask, norm, clip and sum are the hook form's own (:mod:`dptrain.clipping.fast`).

    Args:
        router: the router of the run. model: the module whose parameters it schedules.
        loss: ``(model, rows) -> losses`` of shape (B,). full: the most contributions in a microbatch. limit: the most rows in
            one, None for no limit. Smaller microbatches are filled up with rows of weight zero, so that few sizes are
            compiled; those less than half full run in the hook form.
        whole: compile for all blocks, whatever a microbatch may touch. Then the graph that a contribution goes through hangs on
            the shape of its microbatch, and not on who else is in it, as exactness ``certified`` asks for.
        plain: whether the armed microbatch runs in the hook form whatever it is. So do public ones: their sums are released
            without noise, and which graphs there are hangs on which private microbatches came before.
        probe: rows that are nobody's, for the comparisons; None: those of the microbatch at hand.
    """

    def __init__(
        self,
        router: Router,
        model: nn.Module,
        loss: Loss | RepeatedLoss,
        full: int,
        limit: int | None = None,
        *,
        whole: bool = False,
        plain: Callable[[], bool] = lambda: False,
        probe: ProbeRows | None = None,
    ) -> None:
        device = next(model.parameters()).device
        require_compiler(device)
        if device.type == "cpu":
            building.begin()
        self._router = router
        self._model = model
        self._loss = loss
        self._function = loss.function if isinstance(loss, RepeatedLoss) else loss
        self._probe = probe
        self._plain = plain
        self._full = full
        self._limit = limit
        self._whole = _all_armed(router) if whole else None
        self._entries: dict[tuple[Hashable, Hashable], _Entry] = {}
        self._told: set[str] = set()
        self._found: tuple[torch.Tensor, int, object, Pieces] | None = None

    @property
    def graphs(self) -> int:
        """Graphs made so far."""
        return sum(entry.graph is not None for entry in self._entries.values())

    def __call__(self, model: nn.Module, rows: Microbatch) -> torch.Tensor:
        """Losses of ``rows``, shape (B,); inside a microbatch they carry no graph and go to ``backward`` as they are.

        Raises:
            CompileRefused: code COMPILED_MISMATCH, the compiled form does not give what the hook form gives; COMPILED_STATE,
                at exactness certified Python state changed between microbatches.
        """
        self._found = None
        router = self._router
        if router.probing or not router.armed or not torch.is_grad_enabled() or not self._covers(model, rows):
            return self._loss(model, rows)
        with router.aside():  # nobody's program asks for these
            state = state_of(self._model)
        entry, padded = self._entry(model, rows, state)
        if entry.graph is not None and entry.due(sum(tensor.parameter._version for _, tensor in router.tensors)):
            self._compare(entry, model, padded, rows.contributions)
            native.give_back()
        if entry.graph is None:
            return self._loss(model, rows)
        try:
            losses, pieces = self._run(entry.graph, padded, state)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            if not isinstance(self._loss, RepeatedLoss):
                raise
            return self._loss.failed(model, rows, error)
        losses = losses.view(padded.contributions, padded.examples)[: rows.contributions, : rows.examples].reshape(-1).clone()
        self._found = losses, losses._version, router._armed, cut(pieces, slice(rows.contributions))
        return losses

    def _run(self, graph: StepGraph, rows: Microbatch, state: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Pieces]:
        """Losses and pieces of rows by a graph, under their own random numbers. ``state``: the tensors of the model."""
        router = self._router
        with router.rearmed(rows, self._like()):
            return graph(values_of(state, rows), router.sandbox)

    def _compare(self, entry: _Entry, model: nn.Module, padded: Microbatch, contributions: int) -> None:
        """Holds a graph against the hook form, and gives it up where some rows always differ."""
        rows = padded
        if self._probe is not None:
            contributions = padded.contributions
            with self._router.aside():
                rows = self._probe.filled(contributions, padded.examples, entry.ran, padded.length)
        assert entry.graph is not None
        native.give_back()
        losses, pieces = self._run(entry.graph, rows, state_of(self._model))
        native.give_back()
        agrees, others = self._agrees(model, rows, losses, pieces, contributions)
        if not agrees:
            raise CompileRefused(
                "COMPILED_MISMATCH",
                "the compiled form of the step does not give the losses and gradients of the hook form, so nothing of it was "
                "used; train without compile, and report it with the model",
            )
        if entry.systematic(others):
            self._tell("the compiled form gives some contributions other losses than the hook form, time and again")
            if self._whole is None:  # else nobody's content may decide which form a contribution goes through
                entry.graph = None

    def deliver(self, losses: torch.Tensor) -> bool:
        """Hands the pieces of these losses to the router, in the place of a backward pass; False if they are not its own.

        Raises:
            LossShape: code COMPILED_LOSSES, these losses were made from the compiled ones, or are these, changed in place.
        """
        found, self._found = self._found, None
        if found is None or not self._router.armed or found[2] is not self._router._armed:
            return False
        if losses is found[0] and losses._version == found[1]:
            self._router.pieces.clear()
            self._router.pieces.update(found[3])
            return True
        if isinstance(losses, torch.Tensor) and losses.requires_grad:
            return False  # computed beside the compiled loss, in the hook form
        raise LossShape(
            "COMPILED_LOSSES",
            "backward() got losses that are not the very tensor that the compiled loss returned, unchanged; what scales a "
            "loss or adds to it belongs inside the function given to compile()",
        )

    def _covers(self, model: nn.Module, rows: Microbatch) -> bool:
        """Tells whether a graph is worth making for these rows, with a notice where it cannot be made."""
        if not isinstance(rows, Microbatch):
            return self._tell(f"the loss is called with {type(rows).__name__} in place of the microbatch")
        if 2 * rows.contributions < self._size(rows)[0] or self._plain():
            return False
        if not any(part is self._model for part in model.modules()):
            return self._tell("the loss is called with another model than the one given to prepare()")
        for key, value in rows.inputs.items():
            if not isinstance(value, (torch.Tensor, *pystate.PLAIN)):
                return self._tell(f"the collated {key!r} is a {type(value).__name__}, neither a tensor nor a plain value")
        return True

    def _entry(self, model: nn.Module, rows: Microbatch, state: dict[str, torch.Tensor]) -> tuple[_Entry, Microbatch]:
        padded = fill(rows, *self._size(rows))
        key = self._key(model, padded, state)
        entry = self._entries.get(key)
        if entry is not None:
            return entry, padded
        entry = _Entry(None)
        others = sum(known[0] == key[0] for known in self._entries)
        if others and self._whole is not None:
            raise CompileRefused(
                "COMPILED_STATE",
                "Python state that the loss or the model can see changed between two microbatches of one form (a counter, "
                "say), and at exactness certified the form that computes a contribution may not follow from which came "
                "before; keep that state as it is from the first step on, or train without compile",
            )
        if others >= STATES:  # and is not kept: a key holds what it speaks of
            self._tell("Python state that the loss or the model can see changes from call to call (a counter, say)")
            return entry, padded
        if len(self._entries) >= GRAPHS and self._whole is None:  # where rounding must not depend on what came before
            self._tell(f"{GRAPHS} kinds of microbatches were compiled already, and others still come")
            return entry, padded
        self._entries[key] = entry
        try:
            with warnings.catch_warnings(), self._router.fused.left():
                warnings.simplefilter("ignore")  # of torch's own, about its use of itself
                made = make_graph(self._router, self._model, model, self._function, padded, self._like())
            if self._key(model, padded, state_of(self._model)) != key:
                raise NotTraceable("the forward changes Python state of a module or of the loss, which a graph would not see")
            entry.graph = made
        except NotTraceable as error:
            self._tell(str(error))
        native.give_back()
        return entry, padded

    def _size(self, rows: Microbatch) -> tuple[int, int]:
        """Contributions and examples that a microbatch is filled up to: four sizes per power of two, as many as fit."""
        step = max(1, 1 << rows.examples.bit_length() - 3) if rows.examples >= 4 else 1
        for examples in (-(-rows.examples // step) * step, rows.examples):
            room = self._full if self._limit is None else min(self._full, self._limit // examples)
            if room >= rows.contributions:
                return room, examples
        return rows.contributions, rows.examples

    def _key(self, model: nn.Module, rows: Microbatch, state: dict[str, torch.Tensor]) -> tuple[Hashable, Hashable]:
        """Everything that a graph takes for granted: sizes and settings, and Python state."""
        with self._router.aside():  # attributes of tensors are asked for by nobody's program
            return self._taken_for_granted(model, rows, state)

    def _taken_for_granted(
        self, model: nn.Module, rows: Microbatch, state: dict[str, torch.Tensor]
    ) -> tuple[Hashable, Hashable]:
        device = next(self._model.parameters(), rows.weight).device.type
        kinds = tuple((name, value.shape, value.stride(), value.dtype, value.device) for name, value in state.items())
        inputs = tuple(
            (name, value.shape, value.stride(), value.dtype, value.device) if isinstance(value, torch.Tensor) else (name, value)
            for name, value in rows.inputs.items()
        )
        setting = (
            torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), torch.get_num_threads(),
            torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
        python = tuple(pystate.of_model(model)), tuple(pystate.of_function(self._function))
        armed = self._like()
        return (rows.contributions, rows.examples, armed.active, kinds, inputs, setting), python

    def _agrees(
        self, model: nn.Module, rows: Microbatch, losses: torch.Tensor, pieces: Pieces, contributions: int
    ) -> tuple[bool, int]:
        """Compares with the hook form for this microbatch, whose pieces are forgotten.

        Each of the ``contributions`` that are not filling has one vote. A graph that is wrong is wrong for all of them, and
        one contribution alone, built so that rounding decides about it, cannot stop a run. The hook form runs over a few
        contributions at a time, which is what memory allows beside the pieces of a graph. Where that finds no agreement, it
        runs over all of them at once, and that decides.

        Returns:
            Whether more than half agree, and how many have other losses, on the scale of the median where theirs are smaller.
        """
        few = _shares(rows.contributions)
        try:
            agrees, others = self._voted(model, rows, losses, pieces, contributions, few)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception:  # a loss may not run on so few rows; if it does not run on all, that raises below
            if len(few) == 1:
                raise
            agrees, others = False, 0
        if (agrees and not others) or len(few) == 1:
            return agrees, others
        return self._voted(model, rows, losses, pieces, contributions, [slice(0, rows.contributions)])

    def _voted(
        self, model: nn.Module, rows: Microbatch, losses: torch.Tensor, pieces: Pieces, contributions: int, shares: list[slice]
    ) -> tuple[bool, int]:
        """Compares with the hook form over these shares of the contributions, one after the other."""
        router = self._router
        expected, gaps, half = [], [], False
        for number, share in enumerate(shares):
            own = some(rows, share)
            with router.rearmed(own, self._like()), router.fused.left():
                found = self._function(model, own)
                router.require_losses(found)
                router.backward(found, own.weight)
                half = half or router.half or found.dtype in HALF
                gaps.append(_gaps(cut(pieces, share), router.pieces))
                expected.append(found.detach().view(own.contributions, -1))
            del found
            if number % 2:  # else every share would lie above what is left of the one before
                native.give_back()
        tolerance = HALF_AGREEMENT if half else AGREEMENT[router.precision]
        losses_NM, expected_NM = losses.detach().view(rows.contributions, -1), torch.cat(expected)
        of_pieces = [_agree(gap, tolerance).expand(s.stop - s.start) for gap, s in zip(gaps, shares, strict=True)]
        agrees_N = _alike(_gap(losses_NM, expected_NM), torch.zeros(()), tolerance) & torch.cat(of_pieces)
        sizes_N = torch.linalg.vector_norm(expected_NM[:contributions].double(), dim=1).nan_to_num(0.0, 0.0, 0.0)
        typical_N = sizes_N.median().expand(contributions)
        same_N = _alike(_gap(losses_NM[:contributions], expected_NM[:contributions]), typical_N, tolerance)
        return 2 * int(agrees_N[:contributions].sum()) > contributions, 0 if half else int((~same_N).sum())

    def _like(self) -> Armed:
        """Returns the microbatch whose active blocks count."""
        armed = self._whole or self._router._armed
        assert armed is not None
        return armed

    def _tell(self, reason: str) -> bool:
        if reason not in self._told:
            self._told.add(reason)
            warnings.warn(f"runs in the hook form, with the same result: {reason}", CompileNotice, stacklevel=4)
        return False


def _all_armed(router: Router) -> Armed:
    """A microbatch that may touch everything."""
    router.arm(1, 1, torch.ones(1, len(router.schedule.blocks), dtype=torch.bool))
    armed = router._armed
    assert armed is not None
    router.disarm()
    return armed


def require_compiler(device: torch.device) -> None:
    """Raises CompileRefused where inductor cannot turn a graph into machine code."""
    if device.type != "cpu":
        return
    try:
        cpp_builder.get_cpp_compiler()
    except (InvalidCxxCompiler, OSError, RuntimeError) as error:
        raise CompileRefused(
            "NO_COMPILER",
            "the compiled form needs a C++ compiler, and none was found: install g++ (or set CXX to one), or train without "
            "compile, which gives the same result",
        ) from error


def fill(rows: Microbatch, contributions: int, examples: int) -> Microbatch:
    """The microbatch with more contributions, and more examples each; what is added repeats others and has weight zero."""
    n, m = rows.contributions, rows.examples
    if (n, m) == (contributions, examples):
        return rows
    i = torch.arange(contributions).masked_fill_(torch.arange(contributions) >= n, 0)
    j = torch.arange(examples).masked_fill_(torch.arange(examples) >= m, 0)
    index = (i[:, None] * m + j).flatten()
    weight = rows.weight.new_zeros(contributions, examples)
    weight[:n, :m] = rows.weight.view(n, m)
    names = tuple(rows.names[place] for place in index.tolist())
    inputs = {
        key: value.index_select(0, index.to(value.device)) if isinstance(value, torch.Tensor) else value
        for key, value in rows.inputs.items()
    }
    return Microbatch(inputs, contributions, examples, weight.flatten(), names, rows.length)


def some(rows: Microbatch, share: slice) -> Microbatch:
    """Cuts a microbatch down to some of its contributions."""
    if share == slice(0, rows.contributions):
        return rows
    own = slice(share.start * rows.examples, share.stop * rows.examples)
    inputs = {key: value[own] if isinstance(value, torch.Tensor) else value for key, value in rows.inputs.items()}
    return Microbatch(inputs, share.stop - share.start, rows.examples, rows.weight[own], rows.names[own], rows.length)


def _shares(contributions: int) -> list[slice]:
    """Splits contributions in as many as :data:`SHARES` shares of two or more."""
    count = max(1, min(SHARES, contributions // 2))
    cuts = [k * contributions // count for k in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


_Gap = tuple[torch.Tensor, torch.Tensor]
"""Holds of every row its distance from the truth, and the size of that."""


def agreement(found: Pieces, truth: Pieces, tolerance: float) -> torch.Tensor:
    """Compares the pieces of each contribution, bool (N,); what is not finite in ``truth`` is passed over.

    Pieces are compared one by one, as a graph keeps their order; small ones on the scale of the largest of their kind.
    """
    return _agree(_gaps(found, truth), tolerance)


def _gaps(found: Pieces, truth: Pieces) -> list[tuple[str, _Gap]] | None:
    """Lists the distances between the tensors of pieces, by their names; None where the pieces are not of one kind."""
    gaps = []
    for index in truth.keys() | found.keys():
        left, right = found.get(index, []), truth.get(index, [])
        if [type(piece) for piece in left] != [type(piece) for piece in right]:
            return None
        for one, other in zip(left, right, strict=True):
            for item in dataclasses.fields(other):
                a, b = getattr(one, item.name), getattr(other, item.name)
                if not isinstance(b, torch.Tensor):
                    if a != b:
                        return None
                elif a.shape != b.shape or a.dtype != b.dtype:
                    return None
                elif not b.is_floating_point():  # rows of a table: the next row is another
                    apart = (a != b).flatten(1).any(1).double()
                    gaps.append((item.name, (apart, torch.zeros_like(apart))))
                else:
                    gaps.append((item.name, _gap(a.flatten(1), b.flatten(1))))
    return gaps


def _agree(gaps: list[tuple[str, _Gap]] | None, tolerance: float) -> torch.Tensor:
    if gaps is None:
        return torch.zeros((), dtype=torch.bool)
    scale: dict[str, torch.Tensor] = {}
    for name, (_, size) in gaps:
        size = size.nan_to_num(0.0, 0.0, 0.0)
        scale[name] = torch.maximum(scale[name], size) if name in scale else size
    agrees = torch.ones((), dtype=torch.bool)
    for name, gap in gaps:
        agrees = agrees & _alike(gap, 1e-3 * scale[name], tolerance)
    return agrees


def _gap(found_NK: torch.Tensor, truth_NK: torch.Tensor) -> _Gap:
    """Measures distances and sizes of rows; those that float32 cannot tell, in float64, a row at a time for its memory."""
    if truth_NK.dtype not in (torch.float32, torch.float64):
        found_NK, truth_NK = found_NK.double(), truth_NK.double()
    size = torch.linalg.vector_norm(truth_NK, dim=1)
    gap = torch.linalg.vector_norm(found_NK - truth_NK, dim=1)
    told = (size > _SMALL) & (size < _LARGE) & (gap < _LARGE)
    size, gap = size.double(), gap.double()
    for row in torch.nonzero(~told).flatten().tolist():
        exact = truth_NK[row].double()
        size[row] = torch.linalg.vector_norm(exact)
        gap[row] = torch.linalg.vector_norm(found_NK[row].double() - exact)
    return gap, size


_SMALL, _LARGE = 1e-15, 1e15
"""Norms between which no square of an entry that counts vanishes or overflows in float32."""


def _alike(measured: _Gap, floor_N: torch.Tensor, tolerance: float) -> torch.Tensor:
    gap, size = measured
    return ((gap <= tolerance * torch.maximum(size, floor_N.to(size))) | ~torch.isfinite(size)).cpu()
