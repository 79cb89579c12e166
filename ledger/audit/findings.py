"""What an audit reports."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ledger.leaves import HeaderBlock
from ledger.summary import ClassSummary

Verdict = Literal["FULL", "SUMMARISED", "FAILED"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    Attributes:
        code: short upper-case reason.
        where: the file of the export, or ``seq N`` for the meaning of a leaf.
        sentence: what was found and what was expected.
    """

    code: str
    where: str
    sentence: str


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One recorded epoch: its number, last step, charged steps, and the largest epsilon per class, None for a public one."""

    number: int
    step: int
    charged: int
    epsilons: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        verdict: FULL when everything was re-derived and nothing is wrong; FAILED otherwise. SUMMARISED is for pruned
            ledgers, which this version does not write.
        findings: what is wrong; empty unless FAILED.
        notes: what a reader should know though nothing is wrong.
        origin: the ledger's origin, as signed; None when the checkpoint itself was refused, and so are the rest.
        size: number of leaves, as signed.
        root_hex: root of the tree, as signed.
        finished: whether the run was closed.
        corpus: corpus of the policy.
        delta: the policy's delta.
        accountant: name, library and version that this audit computed with; a note says where the run recorded another.
        steps: the policy's horizon.
        charged: steps charged over all attempts.
        attempts: number of attempts.
        classes: per class, recomputed from the leaves.
        epochs: the recorded epochs.
        blocks: the noise schedule.
        noise_follows_draw: whether the noise of a step is what those drawn brought, rather than the schedule's.
        noise_phases: first step, factor on the schedule, and charged steps of each phase, where the noise varies over the run.
        owner: id of the policy's owner.
        model_digest: hex of the model digest in the last epoch, None without one.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    origin: str | None = None
    size: int | None = None
    root_hex: str | None = None
    finished: bool = False
    corpus: str | None = None
    delta: float | None = None
    accountant: str | None = None
    steps: int | None = None
    charged: int = 0
    attempts: int = 0
    classes: tuple[ClassSummary, ...] = ()
    epochs: tuple[EpochRow, ...] = ()
    blocks: tuple[HeaderBlock, ...] = ()
    noise_follows_draw: bool = False
    noise_phases: tuple[tuple[int, float, int], ...] = ()
    owner: str | None = None
    model_digest: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns a form that ``json.dumps`` takes."""
        return asdict(self)
