"""Tables that a forward reads once for all rows: listed classes train exactly, all others are refused before the charge."""

import copy
import pickle
import types
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch import nn  # noqa: E402
from transformers.models.beit import modeling_beit as beit  # noqa: E402
from transformers.models.blenderbot import modeling_blenderbot as blenderbot  # noqa: E402
from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta  # noqa: E402
from transformers.models.gemma3n import modeling_gemma3n as gemma3n  # noqa: E402
from transformers.models.gpt_neox_japanese import modeling_gpt_neox_japanese as japanese  # noqa: E402
from transformers.models.mpnet import modeling_mpnet as mpnet  # noqa: E402
from transformers.models.perceiver import modeling_perceiver as perceiver  # noqa: E402
from transformers.models.prophetnet import modeling_prophetnet as prophetnet  # noqa: E402
from transformers.models.recurrent_gemma import modeling_recurrent_gemma as recurrent  # noqa: E402
from transformers.models.wavlm import modeling_wavlm as wavlm  # noqa: E402
from transformers.models.yolos import modeling_yolos as yolos  # noqa: E402

from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.resolver import Block, Schedule  # noqa: E402
from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.gradients.generic import GenericRule  # noqa: E402
from dptrain.gradients.registry import Call  # noqa: E402
from dptrain.gradients.shared_tables import HANDED, LENT, METHODS, POSITIONS, STREAMS, TABLES, PositionRule  # noqa: E402
from dptrain.parallel import together  # noqa: E402
from dptrain.routing import Router  # noqa: E402
from dptrain.routing.couplings import couplings  # noqa: E402
from dptrain.sandbox import Sandbox  # noqa: E402
from tests.guarantees import peers  # noqa: E402
from tests.reference.compare import compare  # noqa: E402
from tests.reference.in_double import in_double  # noqa: E402
from tests.zoo.families import ZOO  # noqa: E402
from tests.zoo.family import LIBRARY, RANDOM  # noqa: E402
from tests.zoo.judge import judge  # noqa: E402
from tests.zoo.start import EXACT  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")

WAVLM = "WavLM CTC, norm first, of several lengths"
GEMMA = "Gemma 3n, sparse and with shared keys"

WAYS = (
    "Blenderbot", "MPNet", "DeBERTa v3", "Perceiver", "ProphetNet, table of n-grams frozen", "wav2vec 2.0 CTC",
    "wav2vec 2.0 CTC of several lengths, without masking", GEMMA,
    "WavLM", WAVLM, "BEiT, shared relative positions", "YOLOS", "GPT-NeoX Japanese",
    "ProphetNet",
)  # fmt: skip
"""One family for every way of a listed class."""

STACKS = {
    "Blenderbot": "model.encoder.layers", "ProphetNet, table of n-grams frozen": "prophetnet.encoder.layers",
    GEMMA: "model.layers", "ProphetNet": "prophetnet.encoder.layers",
}  # fmt: skip


def routed(model: nn.Module, layers: str | None = None) -> Router:
    stack = layer_stack(model, layers)
    schedule = Schedule(stack, (Block("all", (0,), stack.tensors, ("one",), 1.0),), {"one": (0,)}, ())
    sandbox = Sandbox(model, frozenset(map(id, model.parameters())), bytes(16))
    router = Router(model, schedule, sandbox=sandbox)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return router


def doubled(rows: dict) -> dict:
    return {key: value.double() if value.is_floating_point() else value for key, value in rows.items()}


@pytest.mark.one_in(99)
@pytest.mark.parametrize("name", WAYS)
def test_listed_classes_train_exactly_through_the_start_of_a_run(name: str) -> None:
    found = judge(name, LIBRARY)
    assert found.verdict == EXACT, found.sentence
    assert found.drawn == (name != "YOLOS"), "dropout is on where the library has some"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WAYS)
def test_a_forward_gives_the_same_numbers_whether_a_microbatch_is_armed_or_not(name: str) -> None:
    family = ZOO[name]
    model, rows = family.build(RANDOM).eval(), family.rows(5)
    plain = family.loss(model, rows)
    before = {path: set(vars(module)) for path, module in model.named_modules()}
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


@pytest.mark.one_in(99)
@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize("name", ["MPNet", "DeBERTa v3", "Perceiver", WAVLM])
def test_gradients_are_exact_under_masks_of_several_classes(name: str, examples: int) -> None:
    """Some contributions may touch a table and some may not."""
    family = ZOO[name]
    model = family.build(RANDOM).double()
    batch = doubled(family.rows(9 * examples))
    compare(model, batch, family.loss, examples=examples, redraw=3)


