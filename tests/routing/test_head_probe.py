"""The probe of heads: known layouts pass in the model at hand; one that is not as attributed is refused before a charge."""

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402

from attest.policy import DepthRule  # noqa: E402
from dptrain.blocks import heads as heads_module  # noqa: E402
from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.resolver import bind  # noqa: E402
from dptrain.errors import UnsupportedPolicy  # noqa: E402
from dptrain.routing.probes import HeadProbe, _lit  # noqa: E402
from tests.guarantees.test_isolation_of_profiles import classes  # noqa: E402
from tests.reference import families  # noqa: E402
from tests.reference.masked import biased_llama  # noqa: E402
from tests.routing.test_depth_and_resolver import policy_of  # noqa: E402
from tests.routing.test_heads import BY_CONFIGURATION, KNOWN, forward, tiny  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

ALL = (Fraction(0), Fraction(1))
MODELS = KNOWN | BY_CONFIGURATION
STACKS = {"BartAttention": "encoder.layers", "T5Attention": "encoder.block", "WhisperAttention": "encoder.layers"}


def probe_of(kind: str, model: nn.Module) -> HeadProbe:
    """A probe that has seen one forward."""
    stack = layer_stack(model, STACKS.get(kind))
    some = DepthRule(band=ALL, heads=(0,), head=False)  # SigLIP's head pools by an attention that is not known
    probe = HeadProbe(model, bind(policy_of(some=some, every=DepthRule(band=ALL)), stack))
    with torch.enable_grad():
        forward(model, grad=True)
    return probe


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", sorted(MODELS))
def test_known_layouts_pass(kind: str) -> None:
    model = tiny(*MODELS[kind])
    probe = probe_of(kind, model)
    ran = [watched for watched in probe._watched if watched.joined is not None and watched.made]
    assert ran and all(len(watched.made) == len(watched.owners) for watched in ran), "what runs is seen whole"
    probe.check()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def _every_other(heads: int, groups: float) -> list[frozenset[int]]:
    return [frozenset(range(g, heads, int(groups))) for g in range(int(groups))]


@pytest.mark.parametrize("kind", ["LlamaAttention", "Phi3Attention", "Qwen3Attention", "falcon-grouped"])
def test_a_key_value_head_read_by_others_is_seen(kind: str, monkeypatch) -> None:
    monkeypatch.setattr(heads_module, "_readers", _every_other)
    with pytest.raises(UnsupportedPolicy, match="HEADS_MISMATCH"):
        probe_of(kind, tiny(*MODELS[kind])).check()


@pytest.mark.parametrize(
    "kind", ["GPT2Attention", "GPTNeoXAttention", "BloomAttention", "Phi3Attention", "ModernBertAttention"]
)
def test_a_fused_projection_in_another_order_is_seen(kind: str, monkeypatch) -> None:
    known = heads_module.LAYOUTS[kind]
    turned = heads_module.Fused(known.projection, known.output, not known.grouped)
    monkeypatch.setitem(heads_module.LAYOUTS, kind, turned)
    with pytest.raises(UnsupportedPolicy, match="HEADS_MISMATCH"):
        probe_of(kind, tiny(*MODELS[kind])).check()


def test_a_run_refuses_before_anything_is_charged(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(families.FAMILIES, "biased_llama", biased_llama)
    text = classes("from = 0.0, to = 1.0, heads = [0, 2]", "from = 0.0, to = 1.0")
    good = Trainer(make_world(tmp_path / "a", steps=2, rate="1", per_class=2, classes=text), "biased_llama")
    good.run()
    good.close()
    monkeypatch.setattr(heads_module, "_readers", _every_other)
    bad = Trainer(make_world(tmp_path / "b", steps=2, rate="1", per_class=2, classes=text), "biased_llama")
    with pytest.raises(UnsupportedPolicy, match="HEADS_MISMATCH"):
        bad.run()
    assert not bad.private.opened.recorder.begun
    bad.close()


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12])
def test_any_two_heads_are_told_apart(heads: int) -> None:
    lit = list(_lit(heads))
    assert all(any(a in one and b not in one for one in lit) for a in range(heads) for b in range(heads) if a != b)


def test_what_the_probe_compares_is_no_truth_of_the_loop(tmp_path) -> None:
    """A branch of the loop that nobody's rows all took one way goes that way for all, beside masks of heads as without them."""
    text = classes("from = 0.0, to = 1.0, heads = [0]", "from = 0.0, to = 1.0")
    trainer = Trainer(make_world(tmp_path, per_class=4, steps=2, rate="0.9", classes=text), "bert")
    told: dict[bool, set[bool]] = {False: set(), True: set()}
    for step in trainer.steps:
        for rows in step:
            probing = trainer.private.prepared.probe.active
            small = bool((rows["input_ids"] <= 5).all())  # made-up rows hold integers of 0 and 1
            told[probing].add(small)
            trainer.private.backward(trainer.losses(rows) * (1.0 if small else 2.0), rows)
        trainer.optimizer.step()
    trainer.close()
    assert told == {True: {True}, False: {True}}
