"""Isolation of classes held to heads or experts, step for step through the engine; what is released, recorded and refused."""

import copy
import logging

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402

from attest.policy import DepthRule  # noqa: E402
from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.resolver import bind  # noqa: E402
from dptrain.errors import NotPrivateUse  # noqa: E402
from tests.guarantees.test_isolation_of_profiles import classes, step_once  # noqa: E402
from tests.reference import families  # noqa: E402
from tests.reference.masked import ALL, biased_llama, by_hand_gpt2, by_hand_llama, covered, mixture  # noqa: E402
from tests.routing import compiled_scene  # noqa: E402
from tests.routing.test_depth_and_resolver import policy_of  # noqa: E402
from tests.worlds.commands import run_command  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.trainer import collate_tokens  # noqa: E402
from tests.worlds.training import make_world, token_record  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

KEY = b"\x07" * 32

SOME = classes("from = 0.0, to = 1.0, heads = [0, 1, 2]", "from = 0.0, to = 1.0")
APART = classes("from = 0.0, to = 1.0, heads = [0, 1]", "from = 0.34, to = 1.0, heads = [2]")
FUSED = classes("from = 0.0, to = 1.0, heads = [1]", "layers = [1, 2], heads = [0, 1]")


EXPERTS = classes("from = 0.0, to = 1.0, experts = [0, 3]", "from = 0.0, to = 1.0")

TAUGHT = [
    ("biased_llama", SOME, {"clinic": {0, 1, 2}, "lab": {0, 1, 2, 3}}),
    ("biased_llama", APART, {"clinic": {0, 1}, "lab": {2}}),
    ("gpt2_untied", FUSED, {"clinic": {1}, "lab": {0, 1}}),
]


@pytest.fixture(autouse=True)
def families_of_this_file(monkeypatch) -> None:
    monkeypatch.setitem(families.FAMILIES, "biased_llama", biased_llama)
    monkeypatch.setitem(families.FAMILIES, "mixture", mixture)


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


@pytest.mark.one_in(9)
@pytest.mark.parametrize("changed", ["clinic", pytest.param("lab", marks=pytest.mark.slow)])
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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("together", [False, True], ids=["by blocks", "all together"])
def test_a_clip_by_blocks_keeps_the_heads_of_classes_apart(tmp_path, monkeypatch, together: bool) -> None:
    """Parts of one tensor are clipped by the norms of their own blocks; clipped together they are not apart (control)."""

    def permitted(model: nn.Module) -> dict[str, torch.Tensor]:
        return by_hand_llama(model, {0, 1, 2})

    def one(self: Trainer, step) -> None:
        for rows in step:
            self.private.backward(self.losses(rows), rows)
        if together:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        else:
            assert min(self.private.clip_blocks_(0.05).values()) > 0.05
        self.optimizer.step()

    monkeypatch.setattr(Trainer, "one", one)
    if together:
        with pytest.raises(AssertionError, match="moved outside the class's heads"):
            isolated(tmp_path, "biased_llama", SOME, "clinic", permitted)
    else:
        assert isolated(tmp_path, "biased_llama", SOME, "clinic", permitted) > 100


@pytest.mark.parametrize("changed", ["clinic", pytest.param("lab", marks=pytest.mark.slow)])
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
    frozen = covered(trainer.model, trainer.private.prepared.schedule)["frozen"]
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
    blocks = trainer.private.opened.recorder.ledger.header.blocks
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


@pytest.mark.parametrize(("family", "allowed", "clip"), [("gpt2_untied", {1}, 10), ("biased_llama", {0, 1, 2}, 1000)])
def test_what_is_released_is_the_sum_of_the_masked_gradients(tmp_path, family: str, allowed: set, clip: int) -> None:
    """Bounds that do not bind, and next to no noise: every coordinate has its own gradient, and no other's."""
    text = classes(f"from = 0.0, to = 1.0, heads = {sorted(allowed)}", "from = 0.0, to = 1.0")
    for value in ("0.5", "1.0"):
        text = text.replace(f"clip_norm = {value}", f"clip_norm = {clip}")
    for value in ("1.5", "1.0"):
        text = text.replace(f"noise_multiplier = {value}", "noise_multiplier = 0.000001")
    world = make_world(tmp_path, steps=2, rate="1", per_class=2, classes=text)
    trainer = Trainer(world, family, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.0))
    hand = (by_hand_llama if "llama" in family else by_hand_gpt2)(trainer.model, allowed)
    model = copy.deepcopy(trainer.model)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for seed in (0, 1, 1000, 1001):
        model.zero_grad()
        for p in model.parameters():
            p.requires_grad_(True)
        rows = {k: v for k, v in collate_tokens([token_record(seed)]).items()}
        trainer.family.losses(model, rows).sum().backward()
        for name, p in model.named_parameters():
            if p.grad is not None:
                expected[name] += p.grad * (hand[name] if seed < 1000 else 1.0)
    for step in trainer.steps:
        trainer.one(step)
        for name, p in trainer.model.named_parameters():
            gap = (p.grad * trainer.private.policy.normalizer - expected[name]).abs().max()
            assert float(gap) < 1e-5 * clip, name
            assert float(expected[name].abs().max()) > 5e-5 * clip or "bias" in name
    trainer.close()


def test_at_level_certified_the_integers_of_a_contribution_stay_in_its_heads(tmp_path) -> None:
    def permitted(model: nn.Module) -> dict[str, torch.Tensor]:
        return by_hand_llama(model, {0, 1, 2})

    assert isolated(tmp_path, "biased_llama", SOME, "clinic", permitted, policy_extra='exactness = "certified"') > 100


@pytest.mark.slow
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


PUBLIC = """
[[class]]
name = "clinic"
clip_norm = 0.5
noise_multiplier = 1.5
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0, heads = [0, 1] }}
[[class]]
name = "lab"
public = true
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0, heads = [1, 2] }}
"""


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("changed", "heads"), [("clinic", {0, 1}), ("lab", {1, 2})])
def test_private_and_public_contributions_stay_in_their_heads(tmp_path, changed: str, heads: set) -> None:
    """Parts that public contributions alone may touch have no noise, and nothing private in them."""

    def permitted(model: nn.Module) -> dict[str, torch.Tensor]:
        return by_hand_llama(model, heads)

    assert isolated(tmp_path, "biased_llama", PUBLIC, changed, permitted) > 100


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
    result = run_command(["ledger", "verify", str(exported), "--key", str(tmp_path / "ledger.pub"), "--json"])
    assert '"verdict": "FULL"' in result.output, result.output[-2000:]


def test_blocks_say_which_heads_and_add_up(tmp_path) -> None:
    trainer = Trainer(make_world(tmp_path, steps=2, rate="1", per_class=2, classes=SOME), "biased_llama").begin()
    blocks = trainer.private.opened.recorder.ledger.header.blocks
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
