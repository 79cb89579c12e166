"""Families through the very start of a run, held to ``expected.toml``; the documents' list is that file."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from torch import nn  # noqa: E402

from dptrain.gradients import gradient_rule, registry  # noqa: E402
from dptrain.gradients.rules import linear  # noqa: E402
from dptrain.kernels import nodes  # noqa: E402
from dptrain.sandbox import Pass  # noqa: E402
from tests.reference.graphs import MAP, PAIR  # noqa: E402
from tests.zoo import expectations, report  # noqa: E402
from tests.zoo.exact import AS_STEPS, compare  # noqa: E402
from tests.zoo.families import ZOO  # noqa: E402
from tests.zoo.family import LIBRARY, RANDOM, VARIANTS  # noqa: E402
from tests.zoo.judge import FAULTS, INEXACT, judge  # noqa: E402
from tests.zoo.plainly import trains_without_privacy  # noqa: E402
from tests.zoo.start import EXACT, Outcome  # noqa: E402

EXPECTED = expectations.read()

FEW = (
    ("BERT", LIBRARY),
    ("CamemBERT", LIBRARY),
    ("GPT-2", LIBRARY),
    ("OPT", LIBRARY),
    ("Llama", RANDOM),
    ("Mamba", LIBRARY),
    ("mBART", RANDOM),
    ("T5", LIBRARY),
    ("ViT", LIBRARY),
    ("ResNet with batch normalisation", LIBRARY),
    ("wav2vec 2.0 CTC", LIBRARY),
    ("PaliGemma", LIBRARY),
    ("nn.TransformerEncoder", LIBRARY),
    ("nn.LSTM, two layers with dropout", LIBRARY),
    ("LoRA with dropout over Llama", LIBRARY),
)
"""One of every kind, with those that were listed once and refused by a run, and some that are refused."""


def held(name: str, variant: str) -> None:
    found = expectations.differences([judge(name, variant)], EXPECTED)
    assert not found, "\n".join(found)


@pytest.mark.one_in(99)
@pytest.mark.parametrize(("name", "variant"), FEW)
def test_a_family_comes_through_the_start_as_expected(name: str, variant: str) -> None:
    held(name, variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", list(ZOO))
def test_every_family_comes_through_the_start_as_expected(name: str, variant: str) -> None:
    held(name, variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", list(ZOO))
def test_every_declaration_trains_without_privacy(name: str, variant: str) -> None:
    """What is refused is refused for its own sake, not for a declaration that trains nowhere."""
    assert trains_without_privacy(ZOO[name], variant) == ""


def test_every_family_has_an_expectation_and_every_refusal_a_reason() -> None:
    assert len(ZOO) >= 120
    assert list(EXPECTED.families) == list(ZOO)
    for name, entry in EXPECTED.families.items():
        assert set(entry.verdicts) == set(VARIANTS)
        assert entry.exact == (entry.reason == ""), name
        if entry.reason:
            reason = EXPECTED.reasons[entry.reason]
            assert {v for v in entry.verdicts.values() if v != EXACT} <= set(reason.codes), name
    assert {entry.reason for entry in EXPECTED.families.values()} - {""} == set(EXPECTED.reasons)


def test_every_reason_says_whether_it_is_right_and_what_to_do() -> None:
    for name, reason in EXPECTED.reasons.items():
        assert reason.judgement in expectations.JUDGEMENTS, name
        assert reason.why and reason.do, name
        assert (reason.judgement == "right") == (not reason.should), name
        assert reason.judgement == "fault" or FAULTS.isdisjoint(reason.codes), name


def test_the_page_of_models_is_made_of_the_expectations() -> None:
    assert report.PAGE.read_text() == report.page(EXPECTED), "run: python -m tests.zoo --docs"


def test_expectations_are_written_as_they_are_read(tmp_path) -> None:
    place = tmp_path / "expected.toml"
    expectations.write(EXPECTED, place)
    assert expectations.read(place) == EXPECTED
    assert place.read_text() == expectations.PLACE.read_text()


def test_the_comparison_sees_gradients_that_reach_the_wrong_contribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fault in the rule for linear layers, the start is caught by its own probes or the comparison says INEXACT."""
    assert all(compared.exact for compared in compare(ZOO["BERT"], LIBRARY, None).values())
    monkeypatch.setattr(registry, "_entries", registry._entries)

    @gradient_rule(nn.Linear, replace=True)
    def swapped(module, call, grad):
        return linear(module, call, grad.flip(0))

    assert not any(compared.exact for compared in compare(ZOO["BERT"], LIBRARY, None).values())
    assert judge("BERT", LIBRARY).verdict not in (EXACT, INEXACT)


def test_a_start_that_passes_a_missing_gradient_is_not_called_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entries", registry._entries)

    @gradient_rule(nn.Linear, replace=True)
    def incomplete(module, call, grad):
        return {name: form for name, form in linear(module, call, grad).items() if name != "bias"}

    monkeypatch.setattr("tests.zoo.judge.start", lambda family, variant: Outcome(EXACT))
    assert judge("BERT", LIBRARY).verdict == INEXACT


def test_the_comparison_sees_masks_that_follow_who_else_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With masks by the place in a microbatch, a contribution alone gets other ones than in company."""
    assert all(compared.drawn and compared.exact for compared in compare(ZOO["BERT"], LIBRARY, None).values())
    monkeypatch.setattr(Pass, "owners", property(lambda self: tuple(bytes([place]) for place in range(self.rows))))
    assert not any(compared.exact for compared in compare(ZOO["BERT"], LIBRARY, None).values())


LORA = "LoRA with dropout over Llama"


def test_the_comparison_in_float32_goes_by_the_nodes_of_a_step() -> None:
    for name, kind in (("BERT", MAP), (LORA, PAIR)):
        found = compare(ZOO[name], RANDOM, None)
        assert found[AS_STEPS].dtype is torch.float32 and found[AS_STEPS].nodes[kind]
        assert all(one.exact for one in found.values())


@pytest.mark.parametrize("name, kind", [("BERT", "_Multiplied"), (LORA, "_Adapted")])
def test_the_comparison_sees_a_node_that_hands_over_a_wrong_gradient(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the last row for the first, where all else is right: of pairs, what modules compute in float64."""
    own = getattr(nodes, kind).backward

    def backward(ctx, grad):
        mixed = grad.clone()
        mixed[0] = grad[-1]
        return own(ctx, mixed)

    monkeypatch.setattr(getattr(nodes, kind), "backward", staticmethod(backward))
    found = compare(ZOO[name], RANDOM, None)
    assert not found[AS_STEPS].exact
    assert kind == "_Multiplied" or all(one.exact for key, one in found.items() if key != AS_STEPS)
