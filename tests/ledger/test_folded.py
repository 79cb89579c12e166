"""Closed runs of which nothing says any more who stayed: what is recomputed, who can still be shown, and what it costs."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ledger.accountants import to_micro_up
from ledger.audit import verify_export
from ledger.audit.verify import earlier_run
from ledger.errors import BudgetExceeded, CosignRefused, LeafRefused, LedgerCorrupt, ProofError, RetentionRefused
from ledger.leaves import Admit, Withdraw, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.proofs.cosigning import Cosigned, cosign_export
from ledger.proofs.membership import find_membership
from ledger.proofs.memory import Memory
from ledger.replay.budgets import composed, most_of_run, of_run
from ledger.replay.earlier_runs import SpentRegistry
from ledger.replay.summaries import Aggregate, Member, ShownMember
from ledger.retention import MEMBER, named_by_withdrawals, statements, summary_keys
from ledger.views.trace import withdrawal_statement
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy
from tests.worlds.retained_ledgers import ANNA, BEN, export_of, grown, is_pruned, retaining_spec, vouched_for

KEYS = [SIGNER.vkey, NoteSigner("ledger.example/run2", OTHER_KEY).vkey]
SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
STAYED, LEFT = (1, 3, 5), (2, 4, 6)


def closed(place, **changes: object) -> Driver:
    """`grown`, summarised, vouched for, an epoch older, and closed."""
    driver = grown(place, **changes)
    driver.ledger.summarise(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.steps(1)
    driver.epoch()
    driver.ledger.finish(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    return driver


def folded(place, **changes: object) -> Driver:
    """Such a run, without the ADMIT leaves of anybody whom the summary speaks for."""
    driver = closed(place, **changes)
    driver.ledger.prune(who_stays=True)
    return driver


def figures(ledger: Ledger) -> dict:
    """All that a ledger says of its run but names."""
    run = ledger.state
    return {
        "epsilons": [run.epsilon(item) for item in run.contributions.values()],
        "terms": [(item.seq, item.active, item.terms.bounds.clip_micro) for item in run.contributions.values()],
        "pools": [run.register.pool(place)[0] for place in range(2)],
        "totals": run.totals(),
        "charged": (run.charged_phases, run.position, run.attempt, run.spends),
        "epochs": run.epochs,
        "withdrawals": run.withdrawals,
        "tree": (ledger.size, ledger.root, ledger.checkpoint),
    }


@pytest.fixture
def run(place):
    driver = closed(place)
    yield driver
    driver.ledger.close()


def admissions(ledger: Ledger) -> list:
    with ledger.rows() as rows:
        return [row for row in rows if row.kind == Admit.KIND]


def test_everybody_goes_and_every_figure_stays(run, backend):
    before = figures(run.ledger)
    assert run.ledger.prune(who_stays=True) == 6
    assert all(not row.body for row in admissions(run.ledger))
    assert figures(run.ledger) == before
    run.ledger.close()
    with Ledger.open(backend.place, SIGNER, recompute=True) as ledger:
        assert figures(ledger) == before and ledger.state.register.unnamed == [2, 1]


def test_who_left_may_go_first_and_who_stayed_later(run):
    before = figures(run.ledger)
    assert run.ledger.prune() == 3 and run.ledger.state.register.unnamed == [0, 0]
    assert run.ledger.prune(who_stays=True) == 3 and figures(run.ledger) == before
    for again in (False, True):
        with pytest.raises(RetentionRefused, match="NO_SUMMARY"):
            run.ledger.prune(who_stays=again)


def test_who_stayed_goes_only_where_auditors_vouch_behind_the_close(path):
    driver = grown(path)
    with driver.ledger as ledger:
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        ledger.finish(now=driver.tick())
        for who in ((), (ANNA,)):
            vouched_for(driver, *who)
            with pytest.raises(RetentionRefused, match=rf"UNVOUCHED.*the close.*{'anna' if who else 'nobody'} does"):
                ledger.prune(who_stays=True)
        vouched_for(driver, BEN)
        assert ledger.prune(who_stays=True) == 6


def test_auditors_vouch_for_who_stayed_though_who_left_is_gone_and_for_nobody_who_is_gone(path, tmp_path):
    """The last summary is not whole any more; of the word below the close it says that no summary is meant."""
    driver = grown(path, attested=True)
    memories = {who: Memory(tmp_path / who.name.rpartition("/")[2], who.vkey) for who in (ANNA, BEN)}

    def vouch_all(export: Path, **options: bool) -> list[Cosigned]:
        now = driver.now + 1
        done = [cosign_export(export, KEYS, who, memories[who], now=now, summary=True, **options) for who in memories]
        for found in done:
            driver.ledger.add_signatures(found.note, [*summary_keys(driver.ledger.header), ANNA.vkey, BEN.vkey])
        return done

    with driver.ledger as ledger:
        summary = ledger.summarise(now=driver.tick())
        assert [item.stayed for item in vouch_all(export_of(driver, tmp_path / "first"), first=True)] == [False, False]
        driver.epoch()
        assert ledger.prune() == 3
        ledger.finish(now=driver.tick())
        closed = export_of(driver, tmp_path / "closed")
        assert verify_export(closed, KEYS).verdict == "SUMMARISED"
        done = vouch_all(closed)
        assert [(item.stayed, item.vouched) for item in done] == [(True, ()), (True, ())]
        assert statements(ledger.header, done[0].note) == {ANNA.name: summary.seq + 1}
        assert ledger.prune(who_stays=True) == 3
        folded = export_of(driver, tmp_path / "folded")
        report = verify_export(folded, KEYS)
        assert report.verdict == "SUMMARISED" and report.bounds.admits == 0 and report.bounds.pruned == 6
        with pytest.raises(CosignRefused, match=r"FOLDED.*3 contributions that stayed"):
            vouch_all(folded)


def test_while_a_run_goes_on_nobody_goes_who_stays(path):
    driver = grown(path)
    with driver.ledger as ledger:
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.steps(1)
        driver.epoch()
        with pytest.raises(RetentionRefused, match="RUNNING"):
            ledger.prune(who_stays=True)
        assert all(row.body for row in admissions(ledger))


def test_nobody_is_shown_to_be_a_member_while_the_run_goes_on(path):
    driver = grown(path)
    with driver.ledger as ledger:
        ledger.summarise(now=driver.tick())
        shown = ledger.member(descriptor(1))
        told = (shown.member.content_anchor, *shown.path)
        leaf = Withdraw(ledger.size, driver.tick(), descriptor(1), shown.member.seq, "contributor", bytes(32), told)
        (problem,) = ledger.state.apply(leaf)
    assert problem.code == "MEMBER" and "not closed" in problem.sentence


def test_an_auditor_recomputes_every_figure_and_says_what_rests_on_others(run, tmp_path):
    whole = verify_export(run.ledger.export(tmp_path / "whole"), KEYS)
    run.ledger.prune(who_stays=True)
    lean = verify_export(run.ledger.export(tmp_path / "lean"), KEYS)
    assert is_pruned(lean) and lean.findings == () and lean.root_hex == whole.root_hex
    classes = tuple(replace(row, epsilon_preset=None) for row in whole.classes)
    assert (lean.classes, lean.epochs, lean.withdrawals) == (classes, whole.epochs, whole.withdrawals)
    assert (whole.folded, lean.folded) == (0, 3)
    assert any("of 3 contributions that stayed nothing says any more who they are" in note for note in lean.notes)


def test_what_stays_of_a_crowd_does_not_grow_with_it(tmp_path):
    """Under one set of terms four times as many leave four bytes each in the export: the entries that say nothing."""
    sizes = {}
    for count in (40, 160):
        spec = retaining_spec(retention_hash_epochs=1)
        driver = Driver(Ledger.create(tmp_path / f"{count}.db", spec, SIGNER, now=START))
        driver.admit(*map(admission, range(count)))
        for _ in range(2):
            driver.steps(1)
            driver.epoch()
        driver.ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.epoch()
        driver.ledger.finish(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.ledger.prune(who_stays=True)
        driver.ledger.drop_hashes()
        export = driver.ledger.export(tmp_path / str(count))
        driver.ledger.close()
        assert is_pruned(verify_export(export, KEYS))
        files = {path.relative_to(export): path for path in export.rglob("*") if path.is_file()}
        sizes[count] = sum(path.stat().st_size for path in files.values())
        assert sum(path.stat().st_size for name, path in files.items() if "retained" in name.parts) < 30_000
    assert sizes[160] - sizes[40] < 120 * 8


def test_nothing_that_leads_to_who_stayed_is_left(run, tmp_path, backend):
    run.ledger.prune(who_stays=True)
    export = run.ledger.export(tmp_path / "lean")
    data = b"".join(path.read_bytes() for path in export.rglob("*") if path.is_file())
    for n in STAYED:
        gone = admission(n)
        for told in (gone.key_id, gone.attestation_hash, gone.anchor, gone.descriptor_hash):
            assert told not in data
    for table, column in (("entry", "body"), ("aggregate", "record")):
        held = b"".join(bytes(value) for (value,) in backend.fetch(f"SELECT {column} FROM {table}") if value)
        assert not any(descriptor(n) in held for n in STAYED)


def test_a_withdrawal_finds_its_member_in_the_file_beside_the_ledger(run, tmp_path, backend):
    run.ledger.prune(who_stays=True)
    seq = run.ledger.withdraw(descriptor(1), "contributor", bytes(32), now=run.tick())
    leaf = run.ledger.withdrawal_leaves()[-1]
    assert (leaf.seq, leaf.admit_seq) == (seq, 1) and leaf.member is not None and leaf.member[0] == admission(1).anchor
    known = run.ledger.state.contributions[descriptor(1)]
    assert not known.active and not known.unnamed and run.ledger.state.register.unnamed == [1, 1]
    size = run.ledger.size
    assert run.ledger.withdraw(descriptor(1), "contributor", bytes(32), now=run.tick()) == seq and run.ledger.size == size
    report = verify_export(run.ledger.export(tmp_path / "lean"), KEYS)
    assert is_pruned(report) and report.withdrawals[-1].class_name == "open" and report.withdrawals[-1].epsilon
    run.ledger.close()
    with Ledger.open(backend.place, SIGNER, recompute=True) as ledger:
        assert ledger.state.contributions[descriptor(1)].seq == 1 and ledger.state.register.unnamed == [1, 1]


def brought(ledger: Ledger, n: int) -> ShownMember:
    """What a contributor was handed before the leaves went."""
    found = ledger.member(descriptor(n))
    assert found is not None
    return found


def test_without_the_file_the_withdrawer_brings_the_record(run):
    run.ledger.prune(who_stays=True)
    shown = brought(run.ledger, 5)
    members = run.ledger.place.side(".members")
    assert members.stat().st_mode & 0o777 == 0o600
    members.unlink()
    assert run.ledger.member(descriptor(5)) is None
    run.ledger.withdraw(descriptor(5), "contributor", bytes(32), now=run.tick(), member=shown)
    assert run.ledger.withdrawal_leaves()[-1].admit_seq == shown.member.seq
    run.ledger.withdraw(descriptor(1), "contributor", bytes(32), now=run.tick())
    leaf = run.ledger.withdrawal_leaves()[-1]
    assert (leaf.admit_seq, leaf.member) == (None, None), "nobody shows that it was there; the withdrawal stands all the same"
    assert descriptor(1) in run.ledger.state.withdrawals


def test_a_withdrawal_said_to_match_nothing_is_in_no_bound_that_leaves_it_out(run, tmp_path):
    """It may be of somebody who stayed: neither the statement nor the audit says that it is of nobody."""
    whole = withdrawal_statement(run.ledger.state)
    run.ledger.prune(who_stays=True)
    run.ledger.place.side(".members").unlink()
    seq = run.ledger.withdraw(descriptor(1), "contributor", bytes(32), now=run.tick())
    made = withdrawal_statement(run.ledger.state)
    assert whole.epsilon and made.epsilon is None and (whole.hidden, made.hidden) == (0, 2), "99 never came, and 1 stayed"
    assert "whether 2 of them are among those that stayed" in made.sentence and made.members == whole.members
    (sentence,) = next(row.sentences for row in made.rows if row.seq == seq)
    assert "of 3 that stayed nothing says any more who they are: it may be one of them" in sentence
    notes = verify_export(run.ledger.export(tmp_path / "lean"), KEYS).notes
    assert any("no ADMIT leaf names; of those that stayed nothing says" in note for note in notes)


def test_no_stand_in_is_taken_for_a_withdrawal_whatever_its_bytes(run):
    """The kind of a leaf is looked for at a place in its bytes where an aggregate may have the same number, of its class."""
    leaf = Withdraw(9, START, descriptor(1), 1, "contributor", bytes(32))
    for first in (1, 23, 24, 100, 255, 256, 65_536):
        for count in (1, 5, 24, 256):
            for place in range(8):
                stand_in = Aggregate(first, count, place, 10**6, 10**6, 0, 0, 0, 0, bytes(32)).to_bytes()
                assert named_by_withdrawals([stand_in, MEMBER, b"", encode_leaf(leaf)]) == {1: descriptor(1)}


def test_a_members_file_that_is_none_is_refused_and_nothing_is_written(run):
    run.ledger.prune(who_stays=True)
    size, members = run.ledger.size, run.ledger.place.side(".members")
    head = b"dptrain-members-v1"
    for data in (b"", head, members.read_bytes()[:-1], head + b"\n1 ab\n", head + b"\nx\n"):
        members.write_bytes(data)
        with pytest.raises(LedgerCorrupt, match="MEMBERS"):
            run.ledger.withdraw(descriptor(1), "contributor", bytes(32), now=run.tick())
    assert run.ledger.size == size


def test_what_was_spent_by_who_cannot_be_told_apart_is_never_less_than_the_truth(run, tmp_path):
    whole = run.ledger.export(tmp_path / "whole")
    run.ledger.prune(who_stays=True)
    lean = run.ledger.export(tmp_path / "lean")
    exact, bound = (SpentRegistry([earlier_run(export, KEYS)]) for export in (whole, lean))
    for n in (*STAYED, *LEFT):
        signed = admission(n, "sensitive" if n in (3, 4) else "open")
        for delta in (1e-9, 1e-6, 1e-2):
            least, most = (registry.carried(descriptor(n), delta, signed) for registry in (exact, bound))
            assert least <= most and (n in STAYED or least == most)
    assert bound.carried(descriptor(77), 1e-6, admission(77)) == bound.carried(descriptor(1), 1e-6, admission(1)) > 0
    assert exact.carried(descriptor(77), 1e-6, admission(77)) == 0


def test_a_later_run_cannot_pass_a_limit_by_letting_who_stayed_go(run, tmp_path):
    run.ledger.prune(who_stays=True)
    registry = SpentRegistry([earlier_run(run.ledger.export(tmp_path / "lean"), KEYS)])
    spent = to_micro_up(registry.carried(descriptor(1), 1e-6, admission(1)))
    header = header_spec(signed_policy(), previous=registry.previous).header(
        origin=SECOND.name, log_vkey=SECOND.vkey, time=START + 500
    )
    limited = admission(1, max_epsilon_micro=spent + 1, max_delta_pico=10**6)
    with pytest.raises(BudgetExceeded):
        registry.require_within(header, [limited])


def later(base: Path, registry: SpentRegistry, name: str, *specs) -> Path:
    spec = header_spec(previous=registry.previous)
    with Ledger.create(base / f"{name}.db", spec, SECOND, now=START + 500) as ledger:
        driver = Driver(ledger, now=START + 500)
        driver.admit(*specs)
        driver.steps(1)
        driver.epoch()
        ledger.finish(now=driver.tick())
        return ledger.export(base / name)


@pytest.mark.one_in(99)
def test_an_auditor_says_so_where_a_later_run_says_less_than_who_stayed_may_have_spent(run, tmp_path):
    """It may be true of a newcomer, so that nothing is wrong; and the figures over both runs count it."""
    run.ledger.prune(who_stays=True)
    lean = run.ledger.export(tmp_path / "lean")
    registry = SpentRegistry([earlier_run(lean, KEYS)])
    right = to_micro_up(registry.carried(descriptor(1), 1e-6, admission(1)))
    honest = later(tmp_path, registry, "honest", admission(1, carried_micro=right))
    lie = later(tmp_path, registry, "lie", admission(1, carried_micro=right - 4))
    fine, told = (verify_export(export, KEYS, earlier=[lean]) for export in (honest, lie))
    assert is_pruned(fine) and "EARLIER_TOLD" not in fine.qualifiers
    assert is_pruned(told) and "EARLIER_TOLD" in told.qualifiers
    totals = [[note for note in report.notes if note.startswith("class")] for report in (fine, told)]
    assert totals[0] == totals[1] and len(totals[0]) == 1


def test_the_most_that_anybody_spent_is_no_less_than_what_one_spent_who_stayed_longest(path):
    """Of two under equal terms one left early; whoever is counted with both has spent as much as the other."""
    with Driver(Ledger.create(path, header_spec(), SIGNER, now=START)).ledger as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1), admission(2))
        driver.steps(1)
        driver.withdraw(2)
        driver.steps(3)
        run = ledger.state
        members = list(run.contributions.values())
        own = composed([of_run(run, members[0])], 1e-6)
        for known in (members, members[::-1]):
            assert composed([most_of_run(run, known)], 1e-6) >= own > composed([of_run(run, members[1])], 1e-6)

def test_a_folded_run_may_itself_count_earlier_ones_and_totals_are_no_less(tmp_path):
    first = later(tmp_path, SpentRegistry(), "first", admission(1), admission(5))
    registry = SpentRegistry([earlier_run(first, KEYS)])
    carried = to_micro_up(registry.carried(descriptor(1), 1e-6))
    policy = signed_policy(retention_epochs=1, auditors=(ANNA.vkey, BEN.vkey), auditor_quorum=2)
    spec = header_spec(policy, previous=registry.previous)
    driver = Driver(Ledger.create(tmp_path / "l.db", spec, SIGNER, now=START + 900), now=START + 900)
    driver.admit(admission(1, carried_micro=carried), admission(2))
    for _ in range(3):
        driver.steps(1)
        driver.epoch()
    driver.ledger.summarise(now=driver.tick())
    driver.ledger.finish(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    whole = verify_export(driver.ledger.export(tmp_path / "whole"), KEYS, earlier=[first])
    driver.ledger.prune(who_stays=True)
    lean = verify_export(driver.ledger.export(tmp_path / "lean"), KEYS, earlier=[first])
    driver.ledger.close()
    assert whole.findings == lean.findings == () and lean.verdict == "TOLD", "the first run is told"
    totals = [[note for note in report.notes if note.startswith("class")] for report in (whole, lean)]
    assert totals[0] == totals[1] and len(totals[0]) == 1
    assert any("2 contributions that stayed are gone" in note for note in lean.notes)


def test_public_occurrences_are_counted_again_from_draws_though_nobody_has_a_name(tmp_path):
    spec = retaining_spec(disclosure="occurrences_public")
    driver = Driver(Ledger.create(tmp_path / "l.db", spec, SIGNER, now=START))
    driver.admit(admission(0), admission(1), admission(2, "sensitive"))
    with driver.ledger as ledger:
        for drawn in ((1, 2), (0, 2), (0, 1), (1,)):
            window = driver.charge(2)
            for step in (window.first_step, window.first_step + 1):
                ledger.draw(step, drawn, now=driver.tick())
            ledger.settle(window, 2, now=driver.tick())
            driver.epoch()
        ledger.summarise(now=driver.tick())
        ledger.finish(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        before = [(item.occurrences, item.loss) for item in ledger.state.contributions.values()]
        assert ledger.prune(who_stays=True) == 3
        assert [(item.occurrences, item.loss) for item in ledger.state.contributions.values()] == before
        export = ledger.export(tmp_path / "lean")
    assert is_pruned(verify_export(export, KEYS))


def test_membership_in_a_row_is_shown_of_who_left_alone(run):
    """Who stayed keeps the file that was handed out before: paths to the row need the names of the others."""
    run.ledger.prune(who_stays=True)
    pruned = run.ledger.pruned()
    assert pruned is not None
    with run.ledger.rows() as rows:
        entries = list(pruned.entries(rows))
    names = named_by_withdrawals(entries)
    assert find_membership(entries, descriptor(1), names) is None
    assert find_membership(entries, descriptor(4), names) is not None
    assert all(isinstance(decode_leaf(entry), Admit) is False for entry in entries if entry and entry[0] >> 5 == 5)


def test_a_release_and_a_change_of_key_may_follow(run, tmp_path):
    run.ledger.prune(who_stays=True)
    run.ledger.rotate_key(NoteSigner(SIGNER.name, OTHER_KEY), now=run.tick())
    report = verify_export(run.ledger.export(tmp_path / "lean"), KEYS)
    assert report.findings == ()
    shutil.rmtree(tmp_path / "lean")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("wrong", ["other", "class", "place", "anchor", "path", "short"])
def test_a_wrong_member_record_is_refused(run, wrong):
    """Of somebody else, of another aggregate, at another place, with another content, or with another path."""
    run.ledger.prune(who_stays=True)
    one, other, size = brought(run.ledger, 1), brought(run.ledger, 3), run.ledger.size
    member, path, n = one.member, one.path, 1
    forged = {
        "other": ShownMember(member, path),
        "class": ShownMember(Member(descriptor(1), other.member.seq, member.content_anchor), other.path),
        "place": ShownMember(Member(descriptor(1), 2, member.content_anchor), path),
        "anchor": ShownMember(Member(descriptor(1), 1, bytes(32)), path),
        "path": ShownMember(member, (bytes(32),)),
        "short": ShownMember(member, ()),
    }[wrong]
    n = 99_999 if wrong == "other" else n
    with pytest.raises((LeafRefused, ProofError), match="MEMBER"):
        run.ledger.withdraw(descriptor(n), "contributor", bytes(32), now=run.tick(), member=forged)
    assert run.ledger.size == size
    run.ledger.withdraw(descriptor(1), "contributor", bytes(32), now=run.tick(), member=one)
