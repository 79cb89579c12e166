"""Defines the leaves of a budget log, `dptrain.budget/1`, and the strict CBOR that they are hashed as.

A user, a corpus or a session stands in a leaf by a keyed hash alone (`ledger.budget.units`), so an export names nobody; a
contribution stands by the digest of its descriptor, which a ledger shows too. Kinds begin at 32, so that no leaf of a budget
log reads as one of a run. Amounts are whole numbers of 1e-9 of rho, the parameter of zero-concentrated
differential privacy (Bun and Steinke, "Concentrated Differential Privacy", 2016, Definition 1.1).
"""

import hashlib
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Final, get_args

from attest import cbor
from attest.errors import AttestError
from attest.schema import Declared, check_fields, declared, derived, wire
from attest.schema.quick import Array, Blob, Count, OneOf, Row
from ledger.budget.generation import (
    BELOW_1,
    CONTRIBUTIONS,
    DESCRIPTOR,
    MESSAGE,
    RULES,
    GenerationRule,
    OverRuns,
    require_room,
)
from ledger.errors import LeafRefused
from ledger.leaves import MAX_LEAF_SIZE
from ledger.leaves.header import check_previous
from ledger.leaves.kinds import (
    ABOVE_0,
    ID,
    LOG_VKEY,
    MAX_UINT,
    MICRO_ABOVE_0,
    MOMENT,
    ORIGIN,
    SHA256,
    TRUTH,
    UINT,
    WORDS,
    Checked,
    Entry,
    as_leaf,
)
from ledger.note import SIGNATURE_ED25519, parse_verifier_key

SCHEMA: Final = "dptrain.budget/1"

ACCOUNTANT: Final = "zcdp-filter/1"
"""Sums of rho, never above a cap: a privacy filter under adaptive choices (`ledger.budget.rho`)."""

USER: Final = "user"
CORPUS: Final = "corpus"
SESSION: Final = "session"
CONTRIBUTION: Final = "contribution"
UNITS: Final = (CONTRIBUTION, CORPUS, SESSION, USER)
ABOVE_SESSIONS: Final = (CORPUS, USER)
"""Kinds of units that a session may stand under."""

NANO: Final = Count(0, MAX_UINT, "uint63", "1e-9")
NANO_ABOVE_0: Final = Count(1, MAX_UINT, "above0", "1e-9")
PERCENT: Final = Count(1, 100, "1..100")
EVENT: Final = Count(0, 100, "0..100")
REQUEST: Final = Blob("bstr .size 16", 16)
UNIT: Final = OneOf(UNITS, "UNIT", "budget-unit")
PAYER: Final = OneOf((CORPUS, SESSION, USER), "UNIT", "budget-payer")
ACCOUNT: Final = Blob("budget-account", 32)

Payer = tuple[str, bytes, bytes | None]
"""Kind of a unit that pays, how it stands in leaves, and the unit above it."""


@dataclass(frozen=True, slots=True)
class Cap(Checked):
    """Caps every unit of a kind."""

    CDDL: ClassVar = "budget-cap"
    unit: str = declared(1, UNIT, "The kind of unit.")
    epsilon_micro: int = declared(2, MICRO_ABOVE_0, "Epsilon of the cap.")
    delta_pico: int = declared(3, BELOW_1, "Delta of the cap.")
    rho_nano: int = declared(4, NANO_ABOVE_0, "The most rho whose epsilon at this delta is no larger, rounded down.")


@dataclass(frozen=True, slots=True)
class Mechanism(Checked):
    """Says what one release of a mechanism costs."""

    CDDL: ClassVar = "budget-mechanism"
    name: str = declared(1, ID, "Its name in RESERVE and TEXT leaves.")
    rho_nano: int = declared(2, NANO_ABOVE_0, "Rho of a release, rounded up; of one that is set by request the least.")
    by_request: bool = declared(3, TRUTH, "Whether each request sets its own rho, of this or more.")
    parameters: str = declared(4, WORDS, "What the mechanism is, in words: the operator's word.")


