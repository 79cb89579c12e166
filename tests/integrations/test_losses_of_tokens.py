"""Losses of language models read logits where they lie, and pair no example with the labels of another."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch.nn.functional import cross_entropy  # noqa: E402

from dptrain.errors import ConfigError  # noqa: E402
from dptrain.integrations.losses import IGNORED, next_of, of_tokens  # noqa: E402


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_shifted_labels_give_the_losses_of_cut_logits(smoothing: float) -> None:
    logits = torch.randn(3, 6, 11, requires_grad=True)
    labels = torch.randint(11, (3, 6))
    labels[1, 4:] = IGNORED
    how = {"reduction": "none", "ignore_index": IGNORED, "label_smoothing": smoothing}
    each = cross_entropy(logits[:, :-1].mT, labels[:, 1:], **how)
    expected = each.sum(1) / (labels[:, 1:] != IGNORED).sum(1)
    found = of_tokens(logits, next_of(labels), smoothing)
    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(loss.sum(), logits) for loss in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_labels_of_bytes_do_not_overflow() -> None:
    assert next_of(torch.tensor([[1, 200]], dtype=torch.uint8)).tolist() == [[200, IGNORED]]


def test_time_first_logits_are_refused() -> None:
    """Flattened they have as many rows as there are labels, each beside that of another example."""
    with pytest.raises(ConfigError, match=r"LOSS.*\(6, 2, 9\).*\(2, 6\)") as refused:
        of_tokens(torch.randn(6, 2, 9), torch.zeros(2, 6, dtype=torch.int64))
    assert refused.value.code == "LOSS"
