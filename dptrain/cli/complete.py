"""Complete what Typer cannot know: classes of the policy at hand, contributors of the registry on the line, known models.

Nothing is verified here. A completion is a proposal, and the command checks what it is given.
"""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import typer

from attest import signed_file
from attest.errors import AttestError
from attest.policy import Policy
from attest.registry import Peek, peek
from dptrain.planning.scaling import MODELS

POLICIES = ("policy.cose", "policy.toml")
"""Where commands look for a policy that they are not told."""

_FORMS = {"policy": (".cose", ".toml"), "registry": (".cbor",)}
_MOST = 500


def classes(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Returns classes of the policy on the line, or beside the registry or here; with a registry, what it grants too."""
    registry, policy = _given(ctx, "registry"), _given(ctx, "policy")
    near = Path(".") if registry is None else registry.parent
    chosen = [policy] if policy else [near / name for name in POLICIES if (near / name).is_file()][:1]
    found = {name: f"of {path}" for path in chosen for name in class_names(path)}
    known = _registry(registry) if policy is None else None
    for name in sorted({name for item in (known.contributors if known else ()) for name in item.classes}):
        found.setdefault(name, f"granted in {registry}")
    return [(name, note) for name, note in found.items() if name.startswith(incomplete)]


def class_counts(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Returns CLASS= for every class."""
    return [(f"{name}=", note) for name, note in classes(ctx, incomplete.partition("=")[0])]


def contributors(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Returns names of the registry on the line."""
    known = _registry(_given(ctx, "registry"))
    fitting = (item for item in (known.contributors if known else ()) if item.name.startswith(incomplete))
    return [(item.name, ", ".join(item.classes)) for item in islice(fitting, _MOST)]


def models(incomplete: str) -> list[tuple[str, str]]:
    """Returns the models whose sizes are known."""
    return [(name, f"{item.parameters:,} parameters") for name, item in MODELS.items() if name.startswith(incomplete)]


def class_names(path: Path) -> Iterator[str]:
    """Yields the classes of a policy, whose signature is not verified; nothing of what is no policy."""
    try:
        unsigned = path.suffix == ".toml"
        rules = Policy.from_toml(path.read_text(encoding="utf-8")) if unsigned else Policy.from_cbor(signed_file.read(path)[0])
    except (AttestError, OSError, UnicodeDecodeError):
        return
    yield from (rule.name for rule in rules.classes)


def _given(ctx: Any, name: str) -> Path | None:
    """Finds the file that a parameter of the line names; an argument before an unfinished option is not parsed."""
    value = ctx.params.get(name)
    if value is None and any(parameter.name == name for parameter in ctx.command.params):
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        value = next((word for word in line.split() if word.endswith(_FORMS[name]) and Path(word).is_file()), None)
    return None if value is None else Path(str(value)).expanduser()


def _registry(path: Path | None) -> Peek | None:
    try:
        return None if path is None else peek(path)
    except (AttestError, OSError):
        return None
