"""Directories in which scenarios begin: a clinic with keys, rules and signed notes; a run over them; digits to train on."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import signed_file
from attest.corpus import SigningTemplate, sign_corpus
from attest.keys import public_bytes, save_private_key, save_public_key
from attest.policy import Policy, sign_policy
from attest.registry import RegistryLog
from ledger.note import parse_verifier_key
from tests.frozen.scenario import NOW, working_in
from tests.ledger.tlog_witness import Witness
from tests.vectors.conformance.written import put
from tests.worlds.attested_ledgers import put_registry
from tests.worlds.commands import POLICY as CLINIC
from tests.worlds.commands import Shell, record
from tests.worlds.ledgers import LOG_KEY, SIGNER
from tests.worlds.postgres import Cluster, server_binary
from tests.worlds.retained_ledgers import ANNA, BEN, crowded_and_pruned, grown

_EXPORTS = Path(__file__).parents[1] / "vectors" / "conformance" / "exports.json"

DAY = 86_400

PEOPLE = ("owner", "alice", "bob", "carol", "anna", "ben")
"""Names all who have a key: the owner, three who contribute, two auditors."""

POLICY = CLINIC.lstrip().replace('"public"', '"general"')
"""The rules of the clinic; its second class is drawn in every step, and private."""


def key_of(name: str) -> Ed25519PrivateKey:
    """Returns the key of a person, the same in every run."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def nothing(directory: Path) -> None:
    """Leaves the directory empty."""


def rules(directory: Path) -> None:
    """Writes everybody's keys and an unsigned policy."""
    for name in PEOPLE:
        save_private_key(directory / f"{name}.key", key_of(name))
        save_public_key(directory / f"{name}.pub", public_bytes(key_of(name)), name)
    (directory / "policy.toml").write_text(POLICY)


def clinic(directory: Path) -> None:
    """Writes a registry in which Alice may sign sensitive notes, the signed policy, five notes and a letter that she signed."""
    rules(directory)
    owner, alice = key_of("owner"), key_of("alice")
    log = RegistryLog.create(directory / "registry.cbor", owner, owner="owner", now=NOW - DAY)
    log.enrol(
        "alice", public_bytes(alice), classes=("sensitive",), not_before=NOW - DAY, not_after=NOW + 700 * DAY, now=NOW - DAY
    )
    policy = Policy.from_toml(POLICY)
    payload, message = sign_policy(policy, owner, owner="owner", registry_root=log.registry.root())
    signed_file.write(directory / "policy.cose", payload, message)
    notes = directory / "corpus" / "notes.jsonl"
    notes.parent.mkdir()
    notes.write_text("".join(f'{{"text": "note {number}"}}\n' for number in range(1, 6)))
    rule = policy.class_rule("sensitive")
    template = SigningTemplate(
        contributor="alice", data_class="notes", admissibility_class="sensitive", corpus=policy.corpus,
        clip_norm_micro=rule.clip_norm_micro, noise_multiplier_micro=rule.noise_multiplier_micro,
        not_before=NOW - DAY, not_after=NOW + 365 * DAY,
    )  # fmt: skip
    letter = directory / "corpus" / "letter.json"
    letter.write_text('{"text": "a letter"}\n')
    for data in (notes, letter):
        sign_corpus(data, None, alice, template)


@cache
def _kept(make: Callable[[Path], object]) -> tempfile.TemporaryDirectory:
    """Returns a directory that is made once for all scenarios of this process."""
    place = tempfile.TemporaryDirectory(prefix="frozen-")
    with working_in(Path(place.name)):
        make(Path(place.name))
    return place


def trained(directory: Path) -> None:
    """Writes the clinic with a finished run of 20 steps over its notes, in ledger.db."""
    shutil.copytree(_kept(_trained).name, directory, dirs_exist_ok=True)


def _trained(directory: Path) -> None:
    clinic(directory)
    record(Shell(directory))


def witness_answers(directory: Path) -> None:
    """Makes a witness of the ledger, which answers the request in ``asked`` in ``answered``; its key goes to witness.pub."""
    key = parse_verifier_key((directory / "ledger.pub").read_text().splitlines()[-1])
    witness = Witness("witness.example/w1", {key.name: key.public_key}, now=NOW)
    (directory / "witness.pub").write_text(f"{witness.vkey}\n")
    (directory / "answered").write_bytes(witness.curl((directory / "asked").read_bytes()))


def retaining(directory: Path) -> None:
    """Writes a ledger of three epochs under a policy that keeps one, and the keys of two auditors whom it names."""
    save_private_key(directory / "ledger.key", LOG_KEY)
    (directory / "ledger.pub").write_text(f"{SIGNER.vkey}\n")
    for cosigner in (ANNA, BEN):
        save_private_key(directory / f"{cosigner.name.rpartition('/')[2]}.key", cosigner.key)
    grown(directory / "ledger.db", attested=True).ledger.close()
    put_registry(directory)


@contextmanager
def served() -> Iterator[dict[str, str]]:
    """Runs a database server with a role that may write; gives its ``url``."""
    server = Cluster()
    try:
        server.execute("CREATE ROLE trainer LOGIN PASSWORD 'trainer'")
        yield {"url": server.url()}
    finally:
        server.stop()


def server_missing() -> str | None:
    """Returns that no database server is installed, or None where one is."""
    found = server_binary("postgres") and server_binary("initdb")
    return None if found else "no PostgreSQL server on this machine"


def digits(directory: Path) -> None:
    """Writes sixty pictures of digits that three contributors signed, and a run file for four steps over them."""
    from tests.worlds.digits import make_digits

    made = make_digits(directory, now=NOW)
    made.run.write_text(f'{made.run.read_text()}device = "cpu"\n')


def published(*names: str) -> Callable[[Path], None]:
    """Returns what writes published honest exports, each by its name, and the keys of their ledgers and of their owner."""

    def write(directory: Path) -> None:
        from tests.vectors.conformance.exports import files_in

        rows = {row["name"]: row for row in json.loads(_EXPORTS.read_text())["honest"]}
        for name in names:
            put(files_in(rows[name], rows), directory / name)
        keys = sorted({key for name in names for key in rows[name]["pins"]["log"]})
        (directory / "log.pub").write_text("".join(f"{key}\n" for key in keys))
        (owner,) = {rows[name]["pins"]["owner"] for name in names}
        save_public_key(directory / "owner.pub", bytes.fromhex(owner), "owner")

    return write


def dropping(directory: Path) -> None:
    """Writes a pruned ledger whose policy lets hashes go too."""
    save_private_key(directory / "ledger.key", LOG_KEY)
    (directory / "ledger.pub").write_text(f"{SIGNER.vkey}\n")
    crowded_and_pruned(directory / "ledger.db", directory, people=24, retention_hash_epochs=1).ledger.close()
