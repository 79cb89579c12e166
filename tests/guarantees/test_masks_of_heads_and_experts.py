"""Classes held to heads or experts: what they may touch, by hand; sums against the naive loop; isolation, step for step."""

import copy
import logging
import random
import warnings
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch import nn  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from attest.policy import DepthRule  # noqa: E402
from dptrain import heads as heads_module  # noqa: E402
from dptrain import masks  # noqa: E402
from dptrain.cli.app import app  # noqa: E402
from dptrain.depth import layer_stack  # noqa: E402
from dptrain.errors import NotPrivateUse, UnsupportedPolicy  # noqa: E402
from dptrain.parts import Part  # noqa: E402
from dptrain.resolver import Schedule, bind  # noqa: E402
from dptrain.routing.narrow import narrow  # noqa: E402
from dptrain.routing.uses import Dense, Outer, merge, norm_sq  # noqa: E402
from tests.guarantees.test_isolation_of_profiles import classes, step_once  # noqa: E402
from tests.reference import families  # noqa: E402
from tests.reference.compare import compare  # noqa: E402
from tests.reference.zoo import ZOO  # noqa: E402
from tests.routing import compiled_scene  # noqa: E402
from tests.routing.test_depth_and_resolver import policy_of  # noqa: E402
from tests.trainers import Trainer  # noqa: E402
from tests.worlds import make_world, token_record  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

KEY = b"\x07" * 32
ALL = (Fraction(0), Fraction(1))

HEADED = [
    "bert", "roberta", "distilbert", "electra", "modernbert", "gpt2", "gpt_neox", "bloom", "falcon", "llama", "mistral",
    "qwen2", "qwen3", "gemma2", "phi", "mixtral", "gpt_oss", "t5", "bart", "opt", "vit",
]  # fmt: skip
MIXTURES = ["mixtral", "qwen2_moe", "granite_moe", "olmoe", "gpt_oss"]


