"""The kernel of GELU beside float64 and torch's operation: its numbers, its memory, and who is left to torch."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.gradients import matmul  # noqa: E402
from dptrain.kernels import activations  # noqa: E402
from dptrain.kernels.way import way  # noqa: E402

pytestmark = pytest.mark.skipif(activations.library() is None, reason="no C++ compiler here, so torch computes")

FORMS = ["none", "tanh"]
ENTRIES = [1 << 12, (1 << 12) + 1, (1 << 13) - 1, 3 * (1 << 12) + 17]


@pytest.fixture
def only_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORWARD", "BACKWARD"):
        monkeypatch.setattr(activations, name, lambda *given, **options: pytest.fail("it was left to torch"))


def both(x: torch.Tensor, grad: torch.Tensor, form: str) -> list[torch.Tensor]:
    return [activations.gelu(x, approximate=form), activations.gelu_back(grad, x, approximate=form)]


def floats(sizes: int = 400_000) -> torch.Tensor:
    """Returns numbers of all sizes and signs: zeros, those below the normal ones, infinity, and what is no number."""
    bits = torch.arange(-(1 << 31), 1 << 31, (1 << 32) // sizes).to(torch.int32)
    near = torch.linspace(-16.0, 16.0, sizes // 4)
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45, 3.4e38, -3.4e38])
    return torch.cat([bits.view(torch.float32), near, odd])


@pytest.mark.parametrize("form", FORMS)
def test_values_and_slopes_are_those_of_float64_for_numbers_of_all_sizes(form: str, only_kernel: None) -> None:
    x = floats()
    x = x[x.abs() < 1e17]  # above, formulas of slopes multiply infinity by zero, as torch's do
    chance = torch.Generator().manual_seed(0)
    grad = torch.randn(x.shape, generator=chance)
    value, slope = both(x, grad, form)
    wide = x.double().requires_grad_()
    true = torch.nn.functional.gelu(wide, approximate=form)
    (of_wide,) = torch.autograd.grad(true, wide, grad.double())
    tiny = torch.finfo(torch.float32).tiny
    assert bool(((value - true).abs() <= 2.0**-20 * x.abs().double() + 2.0**-22 * tiny).all())
    assert bool(((slope - of_wide).abs() <= 2.0**-20 * grad.abs().double() + 2.0**-22 * tiny).all())


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_number_stays_so_and_nothing_overflows_that_torch_keeps(form: str) -> None:
    x = floats()
    for own, other in zip(
        both(x, torch.ones_like(x), form),
        (activations.FORWARD(x, approximate=form), activations.BACKWARD(torch.ones_like(x), x, approximate=form)),
        strict=True,
    ):
        assert bool((own.isnan() | ~x.isnan()).all())
        assert bool((own.isfinite() | ~other.isfinite()).all()), "a contribution would be lost that torch keeps"
        assert not bool(own[x == -torch.inf].isfinite().any()) and not bool(own[x == torch.inf].isfinite().any())


@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
@pytest.mark.parametrize("form", FORMS)
def test_an_entry_has_the_same_bits_in_any_company_and_on_any_threads(
    form: str, threads: int, only_kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any place, so also behind the last whole block, and with what is no number beside it."""
    x, grad = torch.linspace(-9.0, 9.0, 30_011), torch.linspace(-3.0, 5.0, 30_011).roll(7)
    whole = both(x, grad, form)
    for cut in (1, 5, 13, 31, 4096):
        shifted = both(x[cut:].clone(), grad[cut:].clone(), form)
        placed = both(torch.cat([torch.full((cut,), torch.nan), x])[cut:], grad, form)
        for own, other, third in zip(whole, shifted, placed, strict=True):
            assert torch.equal(own[cut:], other) and torch.equal(own, third)
    x[1000:1100], grad[2000] = torch.nan, torch.inf
    for own, other in zip(whole, both(x, grad, form), strict=True):
        assert torch.equal(own[1100:2000], other[1100:2000]) and torch.equal(own[2001:], other[2001:])
    monkeypatch.setattr(activations, "LEAST", 1)
    for own, other in zip(whole, both(x[29_000:29_003].clone(), grad[29_000:29_003].clone(), form), strict=True):
        assert torch.equal(own[29_000:29_003], other)


