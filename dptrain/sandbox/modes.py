"""Sort operations of torch by what they may do in a private microbatch, and take modes of others out of its way."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex

import torch
from torch._C import (
    _get_dispatch_stack_at,
    _get_function_stack_at,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_dispatch_stack,
    _pop_torch_function_stack,
    _push_on_torch_dispatch_stack,
    _push_on_torch_function_stack,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.overrides import _pop_mode as _pop_function_mode
from torch.overrides import _push_mode as _push_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode
from torch.utils.weak import WeakTensorKeyDictionary

from dptrain.errors import NotPrivateUse
from dptrain.sandbox.indices import Total
from dptrain.sandbox.writes import Kept

_aten = torch.ops.aten
READS = {_aten._local_scalar_dense.default, _aten.equal.default}
"""Tell Python a truth, or a number."""


@dataclass(frozen=True)
class Kind:
    """Says of an operation whether it draws, reads or indexes, and what it writes."""

    draws: bool = False
    writes: tuple[tuple[int, str], ...] = ()
    """Place and name of every argument that is written."""
    reads: bool = False
    indexes: bool = False


PLAIN = Kind()
"""The kind of what is let through."""

_STATISTICS = {
    _aten.native_batch_norm.default: (3, 4), _aten.cudnn_batch_norm.default: (3, 4),
    _aten.miopen_batch_norm.default: (3, 4), _aten.batch_norm_update_stats.default: (1, 2),
}  # fmt: skip
"""Places of the running statistics that an operation writes, of which its schema says nothing."""

_TRAINING = 5
"""Place of the argument by which the first three of them do."""

_INDEXES = frozenset(Total(lambda bad: True, lambda bad: True).handlers)


def kind_of(func: Any) -> Kind:
    """Finds the kind of an operation, by its schema and its tags."""
    if func in READS:
        return Kind(reads=True)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    writes = tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    if func in _STATISTICS:
        writes = tuple(zip(_STATISTICS[func], ("running_mean", "running_var"), strict=True))
    indexes = func in _INDEXES
    return Kind(draws=draws, writes=writes, indexes=indexes) if draws or writes or indexes else PLAIN


def writes_now(func: Any, args: tuple, kwargs: dict) -> bool:
    """Tells whether an operation that may write does."""
    if _STATISTICS.get(func) != (3, 4):
        return True
    return bool(args[_TRAINING] if len(args) > _TRAINING else kwargs["training"])


def spread(tainted: WeakTensorKeyDictionary, args: tuple, kwargs: dict, result: Any) -> None:
    """Marks what is made of content as content, and what content is written to."""
    if any(value in tainted for value in tensors_in((args, tuple(kwargs.values())))):
        for value in tensors_in((result,)):
            tainted[value] = True


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yields tensors in lists and tuples within each other."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)


Multiplied = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, bool], torch.Tensor | None]


class Watcher(Protocol):
    """Is asked by the modes: the sandbox.

    Attributes:
        total: what becomes of indices. kept: what may not be written. multiplied: what may compute a linear map in the place of
            torch, given input, weight, bias and whether the weight is turned; None, or it returns None, where torch does.
    """

    total: Total
    kept: Kept
    multiplied: Multiplied | None

    def dispatch(self, func: Any, args: tuple, kwargs: dict | None) -> Any:
        """Runs one operation under the rules."""


class Dispatched(TorchDispatchMode):
    """Hands every operation to the sandbox."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no compiler of Python runs inside a pass, and asking costs as much again as the call

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return self._watcher.dispatch(func, args, kwargs)


class Called(TorchFunctionMode):
    """Functions that fall apart before they are dispatched: a one-hot code, attention with dropout on a GPU, a linear map.

    And the end of every function, where torch has counted what it wrote.
    """

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher, self._kept = watcher, watcher.kept

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        handler = _FUNCTIONS.get(func)
        if handler is not None:
            result = handler(self._watcher, func, args, kwargs or {})
        else:
            result = func(*args, **kwargs) if kwargs else func(*args)
        if self._kept.counters:
            self._kept.uncount()
        return result


def _one_hot(watcher: Watcher, func: Any, args: tuple, kwargs: dict) -> Any:
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    index = args[0] if args else kwargs.get("input", kwargs.get("tensor"))
    if not isinstance(classes, SupportsIndex) or int(classes) <= 0 or not isinstance(index, torch.Tensor):
        return func(*args, **kwargs)
    return watcher.total.one_hot(index, int(classes))


def _attention(watcher: Watcher, func: Any, args: tuple, kwargs: dict) -> Any:
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


