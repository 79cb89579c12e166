"""Statement A, held to a swap of payloads: under every optimizer of torch, without a clip, with torch's and with ours.

Two engines draw the same contributions and the same noise, and start every step from the same parameters and state. In one of
them a contribution of the top band is replaced by a null. Outside its band no bit of a parameter or of optimizer state may
differ wherever the product says that A is held. What it says is read from the product: it is what the ledger records.
"""

import copy
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.engine.release import PrivateGradients  # noqa: E402
from dptrain.errors import NotPrivateUse  # noqa: E402
from dptrain.sandbox import isolation  # noqa: E402
from dptrain.sandbox.isolation import IsolationNotice  # noqa: E402
from ledger.leaves import HELD  # noqa: E402
from tests.guarantees.peers import Run, must_fail, net  # noqa: E402
from tests.worlds.training import World, make_world, token_record  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.sandbox.isolation.IsolationNotice")

STEPS = 3
TIGHT = 0.05
"""A norm that every clip reaches."""

BANDS = """
[[class]]
name = "top"
clip_norm = 8.0
noise_multiplier = 0.001
sampling_rate = {q}
depth = {{ from = 0.67, to = 1.0 }}
[[class]]
name = "all"
clip_norm = 0.1
noise_multiplier = 0.08
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""
"""Noise is the same everywhere and small: what one payload of the top band adds decides how large the whole gradient is."""

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Clip = Callable[[Run], None]

CLIPS: dict[str, Clip] = {
    "plain": lambda run: None,
    "clip_grad_norm_": lambda run: nn.utils.clip_grad_norm_(run.model.parameters(), TIGHT),
    "clip_blocks_": lambda run: run.private.clip_blocks_(TIGHT),
}


def with_payload(seed: int) -> dict:
    """The records of one world: of the class ``top`` contribution 0 alone has a gradient, 1 is a null of the same shape."""
    return token_record(seed) | ({"label": -100} if seed == 1 else {})


def with_null(seed: int) -> dict:
    """The records of the other world: contribution 0 is a null as well."""
    return with_payload(seed) | ({"label": -100} if seed == 0 else {})


@pytest.fixture(scope="module")
def worlds(tmp_path_factory) -> tuple[World, World]:
    """The same corpus twice, with the payload and with the null."""
    root = tmp_path_factory.mktemp("worlds")
    options: dict[str, Any] = {"classes": BANDS, "steps": STEPS, "rate": "1", "per_class": 2, "now": 1_800_000_000}
    return make_world(root / "payload", record=with_payload, **options), make_world(root / "null", record=with_null, **options)


_ledgers = count()


def prepared(world: World, make: Make, wrap: Callable[[Any], Any] = lambda optimizer: optimizer) -> Run:
    """A run with an optimizer over what it can train."""
    model = net().float()
    kind = make([nn.Parameter(torch.zeros(2, 2))])
    for parameter in model.parameters():
        parameter.requires_grad_(not isinstance(kind, torch.optim.Muon) or parameter.dim() == 2)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Run(world, model, optimizer=wrap(make(trained)), name=f"ledger-{next(_ledgers)}", layers="layers")


def inner(run: Run) -> torch.optim.Optimizer:
    return run.private.prepared.optimizer


def snapshot(run: Run) -> dict[str, torch.Tensor]:
    """Every trained parameter and everything that the optimizer keeps for it, by name."""
    found = {}
    for _, tensor in run.private.prepared.router.tensors:
        found[f"{tensor.name}/value"] = tensor.parameter.detach().clone()
        for key, value in inner(run).state[tensor.parameter].items():
            if isinstance(value, torch.Tensor):
                found[f"{tensor.name}/{key}"] = value.clone()
    return found


def teach(run: Run, other: Run) -> None:
    """Puts a run where another one stands, by writes that no version counts: the engine must not see the teacher."""
    for own, their in zip(run.model.parameters(), other.model.parameters(), strict=True):
        own.data.copy_(their.data)
    inner(run).load_state_dict(copy.deepcopy(inner(other).state_dict()))


@dataclass
class Swap:
    """What a swap showed.

    Attributes:
        told: what the product says of A. outside: names of what differed outside the band. inside: how much differed in it.
    """

    told: str
    outside: set[str]
    inside: int


def swapped(worlds: tuple[World, World], make: Make, clip: Clip, **options: Any) -> Swap:
    """Runs both worlds step by step from equal states."""
    with prepared(worlds[0], make, **options) as a, prepared(worlds[1], make, **options) as b:
        band = {tensor.name for _, tensor in a.private.prepared.router.tensors if ".2." in tensor.name or "head" in tensor.name}
        outside: set[str] = set()
        inside = 0
        for first, second in zip(a.steps, b.steps, strict=True):
            teach(b, a)
            for run, step in ((a, first), (b, second)):
                run.gradients(step)
                clip(run)
                run.optimizer.step()
            one, other = snapshot(a), snapshot(b)
            assert one.keys() == other.keys()
            for name in one:
                if not torch.equal(one[name], other[name]):
                    inside += name.split("/")[0] in band
                    outside |= set() if name.split("/")[0] in band else {name}
        told = a.private.prepared.isolation.told
        assert told == b.private.prepared.isolation.told, "what is recorded does not follow from the payload"
        return Swap(told, outside, inside)


def judged(found: Swap) -> None:
    """What is said to be held is held; and the payload shows where it may, or the swap shows nothing at all."""
    assert found.inside > 0, "positive control: the payload must show inside its band"
    assert not (found.told == HELD and found.outside), f"said to be held, and moved outside the band: {sorted(found.outside)}"


# --- every optimizer of torch -------------------------------------------------------------------------------------------

TORCH = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}

REFUSED = {"LBFGS": "CLOSURE_OPTIMIZER", "SparseAdam": "SPARSE_OPTIMIZER"}

OPTIONS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "differentiable": {"differentiable": True},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "weight_decay": {"weight_decay": 0.1},
    "amsgrad": {"amsgrad": True},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.3},
    "centered": {"centered": True},
    "decoupled_weight_decay": {"decoupled_weight_decay": True, "weight_decay": 0.1},
    "momentum_decay": {"momentum_decay": 0.1},
    "lr_decay": {"lr_decay": 0.1},
    "initial_accumulator_value": {"initial_accumulator_value": 0.1},
    "adjust_lr_fn": {"adjust_lr_fn": "match_rms_adamw"},
    "ns_steps": {"ns_steps": 2},
    "lambd": {"lambd": 0.1},
    "t0": {"t0": 1.0},
    "step_sizes": {"step_sizes": (1e-3, 1.0)},
    "d": {"d": 2.0},
    "beta2_decay": {"beta2_decay": -0.5},
}
"""Options that change what a step computes; each is swapped by itself."""

NUMBERS = {"params", "lr", "betas", "eps", "alpha", "rho", "etas", "ns_coefficients"}
"""Options that are numbers of the same formula."""

ELSEWHERE = {"capturable"}
"""Options that torch takes on other devices only."""


def forms(name: str) -> dict[str, dict[str, Any]]:
    """The forms of an optimizer: as it comes, and with each of its options."""
    known = inspect.signature(TORCH[name]).parameters
    found = {"as it comes": {}} | {option: value for option, value in OPTIONS.items() if option in known}
    if name == "Adafactor":  # a scale of its own, so no weight decay alone in the list above
        found["eps"] = {"eps": (1e-20, 1e-2)}
    return {form: {key: value for key, value in options.items() if key in known} for form, options in found.items()}


CASES = [
    (name, form, clip)
    for name in sorted(TORCH)
    if name not in REFUSED
    for form in forms(name)
    for clip in (CLIPS if form == "as it comes" else ["plain"])
]
"""Every optimizer under every clip, and every form of it without one: a clip knows nothing of forms."""

_found: dict[tuple[str, str, str], Swap] = {}


def found_by(worlds: tuple[World, World], name: str, form: str, clip: str) -> Swap:
    """What the swap shows of a case; found once."""
    case = (name, form, clip)
    if case not in _found:
        options = {"lr": 0.05} | forms(name)[form]
        _found[case] = swapped(worlds, lambda ps: TORCH[name](ps, **options), CLIPS[clip])
    return _found[case]


@pytest.mark.parametrize("name", sorted(TORCH))
def test_every_optimizer_of_torch_has_been_judged(name: str) -> None:
    """A new one, or a new option of an old one, fails here until it is on a list."""
    kind = TORCH[name]
    assert (kind in isolation.KNOWN) is (name not in REFUSED)
    if name not in REFUSED:
        new = set(inspect.signature(kind).parameters) - set(OPTIONS) - NUMBERS - ELSEWHERE
        assert not new, f"options of {name} that nobody judged: {sorted(new)}"


def marked(case: tuple[str, str, str]) -> Any:
    """Forms of an optimizer are among the slow tests; every one as it comes is not."""
    return pytest.param(*case, id="-".join(case), marks=[] if case[1] == "as it comes" else [pytest.mark.slow])


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("name", "form", "clip"), map(marked, CASES))
def test_the_swap_shows_what_the_product_says(worlds, name: str, form: str, clip: str) -> None:
    found = found_by(worlds, name, form, clip)
    judged(found)
    assert (found.told == HELD) is (clip != "clip_grad_norm_")
    if clip == "clip_grad_norm_":
        assert found.told == "step 1: gradients were changed after their release"
        assert found.outside, "one norm over all gradients reaches every tensor"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_optimizers_that_cannot_take_what_is_released_are_refused_before_anything_is_charged(worlds, name: str) -> None:
    class Own(TORCH[name]):
        """A subclass is refused too."""

    for kind in (TORCH[name], Own):
        with pytest.raises(NotPrivateUse, match=REFUSED[name]):
            Run(worlds[0], model := net(), optimizer=kind(model.parameters(), lr=0.1), name=f"refused-{next(_ledgers)}")
    assert not list(worlds[0].root.glob("refused-*.db")), "no ledger was made"


ROW = "| {name} | {plain} | {clip} | {blocks} |"


@cache
def page() -> str:
    return (Path(__file__).resolve().parents[2] / "docs/mechanism/isolation.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TORCH))
def test_the_table_in_the_docs_is_what_the_product_says(worlds, name: str) -> None:
    if name in REFUSED:
        told = dict.fromkeys(CLIPS, f"refused, `{REFUSED[name]}`")
    else:
        found = {clip: found_by(worlds, name, "as it comes", clip) for clip in CLIPS}
        told = {clip: "held" if swap.told == HELD else "weakened" for clip, swap in found.items()}
    assert ROW.format(name=name, plain=told["plain"], clip=told["clip_grad_norm_"], blocks=told["clip_blocks_"]) in page()


# --- optimizers with one number for all tensors, and what wraps one ------------------------------------------------------


class OneScale(torch.optim.SGD):
    """A stand-in for D-Adaptation and Prodigy: one estimate of a step size from the gradients of all tensors."""

    def step(self, closure: Any = None) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        scale = torch.stack([grad.abs().sum() for grad in grads]).sum()
        for group in self.param_groups:
            group["lr"] = float(1e-2 / (1e-8 + scale))
        super().step()


class GlobalLars(torch.optim.Optimizer):
    """A stand-in for LARS with one trust ratio for the whole model."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        ratio = nn.utils.get_total_norm(held) / (1e-8 + nn.utils.get_total_norm([p.grad for p in held]))
        for p in held:
            p.sub_(self.param_groups[0]["lr"] * ratio * p.grad)


