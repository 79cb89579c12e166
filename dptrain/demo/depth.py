"""Measures what depth buys: three policies over the same contributions, with the noise on every block and the accuracy of each.

A contribution's gradient is small beside the noise, so accuracy falls with the energy of the noise: the sum of the variance on
every coordinate (docs/mechanism, Proposition 3).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attest.keys import load_public_key
from dptrain.demo.rehearsal import Tier
from dptrain.engine.one_owner import Contributor, stage, write_records
from dptrain.tasks.runconfig import RunConfig
from dptrain.tasks.runs import Outcome
from dptrain.train import train
from ledger.audit import verify_export


@dataclass(frozen=True)
class Arm:
    """Names one of the policies that are compared.

    Attributes:
        name: in results and folders. sentence: for people.
        tiers: its classes. A contribution is signed for them as they stand here.
        learning_rate: of its run.
    """

    name: str
    sentence: str
    tiers: tuple[Tier, ...]
    learning_rate: float


RATES = (0.0125, 0.025, 0.15)
"""Learning rates of the three arms: the best of three or four that were tried for each. Louder noise takes a smaller one."""


def arms(tiers: Sequence[Tier], clip_norm: float) -> tuple[Arm, Arm, Arm]:
    """Returns the policy of these tiers, the last, and what it is compared with.

    The first asks for everybody what the strictest class asks for, at one clip norm, and lets everybody touch everything. The
    second is the policy itself without its bands.
    """
    least = min(tier.epsilon for tier in tiers)
    strictest = tuple(replace(tier, epsilon=least, start="0.0", clip_norm=clip_norm) for tier in tiers)
    return (
        Arm("strictest", "everybody at the epsilon of the strictest class", strictest, RATES[0]),
        Arm("without_bands", "this policy without bands", tuple(replace(tier, start="0.0") for tier in tiers), RATES[1]),
        Arm("with_bands", "this policy", tuple(tiers), RATES[2]),
    )


@dataclass(frozen=True)
class Noise:
    """Says how much noise a run put on each block in a step, as the audit of its export derives it.

    Attributes:
        stds: standard deviation per coordinate, by block. coordinates: number of parameters, by block.
    """

    stds: Mapping[str, float]
    coordinates: Mapping[str, int]

    @classmethod
    def of(cls, folder: Path, owner_key: Path) -> "Noise":
        """Reads the noise off the audited export of a run, in the folder of its ledger."""
        keys = (folder / "ledger.pub").read_text(encoding="utf-8").split()
        report = verify_export(folder / "export", keys, owner_key=load_public_key(owner_key))
        return cls({row.name: row.std for row in report.blocks}, {row.name: row.coordinates for row in report.blocks})

    def energy(self, block: str | None = None) -> float:
        """Returns the expected squared norm of the noise of a step, of one block or of all."""
        return sum(self.coordinates[name] * std**2 for name, std in self.stds.items() if block in (None, name))


def rehearse(
    folder: Path, text: str, contributors: Sequence[Contributor], validation: Sequence[Mapping[str, Any]], run: str
) -> Outcome:
    """Trains under another policy over the same contributions, which are signed for it.

    Args:
        folder: new; gets keys, policy, corpus, ledger, export and model. text: of the policy.
        validation: public records for the accuracy. run: text of the run file.
    """
    folder.mkdir(parents=True)
    stage(folder, text, contributors, now=int(time.time()))
    write_records(folder / "validation.jsonl", validation)
    (folder / "run.toml").write_text(run, encoding="utf-8")
    return train(RunConfig.load(folder / "run.toml"))


def compared(runs: Sequence[tuple[Arm, Path, Outcome]]) -> dict[str, Any]:
    """Returns noise energy per block and accuracy of every arm, for one JSON object. Energies are shares of the first arm's."""
    noises = [Noise.of(folder, folder / "keys" / "owner.pub") for _, folder, _ in runs]
    first = noises[0]
    return {
        "blocks": [{"name": name, "parameters": count} for name, count in first.coordinates.items()],
        "arms": [
            {
                "name": arm.name,
                "sentence": arm.sentence,
                "epsilon": {row["class"]: row["epsilon"] for row in outcome.classes},
                "accuracy": outcome.accuracy,
                "noise_std": dict(noise.stds),
                "energy": noise.energy() / first.energy(),
                "energy_by_block": {block: noise.energy(block) / first.energy(block) for block in first.stds},
            }
            for (arm, _, outcome), noise in zip(runs, noises, strict=True)
        ],
    }
