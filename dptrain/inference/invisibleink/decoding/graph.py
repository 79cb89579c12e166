"""Makes one graph of one token of all rows, and compiles it with torch's inductor.

Everything that changes from token to token is an input: ids, the mask, positions, the place that is written, keys and values.
So there is one graph for each public shape, it is made once, before it is tested, and nothing of a text can make another.
"""

import copy
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch._inductor
from torch import nn
from torch._inductor import cpp_builder
from torch._inductor.exc import InvalidCxxCompiler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.decoding.buffers import placed

LEAVE: Final = "leave the option compile out, which needs none of this"
"""Ends every refusal: what a person can do."""

_OPTIONS: Final = {"triton.cudagraphs": False}
"""A graph of CUDA would keep buffers of its own, which texts of several threads would share."""


class StepGraph:
    """Is the compiled step of a model at one public shape; threads may share it, since all that it writes is given to it.

    Guarantee: what was tested is what runs: the graph is made once, and neither its inputs nor the state of the model's Python
    objects can choose another. It holds no keys, values or ids of any text.
    """

    def __init__(
        self, model: nn.Module, inputs: Sequence[torch.Tensor], buffers: list[torch.Tensor], names: frozenset[str]
    ) -> None:
        """Makes the graph; nothing of the model is changed, and others may use it meanwhile.

        Args:
            inputs, buffers: shapes and types to come, on the device ``meta``; as `run`. names: of what the forward takes.

        Raises:
            ConfigError: code COMPILE, there is no compiler, or no graph of this model.
        """
        device = next(model.parameters()).device
        _require_compiler(device)
        tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        places = {number: place for place, number in enumerate(dict.fromkeys(id(tensor) for _, tensor in tensors))}
        self._state = list({id(tensor): tensor.detach() for _, tensor in tensors}.values())
        self._names = {name: places[id(tensor)] for name, tensor in tensors}
        count = len(self._state)

        def step(values: list[torch.Tensor]) -> list[torch.Tensor]:
            state, (ids, mask, positions, place), kept = values[:count], values[count : count + 4], values[count + 4 :]
            more: dict[str, Any] = {"position_ids": positions, "logits_to_keep": 1, "cache_position": place}
            given = {name: value for name, value in more.items() if name in names}
            given |= {"input_ids": ids, "attention_mask": mask, "past_key_values": placed(kept, place)}
            swapped = {f"model.{name}": state[places[id(tensor)]] for name, tensor in tensors}
            return [functional_call(holder, swapped, (), given, tie_weights=False)]

        try:
            # A copy that shares all tensors: for the trace they are exchanged, and texts may be under way with the model.
            holder = _Holder(copy.deepcopy(model, {id(tensor): tensor for _, tensor in tensors}))
            fake = FakeTensorMode()
            with fake:
                values = [fake.from_tensor(one) for one in self._state]
                for one in (*inputs, *buffers):
                    values.append(torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=device))
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                graph = make_fx(step, tracing_mode="fake")(values)
                self._run = torch._inductor.compile(graph, [values], options=_OPTIONS)
        except Exception as error:
            found = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"
            raise ConfigError("COMPILE", f"no graph can be made of a step of this model ({found}); {LEAVE}") from error

    def is_of(self, model: nn.Module) -> bool:
        """Tells whether a model still has the tensors that the graph keeps, each under its name; values may change in place.

        Guarantee: False where a parameter or a buffer was exchanged, added, taken away or moved: then the graph would go on
        with what the model had before.
        """
        now = {
            name: tensor
            for named in (model.named_parameters, model.named_buffers)
            for name, tensor in named(remove_duplicate=False)
        }
        if now.keys() != self._names.keys():
            return False
        return all(_lies(tensor) == _lies(self._state[self._names[name]]) for name, tensor in now.items())

    def run(self, inputs: Sequence[torch.Tensor], buffers: list[torch.Tensor]) -> torch.Tensor:
        """Writes keys and values of one token into the buffers, and returns its logits, shape (m, V).

        Args:
            inputs: ids (m, 1); the mask, shape (m, L + T) or (m, 1, 1, L + T); positions (m, 1); the place (1,).
            buffers: keys and values of each layer in turn.
        """
        found: torch.Tensor = self._run([*self._state, *inputs, *buffers])[0]
        return found


class _Holder(nn.Module):
    """Gives a step the form of a module, whose tensors can be exchanged."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: Any) -> torch.Tensor:
        logits: torch.Tensor = self.model(**given, use_cache=True, return_dict=True).logits[:, -1]
        return logits


def _lies(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns where a tensor lies, and how; the graph keeps its own alive, so that no other comes to lie there."""
    return tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride()


def _require_compiler(device: torch.device) -> None:
    if device.type != "cpu":
        return
    try:
        cpp_builder.get_cpp_compiler()
    except (InvalidCxxCompiler, OSError, RuntimeError) as error:
        sentence = "no C++ compiler was found; install g++ (or set CXX to one), or"
        raise ConfigError("COMPILE", f"{sentence} {LEAVE}") from error
