"""Runs the blocks of one page in its folder."""

import ast
import contextlib
import csv
import io
import json
import linecache
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from tests.docs.blocks import ROOT, Block, blocks_of
from tests.docs.registered import ELSEWHERE, REASONS
from tests.docs.shown import is_shown

SECONDS: Final = 540
"""Longest that one block may take."""


class Failed(AssertionError):
    """A block does not do what its page says."""


@dataclass
class Page:
    """One page while it is run.

    Attributes:
        name: path below the root. folder: where its commands run. names: what its Python knows. printed: what the block before
        printed, to standard output and with errors; None if nothing was run. owed: files that no later block has named yet.
    """

    name: str
    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: tuple[str, str] | None = None
    owed: dict[str, int] = field(default_factory=dict)
    ran: int = 0
    left: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.work = self.folder / "work"
        self.work.mkdir(parents=True)
        path = self.folder / "bin"
        path.mkdir()
        for name, command in {"dptrain": "-m dptrain", "python": "", "python3": ""}.items():
            (path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
            (path / name).chmod(0o755)
        self.environment = {
            **{name: os.environ[name] for name in ("LANG", "TMPDIR", "DPTRAIN_DATA", "MKL_CBWR") if name in os.environ},
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "PATH": f"{path}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "PYTHONUTF8": "1",
            "HF_HUB_OFFLINE": "1",
            "HOME": str(self.folder),
            "COLUMNS": "160",
        }

    def run(self, text: str) -> None:
        """Runs all blocks that the harness has to run. Raises Failed."""
        elsewhere = ELSEWHERE.get(self.name, {})
        for block in blocks_of(text):
            if block.language in elsewhere:
                self.printed = None
                continue
            try:
                self._one(block)
            except Exception as error:
                raise Failed(f"{self.name}, line {block.line}: {type(error).__name__}: {error}\n\n{block.text}") from error
        if self.owed:
            raise Failed(f"{self.name}: no later block names {', '.join(self.owed)}, written in line {min(self.owed.values())}")

    def _one(self, block: Block) -> None:
        if "not run" in block.told:
            if block.told["not run"] not in REASONS:
                raise Failed(f"{block.told['not run']!r} is no reason of: {'; '.join(REASONS)}")
            self.left.append((block.line, block.told["not run"]))
            self.printed = None
            return
        for name in filter(None, (part.strip() for part in block.told.get("world", "").split(","))):
            self._world(name)
        for name in [name for name in self.owed if name in block.text]:
            del self.owed[name]
        kind = LANGUAGES.get(block.language)
        if kind is None:
            raise Failed(f"{block.language or 'no language'!r} is none of: {', '.join(LANGUAGES)}")
        if "file" in block.told:
            path = self.work / block.told["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            self.owed[path.name] = block.line
            if kind in (_python, _sh, _text):
                if kind is _python:
                    ast.parse(block.text)
                self.ran += 1
                return
        if kind is not _text:
            self.printed = None
        kind(self, block)
        self.ran += 1

    def _world(self, name: str) -> None:
        from tests.docs import worlds

        made = worlds.WORLDS.get(name)
        if made is None:
            raise Failed(f"there is no world {name!r}; there are {', '.join(worlds.WORLDS)}")
        with self.inside():
            made(self)

    @contextlib.contextmanager
    def inside(self) -> Any:
        """Works in the page's folder for a while, offline."""
        before, offline = Path.cwd(), os.environ.get("HF_HUB_OFFLINE")
        os.chdir(self.work)
        os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.pop("HF_HUB_OFFLINE")
            if offline is not None:
                os.environ["HF_HUB_OFFLINE"] = offline


def _sh(page: Page, block: Block) -> None:
    """Runs commands, and keeps folder and exported variables for the next block."""
    state, exported = page.folder / "pwd", page.folder / "exported"
    begin = f"[ ! -e {exported} ] || . {exported}\n" if exported.exists() else ""
    script = f"trap 'pwd > {state}; export -p > {exported}' EXIT\n{begin}{block.text}"
    bash = shutil.which("bash") or "bash"
    strict = ["-euo", "pipefail"] if block.exit_code == 0 else ["-uo", "pipefail"]
    done = subprocess.run(
        [bash, "--norc", *strict, "-c", script], cwd=page.work, env=page.environment, capture_output=True, text=True,
        timeout=SECONDS, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != block.exit_code:
        raise Failed(f"exit code {done.returncode}, expected {block.exit_code}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    page.work = Path(state.read_text().strip())
    page.printed = (done.stdout, done.stdout + done.stderr)


def _python(page: Page, block: Block) -> None:
    page.printed = _run_python(page, block.text, block.line, {"__name__": "__main__"} if "alone" in block.told else page.names)


def _run_python(page: Page, text: str, line: int, names: dict[str, Any]) -> tuple[str, str]:
    where = f"<{page.name} line {line}>"
    linecache.cache[where] = (len(text), None, text.splitlines(keepends=True), where)
    out, said = io.StringIO(), io.StringIO()
    with page.inside(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        exec(compile(text, where, "exec"), names)
    return out.getvalue(), out.getvalue() + said.getvalue()


def _diff(page: Page, block: Block) -> None:
    """Parses both sides; sides in Python are run, the old one over a copy of the names."""
    lines = [line for line in block.text.splitlines() if not line.startswith(("+++", "---", "@@"))]
    old, new = ("".join(f"{line[1:]}\n" for line in lines if line[:1] in ("", " ", mark)) for mark in "-+")
    if old == new:
        raise Failed("the two sides of the diff are equal")
    if all(map(_is_python, (old, new))):
        _run_python(page, old, block.line, dict(page.names))
        page.printed = _run_python(page, new, block.line, page.names)
    else:
        for side in (old, new):
            if not _is_toml(side):
                shlex.split(side, comments=True)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _text(page: Page, block: Block) -> None:
    if not block.follows or page.printed is None:
        raise Failed("nothing that was run stands directly before it: what should have printed this?")
    if not any(is_shown(block.text, printed) for printed in page.printed):
        raise Failed(f"shown and printed differ; printed:\n{page.printed[1]}")


def _toml(page: Page, block: Block) -> None:
    """Checks a policy, a run file or a project file, or each of several fragments that set one key twice."""
    try:
        told = tomllib.loads(block.text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        lines = [line for line in block.text.splitlines() if line.strip() and not line.startswith("#")]
        if len(lines) < 2 or not all(map(_is_toml, lines)):
            raise Failed(f"is no TOML: {error}") from error
        for line in lines:
            check_settings(tomllib.loads(line, parse_float=Decimal))
        return
    check_settings(told)


def check_settings(told: dict[str, Any]) -> None:
    """Holds settings against the reader of the file that they belong to. What they lack comes from a template."""
    from attest.policy import Policy
    from attest.policy.classes import ClassRule
    from attest.schema.declare import declarations
    from dptrain.tasks.runconfig import RunConfig

    if told.keys() & {"project", "build-system", "tool"}:
        return
    if told.keys() & {"task", "model", "data", "optimizer", "run"}:
        kind = str(told.get("task", "image_classification" if "image_size" in told.get("model", {}) else "text_classification"))
        RunConfig.from_toml(written(merged({"task": kind, **_RUN, "model": _MODELS[kind]}, told)))
        return
    if told.keys() & {"server", "gate", "classes"}:
        from dptrain.serve.config import ServeConfig

        ServeConfig.of(_plain(told))
        return
    if "reference_tokens" in told:
        from dptrain.inference.invisibleink import Task

        Task(**{**told, "labels": tuple(told.get("labels", ()))})
        return
    of_a_class = {item.key.partition(".")[0] for item in declarations(ClassRule)}
    plain = {key: value for key, value in told.items() if key not in of_a_class or key == "class"}
    if len(plain) < len(told):
        plain["class"] = [{key: value for key, value in told.items() if key in of_a_class}]
    template: dict[str, Any] = dict(_POLICY)
    classes = plain.pop("class", None) or [{}]
    rest = [merged(_PUBLIC if one.get("public") else _CLASS, one) for one in classes]
    if all(one.get("public") for one in classes):
        rest.append({**_CLASS, "name": "protected"})
    Policy.from_toml(written(merged(template, plain) | {"class": rest}))


_POLICY: Final[dict[str, Any]] = {"corpus": "my-corpus", "delta": Decimal("1e-6"), "steps": 1024, "normalizer": 64}
_CLASS: Final[dict[str, Any]] = {
    "name": "sensitive", "clip_norm": Decimal("0.5"), "noise_multiplier": Decimal("1.2"), "sampling_rate": Decimal("0.015625"),
    "depth": {"from": Decimal("0.75"), "to": Decimal("1.0")},
}  # fmt: skip
_PUBLIC: Final[dict[str, Any]] = {key: value for key, value in _CLASS.items() if key not in ("clip_norm", "noise_multiplier")}
_RUN: Final[dict[str, Any]] = {
    "data": {"policy": "policy.cose", "corpus": "corpus", "owner_key": "owner.pub"},
    "optimizer": {"learning_rate": Decimal("0.001")},
    "run": {"ledger": "ledger.db", "output": "out"},
}
_MODELS: Final[dict[str, dict[str, Any]]] = {
    "text_classification": {"path": "model", "labels": ["no", "yes"]},
    "image_classification": {"path": "model", "labels": ["0", "1"], "image_size": 8},
}


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a table with what another one says in it, tables within tables too."""
    made = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict) and key not in ("depth",)
        made[key] = merged(made[key], value) if both else value
    return made


def _plain(value: Any) -> Any:
    """Returns settings with numbers as TOML has them for others."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, Decimal) else value


def written(table: Mapping[str, Any]) -> str:
    """Writes a table as TOML."""
    plain = {key: value for key, value in table.items() if not _is_tables(value) and not isinstance(value, dict)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{key}]", *(f"{_key(name)} = {_value(one)}" for name, one in value.items())]
        elif _is_tables(value):
            for one in value:
                lines += [f"[[{key}]]", *(f"{_key(name)} = {_value(item)}" for name, item in one.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return json.dumps(name) if not name.replace("_", "").replace("-", "").isalnum() else name


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        told = str(value)
        return told if any(sign in told for sign in ".eE") else f"{told}.0"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def _json(page: Page, block: Block) -> None:
    json.loads(block.text)


def _jsonl(page: Page, block: Block) -> None:
    for line in block.text.splitlines():
        json.loads(line)


def _csv(page: Page, block: Block) -> None:
    if len({len(row) for row in csv.reader(block.text.splitlines())}) != 1:
        raise Failed("its rows have several lengths")


def _hex(page: Page, block: Block) -> None:
    for line in block.text.splitlines():
        bytes.fromhex(line.partition("#")[0])


def _cddl(page: Page, block: Block) -> None:
    """Requires that the schemas of the docs have the rules, word for word but for comments."""
    files = (ROOT / "docs" / "attestation.cddl", ROOT / "docs" / "ledger.cddl")
    schemas = " ".join(_words(path.read_text(encoding="utf-8")) for path in files)
    for rule in re.split(r"\n(?=[a-z])", block.text.strip()):
        if f" {_words(rule)} " not in f" {schemas} ":
            raise Failed(f"no schema of the docs has: {_words(rule)}")


def _words(cddl: str) -> str:
    return " ".join(" ".join(line.partition(";")[0] for line in cddl.splitlines()).split())


LANGUAGES: Final[dict[str, Callable[[Page, Block], None]]] = {
    "sh": _sh, "bash": _sh, "python": _python, "py": _python, "toml": _toml, "json": _json, "jsonl": _jsonl, "csv": _csv,
    "hex": _hex, "cddl": _cddl, "diff": _diff, "text": _text,
}  # fmt: skip
"""Ways to run a block, by its language."""