def subset(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(sorted(rng.sample(range(count), rng.randint(1, max(1, count - 1)))))


def random_masks(model: nn.Module, rng: random.Random, layers: str | None, kinds: tuple[str, ...]) -> Schedule:
    """Three classes with random masks, sometimes none; the first is sure to have one of each kind."""
    stack = layer_stack(model, layers)
    counts = {kind: min(stack.owners[kind].values()) for kind in kinds}
    rules = {}
    for k, name in enumerate("abc"):
        drawn = {kind: subset(rng, count) for kind, count in counts.items() if k == 0 or rng.random() < 0.6}
        rules[name] = DepthRule(band=ALL, **drawn)
    return bind(policy_of(**rules), stack)


@pytest.fixture
def in_double(monkeypatch) -> None:
    """As in the test of families: what computes in float32 whatever its type would round the naive loop's own gradient."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("kinds", "family"), [(("heads",), f) for f in HEADED] + [(("experts",), f) for f in MIXTURES])
def test_sums_norms_and_coefficients_equal_the_naive_loop(kinds, family: str, seed: int, in_double) -> None:
    """Per contribution: masked to its coordinates, clipped by the norm over them, whitened by the noise of every part."""
    entry = ZOO[family]
    model = entry.build()
    schedule = random_masks(model, random.Random(f"{family} {seed}"), entry.layers, kinds)
    assert any(t.part is not None for block in schedule.blocks for t in block.tensors), "something is split"
    found = compare(
        model, entry.batch(7), entry.losses, seed=f"{family} {seed}", schedule=schedule,
        probe_tolerance=1e-6 if entry.single else 1e-9,
    )  # fmt: skip
    assert found.worst <= 1e-10


def covered(model: nn.Module, schedule: Schedule) -> dict[str, dict[str, torch.Tensor]]:
    """What every class may touch, and what is frozen: a mask per parameter, from the parts of the schedule."""
    names = [*schedule.profiles, "frozen"]
    found = {c: {n: torch.zeros_like(p, dtype=torch.bool) for n, p in model.named_parameters()} for c in names}
    times = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for block_classes, tensors in [*((b.classes, b.tensors) for b in schedule.blocks), (("frozen",), schedule.frozen)]:
        for tensor in tensors:
            one = torch.zeros_like(tensor.parameter)
            (tensor.part.write if tensor.part else torch.Tensor.copy_)(one, torch.ones(tensor.shape).to(one))
            times[tensor.name] += one
            for c in block_classes:
                found[c][tensor.name] |= one.bool()
    assert all(bool((count == 1).all()) for count in times.values()), "every coordinate lies in exactly one block"
    return found


def by_hand_llama(model: nn.Module, allowed: set[int]) -> dict[str, torch.Tensor]:
    """The coordinates of a Llama with 4 query and 2 key-value heads that a class with these heads may touch, written out."""
    found = {}
    for name, parameter in model.named_parameters():
        permitted = torch.ones_like(parameter, dtype=torch.bool)
        if ".self_attn." in name:
            permitted[:] = False
            width = model.config.hidden_size // 4
            for head in range(4):
                if "q_proj" in name and head in allowed:
                    permitted[head * width : (head + 1) * width] = True
                if "o_proj.weight" in name and head in allowed:
                    permitted[:, head * width : (head + 1) * width] = True
            for group in range(2):
                if ("k_proj" in name or "v_proj" in name) and {2 * group, 2 * group + 1} <= allowed:
                    permitted[group * width : (group + 1) * width] = True
            if "o_proj.bias" in name:
                permitted[:] = allowed == {0, 1, 2, 3}
        found[name] = permitted
    return found


def by_hand_gpt2(model: nn.Module, allowed: set[int]) -> dict[str, torch.Tensor]:
    """The same of a GPT-2 with 2 heads: columns of its Conv1D, in three thirds."""
    found = {}
    for name, parameter in model.named_parameters():
        permitted = torch.ones_like(parameter, dtype=torch.bool)
        if ".attn." in name:
            permitted[:] = False
            width = model.config.n_embd // 2
            for head in allowed:
                for third in range(3) if "c_attn" in name else ():
                    start = third * model.config.n_embd + head * width
                    permitted[..., start : start + width] = True
                if "c_proj.weight" in name:
                    permitted[head * width : (head + 1) * width] = True
            if "c_proj.bias" in name:
                permitted[:] = allowed == {0, 1}
        found[name] = permitted
    return found


def biased_llama() -> families.Family:
    family = families.llama()
    config = copy.deepcopy(family.model.config)
    config.attention_bias = True
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.2)
    return families.Family(model, family.batch, family.losses)


BY_HAND = {"llama": (biased_llama, by_hand_llama, 4), "gpt2": (lambda: families.gpt2(tied=False), by_hand_gpt2, 2)}


def agrees_with_the_hand(family: str) -> bool:
    build, by_hand, count = BY_HAND[family]
    model = build().model
    for number in range(1, 2**count):
        allowed = {h for h in range(count) if number >> h & 1}
        rules = {"some": DepthRule(band=ALL, heads=tuple(sorted(allowed))), "all": DepthRule(band=ALL)}
        found = covered(model, bind(policy_of(**rules), layer_stack(model)))
        hand = by_hand(model, allowed)
        if any(not torch.equal(found["some"][name], hand[name]) for name in hand):
            return False
        if any(not bool(found["all"][name].all()) for name in hand):
            return False
    return True


@pytest.mark.parametrize("family", list(BY_HAND))
def test_a_mask_permits_what_is_written_out_by_hand(family: str) -> None:
    assert agrees_with_the_hand(family)


def _one_reader(heads, groups):
    return [frozenset({g}) for g in range(int(groups))]


def _any_reader(rule, kind, run):
    own = masks.mask(rule.depth, kind)
    return own is None or bool(run.owners & own)


def _no_bias(original):
    def rows(self, kind, count, owners):
        found = original(self, kind, count, owners)
        return {name: division for name, division in found.items() if not name.endswith("bias")}

    return rows


@pytest.mark.parametrize(
    "fault", ["kv head by its number", "kv head of any reader", "bias unmasked", "columns unmasked", "columns for rows"]
)
def test_the_hand_sees_every_fault(monkeypatch, fault: str) -> None:
    """Each of these would let a class write what other classes' heads read, or keep it from its own."""
    projection = heads_module._Projection
    if fault == "kv head by its number":
        monkeypatch.setattr(heads_module, "_readers", _one_reader)
    elif fault == "kv head of any reader":
        monkeypatch.setattr(masks, "_permits", _any_reader)
    elif fault == "bias unmasked":
        monkeypatch.setattr(projection, "rows", _no_bias(projection.rows))
    elif fault == "columns unmasked":
        monkeypatch.setattr(projection, "columns", lambda self, *args: {})
    else:
        monkeypatch.setattr(projection, "columns", projection.rows)
    assert not agrees_with_the_hand("llama")


SOME = classes("from = 0.0, to = 1.0, heads = [0, 1, 2]", "from = 0.0, to = 1.0")
APART = classes("from = 0.0, to = 1.0, heads = [0, 1]", "from = 0.34, to = 1.0, heads = [2]")
FUSED = classes("from = 0.0, to = 1.0, heads = [1]", "layers = [1, 2], heads = [0, 1]")


@pytest.fixture(autouse=True)
def families_of_this_file(monkeypatch) -> None:
    monkeypatch.setitem(families.FAMILIES, "biased_llama", biased_llama)
    monkeypatch.setitem(families.FAMILIES, "mixture", mixture)


def mixture() -> families.Family:
    entry = replace(ZOO["mixtral"], options={**ZOO["mixtral"].options, "vocab_size": families.VOCABULARY})
    return families.Family(entry.build(), families._tokens, families._next_token)


EXPERTS = classes("from = 0.0, to = 1.0, experts = [0, 3]", "from = 0.0, to = 1.0")

TAUGHT = [
    ("biased_llama", SOME, {"clinic": {0, 1, 2}, "lab": {0, 1, 2, 3}}),
    ("biased_llama", APART, {"clinic": {0, 1}, "lab": {2}}),
    ("gpt2_untied", FUSED, {"clinic": {1}, "lab": {0, 1}}),
]


def isolated(tmp_path, family: str, text: str, changed: str, permitted, **settings) -> int:
    """Teacher-forced: another payload of class ``changed`` moves nothing outside ``permitted(model)``. Returns a count."""
    index = 0 if changed == "clinic" else 1000

    def other_payload(seed: int) -> dict:
        return token_record(777 if seed == index else seed)

    settings |= {"steps": 3, "rate": "1", "per_class": 2, "classes": text}
    world_a = make_world(tmp_path / "a", **settings)
    world_b = make_world(tmp_path / "b", record=other_payload, now=world_a.now, **settings)
    a, b = (Trainer(world, family, insecure_test_key=KEY) for world in (world_a, world_b))
    mask = permitted(a.model)
    steps_a, steps_b = iter(a.steps), iter(b.steps)
    inside = 0
    for _ in range(3):
        b.model.load_state_dict(copy.deepcopy(a.model.state_dict()))
        b.optimizer.load_state_dict(copy.deepcopy(a.optimizer.state_dict()))
        step_once(a, steps_a), step_once(b, steps_b)
        for (name, p), q in zip(a.model.named_parameters(), b.model.parameters(), strict=True):
            pairs = [(p, q)] + [
                (x, b.optimizer.state[q][key])
                for key, x in a.optimizer.state[p].items()
                if isinstance(x, torch.Tensor) and x.dim()
            ]
            for x, y in pairs:
                differs = x.detach() != y.detach()
                assert not bool((differs & ~mask[name]).any()), f"{name}: moved outside the class's heads"
                inside += int(differs.sum())
    a.close()
    b.close()
    return inside


@pytest.mark.parametrize("changed", ["clinic", "lab"])
@pytest.mark.parametrize(("family", "text", "allowed"), TAUGHT)
def test_a_payload_moves_no_coordinate_outside_its_heads(tmp_path, family: str, text: str, allowed: dict, changed: str) -> None:
    """Parameters and Adam's state, coordinate by coordinate, against masks written out by hand."""

    def permitted(model: nn.Module) -> dict[str, torch.Tensor]:
        by_hand = by_hand_llama if "llama" in family else by_hand_gpt2
        found = by_hand(model, allowed[changed])
        if changed == "lab" and text is not SOME:  # its depth is a part of the stack: layers 1 and 2
            top = text is APART
            for name in found:
                below = ".0." in name or "embed" in name or "wte" in name or "wpe" in name
                if below or (not top and not (".1." in name or ".2." in name)):
                    found[name][:] = False
        return found

    assert isolated(tmp_path, family, text, changed, permitted) > 100, "inside its heads the payload must show"


@pytest.mark.parametrize("changed", ["clinic", "lab"])
def test_a_payload_moves_no_expert_outside_its_mask_and_no_router(tmp_path, changed: str) -> None:
    def permitted(model: nn.Module) -> dict[str, torch.Tensor]:
        found = {name: torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters()}
        for name in found if changed == "clinic" else ():
            if ".experts." in name:
                found[name][[1, 2]] = False
            elif ".gate." in name:
                found[name][:] = False
        assert sum(not bool(mask.all()) for mask in found.values()) == (6 if changed == "clinic" else 0)
        return found

    assert isolated(tmp_path, "mixture", EXPERTS, changed, permitted) > 100


def test_what_no_class_may_touch_does_not_move_under_weight_decay(tmp_path) -> None:
    """Head 3 is nobody's, so is the key-value head that it reads: not a bit moves, though their tensors are trained."""
    world = make_world(tmp_path, steps=3, rate="1", per_class=2, classes=APART)
    trainer = Trainer(world, "biased_llama", optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-2, weight_decay=0.5))
    frozen = covered(trainer.model, trainer.private.schedule)["frozen"]
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for step in trainer.steps:
        trainer.one(step)
        for name, p in trainer.model.named_parameters():
            if p.grad is not None:
                assert not bool(p.grad[frozen[name]].any()), "gradient zero"
    split = 0
    for name, p in trainer.model.named_parameters():
        assert torch.equal(p[frozen[name]], before[name][frozen[name]]), name
        if bool(frozen[name].any()) and not bool(frozen[name].all()):
            split += 1
            assert not torch.equal(p[~frozen[name]], before[name][~frozen[name]])
    assert split > 6
    blocks = trainer.private.recorder.ledger.header.blocks
    assert sum(block.coordinates for block in blocks) == sum(p.numel() for p in trainer.model.parameters())
    trainer.close()


