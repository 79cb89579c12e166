"""Reads references of the data sets of the InvisibleInk page, each from a file that the user has.

None is shipped. MIMIC-IV needs a credential of PhysioNet: only its holder has the file, and neither a text of it nor one that
was made from it is printed or written here; errors name the file and the number of a row, never what stands in it.
"""

import csv
import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from dptrain.errors import ConfigError

_SECTION = re.compile(r"Discharge Instructions:\s*(.+?)\s*(?:Followup Instructions:|\Z)", re.DOTALL)
_WORST: Final = 1 << 24
"""Bounds a field of a CSV file."""


@dataclass(frozen=True)
class Record:
    """Holds one reference.

    Attributes:
        id: public, of the data set. text: private. labels: public words by name, those of columns and never read from the text.
        person: whose it is, where the data set says so; one person's records are no unit of their own.
    """

    id: str
    text: str
    labels: Mapping[str, str] = field(default_factory=dict)
    person: str | None = None


def mimic(path: Path) -> Iterator[Record]:
    """Reads MIMIC-IV-Note's discharge.csv or discharge.csv.gz: the section "Discharge Instructions" of each summary.

    A summary without that section is a record with an empty text, a null reference, so that no payload decides who is there.

    Raises:
        ConfigError: code REFERENCES, a column is missing.
    """
    for row in _rows(path, ("note_id", "subject_id", "text")):
        found = _SECTION.search(row["text"])
        yield Record(row["note_id"], " ".join(found[1].split()) if found else "", person=row["subject_id"])


def yelp(path: Path) -> Iterator[Record]:
    """Reads the reviews as AugPE's repository has them: columns text, label1 (category) and label2 (stars).

    Raises:
        ConfigError: code REFERENCES, a column is missing, or a label is not named as there.
    """
    for number, row in enumerate(_rows(path, ("text", "label1", "label2")), 1):
        category, stars = (row[name].partition(": ")[2] for name in ("label1", "label2"))
        if not category or not stars:
            sentence = "labels read 'Business Category: ...' and 'Review Stars: ...'"
            raise ConfigError("REFERENCES", f"{path.name}, row {number}: {sentence}")
        yield Record(f"yelp {number}", row["text"], {"category": category, "stars": stars})


def tab(path: Path) -> Iterator[Record]:
    """Reads TAB's echr_train.json, or another of its splits.

    Raises:
        ConfigError: code REFERENCES, it is no list of documents with doc_id and text.
    """
    try:
        every = json.loads(path.read_text(encoding="utf-8"))
        found = [Record(str(one["doc_id"]), " ".join(one["text"].split())) for one in every]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        sentence = "is no list of documents with doc_id and text: take TAB's echr_train.json"
        raise ConfigError("REFERENCES", f"{path.name} {sentence}") from error
    yield from {one.id: one for one in found}.values()  # a document stands once for each annotator in some copies


LOADERS: Final[Mapping[str, Callable[[Path], Iterator[Record]]]] = {"mimic": mimic, "yelp": yelp, "tab": tab}

WITHHELD: Final = frozenset({"mimic"})
"""Data sets of which no text is shown, and none that was made from them."""


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(min(_WORST, sys.maxsize))
    with _open(path) as file:
        reader = csv.DictReader(file)
        missing = set(columns) - set(reader.fieldnames or ())
        if missing:
            sentence = f"{path.name} has no column {', '.join(sorted(missing))}"
            raise ConfigError("REFERENCES", f"{sentence}; expected {', '.join(columns)}")
        for number, row in enumerate(reader, 1):
            if any(row[name] is None for name in columns):
                raise ConfigError("REFERENCES", f"{path.name}, row {number}: fewer fields than the head of the file")
            yield row
