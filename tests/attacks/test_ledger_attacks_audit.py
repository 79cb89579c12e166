"""Rows B19 to B22 of the attack list: a log that writes leaves which say something else than what was run.

The liar has the log's key: each lie is told in a leaf that is hashed, stored and signed as it should be. So it is tried three
times: the writer refuses to append it, the ledger that holds it does not open (`dptrain ledger fsck` says so), and an auditor
finds it in a signed export.

Then what a liar leaves out rather than says, or says where nothing contradicts it: an export that was cut back, a header in
words of its own, withdrawals that were entered as something else, bounds that nobody signed.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, signed_file
from attest.errors import ValueRefused
from attest.keys import key_id, public_bytes
from attest.registry import RegistryLog, open_registry
from attest.withdrawal import PASSING, Withdrawal, sign_withdrawal
from ledger.audit import AuditReport, verify_export
from ledger.audit.findings import exit_code
from ledger.errors import HorizonExceeded, LeafRefused, LedgerCorrupt
from ledger.export import write_export
from ledger.leaves import MAX_LEAF_SIZE, Charge, Epoch, Header, Leaf, Settle, Spend, encode_leaf
from ledger.log import Ledger
from ledger.merkle import Frontier, leaf_hash, root
from ledger.note import checkpoint_text, sign_note
from ledger.proofs.memory import hold_against_memory, judge, parse_evidence
from ledger.replay.signer import KeyChain
from ledger.storage.place import Place
from ledger.storage.store import Row, create_store
from tests.ledger.spends import with_rows
from tests.worlds.ledgers import (
    OTHER_KEY,
    OWNER_KEY,
    SIGNER,
    START,
    Driver,
    admission,
    descriptor,
    header_spec,
    signed_policy,
)
from tests.worlds.registries import put, registry_file
from tests.worlds.retained_ledgers import forged_export


def audited(leaves: list[Leaf], directory: Path) -> set[tuple[str, str]]:
    """What an auditor finds, as code and place."""
    report = verify_export(forged_export(leaves, directory), [SIGNER.vkey])
    assert report.verdict == "FAILED"
    return {(found.code, found.where) for found in report.findings}


def stored(leaves: list[Leaf], path: Path) -> LedgerCorrupt:
    """How a ledger that holds such leaves is refused when it is opened with every epsilon computed again."""
    store, frontier, rows = create_store(Place.of(path)), Frontier(), []
    for seq, leaf in enumerate(leaves):
        body = encode_leaf(leaf)
        rows.append(Row(seq, leaf.KIND, leaf_hash(body), body))
        frontier.append(leaf_hash(body))
    store.append(rows, frontier, sign_note(checkpoint_text(SIGNER.name, frontier.size, frontier.root()), SIGNER))
    store.close()
    with pytest.raises(LedgerCorrupt) as caught:
        Ledger.open(path, recompute=True)
    return caught.value


def told(leaves: list[Leaf], kind: type[Leaf], change: Callable[[Any], Leaf], nth: int = 0) -> tuple[list[Leaf], int]:
    """The leaves with the n-th of a kind changed, and where it stands."""
    place = [seq for seq, leaf in enumerate(leaves) if isinstance(leaf, kind)][nth]
    return [change(leaf) if seq == place else leaf for seq, leaf in enumerate(leaves)], place


def found_everywhere(leaves: list[Leaf], seq: int, code: str, tmp_path: Path) -> None:
    """Auditor and store name the leaf, for the same reason."""
    assert (code, f"seq {seq}") in audited(leaves, tmp_path / "export")
    error = stored(leaves, tmp_path / "liar.db")
    assert (error.code, error.seq) == ("REPLAY", seq)


def without(leaves: list[Leaf], *places: int) -> list[Leaf]:
    kept = [leaf for seq, leaf in enumerate(leaves) if seq not in places]
    return [leaf if seq == 0 else replace(leaf, seq=seq) for seq, leaf in enumerate(kept)]


def first_class(leaf: Charge, **changes: object) -> Charge:
    return replace(leaf, classes=(replace(leaf.classes[0], **changes), *leaf.classes[1:]))


# --- B19: steps that were never charged ----------------------------------------


def test_B19_a_window_that_skips_steps_is_refused_TILE_by_the_writer(run):
    run.steps()
    for first in (4, 6, 9):
        with pytest.raises(LeafRefused) as refused:
            run.ledger.charge(first, 4, now=run.tick(), noise_stream=run.stream())
        assert refused.value.code == "TILE"
    with pytest.raises(HorizonExceeded):
        run.steps(10)


def test_B19_windows_that_do_not_tile_the_run_are_found(leaves, tmp_path):
    lied, seq = told(leaves, Charge, lambda leaf: replace(leaf, first_step=leaf.first_step + 1), nth=1)
    found_everywhere(lied, seq, "TILE", tmp_path)


@pytest.mark.parametrize("nth", [0, 1, 3])
def test_B19_a_charge_left_out_is_found_though_the_rest_is_renumbered_and_signed(leaves, tmp_path, nth):
    places = [seq for seq, leaf in enumerate(leaves) if isinstance(leaf, Charge)]
    for left_out in ((places[nth],), (places[nth], places[nth] + 1)):
        lied = without(leaves, *left_out)
        assert audited(lied, tmp_path / f"export {len(left_out)}")
        assert stored(lied, tmp_path / f"{len(left_out)}.db").code == "REPLAY"


def test_B19_an_epoch_that_names_a_step_never_released_is_found(leaves, tmp_path):
    lied, seq = told(leaves, Epoch, lambda leaf: replace(leaf, step=leaf.step + 1))
    found_everywhere(lied, seq, "EPOCH", tmp_path)


# --- B20: another accountant, delta, orders or rate than were signed ----------------------


def test_B20_a_sampling_rate_other_than_the_signed_policys_is_found(leaves, tmp_path):
    lied, seq = told(leaves, Charge, lambda leaf: first_class(leaf, q_den=leaf.classes[0].q_den * 10))
    found_everywhere(lied, seq, "CHARGE_CLASS", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: {"accountant": replace(header.accountant, name="rdp")},
        lambda header: {"policy_payload": header.policy_payload.replace(b"notes", b"other")},
        lambda header: {"blocks": (replace(header.blocks[0], std=header.blocks[0].std / 2), *header.blocks[1:])},
    ],
    ids=["accountant", "policy", "noise of a block"],
)
def test_B20_a_header_that_is_not_what_the_owner_signed_is_no_header(leaves, change):
    header = leaves[0]
    assert isinstance(header, Header)
    with pytest.raises((LeafRefused, ValueError)):
        replace(header, **change(header))


def test_B20_an_epsilon_of_another_accountant_is_found(leaves, tmp_path):
    """Lower and higher, by more than rounding up once explains."""
    for change in (-2, 3):

        def other(leaf: Spend, by: int = change) -> Spend:
            return with_rows(leaf, lambda row: replace(row, epsilon_micro=row.epsilon_micro + by))

        lied, seq = told(leaves, Spend, other)
        folder = tmp_path / str(change)
        folder.mkdir()
        found_everywhere(lied, seq, "SPEND_EPSILON", folder)


# --- B21: less noise than was charged --------------------------------------------------


def test_B21_settling_with_less_noise_is_refused_VARIANCE_by_the_writer(run):
    window = run.charge()
    smaller = tuple(value * (1 - 2**-50) for value in run.ledger.state.scheduled_variances())
    with pytest.raises(LeafRefused) as refused:
        run.ledger.settle(window, 4, now=run.tick(), variances=smaller)
    assert refused.value.code == "VARIANCE"


@pytest.mark.parametrize("share", [0.0, 0.5, 1 - 2**-50, 1 + 2**-50])
def test_B21_realised_noise_other_than_charged_is_found(leaves, tmp_path, share):
    lied, seq = told(leaves, Settle, lambda leaf: replace(leaf, variances=tuple(value * share for value in leaf.variances)))
    found_everywhere(lied, seq, "VARIANCE", tmp_path)


# --- B22: a withdrawn contribution is still drawn -------------------------------------


def test_B22_a_pool_that_still_holds_a_withdrawn_contribution_is_found(leaves, tmp_path):
    """The charges after the withdrawal repeat the pool from before it."""
    before, after = (leaf for leaf in leaves if isinstance(leaf, Charge) and leaf.window in (2, 3))
    assert before.classes[0] != after.classes[0]
    for field in ("pool_count", "pool_root"):
        old = getattr(before.classes[0], field)
        lied, seq = told(leaves, Charge, lambda leaf, name=field, old=old: first_class(leaf, **{name: old}), nth=2)
        if lied[seq] == leaves[seq]:
            continue  # one left and one came: as many as before
        folder = tmp_path / field
        folder.mkdir()
        found_everywhere(lied, seq, "CHARGE_CLASS", folder)


def test_B22_a_withdrawal_counts_from_the_next_charge_and_is_never_erased(run):
    run.admit(admission(1), admission(2))
    run.steps()
    run.withdraw(1)
    run.steps()
    counts = [window.classes[0].pool_count for window in run.ledger.state.windows]
    roots = [window.classes[0].pool_root for window in run.ledger.state.windows]
    assert counts == [2, 1] and roots[0] != roots[1]
    assert run.ledger.epsilon(descriptor(1)) < run.ledger.epsilon(descriptor(2))
    with pytest.raises(LeafRefused) as refused:
        run.admit(admission(1))
    assert refused.value.code == "WITHDRAWN"


# --- Bounds that nobody signed ----------------------------------------------------------------------


def test_bounds_that_the_operator_made_up_are_never_said_to_be_derived(tmp_path):
    """Somebody who signed a smaller clip norm and a larger multiplier is admitted at the presets: all leaves fit together."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(4, "sensitive"))
        driver.steps(2)
        driver.epoch()
        ledger.finish(now=driver.tick())
        export = ledger.export(tmp_path / "export")
    report = verify_export(export, [SIGNER.vkey], owner_key=public_bytes(OWNER_KEY), minimum_size=8)
    assert (report.verdict, report.qualifiers, report.findings) == ("TOLD", ("FROZEN_TOLD", "NO_AUDITORS"), ())
    assert (exit_code(report.verdict), exit_code(report.verdict, require_full=True)) == (0, 1)


