"""Tables that a forward reads once for all rows: listed classes train exactly, all others are refused before the charge."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch import nn  # noqa: E402
from transformers.models.blenderbot import modeling_blenderbot as blenderbot  # noqa: E402
from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta  # noqa: E402
from transformers.models.mpnet import modeling_mpnet as mpnet  # noqa: E402
from transformers.models.perceiver import modeling_perceiver as perceiver  # noqa: E402
from transformers.models.recurrent_gemma import modeling_recurrent_gemma as recurrent  # noqa: E402

from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.resolver import Block, Schedule  # noqa: E402
from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.gradients.registry import Call  # noqa: E402
from dptrain.gradients.shared_tables import LENT, METHODS, POSITIONS, TABLES, PositionRule  # noqa: E402
from dptrain.parallel import together  # noqa: E402
from dptrain.routing import Router  # noqa: E402
from dptrain.sandbox import Sandbox  # noqa: E402
from tests.reference.compare import compare  # noqa: E402
from tests.zoo.families import ZOO  # noqa: E402
from tests.zoo.family import LIBRARY, RANDOM  # noqa: E402
from tests.zoo.judge import judge  # noqa: E402
from tests.zoo.start import EXACT  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")

WAYS = ("Blenderbot", "MPNet", "DeBERTa v3", "Perceiver", "ProphetNet, table of n-grams frozen", "wav2vec 2.0 CTC")
"""One family for every way of a listed class."""

STACKS = {"Blenderbot": "model.encoder.layers", "ProphetNet, table of n-grams frozen": "prophetnet.encoder.layers"}


def routed(model: nn.Module, layers: str | None = None) -> Router:
    stack = layer_stack(model, layers)
    schedule = Schedule(stack, (Block("all", (0,), stack.tensors, ("one",), 1.0),), {"one": (0,)}, ())
    sandbox = Sandbox(model, frozenset(map(id, model.parameters())), bytes(16))
    router = Router(model, schedule, sandbox=sandbox)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return router


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WAYS)
def test_listed_classes_train_exactly_through_the_start_of_a_run(name: str) -> None:
    found = judge(name, LIBRARY)
    assert found.verdict == EXACT, found.sentence
    assert found.drawn, "dropout is on"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WAYS)
def test_a_forward_gives_the_same_numbers_whether_a_microbatch_is_armed_or_not(name: str) -> None:
    family = ZOO[name]
    model, rows = family.build(RANDOM).eval(), family.rows(5)
    before = {path: set(vars(module)) for path, module in model.named_modules()}
    plain = family.loss(model, rows)
    router = routed(model, STACKS.get(name))
    router.attach()
    router.arm(5, 1, torch.ones(5, 1, dtype=torch.bool))
    armed = family.loss(model, rows)
    router.disarm()
    assert armed.requires_grad and not family.loss(model, rows).requires_grad
    torch.testing.assert_close(armed, plain, rtol=1e-6, atol=1e-6)
    router.detach()
    assert {path: set(vars(module)) for path, module in model.named_modules()} == before


def test_what_is_spread_over_the_rows_may_be_written() -> None:
    """A change in place of what came out reaches no tensor of the model."""
    model = ZOO["Perceiver"].build(LIBRARY)
    router = routed(model)
    router.attach()
    router.arm(3, 1, torch.ones(3, 1, dtype=torch.bool))
    before = model.perceiver.embeddings.latents.clone()
    spread = model.perceiver.embeddings(batch_size=3)
    positions = model.perceiver.input_preprocessor.position_embeddings(torch.arange(4))
    assert positions.shape == (3, 4, 16)
    with torch.no_grad():
        spread.zero_()
        positions[0].zero_()
    assert torch.equal(model.perceiver.embeddings.latents, before)
    assert bool(positions[1].any())
    router.disarm()
    router.detach()


@pytest.mark.parametrize(
    "ids", [None, torch.arange(4).flip(0), torch.arange(4)[None], torch.tensor([[0, 1, 2, 3], [3, 3, 1, 0]] * 2)]
)
def test_a_table_of_positions_is_split_whatever_positions_it_is_given(ids: torch.Tensor | None) -> None:
    """Those it counts itself, one row of them, and those of every example."""
    table = blenderbot.BlenderbotLearnedPositionalEmbedding(8, 3).double()
    rule, grad = PositionRule("", table), torch.randn(4, 4, 3, dtype=torch.float64)
    inputs, kwargs = ((4, 4),), {} if ids is None else {"position_ids": ids}
    out = table(*inputs, **kwargs)
    spread = rule.spread(0, out, 4)
    assert (out if spread is None else spread).shape == grad.shape
    found = rule(table, Call(inputs, kwargs, 2, 2, wanted=frozenset(["weight"])), grad)["weight"].dense(table.weight.shape)
    for i in range(2):
        own = torch.zeros(4, 1, 1, dtype=torch.float64)
        own[2 * i : 2 * i + 2] = 1.0
        (expected,) = torch.autograd.grad((table(*inputs, **kwargs).expand(4, 4, 3) * grad * own).sum(), table.weight)
        torch.testing.assert_close(found[i], expected)


@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize("name", ["MPNet", "DeBERTa v3", "Perceiver"])
def test_gradients_are_exact_under_masks_of_several_classes(name: str, examples: int) -> None:
    """Some contributions may touch a table and some may not."""
    family = ZOO[name]
    model = family.build(RANDOM).double()
    batch = family.rows(9 * examples)
    compare(model, batch, family.loss, examples=examples, redraw=3)


def test_a_layer_that_is_given_a_table_may_be_computed_again_by_a_checkpoint() -> None:
    family = ZOO["DeBERTa v3"]
    model = family.build(RANDOM).double()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    compare(model, family.rows(9), family.loss, redraw=3)


def code_with(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, change: Callable, name: str) -> str:
    """What the start says of a family whose library had another method."""
    own = getattr(owner, method)
    monkeypatch.setattr(owner, method, lambda self, *args, **kwargs: change(own(self, *args, **kwargs), self, *args))
    return judge(name, RANDOM).verdict


COUPLINGS = {
    "biases that follow from the batch": (mpnet.MPNetEncoder, "compute_position_bias", "MPNet",
        lambda bias, module, x: bias + x.mean()),
    "biases that follow from the first row": (mpnet.MPNetEncoder, "compute_position_bias", "MPNet",
        lambda bias, module, x: bias + 1e-3 * x[:1, :1, :1, None]),
    "positions that follow from the first row": (perceiver.PerceiverTextPreprocessor, "forward", "Perceiver",
        lambda found, module, x: (found[0] + module.embeddings(x[:1]), *found[1:])),
}  # fmt: skip


@pytest.mark.parametrize("case", COUPLINGS)
def test_a_listed_class_whose_code_came_to_mix_rows_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, name, change = COUPLINGS[case]
    assert code_with(monkeypatch, owner, method, change, name) in ("CROSS_SAMPLE_GRADIENT", "REPLACEMENT")


CHANGED = {
    "rows that are scaled": (blenderbot.BlenderbotLearnedPositionalEmbedding, "forward", "Blenderbot",
        lambda rows, module, *args: rows * 1.5),
    "rows of two positions": (blenderbot.BlenderbotLearnedPositionalEmbedding, "forward", "Blenderbot",
        lambda rows, module, *args: rows + rows.roll(1, 0)),
    "a table used beside its method": (mpnet.MPNetEncoder, "forward", "MPNet",
        lambda out, module, *args: _moved(out, module.relative_attention_bias.weight.mean())),
    "a table used beside the layers": (deberta.DebertaV2Encoder, "forward", "DeBERTa v3",
        lambda out, module, *args: _moved(out, module.rel_embeddings.weight.mean())),
    "latents of two rows": (perceiver.PerceiverEmbeddings, "forward", "Perceiver",
        lambda rows, module, *args: rows + rows.roll(1, 1)),
}  # fmt: skip


def _moved(out, by):
    out.last_hidden_state = out.last_hidden_state * (1.0 + by)
    if out.hidden_states:
        out.hidden_states = (*out.hidden_states[:-1], out.last_hidden_state)
    return out


@pytest.mark.parametrize("case", CHANGED)
def test_a_listed_class_that_came_to_use_its_table_otherwise_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, name, change = CHANGED[case]
    assert code_with(monkeypatch, owner, method, change, name) == "GRADIENT_MISMATCH"


def test_a_layer_that_is_given_another_table_than_its_encoders_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = deberta.DebertaV2Attention.forward

    def changed(self, *args, rel_embeddings=None, **kwargs):
        return own(self, *args, rel_embeddings=2.0 * rel_embeddings, **kwargs)

    monkeypatch.setattr(deberta.DebertaV2Attention, "forward", changed)
    assert judge("DeBERTa v3", RANDOM).verdict == "GRADIENT_MISMATCH"


def code_of_class(monkeypatch: pytest.MonkeyPatch, module, name: str, family: str) -> str:
    """What the start says of a family in which a user's own class of that name stands for a listed one."""
    monkeypatch.setattr(module, name, type(name, (getattr(module, name),), {"__module__": "mine"}))
    return judge(family, LIBRARY).verdict


