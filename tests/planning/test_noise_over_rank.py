"""Noise over rank: what designs put on products of LoRA pairs, from shapes and from adapters that peft saved."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dptrain.errors import ConfigError
from dptrain.geometry.energy import DESIGNS
from dptrain.geometry.over_rank import RANKS, noise_over_rank, sentences_of
from dptrain.geometry.shapes import FILE, Shape, parse_shapes, read_adapter
from dptrain.planning.picture import ASCII, UNICODE, rank_picture
from dptrain.planning.scaling import MODELS, RANK


def drawn(pairs: list[tuple[np.ndarray, np.ndarray]], std: float, draws: int = 2000) -> dict[str, float]:
    """Returns the root of the mean square of noise on all products, by draws of it and dense matrices."""
    generator = np.random.default_rng(0)
    found = dict.fromkeys(DESIGNS, 0.0)
    for A, B in pairs:
        (m, r), n = A.shape, B.shape[0]
        left, right = (np.linalg.qr(factor)[0] for factor in (A, B))
        off_left, off_right = np.eye(m) - left @ left.T, np.eye(n) - right @ right.T
        for _ in range(draws):
            xA, xB = generator.normal(0, std, (m, r)), generator.normal(0, std, (n, r))
            dense = generator.normal(0, std, (m, n))
            onto = dense - off_left @ dense @ off_right
            for design, noise in (("factors", xA @ B.T + A @ xB.T), ("frozen", xA @ B.T), ("tangent", onto)):
                found[design] += float((noise**2).sum()) / draws
    return {design: energy**0.5 for design, energy in found.items()}


def test_figures_at_the_own_rank_are_those_of_draws():
    """Standard errors are below 0.5 %; sides and norms are unequal, so that no factor can stand for the other."""
    generator = np.random.default_rng(1)
    pairs = [(0.5 * generator.normal(size=(m, 2)), 2 * generator.normal(size=(n, 2))) for m, n in ((7, 3), (4, 9))]
    shapes = [Shape(*(len(A), len(B)), 1, 2, float((A**2).sum()), float((B**2).sum()), 0.3) for A, B in pairs]
    found = noise_over_rank(shapes)
    expected = drawn(pairs, 0.3)
    assert found.own is not None and found.own.rank == 2 and not found.relative
    for design in DESIGNS:
        assert getattr(found.own.noise, design) == pytest.approx(expected[design], rel=0.02)


def test_orthonormal_columns_stand_for_factors_that_nobody_knows():
    A, B = (np.linalg.qr(np.random.default_rng(2).normal(size=(rows, 4)))[0] for rows in (9, 6))
    found = noise_over_rank([Shape(9, 6)])
    expected = drawn([(A, B)], 1.0)
    (at,) = (one for one in found.at if one.rank == 4)
    assert [one.rank for one in found.at] == [1, 2, 4] and found.relative and not found.known
    assert found.own is found.orthonormal is found.energy is None
    for design in DESIGNS:
        assert getattr(at.noise, design) == pytest.approx(expected[design], rel=0.02)


def test_squares_add_up_over_pairs_and_each_counts_with_its_own_noise():
    one, other = Shape(8, 5, 3, 2, 1.0, 2.0, 0.5), Shape(6, 6, 1, 2, 3.0, 1.0, 0.25)
    alone = [noise_over_rank([shape]).own for shape in (replace(one, count=1), other)]
    both = noise_over_rank([one, other])
    assert both.own is not None and both.pairs == 4 and None not in alone
    for design in DESIGNS:
        parts = [getattr(at.noise, design) ** 2 for at in alone if at is not None]
        assert getattr(both.own.noise, design) ** 2 == pytest.approx(3 * parts[0] + parts[1])
    unknown = noise_over_rank([one, replace(other, std=None)])
    assert unknown.relative
    public = noise_over_rank([one, replace(other, std=0.0)])
    assert public.own is not None and public.own.noise.tangent == pytest.approx((3 * 0.25 * 2 * 11) ** 0.5)


def test_at_other_ranks_columns_are_as_long_as_now():
    found = noise_over_rank([Shape(64, 32, 1, 8, 4.0, 2.0, 1.0)])
    by_rank = {one.rank: one for one in found.at}
    assert list(by_rank) == [1, 2, 4, 8, 16, 32] and [one.own for one in found.at].count(True) == 1
    assert by_rank[32].noise.factors ** 2 == pytest.approx(4 * (64 * 2 + 32 * 4))
    assert by_rank[2].noise.frozen ** 2 == pytest.approx(64 * 2 / 4)
    assert by_rank[32].noise.tangent ** 2 == pytest.approx(32 * 64)


def test_a_rank_beside_the_picture_is_drawn_and_ranks_that_differ_are_drawn_as_own():
    assert [one.label for one in noise_over_rank([Shape(9, 9, 1, 5, 1.0, 1.0)]).at] == ["1", "2", "4", "5*", "8"]
    several = noise_over_rank([Shape(9, 9, 1, 5, 1.0, 1.0), Shape(9, 9, 1, 2, 1.0, 1.0)])
    assert several.own is not None and several.own.rank is None and several.own.label == "own*"
    assert several.own.noise.tangent ** 2 == pytest.approx(5 * 13 + 2 * 16) == pytest.approx(several.energy)
    assert several.coordinates == 7 * 18


def test_a_layer_of_a_smaller_side_has_no_more_directions_than_that():
    found = noise_over_rank([Shape(64, 64, 1, 8, 1.0, 1.0), Shape(3, 64, 1, 8, 1.0, 1.0)])
    assert found.energy == 8 * 120 + 3 * 64 and found.coordinates == 8 * 128 + 8 * 67
    assert max(one.rank or 0 for one in found.at) == RANKS[-1]


def test_of_nothing_there_is_no_picture():
    with pytest.raises(ValueError, match="no pair"):
        noise_over_rank([])


@pytest.mark.parametrize("glyphs", [ASCII, UNICODE])
def test_heights_are_shares_of_the_largest_noise_of_any_design(glyphs):
    found = noise_over_rank([Shape(9, 9, 1, 4, 0.5, 0.0, 1.0)])
    lines = ["".join(piece for piece, _ in line) for line in rank_picture(found, glyphs)]
    assert lines[0] == "rank      1 2 4* 8"
    most = found.at[-1].noise.tangent
    for line, design in zip(lines[1:], DESIGNS, strict=True):
        shares = [getattr(one.noise, design) / most for one in found.at]
        heights = [glyphs.levels[max(0, round(8 * share) - 1)] if share else glyphs.outside for share in shares]
        assert line.startswith(f"{design:7}  {glyphs.wall}{heights[0]} {heights[1]}  {heights[2]} {heights[3]}{glyphs.wall}")
    assert lines[2].split()[-4:] == ["0", "at", "rank", "4*"] and lines[3].endswith("7.483 at rank 4*")


def test_what_stands_for_the_factors_is_said_and_never_two_laws_at_once():
    unknown = " ".join(sentences_of(noise_over_rank(parse_shapes("8x8")), "factors"))
    known = " ".join(sentences_of(noise_over_rank([Shape(8, 8, 2, 2, 0.0, 1.0, 1.0)]), "tangent"))
    assert "count as orthonormal" in unknown and "the law by which peft begins" not in unknown and "tau:" in unknown
    assert "the law by which peft begins" in known and "count as orthonormal" not in known and "tau:" not in known
    assert "2 pairs have a factor of zero" in known and "projection leaves 56 of 64" in known
    assert "projection" not in unknown and "This policy: factors" in unknown and "This policy: tangent" in known


# --- shapes -----------------------------------------------------------------------------------------------------------------


def test_shapes_are_outputs_inputs_and_how_many():
    assert parse_shapes("11008x4096x64, 8x4") == (Shape(11008, 4096, 64), Shape(8, 4))


@pytest.mark.parametrize("text", ["", "8", "8x", "0x4", "8x4x0", "8x4x2x2", "8x4,", "-8x4", "8x4x99999999999", "8X4", "9" * 80])
def test_text_that_is_no_shape_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        parse_shapes(text)
    assert caught.value.code == "SHAPES" and "MxN" in caught.value.sentence


def test_a_known_model_with_adapters_has_pairs_and_others_have_none():
    pairs = MODELS["llama-8b-lora"].pairs
    assert sum(shape.count for shape in pairs) == 7 * 32 and {shape.rank for shape in pairs} == {RANK}
    assert sum(shape.count * RANK * (shape.m + shape.n) for shape in pairs) == MODELS["llama-8b-lora"].trained
    assert Shape(14336, 4096, 64, RANK) in pairs  # gate and up: outputs first
    assert MODELS["llama-8b"].pairs == ()


# --- adapters ---------------------------------------------------------------------------------------------------------------

NAMES = {"B": "base_model.model.layers.0.q.lora_B.weight", "A": "base_model.model.layers.0.q.lora_A.weight"}


def saved(folder: Path, tensors: dict[str, np.ndarray], *, change=None, cut: int = 0) -> Path:
    """Writes a safetensors file by hand; arrays of uint16 are bfloat16."""
    kinds = {"float64": "F64", "float32": "F32", "float16": "F16", "uint16": "BF16", "int32": "I32"}
    header, data = {}, b""
    for name, values in tensors.items():
        end = len(data) + values.nbytes
        header[name] = {"dtype": kinds[values.dtype.name], "shape": list(values.shape), "data_offsets": [len(data), end]}
        data += values.tobytes()
    if change is not None:
        change(header)
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_bytes((len(text).to_bytes(8, "little") + text + data)[: -cut or None])
    return folder


def pair(kind: str = "float32") -> dict[str, np.ndarray]:
    up, down = np.arange(12.0).reshape(6, 2), np.full((2, 4), 0.5)
    return {NAMES["B"]: up.astype(kind), NAMES["A"]: down.astype(kind)}


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_norms_of_a_saved_adapter_are_read_in_every_type(tmp_path, kind):
    tensors = pair("float32" if kind == "bfloat16" else kind)
    if kind == "bfloat16":
        tensors = {name: (values.view(np.uint32) >> 16).astype(np.uint16) for name, values in tensors.items()}
    assert read_adapter(saved(tmp_path, tensors)) == ((Shape(6, 4, 1, 2, 506.0, 2.0),), 0)


def test_what_is_no_pair_of_a_linear_layer_is_left_out_and_counted(tmp_path):
    plain = np.ones((2, 2), np.float32)
    more = {
        "m.dora.lora_A.weight": plain, "m.dora.lora_B.weight": plain, "m.dora.lora_magnitude_vector": plain,
        "m.conv.lora_A.weight": np.ones((2, 2, 3, 3), np.float32), "m.conv.lora_B.weight": np.ones((2, 2, 1, 1), np.float32),
        "m.table.lora_embedding_A": plain, "m.table.lora_embedding_B": plain, "m.alone.lora_A.weight": plain,
        "m.classifier.weight": plain, "m.q.lora_B.bias": plain,
    }  # fmt: skip
    shapes, left_out = read_adapter(saved(tmp_path, pair() | more))
    assert shapes == (Shape(6, 4, 1, 2, 506.0, 2.0),) and left_out == 8


@pytest.mark.parametrize(
    ("tensors", "settings", "told"),
    [
        (pair("int32"), {}, "I32"),
        (pair(), {"cut": 4}, "does not lie whole"),
        (pair(), {"change": lambda header: header[NAMES["A"]].update(shape=[2, 5])}, "does not lie whole"),
        (pair(), {"change": lambda header: header[NAMES["A"]].pop("dtype")}, "dtype"),
        ({name: np.full_like(values, np.inf) for name, values in pair().items()}, {}, "not finite"),
        ({"head.weight": np.ones((2, 2), np.float32)}, {}, "has no LoRA pair"),
    ],
)
def test_a_file_that_is_no_adapter_is_refused(tmp_path, tensors, settings, told):
    with pytest.raises(ConfigError) as caught:
        read_adapter(saved(tmp_path, tensors, **settings))
    assert caught.value.code == "ADAPTER" and told in caught.value.sentence


@pytest.mark.parametrize("data", [None, b"", b"\xff" * 40, b"\x04" + bytes(7) + b"[1] ", b"\x09" + bytes(7) + b"{"])
def test_a_file_that_is_not_there_or_of_another_form_is_refused(tmp_path, data):
    if data is not None:
        (tmp_path / FILE).write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_adapter(tmp_path)
    assert caught.value.code == "ADAPTER" and "save_pretrained of peft" in caught.value.sentence


def test_an_adapter_that_peft_saved_has_the_pairs_of_the_model_and_follows_the_law_of_its_beginning(tmp_path):
    """At another rank than the one that was made, |B| is within 5 % of what peft draws there."""
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    from dptrain.geometry.pairs import find_pairs

    found = {}
    for rank in (8, 32):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(96, 48), torch.nn.Linear(48, 64))
        model = peft.get_peft_model(net, peft.LoraConfig(r=rank, target_modules=["0", "1"]))
        model.save_pretrained(tmp_path / str(rank))
        shapes, left_out = read_adapter(tmp_path / str(rank))
        assert left_out == 0
        for one, own in zip(shapes, find_pairs(model), strict=True):
            assert (one.m, one.n, one.rank, one.A_sq) == (*own.shape, 0.0)
            assert one.B_sq == pytest.approx(float(own.Bt.detach().double().square().sum()))
        found[rank] = noise_over_rank(shapes)
    (told,) = (one for one in found[8].at if one.rank == 32)
    assert found[32].own is not None and found[32].zero == 2
    assert told.noise.frozen == pytest.approx(found[32].own.noise.frozen, rel=0.05)