@pytest.mark.parametrize("count", ENTRIES)
@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_written_beside_what_was_asked_for(count: int, form: str) -> None:
    x, out = torch.ones(count), torch.full((count + 64,), 7.0)
    inside = out[32 : 32 + count]
    activations._run(activations.library().dptrain_gelu, [x], form, inside)
    assert bool((out[:32] == 7.0).all()) and bool((out[-32:] == 7.0).all()) and bool((inside != 7.0).all())


def test_what_the_kernel_does_not_serve_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "_run", lambda *given: pytest.fail("the kernel was asked"))
    plain = torch.randn(64, 96)
    own = type("Own", (torch.Tensor,), {})
    for x in (plain.t(), plain[:, ::2], plain[:40, :100][:, :95], plain.double(), plain.bfloat16(), plain[:42], plain[:0],
              plain.as_subclass(own), plain[:1].expand(64, 96)):  # fmt: skip
        found = both(x, torch.ones_like(x), "none")
        assert found[0].shape == x.shape and torch.equal(found[0], torch.nn.functional.gelu(x))
    with matmul.using("torch"):
        both(plain, plain, "tanh")
    assert torch.equal(activations.gelu_back(plain.t().contiguous().t(), plain), torch.ops.aten.gelu_backward(plain, plain))
    wide = torch.zeros(64, 96, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        activations.gelu_back(plain, plain, approximate="other")
    activations.gelu_back(wide, wide)


def test_results_lie_as_torchs_do(only_kernel: None) -> None:
    for shape in ((2, 1, 64, 64), (1, 8192), (8192, 1), (4096,), (2, 3, 4, 256)):
        x = torch.randn(shape)
        assert activations.gelu(x).stride() == x.stride() and activations.gelu(x).shape == x.shape


def test_memory_is_of_float32_whatever_the_default_type() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert activations.works(activations.library())
    finally:
        torch.set_default_dtype(torch.float32)


# ------------------------------------------------------------------------------------------------------ held to torch's own

@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "holding", matmul.Holding())


@pytest.mark.parametrize("form", FORMS)
def test_a_right_kernel_is_refused_for_no_numbers(form: str, probe: None) -> None:
    x = floats()
    for grad in (x.flip(0), torch.full_like(x, 1e-41), torch.zeros_like(x), torch.full_like(x, -1e30)):
        both(x, grad, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", [0, 4095, -1])
@pytest.mark.parametrize("which", ["dptrain_gelu", "dptrain_gelu_backward"])
@pytest.mark.parametrize("wrong", [1e-4, torch.nan, torch.inf])
def test_one_entry_that_is_wrong_is_found(
    form: str, place: int, which: str, wrong: float, probe: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = activations._run

    def spoiled(run: Any, given: list[torch.Tensor], form: str, out: torch.Tensor) -> None:
        own(run, given, form, out)
        if run.__name__ == which:
            out[place] += wrong

    monkeypatch.setattr(activations, "_run", spoiled)
    x = torch.linspace(-2.0, 3.0, (1 << 12) + 5)
    with pytest.raises(UnsupportedModule) as refused:
        both(x, torch.ones_like(x), form)
    assert refused.value.code == "KERNEL_WRONG" and "GELU" in refused.value.sentence


class Wrong:
    """A library of which one entry is off, wherever x is a certain number, or all is right but NaN."""

    def __init__(self, name: str, spoil: Callable[[torch.Tensor], None]) -> None:
        self._name, self._spoil = name, spoil

    def __getattr__(self, name: str) -> Any:
        run = getattr(activations.library(), name)

        def spoiled(*given: Any) -> None:
            run(*given)
            count = given[-3]
            out = torch.frombuffer((activations.ctypes.c_float * count).from_address(given[-1]), dtype=torch.float32)
            self._spoil(out)

        return spoiled if name == self._name else run


def shift(out: torch.Tensor) -> None:
    out[-1] += 1e-4


def hide(out: torch.Tensor) -> None:
    out.nan_to_num_(0.0)


@pytest.mark.parametrize("spoil", [shift, hide])
@pytest.mark.parametrize("name", ["dptrain_gelu", "dptrain_gelu_backward"])
def test_a_library_that_computes_something_else_is_not_used(name: str, spoil: Callable[[torch.Tensor], None]) -> None:
    assert not activations.works(Wrong(name, spoil))
