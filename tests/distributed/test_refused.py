"""What several processes refuse, each with its code and its sentence, and alike at every rank."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from attest import signed_file  # noqa: E402
from attest.keys import public_bytes  # noqa: E402
from attest.policy import Policy, open_policy, sign_policy  # noqa: E402
from dptrain import parallel  # noqa: E402
from dptrain.engine import private_training  # noqa: E402
from dptrain.errors import NotPrivateUse, RanksError  # noqa: E402
from dptrain.noise.lattice import OnHost  # noqa: E402
from dptrain.parallel.wrapped import refuse_engine, unwrapped  # noqa: E402
from tests.distributed.jobs import NOW, Job, Net, net, opened  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.peers import Run, per_example, small_world  # noqa: E402
from tests.worlds.training import World  # noqa: E402

STEPS = 3
SAME = r" at rank 1 and at rank 0: expected the same, found others; every process must run the same program over the same files"
RATES = r" at rank 1 and at rank 0: expected the same, found others; let them follow from the number of the step alone"


def ddp(model: nn.Module, **options: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, **options)


class Renamed(Net):
    """The same shapes in the same order, of which one has another name."""

    def __init__(self) -> None:
        super().__init__()
        self.top = self.head
        del self.head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.head = self.top
        try:
            return super().forward(ids)
        finally:
            del self.head


def renamed() -> nn.Module:
    torch.manual_seed(0)
    return Renamed()


class Spare(Net):
    """With a layer that it uses or not."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.spare, self.used = nn.Linear(24, 24), used

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in [*self.layers, *([self.spare] if self.used else [])]:
            x = torch.tanh(layer(x))
        logits: torch.Tensor = self.head(x.mean(1))
        return logits


def unused() -> nn.Module:
    torch.manual_seed(0)
    return Spare(False)


def used() -> nn.Module:
    torch.manual_seed(0)
    return Spare(True)


def with_momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.8, 0.999))


def moved(run: Run) -> None:
    """Moves one number of the model by the least there is."""
    with torch.no_grad():
        weight = run.model.head.weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(1.0))


def other_numbers(run: Run) -> None:
    run.private.prepared.sandbox.load_state_dict({"seed": "ff" * 16})


def other_start(run: Run) -> None:
    run.private.prepared.start_step = 1


def other_draw(run: Run) -> None:
    """Draws for itself once the run has begun."""
    prepared = run.private.prepared
    begin = prepared.begin

    def begun() -> None:
        begin()
        sampler = prepared.attempt.streams.sampler
        draw = sampler.draw
        sampler.draw = lambda step: draw(step)[1:]

    prepared.begin = begun


def other_noise(run: Run) -> None:
    """Would release under less noise than the others, the same for ledger and schedule."""
    use = run.private.prepared.gradients.use
    run.private.prepared.gradients.use = lambda stds: use(tuple(std / 2 for std in stds))


def drifting(run: Run) -> None:
    """Writes a parameter behind the optimizer's last step of the epoch."""
    step = run.optimizer.step

    def stepped() -> None:
        step()
        if run.private.prepared.step == STEPS:
            moved(run)

    run.optimizer.step = stepped


def other_rate(run: Run) -> None:
    """Lets another learning rate come in the middle of the run."""
    step = run.optimizer.step

    def stepped() -> None:
        step()
        for group in run.optimizer.param_groups:
            group["lr"] /= 2

    run.optimizer.step = stepped


@contextmanager
def other_program() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_training, "code_digest", lambda: bytes(32))
        yield


@contextmanager
def unaddressed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnHost, "addressed", False)
        yield


@dataclass(frozen=True)
class Case:
    """Something that rank 1 has otherwise, or all have.

    Attributes:
        code: of the refusal. says: what its sentence matches. charged: steps that the ledger has charged by then.
        options, before: of the job, at rank 1; everywhere if ``alike``. common: options at every rank.
        within: what holds while it runs there.
        world: which world rank 1 opens.
    """

    code: str
    says: str
    charged: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    common: dict[str, Any] = field(default_factory=dict)
    before: Callable[[Run], None] | None = None
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    world: str = "world"
    alike: bool = False


