"""A rule of its own for torch's ``nn.MultiheadAttention``, whose projections run without a call of any module.

Its tensors are those of linear maps: from the inputs to queries, keys and values, and from the heads to the output. So their
gradients are products of what went in and the gradient of what came out, as in :class:`LinearRule`. What lies between is
computed once more for all rows together, with the masks and the dropout of the forward; examples stay apart in it.
"""

import inspect
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dptrain.gradients.forms import Dense, Form, Outer
from dptrain.gradients.generic import GenericRule
from dptrain.gradients.registry import Call, gradient_rule
from dptrain.sandbox import Draw

_SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)
_ENTERING = ("query", "key", "value")
_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_OUT = frozenset({"out_proj.weight", "out_proj.bias"})


@gradient_rule(nn.MultiheadAttention, whole=True, subclasses=True)
class AttentionRule(GenericRule):
    """Splits ``nn.MultiheadAttention`` without running it again; :func:`serves` says for which.

    The others, a gradient that reaches the weights of the attention, and inputs without a row per example take the generic
    path.
    """

    def __init__(self, name: str, module: nn.MultiheadAttention, *, whole: bool = True) -> None:
        super().__init__(name, module, whole=whole)
        self.attention = module
        self.slow = not serves(module)
        self.first = 0 if module.batch_first else 1
        self.anywhere = not module.batch_first

    def dimension(self, output: int) -> int:
        return self.first if output == 0 else 0  # weights have the example first

    @property
    def enters(self) -> int:
        return self.first

    def __call__(self, module: nn.Module, call: Call, grad: torch.Tensor) -> dict[str, Form]:
        if self.slow or call.output != 0:
            return super().__call__(module, call, grad)
        given = _SIGNATURE.bind(self.attention, *call.inputs, **call.kwargs)
        given.apply_defaults()
        if not self._fits(call, given.arguments):
            return super().__call__(module, call, grad)
        if self.first:
            turned = {id(given.arguments[key]): given.arguments[key].transpose(0, 1) for key in _ENTERING}
            given.arguments.update({key: turned[id(given.arguments[key])] for key in _ENTERING})
            grad = grad.transpose(0, 1)
        inner = [name for name in ("in_proj_weight", "in_proj_bias", *_SEPARATE) if call.wants(name)]
        with torch.autocast(grad.device.type, dtype=call.autocast, enabled=call.autocast is not None):
            maps, context = self._between(call, given.arguments, grad, backward=bool(inner))
        pairs = [(call.positions(x, 1), call.positions(b, 1)) for x, b in maps]
        b = call.positions(grad, 1)
        found: dict[str, Form] = {}
        if call.wants("out_proj.weight"):
            found["out_proj.weight"] = Outer(call.positions(context, 1), b)
        if call.wants("out_proj.bias"):
            found["out_proj.bias"] = Dense(b.sum(1))
        if call.wants("in_proj_weight"):
            found["in_proj_weight"] = _stacked(pairs, alone="in_proj_weight" not in call.tied)
        if call.wants("in_proj_bias"):
            found["in_proj_bias"] = Dense(torch.cat([b.sum(1) for _, b in pairs], dim=1))
        for place, key in enumerate(_SEPARATE):
            if call.wants(key):
                found[key] = Outer(*pairs[place])
        return found

    def _fits(self, call: Call, given: dict[str, Any]) -> bool:
        """Tells whether every input has a row per example, and the one known mask is all that was drawn."""
        inputs = [given[key] for key in _ENTERING]
        if not all(isinstance(x, torch.Tensor) and x.dim() == 3 and x.shape[self.first] == call.rows for x in inputs):
            return False
        drops = self.attention.training and self.attention.dropout > 0
        drawn = [(entry.kind, entry.parameters) for entry in call.draws if isinstance(entry, Draw)]
        return len(drawn) == len(call.draws) and drawn == [("keep", (1 - self.attention.dropout,))] * drops

    def _between(
        self, call: Call, given: dict[str, Any], grad_output: torch.Tensor, *, backward: bool
    ) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
        """(input, gradient of the result) of the maps into queries, keys and values, in this order; and the heads' results.

        One map may lead into several of the three, if they have the same input.
        """
        module = self.attention
        query, key, value = given["query"], given["key"], given["value"]
        bias = module.in_proj_bias
        if module.in_proj_weight is None:
            weights = [getattr(module, name) for name in _SEPARATE]
            biases = [None] * 3 if bias is None else list(bias.chunk(3))
            inputs = [query, key, value]
        else:
            shared = [3] if query is key and key is value else [1, 2] if key is value else [1, 1, 1]
            sizes = [count * module.embed_dim for count in shared]
            weights = list(module.in_proj_weight.split(sizes))
            biases = [None] * len(sizes) if bias is None else list(bias.split(sizes))
            inputs = [query, key, value][: len(sizes)]
        results = [
            functional.linear(x, weight.detach(), None if b is None else b.detach()).detach().requires_grad_(backward)
            for x, weight, b in zip(inputs, weights, biases, strict=True)
        ]
        with torch.set_grad_enabled(backward):
            q, k, v = (part for result in results for part in result.split(module.embed_dim, dim=-1))
            context = self._attend(call, given, q, k, v)
        if not backward:
            return [], context
        inner = functional.linear(grad_output, module.out_proj.weight.detach().t()).to(context.dtype)
        return list(zip(inputs, torch.autograd.grad(context, results, inner), strict=True)), context.detach()

    def _attend(self, call: Call, given: dict[str, Any], *qkv: torch.Tensor) -> torch.Tensor:
        """Computes the input of the output projection, (rows, T, E), by the operations of the module."""
        module = self.attention
        rows, heads, width = call.rows, module.num_heads, module.embed_dim // module.num_heads
        # (rows * heads, T, width) each, heads of an example beside each other
        q, k, v = (x.unflatten(-1, (heads, width)).transpose(1, 2).flatten(0, 1) for x in qkv)
        mask, causal = self._mask(call, given, q.shape[1], k.shape[1])
        if not call.draws and not given["need_weights"]:
            if mask is not None:
                mask = mask[None] if mask.shape[0] == 1 else mask.unflatten(0, (rows, heads))
            q, k, v = (x.unflatten(0, (rows, heads)) for x in (q, k, v))
            return functional.scaled_dot_product_attention(q, k, v, mask, 0.0, causal).transpose(1, 2).flatten(2)
        q = q * math.sqrt(1.0 / width)
        if causal:
            mask = _as_float(torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).triu(1), q.dtype)
        scores = torch.bmm(q, k.mT) if mask is None else torch.baddbmm(mask, q, k.mT)
        if mask is None or given["need_weights"]:
            weights = scores.softmax(dim=-1)
        else:  # where everything is masked, the product of torch gives zero, not NaN
            nothing = (scores == -math.inf).all(dim=-1, keepdim=True)
            weights = scores.masked_fill(nothing, 0.0).softmax(dim=-1).masked_fill(nothing, 0.0)
        for draw in call.draws:
            weights = weights * draw.values().reshape(weights.shape) * (1.0 / (1.0 - module.dropout))
        return torch.bmm(weights.to(v.dtype), v).unflatten(0, (rows, heads)).transpose(1, 2).flatten(2)

    def _mask(self, call: Call, given: dict[str, Any], length: int, source: int) -> tuple[torch.Tensor | None, bool]:
        """The sum of the masks, (1 or rows * heads, T or 1, S), and whether the hint of a causal mask stands for it."""
        dtype = given["query"].dtype
        padding, mask = (_as_float(given[key], dtype) for key in ("key_padding_mask", "attn_mask"))
        causal = bool(given["is_causal"])
        if causal and padding is None and not given["need_weights"]:
            return None, True
        if mask is not None and mask.dim() == 2:
            mask = mask[None]
        if padding is not None:
            heads = self.attention.num_heads
            padding = padding.view(call.rows, 1, 1, source).expand(-1, heads, -1, -1).reshape(call.rows * heads, 1, source)
            mask = padding if mask is None else mask + padding
        return mask, False


