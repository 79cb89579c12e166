"""`dptrain ledger prove` and `verify-proof`: one file that shows, offline, that a leaf is in a ledger."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from attest.files import atomic_write, read_limited
from attest.fixed_point import MICRO
from attest.schema.plain import utc, visible
from dptrain.cli.inputs import PassphraseFile, octets, refuse_to_overwrite
from dptrain.cli.ledger.place import LedgerKey, LedgerOrExport, Now, StateDirectory, place_of, verifier_keys
from dptrain.cli.ledger.place import ledger_key as private_key_of
from dptrain.cli.options import argument, file_argument, file_option, option, wrong_if
from dptrain.cli.output import number, styled
from dptrain.cli.results import Result, Shown, Told, pick, plain
from ledger import trust as policies
from ledger.errors import LedgerWrongRun, ProofError
from ledger.layout import POLICY
from ledger.leaves import Leaf, decode_leaf
from ledger.log import Ledger
from ledger.note import Checkpoint, NoteSigner, Signature, open_note, parse_checkpoint
from ledger.proofs import membership
from ledger.proofs.membership import SUFFIX, Admitted, Membership, find_membership
from ledger.proofs.memory import HEADER as EVIDENCE
from ledger.proofs.memory import MAX_EVIDENCE_SIZE, judge, parse_evidence
from ledger.proofs.prover import ExportReader, Node
from ledger.proofs.single_leaf import HEADER as PROOF
from ledger.proofs.single_leaf import MAX_PROOF_SIZE, make_proof, make_receipt, parse_proof, verify_receipt
from ledger.proofs.single_leaf import verify_proof as verify
from ledger.retention import named_by_withdrawals, summary_key
from ledger.storage.place import Place
from ledger.tiles import Subtrees
from ledger.trust import TrustPolicy, auditors_policy

_TIMES = ("time", "before")
"""Fields of leaves that are times."""

RECEIPT_TAG = b"\xd2"
"""First byte of a COSE receipt; text files have none such."""

_HEADER_FIELDS = ("time", "origin", "owner", "owner_key", "run_id", "registry_root", "model_fingerprint", "private")


LeafKind = StrEnum("LeafKind", ["ADMIT", "SPEND", "WITHDRAW", "SUMMARY"])
"""Leaves that tell of a contribution."""


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
    beside = proof.with_name(proof.name + SUFFIX) if kind in (LeafKind.SPEND, LeafKind.SUMMARY) else None
    for path in (proof, receipt, beside):
        if path is not None:
            refuse_to_overwrite(path)
    name = _contribution(leaf, contribution, kind)
    place = None if Path(ledger).is_dir() else place_of(ledger, state)
    if place is None and kind is LeafKind.SUMMARY:
        raise typer.BadParameter("--kind summary asks for the ledger itself: an export has no members file")
    found = _in_export(Path(ledger), leaf, name, kind) if place is None else _in_ledger(place, leaf, name, kind)
    signed = found.signed
    data = make_proof(signed.node, found.seq, signed.size, signed.checkpoint, found.data).to_bytes()
    # What is handed out was verified as its reader will verify it.
    proven = verify(data, auditors_policy(signed.vkey))
    if receipt is not None:
        checkpoint = proven.trusted.checkpoint
        signer = NoteSigner(checkpoint.origin, private_key_of(place, ledger_key, passphrase_file))
        if signer.vkey != signed.vkey:
            raise LedgerWrongRun("WRONG_KEY", f"the ledger is signed by {signed.vkey}, the key given is {signer.vkey}")
        atomic_write(receipt, make_receipt(signer, signed.node, found.seq, checkpoint, found.data))
    atomic_write(proof, data)
    if beside is not None and found.member is not None:
        atomic_write(beside, found.member.to_bytes())
    shown = LeafShown(proven.leaf, proven.trusted.checkpoint, proven.trusted.cosigned)
    names = " and ".join(str(path) for path in (proof, receipt, beside) if path is not None)
    also = "" if beside is None else f" --member {beside}"
    return Told(
        plain({"path": proof, "receipt": receipt, "key": signed.vkey, "member": beside}) | shown.as_json(),
        [
            f"wrote {names}: leaf {found.seq} ({_kind_of(proven.leaf)}) of {signed.size}",
            f"verify with: dptrain ledger verify-proof {proof} --key {signed.vkey}{also}",
        ],
    )


def verify_proof(
    proof: Annotated[Path, file_argument("PROOF", "As prove, or the auditor's tool, wrote it.")],
    key: Annotated[
        list[str] | None,
        option("Public key of the ledger, or of an auditor: a file of verifier keys, or one itself; repeat.", metavar="PUB"),
    ] = None,
    trust: Annotated[Path | None, file_option("TRUST", "Trust policy (C2SP tlog-policy), instead of --key.")] = None,
    quorum: Annotated[int, option("Ask for cosignatures of N of the auditors whose keys were given.", metavar="N", min=0)] = 0,
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
    policy = read_trust(key or [], trust, quorum)
    data = read_limited(proof, MAX_EVIDENCE_SIZE, "proof")
    if data.startswith(EVIDENCE.encode()):
        return _evidence(data, policy)
    given = None if leaf is None else read_limited(leaf, MAX_PROOF_SIZE, "leaf")
    if given is not None and given.startswith(PROOF.encode()):
        given = parse_proof(given).extra or b""
    if data[:1] == RECEIPT_TAG:
        wrong_if(given is None, "a receipt does not carry its leaf; give --leaf, the leaf or its proof file")
        found = verify_receipt(data, given, policy)
        return LeafShown(found.leaf, found.checkpoint, (), verdict="PROVEN")
    proven = verify(data, policy, leaf=given, now=now)
    signed = proven.trusted
    shown = LeafShown(proven.leaf, signed.checkpoint, signed.cosigned, verdict="PROVEN")
    told = None if member is None else _told_of_member(member, proven.leaf)
    ignored = [{"name": name, "key_id": key_id.hex()} for name, key_id in signed.ignored]
    text = [*shown.text()]
    if told is not None:
        text += ["in it, of a group or an aggregate with this member:", *(f"  {_in_units(*item)}" for item in told.items())]
    for item in signed.misdated:
        who, when = visible(item.key.name), utc(item.timestamp or 0)
        text.append(f"of no account: the cosignature of {who}, dated {when}, before the leaf or ahead of the clock here")
    # What known auditors say of summaries says nothing of this leaf.
    summaries = {(key.name, key.key_id) for key in (summary_key(witness.key) for witness in policy.witnesses)}
    for name, key_id in signed.ignored:
        if (name, key_id) not in summaries:
            line = f"a line of {visible(name, plain=True)}, key id {key_id.hex()}"
            text.append(f"not checked: {line}; to have it checked, give its key")
    return Told(shown.as_json() | {"member": told, "ignored": ignored}, text)


@dataclass(frozen=True)
class LeafShown(Result):
    """A leaf that is in a ledger, under a checkpoint with its cosignatures."""

    leaf: Leaf
    checkpoint: Checkpoint
    cosigned: tuple[Signature, ...]
    verdict: str | None = None

    def as_json(self) -> dict[str, Any]:
        told = {} if self.verdict is None else {"verdict": self.verdict}
        told |= {"leaf": self.leaf.seq, "kind": _kind_of(self.leaf), "fields": _fields(self.leaf)}
        return told | pick(self.checkpoint, "origin size root") | {"cosigners": cosigners(self.cosigned)}

    def text(self) -> Iterator[Shown]:
        yield styled("bold green", "PROVEN", f"  leaf {self.leaf.seq} of {self.checkpoint.origin}, {_kind_of(self.leaf)}")
        for name, value in _fields(self.leaf).items():
            yield f"  {_in_units(name, value if name != 'rows' else f'{len(value)}, of a group each')}"
        yield f"{self.checkpoint.size} leaves, root {self.checkpoint.root.hex()}"
        yield from cosigner_lines(self.cosigned)


def _told_of_member(path: Path, leaf: Leaf) -> dict[str, Any]:
    """Returns what a leaf says of a contribution, for reading, once it was verified that it is of this one."""
    data = read_limited(path, membership.MAX_ADMITTED_SIZE, "membership")
    if data.startswith(membership.HEADER.encode()):
        admitted = membership.parse_admitted(data)
        terms, member_of = membership.verify_admitted(admitted, leaf), admitted.shown.member
        return {"contribution": member_of.descriptor_hash.hex(), "admitted": member_of.seq, **_fields_of(terms)}
    member = membership.parse_membership(data)
    row = membership.verify_membership(member, leaf)
    return {"contribution": member.descriptor_hash.hex(), "row": member.row, **_fields_of(row)}


def _evidence(data: bytes, policy: TrustPolicy) -> Told:
    """Returns what evidence against a log shows."""
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


def read_trust(keys: list[str], trust: Path | None, quorum: int) -> TrustPolicy:
    """Returns the policy under which checkpoints count: a file, or the keys given."""
    wrong_if((trust is None) == (not keys), "give --key, the public key of the ledger, or --trust, a trust policy")
    if trust is not None:
        wrong_if(quorum, "--quorum goes with --key; a trust policy names its own quorum")
        return policies.parse_policy(read_limited(trust, policies.MAX_POLICY_SIZE, "trust policy"))
    return policies.policy_of_keys([vkey for text in keys for vkey in verifier_keys(text)], quorum)


def cosigners(cosigned: Iterable[Signature]) -> list[dict[str, Any]]:
    """Returns who cosigned and when, for JSON."""
    return [{"name": item.key.name, "time": item.timestamp} for item in cosigned]


def cosigner_lines(cosigned: Iterable[Signature]) -> Iterator[str]:
    """Yields one line per auditor who cosigned."""
    for item in cosigned:
        yield f"cosigned by {visible(item.key.name)} at {utc(item.timestamp or 0)}"


@dataclass(frozen=True)
class _Signed:
    """A tree, and the checkpoint that signs it."""

    node: Node
    size: int
    checkpoint: bytes
    vkey: str

    def of(self, found: tuple[int, bytes] | None, member: Membership | Admitted | None = None) -> "_Found":
        """Returns a leaf of the tree by its number and bytes."""
        if found is None:
            raise ProofError("NO_LEAF", f"no leaf under the checkpoint of {self.size} leaves is the one asked for")
        return _Found(*found, self, member)

    def last_row_of(self, entries: Iterable[bytes], name: bytes, names: Mapping[int, bytes]) -> "_Found":
        """Returns the leaf with the last row of a contribution's group, and what shows that it is a member."""
        found = find_membership(entries, name, names)
        return self.of(None) if found is None else self.of((found[1].leaf, found[0]), found[1])


