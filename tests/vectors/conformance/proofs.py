"""Vectors of what is shown of a ledger piece by piece: notes, cosignatures, proofs, receipts, releases, members, pins."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from attest import cbor, sign1
from attest.errors import AttestError
from attest.keys import key_id, public_bytes
from attest.schema.plain import AHEAD_SECONDS, MAX_TIME
from fuzz.exports import MANIFEST, PINNED, RECORDS
from ledger.errors import LedgerError
from ledger.leaves import decode_leaf, encode_leaf
from ledger.merkle import leaf_hash, root
from ledger.note import Checkpoint, NoteSigner, checkpoint_text, open_note, parse_checkpoint, sign_note
from ledger.proofs.membership import (
    Admitted,
    Membership,
    find_membership,
    parse_admitted,
    parse_membership,
    prove_admitted,
    verify_admitted,
    verify_membership,
)
from ledger.proofs.prover import tree_root
from ledger.proofs.single_leaf import TlogProof, make_proof, make_receipt, verify_proof, verify_receipt
from ledger.release.manifest import Manifest, open_manifest
from ledger.replay.summaries import Aggregate, Member
from ledger.trust import TrustPolicy, auditors_policy
from tests.attacks.test_ledger_attacks_times import forged_cosignature
from tests.reference.hash_tree import HashTree
from tests.vectors.conformance.honest import NOW, RUNS
from tests.vectors.conformance.leaves import cbor_of, mutations
from tests.vectors.conformance.values import told
from tests.vectors.conformance.written import Pieces
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, SIGNER, START, descriptor
from tests.worlds.retained_ledgers import ANNA, BEN, CLEO, grown

Row = dict[str, Any]
OTHER = NoteSigner(SIGNER.name, OTHER_KEY)


def _answer(row: Row, call: Callable[[], Row]) -> Row:
    try:
        return row | {"answer": "accepted"} | call()
    except (LedgerError, AttestError) as error:
        return row | {"answer": "refused", "code": error.code}


@cache
def leaves() -> tuple[bytes, ...]:
    """The leaves of a run in which somebody leaves."""
    return tuple(Pieces.of(RUNS["withdrawal"].files()).bodies)


def node(size: int | None = None) -> HashTree:
    """The tree over the first leaves."""
    return HashTree(map(leaf_hash, leaves()[:size]))


def note(size: int, signer: NoteSigner = SIGNER) -> bytes:
    """A checkpoint of the first leaves."""
    return sign_note(checkpoint_text(SIGNER.name, size, root(list(leaves()[:size]))), signer)


# --- notes ------------------------------------------------------------------------------------------------------------------


def notes() -> Iterator[Row]:
    """Yields checkpoint notes, opened with the keys named: any of them must have signed, and no line of theirs may be bad."""

    def row(name: str, data: bytes, *keys: str) -> Row:
        made = {"name": name, "note": data.decode(), "keys": list(keys or (SIGNER.vkey,))}

        def opened() -> Row:
            found = open_note(data, made["keys"])
            point = parse_checkpoint(found.text)
            signers = [[str(item.key), item.timestamp] for item in found.signatures]
            return {"origin": point.origin, "size": point.size, "root": point.root.hex(), "signers": signers}

        return _answer(made, opened)

    good = note(9)
    text = open_note(good, [SIGNER.vkey]).text
    cosigned = forged_cosignature(good, ANNA, START + 100)
    yield row("signed by the ledger", good)
    yield row("cosigned by somebody unknown", cosigned)
    yield row("cosigned by somebody known", cosigned, SIGNER.vkey, ANNA.vkey)
    yield row("opened by an auditor's key alone", cosigned, ANNA.vkey)
    yield row("an empty tree", sign_note(checkpoint_text(SIGNER.name, 0, root([])), SIGNER))
    yield row("another key", good, OTHER.vkey)
    yield row("another size", good.replace(b"\n9\n", b"\n8\n"))
    yield row("a size with a zero before it", sign_note(text.replace("\n9\n", "\n09\n"), SIGNER))
    yield row("a negative size", sign_note(text.replace("\n9\n", "\n-9\n"), SIGNER))
    yield row("a size beyond 63 bits", sign_note(text.replace("\n9\n", f"\n{2**63}\n"), SIGNER))
    yield row("a root of 31 bytes", sign_note(f"{SIGNER.name}\n9\n{'A' * 42}==\n", SIGNER))
    yield row("a root that is no base64", sign_note(f"{SIGNER.name}\n9\n{'!' * 44}\n", SIGNER))
    yield row("no root", sign_note(f"{SIGNER.name}\n9\n", SIGNER))
    yield row("no empty line", good.replace(b"\n\n", b"\n"))
    yield row("no signature", good[: good.index(b"\n\n") + 2])
    yield row("no line feed at the end", good[:-1])
    yield row("a carriage return", good.replace(b"\n", b"\r\n"))
    yield row("a bit of the signature", good[:-20] + bytes([good[-20] ^ 1]) + good[-19:])
    bad = bytearray(cosigned)
    bad[-20] ^= 1
    yield row("a bit of a known auditor's cosignature", bytes(bad), SIGNER.vkey, ANNA.vkey)
    yield row("a bit of an unknown auditor's cosignature", bytes(bad))
    yield row("the ledger's line twice", good + good[good.index(b"\n\n") + 2 :])


def cosignatures() -> Iterator[Row]:
    """Yields notes with cosignatures, and which of them count for a reader of this clock."""
    last = decode_leaf(leaves()[8]).time
    keys = [SIGNER.vkey, ANNA.vkey, BEN.vkey, CLEO.vkey]
    policy = auditors_policy(SIGNER.vkey, keys[1:], 2)

    def row(name: str, *times: int) -> Row:
        data = note(9)
        for who, time in zip((ANNA, BEN, CLEO), times, strict=False):
            data = forged_cosignature(data, who, time)
        made = {"name": name, "note": data.decode(), "last_leaf": last, "now": NOW, "policy": policy.text().decode()}

        def counted() -> Row:
            opened = policy.judged_since(policy.open_checkpoint(data, now=NOW), last)
            return {"counted": sorted(item.key.name for item in opened.cosigned)}

        return _answer(made, counted)

    yield row("two of three", last, last + 5)
    yield row("all three", last, last + 5, NOW + AHEAD_SECONDS)
    yield row("one of three", last)
    yield row("none")
    for name, time in (
        ("in 1970", 0),
        ("a second before the last leaf", last - 1),
        ("an hour and a second ahead", NOW + AHEAD_SECONDS + 1),
        ("the year 10000", MAX_TIME),
        ("at 2^62", 2**62),
    ):
        yield row(f"one dated {name}", last, time)
        yield row(f"one dated {name}, and two that are not", last, last, time)


# --- proofs -----------------------------------------------------------------------------------------------------------------


def _trust(quorum: int = 0) -> TrustPolicy:
    return auditors_policy(SIGNER.vkey, [ANNA.vkey], quorum) if quorum else auditors_policy(SIGNER.vkey)


def inclusion() -> Iterator[Row]:
    """Yields proof files, and leaves beside them where they carry none."""

    def row(name: str, data: bytes, *, leaf: bytes | None = None, policy: TrustPolicy | None = None) -> Row:
        policy = policy or _trust()
        made = {"name": name, "proof": data.decode(), "policy": policy.text().decode(), "now": NOW}
        made |= {} if leaf is None else {"leaf": leaf.hex()}

        def proven() -> Row:
            found = verify_proof(data, policy, leaf=leaf, now=NOW)
            return {"index": found.leaf.seq, "hash": leaf_hash(found.data).hex()}

        return _answer(made, proven)

    size = len(leaves())
    proofs = [make_proof(node().node, index, size, note(size), leaves()[index]) for index in range(size)]
    for index in (0, 1, 6, size - 1):
        yield row(f"leaf {index} of {size}", proofs[index].to_bytes())
    one = TlogProof(0, (), note(1), leaves()[0])
    yield row("a tree of one leaf", one.to_bytes())
    good = proofs[6]
    yield row("the leaf beside it", replace(good, extra=None).to_bytes(), leaf=leaves()[6])
    yield row("no leaf at all", replace(good, extra=None).to_bytes())
    yield row("another leaf beside it", good.to_bytes(), leaf=leaves()[5])
    yield row("another leaf in it", replace(good, extra=leaves()[5]).to_bytes())
    yield row("another index", replace(good, index=7).to_bytes())
    yield row("an index beyond the tree", replace(good, index=size).to_bytes())
    yield row("a hash less", replace(good, hashes=good.hashes[:-1]).to_bytes())
    yield row("a hash more", replace(good, hashes=(*good.hashes, bytes(32))).to_bytes())
    yield row("hashes in another order", replace(good, hashes=good.hashes[::-1]).to_bytes())
    yield row("an earlier checkpoint", replace(good, checkpoint=note(size - 1)).to_bytes())
    yield row("signed by another key", replace(good, checkpoint=note(size, OTHER)).to_bytes())
    yield row("a quorum that it has not", good.to_bytes(), policy=_trust(1))
    cosigned = forged_cosignature(note(size), ANNA, NOW)
    yield row("a quorum that it has", replace(good, checkpoint=cosigned).to_bytes(), policy=_trust(1))
    old = forged_cosignature(note(size), ANNA, START)
    yield row("a cosignature from before its leaf", replace(good, checkpoint=old).to_bytes(), policy=_trust(1))
    data = good.to_bytes()
    yield row("another first line", data.replace(b"@v1", b"@v2"))
    yield row("an index with a zero before it", data.replace(b"index 6", b"index 06"))
    yield row("base64 with other padding bits", _other_padding(data))


def _other_padding(data: bytes) -> bytes:
    """A hash line whose last character says more bits than 32 bytes have."""
    lines = data.split(b"\n")
    place = next(n for n, line in enumerate(lines) if line.startswith(b"index")) + 1
    lines[place] = lines[place][:-2] + bytes([lines[place][-2] + 1]) + b"="
    return b"\n".join(lines)


def memberships() -> Iterator[Row]:
    """Yields SPEND leaves with membership files: whose row it is, and what the row says."""
    admits = [decode_leaf(leaves()[seq]).descriptor_hash for seq in (1, 2, 3, 4)]

    def row(name: str, leaf: bytes, data: bytes) -> Row:
        made = {"name": name, "leaf": leaf.hex(), "membership": data.decode()}

        def member() -> Row:
            proof = parse_membership(data)
            found = verify_membership(proof, decode_leaf(leaf))
            return {"contribution": proof.descriptor_hash.hex(), "row": proof.row, "epsilon_micro": found.epsilon_micro}

        return _answer(made, member)

    shown = [_shown(name) for name in admits]
    for number, (leaf, proof) in enumerate(shown):
        yield row(f"contribution {number + 1}", leaf, proof.to_bytes())
    leaf, good = shown[0]
    yield row("another contribution", leaf, replace(good, descriptor_hash=admits[1]).to_bytes())
    yield row("another row", leaf, replace(good, row=good.row + 1).to_bytes())
    yield row("a row that is not there", leaf, replace(good, row=99).to_bytes())
    yield row("another place", leaf, replace(good, place=good.place + 1).to_bytes())
    yield row("more places", leaf, replace(good, places=good.places + 5).to_bytes())
    yield row("a hash more", leaf, replace(good, hashes=(*good.hashes, bytes(32))).to_bytes())
    yield row("another leaf", leaves()[1], good.to_bytes())
    yield row("the position of another leaf", leaf, replace(good, leaf=good.leaf + 1).to_bytes())
    yield row("capitals", leaf, good.to_bytes().replace(admits[0].hex().encode(), admits[0].hex().upper().encode()))
    yield row("a line more", leaf, good.to_bytes() + b"\n")
    yield row("another first line", leaf, good.to_bytes().replace(b"-v1", b"-v2"))


def _shown(name: bytes) -> tuple[bytes, Membership]:
    found = find_membership(leaves(), name)
    assert found is not None
    return found


def receipts() -> Iterator[Row]:
    """Yields receipts, each with the leaf that it is about, under the ledger's key."""
    size, index = len(leaves()), 6
    leaf = leaves()[index]

    def row(name: str, data: bytes, of: bytes = leaf, key: str = SIGNER.vkey) -> Row:
        made = {"name": name, "receipt": data.hex(), "leaf": of.hex(), "key": key}

        def received() -> Row:
            found = verify_receipt(data, of, auditors_policy(key))
            return {"index": found.leaf.seq, "size": found.checkpoint.size, "root": found.checkpoint.root.hex()}

        return _answer(made, received)

    def made(at: int) -> bytes:
        return make_receipt(SIGNER, node().node, at, Checkpoint(SIGNER.name, size, tree_root(node().node, size)), leaves()[at])

    good = made(index)
    yield row("leaf 6", good)
    yield row("leaf 0", made(0), leaves()[0])
    yield row("of another leaf", good, leaves()[5])
    yield row("under another key", good, key=OTHER.vkey)
    yield row("a bit of the signature", good[:-1] + bytes([good[-1] ^ 1]))
    yield row("without its tag", good[1:])
    yield row("a byte behind it", good + b"\x00")
    protected, unprotected, _, _ = cbor.decode(good[1:])
    fields, proof = cbor.decode(protected), cbor.decode(unprotected[396][-1][0])
    for name, changes in (
        ("another index under the signature", {-65537: [size, 7]}),
        ("another size under the signature", {-65537: [size + 1, index]}),
        ("another tree algorithm", {395: 2}),
        ("another type", {16: "application/cose"}),
        ("an unknown label", {99: 1}),
    ):
        yield row(name, _sealed(fields | changes, proof))
    yield row("another index in the path", _sealed(fields, [size, 7, proof[2]]))
    yield row("no path", _sealed(fields, [size, index, []]))
    yield row("two proofs", _sealed(fields, proof, twice=True))


