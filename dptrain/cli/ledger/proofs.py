"""`dptrain ledger prove` and `verify-proof`: one file that shows, offline, that a leaf is in a ledger."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import keys
from attest.files import atomic_write, read_limited
from attest.fixed_point import MICRO
from attest.schema.plain import utc, visible
from dptrain.cli.inputs import PassphraseFile, refuse_to_overwrite
from dptrain.cli.ledger.place import LedgerKey, LedgerOrExport, Now, StateDirectory, place_of
from dptrain.cli.ledger.place import ledger_key as private_key_of
from dptrain.cli.options import argument, file_argument, file_option, option
from dptrain.cli.output import number, styled
from dptrain.cli.results import Result, Shown, Told, plain
from ledger.errors import LedgerWrongRun, ProofError
from ledger.storage.place import Place

if TYPE_CHECKING:
    from ledger.leaves import Leaf, SpendRow
    from ledger.log import Ledger
    from ledger.note import Checkpoint, Signature
    from ledger.proofs.membership import Admitted, Membership
    from ledger.proofs.prover import Node
    from ledger.trust import TrustPolicy


_TIMES = ("time", "before")
"""Fields of leaves that are times."""

RECEIPT_TAG = b"\xd2"
"""First byte of a COSE receipt; text files have none such."""

_HEADER_FIELDS = ("time", "origin", "owner", "owner_key", "run_id", "registry_root", "model_fingerprint", "private")


MEMBER_SUFFIX = ".member"
"""As `ledger.proofs.membership.SUFFIX`."""


class LeafKind(StrEnum):
    """Leaves that tell of a contribution."""

    ADMIT = "admit"
    SPEND = "spend"
    WITHDRAW = "withdraw"
    SUMMARY = "summary"


Keys = Annotated[
    list[str] | None,
    option(
        "Public key of the ledger, or of an auditor: a file of verifier keys, or one itself; repeat.", "--key", metavar="PUB"
    ),
]
TrustFile = Annotated[Path | None, file_option("TRUST", "Trust policy (C2SP tlog-policy), instead of --key.", "--trust")]
Quorum = Annotated[
    int, option("Ask for cosignatures of N of the auditors whose keys were given.", "--quorum", metavar="N", min=0)
]


@dataclass(frozen=True)
class _Found:
    """A leaf, the tree that it is in, the note that signs the tree, and who is a member of a group in it, if that was asked."""

    seq: int
    data: bytes
    node: "Node"
    size: int
    checkpoint: bytes
    log_vkey: str
    member: "Membership | Admitted | None" = None


def prove(
    ledger: LedgerOrExport,
    proof: Annotated[Path, argument("New file; by custom its name ends in .tlog-proof.", metavar="PROOF")],
    leaf: Annotated[int | None, option("Number of the leaf.", metavar="N", min=0)] = None,
    contribution: Annotated[
        str | None, option("The last leaf that names this contribution: its descriptor hash in hex.", metavar="HASH")
    ] = None,
    kind: Annotated[
        LeafKind | None,
        option(
            "With --contribution: the last leaf of this kind. spend names nobody: it is the leaf with the last row of the "
            "contribution's group, and PROOF.member is written too, which shows whose row it is. Nor does summary: it is the "
            "leaf that speaks for its ADMIT leaf, and PROOF.member shows where and under which terms it was admitted."
        ),
    ] = None,
    receipt: Annotated[
        Path | None, option("Also write a COSE receipt (RFC 9942), signed now with the ledger's key.", metavar="RECEIPT")
    ] = None,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
) -> Result:
    """Write one file that shows for ever that a leaf is in the ledger.

    It holds the leaf, its path in the tree, and the signed checkpoint with its cosignatures. Whoever has it can check it
    offline, whatever becomes of the ledger. Hand contributors theirs. A receipt says the same to tools that read COSE; it
    holds neither leaf nor cosignatures, so the file is what to keep. From an export anybody can make
    one, but for --kind summary, which takes the ledger.

    Example: `dptrain ledger prove export/ mine.tlog-proof --contribution HASH`
    """
    from ledger.proofs.single_leaf import make_proof
    from ledger.proofs.single_leaf import verify_proof as verify
    from ledger.trust import auditors_policy

    beside = proof.with_name(proof.name + MEMBER_SUFFIX) if kind in (LeafKind.SPEND, LeafKind.SUMMARY) else None
    for path in (proof, receipt, beside):
        if path is not None:
            refuse_to_overwrite(path)
    wanted = _wanted(leaf, contribution, kind)
    place = None if Path(ledger).is_dir() else place_of(ledger, state)
    if place is None and kind is LeafKind.SUMMARY:
        raise typer.BadParameter("--kind summary asks for the ledger itself: an export has no members file")
    found = _in_export(Path(ledger), wanted) if place is None else _in_ledger(place, wanted)
    data = make_proof(found.node, found.seq, found.size, found.checkpoint, found.data).to_bytes()
    # What is handed out was verified as its reader will verify it.
    proven = verify(data, auditors_policy(found.log_vkey))
    if receipt is not None:
        atomic_write(receipt, _receipt(found, proven.trusted.checkpoint, private_key_of(place, ledger_key, passphrase_file)))
    atomic_write(proof, data)
    if beside is not None and found.member is not None:
        atomic_write(beside, found.member.to_bytes())
    shown = LeafShown(proven.leaf, proven.trusted.checkpoint, proven.trusted.cosigned)
    written = {"path": proof, "receipt": receipt, "key": found.log_vkey, "member": beside}
    names = " and ".join(str(path) for path in (proof, receipt, beside) if path is not None)
    also = "" if beside is None else f" --member {beside}"
    return Told(
        plain(written) | shown.as_json(),
        [
            f"wrote {names}: leaf {found.seq} ({_kind_of(proven.leaf)}) of {found.size}",
            f"verify with: dptrain ledger verify-proof {proof} --key {found.log_vkey}{also}",
        ],
    )


def verify_proof(
    proof: Annotated[Path, file_argument("PROOF", "As prove, or the auditor's tool, wrote it.")],
    key: Keys = None,
    trust: TrustFile = None,
    quorum: Quorum = 0,
    leaf: Annotated[Path | None, file_option("FILE", "For a receipt, which has no leaf: its bytes, or its proof file.")] = None,
    member: Annotated[
        Path | None,
        file_option("FILE", "For a SPEND or SUMMARY leaf: PROOF.member, which shows whose row it is, or who was admitted."),
    ] = None,
    now: Now = None,
) -> Result:
    """Check a proof file offline, and show the leaf that it proves.

    It shows that the leaf is in the ledger, not that the rest of the ledger is in order: that is for `ledger verify`. With
    --quorum, or a trust policy that names one, auditors have said so. Evidence that `ledger cosign` wrote is checked too.

    Example: `dptrain ledger verify-proof mine.tlog-proof --key ledger.pub`
    """
    from ledger.proofs.memory import HEADER, MAX_EVIDENCE_SIZE
    from ledger.proofs.single_leaf import verify_proof as verify
    from ledger.retention import summary_key

    policy = read_trust(key or [], trust, quorum)
    data = read_limited(proof, MAX_EVIDENCE_SIZE, "proof")
    if data.startswith(HEADER.encode()):
        return _evidence(data, policy)
    given = None if leaf is None else _leaf_of(leaf)
    if data[:1] == RECEIPT_TAG:
        from ledger.proofs.single_leaf import verify_receipt

        if given is None:
            raise typer.BadParameter("a receipt does not carry its leaf; give --leaf, the leaf or its proof file")
        found = verify_receipt(data, given, policy)
        return LeafShown(found.leaf, found.checkpoint, (), verdict="PROVEN")
    proven = verify(data, policy, leaf=given, now=now)
    told = None if member is None else _told_of_member(member, proven.leaf)
    # What known auditors say of summaries says nothing of this leaf.
    summaries = {(key.name, key.key_id) for key in (summary_key(witness.key) for witness in policy.witnesses)}
    shown = LeafShown(proven.leaf, proven.trusted.checkpoint, proven.trusted.cosigned, verdict="PROVEN")
    return ProofVerified(shown, told, proven.trusted.ignored, proven.trusted.misdated, frozenset(summaries))


@dataclass(frozen=True)
class LeafShown(Result):
    """A leaf that is in a ledger, under a checkpoint with its cosignatures."""

    leaf: "Leaf"
    checkpoint: "Checkpoint"
    cosigned: "tuple[Signature, ...]"
    verdict: str | None = None

    def as_json(self) -> dict[str, Any]:
        told = {} if self.verdict is None else {"verdict": self.verdict}
        told |= {"leaf": self.leaf.seq, "kind": _kind_of(self.leaf), "fields": _fields(self.leaf)}
        signed = self.checkpoint
        return told | {
            "origin": signed.origin, "size": signed.size, "root": signed.root.hex(), "cosigners": cosigners(self.cosigned)
        }  # fmt: skip

    def text(self) -> Iterator[Shown]:
        yield styled("bold green", "PROVEN", f"  leaf {self.leaf.seq} of {self.checkpoint.origin}, {_kind_of(self.leaf)}")
        for name, value in _fields(self.leaf).items():
            yield f"  {_in_units(name, value if name != 'rows' else f'{len(value)}, of a group each')}"
        yield f"{self.checkpoint.size} leaves, root {self.checkpoint.root.hex()}"
        yield from cosigner_lines(self.cosigned)


@dataclass(frozen=True)
class ProofVerified(Result):
    """A proof that holds, and the lines of its note that count for nothing."""

    shown: LeafShown
    member: dict[str, Any] | None
    ignored: "Sequence[tuple[str, bytes]]"
    misdated: "Sequence[Signature]"
    summaries: "frozenset[tuple[str, bytes]]"

    def as_json(self) -> dict[str, Any]:
        ignored = [{"name": name, "key_id": key_id.hex()} for name, key_id in self.ignored]
        return self.shown.as_json() | {"member": self.member, "ignored": ignored}

    def text(self) -> Iterator[Shown]:
        yield from self.shown.text()
        if self.member is not None:
            yield "in it, of a group or an aggregate with this member:"
            yield from (f"  {_in_units(name, value)}" for name, value in self.member.items())
        for item in self.misdated:
            name, when = visible(item.key.name), utc(item.timestamp or 0)
            yield f"of no account: the cosignature of {name}, dated {when}, before the leaf or ahead of the clock here"
        for name, key_id in self.ignored:
            if (name, key_id) not in self.summaries:
                told = f"a line of {visible(name, plain=True)}, key id {key_id.hex()}"
                yield f"not checked: {told}; to have it checked, give its key"


def _receipt(found: _Found, checkpoint: "Checkpoint", key: Ed25519PrivateKey) -> bytes:
    from ledger.note import NoteSigner
    from ledger.proofs.single_leaf import make_receipt

    signer = NoteSigner(checkpoint.origin, key)
    if signer.vkey != found.log_vkey:
        raise LedgerWrongRun("WRONG_KEY", f"the ledger is signed by {found.log_vkey}, the key given is {signer.vkey}")
    return make_receipt(signer, found.node, found.seq, checkpoint, found.data)


def _told_of_member(path: Path, leaf: "Leaf") -> dict[str, Any]:
    """Returns what a leaf says of a contribution, for reading, once it was verified that it is of this one."""
    from ledger.proofs.membership import (
        HEADER,
        MAX_ADMITTED_SIZE,
        parse_admitted,
        parse_membership,
        verify_admitted,
        verify_membership,
    )

    data = read_limited(path, MAX_ADMITTED_SIZE, "membership")
    if data.startswith(HEADER.encode()):
        admitted = parse_admitted(data)
        terms, member_of = verify_admitted(admitted, leaf), admitted.shown.member
        return {"contribution": member_of.descriptor_hash.hex(), "admitted": member_of.seq, **_fields_of(terms)}
    member = parse_membership(data)
    row = verify_membership(member, leaf)
    return {"contribution": member.descriptor_hash.hex(), "row": member.row, **_fields_of(row)}


def _leaf_of(path: Path) -> bytes:
    """Returns a leaf from a file of its bytes, or from a proof file that carries it."""
    from ledger.proofs.single_leaf import HEADER, MAX_PROOF_SIZE, parse_proof

    data = read_limited(path, MAX_PROOF_SIZE, "leaf")
    return (parse_proof(data).extra or b"") if data.startswith(HEADER.encode()) else data


def _evidence(data: bytes, policy: "TrustPolicy") -> Told:
    """Returns what evidence against a log shows."""
    from ledger.proofs.memory import judge, parse_evidence

    found = judge(parse_evidence(data), [str(key) for key in policy.logs])
    first, second = found.remembered, found.offered
    what = "the log was seen larger before: an old copy, or its tail was taken back"
    if found.kind == "FORK":
        what = f"the log signed two histories: of its first {first.size} leaves at least one differs"
    sizes = (f"{word}: {item.size} leaves, root {item.root.hex()}" for word, item in (("first", first), ("then", second)))
    return Told(
        {"verdict": found.kind, "origin": first.origin, "remembered": first.size, "offered": second.size},
        [styled("bold red", found.kind, f"  {first.origin}"), what, *sizes],
    )


def read_trust(keys: list[str], trust: Path | None, quorum: int) -> "TrustPolicy":
    """Returns the policy under which checkpoints count: a file, or the keys given.

    Raises:
        typer.BadParameter: both or neither were given.
    """
    from ledger import trust as policies

    if (trust is None) == (not keys):
        raise typer.BadParameter("give --key, the public key of the ledger, or --trust, a trust policy")
    if trust is not None:
        if quorum:
            raise typer.BadParameter("--quorum goes with --key; a trust policy names its own quorum")
        return policies.parse_policy(read_limited(trust, policies.MAX_POLICY_SIZE, "trust policy"))
    return policies.policy_of_keys([vkey for text in keys for vkey in verifier_keys(text)], quorum)


def verifier_keys(text: str) -> list[str]:
    """Returns the verifier keys of a file, one a line, or the one given itself: `<name>+<key id>+<base64>`.

    Raises:
        typer.BadParameter: there is none. A wrong file is wrong use, and no verdict on what it was meant to verify.
    """
    path = Path(text)
    if not path.is_file():
        if text.count("+") < 2:
            raise typer.BadParameter(f"{text!r} is neither a file nor a verifier key; give the .pub file of the ledger")
        return [text]
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    if found and found[0].startswith("dptrain-key-v1 "):
        raise typer.BadParameter(
            f"{text!r} is the public key of a person; the key of a ledger stands in its ledger.pub, that of an auditor is what "
            f"'dptrain ledger auditor-key {text}' prints"
        )
    if not found or any(line.count("+") < 2 for line in found):
        raise typer.BadParameter(f"{text!r} holds no verifier key, NAME+ID+BASE64; give the .pub file of the ledger")
    return found


def cosigners(cosigned: "Iterable[Signature]") -> list[dict[str, Any]]:
    """Returns who cosigned and when, for JSON."""
    return [{"name": item.key.name, "time": item.timestamp} for item in cosigned]


def cosigner_lines(cosigned: "Iterable[Signature]") -> Iterator[str]:
    """Yields one line per auditor who cosigned."""
    for item in cosigned:
        yield f"cosigned by {visible(item.key.name)} at {utc(item.timestamp or 0)}"


@dataclass(frozen=True)
class _Wanted:
    """Says which leaf is asked for: one of a number, the last one that names a contribution, or the one with its last row."""

    leaf: int | None
    names: Callable[[bytes], bool] = lambda data: False
    spent: bytes | None = None
    admitted: bytes | None = None


def _wanted(leaf: int | None, contribution: str | None, kind: LeafKind | None) -> _Wanted:
    """Reads which leaf is asked for."""
    if (leaf is None) == (contribution is None):
        raise typer.BadParameter("give --leaf or --contribution")
    if contribution is None:
        if kind is not None:
            raise typer.BadParameter("--kind goes with --contribution")
        return _Wanted(leaf)
    try:
        hash_ = bytes.fromhex(contribution)
    except ValueError:
        hash_ = b""
    if len(hash_) != 32:
        raise typer.BadParameter("--contribution takes a descriptor hash: 64 hexadecimal digits, as attest show prints it")
    from ledger.leaves import decode_leaf

    def matches(data: bytes) -> bool:
        if hash_ not in data:
            return False
        found = decode_leaf(data)
        return getattr(found, "descriptor_hash", None) == hash_ and kind in (None, _kind_of(found))

    if kind is LeafKind.SUMMARY:
        return _Wanted(None, admitted=hash_)
    return _Wanted(None, spent=hash_) if kind is LeafKind.SPEND else _Wanted(None, matches)


def _in_export(base: Path, wanted: _Wanted) -> _Found:
    from ledger.layout import POLICY
    from ledger.note import open_note, parse_checkpoint
    from ledger.proofs.prover import ExportReader
    from ledger.retention import named_by_withdrawals
    from ledger.trust import parse_policy

    reader = ExportReader(base)
    # Only a convenience: who verifies the proof brings the key that it must be signed by.
    vkey = str(parse_policy(reader.read(POLICY)).logs[0])
    size = parse_checkpoint(open_note(reader.checkpoint, [vkey]).text).size
    signed = (reader.node, size, reader.checkpoint, vkey)
    if wanted.spent is not None:
        names = named_by_withdrawals(reader.entries())
        return _checked(_Found(*_spent(islice(reader.entries(), size), wanted.spent, names, signed)))
    if wanted.leaf is None:
        seq, data = next(((seq, data) for seq, data in reader.backwards() if wanted.names(data)), (-1, b""))
    else:
        seq, data = wanted.leaf, reader.leaf(wanted.leaf)
    return _checked(_Found(seq, data, *signed))


def _spent(entries: Iterable[bytes], name: bytes, names: Mapping[int, bytes], signed: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the fields of what was found of the last row of a contribution's group."""
    from ledger.proofs.membership import find_membership

    found = find_membership(entries, name, names)
    return (-1, b"", *signed) if found is None else (found[1].leaf, found[0], *signed, found[1])


