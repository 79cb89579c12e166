"""Gives each example a gradient of its own in tables of transformers that one forward reads once for all rows.

A table of positions, or of relative biases, is read once, and what was read is broadcast over the examples: the module that
owns it never sees an example, so that its own gradient is that of all of them together. The lists here name classes whose code
was read, each served in one of five ways. Other classes, also those that inherit from one, are refused as before.

* :data:`POSITIONS`: modules that return rows of their table for all examples, and others that make something of it. While a
  microbatch is armed, their output is given one row per example: the same numbers.
* :data:`METHODS`: methods that read a tensor and return one row per example. A method is a site as a module is.
* :data:`LENT`: tables that an encoder gives whole to each of its layers. Each layer runs once more, with the table.
* :data:`STREAMS`: a table whose rows are added to streams side by side. The norm that all of them enter next runs once more.
* :data:`HANDED`: biases that the first layer makes of its table, and each layer hands on to the next. Each runs once more too.

No code of a model is replaced here: what runs for a gradient is the model's own, whatever its version. A method that came to
read rows of other examples is found by the probes at the start, as a module is. After the start, these gradients are found
where the methods run, and nowhere else: they must stay what the probes saw, and nothing else may call what holds the tables.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import stateless
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from dptrain.blocks.shards import run_with
from dptrain.errors import UnsupportedModule
from dptrain.gradients.forms import Dense, Form, promote
from dptrain.gradients.generic import GenericRule, place_of
from dptrain.gradients.registry import Call, Rule, gradient_rule
from dptrain.gradients.rules import looked_up, plain_table
from dptrain.sandbox.library.spectrum import function_of

POSITIONS = (
    "BlenderbotLearnedPositionalEmbedding", "BlenderbotSmallLearnedPositionalEmbedding",
    "BigBirdPegasusLearnedPositionalEmbedding", "LEDLearnedPositionalEmbedding",
)  # fmt: skip
"""Classes whose output (T, D) is added to the embeddings of tokens, and goes nowhere else."""

TABLES = {"PerceiverTextPreprocessor": "position_embeddings"}
"""Plain tables of positions whose output is used as that of :data:`POSITIONS` is, by the class that holds them."""


class Method(NamedTuple):
    """A method that reads tensors of its module, and returns one row per example.

    Attributes:
        alone: nothing else reads them. calls: it runs the module's forward, which nothing else does. first: the dimension of
            the example in its first argument and in what it returns.
    """

    name: str
    tensors: tuple[str, ...]
    alone: bool = True
    calls: bool = False
    first: int = 0


METHODS: dict[str, tuple[Method, ...]] = {
    "MPNetEncoder": (Method("compute_position_bias", ("relative_attention_bias.weight",)),),
    "ProphetNetPositionalEmbeddings": (Method("_forward", ("weight",), alone=False),),
    "Gemma3nTextAltUp": (
        Method("correct", ("correction_coefs.weight",), first=1),
        Method("scale_corrected_output", ("correct_output_scale",), calls=True),
    ),
    **dict.fromkeys(
        (
            "Wav2Vec2Model", "WavLMModel", "HubertModel", "UniSpeechModel", "UniSpeechSatModel", "Data2VecAudioModel",
            "SEWModel", "SEWDModel", "Wav2Vec2BertModel", "Wav2Vec2ConformerModel",
        ),
        (Method("_mask_hidden_states", ("masked_spec_embed",)),),
    ),
}  # fmt: skip
"""By class: the methods that are sites."""

LENT = dict.fromkeys(
    ("DebertaEncoder", "DebertaV2Encoder", "SEWDTransformerEncoder"),
    ("get_rel_embedding", ("rel_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias"), "DisentangledSelfAttention"),
)
"""By class: the method that reads these tensors, and the class of the modules that alone are given what it returns, by the
keyword :data:`GIVEN`."""

GIVEN = "rel_embeddings"

HANDED = dict.fromkeys(
    ("WavLMEncoder", "WavLMEncoderStableLayerNorm"), ("WavLMAttention", "compute_bias", "rel_attn_embed.weight")
)
"""By class: the class of its attentions, whose first makes biases by a method, of a table; the others are given them by the
keyword :data:`BIASES`, one bias after the other for every head of every example, and all return them last."""

BIASES = "position_bias"

STREAMS = {"ProphetNetDecoder": ("embeddings_layer_norm", "ngram_embeddings.weight")}
"""By class: the norm that streams of one length enter one after the other, the first without a row, and the table of n rows, of
which stream k of the n others has row k - 1."""


def _is(module: nn.Module, names: Collection[str]) -> str | None:
    """Returns which of these classes of transformers a module is an instance of, exactly."""
    kind = type(module)
    return kind.__name__ if kind.__name__ in names and kind.__module__.startswith("transformers.") else None


class PositionRule(Rule):
    """Splits a look-up of the same rows for all examples, spread over them."""

    common = True
    runs = True

    def spread(self, output: int, value: object, rows: int) -> torch.Tensor | None:
        if not isinstance(value, torch.Tensor) or not (value.dim() == 2 or (rows > 1 and value.shape[:1] == (1,))):
            return None
        return value.expand(rows, *value.shape[-2:]).clone()  # what follows may write it

    def __call__(self, module: nn.Module, call: Call, grad: torch.Tensor) -> dict[str, Form]:
        taken = _rows_taken(module, call)
        return looked_up(module, call, grad, taken.expand(call.rows, taken.shape[-1]))


def _rows_taken(module: Any, call: Call) -> torch.Tensor:
    """Returns which rows a module looks up: it tells so itself, of a table that holds the numbers of its rows."""
    numbers = torch.arange(module.weight.shape[0], device=module.weight.device, dtype=torch.float64)[:, None]
    return tree_leaves(run_with(module, {"weight": numbers}, call.inputs, call.kwargs))[0].long().squeeze(-1)


@gradient_rule("transformers.*.PerceiverEmbeddings", "transformers.*.PerceiverTrainablePositionEncoding")
class ExpandedRule(Rule):
    """Splits a tensor that is repeated for every example of the batch, whose number is the module's argument."""

    def spread(self, output: int, value: object, rows: int) -> torch.Tensor | None:
        return value.clone() if isinstance(value, torch.Tensor) else None  # what came is a view of the tensor itself

    def __call__(self, module: nn.Module, call: Call, grad: torch.Tensor) -> dict[str, Form]:
        (name,) = (key for key, _ in module.named_parameters(recurse=False))
        return {name: Dense(promote(grad).unflatten(0, (call.contributions, call.examples)).sum(1))}


