"""Gives each example a gradient of its own in tables of transformers that one forward reads once for all rows.

A table of positions, or of relative biases, is read once, and what was read is broadcast over the examples: the module that
owns it never sees an example, so that its own gradient is that of all of them together. The lists here name classes whose code
was read, each served in one of three ways. Other classes, also those that inherit from one, are refused as before.

* :data:`POSITIONS`: modules that return rows of their table for all examples. While a microbatch is armed, their output is
  given one row per example: the same numbers.
* :data:`METHODS`: methods that read a tensor and return one row per example. A method is a site as a module is.
* :data:`LENT`: tables that an encoder gives whole to each of its layers. Each layer runs once more, with the table.

No code of a model is replaced here: what runs for a gradient is the model's own, whatever its version. A method that came to
read rows of other examples is found by the probes at the start, as a module is.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import stateless
from torch.utils._pytree import tree_leaves

from dptrain.blocks.shards import run_with
from dptrain.errors import UnsupportedModule
from dptrain.gradients.forms import Dense, Form, promote
from dptrain.gradients.generic import GenericRule, place_of
from dptrain.gradients.method_calls import Reader, TakenTables, standing_in
from dptrain.gradients.registry import Call, Rule, gradient_rule
from dptrain.gradients.rules import looked_up, plain_table
from dptrain.sandbox.spectrum import function_of

POSITIONS = (
    "BlenderbotLearnedPositionalEmbedding", "BlenderbotSmallLearnedPositionalEmbedding",
    "BigBirdPegasusLearnedPositionalEmbedding", "LEDLearnedPositionalEmbedding",
)  # fmt: skip
"""Classes whose output (T, D) is added to the embeddings of tokens, and goes nowhere else."""

TABLES = {"PerceiverTextPreprocessor": "position_embeddings"}
"""Plain tables of positions whose output is used as that of :data:`POSITIONS` is, by the class that holds them."""


class Method(NamedTuple):
    """A method that reads tensors of its module; ``alone`` tells whether nothing else does."""

    name: str
    tensors: tuple[str, ...]
    alone: bool = True


METHODS = {
    "MPNetEncoder": Method("compute_position_bias", ("relative_attention_bias.weight",)),
    "ProphetNetPositionalEmbeddings": Method("_forward", ("weight",), alone=False),
    **dict.fromkeys(
        (
            "Wav2Vec2Model", "WavLMModel", "HubertModel", "UniSpeechModel", "UniSpeechSatModel", "Data2VecAudioModel",
            "SEWModel", "SEWDModel", "Wav2Vec2BertModel", "Wav2Vec2ConformerModel",
        ),
        Method("_mask_hidden_states", ("masked_spec_embed",)),
    ),
}  # fmt: skip
"""By class: the method that reads these tensors, and returns one row per example."""

LENT = dict.fromkeys(
    ("DebertaEncoder", "DebertaV2Encoder", "SEWDTransformerEncoder"),
    ("get_rel_embedding", ("rel_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias"), "DisentangledSelfAttention"),
)
"""By class: the method that reads these tensors, and the class of the modules that alone are given what it returns, by the
keyword :data:`GIVEN`."""

GIVEN = "rel_embeddings"


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


@gradient_rule("transformers.*.ProphetNetPositionalEmbeddings")
class CountedRule(GenericRule):
    """Splits a look-up of positions that a module counts itself, of as many rows as it is told, and returns beside it."""

    slow = False

    def __call__(self, module: nn.Module, call: Call, grad: torch.Tensor) -> dict[str, Form]:
        return looked_up(module, call, grad, _rows_taken(module, call))


class MethodRule(GenericRule):
    """Runs one method of a module again, for the tensors that it reads."""

    slow = False

    def __init__(self, name: str, module: nn.Module, method: str) -> None:
        super().__init__(name, module, whole=True)
        self.method = method
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

    def __init__(self, name: str, layer: nn.Module, lender: nn.Module, method: str) -> None:
        super().__init__(name, _Borrower(layer, lender, method), whole=True)
        self.described = f"module {name!r} ({type(layer).__name__})"


@dataclass(frozen=True)
class Listed:
    """A site that the lists give.

    Attributes:
        module: whose calls are seen. tensors: the trained ones, by their names in the rule's module. taken: where those lie
            (:func:`place_of`) that no other site sees. method: of the module, where that is the site, and not its forward.
        lends: the module and the method that gives this one a table.
    """

    name: str
    module: nn.Module
    rule: Rule
    tensors: dict[str, nn.Parameter]
    taken: frozenset[tuple[int, str]]
    method: str = ""
    lends: tuple[nn.Module, str] | None = None


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
        if (kind := _is(module, METHODS)) and _is_own(module, METHODS[kind].name):
            method = METHODS[kind]
            read = {key: own[key] for key in method.tensors if key in own}
            if read:
                taken = frozenset(place_of(module, key) for key in read if method.alone)
                yield Listed(at + method.name, module, MethodRule(name, module, method.name), read, taken, method.name)
        if (kind := _is(module, LENT)) and _is_own(module, LENT[kind][0]):
            yield from _borrowers(at, module, own, *LENT[kind])


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


def watch(model: nn.Module, sites: Collection[Listed], armed: Callable[[], bool]) -> TakenTables:
    """Returns the watch over the modules that hold what these sites took: beside those that are sites themselves."""
    modules = {id(module): module for module in model.modules()}
    holders: dict[nn.Module, set[Reader]] = {}
    for site in sites:
        for holder, _ in site.taken:
            if holder != id(site.module):
                readers: tuple[Reader, ...] = ((site.module, site.method), *((site.lends,) if site.lends else ()))
                holders.setdefault(modules[holder], set()).update(readers)
    return TakenTables(model, holders, armed)