def _in_ledger(place: Place, wanted: _Wanted) -> _Found:
    from ledger.log import Ledger
    from ledger.tiles import Subtrees

    leaf, found, tree = wanted.leaf, (-1, b""), Subtrees()
    with Ledger.open(place, read_only=True) as log:
        note, keys = log.checkpoint, log.state.keys
        size = keys.open_note(note)[1].size
        vkey = keys.at(size)
        admitted = None if wanted.admitted is None else _admitted(log, wanted.admitted)
        leaf = leaf if admitted is None else admitted.leaf
        if leaf is not None and size <= leaf < log.size:
            raise ProofError("NOT_SIGNED", f"the last checkpoint signs {size} leaves, and leaf {leaf} came later; export signs")
        with log.rows() as rows:
            for row in islice(rows, size):
                if row.leaf_hash:
                    tree.append(row.leaf_hash, row.level)
                if not row.body and row.seq == leaf:
                    raise ProofError("PRUNED", f"the body of leaf {leaf} was pruned; a proof file made before still shows it")
                if row.body and (row.seq == leaf or (leaf is None and wanted.names(row.body))):
                    found = (row.seq, row.body)
        signed = (tree.node, size, note, vkey)
        if wanted.spent is None:
            return _checked(_Found(*found, *signed, admitted))
        pruned = log.pruned()
        with log.rows() as rows:
            under = islice(rows, size)
            bodies = (row.body for row in under) if pruned is None else pruned.entries(under)
            admitted = log.state.contributions
            names = {admitted[name].seq: name for name in log.state.withdrawals if name in admitted}
            return _checked(_Found(*_spent(bodies, wanted.spent, names, signed)))


