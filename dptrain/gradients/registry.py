"""Registers gradient rules, and finds the one that serves a module.

A rule splits the output gradient of one call of one module into the gradients of its contributions: a function ``(module, call,
grad) -> {name: form}``. The project's own rules and those of users register alike; docs/extending/layers.md shows how.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from fnmatch import fnmatchcase
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from dptrain.errors import ConfigError, UnsupportedModule
from dptrain.gradients.dimensions import Dimension
from dptrain.gradients.forms import Dense, Form, Gather, Outer, Piece, promote, widened
from dptrain.sandbox import Entry

Function = Callable[[Any, "Call", torch.Tensor], Mapping[str, Form]]
Serves = Callable[[Any, frozenset[str]], bool]
Rules = TypeVar("Rules", bound=Callable[..., Any])


class Call:
    """Describes one call of a module in a microbatch: N contributions of M examples each, in dimension 0 of every tensor.

    Attributes:
        inputs, kwargs: What the module was called with.
        contributions, examples: N and M.
        output: Which of the module's outputs, in the order of their leaves, the gradient belongs to.
        autocast: The type that the call computed in, None outside autocast.
        draws: The random numbers that the call drew and the truths that it read, for another run of it.
        wanted: Names of the tensors that a contribution may touch; others need no form.
        tied: Names of tensors that other modules use too.
    """

    def __init__(
        self,
        inputs: tuple,
        kwargs: dict,
        contributions: int,
        examples: int,
        *,
        output: int = 0,
        autocast: torch.dtype | None = None,
        draws: tuple[Entry, ...] = (),
        wanted: frozenset[str] = frozenset(),
        tied: frozenset[str] = frozenset(),
    ) -> None:
        self.inputs = inputs
        self.kwargs = kwargs
        self.contributions = contributions
        self.examples = examples
        self.output = output
        self.autocast = autocast
        self.draws = draws
        self.wanted = wanted
        self.tied = tied

    @property
    def rows(self) -> int:
        """N * M."""
        return self.contributions * self.examples

    def turned(self, dim: int) -> "Call":
        """Returns the call with the examples of its first input in dimension 0, where they lie in this one."""
        first, *others = self.inputs
        return Call(
            (first.movedim(dim, 0), *others), self.kwargs, self.contributions, self.examples, output=self.output,
            autocast=self.autocast, draws=self.draws, wanted=self.wanted, tied=self.tied,
        )  # fmt: skip

    def wants(self, name: str) -> bool:
        """Tells whether the gradient of this tensor will be used."""
        return name in self.wanted

    def positions(self, value: torch.Tensor, features: int) -> torch.Tensor:
        """Reshapes (N*M, ..., features...) to (N, T, features...), at least float32.

        All positions of all examples of a contribution then stand in a row: what looks at neighbouring positions is computed
        before.

        Args:
            features: How many of the last dimensions are features: 1 for (rows, T, D), 2 for (rows, T, D, K).

        Raises:
            UnsupportedModule: code RULE_FORM, the tensor has no rows of the microbatch, or fewer dimensions than that.
        """
        if value.shape[:1] != (self.rows,) or not 0 <= features < value.dim():
            raise UnsupportedModule(
                "RULE_FORM",
                f"a gradient rule called positions() on shape {tuple(value.shape)} with features={features}, expected "
                f"{self.rows} rows first and fewer features than dimensions: features counts how many of the last dimensions "
                "are features, it is not their size",
            )
        middle, tail = value.shape[1 : value.dim() - features], value.shape[value.dim() - features :]
        return promote(value).reshape(self.contributions, self.examples * math.prod(middle), *tail)


class Rule:
    """Splits the gradients of one module; one instance per module, which may remember what it learns of it.

    A class of rules registers as a function does. Most rules need none: a function is made one by :class:`Plain`.
    """

    slow = False
    """It runs the module once more, which a notice announces."""

    again = False
    """It may run the module again: it needs the random numbers of the call, and takes modules with several outputs."""

    product = False
    """The output is one fresh product ``x W + bias`` of the first input."""

    runs = False
    """It runs code of the module, for something other than its gradient: as that of the forward, in the sandbox."""

    elsewhere: frozenset[int] = frozenset()
    """Outputs whose gradient is found where they go, and not here."""

    common = False
    """Its inputs are those of all examples, and have no row per example."""

    anywhere = False
    """Examples may lie in another dimension than 0; the probes show in which."""

    def __init__(self, name: str, module: nn.Module, *, whole: bool = False) -> None:
        self.name = name
        self.module = module
        self.whole = whole
        self.given = Dimension()
        """Finds where examples lie in the first input, if anywhere."""

    def __call__(self, module: nn.Module, call: Call, grad: torch.Tensor) -> Mapping[str, Form]:
        raise NotImplementedError

    @property
    def foreign(self) -> bool:
        """Tells whether it comes from outside of this project."""
        return not type(self).__module__.startswith("dptrain.")

    @property
    def main(self) -> int:
        """Returns the first output whose gradient is found here."""
        return min({*range(len(self.elsewhere) + 1)} - self.elsewhere)

    def dimension(self, output: int) -> int:
        """Returns where the example is in this output."""
        return 0

    @property
    def enters(self) -> int:
        """Returns where the example is in the first input."""
        return self.dimension(0)

    @property
    def dimensions(self) -> Sequence[Dimension]:
        """Returns where examples must lie in the same dimension in every call, and then what else was learnt."""
        return (self.given,)

    @property
    def open(self) -> bool:
        """Tells whether examples may lie somewhere, by all that was learnt."""
        return self.given.open

    def forget(self) -> None:
        """Forgets what was learnt of where examples lie."""
        self.given = Dimension()

    def fix(self) -> None:
        """Lets all dimensions stay what they are, where they are used."""
        for dimension in self.dimensions:
            dimension.fix()

    def learn(self, args: tuple, kwargs: dict, outputs: Sequence[object], rows: int) -> None:
        """Looks at a call on rows that are nobody's, and at the leaves of what it returned."""

    def spread(self, output: int, value: object, rows: int) -> torch.Tensor | None:
        """Returns this output with one row per example where it came with one for all; None where it stays as it is."""
        return None