# --- A tail that was cut ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> tuple[Path, Path, Path]:
    """Exports of one ledger, early and late, and of a fork of it that grew as far."""
    base = tmp_path_factory.mktemp("grown")
    exports = []
    for name in ("ledger", "fork"):
        with Ledger.create(base / f"{name}.db", header_spec(), SIGNER, now=START) as ledger:
            driver = Driver(ledger)
            driver.admit(admission(1), admission(2 if name == "ledger" else 3))
            driver.steps()
            driver.epoch()
            exports.append(ledger.export(base / f"{name}-early"))
            driver.steps(2)
            driver.epoch()
            exports.append(ledger.export(base / f"{name}-late"))
    return exports[0], exports[1], exports[3]


def seen(export: Path, memory: Path) -> AuditReport:
    """An audit that remembers."""
    return hold_against_memory(verify_export(export, [SIGNER.vkey]), export, memory, [SIGNER.vkey])


def test_an_export_whose_tail_was_cut_fails_where_the_auditor_knows_how_long_it_is(grown):
    early, late, _ = grown
    size = verify_export(late, [SIGNER.vkey]).size
    assert "UNCOMPARED" in verify_export(early, [SIGNER.vkey]).qualifiers, "by itself it cannot be told"
    report = verify_export(early, [SIGNER.vkey], minimum_size=size)
    assert report.verdict == "FAILED" and {(found.code, found.where) for found in report.findings} == {("OLD", "checkpoint")}
    report = verify_export(late, [SIGNER.vkey], minimum_size=size)
    assert report.verdict == "TOLD" and "UNCOMPARED" not in report.qualifiers


