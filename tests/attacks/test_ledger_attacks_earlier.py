"""Attacks on several runs over one corpus: what a log that signs everything itself may leave out of what was spent before."""

import hashlib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import signed_file
from attest.withdrawal import Withdrawal, sign_withdrawal
from ledger.accountants import Phase, epsilon_of_phases, to_micro_up
from ledger.audit import verify_export
from ledger.audit.verify import earlier_run
from ledger.errors import BudgetExceeded, CosignRefused, LeafRefused
from ledger.leaves import Previous
from ledger.leaves.header import UNADDRESSED
from ledger.log import Ledger
from ledger.note import Cosigner, NoteSigner, cosign
from ledger.proofs.cosigning import cosign_export
from ledger.proofs.memory import Memory, hold_against_memory
from ledger.replay.budgets import Account, Limit, Spending, composed, reached
from ledger.replay.earlier_runs import SpentRegistry
from tests.worlds.attested_ledgers import (
    AttestedDriver,
    attested_admission,
    attested_header,
    attested_policy,
    put_registry,
)
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

SECOND = NoteSigner("ledger.example/run2", OTHER_KEY)
THIRD = NoteSigner("ledger.example/run3", Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35))))
KEYS = [SIGNER.vkey, SECOND.vkey, THIRD.vkey]


def finished(base: Path, name: str, signer: NoteSigner, *specs, streams: int = 0, now: int = START, **header) -> Path:
    """A closed run of two windows, exported; every run of these tests draws other noise unless it says 0 twice."""
    with Ledger.create(base / f"{name}.db", header_spec(**header), signer, now=now) as ledger:
        driver = Driver(ledger, now=now, streams=streams)
        driver.admit(*specs)
        driver.steps(2)
        driver.epoch()
        ledger.finish(now=driver.tick())
        return ledger.export(base / name)


def counting(*exports: Path) -> SpentRegistry:
    return SpentRegistry([earlier_run(export, KEYS) for export in exports])


def carrying(registry: SpentRegistry):
    spec = admission(1)
    return replace(spec, carried_micro=to_micro_up(registry.carried(descriptor(1), 1e-6, spec)))


def codes(export: Path, *earlier: Path) -> list[str]:
    report = verify_export(export, KEYS, earlier=earlier)
    assert report.verdict == ("FAILED" if report.findings else "TOLD")
    return [found.code for found in report.findings]


def test_a_run_that_an_earlier_run_counted_may_not_be_left_out(tmp_path):
    """A spent, B counted A, C counts B alone: what A spent would be in no figure of C."""
    first = finished(tmp_path, "one", SIGNER, admission(1))
    registry = counting(first)
    second = finished(tmp_path, "two", SECOND, carrying(registry), streams=10, previous=registry.previous)
    for given, expected in (((second,), ["EARLIER_UNCITED", "EARLIER_LEFT_OUT"]), ((first, second), [])):
        registry = counting(*given)
        name = f"three{len(given)}"
        third = finished(tmp_path, name, THIRD, carrying(registry), streams=20, previous=registry.previous)
        assert codes(third, first, second) == expected
        assert codes(third, second) == expected[:1] or given == (first, second)


def test_an_earlier_run_is_cited_under_its_own_name_and_key(tmp_path):
    """By its digest alone a compromised ledger could be cited under another name, and its lost key be used on."""
    first = finished(tmp_path, "one", SIGNER, admission(1))
    registry = counting(first)
    (cited,) = registry.previous
    other = NoteSigner("other.example/run", THIRD.private_key)
    lies: list[Previous] = [
        replace(cited, origin=other.name, log_vkey=other.vkey, reason="compromised"),
        replace(cited, log_vkey=NoteSigner(SIGNER.name, THIRD.private_key).vkey, reason="compromised"),
    ]
    for n, lie in enumerate(lies):
        signer = SIGNER if n == 0 else NoteSigner("heir.example", SIGNER.private_key)
        export = finished(tmp_path, f"lie{n}", signer, carrying(registry), streams=10, previous=(lie,))
        report = verify_export(export, [*KEYS, signer.vkey], earlier=[first])
        assert [found.code for found in report.findings] == ["EARLIER_NAME"]


