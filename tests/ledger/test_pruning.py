"""Pruning on both databases: what goes, what stays, and that nothing which anybody may ask changes."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import pytest

from attest.schema.plain import commit_content
from ledger.audit import verify_export
from ledger.errors import LeafRefused, LedgerCorrupt, LedgerError, ProofError, RetentionRefused
from ledger.leaves import Admit, decode_leaf
from ledger.log import Ledger
from ledger.proofs.cosigning import cosign_export
from ledger.proofs.memory import Memory
from ledger.proofs.prover import ExportReader
from ledger.replay.summaries import Aggregate
from ledger.retention import summary_keys
from ledger.views.trace import Wanted, trace
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy
from tests.worlds.retained_ledgers import ANNA, AUDITORS, BEN, CLEO, export_of, grown, is_pruned, retaining_spec, vouched_for

KEYS = [SIGNER.vkey]
EVERYBODY = range(1, 7)


def told(ledger: Ledger, numbers: Iterable[int] = EVERYBODY) -> dict:
    """All that a ledger says of its run."""
    run = ledger.state
    return {
        "epsilons": {n: ledger.epsilon(descriptor(n)) for n in numbers},
        "steps": {n: run.expenditure.steps(run.contributions[descriptor(n)], run.charged_phases) for n in numbers},
        "terms": {n: (run.contributions[descriptor(n)].seq, run.contributions[descriptor(n)].active) for n in numbers},
        "bounds": {n: run.contributions[descriptor(n)].terms.bounds.clip_micro for n in numbers},
        "pools": [run.register.pool(place) for place in range(2)],
        "next": run.charge_classes(),
        "totals": run.totals(),
        "charged": (run.charged, run.position, run.attempt, run.spends),
        "epochs": run.epochs,
        "withdrawals": run.withdrawals,
        "tree": (ledger.size, ledger.root, ledger.checkpoint),
    }


@pytest.fixture
def ready(place):
    """Summarised, vouched for, and an epoch older."""
    driver = grown(place)
    driver.leaf = driver.ledger.summarise(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.steps(1)
    driver.epoch()
    yield driver
    driver.ledger.close()


def bodies_gone(ledger: Ledger) -> list[tuple[int, int]]:
    with ledger.rows() as rows:
        return [(row.seq, row.kind) for row in rows if not row.body]


def test_the_admissions_of_who_left_go_and_nothing_else(ready):
    with ready.ledger.rows() as rows:
        before = list(rows)
    left = {descriptor(n) for n in (2, 4, 6)}
    expected = [
        (row.seq, row.kind)
        for row in before
        if row.seq < ready.leaf.end and row.kind == Admit.KIND and decode_leaf(row.body).descriptor_hash in left
    ]
    assert ready.ledger.prune() == len(expected) == 3
    assert bodies_gone(ready.ledger) == expected
    with ready.ledger.rows() as rows:
        for old, new in zip(before, rows, strict=True):
            assert (old.seq, old.kind, old.leaf_hash) == (new.seq, new.kind, new.leaf_hash)


def test_nothing_that_the_ledger_says_changes(ready, backend):
    before = told(ready.ledger)
    ready.ledger.prune()
    assert told(ready.ledger) == before
    ready.ledger.close()
    with Ledger.open(backend.place, SIGNER, recompute=True) as ledger:
        assert told(ledger) == before and ledger.pruned_before == ready.leaf.end
    with Ledger.open(backend.place, read_only=True) as ledger:
        assert told(ledger) == before


@pytest.mark.one_in(99)
def test_a_pruned_ledger_goes_on(ready, backend, tmp_path):
    """Charges, admissions, withdrawals, epochs, a resume, another summary and pruning, the close; and it never differs
    from the same run unpruned in what is left."""
    ready.ledger.prune()
    pin = ready.ledger.pin()
    ready.ledger.close()
    with Ledger.open(backend.place, SIGNER) as ledger:
        driver = Driver(ledger, now=ready.now, streams=100)
        with pytest.raises(LeafRefused, match="WITHDRAWN"):
            driver.admit(admission(2))
        with pytest.raises(LeafRefused, match="REPLAYED"):
            driver.admit(admission(1))
        before = ledger.state.withdrawals[descriptor(2)]
        assert ledger.withdraw(descriptor(2), "contributor", bytes(32), now=driver.tick()) == before
        ledger.resume(ledger.state.position, pin, now=driver.tick())
        driver.admit(admission(7))
        driver.steps(1)
        driver.withdraw(1)
        driver.epoch()
        driver.epoch()
        second = ledger.summarise(now=driver.tick())
        assert second.first == ready.leaf.end
        vouched_for(driver, BEN, CLEO)
        driver.steps(1)
        driver.epoch()
        before = told(ledger)
        assert ledger.prune() > 0
        assert told(ledger) == before and ledger.pruned_before == second.end
        ledger.finish(now=driver.tick())
        report = verify_export(ledger.export(tmp_path / "export"), KEYS)
        assert is_pruned(report) and report.findings == ()
        assert [row.vouchers for row in report.summaries] == [(ANNA.name, BEN.name), (BEN.name, CLEO.name)]


def test_a_pruned_export_gives_the_figures_of_the_full_one(ready, tmp_path):
    full = verify_export(ready.ledger.export(tmp_path / "full"), KEYS)
    ready.ledger.prune()
    lean = verify_export(ready.ledger.export(tmp_path / "lean"), KEYS)
    assert full.verdict == "TOLD" and not is_pruned(full) and is_pruned(lean)
    assert lean.findings == () and lean.root_hex == full.root_hex
    assert (lean.classes, lean.epochs, lean.withdrawals) == (full.classes, full.epochs, full.withdrawals)
    assert [row.pruned for row in lean.summaries] == [3]
    assert any("vouched for by auditor.example/anna, auditor.example/ben" in note for note in lean.notes)


def test_what_is_gone_is_in_no_file_of_the_export(ready, tmp_path):
    with ready.ledger.rows() as rows:
        bodies = [row.body for row in rows]
    ready.ledger.prune()
    gone = [bodies[seq] for seq, _ in bodies_gone(ready.ledger)]
    export = ready.ledger.export(tmp_path / "lean")
    data = b"".join(path.read_bytes() for path in sorted(export.rglob("*")) if path.is_file())
    assert gone and not any(body in data for body in gone)
    for n in (2, 4, 6):
        assert b"key%05d" % n not in data, "the key id leads to a person"
    assert b"key00001" in data, "of who is active everything stays"


def test_single_leaves_of_a_pruned_export(ready, tmp_path):
    ready.ledger.prune()
    reader = ExportReader(ready.ledger.export(tmp_path / "lean"))
    for seq in (0, 1, ready.leaf.seq):
        assert reader.leaf(seq)
    with pytest.raises(ProofError, match="PRUNED"):
        reader.leaf(2)
    assert len(list(reader.backwards())) == reader.size - 3


def test_an_auditor_of_a_pruned_ledger_vouches_for_what_is_still_whole(place, tmp_path):
    driver = grown(place, attested=True)
    first = driver.ledger.summarise(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.steps(1)
    driver.epoch()
    driver.ledger.prune()
    memory = Memory(tmp_path / "memory", CLEO.vkey)
    report = cosign_export(export_of(driver, tmp_path / "lean"), KEYS, CLEO, memory, now=START + 500, first=True).report
    assert report.verdict == "SUMMARISED"
    second = driver.ledger.summarise(now=driver.tick())
    done = cosign_export(export_of(driver, tmp_path / "second"), KEYS, CLEO, memory, now=START + 600, summary=True)
    driver.ledger.add_signatures(done.note, [CLEO.vkey, *summary_keys(driver.ledger.header)])
    assert driver.ledger.vouchers == {first.seq: (ANNA.name, BEN.name), second.seq: (CLEO.name,)}
    driver.ledger.close()


def test_who_has_the_descriptor_finds_a_contribution_whose_leaves_are_gone(place, backend):
    """The commitment to the content went with the leaf: content and nonce alone lead nowhere, and the refusal says why."""
    content, nonce = hashlib.sha256(b"a scan").digest(), b"n" * 16
    driver = Driver(Ledger.create(place, retaining_spec(), SIGNER, now=START))
    driver.admit(admission(1), admission(2, "sensitive", anchor=commit_content(content, nonce)))
    driver.steps(2)
    driver.withdraw(2)
    for _ in range(2):
        driver.epoch()
        driver.steps(1)
    driver.ledger.summarise(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.epoch()

    def traced(ledger: Ledger, wanted: Wanted):
        pruned = ledger.pruned()
        with ledger.rows() as rows:
            return trace(ledger.state, (row.body for row in rows) if pruned is None else pruned.entries(rows), wanted)

    by_content, by_both = Wanted.of_content(content, nonce), Wanted(commit_content(content, nonce), descriptor(2))
    before = traced(driver.ledger, by_content)
    driver.ledger.prune()
    after = traced(driver.ledger, by_both)
    assert (before.pruned, after.pruned) == (False, True)
    assert replace(after, admit=before.admit, pruned=False) == before
    blank = {"attestation_hash": bytes(32), "key_id": bytes(8), "anchor": bytes(32), "time": after.admit.time}
    assert after.admit == replace(before.admit, **blank) != before.admit
    with pytest.raises(LedgerError, match=r"NOT_FOUND.*ask by the descriptor hash"):
        traced(driver.ledger, by_content)
    driver.ledger.close()
    (record,) = backend.fetch("SELECT record FROM aggregate")[0]
    forged = replace(Aggregate.from_bytes(bytes(record)), members_root=bytes(32)).to_bytes()
    backend.edit(f"UPDATE aggregate SET record = x'{forged.hex()}'")
    with pytest.raises(LedgerCorrupt, match="set_root"):
        Ledger.open(place, SIGNER)


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"retention_epochs": 0}, "RETENTION"), ({"auditors": (), "auditor_quorum": None}, "NO_AUDITORS"), ({}, "NO_SUMMARY")],
)
def test_without_policy_auditors_or_summary_nothing_goes(path, changes, code):
    with grown(path, **changes).ledger as ledger, pytest.raises(RetentionRefused) as caught:
        ledger.prune()
    assert caught.value.code == code


def test_without_a_quorum_and_a_further_epoch_nothing_goes(path):
    driver = grown(path)
    with driver.ledger as ledger:
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA)
        driver.steps(1)
        driver.epoch()
        with pytest.raises(RetentionRefused, match=r"UNVOUCHED: 2 auditors must vouch .* auditor.example/anna does"):
            ledger.prune()
        assert bodies_gone(ledger) == []


def test_pruning_waits_for_one_more_epoch_or_the_close(path):
    driver = grown(path)
    with driver.ledger as ledger:
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, CLEO)
        with pytest.raises(RetentionRefused, match="TOO_EARLY"):
            ledger.prune()
        ledger.finish(now=driver.tick())
        assert ledger.prune() == 3


def test_public_occurrences_are_counted_again_from_draws_where_admissions_are_gone(backend, tmp_path):
    """DRAW leaves name contributions by the order of admission, in which what stands for a pruned one keeps its place."""
    policy = {"disclosure": "occurrences_public", "retention_epochs": 1, "auditors": AUDITORS, "auditor_quorum": 2}
    driver = Driver(Ledger.create(backend.place, header_spec(signed_policy(**policy)), SIGNER, now=START))
    driver.admit(admission(0), admission(1), admission(2, "sensitive"))
    with driver.ledger as ledger:
        for epoch in range(3):
            drawn(driver, (0, 2) if epoch else (1, 2))
            if not epoch:
                driver.withdraw(1)
            driver.epoch()
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, CLEO)
        drawn(driver, (0,))
        driver.epoch()
        before = told(ledger, range(3))
        assert ledger.prune() == 1 and bodies_gone(ledger) == [(2, Admit.KIND)]
        assert told(ledger, range(3)) == before and ledger.state.contributions[descriptor(1)].occurrences == 2
        drawn(driver, (0, 2))
        with pytest.raises(LeafRefused, match="WITHDRAWN"):
            drawn(driver, (0, 1))
    with Ledger.open(backend.place, SIGNER, recompute=True) as ledger:
        ledger.resume(ledger.state.position, ledger.pin(), now=driver.tick())
        driver = Driver(ledger, now=driver.now + 1, streams=900)
        drawn(driver, (2,))
        driver.epoch()
        ledger.finish(now=driver.tick())
        report = verify_export(ledger.export(tmp_path / "lean"), KEYS)
        assert report.findings == () and is_pruned(report)


def drawn(driver: Driver, numbers: tuple[int, ...]) -> None:
    """A window of two steps in which these take part."""
    window = driver.charge(2)
    for step in (window.first_step, window.first_step + 1):
        driver.ledger.draw(step, numbers, now=driver.tick())
    driver.ledger.settle(window, 2, now=driver.tick())