class Sam(torch.optim.SGD):
    """A stand-in for SAM: before the step, a move along the gradient of all tensors, over its one norm."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in held])
        for p in held:
            p.add_(0.05 * p.grad / (1e-8 + norm))
        super().step()


class ClipsItself(torch.optim.AdamW):
    """An optimizer of torch that clips in its own step: its base is on the list, and it is not."""

    def step(self, closure: Any = None) -> None:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], TIGHT)
        super().step()


class Harmless(torch.optim.SGD):
    """A subclass that changes nothing, which nobody can tell from its type."""


STRANGERS = {"one scale": OneScale, "global LARS": GlobalLars, "SAM": Sam, "clips itself": ClipsItself}


@pytest.mark.one_in(99)
@pytest.mark.parametrize("stranger", STRANGERS)
def test_an_optimizer_with_one_number_for_all_tensors_weakens_a_by_name_and_the_swap_shows_why(worlds, stranger: str) -> None:
    kind = STRANGERS[stranger]
    found = swapped(worlds, lambda ps: kind(ps, lr=0.05), CLIPS["plain"])
    assert found.told == f"optimizer {kind.__name__} is not known to keep tensors apart"
    assert found.outside, "and rightly so"


def test_a_subclass_is_not_its_base_even_if_it_changes_nothing(worlds) -> None:
    found = swapped(worlds, lambda ps: Harmless(ps, lr=0.05), CLIPS["plain"])
    assert found.told == "optimizer Harmless is not known to keep tensors apart" and not found.outside


class Lookahead:
    """A wrapper with an optimizer in it, that moves the weights itself after the step, by one number for all of them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self) -> None:
        self.optimizer.step()
        held = [p.data for group in self.param_groups for p in group["params"]]
        for p in held:
            p.mul_(1 - 0.01 * nn.utils.get_total_norm(held))


