"""What a rank holds in a step, beside what ``dptrain plan --processes`` predicts: ``python -m benchmarks.ranks``.

A small encoder of eight equal layers trains in 1, 2 and 4 real processes under gloo, at two widths. What grows between the two
is divided by the parameters that came along, so that libraries and rows fall out: bytes per coordinate. Linux only, which can
set the peak of a process back. Probes of later steps are asked for in step 3, where 256 would have to pass. Besides, the time
of the message that ranks pass around before a release.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.__main__ import versions
from dptrain.planning.per_rank import Ranks, per_rank
from tests.distributed.launched import launched
from tests.worlds.training import make_world

WIDTHS = (512, 896)
"""Widths of the encoder: 13 and 39 million parameters."""

CLASS = """
[[class]]
name = "all"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""
MICROBATCH = 4
MESSAGE = 99
"""Bytes that a rank tells the others before a release, while nothing weakens the run."""


def held(rank: int, root: Path, width: int) -> tuple[int, dict[str, int]]:
    """Trains three steps; returns the parameters, and the peak of this process by moment."""
    from transformers import BertConfig, BertForSequenceClassification

    from dptrain.engine import start
    from dptrain.engine.release import PrivateGradients
    from tests.reference import families
    from tests.worlds.trainer import Trainer
    from tests.worlds.training import World

    def make() -> families.Family:
        config = BertConfig(
            vocab_size=50, hidden_size=width, num_hidden_layers=8, num_attention_heads=2, intermediate_size=width, num_labels=3,
            max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return families.Family(BertForSequenceClassification(config), families._tokens, families._classify)

    found: dict[str, int] = {}
    families.FAMILIES["measured"] = make
    start.AGAIN = 1
    release = PrivateGradients.release

    def watched(self: PrivateGradients, *given: Any, **named: Any) -> None:
        number = given[1]
        if number > 1:  # the optimizer has its state since the first
            found["microbatches" if number == 2 else "probes"] = _peak()
        release(self, *given, **named)
        if number == 2:
            found["release"] = _peak()
        _peak()

    PrivateGradients.release = watched  # type: ignore[method-assign]
    trainer = Trainer(World.at(root), "measured", microbatch=MICROBATCH)
    found["address space, prepared"] = _status("VmSize:")
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 3:
            break
    trainer.close()
    return sum(parameter.numel() for parameter in trainer.model.parameters()), found


def message(rank: int, times: int) -> float:
    """Returns the median time in which every rank hears from all others what it hears before a release, in seconds."""
    from dptrain.parallel.ranks import Group

    group, spent = Group(), []
    for _ in range(times):
        start = time.perf_counter()
        group.all(bytes(MESSAGE))
        spent.append(time.perf_counter() - start)
    return statistics.median(spent[times // 10 :])


def predicted(processes: int) -> dict[str, float]:
    """Returns bytes per coordinate that a plan gives, by moment; the unused buckets are address space alone on a CPU."""
    trained = 10**9
    found = per_rank(Ranks(processes=processes, parameters=trained, trained=trained, contributions=1))
    parts = {when: sum(one.bytes for one in found.memory if one.when == when) for when in {one.when for one in found.memory}}
    buckets = sum(one.bytes for one in found.memory if one.name.startswith("buckets"))
    always = parts["always"] - buckets
    release = max(parts.get("exchange", 0), parts["gather"])
    held = {
        "address space, prepared": 4 * trained + buckets, "microbatches": always + parts["microbatches"],
        "release": always + release, "probes": always + parts["probes"],
    }  # fmt: skip
    return {moment: count / trained for moment, count in held.items()}


def measured(processes: int, widths: tuple[int, int] = WIDTHS) -> dict[str, float]:
    """Returns bytes per coordinate that a rank held more at the larger width, by moment: of the rank that held most."""
    runs = []
    for width in widths:
        with tempfile.TemporaryDirectory() as folder:
            world = make_world(Path(folder) / "world", per_class=8, steps=4, window_steps=1, rate="0.9", classes=CLASS)
            runs.append(launched(held, processes, world.root, width, limit=300.0))
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
    parser.add_argument("--out", type=Path, default=Path("bench-ranks.json"))
    options = parser.parse_args()
    found: dict[str, Any] = {}
    print(f"{'processes':<11}{'moment':<26}{'predicted':>10}{'measured':>10}  bytes per coordinate")
    for processes in options.processes:
        said, seen = predicted(processes), measured(processes)
        found[str(processes)] = {moment: {"predicted": said[moment], "measured": seen[moment]} for moment in said}
        for moment in said:
            print(f"{processes:<11}{moment:<26}{said[moment]:>10.1f}{seen[moment]:>10.1f}", flush=True)
    messages = {ranks: max(launched(message, ranks, 400)) for ranks in options.processes if ranks > 1}
    for ranks, spent in messages.items():
        print(f"{ranks:<11}message before a release, median of 360: {spent * 1e3:.2f} ms")
    options.out.write_text(json.dumps(versions() | {"held": found, "message_s": messages}, indent=1) + "\n")
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()
