"""Reading whom to enrol from a file with one contributor a line."""

import base64
import binascii
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from attest.errors import AttestError, RegistryRefused
from attest.registry import Enrol
from attest.schema.plain import check_id
from dptrain.cli.output import parse_time

_FIELDS = frozenset({"key", "contributor", "classes", "cap", "principal", "not_before", "not_after"})


@dataclass(frozen=True)
class Defaults:
    """Holds the options, for everything that a line leaves out."""

    classes: tuple[str, ...]
    not_before: int
    not_after: int
    cap: int | None
    principal: str | None

    def enrol(self, name: str, raw: bytes, **stated: Any) -> Enrol:
        """Returns the enrolment of one key."""
        values = {field: getattr(self, field) for field in self.__dataclass_fields__} | stated
        return Enrol(name, raw, **values | {"classes": tuple(sorted(set(values["classes"])))})


def read_enrolments(path: Path, defaults: Defaults) -> list[Enrol]:
    """Returns enrolments of a `.jsonl` or `.csv` file, in its order.

    Raises:
        RegistryRefused: Code FORMAT, with the number of the line.
    """
    found = []
    for number, fields in _lines(path):
        try:
            found.append(_enrol(fields, defaults))
        except (AttestError, ValueError, typer.BadParameter) as error:
            sentence = error.sentence if isinstance(error, AttestError) else str(error)
            raise RegistryRefused("FORMAT", f"{str(path)!r}, line {number}: {sentence}") from error
    if not found:
        raise RegistryRefused("FORMAT", f"{str(path)!r} names nobody")
    return found


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RegistryRefused("FORMAT", f"{str(path)!r} is not UTF-8 text") from error
    if path.suffix == ".csv":
        rows = csv.DictReader(text.splitlines())
        if len(set(rows.fieldnames or ())) != len(rows.fieldnames or ()):
            raise RegistryRefused("FORMAT", f"{str(path)!r} has a column twice")
        for number, row in enumerate(rows, start=2):
            yield number, {name: value for name, value in row.items() if value not in (None, "")}
        return
    if path.suffix != ".jsonl":
        raise RegistryRefused("FORMAT", f"{str(path)!r} is neither .jsonl nor .csv")
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                value = json.loads(line, object_pairs_hook=_once_each)
            except ValueError:
                value = None
            if not isinstance(value, dict):
                raise RegistryRefused("FORMAT", f"{str(path)!r}, line {number}: not a JSON object with each field once")
            yield number, value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object; one with a field twice is refused, for a person reads the first and a program the last."""
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a field stands twice")
    return dict(pairs)


def _enrol(fields: dict[str, Any], defaults: Defaults) -> Enrol:
    unknown = sorted(ascii(name)[:40] for name in fields if name not in _FIELDS)
    if unknown:
        raise ValueError(f"unknown field {', '.join(unknown)}; expected {', '.join(sorted(_FIELDS))}")
    name, raw = _key(fields.get("key"))
    stated: dict[str, Any] = {}
    if "classes" in fields:
        value = fields["classes"]
        stated["classes"] = value.split() if isinstance(value, str) else value
        if not isinstance(stated["classes"], list):
            raise ValueError("classes are neither text nor an array")
        for item in stated["classes"]:
            check_id(item, "class name")
    if "cap" in fields:
        stated["cap"] = _whole(fields["cap"])
    for field in ("not_before", "not_after"):
        if field in fields:
            stated[field] = parse_time(str(fields[field]))
    if "principal" in fields:
        stated["principal"] = fields["principal"]
    contributor = fields.get("contributor", name)
    if contributor is None:
        raise ValueError("no contributor is named, neither in a field nor in the key")
    if not stated.get("classes", defaults.classes):
        raise ValueError("no class is granted; add the field classes, or --class for all lines")
    return defaults.enrol(check_id(contributor, "contributor"), raw, **stated)


def _key(value: Any) -> tuple[str | None, bytes]:
    if not isinstance(value, str):
        raise ValueError("there is no key")
    name, text = None, value.strip()
    if text.startswith("dptrain-key-v1 "):
        _, name, text = [*text.split(" "), "", ""][:3]
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("the key is not base64, and not the line of a .pub file") from error
    if base64.b64encode(raw).decode("ascii") != text:
        raise ValueError("the key is base64 with stray bits at its end")
    return name, raw


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not str(value).isascii() or not str(value).isdigit():
        raise ValueError(f"cap is {ascii(value)[:40]}, expected a whole number")
    return int(value)