def _sealed(fields: dict[Any, Any], proof: list[Any], *, twice: bool = False) -> bytes:
    """A receipt that says anything, signed by the ledger's key over the root of the tree."""
    protected = cbor.encode(dict(sorted(fields.items(), key=lambda item: cbor.encode(item[0]))))
    signature = LOG_KEY.sign(sign1.to_be_signed(protected, root(list(leaves()))))
    told_twice = [cbor.encode(proof)] * (2 if twice else 1)
    return b"\xd2" + cbor.encode([protected, {396: {-1: told_twice}}, None, signature])


# --- releases, aggregates, pins ---------------------------------------------------------------------------------------------


def manifests() -> Iterator[Row]:
    """Yields `release.cose` files, opened with the ledger's keys; nothing is held against an export."""
    keys = [SIGNER.vkey, OTHER.vkey]

    def row(name: str, data: bytes, pinned: list[str] = keys) -> Row:
        made = {"name": name, "release": data.hex(), "keys": pinned}
        return _answer(made, lambda: {"fields": told(cbor.decode(open_manifest(data, pinned).to_cbor(), max_size=1 << 20))})

    payload, message = cbor.decode(MANIFEST)
    key = OTHER_KEY if parsed_signer(message) == key_id(public_bytes(OTHER_KEY)) else LOG_KEY
    yield row("of a run", MANIFEST)
    yield row("another key", MANIFEST, [ANNA.vkey])
    yield row("a bit of the signature", MANIFEST[:-1] + bytes([MANIFEST[-1] ^ 1]))
    yield row("a byte behind it", MANIFEST + b"\x00")
    for name, fields in _alone(cbor.decode(payload)):
        signed = cbor.encode(fields)
        sealed = sign1.sign(signed, key, contributor="ledger", typ=sign1.TYP_RELEASE)
        yield row(name, cbor.encode([signed, sealed]))
    unread = [(name, bad) for name, bad in mutations(cbor.decode(payload), each=1) if _unread(bad)]
    for number, (name, bad) in enumerate(unread):
        if number % 10 == 0:
            message = sign1.sign(bad, key, contributor="ledger", typ=sign1.TYP_RELEASE)
            yield row(name, cbor.encode([bad, message]))