def _admitted(log: "Ledger", name: bytes) -> "Admitted":
    """Returns what shows that a contribution was admitted, under a SUMMARY leaf."""
    from ledger.proofs.membership import prove_admitted

    shown, summarised = log.member(name), log.state.tally.summarised
    found = next((seq for aggregate, seq in summarised if shown is not None and aggregate.covers(shown.member.seq)), None)
    if shown is None or found is None:
        sentence = f"no summary speaks for the admission of {name.hex()}, or nothing beside the ledger says whom it admitted"
        raise ProofError("NO_LEAF", f"{sentence}; who was handed a member record keeps it")
    return prove_admitted(found, [aggregate for aggregate, seq in summarised if seq == found], shown)


def _checked(found: _Found) -> _Found:
    if found.seq < 0:
        raise ProofError("NO_LEAF", f"no leaf under the checkpoint of {found.size} leaves is the one asked for")
    return found


def _in_units(name: str, value: Any) -> str:
    """Returns a field for a person: `clip: 0.5` for `clip_micro` 500000, no underscores, a line for each row of several."""
    if isinstance(value, list):
        rows = (", ".join(_in_units(*field) for field in row.items()) if isinstance(row, dict) else str(row) for row in value)
        between = "\n    " if value and isinstance(value[0], dict) else " "
        return f"{name.replace('_', ' ')}:{''.join(between + row for row in rows) or ' none'}"
    for ending, unit in (("_micro", 10**6), ("_pico", 10**12)):
        if name.endswith(ending) and isinstance(value, int):
            name, value = name.removesuffix(ending), number(value / unit, 7)
    return f"{name.replace('_', ' ')}: {'none' if value is None else value}"