def test_every_part_has_the_noise_of_its_own_classes(tmp_path) -> None:
    """Empty draws: what is released of a coordinate is noise, with the std of the classes that may touch it."""
    text = classes("from = 0.0, to = 1.0, heads = [0, 1]", "from = 0.0, to = 1.0").replace(
        "noise_multiplier = 1.5", "noise_multiplier = 40"
    )
    trainer = Trainer(
        make_world(tmp_path, steps=12, rate="0.0001", per_class=1, classes=text), "biased_llama", insecure_test_key=KEY
    )
    hand = by_hand_llama(trainer.model, {0, 1})
    squares: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for step in trainer.steps:
        trainer.one(step)
        for name, p in trainer.model.named_parameters():
            if "self_attn" in name and "weight" in name:
                for both in (True, False):
                    squares[both].append(p.grad[hand[name] == both].flatten().double() * trainer.private.policy.normalizer)
    stds = {both: float(torch.cat(values).square().mean().sqrt()) for both, values in squares.items()}
    assert stds[True] == pytest.approx(20.0, rel=0.05) and stds[False] == pytest.approx(1.0, rel=0.05)
    trainer.close()


class Torchs(nn.Module):
    """Torch's own encoder, whose attention has one packed projection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        layer = nn.TransformerEncoderLayer(8, 4, 12, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(families.VOCABULARY, 8)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.classifier = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.encoder(self.embed(ids)).mean(1))


def torchs_losses(model: nn.Module, batch: dict) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="none")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_torchs_own_attention_equals_the_naive_loop(seed: int) -> None:
    model = Torchs().double()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.2)
    schedule = random_masks(model, random.Random(seed), None, ("heads",))
    compare(model, families._tokens(7, seed), torchs_losses, seed=seed, schedule=schedule)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("family", "targets"), [("gpt2_untied", ["c_attn", "c_proj", "c_fc"]), ("llama", ["q_proj", "k_proj", "o_proj"])]
)
def test_lora_around_masked_heads_equals_the_naive_loop(family: str, targets: list[str], seed: int, in_double) -> None:
    pytest.importorskip("peft")
    adapted = families._with_lora(families.FAMILIES[family](), targets)
    schedule = random_masks(adapted.model, random.Random(seed), None, ("heads",))
    assert any(t.part is not None for block in schedule.blocks for t in block.tensors)
    compare(adapted.model, adapted.batch(7, seed), adapted.losses, seed=seed, schedule=schedule, probe_tolerance=1e-6)


def test_the_compiled_form_keeps_the_parts_apart(monkeypatch) -> None:
    """A microbatch of the class with a mask touches the same tensors as one of all classes, and other parts of them."""
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, values: graph)
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    rules = {"a": DepthRule(band=ALL, heads=(0,)), "b": DepthRule(band=ALL), "c": DepthRule(band=ALL, heads=(1,))}
    monkeypatch.setattr(
        compiled_scene, "random_schedule", lambda model, rng, classes: bind(policy_of(**rules), layer_stack(model))
    )
    scene = compiled_scene.Scene("gpt2_untied")
    rows = scene.microbatch()
    for bounds in (scene.bounds(), scene.bounds(rows=[(0.1, 1.0, scene.schedule.profiles["a"])] * 5)):
        plain, found = scene.run(rows, compiled=False, bounds=bounds), scene.run(rows, compiled=True, bounds=bounds)
        assert max(float(total.abs().max()) for total in plain) > 1e-3
        assert scene.off_lattice(plain, found) == 0
    assert scene.compiled.graphs == 2
    touched = [bool((total != 0).any()) for total in found]
    permitted = [block in scene.schedule.profiles["a"] for block, _ in scene.router.tensors]
    assert touched == permitted


def test_a_gradient_that_is_not_finite_in_foreign_heads_costs_its_own_heads_nothing() -> None:
    """Mask by leaving out, not by multiplication with zero: what lies outside the mask may be NaN."""
    weight = nn.Parameter(torch.zeros(6, 4, dtype=torch.float64))
    own, other = Part(0, ((0, 2), (4, 6))), Part(0, ((2, 4),))
    a, b = torch.randn(3, 5, 4).double(), torch.randn(3, 5, 6).double()
    b[1, :, 2:4] = float("nan")
    for whole in (Outer(a, b), Dense(torch.einsum("ntp,ntd->npd", b, a))):
        norms = norm_sq(merge([narrow(whole, own, weight.shape)], own.shape(weight.shape)))
        assert bool(torch.isfinite(norms).all())
        expected = torch.einsum("ntp,ntd->npd", own.select(b, 2), a).square().sum((1, 2))
        assert torch.allclose(norms, expected, rtol=1e-12)
        assert not bool(torch.isfinite(norm_sq([narrow(whole, other, weight.shape)])[1]))


def test_at_level_certified_the_integers_of_a_contribution_stay_in_its_heads(tmp_path) -> None:
    def permitted(model: nn.Module) -> dict[str, torch.Tensor]:
        return by_hand_llama(model, {0, 1, 2})

    assert isolated(tmp_path, "biased_llama", SOME, "clinic", permitted, policy_extra='exactness = "certified"') > 100


def test_a_masked_run_resumes_and_its_export_verifies(tmp_path) -> None:
    world = make_world(tmp_path, steps=4, rate="1", per_class=2, classes=APART)
    first = Trainer(world, "biased_llama")
    steps = iter(first.steps)
    first.one(next(steps))
    first.one(next(steps))
    first.private.save()
    kept = {name: value.clone() for name, value in first.model.state_dict().items()}
    first.close()
    again = Trainer(world, "biased_llama", resume=True, seed=5)
    assert all(torch.equal(value, kept[name]) for name, value in again.model.state_dict().items())
    again.run()
    exported = again.private.export(tmp_path / "export")
    again.close()
    result = CliRunner().invoke(app, ["ledger", "verify", str(exported), "--key", str(tmp_path / "ledger.pub"), "--json"])
    assert '"verdict": "FULL"' in result.output, result.output[-2000:]


def test_blocks_say_which_heads_and_add_up(tmp_path) -> None:
    trainer = Trainer(make_world(tmp_path, steps=2, rate="1", per_class=2, classes=SOME), "biased_llama")
    blocks = trainer.private.recorder.ledger.header.blocks
    assert [block.name for block in blocks if block.name.startswith("layer.1")] == [
        "layer.1", "layer.1 attention", "layer.1 heads 0-2", "layer.1 heads 3",
    ]  # fmt: skip
    assert sum(block.coordinates for block in blocks) == sum(p.numel() for p in trainer.model.parameters())
    by_name = {block.name: block for block in blocks}
    assert by_name["layer.1 heads 0-2"].classes == ("clinic", "lab") and by_name["layer.1 heads 3"].classes == ("lab",)
    trainer.run()
    trainer.close()


@pytest.mark.parametrize("make", [lambda ps: torch.optim.Adafactor(ps), lambda ps: torch.optim.SGD(ps, lr=0.1)])
def test_an_optimizer_that_mixes_the_coordinates_of_a_tensor_is_refused(tmp_path, make) -> None:
    """Adafactor divides by means over rows and columns: one class's gradient would move another's heads."""
    world = make_world(tmp_path, steps=2, rate="1", per_class=2, classes=SOME)
    if isinstance(make([nn.Parameter(torch.zeros(2, 2))]), torch.optim.SGD):
        Trainer(world, "biased_llama", optimizer=make).close()
        return
    with pytest.raises(NotPrivateUse, match="OPTIMIZER_MIXES"):
        Trainer(world, "biased_llama", optimizer=make)


def refused(model: nn.Module, **settings) -> str:
    if "layers" not in settings:
        settings["band"] = ALL
    with pytest.raises(UnsupportedPolicy) as refusal:
        bind(policy_of(one=DepthRule(**settings), two=DepthRule(band=ALL)), layer_stack(model))
    return str(refusal.value)


def test_masks_that_a_model_cannot_honour_are_refused_by_name() -> None:
    llama = families.llama().model
    assert "HEAD_RANGE" in refused(llama, heads=(0, 4)) and "has 4" in refused(llama, heads=(0, 4))
    assert "EXPERTS_UNKNOWN" in refused(llama, experts=(0,))
    assert "HEADS_UNKNOWN" in refused(ZOO["olmoe"].build(), heads=(0,))
    assert "EXPERT_RANGE" in refused(ZOO["mixtral"].build(), experts=(4,))
    plain = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)])
    assert "HEADS_UNKNOWN" in refused(plain, heads=(0,)) and "no heads are known in '0'" in refused(plain, heads=(0,))
    assert "HEADS_UNKNOWN" in refused(plain, layers=(1,), heads=(0,))


def test_without_a_mask_nothing_is_split_and_no_name_changes() -> None:
    for family in ("llama", "mixtral"):
        model = ZOO[family].build()
        rules = {"low": DepthRule(band=(Fraction(0), Fraction(1, 2))), "high": DepthRule(band=(Fraction(1, 2), Fraction(1)))}
        schedule = bind(policy_of(**rules), layer_stack(model))
        assert all(t.part is None for block in schedule.blocks for t in block.tensors)
        assert {block.name for block in schedule.blocks} == {"embeddings", "layer.0", "layer.1", "head"}


def test_a_tied_tensor_that_its_uses_divide_differently_is_needed_whole() -> None:
    """Two layers share a query projection, one through a module of two heads and one through four."""
    model = families.llama().model
    first, second = (model.model.layers[i].self_attn for i in (0, 1))
    second.q_proj.weight = first.q_proj.weight
    stack = layer_stack(model)
    tied = next(t for t in stack.tensors if len(t.aliases) == 2 and "q_proj" in t.name)
    assert len(tied.divisions) == 1 and tied.divisions[0].dim == 0, "all uses divide it alike, so it can be split"
    model.model.layers[1].mlp.up_proj.weight = nn.Parameter(first.q_proj.weight.detach().clone())
    model.model.layers[1].mlp.up_proj.weight = first.q_proj.weight
    tied = next(t for t in layer_stack(model).tensors if len(t.aliases) == 3)
    assert tied.divisions[0].dim is None and tied.divisions[0].owners == {0, 1, 2, 3}
    rules = {"some": DepthRule(band=ALL, heads=(0, 1)), "all": DepthRule(band=ALL)}
    schedule = bind(policy_of(**rules), layer_stack(model))
    holder = next(block for block in schedule.blocks for t in block.tensors if t.name == tied.name)
    assert holder.classes == ("all",)


def test_shared_experts_are_the_layers_own_and_the_router_is_a_block() -> None:
    model = ZOO["qwen2_moe"].build()
    rules = {"some": DepthRule(band=ALL, experts=(0, 1, 2, 3)), "all": DepthRule(band=ALL)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedule = bind(policy_of(**rules), layer_stack(model))
    where = {t.name: block for block in schedule.blocks for t in block.tensors}
    router = next(block for name, block in where.items() if name.endswith("mlp.gate.weight"))
    assert router.name.endswith(" router") and router.classes == ("all",), "even with all experts named"
    shared = {block.name for name, block in where.items() if ".shared_expert" in name}
    assert shared == {"layer.0", "layer.1"}
    assert {block.name for name, block in where.items() if ".experts." in name} == {
        "layer.0 experts 0-3",
        "layer.1 experts 0-3",
    }