def _alone(fields: dict[int, Any]) -> Iterator[tuple[str, dict[int, Any]]]:
    """Yields manifests, small ones, of which a reader without an export takes some and refuses others."""
    digest, names = bytes(32), ["a", "b"]
    tensors = [[name, "F32", [2, 1], digest] for name in names]
    records = [[[name], None, True, "F32", [2], digest, []] for name in names]
    whole = fields | {
        11: [],
        14: [["open", 2, 1, 7, 9], ["public", 1, 0, None, None]],
        15: [["head", 4, [0, 1]], ["layer.0", 6, []]],
        16: [["full", [0, 1], [True, True]], ["base", [1], [False, False]]],
        17: ["what holds"],
        18: [1, 3, 4, records],
    }

    def file(path: str, tensors: Any = None, form: str = "text", named: list[str] | None = None) -> list[Any]:
        return [path, 7, digest, tensors, form, named or []]

    def of(*files: list[Any]) -> dict[int, Any]:
        return whole | {11: list(files)}

    yield "no file", whole
    yield "files of tensors and of text", of(file("a/m.safetensors", tensors, "tensors"), file("b.txt"))
    yield "files in another order", of(file("b"), file("a"))
    yield "a file twice", of(file("a"), file("a"))
    for path in ("", "/a", "a//b", "a/../b", "con.txt", "a:b", "a.", "e\u0301", "a\nb", "export/a", "Release.cose"):
        yield f"the path {path!a}", of(file(path))
    yield "a path of 513 bytes", of(file("a" * 513))
    yield "paths that differ in case", of(file("A"), file("a"))
    yield "folders that differ in case", of(file("A/a"), file("a/b"))
    yield "a file and a folder that differ in case", of(file("A"), file("a/b"))
    yield "tensors in another order", of(file("m.safetensors", tensors[::-1], "tensors"))
    yield "a tensor twice", of(file("m.safetensors", [tensors[0], tensors[0]], "tensors"))
    yield "a negative size in a shape", of(file("m.safetensors", [["a", "F32", [-1], digest]], "tensors"))
    yield "tensors and names", of(file("m.safetensors", tensors, "tensors", ["x"]))
    yield "tensors under another ending", of(file("m.bin", tensors, "tensors"))
    yield "a safetensors file of another form", of(file("m.safetensors"))
    yield "a form that is none", of(file("a", None, "data"))
    yield "more withdrawn than admitted", whole | {14: [["open", 2, 3, 7, 9], whole[14][1]]}
    yield "a class twice", whole | {14: [whole[14][0], whole[14][0]]}
    yield "half an epsilon", whole | {14: [["open", 2, 1, None, 9], whole[14][1]]}
    yield "a block twice", whole | {15: [whole[15][0], whole[15][0]]}
    yield "classes of a block in another order", whole | {15: [["head", 4, [1, 0]], whole[15][1]]}
    yield "a class of a block twice", whole | {15: [["head", 4, [0, 0]], whole[15][1]]}
    yield "a class of a block that is none", whole | {15: [["head", 4, [2]], whole[15][1]]}
    yield "an artifact twice", whole | {16: [whole[16][0], whole[16][0]]}
    yield "blocks of an artifact in another order", whole | {16: [["full", [1, 0], [True, True]]]}
    yield "a block of an artifact that is none", whole | {16: [["full", [2], [True, True]]]}
    yield "influence of a class left out", whole | {16: [["full", [0], [True]]]}
    yield "no statement", whole | {17: []}
    yield "records in another order", whole | {18: [1, 3, 4, records[::-1]]}
    yield "a record twice", whole | {18: [1, 3, 4, [records[0], records[0]]]}
    yield "no record", whole | {18: [1, 3, 4, []]}
    yield "epoch 0", whole | {18: [0, 3, 4, records]}
    point = public_point()
    about = ["a model", "two\nlines", "apache-2.0", ["en", "de"], ["owner/model"], ["a tag"]]
    said = ["1", "0.1.0", ["README.md"], "TOLD", ["NO_AUDITORS", "UNCOMPARED", "UNPINNED"], about]
    card, signature, pem = file("README.md"), file("model.sig"), file("model.pub")
    yield "a card", of(card) | {20: said}
    yield "a card and a signature", of(card, pem, signature) | {19: point, 20: said}
    yield "a signature alone", of(pem, signature) | {19: point}
    yield "a card that is no file", whole | {20: said}
    yield "a signature that is no file", of(pem) | {19: point}
    yield "a key of a signature that is no file", of(signature) | {19: point}
    yield "a bundle of the manifest among the files", of(file("release.sigstore.json"))
    yield "a point that is not on the curve", of(pem, signature) | {19: point[:-1] + bytes([point[-1] ^ 1])}
    yield "a compressed point", of(pem, signature) | {19: b"\x02" + point[1:33]}
    yield "a point behind another byte", of(pem, signature) | {19: b"\x06" + point[1:]}
    yield "two cards", of(file("MODEL_CARD.md"), card) | {20: [*said[:2], ["MODEL_CARD.md", "README.md"], *said[3:]]}
    for name, place, value in (
        ("another wording", 0, "2"),
        ("no document", 2, []),
        ("a document twice", 2, ["README.md", "README.md"]),
        ("a document of another name", 2, ["config.json"]),
        ("an audit that failed", 3, "FAILED"),
        ("an audit that was none", 3, "SIGNED"),
        ("qualifiers in another order", 4, ["UNPINNED", "UNCOMPARED", "NO_AUDITORS"]),
        ("an audit that pinned the owner's key", 4, ["NO_AUDITORS", "UNCOMPARED"]),
        ("an audit that knew a size", 4, ["NO_AUDITORS", "UNPINNED"]),
        ("a qualifier that is none", 4, ["FINE", "UNCOMPARED", "UNPINNED"]),
    ):
        yield name, of(card) | {20: [*said[:place], value, *said[place + 1 :]]}
    for name, place, value in (
        ("a name of 97 characters", 0, "a" * 97),
        ("a name with a line feed", 0, "a\nb"),
        ("no description", 1, None),
        ("an empty description", 1, ""),
        ("a description that turns text around", 1, "a\u202eb"),
        ("a description with an invisible letter", 1, "a\u2063b"),
        ("no license", 2, None),
        ("a license with a quote", 2, 'mit"'),
        ("a language that is none", 3, ["english"]),
        ("a base model with a line feed", 4, ["a\nb"]),
        ("a tag that begins a comment", 5, ["#a"]),
        ("101 tags", 5, ["a"] * 101),
    ):
        yield name, of(card) | {20: [*said[:5], [*about[:place], value, *about[place + 1 :]]]}
    for delta in ("2/2000000", "1/1", "0/1", "1e-6", "01/1000000"):
        yield f"delta {delta}", whole | {9: delta}


