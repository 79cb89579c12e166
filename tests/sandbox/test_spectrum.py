"""Masks of SpecAugment in a private microbatch: drawn by row, distributed as the library's, and the library's own outside."""

import copy
import functools
import pickle
from types import FunctionType, SimpleNamespace

import numpy
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402
from transformers import Wav2Vec2Config, Wav2Vec2Model  # noqa: E402
from transformers.models.wav2vec2 import modeling_wav2vec2 as library  # noqa: E402

from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.sandbox import Sandbox  # noqa: E402
from dptrain.sandbox.library import spectrum  # noqa: E402
from tests.sandbox.scene import SEED, Scene, names  # noqa: E402
from tests.zoo.family import LIBRARY  # noqa: E402
from tests.zoo.judge import judge  # noqa: E402

LENGTH, SPAN = 12, 3


class Masks(nn.Module):
    """Shows which places a model of sound masks: hidden states are zero, and what stands for a masked one is one."""

    def __init__(self, **config) -> None:
        super().__init__()
        options = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
                   "conv_dim": [8], "conv_kernel": [2], "conv_stride": [2], "num_feat_extract_layers": 1,
                   "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
                   "mask_time_prob": 0.4, "mask_time_length": SPAN, "mask_time_min_masks": 0} | config  # fmt: skip
        self.sound = Wav2Vec2Model(Wav2Vec2Config(**options))
        nn.init.ones_(self.sound.masked_spec_embed)
        self.config = self.sound.config

    def forward(self, lengths: torch.Tensor, *, width: int = LENGTH, left: bool = False, told: bool = True) -> torch.Tensor:
        kept = torch.arange(width) < lengths[:, None]
        hidden = torch.zeros(len(lengths), width, self.config.hidden_size)
        return self.sound._mask_hidden_states(hidden, attention_mask=kept.flip(1) if left else kept if told else None)[..., 0]


LENGTHS = torch.tensor([12, 12, 7, 12, 3, 2])


def test_a_row_has_the_same_mask_whoever_else_is_there() -> None:
    scene = Scene(Masks().train(), LENGTHS)
    together = scene.run(range(6))
    for row in range(6):
        assert torch.equal(scene.run([row])[0], together[row])
        assert torch.equal(scene.run([5 - row, row])[1], together[row])


def test_masks_are_others_in_another_step_and_for_another_row() -> None:
    scene = Scene(Masks().train(), torch.full((16,), LENGTH))
    first, second = scene.run(range(16)), scene.run(range(16), step=2)
    assert not torch.equal(first, second)
    assert len({tuple(row.tolist()) for row in first}) > 4


def test_masks_follow_from_a_rows_own_length_alone() -> None:
    scene = Scene(Masks().train(), torch.full((6,), LENGTH))
    others = torch.tensor([LENGTH, 5, 5, 7, 4, 12])
    masked = 0
    for step in range(1, 6):
        before, after = (scene.run(range(6), step=step, data=[lengths]) for lengths in (scene.data[0], others))
        for row in (0, 5):
            assert torch.equal(before[row], after[row])
            masked += int(before[row].sum())
    assert masked


class Padded:
    """Masks as a scene runs them, in microbatches of a width that is set."""

    def __init__(self, width: int, **config) -> None:
        self.form = {"width": width}
        self.scene = Scene(Masks(**config).train(), torch.full((4,), LENGTH), lambda model, rows: model(rows, **self.form))

    def run(self, step: int, lengths: list[int], **form) -> torch.Tensor:
        self.form = form
        return self.scene.run(range(len(lengths)), step=step, data=[torch.tensor(lengths)])


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("span", "share"), [(8, 0.05), (SPAN, 0.6), (1, 0.5)])
@pytest.mark.parametrize("left", [False, True])
def test_a_rows_mask_lies_on_its_own_frames_whatever_padding_is_around(left: bool, span: int, share: float) -> None:
    padded = Padded(2 * LENGTH, mask_time_min_masks=2, mask_time_length=span, mask_time_prob=share)
    lengths, masked = [LENGTH, 9, 1], 0
    for step in range(1, 20):
        found = [padded.run(step, lengths, width=width, left=left) for width in (LENGTH, LENGTH + 3, 2 * LENGTH)]
        for row, length in enumerate(lengths):
            own = [each[row, -length:] if left else each[row, :length] for each in found]
            assert torch.equal(own[0], own[1]) and torch.equal(own[0], own[2])
            assert found[2][row].sum() == own[2].sum(), "nothing is masked but frames of the row"
            masked += int(own[0].sum())
    assert masked


