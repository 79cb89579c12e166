"""Runs long enough to have something to retain, for the tests of summaries and pruning."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.export import write_export
from ledger.leaves import decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.merkle import leaf_hash, root
from ledger.note import Cosigner, checkpoint_text, sign_note
from ledger.replay.contributions import AdmitSpec
from ledger.replay.signer import KeyChain
from ledger.retention import summary_keys, vouch
from ledger.storage.store import Row
from tests.worlds.attested_ledgers import AttestedDriver, attested_admission, attested_header, attested_policy, put_registry
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec, signed_policy

ANNA, BEN, CLEO = (
    Cosigner(f"auditor.example/{name}", Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))
    for seed, name in enumerate(("anna", "ben", "cleo"), start=51)
)
AUDITORS = (ANNA.vkey, BEN.vkey, CLEO.vkey)


_LASTING = 90 * 365 * 86400
_RETAINING: dict = {"retention_epochs": 1, "auditors": AUDITORS, "auditor_quorum": 2}


def retaining_spec(*, attested: bool = False, **changes: object):
    """A header whose policy keeps one epoch and names three auditors, of whom two are a quorum."""
    if attested:
        return attested_header(attested_policy(**_RETAINING | changes))
    return header_spec(signed_policy(**_RETAINING | changes), registry_root=changes.get("registry_root", bytes(32)))


def grown(place, *, start: int = START, attested: bool = False, **changes: object) -> Driver:
    """Three closed epochs: contributions 2 and 6 left in the first and second, 1, 3 and 5 stay, 99 never came.

    With ``attested`` contributors signed them for ninety years, and whoever vouches for summaries can, by today's clock too.
    """
    spec = retaining_spec(attested=attested, **(changes | {"max_window": _LASTING + 86400} if attested else changes))
    one = partial(attested_admission, not_after=START + _LASTING) if attested else admission
    driver = (AttestedDriver if attested else Driver)(Ledger.create(place, spec, SIGNER, now=start), now=start)
    driver.admit(one(1), one(2), one(3, "sensitive"))
    driver.admit(one(4, "sensitive", clip_micro=250_000, sigma_micro=4_000_000, max_occurrences=7))
    driver.steps(1)
    driver.withdraw(2)
    driver.withdraw(99)
    driver.steps(1)
    driver.epoch()
    driver.admit(one(5), one(6))
    driver.steps(1)
    driver.withdraw(4)
    driver.withdraw(6)
    driver.steps(1)
    driver.epoch()
    driver.steps(1)
    driver.epoch()
    return driver


def crowded(
    place,
    directory: Path,
    *,
    people: int = 40,
    attested: bool = False,
    leaving: Iterable[int] = range(3, 19),
    **changes: object,
) -> Driver:
    """Epochs in which many leave, and a policy that keeps one epoch whole and three with all hashes.

    Contributions 3 to 18, or those ``leaving``, leave in the first epoch, so that their ADMIT leaves go, next to each other; a
    checkpoint and a pin that a RESUME leaf cites lie among these. Those from 24 on leave in the second one, all but the last.
    With ``attested`` contributors signed them, contribution 3
    under terms of its own.
    """
    fields = {"retention_hash_epochs": 3} | changes
    spec = retaining_spec(attested=attested, **fields)
    driver = (AttestedDriver if attested else Driver)(Ledger.create(place, spec, SIGNER, now=START), now=START)
    one = _attested if attested else admission
    driver.admit(*map(one, range(10)))
    export_of(driver, directory / "early")
    driver.admit(one(10), one(11))
    pin = driver.ledger.pin()
    driver.admit(*map(one, range(12, people)))
    driver.steps(1)
    for n in leaving:
        driver.withdraw(n)
    driver.epoch()
    driver.ledger.resume(0, pin, now=driver.tick())
    driver.steps(1)
    for n in range(24, people - 1):
        driver.withdraw(n)
    driver.epoch()
    driver.steps(1)
    driver.epoch()
    return driver


def _attested(n: int) -> AdmitSpec:
    return attested_admission(n, **({"max_occurrences": 30} if n == 3 else {}))


def vouched_and_older(place, directory: Path, **changes: object) -> Driver:
    """`crowded`, summarised, vouched for, and an epoch older: four epochs are closed."""
    driver = crowded(place, directory, **changes)
    driver.ledger.summarise(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.steps(1)
    driver.epoch()
    return driver


def ready_to_prune(directory: Path) -> None:
    """Such a ledger in a file, of attested contributions, closed; its policy lets hashes go as soon as bodies have."""
    vouched_and_older(directory / "ledger.db", directory, people=20, attested=True, retention_hash_epochs=1).ledger.close()


def crowded_and_pruned(place, directory: Path, **changes: object) -> Driver:
    """`vouched_and_older`, and pruned: two of four epochs have lost bodies."""
    driver = vouched_and_older(place, directory, **changes)
    driver.ledger.prune()
    return driver


def hashes_gone(place, directory: Path, **changes: object) -> Driver:
    """`crowded_and_pruned`, an epoch older, and without the hashes of what was pruned."""
    driver = crowded_and_pruned(place, directory, **changes)
    driver.steps(1)
    driver.epoch()
    driver.ledger.drop_hashes()
    return driver


def is_pruned(report) -> bool:
    """Whether an audit, or the check of a release, found nothing wrong with a ledger of which leaves were pruned.

    Its bounds are told where an ADMIT leaf is left; with those that contributors signed, and a registry, the verdict would be
    SUMMARISED, as where no such leaf is left.
    """
    bounds = getattr(report, "bounds", None)
    told = bounds is None or bounds.admits > 0
    return report.verdict == ("TOLD" if told else "SUMMARISED") and "PRUNED" in report.qualifiers


def export_of(driver: Driver, directory: Path) -> Path:
    """The ledger as it stands, exported; of signed admissions with their registry."""
    if not isinstance(driver, AttestedDriver):
        return driver.ledger.export(directory)
    beside = directory.with_name(f"{directory.name}.registry")
    beside.mkdir(exist_ok=True)
    return driver.ledger.export(directory, registry=put_registry(beside))


def leaves_of(ledger: Ledger) -> list:
    """All leaves of an unpruned ledger."""
    with ledger.rows() as rows:
        return [decode_leaf(row.body) for row in rows]


def forged_export(leaves: list, directory: Path) -> Path:
    """Any leaves, exported under a checkpoint that the log's own key signs: what only the meaning can refuse."""
    bodies = [encode_leaf(leaf) for leaf in leaves]
    note = sign_note(checkpoint_text(SIGNER.name, len(bodies), root(bodies)), SIGNER)
    rows = [Row(seq, 0, leaf_hash(body), body) for seq, body in enumerate(bodies)]
    return write_export(leaves[0], rows, note, directory, keys=KeyChain(leaves[0]))


def vouched_for(driver: Driver, *who: Cosigner) -> None:
    """Lets auditors vouch for the last summary below the last checkpoint, and the ledger keep what they say."""
    ledger = driver.ledger
    note, since = ledger.checkpoint, ledger.state.tally.summaries[-1].seq
    for cosigner in who:
        note = vouch(note, cosigner, ledger.state.keys.vkeys, since=since, time=driver.now)
    ledger.add_signatures(note, summary_keys(ledger.header))


def pruned_run(place, **changes: object) -> Driver:
    """`grown`, summarised, vouched for by a quorum, one epoch older, and pruned."""
    driver = grown(place, **changes)
    driver.ledger.summarise(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.steps(1)
    driver.epoch()
    driver.ledger.prune()
    return driver
