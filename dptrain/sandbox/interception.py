"""The interception: every operation of a private microbatch passes through here, forward, recomputation and backward.

Most go on untouched. Those that draw get numbers by address; those that index cannot fail; those that write what the model
keeps write a copy; those that tell Python a truth about content tell what the start-up probes saw; and a leaf that is none of
the model's is noticed.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.overrides import _pop_mode as _pop_function_mode
from torch.overrides import _push_mode as _push_function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _push_mode
from torch.utils.weak import WeakTensorKeyDictionary

from dptrain.errors import NotPrivateUse, UnsupportedModule
from dptrain.sandbox import untouched
from dptrain.sandbox.addresses import Numbers, place_tag, shared_tag
from dptrain.sandbox.dealt import WRITES, Dealt, Picked, asks
from dptrain.sandbox.draws import Generators, Request, UnknownDraw, draws, request
from dptrain.sandbox.indices import Total
from dptrain.sandbox.learnt import SHARED, Layout, Layouts, Place, Truths
from dptrain.sandbox.library.spectrum import Company, Spectrum
from dptrain.sandbox.library.states import States
from dptrain.sandbox.modes import (
    PLAIN,
    Called,
    Dispatched,
    Kind,
    Multiplied,
    is_last,
    kind_of,
    spread,
    take_out,
    take_out_function,
    without,
    writes_now,
)
from dptrain.sandbox.passes import CALL_IMPL, Draw, Entry, Given, Loop, Pass, Read
from dptrain.sandbox.writes import Kept, given_back

_aten = torch.ops.aten
_TALKS = frozenset(("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor"))
"""Namespaces of operations that talk to other ranks."""

_QUESTIONS = frozenset(
    getattr(_aten, name).default
    for name in ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_contiguous", "is_non_overlapping_and_dense")
) | {
    _aten.is_contiguous.memory_format, _aten.is_strides_like_format.default, torch.ops.prim.device.default,
    torch.ops.prim.layout.default,
}  # fmt: skip
"""Questions for the form of a tensor, which torch asks in a trace, also while it holds the lock of a view's node."""

_COINS = {"high": 1.0 - 2.0**-24, "low": 2.0**-24}
"""The value of a draw that all samples share in the start-up probes, so that a layer that may be skipped runs."""

_NO_MODULE = "<loop>"
"""Path of what runs in no module of the model: the loss, and the loop around it."""

_ASKED = Kind(reads=True)
"""The kind of those questions, by identity."""