def test_what_wraps_an_optimizer_is_named_unless_it_is_accelerates_own(worlds) -> None:
    found = swapped(worlds, lambda ps: torch.optim.SGD(ps, lr=0.05), CLIPS["plain"], wrap=Lookahead)
    assert found.told == "what wraps the optimizer (Lookahead) is not known to leave its step alone" and found.outside
    accelerate = pytest.importorskip("accelerate")
    cpu = accelerate.Accelerator(cpu=True)
    found = swapped(worlds, lambda ps: torch.optim.SGD(ps, lr=0.05), CLIPS["clip_blocks_"], wrap=cpu.prepare_optimizer)
    judged(found)
    assert found.told == HELD
    found = swapped(
        worlds,
        lambda ps: torch.optim.SGD(ps, lr=0.05),
        lambda run: cpu.clip_grad_norm_(run.model.parameters(), TIGHT),
        wrap=cpu.prepare_optimizer,
    )
    assert found.told.startswith("step 1: gradients") and found.outside
    cpu.free_memory()


# --- the largest payload decides -----------------------------------------------------------------------------------------


def norm_of(run: Run) -> float:
    return float(nn.utils.get_total_norm([p.grad for p in run.model.parameters()]))


def test_a_clip_that_bites_for_one_payload_alone_weakens_a_in_both_worlds(worlds) -> None:
    """Where it does not bite it multiplies by one: no value changes, and A is lost all the same."""

    def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05)

    norms = []
    for world in worlds:
        with prepared(world, sgd) as run:
            run.gradients(next(iter(run.steps)))
            norms.append(norm_of(run))
    assert norms[0] > 2 * norms[1], "the payload is what makes the gradient large"
    between = (norms[0] + norms[1]) / 2
    found = swapped(worlds, sgd, lambda run: nn.utils.clip_grad_norm_(run.model.parameters(), between))
    assert found.told.startswith("step 1: gradients were changed") and found.outside
    blockwise = swapped(worlds, sgd, lambda run: run.private.clip_blocks_(between))
    judged(blockwise)
    assert blockwise.told == HELD


