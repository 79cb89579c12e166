"""`dptrain train`, `plan --measure` and `demo`: what needs torch, on the smallest models that tests use."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import digits, nothing

_TIMES = {
    "measured.threads": "<count>",
    "measured.classes.seconds_per_contribution": "<seconds>",
    "measured.classes.seconds_per_step": "<seconds>",
    "measured.classes.share": "<fraction>",
    "measured.fixed_seconds": "<seconds>",
    "measured.seconds_per_step": "<seconds>",
    "measured.seconds_per_run": "<seconds>",
    "measured.peak_bytes": "<bytes>",
}

_DRAWN = {
    "noise.threads": "<count>",
    "noise.draws.coordinates": "<count>",
    "noise.draws.nanoseconds": "<nanoseconds>",
    "noise.draws.seconds_per_million": "<seconds>",
}


def _other_run_files(directory: Path) -> None:
    text = (directory / "run.toml").read_text()
    (directory / "typo.toml").write_text(text.replace("microbatch", "microbach"))
    (directory / "again.toml").write_text(text.replace('output = "out"', 'output = "again"'))


TRAINING = Scenario(
    "train",
    digits,
    [
        Case("a run is timed", "plan policy.toml --measure run.toml --contributions sensitive=20", measured=_TIMES),
        Case("timing what is no run file", "plan policy.toml --measure typo.toml", code=1, before=_other_run_files),
        Case("where noise is drawn", "policy check policy.toml --device cpu", measured=_DRAWN),
        Case("no such device", "policy check policy.toml --device meta", code=1),
        Case("a run", "train run.toml", measured={"accuracy": "<fraction>"}),
        Case("its export exists", "train run.toml", code=1),
        Case("its ledger exists", "train again.toml", code=1),
        Case("it is finished", "train again.toml --resume", code=1),
        Case("a key that nobody knows", "train typo.toml", code=1),
        Case("no such run file", "train nowhere.toml", code=2),
        Case("no run file", "train", code=2),
    ],
)


def _own_data(directory: Path) -> None:
    (directory / "data.jsonl").write_text("".join(f'{{"text": "note {n}", "label": "{n % 2}"}}\n' for n in range(20)))


QUICKSTART = Scenario(
    "quickstart",
    nothing,
    [
        Case("a run of one's own", "quickstart data.jsonl --batch-size 5 --dir run", before=_own_data),
        Case("its program is there", "quickstart data.jsonl --batch-size 5 --dir run", code=1),
        Case("no such column", "quickstart data.jsonl --label stars --dir other", code=1),
        Case("no such file", "quickstart nowhere.jsonl", code=2),
        Case("no file", "quickstart", code=2),
    ],
)


def _model_and_scripts(directory: Path) -> None:
    (directory / "net.py").write_text(
        "from torch import nn\n\n"
        "def make(norm=nn.GroupNorm(2, 8)):\n"
        "    return nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 2))\n\n"
        "def normed():\n"
        "    return make(nn.BatchNorm1d(8))\n"
    )
    (directory / "plain.py").write_text("import torch\nloss.backward()\ntorch.nn.utils.clip_grad_norm_(p, 1.0)\nprint(loss)\n")
    (directory / "clean.py").write_text("for step in steps:\n    optimizer.step()\n")


CHECK = Scenario(
    "check",
    nothing,
    [
        Case("a model that a run takes", "check net.py:make", before=_model_and_scripts),
        Case("a model that a run refuses", "check net.py:normed", code=1),
        Case("rows by their sizes, and an optimizer", "check net.py:make --inputs x=float32:4 --optimizer LBFGS", code=1),
        Case("a script for no private run", "check plain.py", code=1),
        Case("a script with nothing to change", "check clean.py"),
        Case("no such callable", "check net.py:gone", code=2),
        Case("no such folder", "check nowhere", code=2),
        Case("nothing", "check", code=2),
    ],
)


@contextmanager
def _quick() -> Iterator[dict[str, str]]:
    """Lets the demos do a few steps only."""
    from dptrain.demo import language, serving
    from dptrain.demo import stages as story

    with patch.object(story, "Scale", lambda: story.QUICK), patch.object(serving, "Size", lambda: language.QUICK):
        yield {}


_ACCURACIES = {f"accuracy.{name}": "<fraction>" for name in ("public_only", "private", "without_privacy")}
_SHARES = {f"topics.{artifact}": "<fraction>" for artifact in ("base", "adapter")}

DEMO = Scenario(
    "demo",
    nothing,
    [
        Case("the whole way", "demo --dir demo", measured=_ACCURACIES),
        Case("a service", "demo --serve --dir served", measured=_SHARES),
        Case("a directory that holds something else", "demo --dir other", code=1, before=lambda place: _occupied(place)),
        Case("an option that is none", "demo --small", code=2),
    ],
    clock=False,
    beside=_quick,
    slow=True,
)


def _occupied(directory: Path) -> None:
    (directory / "other").mkdir()
    (directory / "other/mine.txt").write_text("mine\n")