CASES = {
    "policy": Case("RANKS_DIFFER", "the policy" + SAME, world="policy"),
    "corpus": Case("RANKS_DIFFER", "what the gate admitted" + SAME, world="corpus"),
    "program": Case("RANKS_DIFFER", "the program" + SAME, within=other_program),
    "clock": Case(
        "CLOCKS_DIFFER", r"clocks of ranks are 61 s apart, expected 60 s at most; set them right", options={"now": NOW + 61},
    ),
    "model": Case("RANKS_DIFFER", "the model" + SAME, options={"model": renamed}),
    "where noise is drawn": Case("RANKS_DIFFER", "the schedule of noise" + SAME, options={"noise_generator": "device"}),
    "what the probes found": Case(
        "RANKS_DIFFER", "what the probes found" + SAME, common={"model": unused}, options={"model": used},
    ),
    "weights": Case("RANKS_DIFFER", "the weights" + SAME, before=moved),
    "optimizer": Case("RANKS_DIFFER", "the optimizer" + SAME, options={"optimizer": with_momentum}),
    "size of microbatches": Case("RANKS_DIFFER", "the size of microbatches" + SAME, options={"microbatch": 3}),
    "start": Case("RANKS_DIFFER", "the size of microbatches" + SAME, before=other_start),
    "numbers of the forward": Case("RANKS_DIFFER", "the forward's random numbers" + SAME, before=other_numbers),
    "draw": Case("RANKS_DIFFER", "the draw of a step" + SAME, 1, before=other_draw),
    "noise": Case("RANKS_DIFFER", "the draw of a step" + SAME, 1, before=other_noise),
    "learning rate on the way": Case("RANKS_DIFFER", "learning rates" + RATES, 2, before=other_rate),
    "weights at the end of an epoch": Case("RANKS_DIFFER", "the weights" + SAME, STEPS, before=drifting),
    "no wrapper": Case(
        "NOT_WRAPPED", r"2 processes train, .* in no wrapper of theirs: .* Call model, optimizer = accelerator.prepare",
        options={"wrap": lambda model: model}, alike=True,
    ),
    "static graph": Case(
        "STATIC_GRAPH", r"wrapped with static_graph=True, .* leave it out",
        options={"wrap": lambda model: ddp(model, static_graph=True)}, alike=True,
    ),
    "noise that is not addressed": Case(
        "NOISE_RANKS", r"LatticeGaussian does not say that it draws the noise of a coordinate from its address alone, .*2 rank",
        within=unaddressed, alike=True,
    ),
}  # fmt: skip
"""By what differs."""


def refusals(rank: int, root: Path) -> dict[str, tuple[str, str, str, int]]:
    """Meets every case in turn; tells by case how it ended here: kind, code, sentence, and steps charged."""
    return {name: _met(rank, root, place, case) for place, (name, case) in enumerate(CASES.items())}


def _met(rank: int, root: Path, place: int, case: Case) -> tuple[str, str, str, int]:
    here = rank == 1 or case.alike
    options = case.common | (case.options if here else {})
    world = root / (case.world if here else "world")
    job = Job(world, f"case{place}", before=case.before if here else None, options=options)
    run, charged = None, 0
    with case.within() if here else nullcontext():
        try:
            run = opened(job)
            for step in run.steps:
                for rows in step:
                    run.private.backward(per_example(run.net, rows), rows)
                run.optimizer.step()
        except Exception as error:
            if run is not None:
                recorder = run.private.opened.recorder
                charged = recorder.ledger.state.charged if recorder.begun else 0
            return type(error).__name__, getattr(error, "code", ""), getattr(error, "sentence", str(error)), charged
        finally:
            if run is not None:
                run.private.close()
    return "", "", "nothing was refused", charged