@dataclass(frozen=True)
class _Found:
    """A leaf, the tree that it is in, and who is a member of a group in it, if that was asked."""

    seq: int
    data: bytes
    signed: _Signed
    member: Membership | Admitted | None = None


def _contribution(leaf: int | None, contribution: str | None, kind: LeafKind | None) -> bytes:
    """Returns the descriptor hash of the contribution that is asked for; empty where a leaf is asked for by its number."""
    wrong_if((leaf is None) == (contribution is None), "give --leaf or --contribution")
    wrong_if(contribution is None and kind is not None, "--kind goes with --contribution")
    otherwise = "--contribution takes a descriptor hash: 64 hexadecimal digits, as attest show prints it"
    return b"" if contribution is None else octets(contribution, otherwise, size=32)


def _names(data: bytes, name: bytes, kind: LeafKind | None) -> bool:
    """Tells whether a leaf names a contribution, and is of a kind."""
    if name not in data:
        return False
    found = decode_leaf(data)
    return getattr(found, "descriptor_hash", None) == name and kind in (None, _kind_of(found))


def _in_export(base: Path, leaf: int | None, name: bytes, kind: LeafKind | None) -> _Found:
    reader = ExportReader(base)
    # Only a convenience: who verifies the proof brings the key that it must be signed by.
    vkey = str(policies.parse_policy(reader.read(POLICY)).logs[0])
    size = parse_checkpoint(open_note(reader.checkpoint, [vkey]).text).size
    signed = _Signed(reader.node, size, reader.checkpoint, vkey)
    if kind is LeafKind.SPEND:
        return signed.last_row_of(islice(reader.entries(), size), name, named_by_withdrawals(reader.entries()))
    if leaf is not None:
        return signed.of((leaf, reader.leaf(leaf)))
    return signed.of(next((item for item in reader.backwards() if _names(item[1], name, kind)), None))


