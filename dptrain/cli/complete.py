"""Shell completion of values: files by suffix, classes of the policy on the line, names and keys of the registry.

One table says what each kind of value completes to, by the parameter's metavar or name, so that commands need not. Nothing
is verified here: a completion is a proposal, and the command checks what it is given.
"""

import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from attest import signed_file
from attest.errors import AttestError
from attest.policy import Policy
from attest.policy.rules import ACCOUNTANTS
from attest.registry import Peek, peek
from dptrain.planning import changes
from ledger import accountants

Proposals = Callable[[Any, str], Iterable[tuple[str, str]]]
"""From the line so far and the beginning of the word to (value, explanation)."""

WITHDRAWAL_REASONS = {
    "consent": "the contributor takes consent back; the default",
    "error": "the content was signed by mistake",
    "key-compromise": "somebody else may have signed it",
    "legal": "the law or a court asks for it",
    "replaced": "a corrected contribution takes its place",
}
"""Reason codes of withdrawals that are common; any identifier is one."""

_SUFFIXES = {
    "POLICY": (".cose", ".toml"),
    "POLICY.toml": (".toml",),
    "POLICY.cose": (".cose",),
    "REGISTRY": (".cbor",),
    "DATA.attest": (".attest",),
    "KEY": (".key", ".pub"),
    "PUB": (".pub",),
    "LEDGER": (".db",),
    "LEDGER.db": (".db",),
    "WITHDRAWAL": (".cose",),
    "ANCHOR": (".anchor",),
    "REPORT.html": (".html",),
    "NOTE": (".note",),
    "BODY": (".body",),
    "ANSWER": (".answer",),
    "PROOF": (".tlog-proof", ".evidence", ".cose"),
    "RUN.toml": (".toml",),
    "JSON": (".json",),
    "NORMS.json": (".json",),
    "FIGURE": (".svg", ".html", ".png"),
    "CORPUS": (),
    "EXPORT": (),
    "MODEL": (),
    "DIR": (),
}
"""Suffixes of the files that an argument or option takes, by its metavar; () is folders alone."""

_NEAR = ("policy.cose", "policy.toml")
_FORMS = {"policy": (".cose", ".toml"), "registry": (".cbor",)}
_MOST = 500


def attach(group: TyperGroup) -> None:
    """Give the parameters of every command below a group their completions."""
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            attach(command)
        elif isinstance(command, TyperCommand):
            for parameter in command.params:
                proposals = _proposals_for(parameter)
                if proposals is not None:
                    parameter.shell_complete = types.MethodType(_completer(proposals), parameter)


