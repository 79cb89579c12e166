"""`dptrain ledger export` and `withdraw`: what a run hands out, and what contributors hand in."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from attest import signed_file
from attest.descriptor import ContributionDescriptor
from attest.errors import SignatureRefused
from attest.keys import load_public_key
from attest.registry import Registry, open_registry
from attest.withdrawal import Withdrawal, verify_entitled_withdrawal
from dptrain.cli.inputs import MemberRecords, PassphraseFile, read_attestations
from dptrain.cli.ledger.place import (
    LedgerKey,
    LedgerName,
    RegistryAlong,
    StateDirectory,
    WithoutAttestations,
    opened_to_sign,
    place_of,
)
from dptrain.cli.options import argument, file_argument, file_option, wrong_if
from dptrain.cli.output import counting, styled
from dptrain.cli.results import Shown, Told
from dptrain.errors import ConfigError
from dptrain.record.registry_watch import registry_of_run
from ledger import layout
from ledger.audit.attested import registry_of
from ledger.budget.log import BudgetLog, is_log
from ledger.errors import LedgerBusy
from ledger.leaves import Header
from ledger.proofs.membership import read_admitted
from ledger.storage.place import Place


def taken_along(place: Place, registry: Path | None, without: bool) -> dict[str, Any]:
    """Returns the arguments of `Ledger.export` that say what goes along; the registry is by default that of the run."""
    found = registry_of_run(place) if registry is None and not without else registry
    return {"registry": found, "attestations": not without}


def contained(export: Path) -> dict[str, bool]:
    """Returns what went along, as JSON has it."""
    return {"attestations": (export / layout.ATTESTATIONS).exists(), "registry": (export / layout.REGISTRY).exists()}


def contained_text(export: Path, *, without: bool) -> Iterator[Shown]:
    """Yields what an export goes without, whether that was asked for or not, and how to have it."""
    there = contained(export)
    if all(there.values()):
        yield "with it: what its contributors signed, and the registry; no name, no content, no opening"
    elif without:
        yield "without what contributors signed: an audit of it is TOLD at best"
        return
    if not there["attestations"]:
        how = "no contribution was admitted, or the ledger keeps none of some ADMIT leaf ('dptrain ledger fsck' names it)"
        yield styled("yellow", "without attestations", f": {how}")
    if not there["registry"]:
        yield styled("yellow", "without a registry", ": nobody remembers where that of the run lies; give --registry")


def export(
    ledger: LedgerName,
    directory: Annotated[Path, argument("New directory.", metavar="DIR")],
    registry: RegistryAlong = None,
    without_attestations: WithoutAttestations = False,
    state: StateDirectory = None,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Write the ledger as a directory that anybody can audit offline.

    With it goes what contributors signed, and the registry with their keys, so that an audit holds every admission against the
    signature of its contributor. The directory holds no content, no contributor's name, and no draw unless the policy makes
    occurrences public: contents, contributors, data classes and principals stand in it as salted commitments. It appears
    complete or not at all.

    When a run is over, or for an audit in between. Publish the directory with the model; publish ledger.pub elsewhere. With
    `--without-attestations` where your contributors did not let you share what they signed: an audit then repeats what your
    ledger says of them, and is TOLD at best.

    Example: `dptrain ledger export ledger.db export/`
    """
    place = place_of(ledger, state)
    with opened_to_sign(place, ledger_key, passphrase_file) as log:
        with counting(f"exporting {place.shown}"):
            written = log.export(directory, **taken_along(place, registry, without_attestations))
        size, root, vkey = log.size, log.root.hex(), log.state.keys.current
    return Told(
        {"path": str(written), "size": size, "root": root, "key": vkey} | contained(written),
        [
            f"wrote {written}: {size} leaves, root {root}",
            *contained_text(written, without=without_attestations),
            f"verify with: dptrain ledger verify {written} --key {vkey}",
        ],
    )