def test_what_is_made_of_a_table_comes_with_as_many_rows_where_nobody_trains_it() -> None:
    """Else what follows would see other shapes, from one microbatch to the next."""
    family = ZOO["BEiT, shared relative positions"]
    model, rows = family.build(LIBRARY), family.rows(3)
    router, shapes = routed(model), []
    see = lambda module, args, kwargs: shapes.append(kwargs["attention_mask"].shape)  # noqa: E731
    model.beit.layers[0].register_forward_pre_hook(see, with_kwargs=True)
    router.attach()
    for permitted in (torch.ones(3, 1, dtype=torch.bool), torch.zeros(3, 1, dtype=torch.bool)):
        router.arm(3, 1, permitted)
        family.loss(model, rows)
        router.disarm()
    router.detach()
    assert shapes[0] == shapes[1]
    assert shapes[0][0] == 3


def test_a_layer_that_is_given_a_table_may_be_computed_again_by_a_checkpoint() -> None:
    family = ZOO["DeBERTa v3"]
    model = family.build(RANDOM).double()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    compare(model, family.rows(9), family.loss, redraw=3)


def code_with(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, change: Callable, name: str) -> str:
    """Returns what the start says of a family whose library had another method."""
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
    "corrections that follow from the first row": (gemma3n.Gemma3nTextAltUp, "correct", GEMMA,
        lambda out, module, x, y: out + 1e-3 * y[:1]),
    "corrections that follow from the batch": (gemma3n.Gemma3nTextAltUp, "correct", GEMMA,
        lambda out, module, x, y: out + 1e-3 * y.mean()),
}  # fmt: skip


@pytest.mark.one_in(99)
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
    "biases made beside the layers": (wavlm.WavLMEncoderStableLayerNorm, "forward", WAVLM,
        lambda out, module, x, *args: _moved(out, module.layers[0].attention.compute_bias(3, 3).mean())),
    "a table used beside the layers": (deberta.DebertaV2Encoder, "forward", "DeBERTa v3",
        lambda out, module, *args: _moved(out, module.rel_embeddings.weight.mean())),
    "coefficients used beside their method": (gemma3n.Gemma3nTextAltUp, "predict", GEMMA,
        lambda out, module, *args: out * (1.0 + module.correction_coefs.weight.mean())),
    "a scale used beside its method": (gemma3n.Gemma3nTextAltUp, "predict", GEMMA,
        lambda out, module, *args: out * (1.0 + module.correct_output_scale.mean())),
    "a table used beside its module": (beit.BeitLayer, "forward", "BEiT, relative positions",
        lambda out, module, *args: out * (1.0 + module.relative_position_bias.relative_position_bias_table.mean())),
    "a bias used beside its module": (japanese.GPTNeoXJapaneseAttention, "forward", "GPT-NeoX Japanese",
        lambda out, module, *args: (out[0], *out[1:]) if module.dense_bias is None
        else (out[0] * (1.0 + module.dense_bias.mean()), *out[1:])),
    "rows of streams used beside them": (prophetnet.ProphetNetDecoder, "prepare_attention_mask", "ProphetNet",
        lambda mask, module, *args: mask + 1e3 * module.ngram_embeddings.weight[0].mean() * torch.arange(mask.shape[-1])),
    "latents of two rows": (perceiver.PerceiverEmbeddings, "forward", "Perceiver",
        lambda rows, module, *args: rows + rows.roll(1, 1)),
}  # fmt: skip


def _moved(out, by):
    out.last_hidden_state = out.last_hidden_state * (1.0 + by)
    if out.hidden_states:
        out.hidden_states = (*out.hidden_states[:-1], out.last_hidden_state)
    return out


@pytest.mark.one_in(7)
@pytest.mark.parametrize("case", CHANGED)
def test_a_listed_class_that_came_to_use_its_table_otherwise_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, name, change = CHANGED[case]
    expected = "TABLE_ELSEWHERE" if case == "biases made beside the layers" else "GRADIENT_MISMATCH"
    assert code_with(monkeypatch, owner, method, change, name) == expected


def test_a_layer_that_is_given_another_table_than_its_encoders_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = deberta.DebertaV2Attention.forward

    def changed(self, *args, rel_embeddings=None, **kwargs):
        return own(self, *args, rel_embeddings=2.0 * rel_embeddings, **kwargs)

    monkeypatch.setattr(deberta.DebertaV2Attention, "forward", changed)
    assert judge("DeBERTa v3", RANDOM).verdict == "GRADIENT_MISMATCH"