class Plain(Rule):
    """A rule that is a function and remembers nothing."""

    def __init__(
        self, function: Function, name: str, module: nn.Module, *, whole: bool = False, product: bool = False,
        anywhere: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(name, module, whole=whole)
        self.function = function
        self.product = product
        self.anywhere = anywhere

    @property
    def foreign(self) -> bool:
        return not self.function.__module__.startswith("dptrain.")

    def dimension(self, output: int) -> int:
        return self.given.found

    def learn(self, args: tuple, kwargs: dict, outputs: Sequence[object], rows: int) -> None:
        first, out = (*args[:1], None)[0], outputs[0]  # there may be no tensor among what a module is given
        if self.anywhere and isinstance(first, torch.Tensor) and isinstance(out, torch.Tensor):
            self.given.see(first.shape, rows)
            self.given.see(out.shape[:-1], rows)

    def __call__(self, module: nn.Module, call: Call, grad: torch.Tensor) -> Mapping[str, Form]:
        dim = self.dimension(call.output)
        if dim:
            call, grad = call.turned(dim), grad.movedim(dim, 0)
        return self.function(module, call, grad)


@dataclass(frozen=True)
class Registered:
    """One registration: a rule, and the modules that it serves."""

    make: Callable[..., Rule]
    kinds: tuple[type[nn.Module] | str, ...]
    when: Serves | None
    whole: bool
    subclasses: bool

    @property
    def structural(self) -> bool:
        """Tells whether it serves modules of any class."""
        return nn.Module in self.kinds

    def distance(self, module: nn.Module) -> int | None:
        """Counts the steps from a module's class to the one that the rule is written for; None where it does not serve it."""
        kind = type(module)
        found = [_steps(kind, named, subclasses=self.subclasses) for named in self.kinds]
        nearest = min((steps for steps in found if steps is not None), default=None)
        # Torch gives a module with parametrized tensors a class of its own, which inherits forward and has other tensors.
        return None if nearest and is_parametrized(module) and not self.subclasses else nearest


_entries: list[Registered] = []


def gradient_rule(
    *kinds: type[nn.Module] | str,
    when: Serves | None = None,
    whole: bool = False,
    subclasses: bool = False,
    product: bool = False,
    anywhere: bool = False,
    replace: bool = False,
) -> Callable[[Rules], Rules]:
    """Registers a function ``(module, call, grad) -> {name: form}`` as the rule of a kind of module.

    ``grad`` is the gradient of the module's output. The function returns, for every trained tensor of the module, the
    gradients of the N contributions as :class:`Dense`, :class:`Outer` or :class:`Gather`. It runs without autograd, must not
    change what it is given, and must compute row i from the examples of contribution i alone. Routers made from then on use it.

    Guarantee: a rule decides nothing about privacy but what it says the gradient is. Forms are checked; norm, clip and
    sum are taken from the same numbers; the start of a run compares them with autograd on the real model. That rows do not
    influence each other is the rule's to keep: :func:`check_gradient_rule` tests it, and so do the probes at the start.

    Args:
        kinds: Classes of modules, or patterns of the full names of classes (``"transformers.*.Conv1D"``), for classes that are
            not to be imported. A subclass is served if it inherits ``forward``; one with a ``forward`` of its own is another
            module. ``nn.Module`` stands for modules of any class without a nearer rule, told by ``when``.
        when: ``(module, names of its trained tensors) -> bool``; false leaves a module to the next rule. May refuse it.
        whole: The rule serves all tensors below the module, by their dotted names, and not only those that it holds itself.
        subclasses: Serve subclasses whatever their ``forward`` is, as only a rule can that runs the module itself.
        product: The output is ``x W + bias`` of the first input, made by one product that nothing else keeps.
        anywhere: Every position is computed by itself, so that examples may lie in any dimension before the features.
            The probes show in which; the function sees them in dimension 0, of the first input and of ``grad``.
        replace: Take the place of the rule that serves such modules so far.

    Raises:
        ConfigError: RULE_KIND, something else than a class of modules or a pattern; RULE_EXISTS, a kind that is served
            already, without ``replace``.
    """
    _require_kinds(kinds)

    def register(rule: Rules) -> Rules:
        global _entries
        if not replace:
            for kind in kinds:
                _require_free(kind, structural=when is not None)
        make: Callable[..., Rule] = rule if isinstance(rule, type) else partial(Plain, rule, product=product, anywhere=anywhere)
        kept = _entries
        if replace:
            left = [(entry, tuple(kind for kind in entry.kinds if kind not in kinds or entry.structural)) for entry in kept]
            kept = [changed(entry, kinds=those) for entry, those in left if those]
        _entries = [*kept, Registered(make, kinds, when, whole, subclasses)]
        return rule

    return register


def rule_of(name: str, module: nn.Module, trained: frozenset[str]) -> Rule | None:
    """Makes the rule of a module, or returns None where nothing of it needs one.

    The rule of the nearest class serves; then those of any class, in the order of their registration, and at last the
    generic path.

    Args:
        name: Path of the module in its model. trained: Names of the trained tensors in and below it.

    Raises:
        UnsupportedModule: a module that its rule refuses, for a configuration whose gradient is not a sum over contributions.
    """
    if not trained:
        return None
    holds = any("." not in tensor for tensor in trained)
    for entry in _candidates(module):
        if (entry.whole or holds) and (entry.when is None or entry.when(module, trained)):
            return entry.make(name, module, whole=entry.whole)
    return None


def settled(rule: Rule, call: Call, grad: torch.Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Piece]:
    """Runs a rule and returns the wanted forms as they are stored, in the type of their tensor or a wider one.

    Args:
        shapes: Of the tensors that the rule may name.

    Raises:
        UnsupportedModule: code RULE_FORM, what the rule returned are no gradients of these tensors.
    """
    found: dict[str, Piece] = {}
    returned = rule(rule.module, call, grad)
    if not isinstance(returned, Mapping):
        raise _no_form(rule, f"a {type(returned).__name__}, expected a dict of forms by the names of tensors")
    for name, form in returned.items():
        if name not in shapes:
            raise _no_form(rule, f"a form for {name!r}, expected one of the names {sorted(shapes)}")
        if type(form) not in (Dense, Outer, Gather):  # of others nothing shows that their norm is that of their sum
            raise _no_form(rule, f"a {type(form).__name__} for {name!r}, expected a Dense, an Outer or a Gather")
        fault = form.fault(call.contributions, shapes[name])
        if fault:
            many = f" of {call.examples} examples each; call.positions() brings them together" if call.examples > 1 else ""
            raise _no_form(rule, f"{fault}, for {name!r} and {call.contributions} contributions{many}")
        if call.wants(name):
            least = torch.promote_types(attrgetter(name)(rule.module).dtype, torch.float32)  # margins go by the tensor's type
            found[name] = widened(form, least).settled(shapes[name], alone=name not in call.tied)
    return found


def described(name: str, module: nn.Module) -> str:
    """Names a module for a message: by path and class, a model itself by its class alone."""
    kind = type(module).__name__
    return f"{name} ({kind})" if name else kind


def _no_form(rule: Rule, found: str) -> UnsupportedModule:
    return UnsupportedModule(
        "RULE_FORM",
        f"the gradient rule of {described(rule.name, rule.module)} returned {found}; correct the rule, and "
        "hold it to dptrain.check_gradient_rule",
    )


def _candidates(module: nn.Module) -> Iterator[Registered]:
    """Yields the registrations that may serve a module, the nearest first."""
    classes = [(entry.distance(module), entry) for entry in _entries if not entry.structural]
    near = [(steps, entry) for steps, entry in reversed(classes) if steps is not None]  # of equally near ones the last
    yield from (entry for _, entry in sorted(near, key=lambda item: item[0]))
    structural = [entry for entry in _entries if entry.structural]
    yield from (entry for entry in structural if entry.when is not None)
    yield from (entry for entry in reversed(structural) if entry.when is None)


def _steps(kind: type[nn.Module], named: type[nn.Module] | str, *, subclasses: bool) -> int | None:
    """Counts the steps from a class up to the named one; None where the rule of that one does not serve it."""
    if isinstance(named, str):
        return 0 if fnmatchcase(f"{kind.__module__}.{kind.__name__}", named) else None
    if named not in kind.__mro__:
        return None
    steps = kind.__mro__.index(named)
    return steps if steps == 0 or subclasses or kind.forward is named.forward else None


def _require_kinds(kinds: tuple[object, ...]) -> None:
    for kind in kinds or (None,):
        if not (isinstance(kind, str) and "." in kind) and not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ConfigError(
                "RULE_KIND",
                f"gradient_rule got {kind!r}, expected classes of modules or patterns of their full names: "
                "@gradient_rule(nn.Linear), or @gradient_rule('package.*.Layer')",
            )


def _require_free(kind: type[nn.Module] | str, *, structural: bool) -> None:
    """Raises ConfigError if modules of this kind are served already."""
    if kind is nn.Module and structural:
        return  # comes behind all others
    for entry in _entries:
        if isinstance(kind, str):
            served = kind in entry.kinds
        elif entry.structural:
            served = kind is nn.Module and entry.when is None
        else:
            served = any(_steps(kind, named, subclasses=entry.subclasses) is not None for named in entry.kinds)
        if served:
            name = kind if isinstance(kind, str) else kind.__name__
            raise ConfigError(
                "RULE_EXISTS",
                f"modules of kind {name} have a gradient rule already, expected a kind without one; to put another in its "
                "place, say @gradient_rule(..., replace=True)",
            )
