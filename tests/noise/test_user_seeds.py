"""Seeds that a user sets reach neither noise nor draws, and neither noise nor draws use up what a user seeded."""

import ast
import random
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
accelerate_utils = pytest.importorskip("accelerate.utils")

import dptrain  # noqa: E402
from dptrain.data.sampling import PoissonSampler  # noqa: E402
from dptrain.noise import DeviceGaussian, KeyStream, LatticeGaussian  # noqa: E402
from dptrain.noise.keystream import ChaChaStream  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

RATE = "0.000000001"


@pytest.fixture(autouse=True)
def _seeds_as_before() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def seed_everything(seed: int) -> None:
    """All that a training script would call."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    accelerate_utils.set_seed(seed)


def states() -> tuple:
    kind, words, *rest = np.random.get_state()
    return random.getstate(), (kind, tuple(words), *rest), tuple(torch.get_rng_state().tolist())


def numbers(key: bytes) -> list[list[float]]:
    """Noise of both generators and three draws, from a fixed key."""
    host = LatticeGaussian(KeyStream("noise", b"r" * 16, 0, key))
    device = DeviceGaussian(ChaChaStream("noise on a device", b"r" * 16, 0, key))
    sampler = PoissonSampler(KeyStream("sampling", b"r" * 16, 0, key), [Fraction(3, 10)] * 200, [0] * 200)
    released = [noise.release_(torch.zeros(1000), 1.0, 1.0, step=1, lane=0).tolist() for noise in (host, device)]
    return [*released, *(sampler.draw(step).tolist() for step in (1, 2, 3))]


def test_numbers_are_a_function_of_the_key_alone() -> None:
    seed_everything(1)
    first = numbers(bytes(32))
    seed_everything(2)
    assert numbers(bytes(32)) == first
    seed_everything(2)
    assert all(a != b for a, b in zip(numbers(b"k" * 32), first, strict=True))


def test_noise_and_draws_use_up_nothing_that_the_user_seeded() -> None:
    seed_everything(3)
    before = states()
    numbers(bytes(32))
    assert states() == before
    torch.rand(1)
    assert states() != before, "the comparison sees a number that is used up"


def released(root: Path, generator: str) -> tuple[torch.Tensor, list[list[int]]]:
    """Two steps of a run whose script seeds everything, before and within; whitened noise, and draws of another run."""
    seed_everything(4)
    trainer = Trainer(make_world(root / "noise", steps=2, rate=RATE), seed=4, noise_generator=generator)
    parts = []
    for step in trainer.steps:
        seed_everything(4)
        for rows in step:
            trainer.private.backward(trainer.losses(rows), rows)
        for g, tensor in trainer.private.prepared.router.tensors:
            std = trainer.private.prepared.schedule.blocks[g].std
            parts.append((tensor.parameter.grad.double() * trainer.private.policy.normalizer / std).flatten())
        trainer.optimizer.step()
    trainer.close()
    seed_everything(4)
    drawing = Trainer(make_world(root / "draws", steps=2, per_class=20), seed=4).begin()
    draws = [drawing.private.prepared.attempt.drawing.draw(number) for number in range(1, 9)]
    drawing.close()
    return torch.cat(parts), draws


@pytest.mark.parametrize("generator", ["host", "device"])
@pytest.mark.one_in(3)
@pytest.mark.slow
def test_runs_of_equal_seeds_have_different_noise_and_draws(generator: str, tmp_path: Path) -> None:
    noise, draws = released(tmp_path / "a", generator)
    again, others = released(tmp_path / "b", generator)
    assert abs(float((noise * again).mean())) < 5 / len(noise) ** 0.5
    half = len(noise) // 2
    assert abs(float((noise[:half] * noise[half:]).mean())) < 5 / half**0.5, "a seed set in every step repeats nothing"
    assert draws != others


SEEDED = frozenset(
    {
        "bernoulli", "bernoulli_", "cauchy_", "default_rng", "default_generator", "exponential_", "Generator", "geometric_",
        "initial_seed", "log_normal_", "manual_seed", "multinomial", "normal", "normal_", "poisson", "rand", "rand_like",
        "randint", "randint_like", "randn", "randn_like", "random", "random_", "randperm", "seed", "shuffle", "uniform",
        "uniform_",
    }
)  # fmt: skip
"""Names under which torch, numpy and the standard library hand out numbers of seeded generators."""


def seeded_names(source: str) -> set[str]:
    """Names of seeded generators that are looked up on a module or object, or imported, anywhere in the source."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {part for alias in node.names for part in alias.name.split(".")}
            found |= set((getattr(node, "module", None) or "").split("."))
    return found & SEEDED


ROOT = Path(dptrain.__file__).parent


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "noise").glob("*.py")), ROOT / "data/sampling.py", ROOT / "engine/draw.py"],
    ids=lambda path: path.name,
)
def test_no_source_of_noise_or_draws_names_a_seeded_generator(path: Path) -> None:
    assert not seeded_names(path.read_text())


@pytest.mark.parametrize(
    "line", ["torch.randn(3)", "x.normal_()", "import random", "from numpy.random import default_rng", "g = torch.Generator()"]
)
def test_a_seeded_generator_would_be_seen(line: str) -> None:
    assert seeded_names(line)