def test_a_microbatch_too_narrow_for_a_span_masks_nothing_and_goes_on() -> None:
    """An error would tell how long the rows are. In the probes it is one."""
    padded = Padded(2 * LENGTH, mask_time_length=8)
    assert not padded.run(1, [5, 5], width=5).any()
    with pytest.raises(ValueError, match="expected 1 to 5"):
        Padded(5, mask_time_length=8)


def test_numbers_that_are_equal_are_taken_in_order_of_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (torch.rand(8, 400) * 4).floor() / 4
    monkeypatch.setattr(torch, "rand", lambda rows, size, **options: numbers[:rows, :size])
    lengths = torch.full((8,), 40)
    narrow, wide = (spectrum.spans(lengths, size, 0.5, 2, 0) for size in (40, 399))
    assert narrow.any() and torch.equal(narrow, wide[:, :40])


def test_without_an_attention_mask_only_the_width_of_the_probes_is_taken() -> None:
    padded = Padded(2 * LENGTH)
    padded.form = {"width": LENGTH, "told": False}
    for rows in (3, 2):
        padded.scene.run(range(rows), learning=True, length=7)
    padded.scene.sandbox.layouts.decide()
    assert padded.scene.run(range(4), length=7).any()
    for width in (LENGTH - 1, LENGTH + 1):
        padded.form["width"] = width
        with pytest.raises(UnsupportedModule, match=rf"UNSEEN_WIDTH.*'sound' .* rows of {width} frames .* 12 at the start"):
            padded.scene.run(range(4), length=7)
        with pytest.raises(UnsupportedModule, match="UNSEEN_WIDTH"):
            padded.scene.run(range(4), length=7, probing=True)
    padded.form["width"] = LENGTH
    with pytest.raises(UnsupportedModule, match=r"UNSEEN_WIDTH.* none at the start"):
        padded.scene.run(range(4))  # rows of another public length, for which every row had its attention mask
    padded.scene.model.config.apply_spec_augment = False
    assert not padded.scene.run(range(4)).any()


def test_a_row_that_is_alone_in_every_microbatch_is_as_wide_as_it_is() -> None:
    model = Masks(mask_time_min_masks=1).train()
    sandbox = Sandbox(model, frozenset(), SEED)
    for width in (LENGTH, LENGTH - 3):
        with sandbox.enter(1, names([0])):
            assert model(torch.tensor([width]), width=width, told=False).any()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("length", "least"), [(12, 0), (12, 2), (7, 0), (4, 2), (2, 2)])
