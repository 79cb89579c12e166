"""The start of a run: probes on nobody's rows through the user's own loop, before anything is charged; and now and then
again."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice

import torch
from torch import nn

from dptrain import native
from dptrain.blocks.forwards import Reads
from dptrain.clipping.fast import FastSums
from dptrain.data.microbatch import Microbatch
from dptrain.engine.step import UnderWay
from dptrain.errors import ConfigError, CoupledModel, DptrainError, NonFinite, NotPrivateUse
from dptrain.gradients import matmul
from dptrain.routing import Router
from dptrain.routing.probes import (
    HALF_TOLERANCE,
    P2_TOLERANCE,
    Exact,
    HeadProbe,
    Seen,
    Truth,
    check_company,
    check_exact,
    check_order,
    check_unread,
    norms_of,
    opened_gates,
    spoiled,
    stretched,
)
from dptrain.routing.repeated import RepeatedLoss
from dptrain.routing.synthetic_rows import IGNORED, KINDS, LARGE, SMALL, ProbeRows, hint, needed
from dptrain.sandbox import Sandbox

PASSES = 2.68
"""Bounds what the probes of the start may cost, in forward and backward passes of one full microbatch as they are counted here;
what is always made costs more where a microbatch has one row or two. `make bench-start` measures it, and 3 is its target."""

GRADIENTS = 0.5
"""Part of what changes of company may cost after which losses alone are compared, which are cheaper; a decision over the batch
that gradients show nearly always shows in a loss too."""

STRETCHED = 0.4
"""Part of what changes of company may cost that is kept for those under stretched activations."""

ALWAYS = 2
"""Changes of company that are always made: they are in microbatches of other sizes, down to one contribution alone."""

AGAIN = 256
"""Steps between one round of probes and the next during a run, at least."""

_FIRST = (SMALL, LARGE, *(kind for kind in range(KINDS) if kind not in (SMALL, LARGE)))
_SEED = 20_773


class ContentBranch(UserWarning):
    """A forward decides by content, and always goes the way that the probes saw."""


class Unprobed(UserWarning):
    """The probes saw no gradient in a trained tensor, or could not make up what some losses count."""


class ProbeFailed(UserWarning):
    """The user's loop ended inside a probe."""


Then = Callable[[torch.Tensor, Microbatch], None]


