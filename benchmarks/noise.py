"""What a coordinate of noise costs, beside generators that promise less: ``python -m benchmarks.noise [--json]``.

Nanoseconds per coordinate, processor time and wall time, on one thread and on two. A release is everything between a clipped
sum and what may leave: cipher, transform or exact sampler, lattice, sum and normaliser; of every family, of Skellam noise in
two draws per step too; of noise that is correlated between steps by some strategies. Each row is the best of some repetitions,
taken in turn, so that a busy moment of the machine falls on all of them. ``--only release release_skellam`` for some rows.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dptrain.noise import DeviceGaussian, KeyStream, LatticeGaussian, Step
from dptrain.noise.correlated import CorrelatedGaussian, blt, toeplitz
from dptrain.noise.families import LAWS, IntegerNoise, integer_noise
from dptrain.noise.keystream import ChaChaStream
from dptrain.noise.lattice import CHUNK, MOST_THREADS
from dptrain.noise.threads import Threads
from ledger.accountants.correlated import BandedInverse, Dense, Strategy, Toeplitz
from ledger.leaves.numerics import lattice_bits

COORDINATES = 1 << 24

FAMILIES = {f"release_{family}": (family, 1) for family in LAWS} | {"release_skellam_in_2_draws": ("skellam", 2)}
"""Rows of the families beside the Gaussian: name and draws per step."""

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "release_banded_8": lambda: Toeplitz(tuple(toeplitz.optimal_coefficients(HORIZON, 8))),
    "release_buffered_3": lambda: blt.optimize(HORIZON, 3),
    "release_inverse_8": lambda: BandedInverse(tuple(toeplitz.banded_inverse_square_root(HORIZON, 8))),
    "release_dense_of_8_bands": lambda: Dense.of_inverse(
        Toeplitz(tuple(toeplitz.banded_inverse_square_root(HORIZON, 8))).matrix(HORIZON)
    ),
}
"""Rows of noise that is correlated between steps."""

HORIZON = 512

OURS = ("release", "normals", "cipher", "release_device", *FAMILIES, *STRATEGIES)


@contextmanager
def makers(coordinates: int) -> Iterator[dict[str, Callable[[], object]]]:
    """Functions that each make ``coordinates`` numbers, by name; memory is taken beforehand."""
    total = torch.zeros(coordinates, dtype=torch.float64)
    key = os.urandom(32)
    stream = KeyStream("noise", b"benchmark", 0, key)
    lattice = LatticeGaussian(stream)
    device = DeviceGaussian(ChaChaStream("noise on a device", b"benchmark", 0, key))
    others = {row: family_noise(stream, *FAMILIES[row]) for row in FAMILIES}
    steps = iter(range(1, 1 << 30))
    single, double = torch.empty(coordinates), torch.empty(coordinates, dtype=torch.float64)
    philox, pcg = np.random.Generator(np.random.Philox(1)), np.random.Generator(np.random.PCG64(1))
    out32, out64 = np.empty(coordinates, np.float32), np.empty(coordinates)
    pieces, threads = range(0, coordinates, CHUNK), Threads(MOST_THREADS)
    found: dict[str, Callable[[], object]] = {
        "release": lambda: lattice.release_(total, 1.0, 1.0, step=next(steps), lane=0),
        "normals": lambda: threads.each(lambda start: discard(lattice.normals(1, 0, start, CHUNK)), pieces),
        "cipher": lambda: threads.each(lambda start: discard(stream.read(1, 0, start // 2, CHUNK // 2)), pieces),
        "release_device": lambda: device.release_(total, 1.0, 1.0, step=next(steps), lane=0),
        **{row: family_release(others[row], total, FAMILIES[row][1], steps) for row in FAMILIES},
        **{row: correlated_release(stream, STRATEGIES[row], total) for row in STRATEGIES},
        "torch_randn_float32": lambda: single.normal_(),
        "torch_randn_float64": lambda: double.normal_(),
        "numpy_philox_float32": lambda: philox.standard_normal(dtype=np.float32, out=out32),
        "numpy_philox_float64": lambda: philox.standard_normal(out=out64),
        "numpy_pcg64_float64": lambda: pcg.standard_normal(out=out64),
        "numpy_pcg64_laplace_float64": lambda: pcg.laplace(size=coordinates),
        "numpy_pcg64_skellam_int64": lambda: pcg.poisson(2.0**31, coordinates) - pcg.poisson(2.0**31, coordinates),
        "urandom_box_muller_float32": lambda: urandom_box_muller(coordinates, torch.float32),
        "urandom_box_muller_float64": lambda: urandom_box_muller(coordinates, torch.float64),
    }
    try:
        yield found
    finally:
        lattice.destroy()
        device.destroy()
        for noise in others.values():
            noise.destroy()
        threads.close()


def family_noise(stream: KeyStream, family: str, draws: int) -> IntegerNoise:
    """Noise of a family on the lattice that a model of so many coordinates has at level ``certified``, at z = 1."""
    return integer_noise(family, stream, lattice_bits("certified", family, COORDINATES, 1.0), draws)


def family_release(noise: IntegerNoise, total: torch.Tensor, draws: int, steps: Iterator[int]) -> Callable[[], object]:
    """A release of the next step."""
    return lambda: noise.release_(total, 1.0, 1.0, step=next(steps), lane=0, draws=draws)


def correlated_release(stream: KeyStream, strategy: Callable[[], Strategy], total: torch.Tensor) -> Callable[[], object]:
    """A release of the next step, by a mechanism that is made, and brought to its full row, when it is first asked for."""
    held: dict[str, Any] = {}

    def release() -> object:
        if not held:
            held["noise"] = CorrelatedGaussian(stream, strategy(), HORIZON)
            held["state"], held["step"] = held["noise"].init(()), 0
            for _ in range(7):
                release()
        held["step"] += 1
        return held["noise"].release(total, held["state"], Step(held["step"], 0, 1.0, 1.0))

    return release


def discard(_: object) -> None:
    """What was made is not needed."""


def urandom_box_muller(coordinates: int, dtype: torch.dtype) -> torch.Tensor:
    """Bytes of the operating system, turned into normals without further care."""
    kind, bits = (torch.int32, 32) if dtype is torch.float32 else (torch.int64, 64)
    words = torch.frombuffer(bytearray(os.urandom(coordinates * bits // 8)), dtype=kind).view(-1, 2)
    uniform = words.to(dtype).mul_(2.0**-bits).add_(0.5)
    radius = uniform[:, 0].clamp_min(2.0**-bits).log().mul_(-2.0).sqrt()
    angle = uniform[:, 1] * (2.0 * np.pi)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def measure(
    rounds: int, threads: int, names: Sequence[str] = (), coordinates: int = COORDINATES
) -> dict[str, dict[str, float]]:
    """Nanoseconds per coordinate of these rows, by default all: the best of ``rounds`` after a warm-up, CPU and wall."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with makers(coordinates) as made:
            unknown = [name for name in names if name not in made]
            if unknown:
                raise SystemExit(f"no row {', '.join(unknown)}; there are {', '.join(made)}")
            chosen = {name: made[name] for name in names or made}
            best = {name: [float("inf"), float("inf")] for name in chosen}
            for make in chosen.values():
                make()
            for _ in range(rounds):
                for name, make in chosen.items():
                    wall, cpu = time.perf_counter(), time.process_time()
                    make()
                    taken = time.process_time() - cpu, time.perf_counter() - wall
                    best[name] = [min(a, b) for a, b in zip(best[name], taken, strict=True)]
    finally:
        torch.set_num_threads(before)
    return {
        name: {"cpu_ns": cpu / coordinates * 1e9, "wall_ns": wall / coordinates * 1e9} for name, (cpu, wall) in best.items()
    }