def _in_ledger(place: Place, leaf: int | None, name: bytes, kind: LeafKind | None) -> _Found:
    found, tree = None, Subtrees()
    with Ledger.open(place, read_only=True) as log:
        note, keys = log.checkpoint, log.state.keys
        size = keys.open_note(note)[1].size
        admitted = _admitted(log, name) if kind is LeafKind.SUMMARY else None
        leaf = leaf if admitted is None else admitted.leaf
        if leaf is not None and size <= leaf < log.size:
            raise ProofError("NOT_SIGNED", f"the last checkpoint signs {size} leaves, and leaf {leaf} came later; export signs")
        by_name = leaf is None and kind is not LeafKind.SPEND
        with log.rows() as rows:
            for row in islice(rows, size):
                if row.leaf_hash:
                    tree.append(row.leaf_hash, row.level)
                if not row.body and row.seq == leaf:
                    raise ProofError("PRUNED", f"the body of leaf {leaf} was pruned; a proof file made before still shows it")
                if row.body and (row.seq == leaf or (by_name and _names(row.body, name, kind))):
                    found = (row.seq, row.body)
        signed = _Signed(tree.node, size, note, keys.at(size))
        if kind is not LeafKind.SPEND:
            return signed.of(found, admitted)
        pruned, admissions = log.pruned(), log.state.contributions
        with log.rows() as rows:
            under = islice(rows, size)
            bodies = (row.body for row in under) if pruned is None else pruned.entries(under)
            names = {admissions[gone].seq: gone for gone in log.state.withdrawals if gone in admissions}
            return signed.last_row_of(bodies, name, names)


