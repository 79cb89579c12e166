"""Reads the references of a run: rows of the owner's own, or contributions that their contributors signed for generation.

    {"id": "note-17", "text": "..."}          # JSONL: ids are public, texts are private; other fields are ignored

A reference keeps its place whatever its text is: one that is empty, null, missing or no text is a null reference, and so is a
row with anything wrong beside its id. Labels are public: they come from a list beside the references, or from the signed data
class, and never out of a row, which is the payload. Errors repeat nothing of a row but the number of its line.
"""

import csv
import hashlib
import hmac
import io
import json
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from attest.attestation import Attestation
from attest.corpus import Corpus, Item
from attest.descriptor import GENERATE, SignedDescriptor
from attest.errors import FileRefused
from attest.files import read_limited
from attest.gate import Admitted, Gate, Seen
from attest.policy import ClassRule, SignedPolicy
from attest.registry import Registry
from dptrain.errors import ConfigError, ContentChanged
from dptrain.inference.invisibleink.partition import SALT_SIZE, batches, batches_by_label
from ledger.budget import GenerationRule, Unit
from ledger.budget.counted import Shares
from ledger.budget.generation import ClassLimit, OverRuns, require_room
from ledger.errors import LeafRefused

MOST_ROW: Final = 1 << 24
"""Bytes of a row; a longer one is a null reference."""

MOST_LIST: Final = 1 << 28
"""Bytes of a list of labels."""

_JSONL: Final = ".jsonl"


@dataclass(frozen=True, slots=True)
class Reference:
    """Holds a reference.

    Attributes:
        id: public, each once. text: private; empty where it is null. unit: pays for it. label: public, None without labels.
    """

    id: str
    text: str = field(repr=False)
    unit: Unit
    label: str | None = None


