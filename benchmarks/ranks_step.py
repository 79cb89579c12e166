"""Cost of a private step on two processes beside the same wrapper without privacy: ``python -m benchmarks.ranks_step``.

Both take turns in the same processes, round by round, with one thread each, under gloo on this machine; the same is done alone,
so that the ratios stand side by side. A step has the configuration's contributions over all processes, and every process half
of them, in microbatches of the same size. The base is the faster of torch's own products and oneDNN's. Ratios are of wall time,
as processes wait for each other; seconds of CPU stand beside. ``--fence`` measures the messages of a step alone.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.bases import make_optimizer, onednn_products
from benchmarks.configs import CONFIGS, Config, by_name
from benchmarks.variants import _policy, _world
from dptrain import Microbatches, PrivateTraining
from tests.distributed.launched import launched
from tests.worlds.trainer import wrapped

LIMIT = 1800.0


def timed(rank: int, name: str, rounds: int, root: Path, sharded: bool) -> dict[str, dict[str, list[float]]]:
    """Wall and CPU seconds of every variant's steps at this rank."""
    config = by_name(name)
    taken: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        steps = {"plain": without(config, sharded, False, stack), "ours": private(config, root, sharded, stack)}
        if not sharded:
            steps["plain_onednn"] = without(config, sharded, True, stack)
        for step in steps.values():
            step()
        order = random.Random(0)
        for _ in range(rounds):
            for variant in order.sample(list(steps), len(steps)):
                together()
                wall, cpu = time.perf_counter(), time.process_time()
                steps[variant]()
                own = time.process_time() - cpu
                together()
                row = taken.setdefault(variant, {"wall": [], "cpu": []})
                row["wall"].append(time.perf_counter() - wall)
                row["cpu"].append(own)
    return taken


def together() -> None:
    if dist.is_initialized():
        dist.barrier()


def without(config: Config, sharded: bool, onednn: bool, stack: ExitStack) -> Callable[[], None]:
    """One step without privacy, reduced once, as a program with gradient accumulation does it."""
    model = config.model().train()
    if onednn:
        stack.enter_context(onednn_products(model))
    net: Any = wrapped(model, sharded=sharded)
    optimizer = make_optimizer(model)
    several = dist.is_initialized()
    rank, size = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
    inputs, labels = (value[rank::size] for value in config.batch())

    def step() -> None:
        starts = range(0, len(inputs), config.microbatch)
        for start in starts:
            last = start == starts[-1]
            if sharded and several:
                net.set_requires_gradient_sync(last)
            quiet = net.no_sync() if several and not sharded and not last else nullcontext()
            with quiet:
                end = start + config.microbatch
                (config.losses(net, inputs[start:end], labels[start:end]).sum() / config.contributions).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def private(config: Config, root: Path, sharded: bool, stack: ExitStack) -> Callable[[], None]:
    """One step of a run over a signed corpus, with gate, ledger and noise."""
    model: nn.Module = config.model().train()
    net = wrapped(model, sharded=sharded)
    optimizer = make_optimizer(model)

    def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
        inputs = torch.stack([config.inputs.read(e["input"]) for e in examples])
        return {"inputs": inputs, "labels": torch.tensor([e["label"] for e in examples])}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = stack.enter_context(
            PrivateTraining.open(
                root / "policy.cose", root / "corpus", ledger=root / "ledger.db", progress=False,
                microbatches=Microbatches(config.microbatch),
            )
        )  # fmt: skip
        _, _, steps = run.prepare(net, optimizer, collate)
    iterator = iter(steps)

    def step() -> None:
        for rows in next(iterator):
            run.backward(config.losses(net, rows["inputs"], rows["labels"]), rows)
        optimizer.step()

    return step


def fenced(rank: int, times: int) -> dict[str, float]:
    """Median milliseconds of what ranks say to each other in a step: the charge of a window, and how each stands."""
    from dptrain.parallel import found

    ranks = found()
    kinds = {"charge": lambda: ranks.first(lambda: b"x" * 600), "stand": lambda: ranks.all(b"x" * 99)}
    told = {}
    for kind, say in kinds.items():
        spent = []
        for _ in range(times):
            start = time.perf_counter()
            say()
            spent.append(time.perf_counter() - start)
        told[kind] = 1000 * statistics.median(spent)
    ranks.leave()
    return told


def measured(name: str, rounds: int, ranks: int, sharded: bool) -> dict[str, float]:
    """Median seconds by variant, those of the slowest rank, and the ratio to the faster base."""
    config, root = by_name(name), Path(tempfile.mkdtemp(prefix="dptrain-bench-"))
    try:
        _world(root, config, _policy(config))
        found = launched(timed, ranks, name, rounds, root, sharded, limit=LIMIT)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    seconds = {
        f"{variant}_{clock}_s": max(statistics.median(one[variant][clock]) for one in found)
        for variant in found[0]
        for clock in ("wall", "cpu")
    }
    bases = [value for key, value in seconds.items() if key.startswith("plain") and key.endswith("wall_s")]
    return seconds | {"ratio": seconds["ours_wall_s"] / min(bases)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", nargs="+", default=["bert_full"], metavar="NAME", help=", ".join(CONFIGS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sharded", action="store_true", help="also under fully_shard")
    parser.add_argument("--fence", action="store_true", help="measure the messages of a step alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {}
    if options.fence:
        found["fence"] = launched(fenced, 2, 300)[0]
    else:
        for name in options.config:
            found[name] = {"alone": measured(name, options.rounds, 1, False)}
            found[name]["ddp"] = measured(name, options.rounds, 2, False)
            if options.sharded:
                found[name]["fsdp2"] = measured(name, options.rounds, 2, True)
    if options.json:
        print(json.dumps(found))
        return
    for name, rows in found.items():
        for way, row in rows.items() if name != "fence" else [("ms", rows)]:
            print(f"{name:<14}{way:<8}" + "  ".join(f"{key} {value:.3f}" for key, value in row.items()))


if __name__ == "__main__":
    main()
