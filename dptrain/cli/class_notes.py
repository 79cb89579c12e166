"""A note for who grants a class that the policy at hand does not have: most often it is mistyped."""

import difflib
from collections.abc import Iterable
from pathlib import Path

from attest import signed_file
from attest.errors import AttestError
from attest.policy import Policy


def unknown_classes(registry: Path, granted: Iterable[str]) -> dict[str, str]:
    """Granted classes that the policy beside the registry lacks, each with a note; empty where there is no policy.

    The policy's signature is not verified: nothing but the note depends on it.
    """
    for name in ("policy.cose", "policy.toml"):
        path = registry.with_name(name)
        known = _classes_of(path)
        if known:
            return {item: _note(item, path, known) for item in sorted(set(granted) - set(known))}
    return {}


def _classes_of(path: Path) -> list[str]:
    try:
        if path.suffix == ".toml":
            policy = Policy.from_toml(path.read_text(encoding="utf-8"))
        else:
            policy = Policy.from_cbor(signed_file.read(path)[0])
    except (AttestError, OSError, UnicodeDecodeError):
        return []
    return [rule.name for rule in policy.classes]


def _note(name: str, path: Path, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"{path} has no class {name}" + (f"; is {near[0]} meant? 'registry grant' sets it right" if near else "")