def _admitted(log: Ledger, name: bytes) -> Admitted:
    """Returns what shows that a contribution was admitted, under a SUMMARY leaf."""
    shown, summarised = log.member(name), log.state.tally.summarised
    found = next((seq for aggregate, seq in summarised if shown is not None and aggregate.covers(shown.member.seq)), None)
    if shown is None or found is None:
        sentence = f"no summary speaks for the admission of {name.hex()}, or nothing beside the ledger says whom it admitted"
        raise ProofError("NO_LEAF", f"{sentence}; who was handed a member record keeps it")
    return membership.prove_admitted(found, [aggregate for aggregate, seq in summarised if seq == found], shown)


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


def _kind_of(leaf: Leaf) -> str:
    return type(leaf).__name__.lower()


def _fields(leaf: Leaf) -> dict[str, Any]:
    """Returns the fields of a leaf for reading; of a header those that are short."""
    names = _HEADER_FIELDS if _kind_of(leaf) == "header" else [item.name for item in fields(leaf) if item.name != "seq"]
    found = {name: plain(getattr(leaf, name)) for name in names}
    return found | {name: utc(getattr(leaf, name)) for name in _TIMES if name in found}


def _fields_of(row: Any) -> dict[str, Any]:
    """Returns the fields of a row for reading."""
    found: dict[str, Any] = plain(row)
    if isinstance(micro := found.pop("epsilon_micro", None), int):
        found["epsilon"] = micro / MICRO
    return found