def _kind_of(leaf: "Leaf") -> str:
    return type(leaf).__name__.lower()


def _fields(leaf: "Leaf") -> dict[str, Any]:
    """Returns the fields of a leaf for reading; of a header those that are short."""
    names = _HEADER_FIELDS if _kind_of(leaf) == "header" else [item.name for item in fields(leaf) if item.name != "seq"]
    found = {name: plain(getattr(leaf, name)) for name in names}
    return found | {name: utc(getattr(leaf, name)) for name in _TIMES if name in found}


def _fields_of(row: "SpendRow") -> dict[str, Any]:
    """Returns the fields of a row for reading."""
    found: dict[str, Any] = plain(row)
    if isinstance(micro := found.pop("epsilon_micro", None), int):
        found["epsilon"] = micro / MICRO
    return found


LOG_KEYS = "Public key of the ledger: a file of verifier keys, or one itself; repeat."
VerifierKeys = Annotated[list[str], option(LOG_KEYS, "--key", metavar="PUB")]
OwnersKey = Annotated[Path | None, file_option("PUB", "Require a policy signed by this corpus owner.", "--owner-key")]


def trusted(pinned: list[str], owner_key: Path | None) -> tuple[bytes | None, list[str]]:
    """Returns the owner's raw key, if any, and the verifier keys of the logs.

    Raises:
        KeyRefused, typer.BadParameter: a file holds no such key.
    """
    owner = None if owner_key is None else keys.load_public_key(owner_key)
    return owner, [vkey for text in pinned for vkey in verifier_keys(text)]