def public_point() -> bytes:
    """Returns a point of P-256: the base point of the curve (FIPS 186-4, D.1.2.3)."""
    x = "6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
    return bytes.fromhex("04" + x + "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5")


def parsed_signer(message: bytes) -> bytes:
    """Returns the key id of a message."""
    return sign1.parse(message).key_id


def _unread(payload: bytes) -> bool:
    try:
        Manifest.from_cbor(payload)
    except LedgerError:
        return True
    return False


def aggregates() -> Iterator[Row]:
    """Yields aggregates, which stand in for pruned ADMIT leaves."""

    def row(name: str, data: bytes) -> Row:
        def read() -> Row:
            Aggregate.from_bytes(data)
            return {"fields": told(cbor.decode(data))}

        return _answer({"name": name, "aggregate": data.hex()}, read)

    for number, data in enumerate(RECORDS):
        yield row(f"aggregate {number}", data)
    fields = cbor.decode(RECORDS[0])
    for name, bad in mutations(dict(enumerate(fields)), each=2):
        value = cbor_of(list(cbor.decode(bad).values())) if _decodes(bad) else _head(len(fields)) + bad[1:]
        made = row(name, value)
        if made["answer"] == "refused":
            yield made
    for name, limit in (
        ("a limit without its delta", [1, 0]),
        ("a delta without its limit", [0, 1]),
        ("a delta of 1", [1, 10**12]),
    ):
        yield row(name, cbor.encode([*fields[:7], *limit, fields[9]]))
    yield row("no leaf", cbor.encode([fields[0], 0, *fields[2:]]))
    yield row("from leaf 0 on", cbor.encode([0, *fields[1:]]))
    yield row("the stand-in of the others", b"\x80")
    yield row("a byte behind it", RECORDS[0] + b"\x00")


