"""Measures an adapter under encryption beside TenSEAL's own products, in one process: ``python -m benchmarks.inference_he``.

Each round runs every row once, so that a busy moment falls on all of them; times are the best of the rounds, by the wall and
by the processor, and the load of the machine stands beside. The first row is of the size at which the target is stated (80 ms
of the server for a token, error 1e-6), others are of small models. TenSEAL's ``.mm`` runs under the same parameters at a small
size, where ours runs too; at the large one it takes some 15 s, with ``--mm-large``. Needs ``pip install 'dptrain[he]'``.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.__main__ import versions
from dptrain.inference.he import wire
from dptrain.inference.he.adapter import Adapter
from dptrain.inference.he.client import HEKeys
from dptrain.inference.he.scheme import DEGREE, MODULI, SCALE
from dptrain.inference.he.server import AdapterServer

SIZES = {"target": (1536, 32), "20M": (512, 16), "stories260K": (64, 8)}
"""Width of the state and rank; a Llama of 20 M parameters is 512 wide."""
SMALL = (64, 8)
NORM = 177.5
"""Length of the states, that of the published figures."""


def world(width: int, rank: int) -> tuple[Adapter, np.ndarray, np.ndarray]:
    """Returns an adapter of random factors, a state, and what the adapter gives in double precision."""
    rng = np.random.default_rng(0)
    adapter = Adapter(rng.normal(size=(rank, width)) / width**0.5, rng.normal(size=(width, rank)) / rank**0.5, 0.1)
    state = rng.normal(size=width)
    state *= NORM / np.linalg.norm(state)
    return adapter, state, adapter.scaling * (adapter.B @ (adapter.A @ state))


def timed(times: dict[str, float], name: str, make: Callable[[], Any]) -> Any:
    """Makes something, and adds how long that took, by the wall and by the processor, in ms."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = make()
    times |= {f"{name}_cpu_ms": (time.process_time() - cpu) * 1e3, f"{name}_ms": (time.perf_counter() - wall) * 1e3}
    return made


class Ours:
    """One client and one server, in one process for the clock alone."""

    def __init__(self, width: int, rank: int) -> None:
        self.adapter, self.state, self.expected = world(width, rank)
        self.once: dict[str, float] = {}
        self.keys = timed(self.once, "keys", lambda: HEKeys.generate(self.adapter.width))
        self.server = AdapterServer()
        timed(self.once, "register", lambda: self.server.register_keys("s", self.keys.public))
        timed(self.once, "encode_adapter", lambda: self.server.prepare(self.adapter))
        self.sizes = {"keys": len(self.keys.public)}

    def round(self) -> tuple[dict[str, float], float]:
        times: dict[str, float] = {}
        sent = timed(times, "encrypt", lambda: self.keys.encrypt(self.state))
        answer = timed(times, "server", lambda: self.server.apply("s", self.adapter, sent))
        delta = timed(times, "decrypt", lambda: self.keys.decrypt(answer))
        timed(times, "of_server_reading", lambda: wire.unpack_vector(wire.STATE, sent))  # before its product
        self.sizes |= {"up": len(sent), "down": len(answer)}
        return times, float(np.abs(delta - self.expected).max())


class Theirs:
    """TenSEAL's `CKKSVector.mm`, twice, on one thread."""

    def __init__(self, width: int, rank: int) -> None:
        import tenseal

        self.adapter, self.state, self.expected = world(width, rank)
        self.context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(MODULI), n_threads=1)
        self.context.global_scale = SCALE
        self.once: dict[str, float] = {}
        timed(self.once, "keys", self.context.generate_galois_keys)
        self.inner, self.outer = self.adapter.A.T.tolist(), (self.adapter.scaling * self.adapter.B).T.tolist()
        public = self.context.serialize(save_public_key=True, save_secret_key=False, save_relin_keys=False)
        self.sizes = {"keys": len(public)}

    def round(self) -> tuple[dict[str, float], float]:
        from tenseal import ckks_vector, ckks_vector_from

        times: dict[str, float] = {}
        sent = timed(times, "encrypt", lambda: ckks_vector(self.context, self.state.tolist()).serialize())
        answer = timed(
            times, "server", lambda: ckks_vector_from(self.context, sent).mm(self.inner).mm(self.outer).serialize()
        )
        delta = np.array(timed(times, "decrypt", lambda: ckks_vector_from(self.context, answer).decrypt()))
        self.sizes |= {"up": len(sent), "down": len(answer)}
        return times, float(np.abs(delta[: len(self.expected)] - self.expected).max())


def run(rounds: int, large: bool) -> dict[str, Any]:
    """Returns every row: sizes in bytes, times in ms, the largest error of delta over all rounds, delta's largest entry."""
    rows: dict[str, Ours | Theirs] = {f"dptrain {name}": Ours(*size) for name, size in SIZES.items()}
    rows["tenseal mm small"] = Theirs(*SMALL)
    if large:
        rows["tenseal mm target"] = Theirs(*SIZES["target"])
    best: dict[str, dict[str, float]] = {name: {} for name in rows}
    errors = dict.fromkeys(rows, 0.0)
    for _ in range(rounds):
        for name, row in rows.items():
            times, error = row.round()
            errors[name] = max(errors[name], error)
            best[name] = {key: min(best[name].get(key, np.inf), value) for key, value in times.items()}
    return {
        name: {
            "width": len(row.state),
            "rank": row.adapter.A.shape[0],
            "once": row.once,
            "times": best[name],
            "bytes": row.sizes,
            "largest_error": errors[name],
            "largest_delta": float(np.abs(row.expected).max()),
        }
        for name, row in rows.items()
    }


def render(found: dict[str, Any]) -> str:
    """Returns a table, a row for each."""
    lines = [f"best of {found['rounds']}, load {found['load']:.1f}; ms, and kB"]
    lines.append(f"{'':22}{'encrypt':>9}{'server':>9}{'(cpu)':>9}{'decrypt':>9}{'up':>7}{'down':>7}{'keys':>8}{'error':>10}")
    for name, row in found["rows"].items():
        times = [row["times"][f"{part}_ms"] for part in ("encrypt", "server", "server_cpu", "decrypt")]
        up, down, keys = (row["bytes"][part] / 1e3 for part in ("up", "down", "keys"))
        cells = "".join(f"{each:>9.2f}" for each in times)
        lines.append(f"{name:22}{cells}{up:>7.0f}{down:>7.0f}{keys:>8.0f}{row['largest_error']:>10.1e}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--mm-large", action="store_true", help="TenSEAL's product at the size of the target too: 15 s a round")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="save the JSON here too")
    options = parser.parse_args()
    found = versions() | {"rounds": options.rounds, "tenseal": version("tenseal"), "load": os.getloadavg()[0]}
    found["rows"] = run(options.rounds, options.mm_large)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if options.json else render(found))


if __name__ == "__main__":
    main()