@gradient_rule(
    *(f"transformers.*.{kind}" for kind in (
        "BeitRelativePositionBias", "Data2VecVisionRelativePositionBias", "InterpolateMidPositionEmbeddings",
    ))
)  # fmt: skip
class MadeRule(Rule):
    """Splits what a module makes of its table alone, once for all examples, spread over them.

    It makes that once more; its transpose takes the gradient of each contribution to the table.
    """

    common = True
    again = True

    def dimension(self, output: int) -> int:
        return 1 if type(self.module).__name__ == "InterpolateMidPositionEmbeddings" else 0  # one table for every layer

    def spread(self, output: int, value: object, rows: int) -> torch.Tensor | None:
        at = self.dimension(output)
        if not isinstance(value, torch.Tensor) or value.shape[at : at + 1] != (1,):
            return None
        return value.expand(*value.shape[:at], rows, *value.shape[at + 1 :]).clone()  # what follows may write it

    def __call__(self, module: nn.Module, call: Call, grad: torch.Tensor) -> dict[str, Form]:
        own = {key: value.detach() for key, value in module.named_parameters(recurse=False) if call.wants(key)}
        with torch.autocast(grad.device.type, dtype=call.autocast, enabled=call.autocast is not None):
            made, back = torch.func.vjp(lambda tensors: run_with(module, tensors, call.inputs, call.kwargs), own)
        at = self.dimension(0)
        each = promote(grad).unflatten(at, (call.contributions, call.examples)).sum(at + 1, keepdim=True).to(made.dtype)
        found = [back(one)[0] for one in each.unbind(at)]
        return {key: Dense(torch.stack([promote(one[key]) for one in found])) for key in own}


