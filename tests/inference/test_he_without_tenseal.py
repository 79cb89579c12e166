"""Encrypted adapters without TenSEAL: the error names the extra, packing is right in numpy, and the stand-in is marked."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable

import numpy as np
import pytest

from dptrain.errors import ConfigError
from dptrain.inference.he import insecure, packing, server, wire
from dptrain.inference.he.adapter import Adapter
from dptrain.inference.he.client import HEKeys
from dptrain.inference.he.scheme import GAIN, SLOTS, WIDTHS, EncryptionRefused, context, copies, levels, rotations, sealapi
from dptrain.inference.he.server import AdapterServer

RNG = np.random.default_rng(5)


def pair(m: int, n: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.normal(size=(r, n)) / n**0.5, RNG.normal(size=(m, r)) / r**0.5


def turned_sum(vector: np.ndarray, diagonals: list[np.ndarray], stride: int, width: int) -> np.ndarray:
    """Does in the clear what the server does under encryption, and turns by powers of two alone."""
    baby = packing.baby_steps(len(diagonals))
    assert {stride} <= set(rotations(width)) or baby == 1
    assert {stride * baby} <= set(rotations(width)) or baby == len(diagonals)
    total = np.zeros(SLOTS)
    for start in range(len(diagonals) - baby, -1, -baby):
        total = np.roll(total, -baby * stride)
        for steps, diagonal in enumerate(diagonals[start : start + baby]):
            total = total + np.roll(vector, -steps * stride) * diagonal
    return total


@pytest.mark.parametrize(
    ("blocked", "needs"),
    [("tenseal", AdapterServer), ("tenseal", HEKeys.generate), ("zstandard", lambda: wire._inflated(b"", 1, "code", "what"))],
    ids=["server", "client", "unpacking"],
)
def test_without_a_library_of_the_extra_the_error_is_typed_and_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, blocked: str, needs: Callable[[], object]
) -> None:
    """All modules are imported by then: they need neither library before it is used."""
    monkeypatch.setitem(sys.modules, blocked, None)
    for made in (sealapi, context, levels):
        made.cache_clear()
    with pytest.raises(ConfigError) as refused:
        needs()
    assert refused.value.code == f"NO_{blocked.upper()}"
    assert refused.value.sentence.endswith("run: pip install 'dptrain[he]'")


ROOMS = ("server", "wire", "scheme", "packing", "adapter", "sessions")


def test_no_name_that_decrypts_or_holds_a_secret_can_be_imported_from_the_server() -> None:
    """By import, through every room that it takes names from, and by source."""
    names = vars(server).values()
    came_from = {each.__name__ if inspect.ismodule(each) else str(getattr(each, "__module__", "")) for each in names}
    reached = {each for each in came_from if each.startswith("dptrain")}
    assert len(reached) > 4 and {each.rpartition(".")[2] for each in reached} <= set(ROOMS)
    for room in ROOMS:
        module = importlib.import_module(f"dptrain.inference.he.{room}")
        assert not [name for name in dir(module) if re.search("decrypt|keygen|secret_key|SecretKey|HEKeys", name, re.I)]
        assert not any(name in ("client", "HEKeys") for name in dir(module))
        source = inspect.getsource(module)
        code = re.sub(r'""".*?"""|"[^"\n]*"|#[^\n]*', "", source, flags=re.S)  # sentences may speak of it
        assert not re.search(r"decrypt|\bDecryptor|KeyGenerator|SecretKey|\.client\b", code, re.I), room
    assert not [name for name in dir(AdapterServer) if re.search("decrypt|secret", name, re.I)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rank", [1, 2, 4, 8, 16, 32, 64])
def test_sums_of_turned_diagonals_are_the_product_for_every_rank_and_width(width: int, rank: int) -> None:
    a_RP, b_PR, h = RNG.normal(size=(rank, width)), RNG.normal(size=(width, rank)), RNG.normal(size=width)
    inward = list(packing.inward(a_RP))
    assert len(inward) == max(1, rank // copies(width))
    z = turned_sum(packing.repeated(h, width), inward, copies(width), width)
    for steps in packing.folds(rank, width):
        assert steps in rotations(width)
        z = z + np.roll(z, -steps)
    assert np.allclose(z, np.tile(a_RP @ h, SLOTS // rank))
    assert np.allclose(turned_sum(z, list(packing.outward(b_PR)), 1, width), np.tile(b_PR @ a_RP @ h, SLOTS // width))


@pytest.mark.parametrize("lopsided", [1e-6, 1.0, 1e6])
def test_balanced_factors_have_the_same_product_and_lengths_that_do_not_hang_on_the_pair(lopsided: float) -> None:
    A, B = pair(40, 70, 3)
    A[1] = 0
    adapter = Adapter(A * lopsided, B / lopsided, 0.5)
    inner, outer = adapter.balanced
    assert inner.shape == (4, 70) and outer.shape == (40, 4)
    assert np.allclose(outer @ inner, 0.5 * B @ A, rtol=1e-12)
    lengths = np.linalg.norm(inner, axis=1)[[0, 2]] / np.linalg.norm(outer, axis=0)[[0, 2]]
    assert ((lengths > 7.9) & (lengths < 32.1)).all()  # 16, and half a power of two on each side


def test_the_gain_bounds_every_entry_of_every_answer() -> None:
    A, B = pair(40, 70, 8)
    adapter = Adapter(A, B, -2.0)
    rows = 2.0 * np.linalg.norm(B @ A, axis=1)  # the largest entry over states of length one
    assert rows.max() <= adapter.gain <= GAIN


def test_adapters_that_cannot_be_served_are_refused_by_name() -> None:
    A, B = pair(40, 70, 8)
    for code, factors in {
        "ADAPTER_SHAPE": (A, B[:, :4], 1.0),
        "ADAPTER_ZERO": (A, np.zeros_like(B), 1.0),
        "ADAPTER_NOT_FINITE": (A, B, float("nan")),
        "ADAPTER_GAIN": (A, B, 1e3),
    }.items():
        with pytest.raises(ConfigError) as refused:
            Adapter(*factors)
        assert refused.value.code == code
    for shape in ((40, 2049, 8), (2049, 40, 8), (80, 80, 65)):
        with pytest.raises(ConfigError, match="ADAPTER_SHAPE"):
            Adapter(*pair(*shape), 0.01)


@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_of_peft_gives_what_the_layer_adds(rslora: bool) -> None:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    model = torch.nn.Sequential(torch.nn.Linear(48, 32, bias=False))
    made = peft.get_peft_model(model, peft.LoraConfig(r=6, lora_alpha=9, target_modules=["0"], use_rslora=rslora))
    layer = made.base_model.model[0]
    torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.05)
    adapter = Adapter.of_layer(layer)
    assert adapter.scaling == pytest.approx(9 / (6**0.5 if rslora else 6))
    h = torch.randn(48)
    added = (layer(h) - layer.base_layer(h)).detach().numpy()
    inner, outer = adapter.balanced
    assert np.allclose(outer @ (inner @ h.numpy()), added, atol=1e-6)


def test_an_adapter_of_peft_that_is_more_than_a_pair_is_refused() -> None:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    model = torch.nn.Sequential(torch.nn.Linear(48, 32, bias=False))
    made = peft.get_peft_model(model, peft.LoraConfig(r=6, target_modules=["0"], use_dora=True))
    with pytest.raises(ConfigError, match="DoRA"):
        Adapter.of_layer(made.base_model.model[0])
    with pytest.raises(ConfigError, match="no LoRA pair named 'other'"):
        Adapter.of_layer(made.base_model.model[0], "other")


def test_the_stand_in_has_the_interface_says_that_it_is_insecure_and_warns() -> None:
    with pytest.warns(insecure.InsecureWarning):
        keys = insecure.InsecureKeys.generate()
    with pytest.warns(insecure.InsecureWarning):
        false = insecure.InsecureServer(sessions=1)
    adapter = Adapter(*pair(40, 70, 8), 0.5)
    h = RNG.normal(size=70)
    false.register_keys("s", keys.public)
    sent = keys.encrypt(h)
    assert sent.startswith(b"insecure-test-only\n") and keys.public.startswith(b"insecure-test-only\n")
    assert false.insecure_test_only and keys.insecure_test_only
    assert np.allclose(keys.decrypt(false.apply("s", adapter, sent)), 0.5 * adapter.B @ adapter.A @ h, rtol=1e-12)
    for code, wrong in {
        "STATE_IN_CLEAR": lambda: false.apply("s", adapter, h),
        "NO_KEYS": lambda: false.apply("t", adapter, sent),
        "SESSION_TAKEN": lambda: false.register_keys("s", keys.public),
        "SESSIONS_FULL": lambda: false.register_keys("t", keys.public),
        "WRONG_LENGTH": lambda: false.apply("s", adapter, keys.encrypt(h[:5])),
        "NOT_A_CIPHERTEXT": lambda: false.apply("s", adapter, b"dptrain"),
    }.items():
        with pytest.raises(EncryptionRefused) as refused:
            wrong()
        assert refused.value.code == code