def _head(count: int) -> bytes:
    return bytes([0x80 | count])


@cache
def _admitted() -> tuple[bytes, dict[int, Admitted]]:
    """A SUMMARY leaf, and the proofs of the contributions for which it speaks."""
    with tempfile.TemporaryDirectory() as folder:
        driver = grown(Path(folder) / "ledger.db")
        with driver.ledger as ledger:
            leaf = ledger.summarise(now=driver.tick())
            of = [found for found, _ in ledger.state.tally.summarised]
            shown = {n: ledger.member(descriptor(n)) for n in range(1, 7)}
            return encode_leaf(leaf), {n: prove_admitted(leaf.seq, of, one) for n, one in shown.items() if one is not None}


def members() -> Iterator[Row]:
    """Yields member records with paths, held against an aggregate."""
    _, proofs = _admitted()

    def row(name: str, aggregate: Aggregate, member: Member, path: tuple[bytes, ...]) -> Row:
        made = {"name": name, "aggregate": aggregate.to_bytes().hex(), "member": member.to_bytes().hex()}
        made |= {"path": [hash_.hex() for hash_ in path]}

        def held() -> Row:
            aggregate.require_member(member, path)
            return {}

        return _answer(made, held)

    for n, proof in proofs.items():
        yield row(f"contribution {n}", proof.aggregate, proof.shown.member, proof.shown.path)
    one, other = proofs[1], proofs[5]
    aggregate, member, path = one.aggregate, one.shown.member, one.shown.path
    yield row("another descriptor hash", aggregate, replace(member, descriptor_hash=bytes(32)), path)
    yield row("another content", aggregate, replace(member, content_anchor=bytes(32)), path)
    yield row("another position", aggregate, replace(member, seq=member.seq + 1), path)
    yield row("a position that is no member's", aggregate, replace(member, seq=aggregate.end), path)
    yield row("no path", aggregate, member, ())
    yield row("a hash more", aggregate, member, (*path, bytes(32)))
    yield row("another aggregate", other.aggregate, member, path)
    yield row("an aggregate of more members", replace(aggregate, count=aggregate.count + 2), member, path)


