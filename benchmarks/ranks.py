"""What a rank holds and sends in a step, beside what ``dptrain plan --processes`` predicts: ``python -m benchmarks.ranks``.

A small encoder of eight equal layers trains in 1, 2 and 4 real processes under gloo, at two widths. What grows between the two
is divided by the parameters that came along, so that libraries and rows fall out: bytes per coordinate. Linux only, which can
set the peak of a process back. Probes of later steps are asked for in step 3, where 256 would have to pass. What is sent is
counted where it is handed to torch. The time of messages: ``python -m benchmarks.ranks_step --fence``.
"""

import argparse
import ctypes
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.__main__ import versions
from dptrain.planning.per_rank import Ranks, per_rank
from tests.distributed.launched import launched
from tests.worlds.training import make_world

WIDTHS = {False: (256, 512), True: (512, 1024)}
"""Widths of the encoder, whole and sharded: 3, 13 and 51 million parameters. Shards are small, and must stand out."""

CLASS = """
[[class]]
name = "all"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""
MICROBATCH = 4
LIMIT = 900.0
_MMAP_THRESHOLD = -3


def held(rank: int, root: Path, width: int, sharded: bool) -> tuple[int, dict[str, int]]:
    """Trains three steps; returns the parameters, the peaks of this process by moment, and what it sent in step 2."""
    import torch.distributed as dist
    from transformers import BertConfig, BertForSequenceClassification

    from dptrain.engine import start
    from dptrain.engine.prepared import PreparedRun
    from dptrain.engine.release import PrivateGradients
    from dptrain.parallel import placement
    from tests.reference import families
    from tests.worlds.trainer import Trainer
    from tests.worlds.training import World

    def make() -> families.Family:
        config = BertConfig(
            vocab_size=50, hidden_size=width, num_hidden_layers=8, num_attention_heads=2, intermediate_size=width, num_labels=3,
            max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return families.Family(BertForSequenceClassification(config), families._tokens, families._classify)

    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 19)  # what is freed goes back, and no earlier peak stays in the heap
    families.FAMILIES["measured"] = make
    start.AGAIN = 1
    found = {"sent": 0}
    under_way, microbatches = 0, 0
    release, draw, ranks = PrivateGradients.release, PreparedRun.draw, dist.get_world_size() if dist.is_initialized() else 1

    def counting(holder: Any, name: str, place: int, share: float) -> None:
        """Counts what a function of torch is given to send, in the second step."""
        inner = getattr(holder, name)

        def run(*given: Any, **named: Any) -> Any:
            values = [*given, *named.values()]
            found["sent"] += round(share * values[place].nbytes) if under_way == 2 else 0
            return inner(*given, **named)

        setattr(holder, name, run)

    counting(dist, "all_to_all_single", 1, (ranks - 1) / ranks if sharded else 1)
    counting(placement, "gather", 0, ranks - 1)
    counting(dist, "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor", 1, ranks - 1)

    def watched(self: PrivateGradients, *given: Any, **named: Any) -> None:
        if under_way == 2:  # the optimizer has its state since the first
            found["microbatches"] = _peak()
        release(self, *given, **named)
        if under_way == 2:
            found["release"] = _peak()
        _peak()

    def drawn(self: PreparedRun, number: int) -> Any:
        if under_way == 3:
            found["probes"] = _peak()  # what came between the second release and this draw: the optimizer and the probes
        return draw(self, number)

    for holder, name, made in ((PrivateGradients, "release", watched), (PreparedRun, "draw", drawn)):
        setattr(holder, name, made)
    trainer = Trainer(World.at(root), "measured", microbatch=MICROBATCH, sharded=sharded)
    found["address space, prepared"] = _status("VmSize:")
    for step in trainer.steps:
        under_way = step.number
        for rows in step:
            microbatches += under_way == 2
            trainer.private.backward(trainer.losses(rows), rows)
        trainer.optimizer.step()
        if under_way == 3:
            break
    trainer.close()
    if sharded:
        found["sent"] //= microbatches
    return sum(parameter.numel() for parameter in trainer.model.parameters()), found


def predicted(processes: int, sharded: bool) -> dict[str, float]:
    """Returns bytes per coordinate that a plan gives, by moment; the unused buckets are address space alone on a CPU.

    What is sent is that of a step, and under FSDP2 of one microbatch.
    """
    trained = 10**10
    ranks = Ranks(
        processes=processes, parameters=trained, trained=trained, contributions=1, layers=8, largest=1, sharded=sharded
    )
    found = per_rank(ranks)
    parts = {when: sum(one.bytes for one in found.memory if one.when == when) for when in {one.when for one in found.memory}}
    buckets = sum(one.bytes for one in found.memory if one.name.startswith("buckets"))
    always, parameters = parts["always"] - buckets, found.memory[0].bytes
    held = {
        "address space, prepared": parameters + buckets, "microbatches": always + parts["microbatches"],
        "release": always + max(parts.get("exchange", 0), parts["gather"]), "probes": always + parts["probes"],
        "sent": found.sent_bytes,
    }  # fmt: skip
    return {moment: count / trained for moment, count in held.items()}


def measured(processes: int, sharded: bool, widths: tuple[int, int] | None = None) -> dict[str, float]:
    """Returns bytes per coordinate that a rank held more at the larger width, by moment: of the rank that held most."""
    runs = []
    for width in widths or WIDTHS[sharded]:
        with tempfile.TemporaryDirectory() as folder:
            each = 3 * MICROBATCH * processes  # two or three microbatches for every rank
            world = make_world(Path(folder) / "world", per_class=each, steps=4, window_steps=1, rate="0.9", classes=CLASS)
            runs.append(launched(held, processes, world.root, width, sharded, limit=LIMIT))
    small, large = ((found[0][0], {key: max(one[1][key] for one in found) for key in found[0][1]}) for found in runs)
    return {moment: (count - small[1][moment]) / (large[0] - small[0]) for moment, count in large[1].items()}


def _peak() -> int:
    """Returns the peak of this process since it was asked last, in bytes."""
    found = _status("VmHWM:")
    Path("/proc/self/clear_refs").write_text("5")
    return found


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--widths", type=int, nargs=2)
    parser.add_argument("--out", type=Path, default=Path("bench-ranks.json"))
    options = parser.parse_args()
    found: dict[str, Any] = {}
    print(f"{'ranks':<10}{'moment':<26}{'predicted':>10}{'measured':>10}  bytes per coordinate")
    for processes in options.processes:
        for sharded in (False, True)[: 1 + (processes > 1)]:
            said, seen = predicted(processes, sharded), measured(processes, sharded, options.widths)
            name = f"{processes} {'FSDP2' if sharded else 'DDP'}"
            found[name] = {moment: {"predicted": said[moment], "measured": seen[moment]} for moment in said}
            for moment in said:
                print(f"{name:<10}{moment:<26}{said[moment]:>10.1f}{seen[moment]:>10.1f}", flush=True)
    options.out.write_text(json.dumps(versions() | {"held": found}, indent=1) + "\n")
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()