def paths(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Yields files with one of the suffixes, and folders on the way to some; none where the shell's completion knows better."""
    beginning = incomplete.rpartition("/")[2]
    prefix = incomplete[: len(incomplete) - len(beginning)]
    found, folders = [], []
    for entry in _entries(Path(prefix or ".").expanduser()):
        if not entry.name.startswith(beginning) or (entry.name.startswith(".") and not beginning.startswith(".")):
            continue
        if entry.is_dir():
            folders.append(prefix + entry.name + "/")
        elif entry.name.endswith(suffixes) and suffixes:
            found.append(prefix + entry.name)
    if not found and len(folders) == 1 and suffixes:
        # A shell ends a sole proposal with a blank; with what lies inside the folder it goes on without.
        inside = list(paths(folders[0], suffixes))
        yield from inside or folders
        return
    yield from sorted(found) + sorted(folders)


def suffixes_of(metavar: str) -> tuple[str, ...]:
    """Returns the suffixes of the files that a parameter with this metavar takes; () for folders and for what is no file."""
    return _SUFFIXES.get(metavar, ())


def classes(ctx: Any, incomplete: str) -> Iterator[tuple[str, str]]:
    """Returns classes of the policy on the line, or beside the registry or here; with a registry, what it grants too."""
    registry = _given(ctx, "registry")
    policy = _given(ctx, "policy")
    found: dict[str, str] = {}
    for path in [policy] if policy else _beside(registry, _NEAR):
        for rule in _rules(path):
            bounds = "public" if rule.public else f"clip norm {rule.clip_norm:g}, noise multiplier {rule.noise_multiplier:g}"
            found.setdefault(rule.name, f"{bounds}, in {path}")
    known = _registry(registry) if registry and not policy else None
    for name in sorted({name for item in (known.contributors if known else ()) for name in item.classes}):
        found.setdefault(name, f"granted in {registry}")
    return ((name, note) for name, note in found.items() if name.startswith(incomplete))


def class_counts(ctx: Any, incomplete: str) -> Iterator[tuple[str, str]]:
    """Returns CLASS= for every class."""
    return ((f"{name}=", note) for name, note in classes(ctx, incomplete.partition("=")[0]))


def settings(ctx: Any, incomplete: str) -> Iterator[tuple[str, str]]:
    """Completes the last assignment of a list of changes: settings of the policy, and of its classes."""
    done, comma, last = incomplete.rpartition(",")
    of_class = changes.settings_of_classes()
    known = [*changes.settings(), *(f"class.{name}.{key}" for name, _ in classes(ctx, "") for key in of_class)]
    return ((f"{done}{comma}{key}=", "") for key in known if key.startswith(last.lstrip()))


def contributors(ctx: Any, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yields the names in the registry on the line."""
    known = _registry(_given(ctx, "registry"))
    for count, item in enumerate(known.contributors if known else ()):
        if count >= _MOST:
            return
        if item.name.startswith(incomplete):
            yield item.name, ", ".join(item.classes)


def key_ids(ctx: Any, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yields keys in the registry on the line, of the contributor on the line if there is one."""
    known, wanted = _registry(_given(ctx, "registry")), ctx.params.get("contributor")
    for item in (known.contributors if known else ())[:_MOST]:
        if wanted in (None, item.name):
            yield from ((key.key_id.hex(), item.name) for key in item.keys if key.key_id.hex().startswith(incomplete))


def reasons(ctx: Any, incomplete: str) -> Iterator[tuple[str, str]]:
    """Returns common reason codes of withdrawals."""
    return (item for item in WITHDRAWAL_REASONS.items() if item[0].startswith(incomplete))


def _starting(words: Mapping[str, str], incomplete: str) -> Iterator[tuple[str, str]]:
    return (item for item in words.items() if item[0].startswith(incomplete))


_BY_OPTION: dict[str, Proposals] = {
    "--class": classes,
    "--contributions": class_counts,
    "--contributor": contributors,
    "--key-id": key_ids,
    "--reason": reasons,
    "--accountant": lambda ctx, start: _starting({name: ACCOUNTANTS[name] for name in accountants.ACCOUNTANTS}, start),
    "--family": lambda ctx, start: _starting({name: row.sentence for name, row in accountants.TABLE.items()}, start),
    "--target-epsilon": class_counts,
    "--what-if": settings,
}


def _proposals_for(parameter: Any) -> Proposals | None:
    for name in parameter.opts:
        if name in _BY_OPTION:
            return _BY_OPTION[name]
    suffixes = _SUFFIXES.get(parameter.metavar or "")
    if suffixes is None:
        return None
    return lambda ctx, incomplete: ((path, "") for path in paths(incomplete, suffixes))


def _completer(proposals: Proposals) -> Callable[[Any, Any, str], list[Any]]:
    # The shells' formatters ask an item for these three attributes and nothing else.
    def complete(self: Any, ctx: Any, incomplete: str) -> list[Any]:
        found = proposals(ctx, incomplete)
        return [types.SimpleNamespace(value=value, help=note or None, type="plain") for value, note in found]

    return complete


def _given(ctx: Any, name: str) -> Path | None:
    """Finds the file that a parameter of the line names; an argument before an unfinished option is not parsed."""
    value = ctx.params.get(name)
    if value is None and any(parameter.name == name for parameter in ctx.command.params):
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        value = next((word for word in line.split() if word.endswith(_FORMS[name]) and Path(word).is_file()), None)
    return None if value is None else Path(str(value)).expanduser()


def _beside(path: Path | None, names: tuple[str, ...]) -> list[Path]:
    folder = Path(".") if path is None else path.parent
    return [folder / name for name in names if (folder / name).is_file()][:1]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _rules(path: Path) -> tuple[Any, ...]:
    try:
        if path.suffix == ".toml":
            return Policy.from_toml(path.read_text(encoding="utf-8")).classes
        return Policy.from_cbor(signed_file.read(path)[0]).classes
    except (AttestError, OSError, UnicodeDecodeError):
        return ()


def _registry(path: Path | None) -> Peek | None:
    try:
        return None if path is None else peek(path)
    except (AttestError, OSError):
        return None