class Start:
    """Runs the probes as a few microbatches that look like any other, carry no charge and change nothing.

    Guarantee: what is probed is a function of the model, the loop, and rows that are nobody's private ones: records that the
    user gives, contributions of public classes, or rows made up from shapes and types. No refusal depends on anything else.
    What is not torch's own of forward and backward pass, norms and sums is held to torch's, up to rounding.

    Args:
        made: rows that are nobody's. under_way: enters microbatches. repeated: losses that the user asked for, as they come.
        full: rows of a full microbatch. exact: whether a contribution has bit for bit one loss in any company.
        truth: takes autograd's own gradients, to compare ours with; default: whole. sets: what forwards of classes read; all is
            proved and compared under each.

    Attributes:
        active: whether a probe is under way, so that ``backward`` belongs to it.
        unprobed: names of trained tensors in whose gradient there was nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        router: Router,
        sandbox: Sandbox,
        made: ProbeRows,
        under_way: UnderWay,
        repeated: Sequence[RepeatedLoss],
        *,
        full: int,
        exact: bool,
        truth: Truth | None = None,
        sets: Sequence[Reads] = (None,),
    ) -> None:
        self._sets, self._reads = sets, sets[0]
        self._truth = truth or Truth(router)
        self._model = model
        self._router = router
        self._sandbox = sandbox
        self._made = made
        self._under_way = under_way
        self._repeated = repeated
        self._full = full
        self._same_bits = exact
        self.active = False
        self.unprobed: tuple[str, ...] = ()
        self._then: Then | None = None
        self._ran: set[str] = set()
        self._exact: Exact | None = None
        self._length = made.lengths[0]
        self._seen: dict[bytes, Seen] = {}
        self._half = False
        self._last = 0
        self._times = 0
        self._left = ""
        self._holding = matmul.Holding()

    def run(self) -> Iterator[Microbatch]:
        """Yields the probe microbatches of the start; raises if one refuses the model, the loss or the loop."""
        full = self._full
        rows = 4 if full >= 12 else 3 if full >= 6 else min(full, 2)
        sandbox, lengths = self._sandbox, self._made.lengths
        sandbox.kept.seal()
        try:
            self._length, left = lengths[0], PASSES
            if full == 1 and any(self._made.extremes):
                yield from self._settle(lambda: self._one([SMALL], self._temper))
            reserved = self._cost(full) + 2 * self._cost(rows) if full > rows else 0.0
            for seed in (_SEED, _SEED + 1, None):
                with opened_gates(self._router, seed) if seed is not None else nullcontext():
                    if seed == _SEED and full > 1:
                        left -= yield from self._learn(rows)
                    left -= yield from self._prove(rows)
                    if self._dead and seed is not None:
                        continue  # the offset may have shut a last rectifier that was open
                    self._require_alive()
                    if reserved > left - self._always(rows):
                        reserved = 0.0
                    left -= yield from self._change_company(rows, left - (reserved or STRETCHED * left))
                    break
            if reserved:
                left -= reserved
                native.give_back()  # of a few rows; a full microbatch comes
                with stretched(self._router, _SEED):
                    yield from self._compare_losses(crowds(full, rows))
            if sandbox.coins:
                left -= yield from self._other_side(rows)
            if rows > 1 and left >= 2 * self._cost(rows):
                with stretched(self._router, _SEED):
                    yield from self._change_company(rows, left, norms=False)
            for self._length in lengths[1:]:
                yield from self._at_length(rows, seed)
            sets = self._sets[1:]
            for self._reads in sets:
                for self._length in lengths:
                    yield from self._at_length(rows, seed)
        except GeneratorExit:
            if self._made.made_up:
                self._left = f"PROBE_NEEDED: {hint(f'the loop ended{_place_of_loop()}')}"
                if hasattr(sys, "ps1"):  # somebody at a prompt, where nothing ends but the cell
                    self.tell_end()
            raise
        self._holding.rehearse(full)
        native.give_back()
        sandbox.kept.changed()
        self._require_unwritten()
        self._router.verified = frozenset(self._ran)
        assert self._exact is not None
        ran, others = (
            {
                self._router.tensors[index][1].name
                for site in self._router.sites
                if (site.name in self._ran) is seen
                for index in site.tensors.values()
            }
            for seen in (True, False)
        )
        never = others - ran
        self.unprobed = tuple(sorted({*self._exact.silent, *never}))
        self._tell(sorted({*self._exact.absent, *never}))

    def again(self) -> Iterator[Microbatch]:
        """Yields a few probe microbatches during a run, on the rows of the start: has a coupling come since?

        Single numbers that decide for everybody fall on one side now, and on the other next time.
        """
        sandbox = self._sandbox
        rows = 4 if self._full >= 12 else min(self._full, 3)
        lengths, turn = self._made.lengths, self._times
        self._length, self._reads = lengths[turn % len(lengths)], self._sets[turn // len(lengths) % len(self._sets)]
        self._times += 1
        before, sandbox.kept.written = sandbox.kept.written, None
        sandbox.coin = "low" if sandbox.coins and self._times % 2 == 0 else "high"
        try:
            with opened_gates(self._router, _SEED):
                yield from self._prove(rows)
                yield from self._change_company(rows, 0.0)
            self._require_unwritten()
        finally:
            self._holding.forget()  # weights change, and full microbatches were rehearsed at the start
            sandbox.coin = "high"
            sandbox.kept.written = before or sandbox.kept.written

    def tell_end(self) -> None:
        """Says why the loop may have ended inside a probe: below the exception that ended it, or as a warning without one.

        A refusal of ours says itself what to do.
        """
        told, self._left = self._left, ""
        error = sys.exc_info()[1]
        ended = error or getattr(sys, "last_value", None)
        said = isinstance(ended, DptrainError) or any("PROBE_NEEDED" in note for note in getattr(ended, "__notes__", ()))
        if not told or said:
            return
        if error is None or isinstance(error, GeneratorExit):
            warnings.warn(told, ProbeFailed, stacklevel=2)
        else:
            error.add_note(told)

    def due(self, step: int, epoch_steps: int) -> bool:
        """Tells whether the probes run again before this step; public numbers decide."""
        return step - self._last >= max(AGAIN, epoch_steps)

    def began(self, step: int) -> None:
        """Notes the step before which the probes have run."""
        self._last = step

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Checks the losses of a probe microbatch in the place of ``private.backward``, and leaves no gradient."""
        for form in self._repeated:
            form.made(losses)
        self._router.require_losses(losses)
        self._sandbox.refuse_leaves(losses)
        self._ran.update(self._router.order)
        check_order(self._router.order, self._router.schedule.stack, self._router)
        assert self._then is not None
        with self._sandbox.aside():
            self._then(losses, rows)

    # --------------------------------------------------------------------------------------------------------- the passes

    def _learn(self, rows: int) -> Iterator[Microbatch]:
        """Forward passes over two numbers of rows, which show where rows lie in what is drawn. Returns their cost."""
        sandbox = self._sandbox
        most = min(rows, 3)
        cost = self._cost(most) + self._cost(most - 1)

        def both() -> Iterator[Microbatch]:
            for count in (most, most - 1):
                yield from self._one(range(count), self._temper, learning=True)

        yield from self._settle(both)
        if self._router.mistaken():
            yield from self._settle(both)
        sandbox.layouts.decide()
        if sandbox.secret:
            for place, seen in sandbox.layouts.refused.items():
                if not place[0].startswith("#"):
                    raise sandbox.refuse_draw(place, seen)
        return cost

    def _at_length(self, rows: int, seed: int | None) -> Iterator[Microbatch]:
        """The proofs, and the changes of company that are always made, in rows of another public length, or under reads of
        another class."""
        before = self._exact
        with opened_gates(self._router, seed) if seed is not None else nullcontext():
            yield from self._once(rows)
        self._require_alive()
        self._take_both(before)
        if self._sandbox.coins:
            yield from self._other_side(rows)

    def _other_side(self, rows: int) -> Iterator[Microbatch]:
        """The same where single numbers, by which layers are skipped or rows mixed, fall the other way. Returns its cost."""
        sandbox = self._sandbox
        before = self._exact
        sandbox.coin = "low"
        try:
            with opened_gates(self._router, _SEED):
                cost = yield from self._once(rows)
        finally:
            sandbox.coin = "high"
        self._take_both(before)
        return cost

    def _once(self, rows: int) -> Iterator[Microbatch]:
        """Learns where rows lie, and makes the proofs and the changes of company that are always made. Returns its cost."""
        cost = (yield from self._learn(rows)) if self._full > 1 else 0.0
        cost += yield from self._prove(rows)
        cost += yield from self._change_company(rows, 0.0)
        return cost

    def _take_both(self, before: Exact | None) -> None:
        """Calls silent and absent what was so in this proof and in the one before; rounding is that of the one before."""
        assert before is not None and self._exact is not None
        both = [tuple(name for name in one if name in other) for one, other in (
            (before.silent, self._exact.silent), (before.absent, self._exact.absent))]  # fmt: skip
        self._exact = replace(before, silent=both[0], absent=both[1])

    def _prove(self, rows: int) -> Iterator[Microbatch]:
        """P0 and P1 on one microbatch, with the parameters in autograd so that its own gradient can be compared."""
        parameters = [tensor.parameter for _, tensor in self._router.tensors]
        heads = HeadProbe(self._model, self._router.schedule)
        leaves = [self._router.leaf(parameter) for parameter in parameters]
        for parameter in (*parameters, *leaves):
            parameter.requires_grad_(True)
        handles = [p.register_post_accumulate_grad_hook(self._drop_grad) for p in leaves]

        def then(losses: torch.Tensor, found: Microbatch) -> None:
            self._require_finite(losses)
            with self._sandbox.inside():
                heads.check()
            self._half = self._router.half
            try:
                self._exact = check_exact(self._router, losses, found.weight, self._truth)
            except NonFinite:
                if self._made.made_up:
                    raise needed("gradients of them are NaN or infinite (a root or a quotient at zero, say)") from None
                raise
            self._note(losses, found, self._exact.norms)

        try:
            yield from self._one(range(rows), then)
        finally:
            heads.close()
            for parameter in (*parameters, *leaves):
                parameter.requires_grad_(False)
                parameter.grad = None
            for handle in handles:
                handle.remove()
        if self._sandbox.host_draws and self._sandbox.secret:
            raise NotPrivateUse(
                "HOST_RANDOMNESS",
                "the forward or the loss draws from Python's random or numpy.random, whose numbers belong to no contribution; "
                'draw with torch, or sign disclosure = "occurrences_public", which claims nothing from secret draws',
            )
        # Backward passes: P1, the gradient itself, the same under another weight, the router's.
        cost = self._cost(rows, backward=4, sums=2)
        if self._same_bits:
            cost += yield from self._see_as_in_steps(rows)
        return cost + (yield from self._look_away(rows))

    def _see_as_in_steps(self, rows: int) -> Iterator[Microbatch]:
        """Sees the rows of the proof once more, as steps compute them: where parameters take part in autograd, maps are no
        nodes of ours, and round otherwise. Returns its cost."""
        before = self._seen
        yield from self._one(range(rows), self._look_at_norms)
        self._check_company(before, same_shape=False)
        return self._cost(rows, backward=1, sums=1)

    def _look_away(self, rows: int) -> Iterator[Microbatch]:
        """Spoils what the forward is not to read, and compares losses with those of the proof. Returns its cost."""
        with spoiled(self._router, self._reads) as adapters:
            if not adapters:
                return 0.0
            before = self._seen
            yield from self._one(range(rows), self._look_at_losses)
        check_unread(before, self._seen, self._tolerance(same_shape=True), adapters)
        self._seen = before
        return self._cost(rows)

    def _drop_grad(self, parameter: torch.Tensor) -> None:
        """Should the loop run a backward pass of its own on a probe microbatch, its gradient is gone before anyone sees it."""
        if id(parameter) not in self._truth.reducing:
            parameter.grad = None

    def _change_company(self, rows: int, left: float, *, norms: bool = True) -> Iterator[Microbatch]:
        """P2: every contribution once alone with strangers, at another place, and in a smaller microbatch.

        Args:
            left: what may be spent, in passes of a full microbatch; the first ``ALWAYS`` changes are made whatever they cost.
            norms: whether gradients are compared too, beside losses.

        Returns:
            What it cost.
        """
        spent = 0.0
        if not norms:
            yield from self._one(range(rows), self._look_at_losses)
            spent += self._cost(rows)
        base = dict(self._seen)
        for number, contents in enumerate(companies(rows)):
            always = norms and (number < ALWAYS or rows == 1)
            if norms and not always and spent + self._cost(len(contents), backward=1, sums=1) > left * GRADIENTS:
                norms = False
            known = norms and any(_name(content) in base for content in contents)
            cost = self._cost(len(contents), backward=1, sums=1) if known else self._cost(len(contents))
            if not always and spent + cost > left:
                break
            if not norms and len(contents) != rows:
                continue
            yield from self._one(contents, self._look_at_norms if known else self._look_at_losses)
            spent += cost
            self._check_company(base, same_shape=len(contents) == rows)
            base = {**self._seen, **base}
        return spent

    def _compare_losses(self, microbatches: Iterable[Sequence[int]]) -> Iterator[Microbatch]:
        """Compares losses alone, from the first of these microbatches on: P2 without gradients."""
        base: dict[bytes, Seen] = {}
        for contents in microbatches:
            yield from self._one(contents, self._look_at_losses)
            self._check_company(base, same_shape=False)
            base = {**self._seen, **base}

    def _check_company(self, base: Mapping[bytes, Seen], *, same_shape: bool) -> None:
        assert self._exact is not None
        check_company(base, self._seen, self._tolerance(same_shape=same_shape), self._exact.rounding)

    def _tolerance(self, *, same_shape: bool) -> float:
        if self._same_bits and same_shape:
            return 0.0
        return HALF_TOLERANCE if self._half else P2_TOLERANCE[self._router.precision]

    def _always(self, rows: int) -> float:
        """Counts what the changes of company that are always made cost."""
        return sum(self._cost(len(contents), backward=1, sums=1) for contents in islice(companies(rows), ALWAYS))

    def _cost(self, rows: int, *, backward: int = 0, sums: int = 0) -> float:
        """Counts the cost of a forward pass over few rows, in forward and backward passes of one full microbatch.

        Args:
            backward: backward passes through the activations, each as dear as a forward pass. sums: how often gradients of the
                weights are formed besides, as dear again where all of them train.
        """
        router = self._router
        trained = sum(tensor.parameter.numel() for _, tensor in router.tensors)
        share = min(1.0, trained / sum(parameter.numel() for parameter in self._model.parameters()))
        return rows / self._full * (1.0 + backward + share * sums) / (2.0 + share)

    def _one(self, contents: Sequence[int], then: Then, *, learning: bool = False) -> Iterator[Microbatch]:
        """One probe microbatch."""
        names = [_name(content) for content in contents]
        rows = self._made.microbatch(contents, names, self._length)
        inputs = [value for value in rows.inputs.values() if isinstance(value, torch.Tensor)]
        everything = torch.ones(len(names), len(self._router.schedule.blocks), dtype=torch.bool)
        self._then, self.active = then, True
        try:
            how = {"learning": learning, "probing": not learning, "inputs": inputs}
            self._holding.rows = len(names)
            with self._under_way.enter(rows, 0, everything, reads=self._reads, holding=self._holding, **how):
                yield rows
        finally:
            self.active, self._then = False, None
            self._under_way.rows = None
            self._router.disarm()

    def _settle(self, look: Callable[[], Iterator[Microbatch]]) -> Iterator[Microbatch]:
        """Looks at made-up rows until nothing of them has to be tempered: what a loss drew before it raised shows nothing."""
        made, before = self._made, None
        while made.extremes != before:
            before = made.extremes
            yield from look()

    def _temper(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Makes up less that is extreme if the loss does not take it: labels out of range, a mask that shows too little."""
        bad = self._sandbox.current.bad
        if (bad is not None and bool(bad.any())) or not bool(torch.isfinite(losses).all()):
            self._made.give_up()

    def _look_at_losses(self, losses: torch.Tensor, rows: Microbatch) -> None:
        self._note(losses, rows, None)

    def _look_at_norms(self, losses: torch.Tensor, rows: Microbatch) -> None:
        router = self._router
        router.backward(losses, rows.weight)
        sums = FastSums(router.schedule, router.tensors, router.precision)
        self._note(losses, rows, norms_of(sums.squares(router.pieces), rows.contributions, len(router.tensors)))

    def _note(self, losses: torch.Tensor, rows: Microbatch, norms: torch.Tensor | None) -> None:
        values = losses.detach().double().cpu().tolist()
        self._seen = {
            name: Seen(values[place], None if norms is None else norms[place]) for place, name in enumerate(rows.names)
        }

    # ------------------------------------------------------------------------------------------------------------ refusals

    @property
    def _dead(self) -> bool:
        """Tells whether no trained tensor at all had a gradient in :meth:`_prove`."""
        return self._exact is not None and len(self._exact.silent) == len(self._router.tensors)

    def _require_alive(self) -> None:
        if not self._dead:
            return
        if self._made.made_up:
            raise needed("no trained tensor gets a gradient from them")
        raise ConfigError(
            "NO_GRADIENT",
            "no trained tensor gets a gradient from the rows given for the probes, expected one at least; check that the loss "
            "follows from the model, and the initial weights (nothing was charged)",
        )

    def _require_finite(self, losses: torch.Tensor) -> None:
        bad = self._sandbox.current.bad
        if bad is not None and bool(bad.any()):
            if self._made.made_up:
                raise needed("an index that the forward makes of them is out of range")
            raise ConfigError(
                "INDEX_OUT_OF_RANGE",
                "an index that the forward makes of the rows given for the probes is out of range, so that they count as zero "
                "and show nothing; give records that the model can take (nothing was charged)",
            )
        if bool(torch.isfinite(losses).all()):
            return
        if self._made.made_up:
            raise needed("losses of them are NaN or infinite")
        raise NonFinite(
            "LOSS_NOT_FINITE",
            "losses of the rows given for the probes are NaN or infinite before the first step, expected finite ones; check "
            "the loss function, the labels and the initial weights (nothing was charged)",
        )

    def _require_unwritten(self) -> None:
        """Raises if a forward of the probes tried to write what the model keeps."""
        name = self._sandbox.kept.written
        if name is None:
            return
        if name in dict(self._model.named_buffers()):
            raise CoupledModel(
                "BUFFER_CHANGES",
                f"forward changed the buffer {name!r}: state written by one contribution is read by others; freeze it (eval())",
            )
        raise CoupledModel(
            "FORWARD_WRITES",
            f"the forward writes {name!r}, which the model keeps: what a contribution leaves there is released without noise "
            f"and read by others (max_norm of an embedding, a codebook, a counter); switch it off",
        )

    def _tell(self, unseen: Sequence[str]) -> None:
        """Warns of branches by content, and of tensors without any gradient; rounding alone is told in the header."""
        for path, way in self._sandbox.decided.items():
            warnings.warn(
                f"module {path or 'the model itself, or the loss'!r} decides by content whether to go one way or another; in "
                f"private microbatches it goes the way of the probes ({way}), whatever a contribution says",
                ContentBranch,
                stacklevel=2,
            )
        if self._made.gave_up:
            warnings.warn(
                f"the loss takes no labels of {IGNORED} (it raised, they were out of range, or a loss was NaN), so the probes "
                "made up none: a loss over the number of labels in the microbatch would not show; divide by what is the "
                "example's own",
                Unprobed,
                stacklevel=2,
            )
        if unseen:
            shown = ", ".join(unseen[:5]) + (", ..." if len(unseen) > 5 else "")
            warnings.warn(
                f"the probes saw no gradient in {len(unseen)} trained tensors ({shown}); the ledger's header names "
                f"them as UNPROBED. A run stops where a module first runs that no probe saw",
                Unprobed,
                stacklevel=2,
            )


def companies(rows: int) -> Iterator[list[int]]:
    """Contents of microbatches beside the first, which has the contents 0 to ``rows`` - 1.

    First all of them but one, in another order, and one alone, as a microbatch may be. Then each contribution with strangers
    alone: of its own kind where it stood, so that what the first microbatch had of other kinds is gone, and of other kinds at
    another place. Strangers of a kind are the same ones each time, so that they are compared too from the second time on. The
    one of small numbers comes before the others, since large ones beside it change it the most, and then that of large ones.
    Where everybody is always alone, the first comes again after one of every other kind.
    """
    if rows == 1:
        yield from ([kind] for kind in (*range(1, KINDS), 0))
        return
    yield [*range(rows - 1, 0, -1)]
    if rows > 2:
        yield [0]
    for turn in range(4):
        for kept in sorted(range(rows), key=lambda number: _FIRST.index(number % KINDS)):
            others = [KINDS * (1 + k) + (kept + turn) % KINDS for k in range(rows - 1)]
            place = kept if turn % 2 == 0 else (kept + 1) % rows
            yield [*others[:place], kept, *others[place:]]


def crowds(full: int, rows: int) -> Iterator[list[int]]:
    """Contents of a full microbatch of small and large numbers, and then of a few of the former and of the latter alone.

    What is decided by rank, or by a share of the microbatch, shows in no few rows.
    """
    crowd = [KINDS * number + (SMALL, LARGE)[number % 2] for number in range(full)]
    yield crowd
    for kind in (SMALL, LARGE):
        yield [content for content in crowd if content % KINDS == kind][-rows:]


def _place_of_loop() -> str:
    """Says on which line the loop stands that took the probe; nothing where it cannot be told."""
    frame = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "dptrain":
        frame = frame.f_back
    return "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"


def _name(content: int) -> bytes:
    return b"probe" + content.to_bytes(4, "big")