def _linear(watcher: Watcher, func: Any, args: tuple, kwargs: dict) -> Any:
    found = None
    if watcher.multiplied is not None and not kwargs and 2 <= len(args) <= 3:
        found = watcher.multiplied(args[0], args[1], args[2] if len(args) == 3 else None, True)
    return func(*args, **kwargs) if found is None else found


def _addmm(watcher: Watcher, func: Any, args: tuple, kwargs: dict) -> Any:
    found = None
    if watcher.multiplied is not None and not kwargs and len(args) == 3:
        found = watcher.multiplied(args[1], args[2], args[0], False)
    return func(*args, **kwargs) if found is None else found


_FUNCTIONS: dict[Any, Callable[[Watcher, Any, tuple, dict], Any]] = {
    torch.nn.functional.linear: _linear,
    torch.addmm: _addmm,
    torch.nn.functional.one_hot: _one_hot,
    torch.nn.functional.scaled_dot_product_attention: _attention,
}


@contextmanager
def without(mode: TorchDispatchMode, functions: TorchFunctionMode, going_on: Callable[[], bool]) -> Iterator[None]:
    """Takes modes off this thread's stacks for the time of a block, with all that was entered after them.

    What runs inside is nobody's program: nobody is asked about it, nor about attributes of tensors. What is on no stack here is
    left alone. Where an interrupt ends the block, and be it between two instructions of this, they are back once its exception
    is forgotten: a generator ends by itself then.

    Args:
        going_on: whether they are to be put back when the block ends; an error may have left their pass meanwhile.
    """
    many = _len_torch_dispatch_stack()
    on_top = many and _get_dispatch_stack_at(many - 1) is mode
    modes = (mode,) if on_top else _from(mode, _get_current_dispatch_mode_stack())
    many = _len_torch_function_stack()
    on_top = many and _get_function_stack_at(many - 1) is functions
    others = (functions,) if on_top else _from(functions, _get_current_function_mode_stack())
    try:
        for _ in others:
            _pop_torch_function_stack()
        for _ in modes:
            _pop_torch_dispatch_stack(None)
        yield
    finally:
        try:
            _put_back(modes, others, going_on)
        except BaseException:  # an interrupt in the middle
            _put_back(modes, others, going_on)
            raise


def is_last(mode: TorchDispatchMode, functions: TorchFunctionMode | None) -> bool:
    """Tells whether nothing was entered on this thread after modes."""
    many, others = _len_torch_dispatch_stack(), _len_torch_function_stack()
    if not many or _get_dispatch_stack_at(many - 1) is not mode:
        return False
    return functions is None or (others > 0 and _get_function_stack_at(others - 1) is functions)


def _from(mode: object, stack: Sequence[Any]) -> Sequence[Any]:
    """Returns the part of a stack from a mode on; nothing where it is not in it."""
    place = next((place for place, other in enumerate(stack) if other is mode), len(stack))
    return stack[place:]


def _put_back(modes: Sequence[Any], functions: Sequence[Any], going_on: Callable[[], bool]) -> None:
    """Enters modes again that are not on this thread's stacks, unless their pass has been left."""
    if not (modes or functions) or not going_on():
        return
    for mode in modes:
        if not _len_torch_dispatch_stack() or not any(other is mode for other in _get_current_dispatch_mode_stack()):
            _push_on_torch_dispatch_stack(mode)
    for mode in functions:
        if not _len_torch_function_stack() or not any(other is mode for other in _get_current_function_mode_stack()):
            _push_on_torch_function_stack(mode)


def take_out(mode: TorchDispatchMode) -> None:
    """Leaves a mode, also where a user's own was entered after it."""
    stack = _get_current_dispatch_mode_stack()
    if any(other is mode for other in stack):
        with _on_top(mode, stack, _pop_mode, _push_mode):
            _pop_mode()


def take_out_function(mode: TorchFunctionMode) -> None:
    """Leaves a mode of functions likewise."""
    stack = _get_current_function_mode_stack()
    if any(other is mode for other in stack):
        with _on_top(mode, stack, _pop_function_mode, _push_function_mode):
            mode.__exit__(None, None, None)


@contextmanager
def _on_top(mode: object, stack: Sequence[object], pop: Callable[[], Any], push: Callable[[Any], Any]) -> Iterator[None]:
    """Puts aside for the time of a block what was entered after a mode of this stack."""
    above = []
    while stack[-1 - len(above)] is not mode:
        above.append(pop())
    yield
    for other in reversed(above):
        push(other)
