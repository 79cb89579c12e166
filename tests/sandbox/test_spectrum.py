"""Masks of SpecAugment in a private microbatch: drawn by row, distributed as the library's, and the library's own outside."""

from types import SimpleNamespace

import numpy
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402
from transformers import Wav2Vec2Config, Wav2Vec2Model  # noqa: E402
from transformers.models.wav2vec2 import modeling_wav2vec2 as library  # noqa: E402

from dptrain.sandbox import Sandbox, spectrum  # noqa: E402
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

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        kept = torch.arange(LENGTH) < lengths[:, None]
        hidden = torch.zeros(len(lengths), LENGTH, self.config.hidden_size)
        return self.sound._mask_hidden_states(hidden, attention_mask=kept)[..., 0]


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


@pytest.mark.parametrize(("length", "least"), [(12, 0), (12, 2), (7, 0), (4, 2), (2, 2)])
def test_masks_are_distributed_as_the_librarys(length: int, least: int) -> None:
    """Two samples of 3,000 rows each. Of a pair of equal frequencies one in 1e9 is more than 6.2 deviations apart."""
    count, share = 3_000, 0.4
    numpy.random.seed(3)
    kept = torch.arange(LENGTH).expand(count, -1) < length
    # One row at a time, since the library rounds the number of spans once for all rows; beside a full row, as in a batch.
    rows = [library._compute_mask_indices((2, LENGTH), share, SPAN, torch.stack([kept[0], kept[0] | True]), least)[0]
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


def test_another_way_to_draw_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_compute_mask_indices", lambda *args, **kwargs: None)
    assert not spectrum.Spectrum(Masks())._modules


def test_spans_that_fit_in_no_row_are_refused() -> None:
    for span in (0, LENGTH + 1):
        with pytest.raises(ValueError, match="expected 1 to 12"):
            spectrum.spans(torch.tensor([LENGTH]), LENGTH, 0.5, span, 1)
    plain = SimpleNamespace(config=SimpleNamespace(apply_spec_augment=False))
    hidden = torch.ones(1, 2, 3)
    assert spectrum.masked(plain, hidden) is hidden
