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
                other = f"other {name}" if name in ("references", "words") else f"another {name}"
                sentence = f"{path} is of {other}: {_told(name, there, mine)}"
                raise ResumeRefused(f"RUN_{name.upper()}", f"{sentence}; {_HOW}{shared}")


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


_IN_WORDS: Final = {
    "batch": "B", "tokens": "T", "epsilon": "epsilon of a text", "delta": "delta", "tau": "temperature",
    "k": "k of the truncation", "adjacency": "adjacency", "records": "most references of one person", "clip": "clip norm C",
    "nano_rho_per_token": "1e-9 rho of a token", "count": "number of references", "class": "class", "log_key": "key of the log",
    "dtype": "type", "policy_sha256": "digest of the policy", "ids_sha256": "digest of ids and labels",
    "score_sha256": "digest of the weights that score documents",
}  # fmt: skip
"""Fields of run.json in words, in the order in which a person is told of them; digests come last."""

_DIGESTED: Final = {
    "references": "there are as many, and ids or labels are others",
    "task": "its prompts are others",
    "model": "its tensors or its tokenizer are others",
}
"""Says what it means that nothing but the digest of a field differs."""


def _told(name: str, there: Any, mine: Any) -> str:
    """Says in words where two values of a field differ, and their digests last."""
    if not isinstance(there, dict) or not isinstance(mine, dict):
        return f"{there!r:.80}, now it is {mine!r:.80}"
    places = {key: place for place, key in enumerate(_IN_WORDS)}
    different = [key for key in there.keys() | mine.keys() if key != "name" and there.get(key) != mine.get(key)]
    different.sort(key=lambda key: ("sha256" in key, places.get(key, len(places)), key))
    said = [f"{_IN_WORDS.get(key, key)} {_shown(there, key)}, now it is {_shown(mine, key)}" for key in different]
    if name in _DIGESTED and not any(key == "count" or key == "dtype" for key in different) and different[0] != "score_sha256":
        said.insert(0, _DIGESTED[name])
    return "; ".join(said)


def _shown(values: dict[str, Any], key: str) -> str:
    if key not in values:
        return "none"
    value = values[key]
    return f"{value:.6g}" if isinstance(value, float) else f"{value!s:.80}"