class Sandbox:
    """Runs the microbatches of one model under the rules of the package; see :mod:`dptrain.sandbox`.

    Guarantee: while a pass is entered, and outside inference mode, no operation of torch draws from a generator, writes a
    tensor that the model keeps, or fails on an index, but for those that docs/guarantee.md names. Every number that is drawn
    is a function of (seed, step, name of the row, module and draw, position), or of (seed, step, module and draw, position)
    where everybody shares it. Generators of torch, Python and numpy stand after a pass where they stood before.

    Args:
        model: the prepared model. trained: ids of its parameters that the optimizer moves. seed: 16 bytes, public.
        secret: whether draws of contributions are secret, so that what cannot be addressed is refused.
        products: what computes in the place of an operation and gives the same up to rounding; nothing here draws, writes,
            indexes or reads.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: frozenset[int],
        seed: bytes,
        *,
        secret: bool = True,
        products: Mapping[Any, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        self.numbers = Numbers(seed)
        self.kept = Kept(model, trained)
        self.secret = secret
        self.threads = torch.get_num_threads()
        """Threads of this process when the states were saved that a run goes on from."""
        self._length: int | None = None
        self._learnt: dict[int | None, tuple[Layouts, Truths]] = {None: (Layouts(), Truths())}
        self.coin = "high"
        """The side to which the probes set single numbers by which a forward decides for all samples: nearly one, or nearly
        zero.
        """
        self.coins = False
        """True once a forward of the probes drew such a number."""
        self._dealt = Dealt()
        self.unknown: dict[str, str] = {}
        """Operations that draw in no known way: what, by module."""
        self.host_draws = False
        """True once a forward of the probes drew from Python's or numpy's generator."""
        self.late_host_draws = False
        """True once a private microbatch did, unforeseen: by rows, perhaps, so that numbers of other samples moved."""
        self.multiplied: Multiplied | None = None
        """Computes linear maps of the model by itself, where it does."""
        self._products = products
        self._known: dict[int, tuple[Any, Kind, Callable[..., Any]]] = {}
        self._model = model
        self._spectrum = Spectrum(model, self._company)
        self._states = States(model)
        self._trained = trained
        self._paths = {id(module): name for name, module in model.named_modules()}
        self._passes: list[Pass] = []
        self._number = 0
        self._mode = Dispatched(self)
        self._functions = Called(self)
        self.total = Total(self._found, self._marked)
        """Makes operations that index total."""
        self._seen_leaves = WeakTensorKeyDictionary()
        self._anchors: set[int] = set()
        self._loop: Loop | None = None

    def state_dict(self) -> dict[str, str | int]:
        """The public seed, which a resumed run goes on with, and the threads on which torch ran."""
        return {"seed": self.numbers.seed.hex(), "threads": torch.get_num_threads()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the seed of a run."""
        self.numbers = Numbers(bytes.fromhex(state["seed"]))
        self.threads = int(state.get("threads", self.threads))

    # ---------------------------------------------------------------------------------------------------------- passes

    @property
    def layouts(self) -> Layouts:
        """Returns the places of rows in draws, for microbatches of the length that was entered last."""
        return self._learnt[self._length][0]

    @property
    def truths(self) -> Truths:
        """Returns what a forward decides by content, for microbatches of the length that was entered last."""
        return self._learnt[self._length][1]

    @property
    def decided(self) -> dict[str, bool]:
        """Returns the modules of which a truth is told, at any length, and what is told."""
        return {path: told for _, truths in self._learnt.values() for path, told in truths.decided.items()}

    @property
    def active(self) -> bool:
        """Tell if a pass is entered."""
        return bool(self._passes)

    @property
    def learning(self) -> bool:
        """Tell if layouts are learnt from the pass that is entered."""
        return bool(self._passes) and self._passes[-1].learning

    @property
    def current(self) -> Pass:
        """The pass that is entered, the innermost."""
        return self._passes[-1]

    @contextmanager
    def enter(
        self, step: int, names: Sequence[bytes], *, learning: bool = False, probing: bool = False,
        given: "Given | None" = None, inputs: Sequence[torch.Tensor] = (), loop: "Loop | None" = None,
        length: int | None = None,
    ) -> Iterator[Pass]:  # fmt: skip
        """Runs a block as one private microbatch; blocks may lie within each other.

        Args:
            step: of the run, 0 in the probes. names: one per row. learning: draws are watched for their layout.
            probing: truths that are read off content are noted, and not forced. given: numbers for what is asked, where they
                are inputs of a graph that is being made.
            inputs: what content enters by, in the probes. loop: whose microbatch it is, if an error may break that off.
            length: public length of the rows. What the probes learn, they learn for each length alone, so that what a row gets
            is a function of its own length and never of another's.
        """
        self._number += 1
        self._length = length
        self._learnt.setdefault(length, (Layouts(), Truths()))
        entered = Pass(self._number, step, tuple(names), learning, probing, given)
        if probing:
            self.truths.begin(self._number, self.coin)
            entered.tainted = WeakTensorKeyDictionary()
            for value in inputs:
                entered.tainted[value] = True
            entered.picked = Picked(entered.tainted.__contains__)
            self._dealt.begin()
        if learning:
            self.layouts.watch()
        outermost = not self._passes
        if outermost:
            self._loop = loop
        before = torch.get_rng_state()
        hosts = Generators(with_torch=False) if outermost else None
        self._passes.append(entered)
        torch.default_generator.manual_seed(entered.seed)
        if hosts is not None:
            hosts.seed(self.numbers.seed_of(shared_tag(step), "python and numpy"))
            self._spectrum.attach()
            self._states.attach()
            take_out(self._mode)  # what an interrupt may have left
            take_out_function(self._functions)
            self._functions.__enter__()
            _push_mode(self._mode)
        try:
            yield entered
        finally:
            self.kept.uncount()
            if hosts is not None and entered in self._passes:
                self._spectrum.detach()
                self._states.detach()
                take_out(self._mode)
                take_out_function(self._functions)
                if not learning and hosts.moved():
                    self.host_draws = self.host_draws or probing
                    self.late_host_draws = self.late_host_draws or (self.secret and not probing)
                hosts.restore()
            if entered in self._passes:
                self._passes.remove(entered)
                torch.set_rng_state(before)

    def abandon(self) -> None:
        """Leaves every pass at once: an error has broken the loop off. A backward pass is refused from here on."""
        take_out(self._mode)
        take_out_function(self._functions)
        self._spectrum.detach()
        self._states.detach()
        self._passes.clear()

    def _company(self) -> Company:
        """Tell what masks of a forward may go by."""
        if not self._passes:
            return None, True, True
        now = self.current
        return self._length, now.learning or now.probing, now.rows == 1 and not self.layouts.learnt

    def _ours(self) -> bool:
        """Tell if an operation belongs to the pass. After an error, what a notebook runs next does not: the pass is left."""
        if self._loop is None or self._loop.runs(self._paths):
            return True
        self.abandon()
        return False

    def aside(self) -> AbstractContextManager[None]:
        """Lets operations of our own pass by: those of hooks, rules and checks, which are nobody's program."""
        now = self._passes[-1:]
        return without(self._mode, self._functions, lambda: bool(now) and self._passes[-1:] == now)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within :meth:`aside`, takes operations in again: those of a backward pass, which may run a forward once more."""
        if not self._passes or any(mode is self._mode for mode in _get_current_dispatch_mode_stack()):
            yield
            return
        _push_mode(self._mode)
        functions = not any(mode is self._functions for mode in _get_current_function_mode_stack())
        if functions:
            _push_function_mode(self._functions)
        try:
            yield
        finally:
            if functions:
                _pop_function_mode()
            take_out(self._mode)

    def numbers_of(self, place: Place, asked: Request) -> torch.Tensor:
        """The numbers of a draw of the pass that is entered, for a graph that asks for them."""
        return self._entry(place, asked).values()

    def innermost(self, *, functions: bool) -> bool:
        """Tell if nobody else has entered a mode since the pass was, one of functions included, which is to see what runs."""
        return is_last(self._mode, self._functions if functions else None)

    @property
    def marking(self) -> bool:
        """Tell if a pass follows what is made of content."""
        return bool(self._passes) and self._passes[-1].tainted is not None

    def position(self) -> int:
        """Where in its program the pass stands: how many entries came before. A recomputation begins where it began."""
        place = torch.default_generator.initial_seed() - self.current.seed
        return place if 0 <= place <= len(self.current.log) else len(self.current.log)

    def since(self, position: int) -> tuple[Entry, ...]:
        """Entries from a position to where the pass stands now."""
        return tuple(self.current.log[position : self.position()])

    def trains(self, leaves: Iterable[torch.Tensor]) -> None:
        """Names what stands in graphs for trained parameters that lie over several ranks."""
        self._trained = self._trained | {id(leaf) for leaf in leaves}

    def own(self, *anchors: torch.Tensor) -> None:
        """Names leaves that the router puts into graphs."""
        self._anchors.update(map(id, anchors))

    # ------------------------------------------------------------------------------------------------------ operations

    def dispatch(self, func: Any, args: tuple, kwargs: dict | None) -> Any:
        """Runs one operation under the rules."""
        passes = self._passes
        if not passes:
            return func(*args, **(kwargs or {}))
        _, kind, plain = self._known.get(id(func)) or self._meet(func)
        if kind is PLAIN:
            result = plain(*args, **kwargs) if kwargs else plain(*args)
        elif kind is _ASKED:
            return func(*args, **(kwargs or {}))
        else:
            result = self._special(kind, func, plain, args, kwargs or {})
        if not passes:
            return result
        if torch.is_grad_enabled():
            self._look_at_leaves(args)
        tainted = passes[-1].tainted
        if tainted is not None:
            spread(tainted, args, kwargs or {}, result)
            passes[-1].picked.follow(func, args, kwargs or {}, result)
        return result

    def _meet(self, func: Any) -> tuple[Any, Kind, Callable[..., Any]]:
        """Notes the kind of an operation that is first met, and what computes in its place; held, so that it keeps its id."""
        if func.namespace in _TALKS:
            raise untouched.refused_talk(str(func))
        kind = _ASKED if func in _QUESTIONS else kind_of(func)
        known = self._known[id(func)] = func, kind, self._products.get(func, func)
        return known

    def _special(self, kind: Kind, func: Any, plain: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        if kind.reads:
            return self._read(func, args, kwargs)
        if kind.writes and self.kept.clips_nothing(func, args, kwargs):
            return args[0]
        spared = self.kept.spare(kind.writes, args, kwargs) if kind.writes and writes_now(func, args, kwargs) else None
        if spared is not None and not self._ours():
            self.kept.written = None
            return func(*args, **kwargs)
        if spared is None:
            return self._mended(kind, func, plain, args, kwargs)
        args, kwargs, places = spared
        return given_back(self._mended(kind, func, plain, args, kwargs), places)

    def _mended(self, kind: Kind, func: Any, plain: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        if torch.is_inference_mode_enabled():
            return func(*args, **kwargs)  # an evaluation: no gradient comes of it, and generators are put back after the pass
        if kind.draws and draws(func, args, kwargs):
            return self._draw(func, args, kwargs) if self._ours() else func(*args, **kwargs)
        if func in WRITES:
            self._look_at_dealt(func, args)
        handler = self.total.handlers.get(func)
        return plain(*args, **kwargs) if handler is None else handler(func, args, kwargs)

    def _look_at_dealt(self, func: Any, args: tuple) -> None:
        """Refuses a write of values in an order that a mask makes, unless the probes saw that each row takes its own."""
        now = self.current
        if now.learning or (now.picked is None and not asks(func, args)):
            return
        if torch._C._current_graph_task_id() != -1:
            return  # on the way back the same masks tell where gradients go
        path = self._path()
        how = self._dealt.wrong(func, args, now.picked, now.rows, (path, self._length), self._ours)
        if how is not None:
            raise UnsupportedModule(
                "DEALT_VALUES",
                f"{_module(path)} writes values to places that content chooses ({func}): {how}; a row that marks another "
                "number of places would take what is another row's. Read and write by the same mask tensor (x[mask] = "
                "f(x[mask])), or give each row an equal share and write x.masked_scatter(mask, values), "
                "with rows in dimension 0",
            )

    def _found(self, bad: torch.Tensor) -> bool:
        """Tell if an index is out of range. In a graph and on a device nobody waits for the answer: then it is yes."""
        if self.current.given is not None or bad.device.type != "cpu" or type(bad) is not torch.Tensor:
            return True
        with self.aside():  # a function that asks before it is dispatched would be told what the probes saw
            return bool(bad.any())

    def _marked(self, bad: torch.Tensor) -> bool:
        """The same for an operation whose result cannot carry NaN: its rows are marked, by the layout that the probes saw."""
        now = self.current
        if torch._C._current_graph_task_id() != -1:
            return self._found(bad)  # on the way back: what was out of range on the way forward has been seen there
        place = self._next_of("#" + self._path())
        if now.learning:
            self.layouts.see_index(place, now.rows, bad)
        if not self._found(bad):
            return False
        if now.learning:
            now.bad = torch.ones(now.rows, dtype=torch.bool, device=bad.device)  # some of them: which is not known yet
        layout = Layout(0, bad.shape[0]) if now.rows == 1 and bad.dim() else self.layouts.of(place)
        if not now.learning and layout is not None and layout.holds(bad.shape, now.rows):
            now.mark(bad, layout)
        return True

    def _next_of(self, path: str) -> Place:
        counts = self.current.counts
        nth = counts.get(path, 0)
        counts[path] = nth + 1
        return path, nth

    # ----------------------------------------------------------------------------------------------------------- draws

    def _draw(self, func: Any, args: tuple, kwargs: dict) -> Any:
        try:
            asked, answer = request(func, args, kwargs)
        except UnknownDraw as error:
            return self._unknown_draw(func, args, kwargs, error)
        entry = self._next(asked)
        return answer(entry.values())

    def _next(self, asked: Request) -> Draw:
        """The entry of a draw: a new one, or that of the first run where this is a recomputation."""
        now = self.current
        path = self._path()
        position = self.position()
        if position < len(now.log):
            found = now.log[position]
            if isinstance(found, Draw) and found.place[0] == path and found.request == asked:
                torch.default_generator.manual_seed(now.seed + position + 1)
                return found
        entry = self._entry(self._next_of(path), asked)
        now.log.append(entry)
        torch.default_generator.manual_seed(now.seed + len(now.log))
        return entry

    def _entry(self, place: Place, asked: Request) -> Draw:
        now = self.current
        given = None if now.given is None else now.given(place, asked)
        layout = SHARED if now.learning else self.layout(place, asked.shape, now.rows)
        if layout is None:
            raise self._unseen(place, asked)
        if now.learning:
            self.layouts.see(place, now.rows, asked)
        alone = asked.kind == "uniform" and asked.shape.numel() == 1 and layout.dim is None
        if (now.learning or now.probing) and given is None and alone:
            self.coins = self.coins or now.probing
            given = torch.full(asked.shape, _COINS[self.coin], dtype=asked.dtype, device=asked.device)
        if layout.dim is not None:
            return Draw(place, asked, layout, now.owners, self.numbers, given)
        return Draw(place, asked, layout, (shared_tag(now.step),), self.numbers, given)

    def layout(self, place: Place, shape: Sequence[int], rows: int) -> Layout | None:
        """Where rows lie in a draw of this shape, or None if nothing shows it."""
        found = self.layouts.of(place)
        if found is not None:
            return found if found.fits(shape, rows) else None
        if rows == 1 and not self.layouts.learnt:  # never more than one row in a microbatch: what is drawn is its own
            return Layout(0, shape[0]) if shape else SHARED
        if not self.secret:
            return SHARED  # draws are known to all; any numbers will do that do not follow content
        return None

    def _unseen(self, place: Place, asked: Request) -> UnsupportedModule:
        seen = self.layouts.refused.get(place)
        if seen is not None:
            return self.refuse_draw(place, seen)
        return UnsupportedModule(
            "UNSEEN_DRAW",
            f"{_module(place[0])} draws random numbers of shape {tuple(asked.shape)} that it did not draw in the probes at the "
            "start, so nothing shows which of them belong to which contribution; let the forward draw the same in every "
            "microbatch",
        )

    @staticmethod
    def refuse_draw(place: Place, seen: str) -> UnsupportedModule:
        """The refusal of a draw in which rows have no dimension of their own."""
        return UnsupportedModule(
            "DRAW_ROWS",
            f"{_module(place[0])} draws random numbers in which no dimension is the example ({seen}), so that they would "
            f"depend "
            'on who else was drawn; set its dropout (or noise) to 0, or sign disclosure = "occurrences_public", which claims '
            "nothing from secret draws",
        )

    def _unknown_draw(self, func: Any, args: tuple, kwargs: dict, error: UnknownDraw) -> Any:
        path = self._path()
        if any(word in str(func) for word in ("attention", "sdpa")):
            raise NotPrivateUse(
                "ATTENTION_DROPOUT_FUSED",
                f"{_module(path)} runs a fused attention ({func}) that drops inside its kernel, where masks cannot be those "
                f"of a contribution; leave the choice of kernels to torch, or set the dropout of attention to 0",
            )
        if self.secret:
            raise UnsupportedModule(
                "DRAW_UNKNOWN",
                f"{_module(path)} draws by {error}, and it is not known which of the numbers belong to which example; use "
                f"another "
                'distribution, or sign disclosure = "occurrences_public", which claims nothing from secret draws',
            )
        torch.default_generator.manual_seed(int.from_bytes(place_tag(path, 0)[:7], "little"))
        result = func(*args, **kwargs)
        torch.default_generator.manual_seed(self.current.seed + len(self.current.log))
        return result

    def _path(self) -> str:
        """The innermost module of the model under way; of modules outside it, their classes."""
        outside: list[str] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is CALL_IMPL:
                module = frame.f_locals["self"]
                found = self._paths.get(id(module))
                if found is not None:
                    return "~".join((found, *reversed(outside)))
                if not getattr(module, "dptrain_transparent", False):
                    outside.append(type(module).__name__)
            frame = frame.f_back
        return "~".join((self._recomputed(), *reversed(outside)))

    def _recomputed(self) -> str:
        """The module whose ``forward`` runs without having been called: a checkpoint may recompute that alone."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name == "forward":
                found = self._paths.get(id(frame.f_locals.get("self")))
                if found is not None:
                    return found
            frame = frame.f_back
        return _NO_MODULE

    # ----------------------------------------------------------------------------------------------------------- reads

    def _read(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """A truth about content, told to Python: in the probes noted, else what they saw where they saw one alone."""
        now = self.current
        truth = func is _aten.equal.default or args[0].dtype == torch.bool
        if not truth or now.learning or not self._ours():
            return func(*args, **kwargs)
        path = self._path()
        if now.probing:
            answer = func(*args, **kwargs)
            assert now.tainted is not None
            content = any(value in now.tainted for value in args if isinstance(value, torch.Tensor))
            self.truths.see(now.number, path, content, bool(answer))
            return answer
        if not self.truths.known(path):
            return func(*args, **kwargs)
        position = self.position()
        if position < len(now.log):
            found = now.log[position]
            if isinstance(found, Read) and found.place[0] == path:
                torch.default_generator.manual_seed(now.seed + position + 1)
                return found.answer
        place = (path, self._next_of("?" + path)[1])
        told = self.truths.told(*place)
        answer = bool(func(*args, **kwargs)) if told is None else told
        now.log.append(Read(place, answer))
        torch.default_generator.manual_seed(now.seed + len(now.log))
        return answer

    # ---------------------------------------------------------------------------------------------------------- leaves

    def _look_at_leaves(self, args: tuple) -> None:
        for value in args:
            if isinstance(value, torch.Tensor):
                if value.requires_grad and value.is_leaf:
                    self._look_at_leaf(value)
            elif type(value) is list and value and isinstance(value[0], torch.Tensor):
                self._look_at_leaves(tuple(value))

    def _look_at_leaf(self, leaf: torch.Tensor) -> None:
        if id(leaf) in self._trained or id(leaf) in self._anchors:
            return
        now = self.current
        if not isinstance(leaf, nn.Parameter) or self.kept.name_of(leaf) is not None:
            # An activation may have been made a leaf (enable_input_require_grads of transformers), or a new parameter of a
            # frozen weight's transpose (transpose of peft). One that comes back in another microbatch is neither.
            seen = self._seen_leaves.setdefault(leaf, now.number)
            if seen == now.number:
                return
        if not any(leaf is other for other in now.outside):
            now.outside.append(leaf)

    def refuse_leaves(self, losses: torch.Tensor | None = None) -> None:
        """Raises NotPrivateUse for a leaf that the forward used and the model does not have; and clears what it was given.

        Args:
            losses: whose graph is looked at, too.
        """
        if not self._passes:
            return
        for leaf in () if losses is None else untouched.reached(losses):
            self._look_at_leaf(leaf)
        if self.current.outside:
            for leaf in self.current.outside:
                leaf.grad = None
            raise untouched.refusal(self.current.outside[0])

    def strike(self, losses: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Weights with NaN for the rows that count as zero: those whose loss is not finite, and those that were marked.

        A gradient that is NaN makes the whole contribution zero, where the clip is.
        """
        out = ~torch.isfinite(losses.detach())
        if self._passes and self.current.bad is not None and self.current.bad.shape == out.shape:
            out = out | self.current.bad
        return weight.masked_fill(out, torch.nan)


def _module(path: str) -> str:
    inside, _, outside = path.partition("~")
    if outside:
        return f"a module outside the model ({outside.replace('~', '.')})"
    if inside == _NO_MODULE:
        return "the loss, or the loop,"
    return f"module {inside!r}" if inside else "the model itself"