@dataclass(frozen=True, slots=True)
class Beside(Checked):
    """Names a training ledger that the budget stands beside, at a checkpoint of it."""

    CDDL: ClassVar = "budget-beside"
    origin: str = declared(1, ORIGIN, "Its origin.")
    size: int = declared(2, ABOVE_0, "Number of leaves.")
    root: bytes = declared(3, SHA256, "Root over these.")


@dataclass(frozen=True, slots=True)
class Header(Checked):
    """Everything that the budget rests on, fixed before the first request: leaf 0."""

    KIND: ClassVar = 0
    CDDL: ClassVar = "budget-header"
    DERIVED: ClassVar[tuple[Declared, ...]] = (
        derived(0, "seq", "0", "Position in the log."),
        derived(1, "kind", "0", "Kind of the leaf."),
        derived(3, "schema", f'"{SCHEMA}"', "Name and version of this format."),
    )
    time: int = declared(2, MOMENT, "Seconds since 1970, by the writer's clock.")
    origin: str = declared(4, ORIGIN, "Name of the log in its checkpoints.")
    log_vkey: str = declared(5, LOG_VKEY, "Verifier key of the log.")
    log_id: bytes = declared(6, REQUEST, "Random, so that no two logs have one header.")
    accountant: str = declared(7, OneOf((ACCOUNTANT,), "ACCOUNTANT"), "How charges add up.")
    caps: tuple[Cap, ...] = declared(8, Array(Row(Cap), 1, len(UNITS)), "Caps, by kind of unit in ascending order, each once.")
    mechanisms: tuple[Mechanism, ...] = declared(
        9, Array(Row(Mechanism), 1, 200), "Mechanisms, by name in ascending order, each once."
    )
    thresholds: tuple[int, ...] = declared(
        10, Array(PERCENT, 0, 100, ascending=True), "Percentages of a cap that are told to the privacy officer."
    )
    units_hash: bytes = declared(11, SHA256, "SHA-256 of the secret by which units become the hashes in leaves.")
    beside: tuple[Beside, ...] = declared(12, Array(Row(Beside), 0, 100), "Training ledgers that the budget stands beside.")
    generation: tuple[GenerationRule, ...] = declared(
        13,
        Array(Row(GenerationRule), 0, RULES),
        "Rules by which contributions make texts, by class in ascending order, each once.",
        default=(),
        optional=True,
        rule="absent where there are none",
    )
    over_runs: OverRuns | None = declared(
        14,
        Row(OverRuns),
        "Runs that count where a contribution, or its class, has a limit over all runs.",
        default=None,
        optional=True,
        rule="absent in a log that admits nobody with such a limit, and in one without rules",
    )

    seq: ClassVar = 0

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        named = {"caps": [cap.unit for cap in self.caps], "mechanisms": [item.name for item in self.mechanisms]}
        for what, rows in (named | {"rules of generation": [rule.name for rule in self.generation]}).items():
            if any(a >= b for a, b in pairwise(rows)):
                raise LeafRefused("ORDER", f"{what} of a budget stand in ascending order, each once; got {rows!r:.80}")
        with as_leaf("LOG_KEY", "the log key is refused: "):
            key = parse_verifier_key(self.log_vkey)
        if (key.name, key.kind) != (self.origin, SIGNATURE_ED25519):
            raise LeafRefused("LOG_KEY", f"the log key is named {key.name!r}, the origin is {self.origin!r}")
        if all(cap.unit == SESSION for cap in self.caps):
            sentence = "only sessions have a cap, and a new session would open new money; cap users or corpora"
            raise LeafRefused("SESSION_ALONE", sentence)
        if self.generation and self.cap(CONTRIBUTION) is None:
            sentence = "rules of generation stand in the header, and contributions have no cap"
            raise LeafRefused("RULE_CAP", f"{sentence}; give one, for its delta turns what is spent into an epsilon")
        if self.over_runs is not None:
            self._check_over_runs(self.over_runs)

    def _check_over_runs(self, over: OverRuns) -> None:
        check_previous(over.previous, self.origin, self.log_vkey)
        names = [limit.name for limit in over.limits]
        if any(a >= b for a, b in pairwise(names)) or not {*names} <= self.rules().keys() or not self.generation:
            sentence = f"limits of classes stand in ascending order, each once, of classes that have rules; got {names!r:.80}"
            raise LeafRefused("ORDER", sentence)
        for limit in over.limits:
            whose = f"the policy of class {limit.name}"
            require_room(self.allowed(limit.name), limit.epsilon_micro, limit.delta_pico, whose)

    def allowed(self, name: str) -> int:
        """Returns the most that a contribution of a class that has a rule may spend, over all texts, in 1e-9 of rho."""
        cap, most = self.cap(CONTRIBUTION), self.rules()[name].max_rho_nano
        return most if cap is None else min(cap, most)

    def cap(self, unit: str) -> int | None:
        """Returns the cap of a kind of unit in 1e-9 of rho; None where it has none of its own."""
        return next((cap.rho_nano for cap in self.caps if cap.unit == unit), None)

    def mechanism(self, name: str) -> Mechanism | None:
        """Returns the mechanism of a name; None without one."""
        return next((item for item in self.mechanisms if item.name == name), None)

    def rules(self) -> dict[str, GenerationRule]:
        """Returns the rules of generation by class."""
        return {rule.name: rule for rule in self.generation}