def test_an_export_whose_tail_was_cut_fails_against_what_was_seen_with_evidence(grown, tmp_path):
    early, late, fork = grown
    memory = tmp_path / "seen"
    first = seen(late, memory)
    assert first.verdict == "TOLD" and "UNCOMPARED" in first.qualifiers and "nothing was remembered" in first.notes[-1]
    for export, code, kind in ((early, "BEHIND", "ROLLBACK"), (fork, "FORKED", "FORK")):
        report = seen(export, memory)
        assert report.verdict == "FAILED" and [found.code for found in report.findings] == [code]
        shown = {judge(parse_evidence(path.read_bytes()), [SIGNER.vkey]).kind for path in memory.glob("*.evidence")}
        assert kind in shown
    again = seen(late, memory)
    assert again.verdict == "TOLD" and "UNCOMPARED" not in again.qualifiers, "what failed is not what is remembered"


# --- A header in words of its own ------------------------------------------------------------------------------


def with_header(leaves: list[Leaf], directory: Path, key: int, value: Callable[[Any], Any]) -> Path:
    """An export whose leaf 0 has another value at one key of its map, below the log's own signature."""
    bodies = [encode_leaf(leaf) for leaf in leaves]
    fields = cbor.decode(bodies[0], max_size=MAX_LEAF_SIZE)
    bodies[0] = cbor.encode(fields | {key: value(fields[key])})
    note = sign_note(checkpoint_text(SIGNER.name, len(bodies), root(bodies)), SIGNER)
    rows = [Row(seq, 0, leaf_hash(body), body) for seq, body in enumerate(bodies)]
    return write_export(leaves[0], rows, note, directory, keys=KeyChain(leaves[0]))