def withdraw(
    ledger: LedgerName,
    withdrawals: Annotated[list[Path], file_argument("WITHDRAWAL", "As attest withdraw wrote them.")],
    attestations: Annotated[list[Path] | None, file_option("DATA.attest", "Attestations that are withdrawn; repeat.")] = None,
    registry: Annotated[Path | None, file_option("REGISTRY", "Registry with the signers' keys.")] = None,
    members: MemberRecords = None,
    owner_key: Annotated[Path | None, file_option("PUB", "For a budget log: key of the corpus owner.")] = None,
    state: StateDirectory = None,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Enter withdrawals, each signed by its contributor or by the corpus owner.

    A contributor's signature is checked against the registry and against the attestation it withdraws; the owner's
    against the ledger's header. From the next charge on the contribution is drawn no more. What was spent stays spent.
    While a run holds the ledger, and before the first run has made it, put the files into LEDGER.db.withdrawals/ instead
    (with --state, into DIR/ledger.withdrawals/): the run takes them in by itself. In a budget log, which a server or a run may
    hold open, nothing is reserved for the contribution from then on; it takes --owner-key, and --registry where a contributor
    signed.

    Example: `dptrain ledger withdraw ledger.db withdrawals/*.cose --attestations notes.jsonl.attest --registry registry.cbor`
    """
    now, place = int(time.time()), place_of(ledger, state)
    if is_log(place):
        given = {"--attestations": attestations, "--member": members, "--ledger-key": ledger_key}
        wrong = " and ".join(flag for flag, value in given.items() if value)
        wrong_if(bool(wrong), f"this is a budget log, which has in it what was signed; leave out {wrong}")
        return _from_budget(place, withdrawals, owner_key, registry, now)
    wrong_if(owner_key is not None, "--owner-key is for a budget log: the ledger of a run has it in its header")
    descriptors = {}
    for path in attestations or []:
        descriptors |= {hashlib.sha256(item.descriptor).digest(): item.opened() for item in read_attestations(path)}
    entered = []
    try:
        with opened_to_sign(place, ledger_key, passphrase_file) as log:
            known = None if registry is None else registry_of(log.header, registry)
            if known is not None:
                known.require_names()
            checked = [_check_withdrawal(path, log.header, descriptors, known, now) for path in withdrawals]
            shown = {item.shown.member.descriptor_hash: item.shown for item in map(read_admitted, members or [])}
            for found, evidence in checked:
                name = found.descriptor_hash
                seq = log.withdraw(name, found.reason_code, evidence, now=now, member=shown.get(name))
                entered.append({"descriptor_hash": name.hex(), "seq": seq, "matched": name in log.state.contributions})
    except LedgerBusy as error:
        raise ConfigError(
            error.code,
            f"a run holds {place.shown}; put the files into {place.side('.withdrawals')}/ and it takes them in at its next "
            "charge",
        ) from error
    unmatched = "  (no leaf names such a contribution; recorded all the same)"
    lines = (f"withdrawn {row['descriptor_hash']}, leaf {row['seq']}{'' if row['matched'] else unmatched}" for row in entered)
    return Told({"withdrawn": entered}, lines)


def _from_budget(place: Place, paths: list[Path], owner_key: Path | None, registry: Path | None, now: int) -> Told:
    """Enters withdrawals into a budget log: all of them are checked before one is entered."""
    from dptrain.inference.invisibleink.run.withdrawing import Withdrawing

    owner = None if owner_key is None else load_public_key(owner_key)
    wrong_if(owner is None, "a budget log does not say whose corpus it is of: give the owner's key with --owner-key")
    assert owner is not None
    known = None if registry is None else open_registry(registry, owner)
    with BudgetLog.open(place) as log:
        entered = [
            {"descriptor_hash": account.hex(), "seq": log.state.withdrawn[account], "matched": True}
            for account in Withdrawing(log, owner, known, files=paths).enter(now=now)
        ]
    return Told({"withdrawn": entered}, [f"withdrawn {row['descriptor_hash']}, leaf {row['seq']}" for row in entered])


def _check_withdrawal(
    path: Path, header: Header, descriptors: dict[bytes, ContributionDescriptor], registry: Registry | None, now: int
) -> tuple[Withdrawal, bytes]:
    """Returns a withdrawal whose signer may withdraw that contribution, and the digest of its signature as evidence."""
    payload, message = signed_file.read(path, what="withdrawal")
    try:
        found = verify_entitled_withdrawal(
            payload,
            message,
            owner=header.owner,
            owner_key=header.owner_key,
            corpus=header.policy.corpus,
            descriptors=descriptors,
            registry=registry,
            now=now,
        )
    except SignatureRefused as error:
        if error.code != "UNPROVEN":
            raise
        raise ConfigError(
            "WITHDRAWAL_UNPROVEN",
            f"{str(path)!r} is signed by a contributor; give --registry with the signer's key and --attestations with the "
            "attestation that it withdraws",
        ) from error
    return found, hashlib.sha256(message).digest()