@dataclass(frozen=True, slots=True)
class Reserve(Entry):
    """Pays for releases, durably, before any of them is computed. Contributions pay by TEXT leaves."""

    KIND: ClassVar = 32
    CDDL: ClassVar = "budget-reserve"
    unit: str = declared(3, PAYER, "Kind of the unit that pays.")
    account: bytes = declared(4, ACCOUNT, "The unit, as a keyed hash.")
    parent_unit: str | None = declared(
        5, UNIT, "Kind of the unit of a session, which pays too; else null.", nil=True, needs="parent"
    )
    parent: bytes | None = declared(6, ACCOUNT, "That unit, as a keyed hash.", nil=True, needs="parent_unit")
    mechanism: str = declared(7, ID, "Name of the mechanism.")
    releases: int = declared(8, ABOVE_0, "Releases that are paid for: an answer of T tokens is T of them.")
    rho_nano: int = declared(9, NANO_ABOVE_0, "Rho of each.")
    request: bytes = declared(10, REQUEST, "Identifier of the request, which no other open reservation has.")

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if self.cost > MAX_UINT:
            raise LeafRefused("RANGE", f"a reservation costs {self.cost} of 1e-9 rho; expected at most {MAX_UINT}")
        if (self.unit == SESSION) is not (self.parent is not None) or self.parent_unit not in (None, *ABOVE_SESSIONS):
            sentence = f"a {self.unit} under {self.parent_unit or 'nothing'}"
            raise LeafRefused("PARENT", f"{sentence}: a session stands under a user or a corpus, and nothing else under any")

    @property
    def cost(self) -> int:
        """Returns what is reserved, in 1e-9 of rho."""
        return self.releases * self.rho_nano

    def payers(self) -> list[Payer]:
        """Returns who pays: the unit above a session first."""
        above: list[Payer] = []
        if self.parent is not None and self.parent_unit is not None:
            above.append((self.parent_unit, self.parent, None))
        return [*above, (self.unit, self.account, self.parent)]