@gradient_rule("transformers.*.GPTNeoXJapaneseAttention")
class GivenRule(Rule):
    """Splits a bias that a module returns beside its output, for what is around it to add."""

    again = True  # it has several outputs
    elsewhere = frozenset([0, 1])  # in which it is not

    def spread(self, output: int, value: object, rows: int) -> torch.Tensor | None:
        given = output == 2 and isinstance(value, torch.Tensor) and value.dim() == 1
        return value.expand(rows, 1, -1).clone() if given else None

    def __call__(self, module: nn.Module, call: Call, grad: torch.Tensor) -> dict[str, Form]:
        return {"dense_bias": Dense(call.positions(grad, 1).sum(1))}


@gradient_rule(
    "transformers.*.ProphetNetPositionalEmbeddings", "transformers.*.modeling_fsmt.SinusoidalPositionalEmbedding"
)
class CountedRule(GenericRule):
    """Splits a look-up of positions that a module counts itself: of tokens, or of as many rows as it is told."""

    slow = False
    anywhere = False

    def __call__(self, module: nn.Module, call: Call, grad: torch.Tensor) -> dict[str, Form]:
        return looked_up(module, call, grad, _rows_taken(module, call))


class MethodRule(GenericRule):
    """Runs one method of a module again, for the tensors that it reads."""

    slow = False
    anywhere = False

    def __init__(self, name: str, module: nn.Module, method: str, first: int = 0) -> None:
        super().__init__(name, module, whole=True)
        self.method, self.first = method, first
        self.described = f"{method} of module {name!r} ({type(module).__name__})"

    def _dropout(self, what: str) -> UnsupportedModule:
        error = super()._dropout(what)
        return UnsupportedModule(
            str(error.code), f"{error.sentence} (a model of sound that masks its input: apply_spec_augment=False)"
        )

    def run(self, swapped: dict[str, torch.Tensor], args: tuple, kwargs: dict) -> Any:
        with stateless._reparametrize_module(self.module, swapped, tie_weights=False):
            return function_of(self.module, self.method)(self.module, *args, **kwargs)


class _Borrower(nn.Module):
    """A layer with the encoder that lends it a table, so that it may run with other tensors of both."""

    def __init__(self, layer: nn.Module, lender: nn.Module, method: str) -> None:
        super().__init__()
        self.layer = layer
        self.lender = lender
        self._method = method

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(kwargs.get(GIVEN), torch.Tensor):
            raise TypeError(f"no {GIVEN} among its keyword arguments")
        lent = getattr(type(self.lender), self._method)(self.lender)
        return self.layer(*args, **{**kwargs, GIVEN: lent})


class BorrowerRule(GenericRule):
    """Runs a layer again for its own tensors and for a table that its encoder gave it."""

    anywhere = False

    def __init__(self, name: str, layer: nn.Module, lender: nn.Module, method: str) -> None:
        super().__init__(name, _Borrower(layer, lender, method), whole=True)
        self.described = f"module {name!r} ({type(layer).__name__})"


class _Biased(nn.Module):
    """An attention with the one that makes its biases, so that it may run with other tensors of both."""

    def __init__(self, layer: nn.Module, lender: Any, method: str) -> None:
        super().__init__()
        self.layer = layer
        self.lender = lender
        self._method = method

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> Any:
        if kwargs.get(BIASES) is None:
            return self.layer(hidden_states, **kwargs)
        rows, length = hidden_states.shape[:2]
        biases = getattr(type(self.lender), self._method)(self.lender, length, length)
        return self.layer(hidden_states, **{**kwargs, BIASES: biases.expand(rows, *biases.shape).flatten(0, 1)})


class BiasedRule(GenericRule):
    """Runs an attention again for its own tensors, and for the table of which the first attention made its biases."""

    anywhere = False
    elsewhere = frozenset([2])  # biases, whose gradient each attention takes for itself

    def __init__(self, name: str, layer: nn.Module, lender: nn.Module, method: str) -> None:
        super().__init__(name, _Biased(layer, lender, method), whole=True)
        self.described = f"module {name!r} ({type(layer).__name__})"


