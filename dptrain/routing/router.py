"""The router: a hook on the autograd engine that masks, clips and sums per-contribution gradients.

While a microbatch is armed, forward hooks remember what went into each module that a contribution of this microbatch may
touch, and gradient hooks see what comes back; of plain linear maps, which are nodes of autograd here, the node hands over both.
Parameters take no part in autograd (``requires_grad`` is False from
``prepare`` on), so autograd forms no weight gradient, nothing is built below the lowest permitted block, and ``p.grad``
cannot hold a non-private gradient.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn
from torch._C._functorch import is_legacy_batchedtensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.hooks import RemovableHandle

from dptrain.clipping.exactness import Sums, sums_for
from dptrain.clipping.fast import Bounds, Pieces, full_precision
from dptrain.clipping.resolver import Schedule
from dptrain.data.microbatch import Microbatch
from dptrain.errors import CoupledModel, LossShape
from dptrain.geometry.charts import charted
from dptrain.gradients.forms import Piece, narrow
from dptrain.gradients.fused import Fused
from dptrain.gradients.generic import GenericRule, place_of
from dptrain.gradients.poison import check_poisoned
from dptrain.gradients.registry import Call, Rule, described, rule_of, settled
from dptrain.gradients.shared_tables import Listed, MethodCalls, listed_sites, watch
from dptrain.gradients.whole_modules import SpreadPrompts, prompt_models
from dptrain.routing import sites
from dptrain.routing.capture import Kept, Nodes, Straight, Tap, in_reentrant_checkpoint
from dptrain.routing.sites import Site
from dptrain.sandbox import Entry, Given, Sandbox
from dptrain.sandbox.outside import without_gradient


class FallbackNotice(UserWarning):
    """A module takes the generic, slower path; its gradient is exact."""


@dataclass
class _Armed:
    """One microbatch. Hooks on its tensors know it by ``serial`` alone: a reference would close a circle through autograd
    that is never collected."""

    serial: int
    contributions: int
    examples: int
    active: frozenset[int]
    """Indices of the tensors, and of the parts of split ones, that a contribution may touch. Nothing else is captured."""
    pieces: Pieces = field(default_factory=dict)
    taps: list[tuple[str, torch.Tensor, int]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    entering: tuple[Site, torch.Tensor] | None = None
    """The site whose call has just begun, and its input."""
    passed: set[str] = field(default_factory=set)
    """Names of sites whose call goes on, and whose gradients are taken already."""
    muted: bool = False
    half: bool = False
    """A captured module computed in half precision."""
    wanted: dict[int, frozenset[str]] = field(default_factory=dict)
    """Names of the tensors of which something is captured, by identity of the site."""
    reach: dict[int, float] | None = None
    """In the probes, by tensor: the norm of the absolute summands of its gradient, or more; what rounding is measured by."""


class Router:
    """Finds the per-contribution gradients of every microbatch of one model under one schedule, and folds them into sums.

    Guarantee: what :meth:`fold` hands to ``sums`` are, per scheduled tensor, pieces whose row i is the gradient of
    contribution i alone; a contribution with a non-finite loss or gradient contributes zero, silently. What the sums promise
    stands with them (:mod:`dptrain.clipping.fast`).

    Args:
        sandbox: what the forward runs in, while a microbatch is entered there. None: a module that draws random numbers and
            has no rule of its own is refused.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: Schedule,
        *,
        exactness: str = "fast",
        least_multiplier: float = 1.0,
        noise_family: str = "gaussian",
        sandbox: Sandbox | None = None,
    ) -> None:
        self.schedule = schedule
        self._model = model
        self.sandbox = sandbox
        self.tensors = [(g, tensor) for g, block in enumerate(schedule.blocks) for tensor in block.tensors]
        self._index: dict[int, int] = {}
        self._parts: dict[int, list[int]] = {}
        for i, (_, tensor) in enumerate(self.tensors):
            first = self._index.setdefault(id(tensor.parameter), i)
            self._parts.setdefault(first, []).append(i)
        self._first = {i: first for first, parts in self._parts.items() for i in parts}
        self._armed: _Armed | None = None
        self._serial = 0
        self._anchor = torch.zeros((), requires_grad=True)
        if sandbox is not None:
            sandbox.own(self._anchor)
        self._begun: dict[str, int] = {}
        self._doubted: list[Rule] = []
        self._mistaken: list[Rule] = []
        self._learnt = False
        self._handles: list[RemovableHandle] = []
        listed = list(listed_sites(model, self._index.keys()))
        self.sites = list(self._find_sites(model, listed))
        self._taken = watch(model, listed, self._is_armed)
        lends = {(id(lender), method): (lender, method) for lender, method in (one.lends for one in listed if one.lends)}
        self._methods = [
            *(
                MethodCalls(site.module, site.method, self._taken, partial(self._begin, site), partial(self._capture, site))
                for site in self.sites if site.method
            ),
            *(MethodCalls(lender, method, self._taken) for lender, method in lends.values()),
        ]  # fmt: skip
        self._standing: list[SpreadPrompts | MethodCalls] = [
            *(SpreadPrompts(module, self._is_armed) for module in prompt_models(model)), *self._methods,
        ]  # fmt: skip
        self._nodes = Nodes(self)
        self.fused = Fused(model, lambda: sandbox is None or sandbox.active, self._nodes.passing)
        """Forwards in fewer passes over memory, for the time of a microbatch."""
        owners: dict[int, int] = {}
        for site in self.sites:
            for index in set(site.tensors.values()):
                owners[index] = owners.get(index, 0) + 1
        self._shared = frozenset(index for index, count in owners.items() if count > 1)
        precisions = {tensor.parameter.dtype for _, tensor in self.tensors}
        self.precision = torch.float64 if precisions == {torch.float64} else torch.float32
        noised = [block.std > 0.0 for block in schedule.blocks]
        self.charts = charted(schedule.pairs, self.tensors, noised)
        self._whole = exactness == "certified"
        """Tells whether bits count: what computes, and how it rounds, may not go by what others of a microbatch may touch."""
        kept = (least_multiplier, noise_family, self.charts)
        self.sums: Sums = sums_for(exactness, schedule, self.tensors, self.precision, *kept)
        self.leaf: Callable[[nn.Parameter], nn.Parameter] = lambda parameter: parameter
        """What stands in a graph for a parameter: that itself, but where it lies over several ranks."""
        self.verified: frozenset[str] | None = None
        """Sites that the probes have seen run; any other is refused when it first runs. None while nothing was probed."""

    def _find_sites(self, model: nn.Module, listed: list[Listed]) -> Iterator[Site]:
        inside: tuple[str, ...] = ()
        taken: set[tuple[int, str]] = set()
        for one in listed:
            taken |= one.taken
            yield self._site(one.name, one.module, one.rule, one.tensors, one.method)
        for name, module in model.named_modules():
            if name.startswith(inside):
                continue
            below = {
                key: parameter
                for key, parameter in module.named_parameters(remove_duplicate=False)
                if id(parameter) in self._index and not (taken and place_of(module, key) in taken)
            }
            rule = rule_of(name, module, frozenset(below))
            if rule is None:
                continue
            if rule.whole:
                inside = (*inside, f"{name}." if name else "")
            yield self._site(name, module, rule, {key: p for key, p in below.items() if rule.whole or "." not in key})

    def _site(
        self, name: str, module: nn.Module, rule: Rule, own: dict[str, nn.Parameter], method: str = ""
    ) -> Site:
        """Makes a site of the tensors ``own``, and announces one that is slow."""
        if rule.slow:
            warnings.warn(
                f"{described(name, module)} has no rule of its own: its tensors {sorted(own)} take the generic path, exact "
                "but slower (the module runs once more per microbatch); @gradient_rule adds one (docs/extending/layers.md)",
                FallbackNotice,
                stacklevel=4,
            )
        indices = {key: self._index[id(parameter)] for key, parameter in own.items()}
        return Site(name, module, rule, indices, {key: parameter.shape for key, parameter in own.items()}, method)

    def __getstate__(self) -> dict[str, object]:
        """A copied or pickled model takes its hooks along: they do nothing there, and no sum or gradient goes with them."""
        return {"_armed": None}

    def attach(self) -> None:
        """Installs the hooks; :meth:`detach` removes them and leaves no trace on the model."""
        for site in self.sites:
            if site.method:
                continue
            self._handles.append(site.module.register_forward_pre_hook(partial(self._widen, site), with_kwargs=True))
            if site.rule.again:
                self._handles.append(site.module.register_forward_pre_hook(partial(self._begin, site)))
            self._handles.append(site.module.register_forward_hook(partial(self._capture, site), with_kwargs=True))

        self._handles.extend(self._taken.attach())
        for standing in self._standing:
            standing.attach()
        if self.sandbox is not None:
            self.sandbox.multiplied = self._nodes.multiplied
            self._handles.append(self._model.register_forward_hook(partial(self._outside)))
        self.fused.expect(self._handles)

    def _is_armed(self) -> bool:
        return self._armed is not None

    def _outside(self, model: nn.Module, args: tuple, output: object) -> object:
        """Lets a backward pass beside the run raise by name; a copy of the model has nothing of this."""
        sandbox = vars(self).get("sandbox")
        if self._armed is not None or sandbox is None or sandbox.active:
            return None
        return without_gradient(output) if model.training and torch.is_grad_enabled() else None

    def _begin(self, site: Site, module: nn.Module, args: tuple) -> None:
        """Notes where the draws of this forward begin; a copy of the model has nothing of this."""
        if vars(self).get("sandbox") is not None and self.sandbox.active:
            self._begun[site.name] = self.sandbox.position()

    def _drawn(self, site: Site) -> tuple[Entry, ...]:
        """Returns what the forward of this site that just ended drew and read."""
        if self.sandbox is None or not self.sandbox.active or site.name not in self._begun:
            return ()
        return self.sandbox.since(self._begun.pop(site.name))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self.sandbox is not None:
            self.sandbox.multiplied = None
        for standing in self._standing:
            standing.detach()

    def arm(
        self, contributions: int, examples: int, permitted_NG: torch.Tensor, reach: frozenset[int] | None = None
    ) -> None:
        """Starts a microbatch of ``contributions`` x ``examples`` rows.

        Args:
            permitted_NG: which block each contribution may touch. reach: blocks to capture besides those that one of them may
                touch, since one of another rank may; nobody's coefficient there is above zero here.

        Guarantee: what is captured lies in blocks permitted to one contribution at least; at exactness ``certified``, in all
        of them, whoever is in the microbatch, for where no gradient is asked for torch computes, and rounds, otherwise. It is
        masked for each by its coefficients (:meth:`Bounds.masked`), or by its blocks where each is summed by itself
        (:meth:`Bounds.profiles`).

        Raises:
            UnsupportedModule: code METHOD_CHANGED, a method that a gradient is found by was replaced since the start.
        """
        self._require_methods()
        self._taken.begin()
        blocks = frozenset(torch.nonzero(permitted_NG.any(0)).flatten().tolist()) | (reach or frozenset())
        active = frozenset(i for i, (g, _) in enumerate(self.tensors) if self._whole or g in blocks)
        self._serial += 1
        self._armed = _Armed(self._serial, contributions, examples, active)

    def _require_methods(self) -> None:
        for method in self._methods:
            method.require()

    @contextmanager
    def rearmed(self, rows: Microbatch, like: "_Armed | None" = None, given: Given | None = None) -> Iterator[None]:
        """Arms for other rows within an armed microbatch, which comes back untouched.

        Args:
            like: whose active blocks to take; default: those of the microbatch. given: see :meth:`Sandbox.enter`.
        """
        armed = self._armed
        template = like or armed
        assert template is not None
        self._serial += 1
        self._armed = replace(
            template, serial=self._serial, contributions=rows.contributions, examples=rows.examples, pieces={}, taps=[],
            order=[], entering=None, passed=set(), muted=False, half=False, reach=None,
        )  # fmt: skip
        sandbox = self.sandbox
        try:
            if sandbox is None or not sandbox.active:
                yield
                return
            with sandbox.enter(sandbox.current.step, rows.names, given=given, length=rows.length), self.inside():
                yield
        finally:
            self._armed = armed

    def disarm(self) -> None:
        """Forgets the microbatch; forwards from here on are ordinary ones."""
        self._armed = None

    @property
    def active(self) -> frozenset[int]:
        """Indices of the tensors of which the armed microbatch captures something."""
        return self._armed.active if self._armed else frozenset()

    @property
    def armed(self) -> bool:
        return self._armed is not None

    @property
    def contributions(self) -> int:
        """Contributions in the armed microbatch, 0 when none is armed."""
        return self._armed.contributions if self._armed else 0

    @property
    def half(self) -> bool:
        """Tells whether a trained module of this microbatch computed in half precision."""
        return self._armed is not None and self._armed.half

    @property
    def reach(self) -> dict[int, float]:
        """In the probes: how large rounding of the gradient of each tensor is measured by."""
        return (self._armed.reach if self._armed else None) or {}

    @property
    def probing(self) -> bool:
        """Tells whether a probe is under way."""
        sandbox = self.sandbox
        if sandbox is not None and sandbox.active and (sandbox.current.probing or sandbox.current.learning):
            return True
        return any(tensor.parameter.requires_grad for _, tensor in self.tensors)

    @property
    def begun(self) -> _Armed | None:
        """Returns the armed microbatch."""
        return self._armed

    @property
    def learnt(self) -> bool:
        """Tells whether rows were learnt, and are not fixed yet."""
        return self._learnt

    def wanted(self, site: Site) -> frozenset[str]:
        """Names the tensors of a site of which something is captured."""
        return frozenset() if self._armed is None else self._wanted(self._armed, site)

    def first_of(self, index: int) -> int:
        """The index that stands for a whole tensor: of one that is split, that of its first part."""
        return self._first[index]

    def measure_reach(self) -> None:
        """Has :attr:`reach` filled by the backward passes of this microbatch."""
        assert self._armed is not None
        self._armed.reach = {}

    @property
    def taps(self) -> list[tuple[str, torch.Tensor, int]]:
        """Outputs at which the graph of this microbatch starts and where the example is in them, for the probes."""
        return self._armed.taps if self._armed else []

    @property
    def order(self) -> list[str]:
        """Names of sites in the order in which they ran in this microbatch."""
        return self._armed.order if self._armed else []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hooks do nothing inside: rules may run a module without capturing it."""
        armed, self._armed = self._armed, None
        try:
            yield
        finally:
            self._armed = armed

    def _widen(self, site: Site, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Gives a batch of one (position ids of shape (1, T), say) the batch dimension it will be broadcast to."""
        armed = self._armed
        if armed is None:
            return None
        armed.entering = None
        armed.passed.discard(site.name)  # what one left that raised
        if not torch.is_grad_enabled() or not args or not isinstance(args[0], torch.Tensor):
            return None
        if site.rule.product and self.fused.ours_alone(module):
            armed.entering = site, args[0]
        with torch._C.DisableTorchFunction():  # nobody is asked about attributes
            shape = () if args[0].is_nested else args[0].shape
        rows, rule = armed.contributions * armed.examples, site.rule
        if not (len(shape) > 1 and shape[0] == 1 and self._wanted(armed, site)):
            return None
        one_position = not rule.common and (rule.enters != 0 or self._doubts(rule, shape[1], rows))
        if rows == 1 or one_position:
            return None
        return (args[0].expand(rows, *shape[1:]), *args[1:]), kwargs

    def _doubts(self, rule: Rule, length: int, rows: int) -> bool:
        """Tells whether one row for all may be one position of all rows, which two numbers of rows will show."""
        if self.sandbox is None or not self.sandbox.learning or not rule.anywhere or rule.given.fixed or rule in self._mistaken:
            return False
        if length == rows and rule.given.may_be(1):
            self._doubted.append(rule)
            return True
        if rule in self._doubted:
            rule.forget()
            self._mistaken.append(rule)
        return False

    def _fix(self) -> None:
        """Lets examples lie from now on where they were learnt to lie."""
        self._learnt = False
        for site in self.sites:
            site.rule.fix()

    def mistaken(self) -> bool:
        """Tells whether an input was taken for one position that was one row for all, so that rows have to be learnt again."""
        found = any(rule in self._doubted for rule in self._mistaken)
        self._doubted.clear()
        return found

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Backward passes inside yield no pieces; forwards (of a checkpoint, say) are remembered as ever."""
        armed = self._armed
        if armed is not None:
            armed.muted = True
        try:
            yield
        finally:
            if armed is not None:
                armed.muted = False

    def _capture(self, site: Site, module: nn.Module, args: tuple, kwargs: dict, output: object) -> object | None:
        armed = self._armed
        if armed is None:
            return None
        armed.entering = None
        if site.name in armed.passed:
            armed.passed.remove(site.name)
            return None
        wanted = self._wanted(armed, site)
        if not (wanted or (site.rule.common and torch.is_grad_enabled())):
            return None
        with self._beside(args, kwargs, output):
            if not wanted:  # what follows sees as many rows as in other microbatches
                return site.rule.spread(0, output, armed.contributions * armed.examples)
            return self._captured(armed, wanted, site, module, args, kwargs, output)

    def _beside(self, args: tuple, kwargs: dict, output: object) -> AbstractContextManager[None]:
        """Enters the room of our own operations, unless somebody is to see what they do.

        That is who follows content from tensor to tensor in the probes, and code of the program that they run: hooks on what
        autograd saves, and classes of tensors.
        """
        sandbox = self.sandbox
        if sandbox is None or sandbox.marking or torch._C._autograd._top_saved_tensors_default_hooks(True):
            return nullcontext()
        plain = type(output) in _ORDINARY and all(type(value) in _SIMPLE for value in (*args, *kwargs.values()))
        return sandbox.aside() if plain else nullcontext()

    def _captured(
        self, armed: _Armed, wanted: frozenset[str], site: Site, module: nn.Module, args: tuple, kwargs: dict, output: object
    ) -> object | None:
        """Checks a call, and hooks what comes back to what came out of it."""
        again = torch._C._current_graph_task_id() != -1  # a checkpoint computes this once more, inside a backward pass
        if not torch.is_grad_enabled():
            if not again and in_reentrant_checkpoint():
                raise sites.reentrant(site)
            return None
        if again and site.name not in armed.order:
            raise sites.reentrant(site)
        generic = site.rule.again
        if not isinstance(output, torch.Tensor) and not generic:
            raise sites.output_type(site, output, wanted)
        if not args and not generic:
            args = tuple(value for value in kwargs.values() if isinstance(value, torch.Tensor))[:1]
        leaves, spec = tree_flatten(output) if generic else ([output], None)
        rows = armed.contributions * armed.examples
        changed = False
        for place, value in enumerate(leaves):
            spread = site.rule.spread(place, value, rows)
            if spread is not None:
                leaves[place] = spread
                changed = True
        first = args[0] if args else None
        if any(isinstance(value, torch.Tensor) and value.is_nested for value in (first, *leaves)):
            raise sites.nested(site)
        learning = self.sandbox is not None and self.sandbox.learning
        rule = site.rule
        if learning:
            rule.learn(args, kwargs, leaves, rows)
            self._learnt = True
        elif self._learnt:
            self._fix()
        elif rows == 1 and self.verified is None:  # it may be all that ever comes
            rule.learn(args, kwargs, leaves, rows)
            rule.fix()
        apart = rule.common or not isinstance(first, torch.Tensor) or _rows(first, armed, rule.enters)
        apart = apart and _rows(leaves[0] if leaves else None, armed, rule.dimension(0))
        if not (rule.open and (apart or (learning and rule.anywhere))):  # nothing is asked back while it is learnt
            raise sites.batch_dimension(site, wanted)
        if self.verified is not None and site.name not in self.verified:
            raise sites.unverified(site, wanted)
        armed.half = armed.half or _half(leaves)
        begins = not any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)
        draws = self._drawn(site) if generic else ()
        given = {id(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)} if site.method else ()
        for place, value in enumerate(leaves):
            if not isinstance(value, torch.Tensor) or not value.is_floating_point() or place in site.rule.elsewhere:
                continue
            if id(value) in given:  # what follows may write it, and what went in is kept
                value = leaves[place] = value.clone()
                changed = True
            if len(leaves) > 1 and value.requires_grad:
                # Inside, one output may be made of another: what is seen here is what flows in from outside alone.
                value = leaves[place] = value.view_as(value)
                changed = True
            if value.requires_grad and value._is_view() and site.rule.product:
                # A change in place (y = linear(x); y += x) would take the hook off a view. That it is one is an accident of how
                # torch multiplies, and nothing keeps the product that it is a view of.
                value = leaves[place] = torch.ops.aten._unsafe_view(value, value.shape)
                changed = True
            if not value.requires_grad:
                anchor = self._anchor if self._anchor.device == value.device else self._anchor.to(value.device)
                value = leaves[place] = Tap.apply(value.clone() if generic else value, anchor)
                changed = True
            at = site.rule.dimension(place)
            if begins and place == site.rule.main and not again:
                armed.taps.append((site.name, value, at))
            if value.dim() > at and value.shape[at] == rows:
                kept = Kept(args, kwargs, self._anchor, armed.contributions, armed.examples, draws)
                value.register_hook(partial(self.on_grad, armed.serial, site, kept, place, wanted))
            else:
                value.register_hook(partial(sites.refuse_output, site, place))
        if not again:
            armed.order.append(site.name)
        if not changed:
            return None
        return leaves[0] if spec is None else tree_unflatten(leaves, spec)

    def on_grad(
        self, serial: int, site: Site, kept: Kept | Straight, place: int, wanted: frozenset[str], grad: torch.Tensor
    ) -> None:
        """Splits the gradient that came back to an output of a site.

        Raises:
            CoupledModel: code STALE_GRAPH, the call was one of an earlier microbatch.
        """
        armed = self._armed
        if armed is None or armed.muted or is_legacy_batchedtensor(grad):  # many at once a loop alone asks for
            return
        if armed.serial != serial:
            raise CoupledModel(
                "STALE_GRAPH",
                f"the losses reach back to an earlier microbatch (seen at {site.name!r}), whose contributions would enter "
                "under the clip of others; keep no graph from one microbatch to the next",
            )
        call = kept.call(place, wanted, frozenset(key for key in wanted if site.tensors[key] in self._shared))
        self._armed = None  # as in paused()
        try:
            with self._aside(site), torch.no_grad(), full_precision(grad.device):
                found = settled(site.rule, call, grad, site.shapes)
                if armed.reach is not None and isinstance(site.rule, GenericRule):
                    check_poisoned(site.rule, call, grad, below=kept.below)
                for key, piece in found.items():
                    self._deliver(armed, site.tensors[key], piece)
                if armed.reach is not None:
                    again = self._again(site, call, grad)
                    for key, piece in found.items():
                        index, size = site.tensors[key], sites.reach(site.rule, key, call.inputs, grad, piece, again.get(key))
                        armed.reach[index] = armed.reach.get(index, 0.0) + size
        finally:
            self._armed = armed

    @staticmethod
    def _again(site: Site, call: Call, grad: torch.Tensor) -> dict[str, Piece]:
        """Splits the gradient of a module that runs again under another weight, so that it rounds otherwise; in the probes."""
        return settled(site.rule, call, grad * sites.ODD, site.shapes) if isinstance(site.rule, GenericRule) else {}

    def inside(self) -> AbstractContextManager[None]:
        """Enters the room of a backward pass: what it recomputes is the program of the pass, whoever asked for it."""
        return nullcontext() if self.sandbox is None else self.sandbox.inside()

    def aside(self) -> AbstractContextManager[None]:
        """Enters the room of our own operations."""
        return nullcontext() if self.sandbox is None else self.sandbox.aside()

    def _aside(self, site: Site) -> AbstractContextManager[None]:
        """Our own operations need no sandbox; code of a module that runs again does."""
        return nullcontext() if site.rule.again or site.rule.runs else self.aside()

    def _deliver(self, armed: _Armed, index: int, piece: Piece) -> None:
        """Hands a piece in; of a tensor that is split, what lies in each part that is captured."""
        for i in self._parts[index]:
            part, shape = self.tensors[i][1].part, self.tensors[i][1].parameter.shape
            if i in armed.active:
                armed.pieces.setdefault(i, []).append(piece if part is None else narrow(piece, part, shape))

    def _wanted(self, armed: _Armed, site: Site) -> frozenset[str]:
        """Names of the tensors of a site of which something is captured."""
        found = armed.wanted.get(id(site))
        if found is None:
            found = frozenset(key for key, first in site.tensors.items() if not armed.active.isdisjoint(self._parts[first]))
            armed.wanted[id(site)] = found
        return found

    def require_losses(self, losses: torch.Tensor) -> None:
        """Raises LossShape unless the losses are one number per example of the armed microbatch, with a graph."""
        assert self._armed is not None
        rows = self._armed.contributions * self._armed.examples
        if not isinstance(losses, torch.Tensor) or losses.shape != (rows,):
            found = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise LossShape(
                "LOSS_SHAPE",
                f"found losses of shape {found}, expected ({rows},): one loss per example, each a function of that example "
                "alone; use reduction='none' and average over the positions of an example yourself, or for a model of "
                "transformers dptrain.losses_of(model, outputs, labels)",
            )
        if not losses.requires_grad:
            raise LossShape(
                "LOSS_DETACHED",
                "the losses carry no graph: compute them with gradients enabled, from the model given to prepare(), inside "
                "the microbatch they belong to",
            )

    def backward(self, losses: torch.Tensor, weight: torch.Tensor, *, retain_graph: bool = False) -> None:
        """Runs the one backward pass of the armed microbatch.

        Args:
            losses: shape (N * M,), one per example. weight: same shape; 1/m_i for the m_i examples of a contribution, 0 for
                rows that only pad.

        Raises:
            NotPrivateUse: code FOREIGN_LEAF, something outside the model would get a raw gradient.
        """
        assert self._armed is not None
        self._require_methods()
        self._armed.pieces.clear()
        sandbox = self.sandbox
        weight = weight.to(losses, non_blocking=True)
        if sandbox is not None:
            sandbox.refuse_leaves(losses)
            weight = sandbox.strike(losses, weight)
        with self.inside():
            torch.autograd.backward([losses], [weight], retain_graph=retain_graph)
        if sandbox is not None:
            sandbox.refuse_leaves()  # those that a recomputation met

    @property
    def pieces(self) -> Pieces:
        """Returns what the backward passes of the armed microbatch found."""
        assert self._armed is not None
        return self._armed.pieces

    def fold(self, bounds: Bounds) -> None:
        """Masks, clips and adds what the backward pass found to the sums of the step, and ends the microbatch."""
        self.sums.add(self.pieces, bounds)
        self.disarm()


_ORDINARY = (torch.Tensor, nn.Parameter)
_SIMPLE = (*_ORDINARY, type(None), bool, int, float, str)


def _half(values: list[object]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16) for value in values)


def _rows(value: object, armed: _Armed, at: int) -> bool:
    return isinstance(value, torch.Tensor) and value.shape[at : at + 1] == (armed.contributions * armed.examples,)