# --- mutants: each of these faults is seen by a test above ---------------------------------------------------------------


def test_an_entry_on_the_list_for_an_optimizer_that_couples_would_be_caught(worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(isolation.KNOWN, GlobalLars, isolation.Reach.TENSOR)
    found = swapped(worlds, lambda ps: GlobalLars(ps), CLIPS["plain"])
    assert found.told == HELD
    must_fail(lambda: judged(found))


def test_a_clip_of_blocks_by_one_norm_would_be_caught(worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_together(self: PrivateGradients, max_norm: float) -> dict[str, float]:
        nn.utils.clip_grad_norm_([parameter for parameter, _ in self._released], max_norm)
        self._remember()
        return {}

    monkeypatch.setattr(PrivateGradients, "clip_blocks_", all_together)
    found = swapped(worlds, lambda ps: torch.optim.SGD(ps, lr=0.05), CLIPS["clip_blocks_"])
    assert found.told == HELD
    must_fail(lambda: judged(found))


def test_a_clip_of_all_gradients_that_nobody_noticed_would_be_caught(worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dptrain.sandbox.untouched.Remembered.changed", lambda self: False)
    found = swapped(worlds, lambda ps: torch.optim.SGD(ps, lr=0.05), CLIPS["clip_grad_norm_"])
    assert found.told == HELD
    must_fail(lambda: judged(found))


def test_it_is_said_before_the_first_step_where_it_can_be_known(worlds) -> None:
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", IsolationNotice)
        with prepared(worlds[0], lambda ps: GlobalLars(ps)) as run:
            run.private.prepared.begin()
            assert run.private.opened.recorder.ledger.header.isolation == run.private.prepared.isolation.told != HELD
    said = [str(item.message) for item in noticed if issubclass(item.category, IsolationNotice)]
    assert len(said) == 1 and "GlobalLars" in said[0] and "epsilon is not touched" in said[0]