def test_draws_after_an_earlier_run_was_counted_fail_though_no_step_is_charged(tmp_path):
    """Where draws are public the DRAW leaf spends, not the CHARGE leaf: a run that is cited between them spent nothing yet."""
    policy = signed_policy(disclosure="occurrences_public")
    with Ledger.create(tmp_path / "one.db", header_spec(policy), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        window = driver.charge()
        size, root = ledger.size, ledger.root
        early = ledger.export(tmp_path / "early")
        for step in range(1, 5):
            ledger.draw(step, [0], now=driver.tick())
        ledger.settle(window, 4, now=driver.tick())
        driver.epoch()
        ledger.finish(now=driver.tick())
        whole = ledger.export(tmp_path / "whole")
    (cited,) = counting(whole).previous
    cited = replace(cited, size=size, root=root)
    second = finished(tmp_path, "two", SECOND, admission(1), streams=10, previous=(cited,))
    assert codes(second, whole) == codes(second, early) == ["EARLIER_OPEN"]


def test_noise_of_an_earlier_run_is_not_used_again(tmp_path):
    """The same stream in two runs: the difference of two releases would have no noise."""
    first = finished(tmp_path, "one", SIGNER, admission(1))
    registry = counting(first)
    second = finished(tmp_path, "two", SECOND, carrying(registry), previous=registry.previous)
    assert codes(second, first) == ["NOISE_REUSED"]


@pytest.mark.parametrize("first", [True, False])
def test_noise_of_a_run_that_is_not_cited_is_not_used_again(tmp_path, first):
    """They share nobody, so neither has to count the other; the difference of their releases would have no noise."""
    one = finished(tmp_path, "one", SIGNER, admission(1))
    two = finished(tmp_path, "two", SECOND, admission(2))
    assert codes(*((one, two) if first else (two, one))) == ["NOISE_REUSED"]


def test_a_withdrawal_of_a_run_that_is_left_out_is_found_though_nothing_was_spent_there(tmp_path):
    """Who withdrew before the first charge spent nothing, so the run need not be cited; the withdrawal is of the corpus."""
    with Ledger.create(tmp_path / "one.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1), admission(3))
        ledger.withdraw(descriptor(1), "consent", bytes(32), now=driver.tick())
        ledger.withdraw(descriptor(2), "consent", bytes(32), now=driver.tick())
        driver.steps(1)
        driver.epoch()
        ledger.finish(now=driver.tick())
        first = ledger.export(tmp_path / "one")
    for n in (1, 2):
        after = finished(tmp_path, f"after{n}", SECOND, admission(n), streams=10, now=START + 60)
        assert codes(after, first) == ["EARLIER_WITHDRAWN"]
        before = finished(tmp_path, f"before{n}", SECOND, admission(n), streams=10, now=START)
        assert codes(before, first) == [], "it was withdrawn after this run began: nobody need have known"


def test_a_run_does_not_choose_who_withdrew_by_citing_fewer_leaves(tmp_path):
    """After its close a run takes withdrawals in; cited as it was before, it lacks them."""
    with Ledger.create(tmp_path / "one.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps(1)
        driver.epoch()
        ledger.finish(now=driver.tick())
        short = ledger.export(tmp_path / "short")
        ledger.withdraw(descriptor(1), "consent", bytes(32), now=driver.tick())
        whole = ledger.export(tmp_path / "whole")
    registry = counting(short)
    named = {"streams": 10, "previous": registry.previous}
    second = finished(tmp_path, "two", SECOND, carrying(registry), now=START + 60, **named)
    assert codes(second, short) == [] and codes(second, whole) == ["EARLIER_WITHDRAWN"]
    before = finished(tmp_path, "three", SECOND, carrying(registry), now=START + 4, **named)
    assert codes(before, whole) == []


def test_draws_that_nobody_decides_weaken_the_run_that_counts_them(tmp_path):
    """What was spent there is the trainer's record of who took part, in whichever run it is counted."""
    policy = signed_policy(disclosure="occurrences_public")
    with Ledger.create(tmp_path / "one.db", header_spec(policy), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        window = driver.charge()
        for step in range(1, 5):
            ledger.draw(step, [0], now=driver.tick())
        ledger.settle(window, 4, now=driver.tick())
        driver.epoch()
        ledger.finish(now=driver.tick())
        first = ledger.export(tmp_path / "one")
    registry = counting(first)
    second = finished(tmp_path, "two", SECOND, carrying(registry), streams=10, previous=registry.previous)
    assert "DRAWS_TOLD" not in verify_export(second, KEYS).qualifiers
    assert "DRAWS_TOLD" in verify_export(second, KEYS, earlier=[first]).qualifiers


def test_runs_that_spend_nothing_by_themselves_compose_all_the_same():
    """Each has epsilon 0 at its delta, which it has used up for that: left out, any number of them would be free."""
    one = Spending("pld", "gaussian", (Phase(1.0, 1e-7, 20),))
    assert one.epsilon(1e-6) == 0.0 and one
    many = [one] * 50
    assert composed(many, 1e-6) == epsilon_of_phases([Phase(1.0, 1e-7, 1000)], 1e-6) > 0.0
    limit = Limit(1, Fraction(1, 10**6), "contributor")
    accounts = [Account((n, START), one, one, (limit,)) for n in range(50)]
    assert reached(limit, accounts) > 0.0


def test_a_run_that_began_before_and_is_left_out_is_found_where_its_export_is_given(tmp_path):
    """No ledger can show it; an auditor who asks the owner for all runs can."""
    first = finished(tmp_path, "one", SIGNER, admission(1))
    second = finished(tmp_path, "two", SECOND, admission(1), streams=10)
    assert verify_export(second, KEYS).verdict == "TOLD"
    assert codes(second, first) == ["EARLIER_LEFT_OUT"] and codes(first, second) == ["EARLIER_LEFT_OUT"]  # the same second
    later = finished(tmp_path, "three", THIRD, admission(1), streams=20, now=START + 100)
    assert codes(later, first) == ["EARLIER_LEFT_OUT"] and codes(first, later) == []
    assert any("does not count it" in note for note in verify_export(first, KEYS, earlier=[later]).notes)


def test_an_export_that_is_given_and_need_not_be_counted_is_told(tmp_path):
    first = finished(tmp_path, "one", SIGNER, admission(1))
    registry = counting(first)
    second = finished(tmp_path, "two", SECOND, carrying(registry), streams=10, previous=registry.previous)
    stranger = finished(tmp_path, "three", THIRD, admission(7), streams=20)
    assert codes(second, first, stranger, second) == [] and codes(first, second) == []
    audits = verify_export(second, KEYS, earlier=[first, stranger]), verify_export(first, KEYS, earlier=[second])
    told = " ".join(note for report in audits for note in report.notes)
    assert "nobody whom leaves of both runs name spent anything there" in told
    assert "is a later run, which counts this one" in told
    broken = finished(tmp_path, "four", NoteSigner("unknown.example", THIRD.private_key), admission(7), streams=30)
    assert codes(second, first, broken) == ["EARLIER"]


def test_another_history_of_an_earlier_run_is_found_by_its_cosigners(tmp_path):
    """One key signs two histories of a run and cites the one in which less was spent; auditors have seen the other."""
    anna = Cosigner("auditor.example/anna", Ed25519PrivateKey.from_private_bytes(bytes(range(4, 36))))
    policy = signed_policy(auditors=(anna.vkey,), auditor_quorum=1)

    def cosigned(export: Path) -> Path:
        note = (export / "checkpoint").read_bytes()
        (export / "checkpoint").write_bytes(cosign(note, anna, KEYS, time=START + 900))
        return export

    shown = cosigned(finished(tmp_path, "one", SIGNER, admission(1), admission(2), policy=policy))
    forked = finished(tmp_path, "other", SIGNER, admission(1), policy=policy)
    registry = counting(forked)
    second = finished(tmp_path, "two", SECOND, carrying(registry), streams=10, previous=registry.previous, policy=policy)
    cosigned(second)
    assert codes(second, forked) == [] and codes(second, shown) == ["EARLIER_FORKED"]
    keys = [*KEYS, anna.vkey]
    assert verify_export(second, keys, require_quorum=True).verdict == "TOLD"
    report = verify_export(second, keys, earlier=[forked], require_quorum=True)
    assert [found.code for found in report.findings] == ["EARLIER"] and "cosigned" in report.findings[0].sentence


def test_a_run_over_another_corpus_counts_nothing_here(tmp_path):
    """Its contributions are others, for an attestation names its corpus: cited in the place of the right run, all is free."""
    first = finished(tmp_path, "one", SIGNER, admission(1), policy=signed_policy(corpus="letters"))
    registry = counting(first)
    spec = header_spec(previous=registry.previous)
    with pytest.raises(LeafRefused) as refused:
        registry.require_within(spec.header(origin=SECOND.name, log_vkey=SECOND.vkey, time=START), [admission(1)])
    assert refused.value.code == "EARLIER_CORPUS"
    second = finished(tmp_path, "two", SECOND, carrying(registry), streams=10, previous=registry.previous)
    assert codes(second, first) == ["EARLIER_CORPUS"]


def test_a_limit_is_the_same_in_every_run(tmp_path):
    """The operator writes the ADMIT leaf: a limit that is left out, loosened, or moved to another delta in one of the runs."""
    signed = {"max_epsilon_micro": 50_000_000, "max_delta_pico": 10**6}
    first = finished(tmp_path, "one", SIGNER, admission(1, **signed))
    registry = counting(first)
    lies = [{}, signed | {"max_epsilon_micro": 60_000_000}, signed | {"max_delta_pico": 10**10}]
    for n, said in enumerate([signed, *lies]):
        spec = replace(carrying(registry), **said)
        second = finished(tmp_path, f"two{n}", SECOND, spec, streams=10, previous=registry.previous)
        assert codes(second, first) == (["LIMIT"] if n else [])


def test_a_smaller_epsilon_at_a_larger_delta_does_not_pass_for_what_was_spent(tmp_path):
    """A first run whose policy says delta 1e-2 has spent next to nothing by its own figures; at 1e-6 it is counted in full."""
    first = finished(tmp_path, "one", SIGNER, admission(1), policy=signed_policy(delta=Fraction(1, 100)))
    registry = counting(first)
    (own,) = (found.contributions[descriptor(1)] for found in [registry._runs[0].run])
    recorded, counted = registry._runs[0].run.epsilon(own), registry.carried(descriptor(1), 1e-6)
    assert recorded < counted / 2 and counted == epsilon_of_phases([Phase(1.0, 0.02, 8)], 1e-6)
    lie = replace(admission(1), carried_micro=int(recorded * 1e6) + 1)
    second = finished(tmp_path, "two", SECOND, lie, streams=10, previous=registry.previous)
    assert codes(second, first) == ["CARRIED"]


def test_who_was_withdrawn_in_an_earlier_run_takes_no_part_in_a_later_one(tmp_path):
    """A withdrawal is signed for the corpus; what expired, or lost its key for a day, is for the next gate to judge."""
    with Ledger.create(tmp_path / "one.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1), admission(2))
        driver.steps(1)
        ledger.withdraw(descriptor(1), "consent", bytes(32), now=driver.tick())
        ledger.withdraw(descriptor(2), "expired", admission(2).attestation_hash, now=driver.tick())
        driver.epoch()
        ledger.finish(now=driver.tick())
        first = ledger.export(tmp_path / "one")
    registry = counting(first)
    assert list(registry.withdrawn_among([descriptor(n) for n in range(4)])) == [(descriptor(1), "consent", bytes(32))]
    spec = carrying(registry)
    second = finished(tmp_path, "two", SECOND, spec, streams=10, previous=registry.previous)
    assert codes(second, first) == ["EARLIER_WITHDRAWN"]
    with Ledger.create(tmp_path / "three.db", header_spec(previous=registry.previous), THIRD, now=START) as ledger:
        driver = Driver(ledger, streams=20)
        driver.admit(spec, replace(admission(2), carried_micro=spec.carried_micro))
        ledger.withdraw_all(registry.withdrawn_among(ledger.state.contributions), now=driver.tick())
        driver.steps(1)
        driver.epoch()
        ledger.finish(now=driver.tick())
        third = ledger.export(tmp_path / "three")
    assert codes(third, first) == []


def test_signed_anew_a_contribution_is_another_one_and_begins_at_nothing(tmp_path):
    """Not defended, and said so (docs/threat-model.md): only its contributor can sign anew, and signs for another total."""
    first = finished(tmp_path, "one", SIGNER, admission(1))
    registry = counting(first)
    assert registry.carried(descriptor(2), 1e-6) == 0.0
    second = finished(tmp_path, "two", SECOND, admission(2), streams=10, previous=registry.previous)
    assert codes(second, first) == []


def test_contributions_of_one_person_are_not_added_up_over_runs(tmp_path):
    """Not defended, and said so (docs/threat-model.md): the unit is the contribution, and no ledger names a person."""
    first = finished(tmp_path, "one", SIGNER, admission(1), admission(2))
    registry = counting(first)
    assert registry.carried(descriptor(1), 1e-6) == registry.carried(descriptor(2), 1e-6) > 0
    second = finished(tmp_path, "two", SECOND, carrying(registry), streams=10, previous=registry.previous)
    assert codes(second, first) == []


def two_sizes(base: Path) -> tuple[Path, Path]:
    """A run at two moments, in neither of which it was closed."""
    with Ledger.create(base / "one.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps(1)
        driver.epoch()
        early = ledger.export(base / "early")
        driver.steps(4)
        driver.epoch()
        return early, ledger.export(base / "late")


def two_histories(base: Path) -> tuple[Path, Path]:
    """One run as its log tells it to some, and with less spent to others."""
    found = []
    for name, steps in (("dear", 4), ("cheap", 1)):
        (base / name).mkdir()
        with Ledger.create(base / name / "one.db", header_spec(), SIGNER, now=START) as ledger:
            driver = Driver(ledger)
            driver.admit(admission(1))
            driver.steps(1, steps)
            driver.epoch()
            ledger.finish(now=driver.tick())
            found.append(ledger.export(base / name / "export"))
    return found[0], found[1]


def heir(base: Path, name: str, signer: NoteSigner, *counted, streams: int) -> Path:
    """A run that counts others, truly as far as it knows them."""
    registry = SpentRegistry(counted)
    return finished(base, name, signer, carrying(registry), streams=streams, previous=registry.previous)


def lost_at(base: Path, leaves: int) -> tuple[Path, Path]:
    """A run with so many leaves, and later: it admits its contribution, charges, and was never closed."""
    with Ledger.create(base / "lost.db", header_spec(), SIGNER, now=START) as ledger:
        driver, early = Driver(ledger), None
        for step in (lambda: driver.admit(admission(1)), lambda: driver.steps(1), driver.epoch, lambda: driver.steps(3)):
            if early is None and ledger.size >= leaves:
                early = ledger.export(base / "early")
            step()
        driver.epoch()
        assert early is not None
        return early, ledger.export(base / "late")


@pytest.mark.one_in(99)
@pytest.mark.parametrize("leaves", [1, 2, 3])
def test_a_run_cited_as_lost_before_it_charged_or_admitted_anybody_is_counted_with_its_whole_plan(tmp_path, leaves):
    """Its operator says when the key was lost: at that size nothing was spent, and nobody shows the leaves behind it."""
    early, late = lost_at(tmp_path, leaves)
    lost = earlier_run(early, KEYS, reason="compromised")
    registry, spec = SpentRegistry([lost]), admission(1)
    whole = epsilon_of_phases([Phase(1.0, 0.02, 50)], 1e-6)
    assert registry.carried(spec.descriptor_hash, 1e-6, spec) == whole > spent_in(late)
    with pytest.raises(TypeError):
        registry.carried(spec.descriptor_hash, 1e-6)
    for name, carried, expected in (("free", 0, ["CARRIED"]), ("dear", to_micro_up(whole), [])):
        said = replace(spec, carried_micro=carried)
        second = finished(tmp_path, name, SECOND, said, streams=50, previous=registry.previous)
        assert codes(second, early) == expected
        report = verify_export(second, KEYS, earlier=[early])
        assert expected or "KEY_LOST" in report.qualifiers


@pytest.mark.parametrize("how", ["cosigned", "seen"])
def test_who_saw_more_of_a_ledger_lets_no_run_cite_it_as_lost_before(tmp_path, how):
    """The memory of an auditor, or of a reader, knows how far that ledger had come."""
    early, late = lost_at(tmp_path, 3)
    second = heir(tmp_path, "two", SECOND, earlier_run(early, KEYS, reason="compromised"), streams=50)
    honest = heir(tmp_path, "three", THIRD, earlier_run(late, KEYS, reason="compromised"), streams=90)
    anna = Cosigner("auditor.example/anna", Ed25519PrivateKey.from_private_bytes(bytes(range(4, 36))))
    memory = Memory(tmp_path / "memory", anna.vkey)

    def take(export: Path) -> str:
        if how == "cosigned":
            try:
                cosign_export(export, KEYS, anna, memory, now=START + 5000, first=True)
            except CosignRefused as refused:
                return refused.code
            return ""
        report = hold_against_memory(verify_export(export, KEYS), export, tmp_path / "seen", KEYS)
        return "".join(found.code for found in report.findings)

    assert [take(export) for export in (early, honest)] == ["", ""], "nothing says that it had not ended there"
    memory = Memory(tmp_path / "memory2", anna.vkey)
    if how == "seen":
        (tmp_path / "seen").rename(tmp_path / "gone")
    assert [take(export) for export in (late, second, honest, second)] == ["", "CITED", "", "CITED"]


def test_an_earlier_run_that_no_witness_saw_weakens_the_run_that_counts_it(tmp_path):
    """Else a history that was shown to nobody else could be counted, with no word about it."""
    wim = Cosigner("witness.example/wim", Ed25519PrivateKey.from_private_bytes(bytes(range(4, 36))))
    first = finished(tmp_path, "one", SIGNER, admission(1), policy=signed_policy(witnesses=(wim.vkey,), witness_quorum=1))
    registry = counting(first)
    second = finished(tmp_path, "two", SECOND, carrying(registry), streams=10, previous=registry.previous)
    assert "NO_WITNESS_QUORUM" not in verify_export(second, KEYS).qualifiers
    assert "NO_WITNESS_QUORUM" in verify_export(second, KEYS, earlier=[first]).qualifiers
    note = cosign((first / "checkpoint").read_bytes(), wim, KEYS, time=START + 900)
    (first / "checkpoint").write_bytes(note)
    assert "NO_WITNESS_QUORUM" not in verify_export(second, KEYS, earlier=[first]).qualifiers


def test_a_limit_over_runs_is_held_against_the_whole_plan_of_a_lost_run(tmp_path):
    early, _ = lost_at(tmp_path, 1)
    registry = SpentRegistry([earlier_run(early, KEYS, reason="compromised")])
    alone = epsilon_of_phases([Phase(1.0, 0.02, 50)], 1e-6)
    limited = replace(admission(1), max_epsilon_micro=to_micro_up(alone + 0.01), max_delta_pico=10**6)
    spec = header_spec(previous=registry.previous)
    header = spec.header(origin=SECOND.name, log_vkey=SECOND.vkey, time=START + 99)
    SpentRegistry().require_within(header, [limited])
    with pytest.raises(BudgetExceeded):
        registry.require_within(header, [limited])


def test_a_run_dated_before_the_leaves_that_it_counts_is_refused_and_found(tmp_path):
    """Backdated, a run passes for one that began before others, which then need not be counted."""
    first = finished(tmp_path, "one", SIGNER, admission(1), now=START + 3 * 3600)
    registry = counting(first)
    spec = header_spec(previous=registry.previous)
    for time, refused in ((START, True), (START + 2 * 3600 + 60, False)):
        header = spec.header(origin=SECOND.name, log_vkey=SECOND.vkey, time=time)
        if refused:
            with pytest.raises(LeafRefused) as caught:
                registry.require_within(header, [admission(1)])
            assert caught.value.code == "EARLIER_TIME" and "set-clock" in caught.value.sentence
        else:
            registry.require_within(header, [admission(1)])
        second = finished(tmp_path, f"two{time}", SECOND, carrying(registry), streams=10, now=time, previous=registry.previous)
        assert codes(second, first) == (["EARLIER_TIME"] if refused else [])


def test_a_withdrawal_that_an_earlier_run_logged_as_expired_is_found_there_by_what_its_contributor_signed(tmp_path):
    """Entered as expired it would bind no later run, which admits the contribution again."""
    owner = header_spec().header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)
    said = Withdrawal(descriptor(1), owner.policy.corpus, START + 1, "consent")
    payload, message = sign_withdrawal(said, OWNER_KEY, signer=owner.owner)
    (tmp_path / "signed").mkdir()
    signed_file.write(tmp_path / "signed" / "one.cose", payload, message)
    for reason, evidence in (("expired", admission(1).attestation_hash), ("consent", hashlib.sha256(message).digest())):
        (tmp_path / reason).mkdir()
        with Ledger.create(tmp_path / reason / "one.db", header_spec(), SIGNER, now=START) as ledger:
            driver = Driver(ledger)
            driver.admit(admission(1))
            driver.steps(1)
            ledger.withdraw(descriptor(1), reason, evidence, now=driver.tick())
            driver.epoch()
            ledger.finish(now=driver.tick())
            first = ledger.export(tmp_path / reason / "one")
        registry = counting(first)
        second = finished(tmp_path / reason, "two", SECOND, carrying(registry), streams=10, previous=registry.previous)
        assert codes(second, first) == ([] if reason == "expired" else ["EARLIER_WITHDRAWN"])
        report = verify_export(second, KEYS, earlier=[first], withdrawals=tmp_path / "signed")
        (finding,) = report.findings
        assert finding.code == ("EARLIER" if reason == "expired" else "EARLIER_WITHDRAWN")
        if reason == "expired":
            assert "the leaf, of" in finding.sentence and "'expired'" in finding.sentence


def spent_in(export: Path) -> float:
    """What the contribution spent in a run, as its leaves tell it."""
    run = earlier_run(export, KEYS, reason="compromised").run
    return run.epsilon(run.contributions[descriptor(1)])


def test_two_histories_of_an_earlier_run_are_found_though_the_run_cites_one_of_them(tmp_path):
    dear, cheap = two_histories(tmp_path)
    second = heir(tmp_path, "two", SECOND, earlier_run(cheap, KEYS), streams=50)
    assert codes(second, cheap) == []
    for given in ((cheap, dear), (dear, cheap)):
        assert "EARLIER_FORKED" in codes(second, *given)


def test_an_earlier_run_that_counted_another_history_of_one_is_evidence_too(tmp_path):
    dear, cheap = two_histories(tmp_path)
    second = heir(tmp_path, "two", SECOND, earlier_run(dear, KEYS), streams=50)
    third = heir(tmp_path, "three", THIRD, earlier_run(cheap, KEYS), earlier_run(second, KEYS), streams=70)
    assert codes(third, cheap, second) == ["EARLIER_FORKED"]


def test_a_fork_of_the_run_under_audit_is_found_among_the_earlier_ones(tmp_path):
    dear, cheap = two_histories(tmp_path)
    for given in ((dear, cheap), (cheap, dear)):
        assert codes(*given) == ["EARLIER_FORKED"]
    early, late = two_sizes(tmp_path)
    assert codes(late, early) == codes(early, late) == codes(early, early) == []


def test_a_lost_run_is_not_counted_shorter_than_another_run_or_export_shows_it(tmp_path):
    """That a key was lost is its operator's word, and where; whoever counted or exported more knows better."""
    early, late = two_sizes(tmp_path)
    lost = earlier_run(early, KEYS, reason="compromised")
    second = heir(tmp_path, "two", SECOND, lost, streams=50)
    assert codes(second, early) == []
    for given in ((early, late), (late, early)):
        assert codes(second, *given) == ["EARLIER_COMPROMISED"]
    longer = heir(tmp_path, "longer", SECOND, earlier_run(late, KEYS, reason="compromised"), streams=70)
    third = heir(tmp_path, "three", THIRD, lost, earlier_run(longer, KEYS), streams=90)
    assert codes(third, early, longer) == ["EARLIER_BEHIND"]


def test_no_run_forgets_that_a_key_was_lost_as_another_one_says(tmp_path):
    """Closed behind that, the run would count with what its leaves charge, and no more with its whole plan."""
    early, late = two_sizes(tmp_path)
    with Ledger.open(tmp_path / "one.db", SIGNER) as ledger:
        ledger.finish(now=START + 900)
        closed = ledger.export(tmp_path / "closed")
    lost = earlier_run(early, KEYS, reason="compromised")
    second = heir(tmp_path, "two", SECOND, lost, streams=50)
    third = heir(tmp_path, "three", THIRD, lost, earlier_run(second, KEYS), streams=70)
    assert codes(third, early, second) == []
    (tmp_path / "lie").mkdir()
    counted = [earlier_run(export, KEYS) for export in (closed, second)]
    lie = finished(
        tmp_path / "lie", "three", THIRD, carrying(SpentRegistry(counted)), streams=70, now=START + 1000,
        previous=SpentRegistry(counted).previous,
    )  # fmt: skip
    assert codes(lie, closed) == ["EARLIER_MISSING"]
    assert codes(lie, closed, second) == ["EARLIER_COMPROMISED"]
    assert codes(closed, second) == codes(late, second) == ["EARLIER_COMPROMISED"], "of the run under audit too"


def test_what_is_no_checkpoint_of_an_earlier_run_is_told_as_that(tmp_path):
    first = finished(tmp_path, "one", SIGNER, admission(1))
    second = finished(tmp_path, "two", SECOND, admission(2), streams=10)
    (first / "checkpoint").write_bytes(b"none")
    assert codes(second, first) == ["EARLIER"]


def test_runs_that_neither_count_each_other_are_told_to_whoever_counts_both(tmp_path):
    """Limits assume one run after the other; which came first here is what their headers say, and nobody can know."""
    first = finished(tmp_path, "one", SIGNER, admission(1))
    second = finished(tmp_path, "two", SECOND, admission(1), admission(2), streams=50, now=START - 99)
    third = heir(tmp_path, "three", THIRD, earlier_run(first, KEYS), earlier_run(second, KEYS), streams=90)
    apart = "ledger.example/run1 and ledger.example/run2 share 1 contributions and neither counts the other"
    report = verify_export(third, KEYS, earlier=[first, second])
    assert report.verdict == "TOLD" and [note.startswith(apart) for note in report.notes].count(True) == 1
    other = heir(tmp_path, "other", SECOND, earlier_run(first, KEYS), streams=130)
    last = heir(tmp_path, "last", THIRD, earlier_run(first, KEYS), earlier_run(other, KEYS), streams=170)
    assert not any("neither counts" in note for note in verify_export(last, KEYS, earlier=[first, other]).notes)


def test_what_weakens_what_was_spent_before_weakens_the_run_that_counts_it(tmp_path):
    """Under masks of one generator for everybody epsilon may be larger than stated, in whichever run it is counted."""
    first = finished(tmp_path, "one", SIGNER, admission(1), randomness=UNADDRESSED)
    counted = counting(first)
    second = finished(tmp_path, "two", SECOND, carrying(counted), streams=10, previous=counted.previous)
    assert "UNADDRESSED" in verify_export(first, KEYS).qualifiers
    assert "UNADDRESSED" not in verify_export(second, KEYS).qualifiers
    assert "UNADDRESSED" in verify_export(second, KEYS, earlier=[first]).qualifiers


def attested(base: Path, name: str, signer: NoteSigner, *specs, streams: int, now: int = START, close: bool = True, **header):
    """A run of two windows whose admissions were signed, exported with the registry."""
    policy = attested_policy(**header.pop("policy", {}))
    spec = attested_header(policy, run_id=hashlib.sha256(name.encode()).digest()[:16], **header)
    with Ledger.create(base / f"{name}.db", spec, signer, now=now) as ledger:
        driver = AttestedDriver(ledger, now=now, streams=streams)
        driver.admit(*specs)
        for _ in range(2):
            window = driver.charge(4)
            for step in range(window.first_step, window.last_step + 1) if ledger.header.occurrences_public else ():
                ledger.draw(step, (), now=driver.tick())
            ledger.settle(window, 4, now=driver.tick())
        driver.epoch()
        if close:
            ledger.finish(now=driver.tick())
        return ledger.export(base / name, registry=put_registry(base))


def test_only_what_can_count_no_more_answers_for_the_limits_over_all_runs(tmp_path):
    """An export that says nothing, or that its operator alone vouches for, took the word away that limits were held alone."""
    limited = {"max_epsilon_micro": 50_000_000, "max_delta_pico": 10**6}
    mine = attested(tmp_path, "mine", SIGNER, attested_admission(1, **limited), streams=0, now=START + 1000)
    strangers, letters = (attested_admission(5), attested_admission(7)), signed_policy(corpus="letters")
    given = {
        "closed": (True, attested(tmp_path, "closed", SECOND, *strangers, streams=10)),
        "open": (False, attested(tmp_path, "open", SECOND, *strangers, streams=20, close=False)),
        "told": (False, finished(tmp_path, "told", SECOND, admission(501), streams=30)),
        "later": (False, attested(tmp_path, "later", SECOND, *strangers, streams=40, now=START + 2000)),
        "other corpus": (False, finished(tmp_path, "letters", SECOND, admission(5), streams=50, policy=letters)),
        "itself": (False, mine),
    }
    for name, (answers, export) in given.items():
        report = verify_export(mine, KEYS, earlier=[export])
        assert report.verdict == "FULL" and ("LIMITS_ALONE" in report.qualifiers) != answers, name
        assert sum("limits are not held against it" in note for note in report.notes) == (name in ("open", "told")), name
    both = verify_export(mine, KEYS, earlier=[given["closed"][1], given["open"][1]])
    assert "LIMITS_ALONE" in both.qualifiers, "one that may go on is enough"
    assert "LIMITS_ALONE" not in verify_export(mine, KEYS, earlier=[given["closed"][1], given["later"][1]]).qualifiers


def test_a_later_run_that_shares_contributions_and_counts_nothing_leaves_limits_alone(tmp_path):
    """It may have passed them with what was spent here: its own audit finds that, and this one holds nothing against it."""
    limited = attested_admission(1, max_epsilon_micro=50_000_000, max_delta_pico=10**6)
    mine = attested(tmp_path, "mine", SIGNER, limited, streams=0, now=START + 1000)
    before = attested(tmp_path, "before", SECOND, attested_admission(5), streams=10)
    beside = attested(tmp_path, "beside", THIRD, limited, streams=20, now=START + 2000)
    assert "LIMITS_ALONE" not in verify_export(mine, KEYS, earlier=[before]).qualifiers
    report = verify_export(mine, KEYS, earlier=[before, beside])
    assert report.verdict == "FULL" and "LIMITS_ALONE" in report.qualifiers


def test_what_an_earlier_run_does_not_show_by_itself_weakens_what_is_said_of_it(tmp_path):
    """That nobody was drawn there is its trainer's record."""
    mine = attested(tmp_path, "mine", SIGNER, attested_admission(1), streams=0, now=START + 1000)
    public = {"disclosure": "occurrences_public"}
    before = attested(tmp_path, "before", SECOND, attested_admission(1), streams=10, policy=public)
    assert "DRAWS_TOLD" not in verify_export(mine, KEYS).qualifiers
    report = verify_export(mine, KEYS, earlier=[before])
    assert report.verdict == "FULL" and "DRAWS_TOLD" in report.qualifiers