@dataclass(frozen=True, slots=True)
class Text(Entry):
    """Pays for one text from every contribution that it has a reference of, durably, before any of its tokens is computed.
    All of them pay the same, or none does."""

    KIND: ClassVar = 39
    CDDL: ClassVar = "budget-text"
    accounts: tuple[bytes, ...] = declared(
        3, Array(ACCOUNT, 1, CONTRIBUTIONS, ascending=True), "The contributions: digests in ascending order, each once."
    )
    mechanism: str = declared(4, ID, "Name of the mechanism.")
    releases: int = declared(5, ABOVE_0, "Releases that are paid for: the tokens of the text.")
    rho_nano: int = declared(6, NANO_ABOVE_0, "Rho of each, for each contribution.")
    request: bytes = declared(7, REQUEST, "Identifier of the request, which no other open reservation has.")

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        if len(self.accounts) * self.cost > MAX_UINT:
            sentence = f"a text costs {len(self.accounts)} contributions {self.cost} of 1e-9 rho each"
            raise LeafRefused("RANGE", f"{sentence}; expected at most {MAX_UINT} in all")

    @property
    def cost(self) -> int:
        """Returns what is reserved of each contribution, in 1e-9 of rho."""
        return self.releases * self.rho_nano

    def payers(self) -> list[Payer]:
        """Returns who pays."""
        return [(CONTRIBUTION, account, None) for account in self.accounts]


@dataclass(frozen=True, slots=True)
class Commit(Entry):
    """Ends a reservation: says how many of its releases were computed, and frees those that never were."""

    KIND: ClassVar = 33
    CDDL: ClassVar = "budget-commit"
    reserved: int = declared(3, ABOVE_0, "Position of the RESERVE or TEXT leaf, which is open.")
    computed: int = declared(4, UINT, "Releases computed, sent or not: at most those reserved.")


@dataclass(frozen=True, slots=True)
class Epoch(Entry):
    """Closes an epoch. The log's key signs the tree right behind it."""

    KIND: ClassVar = 34
    CDDL: ClassVar = "budget-epoch"
    number: int = declared(3, ABOVE_0, "Number of the epoch, from 1.")
    reserves: int = declared(4, UINT, "Reservations so far.")
    open: int = declared(5, UINT, "Reservations without a COMMIT leaf.")
    reserved_nano: int = declared(6, NANO, "Sum over all reservations so far: of a text for each contribution, of others once.")
    freed_nano: int = declared(7, NANO, "Of that, what COMMIT leaves freed.")
    accounts: int = declared(8, UINT, "Units that ever paid, or were refused and told.")
    accounts_root: bytes = declared(
        9, SHA256, "RFC 6962 root over one leaf for each of them, ascending: its hash, and what it has spent in 8 bytes."
    )


@dataclass(frozen=True, slots=True)
class Notice(Entry):
    """Says once that a unit has come to a threshold, or was refused for the first time. Thresholds stand right behind the
    leaf that reached them: those of the parent first, or of contributions in the order of the leaf, each in ascending order."""

    KIND: ClassVar = 35
    CDDL: ClassVar = "budget-notice"
    unit: str = declared(3, UNIT, "Kind of the unit.")
    account: bytes = declared(4, ACCOUNT, "The unit: a keyed hash, or of a contribution its digest.")
    percent: int = declared(5, EVENT, "The threshold; 0 for the first refusal.")
    spent_nano: int = declared(6, NANO, "What it has spent, reservations included.")


@dataclass(frozen=True, slots=True)
class Delivered(Entry):
    """Records that a notice reached the privacy officer."""

    KIND: ClassVar = 36
    CDDL: ClassVar = "budget-delivered"
    notice: int = declared(3, ABOVE_0, "Position of the NOTICE leaf.")


@dataclass(frozen=True, slots=True)
class Reference(Entry):
    """Admits a contribution to generation, by what its contributor signed. Only behind it, and within the rule of its class, is
    anything reserved for it."""

    KIND: ClassVar = 37
    CDDL: ClassVar = "budget-reference"
    rule: str = declared(3, ID, "Class of the rule in the header, and of the descriptor.")
    descriptor: bytes = declared(4, DESCRIPTOR, "What was signed; its SHA-256 is the account.")
    sign1: bytes = declared(5, MESSAGE, "The contributor's message over it.")

    @property
    def account(self) -> bytes:
        """Returns how the contribution stands in other leaves: the digest of its descriptor."""
        return hashlib.sha256(self.descriptor).digest()