ACCOUNTANT, NOTE, MARGIN = 15, 16, 18

IN_ITS_OWN_WORDS = {
    "a note that promises more": (NOTE, lambda _: "certified: every bound was checked in exact arithmetic", "NUMERICS"),
    "a note with a word more": (NOTE, lambda note: note + " Audited.", "NUMERICS"),
    "no margin": (MARGIN, lambda _: 0.0, "NUMERICS"),
    "a margin of one's own": (MARGIN, lambda _: 2.0**-12, "NUMERICS"),
    "a version that lets any figure pass": (ACCOUNTANT, lambda row: [row[0], row[1], "pld-1", row[3]], "ACCOUNTANT_VERSION"),
    "a library of one's own": (ACCOUNTANT, lambda row: [row[0], "ours", *row[2:]], "ACCOUNTANT_VERSION"),
    "parameters of one's own": (ACCOUNTANT, lambda row: [*row[:3], "interval=1e-9"], "ACCOUNTANT_VERSION"),
}


@pytest.mark.parametrize("case", IN_ITS_OWN_WORDS)
def test_a_header_that_says_of_its_numerics_what_no_policy_gives_is_a_finding(leaves, tmp_path, case):
    key, value, code = IN_ITS_OWN_WORDS[case]
    report = verify_export(with_header(leaves, tmp_path / "true", key, lambda told: told), [SIGNER.vkey])
    assert report.verdict == "TOLD", report.findings
    report = verify_export(with_header(leaves, tmp_path / "false", key, value), [SIGNER.vkey])
    assert report.verdict == "FAILED" and {(found.code, found.where) for found in report.findings} == {(code, "seq 0")}


# --- Withdrawals that were entered as something else ---------------------------------------------------


ALICE = Ed25519PrivateKey.from_private_bytes(b"\x61" * 32)
SIGNED_AT = START + 2


class Withdrawals:
    """A ledger of one contribution of alice's, her signed withdrawal, and the registry that has her key."""

    def __init__(self, base: Path) -> None:
        self.base = base
        data = registry_file(
            OWNER_KEY,
            START - 10,
            lambda log: log.enrol(
                "alice", public_bytes(ALICE), classes=("open",), cap=None, not_before=0, not_after=START * 2, now=START - 9
            ),
        )
        self.registry = base / "registry.cbor"
        self.folder = base / "withdrawals"
        self.folder.mkdir(parents=True)
        put(self.registry, data)

    def root(self) -> bytes:
        """Root of the registry."""
        return open_registry(self.registry, public_bytes(OWNER_KEY)).root()

    def sign(self, key=ALICE, signer="alice", *, reason="consent", time=SIGNED_AT, corpus="notes", n=1) -> bytes:
        """Writes a signed withdrawal; returns its evidence hash."""
        payload, message = sign_withdrawal(Withdrawal(descriptor(n), corpus, time, reason), key, signer=signer)
        signed_file.write(self.folder / f"{len(list(self.folder.iterdir()))}.cose", payload, message)
        return hashlib.sha256(message).digest()

    def forge(self) -> bytes:
        """Writes a withdrawal that names alice's key and was signed by nobody; returns its evidence hash."""
        payload, message = sign_withdrawal(Withdrawal(descriptor(1), "notes", SIGNED_AT, "consent"), ALICE, signer="alice")
        message = message[:-1] + bytes([message[-1] ^ 1])
        signed_file.write(self.folder / f"{len(list(self.folder.iterdir()))}.cose", payload, message)
        return hashlib.sha256(message).digest()

    def export(self, reason: str | None, evidence: bytes = bytes(32), then: tuple[str, bytes] | None = None) -> Path:
        """A run in which the contribution leaves for a reason, or stays; a second reason may follow."""
        spec = header_spec(signed_policy(registry_root=self.root()), registry_root=self.root())
        place = self.base / f"run{len(list(self.base.glob('*.db')))}"
        with Ledger.create(place.with_suffix(".db"), spec, SIGNER, now=START) as ledger:
            driver = Driver(ledger)
            driver.admit(admission(1, key_id=key_id(public_bytes(ALICE))), admission(2))
            driver.steps()
            if reason is not None:
                ledger.withdraw(descriptor(1), reason, evidence, now=driver.tick())
            if then is not None:
                ledger.withdraw(descriptor(1), *then, now=driver.tick())
            driver.steps()
            driver.epoch()
            return ledger.export(place)

    def audit(self, export: Path, *, registry: bool = True) -> AuditReport:
        return verify_export(
            export, [SIGNER.vkey], withdrawals=self.folder, registry=self.registry if registry else None
        )