OWN = {
    "BATCH_DIMENSION": [
        (blenderbot, "BlenderbotLearnedPositionalEmbedding", "Blenderbot"),
        (mpnet, "MPNetEncoder", "MPNet"),
        (perceiver, "PerceiverTextPreprocessor", "Perceiver"),
        (deberta, "DebertaV2Encoder", "DeBERTa v3"),
    ],
    "NO_RULE": [(recurrent, "RecurrentGemmaRglru", "RecurrentGemma"), (perceiver, "PerceiverEmbeddings", "Perceiver")],
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("code", "place"), [(code, place) for code in OWN for place in OWN[code]], ids=lambda x: x[1])
def test_a_class_of_ones_own_is_served_by_no_list(code: str, place: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_of_class(monkeypatch, *place) == code


def test_a_recurrence_that_goes_on_from_the_state_of_other_rows_is_refused() -> None:
    """RecurrentGemma's goes on from the last microbatch where positions do not begin at 0."""
    found = judge("RecurrentGemma", LIBRARY)
    assert found.verdict == "NO_RULE"
    assert "(RecurrentGemmaRglru) keeps its last state" in found.sentence


def test_a_method_that_a_user_put_on_a_module_is_served_by_no_list() -> None:
    family = ZOO["MPNet"]
    model = family.build(LIBRARY)
    encoder = model.mpnet.encoder
    encoder.compute_position_bias = lambda x: type(encoder).compute_position_bias(encoder, x)
    assert not any(site.method for site in routed(model).sites)


def test_a_copy_of_a_model_in_a_run_is_a_plain_model() -> None:
    family = ZOO["MPNet"]
    model, rows = family.build(LIBRARY).eval(), family.rows(3)
    expected = family.loss(model, rows)
    router = routed(model)
    router.attach()
    router.arm(3, 1, torch.ones(3, 1, dtype=torch.bool))
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied is not model
        copied.mpnet.encoder.relative_attention_bias.weight.data.zero_()
        found = family.loss(copied, rows)
        assert not found.requires_grad
        assert not torch.equal(found, expected), "its own table is read"
    router.detach()


def test_a_layer_that_runs_again_with_its_encoder_wants_all_of_that_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under FSDP2: nothing inside of what runs again may be sharded, and the encoder does."""
    model = ZOO["DeBERTa v3"].build(LIBRARY)
    placed = together.Together.__new__(together.Together)
    vars(placed).update(_shards=object(), ranks=None, _sandbox=None)
    monkeypatch.setattr(together, "Sharded", lambda ranks, held: None)
    monkeypatch.setattr(together, "shards_inside", lambda module: model.deberta.encoder in module.modules())
    with pytest.raises(UnsupportedModule) as raised:
        placed.bind(routed(model), None)
    assert raised.value.code == "AGAIN_SHARDED"


def test_lists_name_classes_that_the_library_has() -> None:
    models = Path(transformers.__file__).parent / "models"
    text = "".join(place.read_text() for place in models.glob("*/modeling_*.py"))
    for name in (*POSITIONS, *TABLES, *METHODS, *LENT):
        assert f"class {name}(" in text, name
