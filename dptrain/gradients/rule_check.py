"""Holds the rule of a module to a naive loop: autograd, one sample at a time.

The probes at the start of a run hold every rule on the real model as well. This check comes before, on one layer and in a test
of its author's, and tells where a rule fails.
"""

import copy
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from dptrain.errors import DptrainError, WrongGradientRule
from dptrain.gradients.forms import Piece, add_weighted, merge, norm_sq
from dptrain.gradients.registry import Call, Rule, rule_of, settled

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Accepted error, relative to the norm of a gradient and a hundredth of the largest one of its tensor.

Models of float64 may round to float32 inside, as the RMS norms of transformers do."""

Rows = Sequence[int]
Naive = dict[str, list[torch.Tensor]]
"""By name of the parameter, the gradient of every sample, float64."""


def check_gradient_rule(
    module: nn.Module, inputs: torch.Tensor | tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> None:
    """Holds the gradient rule that serves a module to autograd, one sample at a time.

    Compared are: the whole batch, one sample, samples in another order, contributions of two samples, each parameter wanted by
    itself, a parameter that other modules use too, two uses of one parameter, float64, float32 and bfloat16, no samples at
    all, samples of no positions, and other weights near the module's own, without its ones and zeros. Other samples are
    replaced, also by NaN, and must not show. The rule must change nothing that it is given.

    Args:
        module: As the model holds it, in the mode (train or eval) in which it will train. It stays as it is.
        inputs: What to call it with; one row per sample in dimension 0, three rows at least, and as many positions as matter.
        kwargs: Its arguments by name. Tensors with as many rows as the first input have one per sample.

    Raises:
        WrongGradientRule: NO_RULE, the module has no rule of its own; FEW_ROWS, fewer than three samples; FORWARD, the module
            does not return one tensor in which samples stand apart; RULE_RAISES and RULE_FORM, the rule fails or returns
            something else than forms of these parameters; RULE_WRITES, it changes what it is given; GRADIENT_WRONG,
            ROWS_INFLUENCE and NORM_WRONG, with parameter, sample, and the norms that were found and expected.
    """
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.random.fork_rng():
        for dtype in TOLERANCE:
            _Bench.of(module, args, dict(kwargs or {}), dtype).run()
        near = _Bench.of(_stirred(module), args, dict(kwargs or {}), torch.float64, " with weights near its own")
        if near.finite():
            near.run()
        short, named = tree_map(lambda leaf: leaf[:, :0] if _is_wide(leaf) else leaf, (args, dict(kwargs or {})))
        none = _Bench.of(module, short, named, torch.float64, " without positions")
        if none.differentiable():
            none.run()


@dataclass
class _Bench:
    """A copy of a module in one type, its rule, and what autograd gives."""

    module: nn.Module
    rule: Rule
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int
    names: tuple[str, ...]
    dtype: torch.dtype
    about: str = ""

    @classmethod
    def of(
        cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype, about: str = ""
    ) -> "_Bench":
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        rows = tensors[0].shape[0] if tensors and tensors[0].dim() else 0
        if rows < 3:
            sentence = f"found {rows} samples, expected 3 or more, to tell them apart; pass a larger batch"
            raise _wrong("FEW_ROWS", sentence, found=rows, expected="3 or more")
        copied = copy.deepcopy(module).to(dtype).requires_grad_(True)
        rule = rule_of("", copied, frozenset(name for name, _ in copied.named_parameters(remove_duplicate=False)))
        if rule is None or (rule.slow and dtype != torch.bfloat16):
            raise _wrong(
                "NO_RULE",
                f"no rule serves this {type(module).__name__} as it is: decorate one with "
                f"@gradient_rule({type(module).__name__}); a subclass with a forward of its own needs a rule of its own",
                found="the generic path" if rule else "no trainable parameter",
                expected="a rule of its own",
            )
        names = tuple(name for name, _ in copied.named_parameters(recurse=rule.whole, remove_duplicate=False))
        cast = tree_map(lambda leaf: _cast(leaf, dtype), (args, kwargs))
        return cls(copied, rule, *cast, rows, names, dtype, about)

    def finite(self) -> bool:
        """Tells whether the module gives finite numbers for all samples."""
        leaves = tree_leaves(self.module(*self.args, **self.kwargs))
        return all(bool(leaf.isfinite().all()) for leaf in leaves if isinstance(leaf, torch.Tensor))

    def differentiable(self) -> bool:
        """Tells whether module and autograd take all samples, and give finite gradients; of no positions, some do not."""
        every = list(range(self.rows))
        try:
            found = self.naive(every, torch.ones_like(self.forward(every, self.args, self.kwargs)))
        except (RuntimeError, ValueError, IndexError, AssertionError, WrongGradientRule):
            return False
        return all(bool(value.isfinite().all()) for own in found.values() for value in own)

    def run(self) -> None:
        every = list(range(self.rows))
        if self.rule.slow:
            return  # known by its structure, and not in this type
        try:
            out = self.forward(every, self.args, self.kwargs)
        except (RuntimeError, NotImplementedError):
            if self.dtype == torch.bfloat16:
                return  # the module has no forward in this type
            raise
        grad = _like(out, seed=1)
        truth = self.naive(every, grad)
        self.compare("for the batch", truth, self.found(every, grad))
        self.compare("for one sample", self._of(truth, [1]), self.found([1], grad), samples=[1])
        back = every[::-1]
        self.compare("for samples in another order", self._of(truth, back), self.found(back, grad), samples=back)
        pairs = every[: self.rows // 2 * 2]
        both = {name: [own[i] + own[i + 1] for i in pairs[::2]] for name, own in truth.items()}
        self.compare("for contributions of two samples", both, self.found(pairs, grad, examples=2), samples=pairs[::2])
        for name in self.names:
            self.compare("wanted by itself", {name: truth[name]}, self.found(every, grad, wanted=[name]))
        if self._runs_empty():
            self.found([], grad)
        self.compare("used by another module too", truth, self.found(every, grad, tied=True))
        self.two_uses(every, grad, truth)
        if self.dtype != torch.bfloat16:
            self.others_replaced(every, grad, truth)

    def _runs_empty(self) -> bool:
        """Tells whether the module itself runs without samples; some of torch's do not."""
        try:
            self.forward([], self.args, self.kwargs)
        except (RuntimeError, ValueError, IndexError):
            return False
        return True

    def two_uses(self, every: Rows, grad: torch.Tensor, truth: Naive) -> None:
        """Adds up two uses of every parameter, and holds norm and weighted sum to the sums of autograd's gradients."""
        around = [*every[1:], every[0]]
        again = _like(grad, seed=2)
        first, second = self.found(every, grad, tied=True), self.found(around, again, tied=True)
        other = self.naive(around, again)
        weight = torch.linspace(-1.0, 1.0, self.rows, dtype=torch.float64, device=grad.device)
        for name in self.names:
            shape = self.module.get_parameter(name).shape
            pieces: list[Piece] = [forms[name] for forms in (first, second) if name in forms]
            sums = [one + two for one, two in zip(truth[name], other[name], strict=True)]
            if not pieces:
                continue  # both are zero, or the comparison before would have raised
            pieces = merge(pieces, shape)
            norms = norm_sq(pieces).double().sqrt()
            total = torch.zeros(shape, dtype=torch.float64, device=grad.device)
            add_weighted(pieces, weight.to(grad.device), total)
            expected = sum((float(w) * one for w, one in zip(weight, sums, strict=True)), torch.zeros_like(total))
            reach = sum(float(one.norm()) for one in sums)
            for sample, (norm, one) in enumerate(zip(norms.tolist(), sums, strict=True)):
                if not abs(norm - float(one.norm())) <= 10 * self._allowed(one, sums):
                    raise self._unequal("NORM_WRONG", "in two uses, by its norm", name, sample, norm, float(one.norm()))
            if not float((total - expected).norm()) <= TOLERANCE[self.dtype] * reach:
                found, norm = float(total.norm()), float(expected.norm())
                raise self._unequal("NORM_WRONG", "in two uses, by its weighted sum", name, None, found, norm)

    def others_replaced(self, every: Rows, grad: torch.Tensor, truth: Naive) -> None:
        """Replaces all samples but one, by others and by NaN; the gradient of the one must stay."""
        for sample in (0, self.rows - 1):
            for poison in (False, True):
                def swap(leaf: Any, sample: int = sample, poison: bool = poison) -> Any:
                    if not self._has_rows(leaf):
                        return leaf
                    hostile = poison and leaf.is_floating_point()
                    other = torch.full_like(leaf, torch.nan) if hostile else leaf.roll(1, 0)
                    other[sample] = leaf[sample]
                    return other

                args, kwargs = tree_map(swap, (self.args, self.kwargs))
                found = self.found(every, swap(grad), args=args, kwargs=kwargs)
                own = {name: piece.dense(self.module.get_parameter(name).shape)[sample] for name, piece in found.items()}
                how = "where other samples are NaN" if poison else "where other samples are replaced"
                for name, expected in ((name, truth[name][sample]) for name in own):
                    error = float((own[name].double() - expected).norm())
                    if not error <= self._allowed(expected, truth[name]):
                        found_norm, norm = float(own[name].double().norm()), float(expected.norm())
                        raise self._unequal("ROWS_INFLUENCE", how, name, sample, found_norm, norm)

    def found(
        self,
        rows: Rows,
        grad: torch.Tensor,
        *,
        examples: int = 1,
        wanted: Sequence[str] | None = None,
        tied: bool = False,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Piece]:
        """Runs the rule for these rows, as the router does."""
        whole = (self.args if args is None else args, self.kwargs if kwargs is None else kwargs)
        given = tree_map(lambda leaf: self._taken(leaf, rows), whole)
        taken = self._taken(grad, rows)
        names = frozenset(self.names if wanted is None else wanted)
        call = Call(
            *given, len(rows) // examples, examples, wanted=names, tied=names if tied else frozenset(),
        )  # fmt: skip
        shapes = {name: self.module.get_parameter(name).shape for name in self.names}
        watched = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        watched += [taken, *self.module.parameters(), *self.module.buffers()]
        before = [value._version for value in watched]
        try:
            with torch.no_grad():
                forms = settled(self.rule, call, taken, shapes)
        except DptrainError as error:
            raise _wrong(error.code, error.sentence, found=error.code, expected="forms of its parameters") from error
        except Exception as error:
            raise _wrong(
                "RULE_RAISES",
                f"the rule of {type(self.module).__name__} raises for {len(rows)} samples of type {self.dtype} "
                f"({type(error).__name__} at {_where(error)}: {str(error).partition(chr(10))[0]}); correct the rule",
                found=type(error).__name__, expected="forms of its parameters",
            ) from error  # fmt: skip
        if before != [value._version for value in watched]:
            raise _wrong(
                "RULE_WRITES",
                f"the rule of {type(self.module).__name__} changes its inputs, the gradient or the module in place; let it "
                "work on copies",
                found="a change in place", expected="none",
            )  # fmt: skip
        held = [v.dtype for form in forms.values() for v in vars(form).values() if torch.is_tensor(v) and v.is_floating_point()]
        # What `settled` promises, on which the margin of the clip rests; no rule can break it, only we can.
        assert all(torch.promote_types(kind, torch.promote_types(self.dtype, torch.float32)) == kind for kind in held)
        return forms

    def naive(self, rows: Rows, grad: torch.Tensor) -> Naive:
        """Takes the gradient of every sample by autograd, one after the other, in float64.

        ``grad`` has the rows of the whole batch in their order; the n-th of ``rows`` goes with row ``rows[n]`` of it.
        """
        wide = copy.deepcopy(self.module).double()
        parameters = [wide.get_parameter(name) for name in self.names]
        args, kwargs = tree_map(lambda leaf: _cast(leaf, torch.float64), (self.args, self.kwargs))
        whole = self.forward(list(range(self.rows)), args, kwargs, wide)
        truth: Naive = {name: [] for name in self.names}
        for row in rows:
            out = self.forward([row], args, kwargs, wide)
            if out.shape[1:] != whole.shape[1:] or not torch.allclose(out[0], whole[row], rtol=1e-6, atol=1e-9, equal_nan=True):
                raise _wrong(
                    "FORWARD",
                    f"the output of {type(wide).__name__} for sample {row} alone is another than in the batch: the module "
                    "mixes samples, or draws random numbers (call eval() for this check)",
                    sample=row, found="another output", expected="the same output",
                )  # fmt: skip
            found = torch.autograd.grad(out, parameters, grad[row : row + 1].double(), allow_unused=True)
            for name, parameter, value in zip(self.names, parameters, found, strict=True):
                truth[name].append(torch.zeros_like(parameter) if value is None else value)
        return truth

    def forward(
        self, rows: Rows, args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module | None = None
    ) -> torch.Tensor:
        """Calls the module with these rows.

        Raises:
            WrongGradientRule: code FORWARD, it does not return one tensor with a row per sample.
        """
        taken, named = tree_map(lambda leaf: self._taken(leaf, rows), (args, kwargs))
        out = (module or self.module)(*taken, **named)
        if self.rule.again:  # it knows outputs of several tensors; the first is checked
            out = tree_leaves(out)[0]
        if not isinstance(out, torch.Tensor) or out.shape[:1] != (len(rows),):
            what = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise _wrong(
                "FORWARD",
                f"{type(self.module).__name__} returns {what} for {len(rows)} samples, expected one tensor, samples first; "
                "split the module",
                found=what, expected=f"({len(rows)}, ...)",
            )  # fmt: skip
        return out

    def compare(self, how: str, truth: Naive, found: Mapping[str, Piece], *, samples: Rows | None = None) -> None:
        """Raises WrongGradientRule unless every gradient is that of autograd; a form that is missing stands for zero."""
        for name, expected in truth.items():
            shape = self.module.get_parameter(name).shape
            dense = found[name].dense(shape).double() if name in found else None
            for place, own in enumerate(expected):
                value = torch.zeros_like(own) if dense is None else dense[place]
                if not float((value - own).norm()) <= self._allowed(own, expected):
                    sample = place if samples is None else samples[place]
                    raise self._unequal("GRADIENT_WRONG", how, name, sample, float(value.norm()), float(own.norm()))

    def _allowed(self, own: torch.Tensor, every: Sequence[torch.Tensor]) -> float:
        """Returns how far a gradient may be off, by its norm and the largest one of its parameter."""
        return TOLERANCE[self.dtype] * (float(own.norm()) + 0.01 * max(float(one.norm()) for one in every))

    def _of(self, truth: Naive, rows: Rows) -> Naive:
        return {name: [own[row] for row in rows] for name, own in truth.items()}

    def _has_rows(self, leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (self.rows,)

    def _taken(self, leaf: Any, rows: Rows) -> Any:
        """Copies these rows of a tensor that has one per sample."""
        return leaf[list(rows)].detach().clone() if self._has_rows(leaf) else leaf

    def _unequal(
        self, code: str, how: str, name: str, sample: int | None, found: float, expected: float
    ) -> WrongGradientRule:
        of = "" if sample is None else f", sample {sample}"
        return _wrong(
            code,
            f"the rule of {type(self.module).__name__} gives another gradient than autograd {how}{self.about} ({self.dtype}): "
            f"parameter {name!r}{of}, found norm {found:.6g}, expected {expected:.6g}; correct the rule",
            parameter=name, sample=sample, found=found, expected=expected,
        )  # fmt: skip


def _is_wide(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 1


def _like(value: torch.Tensor, *, seed: int) -> torch.Tensor:
    """Draws output gradients of a fixed seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)


def _stirred(module: nn.Module) -> nn.Module:
    """Copies a module in float64 with other weights near its own: behind ones and zeros, wrong rules look right."""
    copied = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(3)
    for parameter in copied.parameters():
        noise = [torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter) for _ in range(2)]
        reach = parameter.detach().square().mean().sqrt().nan_to_num() or 1.0
        parameter.data = parameter.data * (1.0 + 0.1 * noise[0]) + 0.05 * reach * noise[1]
    return copied


def _where(error: Exception) -> str:
    """Tells file and line of the rule, or of what it called, that raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.detach().to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _wrong(
    code: str, sentence: str, *, parameter: str | None = None, sample: int | None = None, found: object, expected: object
) -> WrongGradientRule:
    return WrongGradientRule(code, sentence, parameter=parameter, sample=sample, found=found, expected=expected)
