"""The generic path: per-contribution gradients of any module's tensors, by running the module again.

Exact and slower: the module runs once more per microbatch, vectorised over examples where vmap can, else once per
contribution. It serves class tokens and other tensors that a module holds directly, and modules whose inner parts do not
keep examples apart (attention of torch itself, recurrent networks, experts, relative position biases), which are then one
site with all tensors below them. What a contribution's gradient is computed from are its own rows and what the whole
microbatch shares, nothing else. A notice names each module that takes this path.

The other run draws the random numbers of the first again. They are not kept: every draw has an address
(:mod:`dptrain.sandbox`), and they are made once more.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.func import grad as gradient
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from dptrain.blocks.shards import run_with
from dptrain.errors import UnsupportedModule, without_text
from dptrain.gradients.dimensions import Dimension
from dptrain.gradients.forms import Dense, Form, promote
from dptrain.gradients.registry import Call, Rule, gradient_rule
from dptrain.sandbox import Draw, Entry, Read
from dptrain.sandbox.draws import Generators, UnknownDraw, draws, request
from dptrain.sandbox.modes import READS


class Unmatched(RuntimeError):
    """Raised where the draws of the forward do not fit those that another run asks for."""


Fit = Callable[[Draw, torch.Size], torch.Tensor]
"""A draw of the first run and the shape that another run asks for, to the numbers."""


class Replay(TorchDispatchMode):
    """Gives every draw of another run the numbers of the first, or raises :class:`Unmatched`; see :func:`rows_of`.

    Truths that the first run read off tensors are told again as well.
    """

    def __init__(self, entries: Sequence[Entry], fit: Fit) -> None:
        super().__init__()
        self._entries = deque(entries)
        self._fit = fit

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if error[0] is None and any(isinstance(left, Draw) for left in self._entries):
            raise Unmatched("it drew fewer random numbers than the first time")

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func in READS and (func is torch.ops.aten.equal.default or args[0].dtype == torch.bool):
            if self._entries and isinstance(self._entries[0], Read):
                return self._entries.popleft().answer
            return func(*args, **kwargs)  # a truth that the sandbox tells as it is
        if not draws(func, args, kwargs):
            return func(*args, **kwargs)
        try:
            asked, answer = request(func, args, kwargs)
        except UnknownDraw as error:
            raise Unmatched(str(error)) from error
        entry = self._entries.popleft() if self._entries else None
        if not isinstance(entry, Draw) or (entry.kind, entry.parameters) != (asked.kind, asked.parameters):
            raise Unmatched(f"it asked for other random numbers than the first time ({func})")
        return answer(self._fit(entry, asked.shape))

def rows_of(start: int, examples: int, rows: int) -> Fit:
    """The numbers of ``examples`` rows from ``start`` of ``rows``; all of them of a draw that everybody shares."""

    def fit(draw: Draw, shape: torch.Size) -> torch.Tensor:
        value = draw.of_rows(start, examples)
        if value.shape != shape:
            raise Unmatched(f"random numbers of shape {tuple(value.shape)} where it asked for {tuple(shape)}")
        return value

    return fit


def every_row(rows: int) -> Fit:
    """Draws under vmap over ``rows`` examples: the shape asked for has them in front, and then what one example has."""

    def fit(draw: Draw, shape: torch.Size) -> torch.Tensor:
        value = draw.by_row()
        if value is None:
            value = draw.values().expand(rows, *draw.request.shape)
        if value.shape != shape:
            raise Unmatched(f"random numbers of shape {tuple(value.shape)} where it asked for {tuple(shape)}")
        return value

    return fit


OPAQUE = (type(None), bool, int, float, str, torch.dtype, torch.device)
"""Arguments beside tensors that a module may be run again with; any other object could carry state from call to call."""


@gradient_rule(nn.Module)
class GenericRule(Rule):
    """Recomputes the module and takes the gradient of ``<output, grad>`` for the tensors it owns."""

    slow = True
    again = True
    anywhere = True

    first = 0
    """Dimension of the example in the first input and the first output, unless anywhere."""

    other = 0
    """Dimension of the example in the other inputs and outputs, unless anywhere."""

    def __init__(self, name: str, module: nn.Module, *, whole: bool = False) -> None:
        super().__init__(name, module, whole=whole)
        self.described = f"module {name!r} ({type(module).__name__})"
        self._loop = isinstance(module, nn.RNNBase)
        self._batched: dict[str, bool] = {}
        self._quiet: set[bool] = set()
        self._one: set[str] = set()
        """Inputs that came with one row for all where they were first seen."""
        self._taken: dict[str, Dimension] = {}
        self._made: dict[int, Dimension] = {}

    def dimension(self, output: int) -> int:
        if self.anywhere and output in self._made:
            return self._made[output].found
        return self.first if output == 0 else self.other

    @property
    def enters(self) -> int:
        return self.given.found if self.anywhere else self.first

    def __call__(self, module: nn.Module, call: Call, grad: torch.Tensor) -> dict[str, Form]:
        leaves, spec = tree_flatten((call.inputs, call.kwargs))
        dims = self.dims_of(call, leaves)
        names = dict(self.module.named_parameters(recurse=self.whole, remove_duplicate=False))
        wanted = sorted(call.wanted)
        distinct = {id(names[key]): key for key in wanted}
        tensors = {key: names[key].detach() for key in distinct.values()}
        # A tensor used under two names within the site enters once, under both.
        alias = {key: distinct[id(value)] for key, value in names.items() if id(value) in distinct}
        found, hosts = None, Generators(with_torch=False)
        if not self._loop:
            try:
                found = self._vectorised(call, leaves, spec, dims, tensors, alias, grad)
            except torch.OutOfMemoryError:
                raise  # says nothing about the module, and what is learnt of it must not hang on who was drawn
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                self._loop = True  # vmap does not know an operation of this module; one by one is exact too, or raises below
        if found is None:
            try:
                found = self._one_by_one(call, leaves, spec, dims, tensors, alias, grad)
            except Unmatched as error:
                raise self._dropout(f"draws random numbers that cannot be given to one contribution alone ({error})") from error
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
                raise self.runs_not("for one contribution alone", wanted, error) from None
        self._refuse_host_draws(hosts)
        return {key: Dense(value) for key, value in found.items()}

    @property
    def dimensions(self) -> Sequence[Dimension]:
        return (self.given, *self._taken.values(), *self._made.values())

    @property
    def open(self) -> bool:
        return self.given.open and (0 not in self._made or self._made[0].open)

    def forget(self) -> None:
        super().forget()
        self._taken.clear()
        self._made.clear()

    def learn(self, args: tuple, kwargs: dict, outputs: Sequence[object], rows: int) -> None:
        """Looks at a call on rows that are nobody's: an input has the example where every number of rows shows in its shape.

        One number would not do: a length may happen to equal it.
        """
        for place, value in enumerate(leaves := tree_flatten((args, kwargs))[0]):
            dim = self.first if place == 0 else self.other
            if rows > 1 and isinstance(value, torch.Tensor) and value.dim() > dim:
                key = _key(place, leaves, value)
                self._batched[key] = self._batched.get(key, True) and value.shape[dim] == rows
        if not self.anywhere:
            return
        for place, value in enumerate(leaves):
            if isinstance(value, torch.Tensor):
                self._taken.setdefault(_key(place, leaves, value), Dimension()).see(value.shape, rows)
        for place, value in enumerate(outputs):
            if isinstance(value, torch.Tensor):
                self._made.setdefault(place, Dimension()).see(value.shape, rows)
        if args and isinstance(args[0], torch.Tensor):
            self.given.see(args[0].shape, rows)

    def spread(self, output: int, value: object, rows: int) -> torch.Tensor | None:
        """Spreads an output that came without examples; only where one row is known to stand for the batch.

        Position embeddings do that, and relative position biases.
        """
        if rows == 1 or not isinstance(value, torch.Tensor) or value.is_nested or value.shape[:1] != (1,):
            return None
        if self.dimension(output):
            return None  # one position, and not one row
        if isinstance(self.module, nn.Embedding):
            known = value.dim() == 3
        else:
            known = output > 0 and hasattr(self.module, "relative_attention_bias")
        return value.expand(rows, *value.shape[1:]) if known else None

    def dims_of(self, call: Call, leaves: list[Any]) -> list[int | None]:
        """Dimension of the example in every leaf of the inputs; None where it is shared by the microbatch.

        Decided by :meth:`learn`, or else when the site first sees more than one row, and kept.

        Raises:
            UnsupportedModule: an input that holds state, or that had one row per example and has no longer.
        """
        dims: list[int | None] = []
        turned = self.anywhere and bool(self.given.found or self.dimension(0))
        for place, value in enumerate(leaves):
            if not isinstance(value, (torch.Tensor, *OPAQUE)):
                raise UnsupportedModule(
                    "STATE_IN_GENERIC_PATH",
                    f"{self.described} has no rule of its own and is called with a {type(value).__name__}, which may "
                    "change from call to call (a key-value cache, a packed sequence): set use_cache=False, pass padded "
                    "tensors, or freeze the tensors of the module",
                )
            dim = self.first if place == 0 else self.other
            if not isinstance(value, torch.Tensor) or call.rows == 1 or value.dim() <= dim:
                dims.append(None)  # one row alone is the whole of every input
                continue
            key = _key(place, leaves, value)
            if turned:
                dims.append(self._turned(place, key, value, call.rows))
                continue
            fits = value.shape[dim] == call.rows
            if value.shape[dim] == 1 and not self._batched.get(key, False):
                self._one.add(key)
            batched = self._batched.setdefault(key, fits)
            if fits and key in self._one:
                raise UnsupportedModule(
                    "BATCH_DIMENSION",
                    f"input {place} of {self.described} had one row for the whole microbatch and has one per example now, "
                    "so that its shape follows content; give it the same number of rows in every call, or freeze the "
                    "tensors of the module",
                )
            if batched and not fits:
                raise UnsupportedModule(
                    "BATCH_DIMENSION",
                    f"input {place} of {self.described} has shape {tuple(value.shape)}, expected {call.rows} rows in dimension "
                    f"{dim} as before; pass one row per example. Freeze the tensors of the module otherwise",
                )
            dims.append(dim if batched else None)
        return dims

    def _turned(self, place: int, key: str, value: torch.Tensor, rows: int) -> int | None:
        """Returns where the example is in an input of a module that holds it in another dimension than 0: where it was in the
        probes, and None for an input in which it was nowhere."""
        seen = self._taken.get(key)
        if seen is not None and seen.nowhere:
            return None
        if seen is not None and not seen.lost and seen.where is not None and value.shape[seen.where] == rows:
            return seen.where
        raise UnsupportedModule(
            "BATCH_DIMENSION",
            f"input {place} of {self.described} has shape {tuple(value.shape)}, expected {rows} rows in the one dimension in "
            "which the probes saw the rows, or in none; give it as in the probes, or freeze the tensors of the module",
        )

    def _vectorised(
        self, call: Call, leaves: list, spec: Any, dims: list, tensors: dict, alias: dict, grad_output: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """vmap over examples of the vector-Jacobian product."""
        values = [value for value in leaves if isinstance(value, torch.Tensor)]
        value_dims = tuple(d for value, d in zip(leaves, dims, strict=True) if isinstance(value, torch.Tensor))
        dim = self.dimension(call.output)

        def product(own: dict, inputs: tuple, grad_one: torch.Tensor) -> torch.Tensor:
            given = iter(v if d is None else v.unsqueeze(d) for v, d in zip(inputs, value_dims, strict=True))
            again = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            out, grad_out = promote(self.rerun(call, own, alias, again, spec)), grad_one.unsqueeze(dim)
            if out.shape != grad_out.shape:  # more than this example's rows; multiplied, they would spread over its gradient
                raise ValueError(f"its output for one example has shape {tuple(out.shape)}, expected {tuple(grad_out.shape)}")
            return (out * grad_out).sum()

        mapped = vmap(gradient(product), in_dims=(None, value_dims, dim), randomness="different")
        with Replay(call.draws, every_row(call.rows)):
            per_example = mapped(tensors, tuple(values), promote(grad_output))
        return {
            key: promote(value).reshape(call.contributions, call.examples, *tensors[key].shape).sum(1)
            for key, value in per_example.items()
        }

    def _one_by_one(
        self, call: Call, leaves: list, spec: Any, dims: list, tensors: dict, alias: dict, grad_output: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """One run and one backward pass per contribution, on its rows alone."""
        found = {key: promote(value.new_zeros(call.contributions, *value.shape)) for key, value in tensors.items()}
        dim = self.dimension(call.output)
        for i in range(call.contributions):
            start = i * call.examples
            again = [leaf if d is None else leaf.narrow(d, start, call.examples) for leaf, d in zip(leaves, dims, strict=True)]
            own = {key: value.clone().requires_grad_(True) for key, value in tensors.items()}
            fit = rows_of(start, call.examples, call.rows)
            with torch.enable_grad(), Replay(call.draws, fit):
                out = self.rerun(call, own, alias, again, spec)
                part = grad_output.narrow(dim, start, call.examples)
                if out.shape != part.shape:  # an output without examples, which the router spread over them
                    part = part.sum(dim, keepdim=True)
                if not out.requires_grad:
                    continue
                grads = torch.autograd.grad(out, list(own.values()), part.to(out.dtype), allow_unused=True)
            for key, value in zip(own, grads, strict=True):
                if value is not None:
                    found[key][i] = value
        return found

    def rerun(self, call: Call, own: dict, alias: dict, leaves: list, spec: Any) -> torch.Tensor:
        """The one output of another run that the gradient belongs to, with the tensors in ``own``."""
        args, kwargs = tree_unflatten(leaves, spec)
        device = next(iter(own.values())).device.type
        swapped = self._once({key: own[name] for key, name in alias.items()})
        autocast = torch.autocast(device, dtype=call.autocast, enabled=call.autocast is not None)
        with autocast, _without_checkpoints(self.module):
            out = self.run(swapped, args, kwargs)
        return tree_leaves(out)[call.output]

    def _once(self, swapped: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Leaves one path to each tensor: one that is put in place by two does not come back."""
        return dict({place_of(self.module, key): (key, value) for key, value in swapped.items()}.values())

    def run(self, swapped: dict[str, torch.Tensor], args: tuple, kwargs: dict) -> Any:
        """Runs what the site is with these tensors in the place of its own."""
        if isinstance(self.module, nn.RNNBase):
            return _run_recurrent(self.module, swapped, args, kwargs)
        return run_with(self.module, swapped, args, kwargs)

    def _refuse_host_draws(self, before: Generators) -> None:
        """Refuses a module whose other run drew from Python or numpy, which has no address; looks at the first run of each
        mode of training alone, since a thread beside this one may draw too."""
        training = any(child.training for child in self.module.modules())
        if training not in self._quiet and before.moved():
            raise self._dropout("draws from Python's random or numpy's in its forward")
        self._quiet.add(training)

    def runs_not(self, how: str, wanted: Sequence[str], error: Exception) -> UnsupportedModule:
        """Returns the refusal of a module that cannot be run again in some way."""
        return UnsupportedModule(
            "NO_RULE",
            f"{self.described} holds trainable tensors {list(wanted)} and cannot be run again {how} ({without_text(error)}); "
            "freeze these tensors or move them into a supported layer",
        )

    def _dropout(self, what: str) -> UnsupportedModule:
        return UnsupportedModule(
            "DROPOUT_IN_FALLBACK",
            f"{self.described} has no rule of its own and {what}: another run of it would give another gradient; set its "
            "dropout to 0, or freeze the tensors of the module",
        )