@dataclass(frozen=True)
class References:
    """Holds all references of a run.

    Guarantee: how many there are, their ids, labels and order follow from what is public: ids, lists and signatures. A payload
    decides its own text, and nothing else, once its id can be read: where a line gives none, all are refused.

    Attributes:
        rows: in order. rule: the class by whose signed rule they were admitted, None for the owner's own.
        policy: SHA-256 of the signed policy, likewise. attestations: of each row, likewise.
        rules: what a header of a log says of all classes of the policy that generate.
        refused: how many contributions the gate, or this, left out, by reason.
        gone: references that a run had when it began, and that were withdrawn or have ended since. They keep their places in
            batches, and such a batch makes no text.
        absent: name of the field of texts, where no row has it and all are null; None else. It is for who runs this: a run does
            not follow from it.
        limits: of classes over all runs: what a header of a log says of them. shares: of contributors; for attested ones.
    """

    rows: tuple[Reference, ...]
    rule: ClassRule | None = None
    policy: bytes | None = None
    attestations: tuple[Attestation, ...] = field(default=(), repr=False)
    rules: tuple[GenerationRule, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    gone: tuple[Reference, ...] = ()
    absent: str | None = None
    limits: tuple[ClassLimit, ...] = ()
    shares: Shares | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(
        cls, path: str | Path, *, salt: bytes, labels: str | Path | Mapping[str, str] | None = None
    ) -> "References":
        """Reads rows of the owner's own: their ids strictly, and what is wrong with a text as a null reference.

        Args:
            path: JSONL. salt: makes the names of units out of ids (HMAC-SHA-256), so that a log tells no id.
            labels: public label by id, or the list that has them, CSV or JSONL (`read_labels`).

        Raises:
            ConfigError: code REFERENCES, a line is not UTF-8, no JSON or has no id; RECORD_ID, an id stands twice;
                LABEL_PRIVATE, the label is to come out of the rows; LABELS, the list is none, or lacks an id; SALT.
            FileRefused: a file cannot be read.
        """
        if len(salt) < SALT_SIZE:
            raise ConfigError("SALT", f"a salt has at least {SALT_SIZE} bytes, got {len(salt)}; take fresh_salt()")
        read = dict(_rows(Path(path)))
        rows, absent = {one: text or "" for one, text in read.items()}, all(text is None for text in read.values())
        if not rows:
            raise ConfigError("REFERENCES", f"{path} has no rows; a reference is a line {_ROW}")
        known: Mapping[str, str | None] = dict.fromkeys(rows) if labels is None else _labels(labels, Path(path), rows)
        units = ((one, Unit("contribution", hmac.new(salt, one.encode(), hashlib.sha256).hexdigest())) for one in rows)
        made = tuple(Reference(one, rows[one], unit, known[one]) for one, unit in units)
        return cls(made, absent=_FIELD if absent else None)

    @classmethod
    def admitted(
        cls,
        corpus: Corpus | Sequence[Corpus],
        policy: SignedPolicy,
        registry: Registry,
        class_name: str,
        *,
        now: int,
        by_data_class: bool = False,
        field: str = "text",
        withdrawn: Set[bytes] = frozenset(),
    ) -> "References":
        """Judges contributions at the gate for generation, and reads those that one class admits.

        Guarantee: each reference was signed for generation, admitted at ``now``, and has the bytes that were signed. Whether
        what it spends over all runs stays within what was signed for that, and whether its contributor has too many, the log
        judges that admits it (`ledger.budget.log.BudgetLog.admit`): who was admitted there before is not pushed out by others.

        Args:
            corpus: one or several. class_name: whose generation rule gives the numbers.
            by_data_class: whether the signed data class is the label. field: of rows of JSONL, where their text stands.
            withdrawn: digests of contributions that were.

        Raises:
            ConfigError: code CLASS, the policy has no such class, or it has no generation rule; REFERENCES, none was admitted.
                ContentChanged: bytes are not those that the gate saw. Else as `Gate`.
        """
        rule = next((one for one in policy.policy.classes if one.name == class_name), None)
        if rule is None or rule.generation is None:
            has = ", ".join(one.name for one in policy.policy.classes if one.generation is not None) or "none"
            found = "no class" if rule is None else "no generation rule in the class"
            raise ConfigError("CLASS", f"the policy has {found} {class_name!r:.80}; classes that generate: {has}")
        rows, attestations, refused, absent = [], [], Counter[str](), True
        gate = Gate(policy.policy, registry, seen=_Uncounted(), purpose=GENERATE)
        for part in [corpus] if isinstance(corpus, Corpus) else corpus:
            with part.contents() as contents:
                for outcome, attestation in _judged(gate, part, now, withdrawn):
                    if not isinstance(outcome, Admitted):
                        refused[str(outcome.refusal.code)] += 1
                    elif outcome.admission.admissibility_class == class_name:
                        assert attestation is not None
                        content = _unchanged(contents.read(outcome.locator), outcome)
                        text = _text_of(content, field if outcome.locator.source.endswith(_JSONL) else None)
                        absent = absent and text is None
                        digest = outcome.admission.descriptor_hash.hex()
                        label = outcome.admission.descriptor.data_class if by_data_class else None
                        rows.append(Reference(digest, text or "", Unit("contribution", digest), label))
                        attestations.append(attestation)
        if not rows:
            told = ", ".join(f"{count} {code}" for code, count in sorted(refused.items())) or "nothing was refused"
            raise ConfigError("REFERENCES", f"no contribution of class {class_name} was admitted to generation ({told})")
        names = [one.name for one in policy.policy.classes if one.generation is not None]
        return cls(
            tuple(rows),
            rule,
            policy.digest,
            tuple(attestations),
            tuple(GenerationRule.of(policy, name) for name in names),
            dict(refused),
            absent=field if absent else None,
            limits=OverRuns.of(policy, names).limits,
            shares=Shares(policy.policy, registry),
        )

    def leaving(self, left_out: Mapping[str, str]) -> "References":
        """Returns these without some attested ones: code of the reason by id.

        Raises:
            ConfigError: code REFERENCES, none is left.
        """
        kept = [(one, signed) for one, signed in zip(self.rows, self.attestations, strict=True) if one.id not in left_out]
        refused = Counter(self.refused) + Counter(left_out[one.id] for one in self.rows if one.id in left_out)
        if not kept:
            told = ", ".join(f"{count} {code}" for code, count in sorted(refused.items()))
            raise ConfigError("REFERENCES", f"no contribution is left that may make texts ({told})")
        rows, attestations = zip(*kept, strict=True)
        return replace(self, rows=tuple(rows), attestations=tuple(attestations), refused=dict(refused))

    def within_limits(self) -> "References":
        """Returns these without those whose limit over all runs texts alone could pass; runs may have spent of it besides.

        Raises:
            LeafRefused: code LIMIT, so could the limit of the class. ConfigError: code REFERENCES, none is left.
        """
        rule = self.signed_rule
        if rule is None:
            return self
        for one in self.limits:
            if one.name == rule.name:
                require_room(rule.max_rho_nano, one.epsilon_micro, one.delta_pico, f"the policy of class {one.name}")
        beyond = {}
        for row, signed_as in zip(self.rows, self.attestations, strict=True):
            limit = SignedDescriptor.from_cbor(signed_as.descriptor).limit
            try:
                if limit != (0, 0):
                    require_room(rule.max_rho_nano, *limit, "its contributor")
            except LeafRefused as error:
                beyond[row.id] = error.code
        return self.leaving(beyond) if beyond else self

    def since(self, began: Iterable[tuple[str, str | None]]) -> "References":
        """Returns these in a run that began with so many: what is not there any more is `gone`, and keeps its place.

        Args:
            began: id and label of each. Where one of these is not among them, nothing is changed: it is another run.
        """
        there, mine = dict(began), {one.id: one.label for one in self.rows}
        if not mine.items() <= there.items():
            return self
        missing = sorted(there.keys() - mine.keys())
        return replace(self, gone=tuple(Reference(one, "", Unit("contribution", one), there[one]) for one in missing))

    @property
    def signed_rule(self) -> GenerationRule | None:
        """Returns what a header of a log says of the rule by which these were admitted; None of the owner's own."""
        return None if self.rule is None else next(one for one in self.rules if one.name == self.rule.name)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Reference]:
        return iter(self.rows)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of what is public of the references: ids and labels. Two sets with one digest make one run."""
        return hashlib.sha256(json.dumps(self.listed, ensure_ascii=True).encode()).hexdigest()

    @property
    def listed(self) -> list[tuple[str, str | None]]:
        """Id and label of each, those that are gone too, in order."""
        return sorted(((one.id, one.label) for one in (*self.rows, *self.gone)), key=lambda one: one[0])

    @property
    def labels(self) -> tuple[str | None, ...]:
        """Labels in order; None alone where there are none."""
        return tuple(sorted({one.label for one in (*self.rows, *self.gone)}, key=lambda one: one or ""))

    def batches(self, batch: int, salt: bytes) -> dict[str | None, list[tuple[Reference, ...]]]:
        """Returns disjoint batches of B references, by label, in an order that ids and salt decide (`partition`).

        Raises:
            ConfigError: as `partition.batches`; code BATCH too where no label has B references.
        """
        by_id = {one.id: one for one in (*self.rows, *self.gone)}
        if all(one.label is None for one in by_id.values()):
            made: dict[str | None, list[tuple[str, ...]]] = {None: batches(list(by_id), batch, salt=salt)}
        else:
            made = {**batches_by_label({one.id: one.label or "" for one in by_id.values()}, batch, salt=salt)}
        if not any(made.values()):
            most = max(Counter(one.label for one in by_id.values()).values())
            raise ConfigError("BATCH", f"a batch has {batch} references, and no label has more than {most}; lower B")
        return {label: [tuple(by_id[one] for one in ids) for ids in found] for label, found in made.items()}


_ROW: Final = '{"id": "...", "text": "..."}'

_FIELD: Final = "text"
"""Field of a row that has its text."""


def read_labels(path: str | Path) -> dict[str, str]:
    """Reads a public list of labels: CSV with the head ``id,label``, or JSONL of ``{"id": ..., "label": ...}``.

    Raises:
        ConfigError: code LABELS, a line is none of that, or an id stands twice; LABEL_PRIVATE, the list has texts.
        FileRefused: it cannot be read.
    """
    data = read_limited(path, MOST_LIST, "list of labels")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("LABELS", f"{path} is not UTF-8 at byte {error.start}") from None
    found: dict[str, str] = {}
    for number, one in _listed_json(path, text) if str(path).endswith(_JSONL) else _listed_csv(path, text):
        if "text" in one:
            raise ConfigError("LABEL_PRIVATE", f"{path}, line {number} has a text beside its label; {_PRIVATE}")
        name, label = one.get("id"), one.get("label")
        if not (isinstance(name, str) and isinstance(label, str) and name and label):
            raise ConfigError("LABELS", f"{path}, line {number}: expected an id and a label, both texts that are not empty")
        if name in found:
            raise ConfigError("LABELS", f"{path}, line {number}: its id stood on a line before; give each id one label")
        found[name] = label
    return found


_PRIVATE: Final = (
    "a label that stands in the row itself is part of the payload, and batches would change with one person's text. Give a "
    "public list of id and label in a file of its own, or take the signed data class"
)


def _listed_csv(path: str | Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    if not {"id", "label"} <= set(reader.fieldnames or ()):
        raise ConfigError("LABELS", f"{path}, line 1: expected the head id,label")
    try:
        for one in reader:
            yield reader.line_num, one
    except csv.Error as error:
        raise ConfigError("LABELS", f"{path}, line {reader.line_num}: {error}") from None


def _listed_json(path: str | Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, read_object(line.encode(), path, number, "LABELS", '{"id": "...", "label": "..."}')


def _labels(given: str | Path | Mapping[str, str], rows_path: Path, rows: Collection[str]) -> Mapping[str, str]:
    """Returns the label of each row; refuses labels that would come out of the rows."""
    if not isinstance(given, Mapping):
        path = Path(given)
        if path.exists() and path.samefile(rows_path):
            raise ConfigError("LABEL_PRIVATE", f"{path} holds the references themselves; {_PRIVATE}")
        if not path.exists() and str(given) in _fields(rows_path):
            raise ConfigError("LABEL_PRIVATE", f"{str(given)!r:.40} is a field of the rows; {_PRIVATE}")
        given = read_labels(path)
    missing = sum(one not in given for one in rows)
    if missing:
        sentence = f"{missing} of {len(rows)} references have no label in the list"
        raise ConfigError("LABELS", f"{sentence}; give every id one, or none: who has a label is public too")
    return given


def field_of_labels(path: str | Path, references: References) -> str | None:
    """Returns the field of the rows that has the label of every reference, None where none has: such labels may have been
    taken out of payloads."""
    labels = {one.id: one.label for one in references}
    fields: set[str] | None = None
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                row = _read(line, Path(path), number)[0]
                alike = {name for name, value in row.items() if name != "id" and value == labels[row["id"]]}
                fields = alike if fields is None else fields & alike
                if not fields:
                    return None
    return min(fields or (), default=None)


def _fields(path: Path) -> set[str]:
    with open(path, "rb") as stream:
        for line in stream:
            if line.strip():
                return set(_read(line, path, 1)[0])
    return set()


def _rows(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yields id and text of each row, None where it has no such field; empty lines are passed over. Whatever is wrong with a
    row that has an id makes it null: an error would tell of one payload, and end the run for all."""
    lines: dict[str, int] = {}
    try:
        if not path.is_file():
            raise FileRefused("FILE", f"no references at {str(path)!r}; check the path")
        with open(path, "rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                row, sound = _read(line, path, number)
                one = row.get("id")
                if not isinstance(one, str) or not one or not encodes(one):
                    raise ConfigError("REFERENCES", f"{path}, line {number}: its id is no text, or empty; give every row one")
                if one in lines:
                    sentence = f"{path}, lines {lines[one]} and {number} have one id"
                    raise ConfigError("RECORD_ID", f"{sentence}; every record has an id of its own, under which it pays")
                lines[one] = number
                sound = sound and len(line.rstrip(b"\n")) <= MOST_ROW
                yield one, (_told(row[_FIELD]) if sound else "") if _FIELD in row else None
    except OSError as error:
        raise FileRefused("FILE", f"cannot read the references {str(path)!r}: {error.strerror or error}") from error


def _read(line: bytes, path: Path, number: int) -> tuple[dict[str, Any], bool]:
    """Reads a row, and tells whether nothing is wrong with it.

    Raises:
        ConfigError: code REFERENCES, it is not UTF-8, no JSON, no object, or has two ids.
    """
    ids, sound = 0, True

    def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal ids, sound
        found = dict(pairs)
        ids = sum(name == "id" for name, _ in pairs)  # the whole row comes last
        sound = sound and len(found) == len(pairs)
        return found

    def no_number(name: str) -> None:
        nonlocal sound
        sound = False

    how: dict[str, Any] = {"object_pairs_hook": once_each, "parse_constant": no_number, "parse_int": len, "parse_float": len}
    try:
        text = line.decode("utf-8")
        try:
            found = json.loads(text, **how)
        except (ValueError, RecursionError):  # a line break within a text, or brackets too deep for the library
            found, sound = json.loads(_outermost(text), strict=False, **how), False
    except ValueError as error:
        why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else "is no JSON"
        raise ConfigError("REFERENCES", f"{path}, line {number} {why}; expected {_ROW}") from None
    if not isinstance(found, dict) or ids > 1:
        why = "has two ids" if isinstance(found, dict) else "is no object"
        raise ConfigError("REFERENCES", f"{path}, line {number} {why}; expected {_ROW}")
    return found, sound


_PIECE: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^"\[\]{}]+|"', re.DOTALL)


def _outermost(text: str) -> str:
    """Returns JSON with null for each array or object within the outermost one. Raises ValueError: their brackets are not
    closed in order."""
    kept, closing = [], []
    for piece in _PIECE.findall(text):
        if piece in ("[", "{"):
            closing.append("]" if piece == "[" else "}")
            kept.append(piece if len(closing) == 1 else "null" if len(closing) == 2 else "")
        elif piece in ("]", "}"):
            if not closing or closing.pop() != piece:
                raise ValueError("a bracket is closed that is not open")
            kept.append("" if closing else piece)
        elif len(closing) < 2:
            kept.append(piece)
    return "".join(kept)


def read_object(line: bytes, path: str | Path, number: int, code: str, form: str) -> dict[str, Any]:
    """Reads one line of JSONL; says of it only where it stands."""
    try:
        found = json.loads(line.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else "is no JSON, or has a name twice"
        raise ConfigError(code, f"{path}, line {number} {why}; expected {form}") from None
    if not isinstance(found, dict):
        raise ConfigError(code, f"{path}, line {number} is no object; expected {form}")
    return found


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def encodes(text: str) -> bool:
    """Tells whether a text is one that can be written: JSON can escape halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _told(found: Any) -> str:
    """Returns a text as it is, and what is none as a null reference: an error would tell of one payload, and end the run for
    all."""
    return found if isinstance(found, str) and encodes(found) else ""


class _Uncounted(Seen):
    """Remembers what was admitted, and leaves it to the log how many a contributor has."""

    def count(self, holder: str) -> int:
        """Returns 0."""
        return 0


def _judged(
    gate: Gate, corpus: Iterable[Item], now: int, withdrawn: Set[bytes]
) -> Iterator[tuple[Any, Attestation | None]]:
    """Yields what the gate says of each contribution, with the attestation that it judged."""
    kept: deque[Attestation | None] = deque()

    def items() -> Iterator[Item]:
        for item in corpus:
            kept.append(item.attestation)
            yield item

    for outcome in gate.judge(items(), now=now, withdrawn=withdrawn):
        yield outcome, kept.popleft()


def _unchanged(content: bytes, outcome: Admitted) -> bytes:
    if hashlib.sha256(content).digest() != outcome.admission.descriptor.content_hash:
        raise ContentChanged(
            "CONTENT_CHANGED",
            f"{outcome.locator.source!r}: the content of an admitted contribution changed after the gate saw it; restore the "
            "attested bytes",
        )
    return content


def _text_of(content: bytes, field: str | None) -> str | None:
    """Returns the text of a contribution: a file as it is, a row of JSONL by a field, None where it has no such field. What is
    no text is null."""
    try:
        text = content.decode("utf-8")
        if field is not None:
            found = json.loads(text)
            if isinstance(found, dict) and field not in found:
                return None
            text = _told(found[field] if isinstance(found, dict) else found)
    except (ValueError, RecursionError):
        return ""
    return text