def test_masks_are_distributed_as_the_librarys(length: int, least: int) -> None:
    """Two samples of 3,000 rows each. Of a pair of equal frequencies one in 1e9 is more than 6.2 deviations apart."""
    count, share = 3_000, 0.4
    numpy.random.seed(3)
    kept = torch.arange(LENGTH).expand(count, -1) < length
    # One row at a time, since the library rounds the number of spans once for all rows, and lets padding raise it. Rows shorter
    # than a span it takes only beside a longer one.
    width = max(length, SPAN)
    shape, beside = (2, width), torch.stack([kept[0], kept[0] | True])[:, :width]
    rows = [numpy.pad(library._compute_mask_indices(shape, share, SPAN, beside, least)[0], (0, LENGTH - width))
            for _ in range(count)]  # fmt: skip
    theirs = torch.as_tensor(numpy.array(rows))
    torch.manual_seed(3)
    ours = spectrum.spans(torch.full((count,), length), LENGTH, share, SPAN, least)
    theirs[:, length:] = False  # padding, of which the library marks the end where a row has no span of its own
    assert torch.equal(ours.any(0), theirs.any(0))
    for seen, expected in ((ours, theirs), (_hot(ours.sum(1)), _hot(theirs.sum(1))), (_pairs(ours), _pairs(theirs))):
        a, b = seen.double().mean(0), expected.double().mean(0)
        spread = (a * (1 - a) + b * (1 - b)).clamp_min(1e-3) / count
        assert float(((a - b).abs() / spread.sqrt()).max()) < 6.2


def _hot(numbers: torch.Tensor) -> torch.Tensor:
    return nn.functional.one_hot(numbers, LENGTH + 1)


def _pairs(mask: torch.Tensor) -> torch.Tensor:
    return (mask[:, :, None] & mask[:, None, :]).flatten(1)