HANDED_ON = {
    "that are scaled": lambda biases, x: 2.0 * biases,
    "that follow from their own row": lambda biases, x: biases + x[:, None, :, 0].repeat_interleave(len(biases) // len(x), 0),
}
"""Biases (B * heads, T, T) of the layers after the first, and their states (B, T, D)."""


@pytest.mark.one_in(99)
@pytest.mark.parametrize("case", HANDED_ON)
def test_a_layer_that_is_handed_other_biases_than_the_first_made_is_refused(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = wavlm.WavLMEncoderLayer.forward

    def changed(self, x, position_bias=None, **kwargs):
        return own(self, x, position_bias=None if position_bias is None else HANDED_ON[case](position_bias, x), **kwargs)

    monkeypatch.setattr(wavlm.WavLMEncoderLayer, "forward", changed)
    assert judge("WavLM", RANDOM).verdict == "GRADIENT_MISMATCH"


def code_of_class(monkeypatch: pytest.MonkeyPatch, module, name: str, family: str) -> str:
    """Returns what the start says of a family in which a user's own class of that name stands for a listed one."""
    monkeypatch.setattr(module, name, type(name, (getattr(module, name),), {"__module__": "mine"}))
    return judge(family, LIBRARY).verdict


OWN = {
    "BATCH_DIMENSION": [
        (blenderbot, "BlenderbotLearnedPositionalEmbedding", "Blenderbot"),
        (mpnet, "MPNetEncoder", "MPNet"),
        (perceiver, "PerceiverTextPreprocessor", "Perceiver"),
        (deberta, "DebertaV2Encoder", "DeBERTa v3"),
        (wavlm, "WavLMEncoder", "WavLM"),
        (wavlm, "WavLMAttention", "WavLM"),
        (beit, "BeitRelativePositionBias", "BEiT, relative positions"),
        (yolos, "InterpolateMidPositionEmbeddings", "YOLOS"),
        (japanese, "GPTNeoXJapaneseAttention", "GPT-NeoX Japanese"),
    ],
    "KEPT_STATE": [(recurrent, "RecurrentGemmaRglru", "RecurrentGemma")],
    "NO_RULE": [(perceiver, "PerceiverEmbeddings", "Perceiver")],
    "GRADIENT_MISMATCH": [(gemma3n, "Gemma3nTextAltUp", GEMMA), (prophetnet, "ProphetNetDecoder", "ProphetNet")],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("code", "place"), [(code, place) for code in OWN for place in OWN[code]], ids=lambda x: x[1])
def test_a_class_of_ones_own_is_served_by_no_list(code: str, place: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_of_class(monkeypatch, *place) == code


def test_a_method_that_a_user_put_on_a_module_is_served_by_no_list() -> None:
    family = ZOO["MPNet"]
    model = family.build(LIBRARY)
    encoder = model.mpnet.encoder
    encoder.compute_position_bias = lambda x: type(encoder).compute_position_bias(encoder, x)
    assert not any(site.method for site in routed(model).sites)


class Sentences(nn.Module):
    """An MPNet with a head; ``late`` has its table read by another way too."""

    def __init__(self) -> None:
        super().__init__()
        self.mpnet = mpnet.MPNetModel(
            mpnet.MPNetConfig(vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8),
            add_pooling_layer=False,
        )
        self.head = nn.Linear(8, 3)
        self.late = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states = self.mpnet(ids).last_hidden_state
        if self.late:
            table = self.mpnet.encoder.relative_attention_bias
            states = states * (1.0 + table(torch.arange(8).expand(len(ids), 8)).mean((1, 2))[:, None, None])
        return self.head(states.mean(1))


def in_the_second_step(tmp_path: Path, change: Callable[[Sentences], object]) -> tuple[str, Sentences]:
    """The code of the refusal where a run goes on after ``change``, and the model when the run is closed."""
    model = Sentences()
    with peers.Run(peers.small_world(tmp_path, steps=2), model, layers="mpnet.encoder.layer") as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        run.optimizer.step()
        change(model)
        with pytest.raises(UnsupportedModule) as raised:
            run.gradients(next(steps))
    return raised.value.code, model


def biases(encoder: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Does what the method of the class does, said otherwise."""
    return type(encoder).compute_position_bias(encoder, x) * 1.0


def test_a_method_put_on_a_module_in_a_run_is_refused_and_stays_the_users(tmp_path: Path) -> None:
    def change(model: Sentences) -> None:
        model.mpnet.encoder.compute_position_bias = types.MethodType(biases, model.mpnet.encoder)

    code, model = in_the_second_step(tmp_path, change)
    assert code == "METHOD_CHANGED"
    assert vars(model.mpnet.encoder)["compute_position_bias"].__func__ is biases


def test_a_table_that_another_module_comes_to_read_is_refused(tmp_path: Path) -> None:
    assert in_the_second_step(tmp_path, lambda model: setattr(model, "late", True))[0] == "TABLE_ELSEWHERE"


def test_what_is_called_beside_a_listed_method_is_refused_only_where_a_gradient_would_be_lost() -> None:
    model, ids = Sentences(), torch.randint(50, (3, 8))
    model.late = True
    router = routed(model, "mpnet.encoder.layer")
    router.attach()
    model(ids)
    router.arm(3, 1, torch.ones(3, 1, dtype=torch.bool))
    copy.deepcopy(model)(ids)
    with torch.no_grad():
        model(ids)
    with pytest.raises(UnsupportedModule) as raised:
        model(ids)
    assert raised.value.code == "TABLE_ELSEWHERE"
    assert "compute_position_bias of MPNetEncoder" in raised.value.sentence
    router.disarm()
    router.detach()


def test_a_graph_that_starts_in_a_method_starts_with_the_rows_where_they_are() -> None:
    """Nothing trains below the coefficients, so that the probes look at other rows in what their method returns."""
    family = ZOO[GEMMA]
    model = family.build(RANDOM).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("correction_coefs" in name or "model.norm" in name)
    with in_double():
        compare(model, family.rows(9), family.loss, redraw=3, layers="model.layers")


def test_a_scale_that_is_called_beside_its_method_is_refused() -> None:
    model = ZOO[GEMMA].build(LIBRARY)
    router, altup = routed(model, "model.layers"), model.model.layers[0].altup
    router.attach()
    router.arm(3, 1, torch.ones(3, 1, dtype=torch.bool))
    states = torch.randn(3, 5, 16)
    assert altup.scale_corrected_output(states).requires_grad
    with pytest.raises(UnsupportedModule) as raised:
        altup(states)
    assert raised.value.code == "TABLE_ELSEWHERE"
    router.disarm()
    router.detach()


def clipped(model: nn.Module) -> torch.Tensor:
    return model.model.layers[1].altup.prediction_coefs.weight


def test_a_weight_that_its_forward_clips_is_compared_with_the_bound_before_every_step() -> None:
    """Gemma 3n clips one in place: within the bound nothing would change, beyond it a microbatch would write it."""
    model = ZOO[GEMMA].build(LIBRARY)
    bound = model.config.altup_coef_clip
    with torch.no_grad():
        clipped(model)[0, 0] = -bound
    assert not list(couplings(model))
    for entry in (-bound * 1.01, torch.nan):
        with torch.no_grad():
            clipped(model)[0, 0] = entry
        ((code, sentence),) = couplings(model)
        assert code == "CLIPPED_WEIGHT"
        assert "layers.1.altup.prediction_coefs.weight" in sentence and "120" in sentence
    assert not list(couplings(copy.deepcopy(model).to("meta"))), "one without numbers"
    assert not list(couplings(model.eval())), "a module that does not train clips nothing"
    model.train().config.altup_coef_clip = 2.0 * bound
    with torch.no_grad():
        clipped(model)[0, 0] = -bound * 1.01
    assert not list(couplings(model))


def test_a_clip_that_changes_nothing_is_no_write_and_any_other_write_of_the_weight_is() -> None:
    model = ZOO[GEMMA].build(RANDOM)
    weight, bound = clipped(model), model.config.altup_coef_clip
    before = weight.detach().clone()
    sandbox = Sandbox(model, frozenset(map(id, model.parameters())), bytes(16))
    with sandbox.enter(1, [b"a", b"b"]):
        assert weight.data.clamp_(-bound, bound).data_ptr() == weight.data_ptr()
        assert sandbox.kept.written is None
        held = torch.zeros(2)
        held.clamp_(1.0, bound)
        assert held.tolist() == [1.0, 1.0], "a clip of what nobody keeps is carried out"
    writes = {
        "other bounds": lambda: weight.data.clamp_(-0.01, 0.01),
        "a bound of content": lambda: weight.data.clamp_(before.amin(), before.amax()),
        "one bound": lambda: weight.data.clamp_(max=bound),
        "another write": lambda: weight.data.mul_(1.0),
        "another operation between the bounds": lambda: torch.threshold_(weight.data, -bound, bound),
        "another weight": lambda: model.model.layers[1].altup.correction_coefs.weight.data.clamp_(-bound, bound),
    }
    for what, write in writes.items():
        sandbox.kept.written = None
        with sandbox.enter(1, [b"a", b"b"]):
            write()
        assert sandbox.kept.written is not None, what
        assert torch.equal(weight, before), what


WATCHED = {
    "MPNet": ("mpnet.encoder", "compute_position_bias", "mpnet.encoder.layer"),
    "DeBERTa v3": ("deberta.encoder", "get_rel_embedding", "deberta.encoder.layer"),
    GEMMA: ("model.layers.1.altup", "correct", "model.layers"),
    WAVLM: ("wavlm.encoder.layers.0.attention", "compute_bias", None),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("where", ["module", "class", "taken off"])
@pytest.mark.parametrize("name", WATCHED)
def test_a_listed_method_is_that_of_the_start_in_every_microbatch(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a microbatch begins, and when its backward pass does."""
    family, (path, method, layers) = ZOO[name], WATCHED[name]
    model, rows = family.build(LIBRARY).eval(), family.rows(3)
    holder, everybody = model.get_submodule(path), torch.ones(3, 1, dtype=torch.bool)
    router = routed(model, layers)
    router.attach()
    router.arm(3, 1, everybody)
    losses = family.loss(model, rows)
    if where == "taken off":
        monkeypatch.delitem(vars(holder), method)
    elif where == "module":
        monkeypatch.setitem(vars(holder), method, types.MethodType(vars(type(holder))[method], holder))
    else:
        own = vars(type(holder))[method]
        monkeypatch.setattr(type(holder), method, lambda self, *args: own(self, *args))
    with pytest.raises(UnsupportedModule) as in_backward:
        router.backward(losses, torch.ones(3))
    router.disarm()
    with pytest.raises(UnsupportedModule) as at_begin:
        router.arm(3, 1, everybody)
    assert (in_backward.value.code, at_begin.value.code) == ("METHOD_CHANGED",) * 2
    monkeypatch.undo()
    router.arm(3, 1, everybody)  # what was there is there again
    router.disarm()
    router.detach()
    assert method not in vars(holder)


class Positions(peers.Net):
    """A table of positions, one of ours or a listed one, looked up at positions that come with the rows."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        self.positions = (blenderbot.BlenderbotLearnedPositionalEmbedding if listed else nn.Embedding)(16, 8)
        self.listed = listed

    def forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        at = self.positions(ids.shape, position_ids=places) if self.listed else self.positions(places)
        states = self.embed(ids) + at
        for layer in self.layers:
            states = torch.tanh(layer(states))
        return self.head(states.mean(1))


def test_a_position_out_of_range_counts_as_zero_and_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def placed(examples):
        rows = peers.collate(examples)
        outside = torch.tensor([example["seed"] == 2 for example in examples])
        return rows | {"places": (rows["ids"] % 16).masked_fill(outside[:, None], 99)}

    def losses(model, rows):
        return nn.functional.cross_entropy(model(rows["ids"], rows["places"]), rows["labels"], reduction="none")

    monkeypatch.setattr(peers, "per_example", losses)
    released = []
    for listed in (False, True):
        torch.manual_seed(0)
        world = peers.small_world(tmp_path / str(listed))
        with peers.Run(world, Positions(listed).double(), collate_fn=placed) as run:
            released.append(run.gradients(next(iter(run.steps)), losses))
            assert 2 in run.drawn[0], "the one whose position is out of range was drawn"
    torch.testing.assert_close(released[1], released[0])


def test_layers_that_are_one_module_train_exactly_and_stay_the_models_own() -> None:
    family = ZOO["DeBERTa v3"]
    model = family.build(RANDOM).double()
    layers = model.deberta.encoder.layer
    layers[1] = layers[0]
    before = dict(model.named_parameters(remove_duplicate=False))
    compare(model, family.rows(9), family.loss, redraw=3, layers="deberta.encoder.layer")
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is before[name] for name in before)


class Twice(nn.Module):
    """Two names for one module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


def test_a_module_that_ran_again_holds_the_parameters_that_it_held() -> None:
    module = Twice().double()
    before = dict(module.named_parameters(remove_duplicate=False))
    x, grad = torch.randn(2, 2, 3, dtype=torch.float64)
    call = Call((x,), {}, 2, 1, wanted=frozenset(before))
    found = GenericRule("", module, whole=True)(module, call, grad)
    after = dict(module.named_parameters(remove_duplicate=False))
    assert all(after[name] is before[name] for name in before)
    for i in range(2):
        expected = torch.autograd.grad((module(x[i : i + 1]) * grad[i]).sum(), list(module.parameters()))
        for key, truth in zip(("second.weight", "second.bias"), expected, strict=True):
            torch.testing.assert_close(found[key].dense(before[key].shape)[i], truth)


EARLIER = {
    WAVLM: ("wavlm.encoder.layers.0.attention.rel_attn_embed", None),
    "DeBERTa v3": ("deberta.encoder.layer.0.attention.self", "deberta.encoder.layer"),
    "MPNet": ("mpnet.encoder.relative_attention_bias", "mpnet.encoder.layer"),
}


@pytest.mark.one_in(99)
@pytest.mark.parametrize("name", EARLIER)
def test_what_is_taken_is_taken_under_every_name(name: str) -> None:
    """A module that is registered a second time, earlier, is still the one that a list has."""
    family, (path, layers) = ZOO[name], EARLIER[name]
    model = family.build(RANDOM).double()
    own, model._modules = model._modules, {"earlier": model.get_submodule(path)}
    model._modules.update(own)
    compare(model, doubled(family.rows(9)), family.loss, redraw=3, layers=layers)


@pytest.mark.parametrize("name", WATCHED)
def test_a_copy_made_in_a_run_can_have_a_run_of_its_own(name: str) -> None:
    family, (path, method, layers) = ZOO[name], WATCHED[name]
    model = family.build(LIBRARY)
    router = routed(model, layers)
    router.attach()
    router.arm(3, 1, torch.ones(3, 1, dtype=torch.bool))
    copied = copy.deepcopy(model)
    router.disarm()
    own = routed(copied.requires_grad_(True), layers)
    assert [site.name for site in own.sites] == [site.name for site in router.sites]
    own.attach()
    own.arm(3, 1, torch.ones(3, 1, dtype=torch.bool))
    own.detach()
    router.detach()
    assert not any(method in vars(holder.get_submodule(path)) for holder in (model, copied))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("first_left", [0, 1])
@pytest.mark.parametrize("name", WATCHED)
def test_runs_that_are_open_at_once_each_find_their_gradients(name: str, first_left: int) -> None:
    family, (path, method, layers) = ZOO[name], WATCHED[name]
    model, rows = family.build(RANDOM).eval(), family.rows(3)
    routers = [routed(model.requires_grad_(True), layers) for _ in range(2)]
    for router in routers:
        router.attach()
    found = []
    for router in routers:
        router.arm(3, 1, torch.ones(3, 1, dtype=torch.bool))
        router.backward(family.loss(model, rows), torch.ones(3))
        found.append({i: sum(p.norm_sq() for p in pieces) for i, pieces in router.pieces.items()})
        router.disarm()
    assert found[0].keys() == found[1].keys() == set(range(len(routers[0].tensors)))
    torch.testing.assert_close(found[0], found[1])
    routers[first_left].detach()
    left = routers[1 - first_left]
    left.arm(3, 1, torch.ones(3, 1, dtype=torch.bool))
    left.disarm()
    left.detach()
    assert method not in vars(model.get_submodule(path))


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


def test_what_is_made_of_a_table_wants_it_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ZOO["BEiT, relative positions"].build(LIBRARY)
    placed = together.Together.__new__(together.Together)
    vars(placed).update(_shards=object(), ranks=None, _sandbox=None)
    monkeypatch.setattr(together, "Sharded", lambda ranks, held: None)
    table = model.beit.layers[0].relative_position_bias
    monkeypatch.setattr(together, "shards_inside", lambda module: module is table)
    with pytest.raises(UnsupportedModule) as raised:
        placed.bind(routed(model), None)
    assert raised.value.code == "AGAIN_SHARDED"


def test_lists_name_classes_that_the_library_has() -> None:
    models = Path(transformers.__file__).parent / "models"
    text = "".join(place.read_text() for place in models.glob("*/modeling_*.py"))
    for name in (*POSITIONS, *TABLES, *METHODS, *LENT, *HANDED, *STREAMS):
        assert f"class {name}(" in text, name
