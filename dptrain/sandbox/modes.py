"""How operations and functions of torch are met: a mode for each kind, and how one leaves the stacks of modes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.overrides import _pop_mode as _pop_function_mode
from torch.overrides import _push_mode as _push_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from dptrain.errors import NotPrivateUse

if TYPE_CHECKING:
    from dptrain.sandbox.interception import Sandbox


class Dispatched(TorchDispatchMode):
    """Hands every operation to the sandbox."""

    def __init__(self, sandbox: "Sandbox") -> None:
        super().__init__()
        self._sandbox = sandbox

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no compiler of Python runs inside a pass, and asking costs as much again as the call

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return self._sandbox.dispatch(func, args, kwargs or {})


class Called(TorchFunctionMode):
    """Functions that fall apart before they are dispatched: a one-hot code, and attention with dropout on a GPU.

    And the end of every function, where torch has counted what it wrote.
    """

    def __init__(self, sandbox: "Sandbox") -> None:
        super().__init__()
        self._sandbox = sandbox

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        handler = _FUNCTIONS.get(func)
        if handler is None or self._sandbox.idle:
            result = func(*args, **(kwargs or {}))
        else:
            result = handler(self._sandbox, func, args, kwargs or {})
        if self._sandbox.kept.counters:
            self._sandbox.kept.uncount()
        return result


def _one_hot(sandbox: "Sandbox", func: Any, args: tuple, kwargs: dict) -> Any:
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    index = args[0] if args else kwargs.get("input", kwargs.get("tensor"))
    if not isinstance(classes, SupportsIndex) or int(classes) <= 0 or not isinstance(index, torch.Tensor):
        return func(*args, **kwargs)
    return sandbox.total.one_hot(index, int(classes))


def _attention(sandbox: "Sandbox", func: Any, args: tuple, kwargs: dict) -> Any:
    rate = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    query = args[0] if args else kwargs["query"]
    if not rate or query.device.type != "cuda":
        return func(*args, **kwargs)
    if not torch.backends.cuda.math_sdp_enabled():
        raise NotPrivateUse(
            "ATTENTION_DROPOUT_FUSED",
            f"attention with dropout {rate} is asked of fused kernels alone, which drop inside, where masks cannot be those "
            f"of a contribution; enable the math kernel (torch.nn.attention.sdpa_kernel), or set the dropout of attention to 0",
        )
    with sdpa_kernel([SDPBackend.MATH]):
        return func(*args, **kwargs)


_FUNCTIONS: dict[Any, Callable[["Sandbox", Any, tuple, dict], Any]] = {
    torch.nn.functional.one_hot: _one_hot,
    torch.nn.functional.scaled_dot_product_attention: _attention,
}


def take_out(mode: TorchDispatchMode) -> None:
    """Leaves a mode, also where a user's own was entered after it."""
    above = []
    stack = _get_current_dispatch_mode_stack()
    if not any(other is mode for other in stack):
        return
    while stack[-1 - len(above)] is not mode:
        above.append(_pop_mode())
    _pop_mode()
    for other in reversed(above):
        _push_mode(other)


def take_out_function(mode: TorchFunctionMode) -> None:
    """Leaves a mode of functions likewise."""
    above = []
    stack = _get_current_function_mode_stack()
    if not any(other is mode for other in stack):
        return
    while stack[-1 - len(above)] is not mode:
        above.append(_pop_function_mode())
    mode.__exit__(None, None, None)
    for other in reversed(above):
        _push_function_mode(other)