def signed_again(world: World, place: Path) -> None:
    """A copy of a world under another policy of the same owner."""
    shutil.copytree(world.root, place)
    policy = open_policy(world.policy, public_bytes(world.owner_key)).policy
    other = Policy.from_toml(policy.to_toml().replace("normalizer = 4", "normalizer = 5"))
    assert other != policy
    payload, message = sign_policy(other, world.owner_key, owner="owner", registry_root=world.registry.root())
    signed_file.write(place / "policy.cose", payload, message)


def with_another_record(world: World, place: Path) -> None:
    """A copy of a world in whose corpus one record says something else than was signed, and is not admitted."""
    shutil.copytree(world.root, place)
    data = place / "corpus" / "open.jsonl"
    first, *rest = data.read_text().splitlines()
    data.write_text("\n".join([json.dumps(json.loads(first) | {"label": 2}), *rest]) + "\n")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[str, str, str, int]]]:
    root = tmp_path_factory.mktemp("refused")
    world = small_world(root / "world", per_class=5, steps=STEPS, window_steps=1)
    signed_again(world, root / "policy")
    with_another_record(world, root / "corpus")
    return launched(refusals, 2, root)


@pytest.mark.parametrize("name", CASES)
def test_both_ranks_refuse_with_the_same_code_and_say_what_and_where(found, name: str) -> None:
    case = CASES[name]
    for kind, code, sentence, charged in (ranks[name] for ranks in found):
        assert code == case.code, f"{kind} {sentence}"
        assert re.search(case.says, sentence), sentence
        assert charged == case.charged


# ------------------------------------------------------------------------------------------ refused in any process


@pytest.mark.parametrize("kind", ["DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA", "TP", "MULTI_XPU"])
def test_engines_that_reduce_in_their_own_way_are_refused_by_name(kind: str) -> None:
    """FSDP: that of version 1, which accelerate calls by the same name."""
    with pytest.raises(NotPrivateUse, match=f"^ENGINE: accelerate runs {kind}, which reduces, shards or scales gradients"):
        refuse_engine(SimpleNamespace(distributed_type=kind, is_fsdp2=False))


@pytest.mark.parametrize("axis", ["tp", "cp", "sp"])
def test_parallelism_inside_a_contribution_is_refused(axis: str) -> None:
    config = SimpleNamespace(**{f"{name}_enabled": name == axis for name in ("tp", "cp", "sp")})
    with pytest.raises(NotPrivateUse, match=r"^ENGINE: .* under which one contribution lies on several ranks"):
        refuse_engine(SimpleNamespace(distributed_type="MULTI_GPU", parallelism_config=config))


@pytest.mark.parametrize("kind", ["NO", "MULTI_CPU", "MULTI_GPU"])
def test_engines_that_leave_gradients_alone_are_taken(kind: str) -> None:
    refuse_engine(SimpleNamespace(distributed_type=kind))
    refuse_engine(SimpleNamespace(distributed_type="FSDP", is_fsdp2=True))


def test_wrappers_that_sum_gradients_are_refused_by_name() -> None:
    with pytest.raises(NotPrivateUse, match=r"^WRAPPER: the model is wrapped in DataParallel, which sums gradients before"):
        unwrapped(nn.DataParallel(net()), None, parallel.ALONE)


def flat_shards(rank: int) -> tuple[str, str]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    try:
        unwrapped(model, None, parallel.found())
    except NotPrivateUse as error:
        return error.code, error.sentence
    return "", ""


@pytest.mark.slow
def test_fsdp_of_version_1_is_refused_by_name() -> None:
    for code, sentence in launched(flat_shards, 2):
        assert code == "WRAPPER" and "FullyShardedDataParallel, which sums gradients before they are clipped" in sentence


def test_a_process_that_belongs_to_others_and_has_no_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RanksError, match=r"^NO_GROUP: this is one of 2 processes, and there is no process group yet; make Acc"):
        parallel.found()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert parallel.found() is parallel.ALONE