def run(rounds: int, threads: Sequence[int], coordinates: int = COORDINATES, names: Sequence[str] = ()) -> dict[str, Any]:
    """Every row, or those of these names, on each number of threads, the load of the machine beside it."""
    found = {str(count): measure(rounds, count, names, coordinates) for count in threads}
    return {"coordinates": coordinates, "rounds": rounds, "load": os.getloadavg()[0], "threads": found}


def render(found: dict[str, Any]) -> str:
    """A table: a row for each generator, CPU and wall for each number of threads."""
    counts = list(found["threads"])
    what = f"{found['coordinates']:,} coordinates, best of {found['rounds']}, load {found['load']:.1f}"
    lines = [f"ns per coordinate, CPU (wall); {what}"]
    lines.append(f"{'':36}" + "".join(f"{count + ' thread' + 's' * (count != '1'):>18}" for count in counts))
    for name in found["threads"][counts[0]]:
        row = [found["threads"][count][name] for count in counts]
        cells = "".join(f"{cell['cpu_ns']:>9.1f} ({cell['wall_ns']:>5.1f}) " for cell in row)
        lines.append(f"{'dptrain ' * (name in OURS) + name.replace('_', ' '):36}{cells}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--coordinates", type=int, default=COORDINATES)
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", help="these rows alone, named as in the JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="save the JSON here too")
    options = parser.parse_args()
    found = run(options.rounds, options.threads, options.coordinates, options.only)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if options.json else render(found))


if __name__ == "__main__":
    main()