class _Streams(nn.Module):
    """A norm with the module whose table is in what it is given: the same numbers, and a way for the gradient to the table."""

    def __init__(self, norm: nn.Module, lender: nn.Module, table: str) -> None:
        super().__init__()
        self.norm = norm
        self.lender = lender
        self._table = table

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        path, _, name = self._table.rpartition(".")
        table = getattr(self.lender.get_submodule(path), name)
        rows = torch.cat([torch.zeros_like(table[:1]), table.roll(1, 0)])
        rows = rows.repeat_interleave(states.shape[1] // len(rows), 0)
        return self.norm(states + (rows - rows.detach()).to(states.dtype))


class StreamsRule(GenericRule):
    """Runs a norm again for its own tensors, and for the table whose rows are in what it is given."""

    slow = False
    anywhere = False

    def __init__(self, name: str, norm: nn.Module, lender: nn.Module, table: str) -> None:
        super().__init__(name, _Streams(norm, lender, table), whole=True)
        self.described = f"module {name!r} ({type(norm).__name__})"


@dataclass(frozen=True)
class Listed:
    """A site that the lists give.

    Attributes:
        module: whose calls are seen. tensors: the trained ones, by their names in the rule's module. taken: where those lie
            (:func:`place_of`) that no other site sees. method: of the module, where that is the site, and not its forward.
        lends: the module and the method that gives this one a table. calls: nothing but the method calls the module. within:
            nothing but these sites calls the method that lends.
    """

    name: str
    module: nn.Module
    rule: Rule
    tensors: dict[str, nn.Parameter]
    taken: frozenset[tuple[int, str]]
    method: str = ""
    lends: tuple[nn.Module, str] | None = None
    calls: bool = False
    within: bool = False


def listed_sites(model: nn.Module, trained: Collection[int]) -> Iterator[Listed]:
    """Yields the sites that the lists give for this model.

    Guarantee: a list says where the gradients of a table are looked for, never what they are. They are taken from the model's
    own code, and held by the probes at the start of a run to autograd's, and to other company. A listed class whose code came
    to mix rows, or to use its table elsewhere too, is refused there like any other.

    Args:
        trained: ids of the trained parameters.
    """
    for name, module in model.named_modules():
        at = f"{name}." if name else ""
        own = {
            key: value for key, value in module.named_parameters(remove_duplicate=False) if id(value) in trained
        }
        if _is(module, POSITIONS) and own:
            yield _positions(name, module, own)
        if kind := _is(module, TABLES):
            child = getattr(module, TABLES[kind])
            if type(child) is nn.Embedding and id(child.weight) in trained:
                yield _positions(at + TABLES[kind], child, {"weight": child.weight})
        for method in METHODS[kind] if (kind := _is(module, METHODS)) else ():
            read = {key: own[key] for key in method.tensors if key in own}
            if read and _is_own(module, method.name):
                taken = frozenset(place_of(module, key) for key in read if method.alone)
                rule = MethodRule(name, module, method.name, method.first)
                yield Listed(at + method.name, module, rule, read, taken, method.name, calls=method.calls)
        if (kind := _is(module, LENT)) and _is_own(module, LENT[kind][0]):
            yield from _borrowers(at, module, own, *LENT[kind])
        if kind := _is(module, STREAMS):
            path, table = STREAMS[kind]
            if table in own:
                norm = module.get_submodule(path)
                inner = {key: value for key, value in own.items() if key.startswith(f"{path}.")}
                tensors = {f"norm.{key.removeprefix(f'{path}.')}": value for key, value in inner.items()}
                taken = frozenset(place_of(module, key) for key in (*inner, table))
                rule = StreamsRule(at + path, norm, module, table)
                yield Listed(at + path, norm, rule, tensors | {f"lender.{table}": own[table]}, taken)
        if kind := _is(module, HANDED):
            yield from _biased(at, module, own, *HANDED[kind])


def _is_own(module: nn.Module, method: str) -> bool:
    """Tells whether a module runs the method of its class, and none that a user put on it."""
    return method not in vars(module) or standing_in(module, method) is not None


def _positions(name: str, module: nn.Module, own: dict[str, nn.Parameter]) -> Listed:
    plain_table(module, frozenset(own))
    return Listed(name, module, PositionRule(name, module), own, frozenset(place_of(module, key) for key in own))


def _borrowers(
    at: str, lender: nn.Module, own: dict[str, nn.Parameter], method: str, keys: tuple[str, ...], borrower: str
) -> Iterator[Listed]:
    """Yields the layers that are given a trained table."""
    lent = {key: own[key] for key in keys if key in own}
    if not lent:
        return
    for path, layer in lender.named_modules():
        if not _is(layer, (borrower,)):
            continue
        inner = {key: value for key, value in own.items() if key.startswith(f"{path}.")}
        tensors = {f"layer.{key.removeprefix(f'{path}.')}": value for key, value in inner.items()}
        tensors |= {f"lender.{key}": value for key, value in lent.items()}
        taken = frozenset(place_of(lender, key) for key in (*inner, *lent))
        yield Listed(at + path, layer, BorrowerRule(at + path, layer, lender, method), tensors, taken, lends=(lender, method))


def _biased(
    at: str, encoder: nn.Module, own: dict[str, nn.Parameter], attention: str, method: str, table: str
) -> Iterator[Listed]:
    """Yields the attentions of an encoder of which something is trained, or the table of the first."""
    layers = [(path, module) for path, module in encoder.named_modules() if _is(module, (attention,))]
    if not layers or not _is_own(layers[0][1], method):
        return
    first, lender = layers[0]
    lent = {f"lender.{table}": own[f"{first}.{table}"]} if f"{first}.{table}" in own else {}
    for path, layer in layers:
        inner = {key.removeprefix(f"{path}."): value for key, value in own.items() if key.startswith(f"{path}.")}
        tensors = {f"layer.{key}": value for key, value in inner.items()} | ({} if layer is lender else lent)
        if tensors:
            taken = frozenset([*(place_of(layer, key) for key in inner), *(place_of(lender, table) for _ in lent)])
            rule = BiasedRule(at + path, layer, lender, method)
            yield Listed(at + path, layer, rule, tensors, taken, lends=(lender, method), within=True)


# -------------------------------------------------------------------------------------------------------------------- watch

Reader = tuple[nn.Module, str]
"""A module and its method, empty for its forward."""


def nothing(*args: object) -> None:
    """Is done before or after a call that is watched alone."""


class MethodCalls:
    """Stands in for one method of a module; :meth:`detach` leaves no trace on it.

    Several may stand one over the other, of runs that are open at the same time. One that was copied with its module does
    nothing, and gives way.

    Args:
        taken: is told when it runs. begin, end: what is done before and after a call; ``end`` may return another output.
    """

    def __init__(
        self,
        module: nn.Module,
        method: str,
        taken: "TakenTables",
        begin: Callable[[nn.Module, tuple], None] = nothing,
        end: Callable[..., object | None] = nothing,
    ) -> None:
        self.module, self.method = module, method
        self.below: MethodCalls | None = None
        self.live = True
        self._attached = False
        self._taken = taken
        self._function = getattr(type(module), method)
        self._begin, self._end = begin, end

    def __getstate__(self) -> dict[str, object]:
        """A copy runs the method of its module, and nothing of a run goes with it."""
        return {"module": self.module, "method": self.method, "below": None, "live": False}

    def attach(self) -> None:
        below = standing_in(self.module, self.method)
        self.below = below if below is not None and below.live else None
        vars(self.module)[self.method] = self.call
        self._attached = True

    def detach(self) -> None:
        """Takes itself off the module; what a user put in its place since stays."""
        above = standing_in(self.module, self.method)
        self._attached = False
        if above is self and self.below is None:
            del vars(self.module)[self.method]
        elif above is self and self.below is not None:
            vars(self.module)[self.method] = self.below.call
        else:
            for standing in _all_below(above):
                if standing.below is self:
                    standing.below = self.below

    def require(self) -> None:
        """Raises UnsupportedModule, code METHOD_CHANGED, where a call would no longer run what it ran at the start.

        Guarantee: a microbatch in which this method is another, or is no longer seen, is refused, whoever is in it.
        """
        seen = not self._attached or self in _all_below(standing_in(self.module, self.method))
        if not seen or getattr(type(self.module), self.method) is not self._function:
            where = "its class" if seen else "the module itself"
            raise UnsupportedModule(
                "METHOD_CHANGED",
                f"{self.method} of a {type(self.module).__name__} was replaced on {where} since the start of the run, expected "
                "the method that the probes saw, by which the gradient of a table is found; put the other one there before "
                "prepare(), or take it off again",
            )

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if not self.live:
            return function_of(self.module, self.method)(self.module, *args, **kwargs)
        self._begin(self.module, args)
        run = partial(function_of(self.module, self.method), self.module) if self.below is None else self.below.call
        with self._taken.inside((self.module, self.method)):
            output = run(*args, **kwargs)
        changed = self._end(self.module, args, kwargs, output)
        return output if changed is None else changed


def standing_in(module: nn.Module, method: str) -> MethodCalls | None:
    """Returns what of this project stands in for a method of a module, the last that came."""
    found = getattr(vars(module).get(method), "__self__", None)
    return found if isinstance(found, MethodCalls) else None


def _all_below(standing: MethodCalls | None) -> Iterator[MethodCalls]:
    while standing is not None:
        yield standing
        standing = standing.below


class TakenTables:
    """Keeps watch over modules whose tensors are found where something else runs, their readers.

    Guarantee: while a microbatch is armed, a call of such a module is refused where none of its readers runs, and its gradient
    would be lost.

    Args:
        holders: the modules that hold the tensors, each with its readers.
        armed: whether a microbatch is under way whose gradients will be asked for.
    """

    def __init__(self, model: nn.Module, holders: Mapping[nn.Module, Collection[Reader]], armed: Callable[[], bool]) -> None:
        names = {id(module): name for name, module in model.named_modules()}
        self._holders = [(names.get(id(module), ""), module, frozenset(readers)) for module, readers in holders.items()]
        self._armed = armed
        self._running: dict[tuple[int, str], int] = {}
        self._live = True

    def __getstate__(self) -> dict[str, object]:
        """A copied model takes hooks along, which do nothing there."""
        return {"_live": False}

    def attach(self) -> Iterator[RemovableHandle]:
        forwards = {id(module): module for _, _, readers in self._holders for module, method in readers if not method}
        for module in forwards.values():
            yield module.register_forward_pre_hook(self._enters)
            yield module.register_forward_hook(self._leaves, always_call=True)
        for name, module, readers in self._holders:
            yield module.register_forward_pre_hook(partial(self._require, name, readers))

    @contextmanager
    def inside(self, reader: Reader) -> Iterator[None]:
        """Marks that a reader runs."""
        self._count(reader, 1)
        try:
            yield
        finally:
            self._count(reader, -1)

    def begin(self) -> None:
        """Forgets readers that were cut short, where a microbatch begins."""
        self._running.clear()

    def _count(self, reader: Reader, by: int) -> None:
        key = id(reader[0]), reader[1]
        self._running[key] = self._running.get(key, 0) + by

    def _enters(self, module: nn.Module, args: tuple) -> None:
        if self._live:
            self._count((module, ""), 1)

    def _leaves(self, module: nn.Module, args: tuple, output: object) -> None:
        if self._live:
            self._count((module, ""), -1)

    def _require(self, name: str, readers: frozenset[Reader], module: nn.Module, args: tuple) -> None:
        if not self._live or not self._armed() or not torch.is_grad_enabled():
            return
        if any(self._running.get((id(reader), method), 0) > 0 for reader, method in readers):
            return
        inside = sorted({f"{method or 'forward'} of {type(reader).__name__}" for reader, method in readers})
        raise UnsupportedModule(
            "TABLE_ELSEWHERE",
            f"module {name!r} ({type(module).__name__}) was called outside of {' and '.join(inside)}, where alone the gradient "
            "of its tensors is found; expected no other use of them: give the other use a module of its own, or freeze them",
        )


def watch(model: nn.Module, sites: Collection[Listed], armed: Callable[[], bool]) -> TakenTables:
    """Returns the watch over the modules that hold what these sites took: beside those that are called as sites themselves, or
    for something else."""
    modules = {id(module): module for module in model.modules()}
    holders: dict[nn.Module, set[Reader]] = {}
    for site in sites:
        for holder, _ in site.taken:
            if holder != id(site.module) or site.calls:
                lends = () if site.within or site.lends is None else (site.lends,)
                readers: tuple[Reader, ...] = ((site.module, site.method), *lends)
                holders.setdefault(modules[holder], set()).update(readers)
    return TakenTables(model, holders, armed)