@pytest.fixture
def withdrawals(tmp_path) -> Withdrawals:
    return Withdrawals(tmp_path)


def found(report: AuditReport) -> list[tuple[str, str]]:
    return [(item.code, item.where) for item in report.findings]


def leaf_of(export: Path) -> str:
    return f"seq {verify_export(export, [SIGNER.vkey]).withdrawals[0].seq}"


def test_an_honest_withdrawal_is_shown_by_whoever_signed_it(withdrawals):
    for signer, key in (("alice", ALICE), ("owner", OWNER_KEY)):
        export = withdrawals.export("consent", withdrawals.sign(key, signer))
        assert "WITHDRAWALS_TOLD" in verify_export(export, [SIGNER.vkey]).qualifiers, "nothing was given"
        report = withdrawals.audit(export)
        assert report.verdict == "TOLD" and not {"WITHDRAWALS_TOLD", "WITHDRAWAL_UNENTERED"} & set(report.qualifiers)
        assert (report.withdrawal_evidence.signed, report.withdrawal_evidence.shown) == (1, 1)
        if signer == "alice":
            without = withdrawals.audit(export, registry=False)
            assert without.withdrawal_evidence.shown == 0 and "WITHDRAWALS_TOLD" in without.qualifiers


def test_a_signed_withdrawal_that_was_logged_as_expired_is_found(withdrawals):
    withdrawals.sign()
    export = withdrawals.export("expired", hashlib.sha256(b"attestation 1").digest())
    assert verify_export(export, [SIGNER.vkey]).verdict == "TOLD"
    report = withdrawals.audit(export)
    assert report.verdict == "FAILED" and found(report) == [("WITHDRAWAL_REASON", leaf_of(export))]
    assert "'consent'" in report.findings[0].sentence and "'expired'" in report.findings[0].sentence


def test_a_withdrawal_that_was_signed_after_it_expired_is_no_finding_and_is_said_to_be_missing(withdrawals):
    """What expired may be admitted again by a later run; what somebody withdrew may not, so it is to be entered too."""
    withdrawals.sign(time=START + 10_000)
    export = withdrawals.export("expired", hashlib.sha256(b"attestation 1").digest())
    report = withdrawals.audit(export)
    assert report.verdict == "TOLD" and "WITHDRAWAL_UNENTERED" in report.qualifiers


def test_a_withdrawal_entered_after_its_contribution_expired_is_shown(withdrawals):
    evidence = withdrawals.sign()
    expired = ("expired", hashlib.sha256(b"attestation 1").digest())
    report = withdrawals.audit(withdrawals.export(*expired, then=("consent", evidence)))
    assert report.verdict == "TOLD" and not {"WITHDRAWALS_TOLD", "WITHDRAWAL_UNENTERED"} & set(report.qualifiers)
    assert [(row.reason, row.count) for row in report.withdrawal_counts] == [("consent", 1)], "it left once"
    assert (report.withdrawal_evidence.signed, report.withdrawal_evidence.shown) == (1, 1)


def test_an_expiry_that_cites_another_attestation_is_found(withdrawals):
    export = withdrawals.export("expired", b"\x07" * 32)
    report = verify_export(export, [SIGNER.vkey])
    assert report.verdict == "FAILED" and [found.code for found in report.findings] == ["WITHDRAWAL_EVIDENCE"]


@pytest.mark.parametrize("reason", ["key-revoked", "class-not-granted"])
def test_what_the_registry_is_said_to_have_taken_out_is_told_until_it_is_shown(withdrawals, reason):
    export = withdrawals.export(reason, withdrawals.root())
    assert "WITHDRAWALS_TOLD" in verify_export(export, [SIGNER.vkey]).qualifiers
    report = withdrawals.audit(export)
    assert report.verdict == "TOLD" and "WITHDRAWALS_TOLD" not in report.qualifiers