def serves(module: nn.MultiheadAttention) -> bool:
    """Tells whether :class:`AttentionRule` knows all of a module: its own forward and tensors, no added keys and values."""
    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    biases = {"in_proj_bias", "out_proj.bias"} if module.in_proj_bias is not None else set()
    weights = {"in_proj_weight"} if module.in_proj_weight is not None else set(_SEPARATE)
    return (
        type(module).forward is nn.MultiheadAttention.forward
        and type(module.out_proj).forward is nn.Linear.forward
        and module.bias_k is None
        and module.bias_v is None
        and not module.add_zero_attn
        and 0.0 <= module.dropout < 1.0
        and names == weights | biases | {"out_proj.weight"}
    )


def _as_float(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask as what is added to the scores."""
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def _stacked(pairs: list[tuple[torch.Tensor, torch.Tensor]], *, alone: bool) -> Form:
    """Joins the gradients of a weight whose rows are served by one pair after the other."""
    if len(pairs) == 1:
        return Outer(*pairs[0])
    parts = [Outer(a, b).settled(torch.Size((b.shape[2], a.shape[2])), alone=alone) for a, b in pairs]
    dense = [part.g for part in parts if isinstance(part, Dense)]
    if len(dense) == len(parts):
        return Dense(torch.cat(dense, dim=1))
    total, start, padded = sum(b.shape[2] for _, b in pairs), 0, []
    for _, b in pairs:
        padded.append(functional.pad(b, (start, total - start - b.shape[2])))
        start += b.shape[2]
    return Outer(torch.cat([a for a, _ in pairs], dim=1), torch.cat(padded, dim=1))
