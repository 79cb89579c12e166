"""Keeps the public numbers of a run in run.json, and tells another run from this one."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from attest.files import atomic_write, read_limited
from dptrain.errors import ResumeRefused
from dptrain.inference.invisibleink.plan import Plan
from dptrain.inference.invisibleink.references import References
from dptrain.inference.invisibleink.tasks import Task

FILE: Final = "run.json"
LIST: Final = "references.json"
FORMAT: Final = "dptrain.generation/1"

_MOST: Final = 1 << 20
_MOST_LISTED: Final = 1 << 32


@dataclass(frozen=True)
class Setting:
    """Holds what makes a run this run: all of it is public, and none of it says what stands in a reference.

    Attributes:
        task: its name and digest. model: its name, type and the digest of its tensors. words: public words of all texts.
        references: how many, the digest of their ids and labels, and under which signed rule, if under any.
        plan: the numbers, exact. budget: verifier key of the log that pays.
    """

    task: dict[str, Any]
    model: dict[str, Any]
    words: dict[str, str]
    references: dict[str, Any]
    plan: dict[str, Any]
    budget: dict[str, Any]

    @classmethod
    def of(
        cls,
        task: Task,
        plan: Plan,
        references: References,
        *,
        task_name: str,
        model: dict[str, Any],
        budget: dict[str, Any],
        words: dict[str, str] | None = None,
        score: str | None = None,
    ) -> "Setting":
        """Returns the setting of a run. ``score``: digest of what scores documents, where they are retrieved."""
        rule = references.rule
        whose = {"class": rule.name, "policy_sha256": (references.policy or b"").hex()} if rule is not None else {}
        if score is not None:
            whose = {"score_sha256": score}
        numbers = {**asdict(plan), "nano_rho_per_token": plan.nano_rho, "epsilon": plan.epsilon}
        return cls(
            {"name": task_name, "sha256": task.digest},
            model,
            dict(words or {}),
            {"count": len(references) + len(references.gone), "ids_sha256": references.digest, **whose},
            numbers,
            budget,
        )

    def keep(self, folder: Path) -> None:
        """Writes run.json, or holds what is there against this run.

        Raises:
            ResumeRefused: code RUN_TASK, RUN_MODEL, RUN_WORDS, RUN_REFERENCES, RUN_PLAN or RUN_BUDGET, the folder is of another
                run; RUN_FILE, it is none of a run.
        """
        path = folder / FILE
        if not path.exists():
            data = json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False)
            atomic_write(path, f"{data}\n".encode())
            return
        try:
            found = json.loads(read_limited(path, _MOST, "file of a run"))
            if found["format"] != FORMAT:
                raise ValueError(found["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise ResumeRefused("RUN_FILE", f"{path} is no file of a run, or of another version; take another --out") from error
        attested = "policy_sha256" in self.references
        shared = f"; the budget {self.budget.get('name')} pays for that too" if attested else ""
        for name, mine in json.loads(json.dumps(asdict(self))).items():
            there = found.get(name)
            if _unnamed(there) != _unnamed(mine):
                raise ResumeRefused(f"RUN_{name.upper()}", f"{path} has {name} {_told(there, mine)}; {_HOW}{shared}")


def keep_references(folder: Path, references: References) -> None:
    """Writes the ids and labels with which a run of attested references begins: digests, which its log has too."""
    path = folder / LIST
    if references.rule is not None and not path.exists():
        data = json.dumps({"format": FORMAT, "references": references.listed}, ensure_ascii=True)
        atomic_write(path, f"{data}\n".encode())


def going_on(folder: Path, references: References) -> References:
    """Returns the references with which a run goes on: attested ones that were withdrawn, or have ended since it began, are
    gone, and the batches are what they were. That the list is the one of the run its digest in run.json says.

    Raises:
        ResumeRefused: code RUN_FILE, the list of the run is none.
    """
    path = folder / LIST
    if references.rule is None or not path.exists() or not (folder / FILE).exists():
        return references
    try:
        found = json.loads(read_limited(path, _MOST_LISTED, "list of references"))["references"]
        if not all(isinstance(one, str) and isinstance(label, str | None) for one, label in found):
            raise ValueError(found)
    except (ValueError, KeyError, TypeError) as error:
        raise ResumeRefused("RUN_FILE", f"{path} is no list of references of a run; restore it") from error
    return references.since((one, label) for one, label in found)


_HOW: Final = "go on with what the run began with, or begin another in a folder of its own"


def _unnamed(value: Any) -> Any:
    """Returns what counts of a field: digests do, and not under what name a thing lies somewhere."""
    return {key: one for key, one in value.items() if key != "name"} if isinstance(value, dict) else value


def _told(there: Any, mine: Any) -> str:
    """Says where two values of a field differ."""
    if not isinstance(there, dict) or not isinstance(mine, dict):
        return f"{there!r:.80}, now it is {mine!r:.80}"
    different = [key for key in sorted(there.keys() | mine.keys()) if key != "name" and there.get(key) != mine.get(key)]
    return ", ".join(f"{key} {there.get(key)!r:.80}, now it is {mine.get(key)!r:.80}" for key in different[:3])