@dataclass(frozen=True, slots=True)
class Withdrawn(Entry):
    """Says that a contribution was withdrawn: nothing is reserved for it any more, and it is not admitted. Reservations
    that are open may end, and what was generated stays generated."""

    KIND: ClassVar = 38
    CDDL: ClassVar = "budget-withdrawn"
    account: bytes = declared(3, ACCOUNT, "The digest of the contribution.")


Record = Reserve | Commit | Epoch | Notice | Delivered | Reference | Withdrawn | Text
Leaf = Header | Record
RECORDS: Final[dict[int, type[Any]]] = {kind.KIND: kind for kind in get_args(Record)}


_STATED: Final = len(fields(Header))
"""Fields of a header; the last two of them may be left out."""


def encode_leaf(leaf: Leaf) -> bytes:
    """Returns the canonical bytes of a leaf. Raises LeafRefused: code SIZE, they do not fit an entry bundle."""
    values = wire.encode_row(leaf)
    if isinstance(leaf, Header):
        stated = values[1:] if leaf.over_runs is not None else values[1:-1] if leaf.generation else values[1:-2]
        values = [0, Header.KIND, values[0], SCHEMA, *stated]
    else:
        values.insert(1, leaf.KIND)
    data = cbor.encode(dict(enumerate(values)))
    if len(data) > MAX_LEAF_SIZE:
        raise LeafRefused("SIZE", f"a leaf takes at most {MAX_LEAF_SIZE} bytes, got {len(data)}")
    return data


def decode_leaf(data: bytes) -> Leaf:
    """Reads a leaf.

    Guarantee: Accepts exactly the bytes that `encode_leaf` writes for some valid leaf, and no others.

    Raises:
        LeafRefused: code KIND or SCHEMA, it is no leaf of this version; TYPE, RANGE, ORDER, or that of a rule of its own; or
            the code of the strict decoder.
    """
    try:
        value = cbor.decode(data, max_size=MAX_LEAF_SIZE)
    except AttestError as error:
        raise LeafRefused(error.code, f"a leaf is strict CBOR: {error.sentence}") from error
    if type(value) is not dict or any(type(key) is not int for key in value) or list(value) != list(range(len(value))):
        raise LeafRefused("SCHEMA", "a leaf is a map with the keys 0, 1, 2, ... and none left out")
    values = list(value.values())
    kind = values[1] if len(values) > 1 else None
    if type(kind) is int and kind == Header.KIND:
        if len(values) < 4 or values[3] != SCHEMA or type(values[0]) is not int or values[0] != 0:
            raise LeafRefused("SCHEMA", f"leaf 0 of a budget log has position 0 and the schema {SCHEMA}")
        stated = [values[2], *values[4:]]
        missing = _STATED - len(stated)
        if (missing < 2 and stated[_STATED - 2 :][:1] == [[]]) or (missing < 1 and stated[-1] is None):
            raise LeafRefused("SCHEMA", "a header without rules of generation, or that counts no runs, leaves their keys out")
        stated += [[], None][-missing:] if 0 < missing <= 2 else []
        header: Header = wire.decode_row(Header, stated, "a header", LeafRefused, code="SCHEMA")
        return header
    if type(kind) is not int or kind not in RECORDS:
        raise LeafRefused("KIND", f"this version reads leaf kinds 0 and {sorted(RECORDS)}, got {kind!r:.40}")
    del values[1]
    record: Record = wire.decode_row(RECORDS[kind], values, "what a leaf holds beside its kind", LeafRefused, code="SCHEMA")
    return record


def is_budget(leaf: bytes) -> bool:
    """Tells whether the bytes of a leaf 0 say that they begin a budget log, of whatever version; they are not judged."""
    try:
        value = cbor.decode(leaf, max_size=MAX_LEAF_SIZE)
    except AttestError:
        return False
    schema = value.get(3) if type(value) is dict else None
    return type(schema) is str and schema.startswith("dptrain.budget/")