def admissions() -> Iterator[Row]:
    """Yields SUMMARY leaves with files that show an admission."""
    leaf, proofs = _admitted()

    def row(name: str, data: bytes, of: bytes = leaf) -> Row:
        made = {"name": name, "leaf": of.hex(), "admission": data.decode()}

        def shown() -> Row:
            proof = parse_admitted(data)
            terms = verify_admitted(proof, decode_leaf(of))
            member = proof.shown.member
            said = {"contribution": member.descriptor_hash.hex(), "seq": member.seq, "content": member.content_anchor.hex()}
            clip, sigma, _ = terms.bounds
            return said | {"class": terms.class_index, "clip_micro": clip, "sigma_micro": sigma}

        return _answer(made, shown)

    for n in (1, 3, 4, 5):
        yield row(f"contribution {n}", proofs[n].to_bytes())
    one, other = proofs[1], proofs[4]
    lowered = replace(one.aggregate, clip_micro=one.aggregate.clip_micro // 2)
    record = replace(one.shown, member=replace(one.shown.member, descriptor_hash=bytes(32)))
    for name, bad in (
        ("another contribution", replace(one, shown=record)),
        ("less clip norm", replace(one, aggregate=lowered)),
        ("another aggregate", replace(one, aggregate=other.aggregate, place=other.place, path=other.path)),
        ("another place", replace(one, place=one.place + 1)),
        ("more places", replace(one, places=one.places + 4)),
        ("another leaf", replace(one, leaf=one.leaf + 1)),
    ):
        yield row(name, bad.to_bytes())
    data, count = one.to_bytes(), len(one.shown.path)
    yield row("a leaf that is no SUMMARY", data, leaves()[1])
    yield row("paths divided elsewhere", data.replace(f"path {count}\n".encode(), f"path {count + 1}\n".encode()))
    yield row("a line more", data + b"\n")
    yield row("another first line", data.replace(b"-v1", b"-v2"))


def _decodes(data: bytes) -> bool:
    try:
        cbor.decode(data)
    except AttestError:
        return False
    return True


def pins() -> Iterator[Row]:
    """Yields files that a ledger's key signs for its own run, with what they hold."""
    for number, data in enumerate(PINNED):
        payload, message = cbor.decode(data)
        yield {
            "name": f"file {number}",
            "file": data.hex(),
            "fields": told(cbor.decode(payload)),
            "kid": parsed_signer(message).hex(),
        }


def vectors() -> dict[str, Any]:
    """Returns all vectors of proofs."""
    return {
        "notes": list(notes()),
        "cosignatures": list(cosignatures()),
        "inclusion": list(inclusion()),
        "memberships": list(memberships()),
        "receipts": list(receipts()),
        "releases": list(manifests()),
        "aggregates": list(aggregates()),
        "members": list(members()),
        "admissions": list(admissions()),
        "pinned": list(pins()),
    }