def place_of(module: nn.Module, key: str) -> tuple[int, str]:
    """Returns where a tensor of a module lies, whatever path leads there: the id of the module that holds it, and its name."""
    path, _, name = key.rpartition(".")
    return id(module.get_submodule(path)), name


def _key(place: int, leaves: Sequence[Any], value: torch.Tensor) -> str:
    """Names an input, alike in all calls of one kind."""
    return f"{place}/{len(leaves)}/{value.dim()}"


@contextmanager
def _without_checkpoints(module: nn.Module) -> Iterator[None]:
    """Layers of transformers checkpoint themselves; the second run is short-lived, and a third one would draw once more."""
    switched = [child for child in module.modules() if getattr(child, "gradient_checkpointing", False) is True]
    for child in switched:
        child.gradient_checkpointing = False
    try:
        yield
    finally:
        for child in switched:
            child.gradient_checkpointing = True


def _run_recurrent(module: nn.RNNBase, swapped: dict[str, torch.Tensor], args: tuple, kwargs: dict) -> Any:
    """A recurrent module keeps its tensors in a list of its own, which ``run_with`` does not reach."""
    weights = [swapped.get(name, getattr(module, name).detach()) for name in module._flat_weights_names]
    kept = module._flat_weights
    module._flat_weights = weights
    try:
        return module(*args, **kwargs)
    finally:
        module._flat_weights = kept