@pytest.mark.parametrize("reason", sorted(PASSING))
def test_nobody_signs_a_withdrawal_for_a_reason_that_a_run_enters_by_itself(withdrawals, reason):
    with pytest.raises(ValueRefused, match="REASON"):
        withdrawals.sign(reason=reason)


@pytest.mark.parametrize(
    ("signed", "code"),
    [
        ({"reason": "error"}, "WITHDRAWAL_REASON"),
        ({"n": 2}, "WITHDRAWAL_EVIDENCE"),
        ({"corpus": "other"}, "WITHDRAWAL_EVIDENCE"),
    ],
)
def test_evidence_that_says_something_else_than_its_leaf_is_found(withdrawals, signed, code):
    export = withdrawals.export("consent", withdrawals.sign(**signed))
    report = withdrawals.audit(export)
    assert report.verdict == "FAILED" and (code, leaf_of(export)) in found(report)


def test_nobody_but_owner_and_contributor_signs_a_withdrawal(withdrawals, tmp_path):
    """Not under their names with another key, and not under a name of one's own."""
    export = withdrawals.export("consent", withdrawals.sign(OTHER_KEY, "owner"))
    assert found(withdrawals.audit(export)) == [("WITHDRAWAL_EVIDENCE", leaf_of(export))]
    withdrawals = Withdrawals(tmp_path / "others")
    for signer in ("alice", "mallory"):
        report = withdrawals.audit(withdrawals.export("consent", withdrawals.sign(OTHER_KEY, signer)))
        assert report.verdict == "TOLD" and report.withdrawal_evidence.shown == 0 and "WITHDRAWALS_TOLD" in report.qualifiers
    export = withdrawals.export("consent", withdrawals.forge())
    assert ("WITHDRAWAL_EVIDENCE", leaf_of(export)) in found(withdrawals.audit(export))


def test_a_key_that_was_enrolled_since_the_registry_was_copied_is_no_finding(withdrawals):
    new = Ed25519PrivateKey.generate()
    export = withdrawals.export("consent", withdrawals.sign(new))
    report = withdrawals.audit(export)
    assert report.verdict == "TOLD" and report.withdrawal_evidence.shown == 0
    log = RegistryLog(withdrawals.registry, OWNER_KEY)
    log.enrol("alice", public_bytes(new), classes=["open"], not_before=0, not_after=START * 2, now=log.registry.time + 1)
    assert withdrawals.audit(export).withdrawal_evidence.shown == 1


def test_a_registry_without_names_shows_withdrawals_by_the_key_of_the_admission(withdrawals):
    """As an auditor has it: who signed is found by the key in the ADMIT leaf, and nobody else's signature will do."""
    withdrawals.registry.with_suffix(".names").unlink()
    export = withdrawals.export("consent", withdrawals.sign())
    report = withdrawals.audit(export)
    assert not report.findings and report.withdrawal_evidence.shown == 1
    export = withdrawals.export("consent", withdrawals.forge())
    assert ("WITHDRAWAL_EVIDENCE", leaf_of(export)) in found(withdrawals.audit(export))


def test_a_contributor_withdraws_nothing_of_another(withdrawals):
    """The ADMIT leaf of contribution 2 names another key, so alice's signature shows nothing of it."""
    withdrawals.sign(n=2)
    report = withdrawals.audit(withdrawals.export(None))
    assert "WITHDRAWAL_UNENTERED" not in report.qualifiers and report.verdict == "TOLD"
    assert any("withdrawals of 1 contributions were given that no leaf enters" in note for note in report.notes)


def test_what_is_missing_is_counted_and_named_and_what_was_never_entered_is_told(withdrawals):
    export = withdrawals.export("consent", b"\x07" * 32)
    report = withdrawals.audit(export)
    assert report.withdrawal_evidence.missing == (int(leaf_of(export).split()[1]),)
    assert any("0 of 1 leaves" in note and leaf_of(export).split()[1] in note for note in report.notes)
    withdrawals.sign()
    report = withdrawals.audit(withdrawals.export(None))
    assert report.verdict == "TOLD" and "WITHDRAWAL_UNENTERED" in report.qualifiers


def test_a_file_of_another_kind_among_the_withdrawals_counts_for_nothing(withdrawals):
    evidence = withdrawals.sign()
    export = withdrawals.export("consent", evidence)
    (withdrawals.folder / "letter.txt").write_text("please forget me")
    report = withdrawals.audit(export)
    assert report.verdict == "TOLD" and report.withdrawal_evidence.shown == 1
    assert any("letter.txt" in note for note in report.notes)