@pytest.mark.parametrize("given", [False, True])
def test_hidden_states_are_masked_as_the_library_does(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Masks(mask_feature_prob=0.5, mask_feature_length=2).sound.train()
    mask = torch.rand(4, LENGTH) < 0.5
    hidden, kept = torch.randn(4, LENGTH, 8), torch.ones(4, LENGTH)
    features = torch.rand(4, 8) < 0.5

    def drawn(shape, *args, **kwargs):
        return (mask if shape[1] == LENGTH else features).numpy()

    monkeypatch.setattr(library, "_compute_mask_indices", drawn)
    monkeypatch.setattr(spectrum, "spans", lambda lengths, size, *rest: mask if size == LENGTH else features)
    options = {"mask_time_indices": mask} if given else {"attention_mask": kept}
    expected = Wav2Vec2Model._mask_hidden_states(model, hidden.clone(), **options)
    assert torch.equal(spectrum.masked(model, hidden, **options), expected)
    assert torch.equal(spectrum.masked(model.eval(), hidden), hidden)


def test_outside_a_microbatch_the_library_draws_and_nothing_stays_on_the_model() -> None:
    model = Masks().train()
    scene = Scene(model, LENGTHS)
    before = dict(vars(model.sound))
    state = numpy.random.get_state()[2]
    scene.run(range(6))
    assert numpy.random.get_state()[2] == state, "a microbatch draws nothing from numpy"
    with pytest.raises(ZeroDivisionError), scene.sandbox.enter(1, names(range(2))):
        raise ZeroDivisionError
    assert vars(model.sound).keys() == before.keys()
    model(LENGTHS)
    assert numpy.random.get_state()[2] != state


def test_code_that_is_not_known_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Wav2Vec2Model._mask_hidden_states

    def of_another_version(self, *args, **kwargs):
        return own(self, *args, **kwargs)

    monkeypatch.setattr(Wav2Vec2Model, "_mask_hidden_states", of_another_version)
    model = Masks()
    with Sandbox(model, frozenset(), SEED).enter(1, names(range(2)), learning=True):
        assert "_mask_hidden_states" not in vars(model.sound)
    found = judge("wav2vec 2.0 CTC", LIBRARY)
    assert found.verdict == "DROPOUT_IN_FALLBACK"
    assert "apply_spec_augment=False" in found.sentence


@pytest.mark.parametrize("name", list(spectrum._DIGESTS))
def test_code_of_another_version_is_left_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spectrum.Spectrum(Masks())._modules
    monkeypatch.setitem(spectrum._DIGESTS, name, "0" * 64)
    assert not spectrum.Spectrum(Masks())._modules


def test_another_way_to_draw_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_compute_mask_indices", lambda *args, **kwargs: None)
    assert not spectrum.Spectrum(Masks())._modules


def patched(function: FunctionType) -> FunctionType:
    def mine(*args, **kwargs):
        return function(*args, **kwargs)

    return functools.update_wrapper(mine, function)


def rebuilt(function: FunctionType, **code) -> FunctionType:
    """The function with another piece of code in it, and all that it says of itself."""
    made = FunctionType(function.__code__.replace(**code), function.__globals__, function.__name__, function.__defaults__)
    return functools.update_wrapper(made, function)


def in_other_globals(function: FunctionType) -> FunctionType:
    return FunctionType(function.__code__, dict(function.__globals__), function.__name__, function.__defaults__)


def with_other_defaults(function: FunctionType) -> FunctionType:
    return FunctionType(function.__code__, function.__globals__, function.__name__, (None, 2))


def with_other_constants(function: FunctionType) -> FunctionType:
    return rebuilt(function, co_consts=tuple(2 if value == 1 else value for value in function.__code__.co_consts))


def with_other_names(function: FunctionType) -> FunctionType:
    return rebuilt(function, co_names=tuple("ones" if name == "zeros" else name for name in function.__code__.co_names))


@pytest.mark.parametrize("change", [patched, in_other_globals, with_other_defaults])
def test_a_method_that_says_it_is_the_librarys_is_left_as_it_is(change, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wav2Vec2Model, "_mask_hidden_states", change(Wav2Vec2Model._mask_hidden_states))
    assert not spectrum.Spectrum(Masks())._modules


@pytest.mark.parametrize(
    "change", [patched, in_other_globals, with_other_defaults, with_other_constants, with_other_names]
)
def test_a_way_to_draw_that_says_it_is_the_librarys_is_left_as_it_is(change, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_compute_mask_indices", change(library._compute_mask_indices))
    assert not spectrum.Spectrum(Masks())._modules


def pickled(module: nn.Module) -> nn.Module:
    module.encoder = nn.Identity()  # the library's has a weight that torch does not pickle
    found: nn.Module = pickle.loads(pickle.dumps(module))
    return found


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_that_is_made_in_a_microbatch_masks_as_the_library_does(made) -> None:
    model = Masks().train()
    before = vars(model.sound).keys()
    with Sandbox(model, frozenset(), SEED).enter(1, names(range(2)), learning=True):
        copied = made(model.sound)
    assert vars(copied).keys() == before == vars(model.sound).keys()
    state = numpy.random.get_state()[2]
    copied._mask_hidden_states(torch.zeros(2, LENGTH, 8))
    assert numpy.random.get_state()[2] != state, "the library draws"


def test_a_pass_that_was_left_and_ends_late_takes_nothing_from_the_pass_under_way() -> None:
    scene = Scene(Masks().train(), torch.full((6,), LENGTH))
    expected = scene.run(range(4), step=2)
    left = scene.sandbox.enter(1, names(range(4)))
    left.__enter__()
    scene.sandbox.abandon()
    with scene.sandbox.enter(2, names(range(4))):
        left.gen.close()
        assert torch.equal(scene.model(scene.data[0][:4]), expected)


def test_spans_that_fit_in_no_row_are_refused() -> None:
    model, hidden = Masks(mask_feature_prob=0.5, mask_feature_length=9).sound.train(), torch.ones(1, LENGTH, 8)
    with pytest.raises(ValueError, match="expected 1 to 8"):
        spectrum.masked(model, hidden.clone())
    for span in (0, LENGTH + 1):
        model.config.mask_time_length = span
        with pytest.raises(ValueError, match="expected 1 to 12"):
            spectrum.masked(model, hidden.clone())
    plain = SimpleNamespace(config=SimpleNamespace(apply_spec_augment=False))
    hidden = torch.ones(1, 2, 3)
    assert spectrum.masked(plain, hidden) is hidden
