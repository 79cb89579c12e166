"""Watching a ledger as its contributor: every lie about what was signed is an alarm, and honesty is none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attest.descriptor import SignedDescriptor
from attest.withdrawal import Withdrawal
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.proofs.membership import Admitted, prove_admitted
from ledger.proofs.monitoring import ALARMS, Mine, watch
from ledger.replay.contributions import AdmitSpec
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, header_spec, signed_policy
from tests.worlds.retained_ledgers import ANNA, BEN, retaining_spec, vouched_for

KEYS = [SIGNER.vkey]
KEY_ID = b"alicekey"
DAY = 86400


def mine(n: int, **changes) -> Mine:
    """The n-th contribution of one contributor, signed with the presets of its class and a cap."""
    fields = {
        "admissibility_class": "open",
        "clip_norm_micro": 1_000_000,
        "noise_multiplier_micro": 1_000_000,
        "not_before": START - DAY,
        "not_after": START + 100 * DAY,
        "corpus": "notes",
        "max_occurrences": 5,
        "max_epsilon_micro": 50_000_000,
        "max_delta_pico": 10**6,
        **{name: bytes([n]) * 32 for name in ("contributor", "data_class", "content", "principal")},
    }
    signed = SignedDescriptor(**fields | changes)
    return Mine(f"letters.attest, {n}", signed, signed.digest(), bytes([n, 1]) * 16, KEY_ID)


ONE, TWO = mine(1), mine(2)


def admitted(own: Mine, **changes) -> AdmitSpec:
    """An admission that says what was signed."""
    signed = own.signed
    return replace(
        AdmitSpec(
            descriptor_hash=own.descriptor_hash,
            class_name="open",
            profile_id=0,
            **signed.bounds._asdict(),
            attestation_hash=own.attestation_hash,
            key_id=own.key_id,
            anchor=signed.content,
            max_epsilon_micro=signed.max_epsilon_micro,
            max_delta_pico=signed.max_delta_pico,
        ),
        **changes,
    )


def run(base: Path, *specs: AdmitSpec, name: str = "run", signer=SIGNER) -> tuple[Driver, Path]:
    """A run that admits these, and charges; and an export of it."""
    driver = Driver(Ledger.create(base / f"{name}.db", header_spec(), signer, now=START))
    driver.admit(*specs)
    driver.steps(1)
    driver.epoch()
    return driver, driver.ledger.export(base / name)


def look(*exports: Path, own=(ONE, TWO), sent=(), now: int = START + 50, **options):
    said = [(f"{n}.cose", item) for n, item in enumerate(sent)]
    found = watch(exports, KEYS, own, said, delay=DAY, now=now, **options)
    json.dumps(found.to_json())
    return found


def codes(found) -> list[str]:
    assert found.exit_code == max((ALARMS[alarm.code].code for alarm in found.alarms), default=0)
    return [alarm.code for alarm in found.alarms]


def withdrawal(own: Mine, time: int = START + 20, reason: str = "consent", corpus: str = "notes") -> Withdrawal:
    return Withdrawal(own.descriptor_hash, corpus, time, reason)


def test_what_is_recorded_as_it_was_signed_is_told_and_no_alarm(tmp_path):
    driver, export = run(tmp_path, admitted(ONE))
    found = look(export)
    first, second = found.rows
    assert codes(found) == [] and first.signed == first.recorded and first.seq == 1
    assert (first.steps, first.epsilon) == (4, driver.ledger.epsilon(ONE.descriptor_hash)) and first.epsilon > 0
    assert (second.seq, second.recorded, second.epsilon, second.origin) == (None, None, None, ""), "nobody admitted it"


@pytest.mark.parametrize(
    "lie",
    [
        {"clip_micro": 900_000},
        {"sigma_micro": 1_500_000},
        {"max_occurrences": 0},
        {"max_epsilon_micro": 0, "max_delta_pico": 0},
        {"max_delta_pico": 2 * 10**6},
        {"class_name": "sensitive", "profile_id": 1},
        {"attestation_hash": bytes(32)},
        {"anchor": bytes(32)},
        {"key_id": b"otherkey"},
    ],
    ids=str,
)
def test_any_other_bounds_than_those_signed_are_an_alarm(tmp_path, lie):
    """Bounds that the class forbids fail the audit; all others pass it, and only who signed can tell."""
    other = {"clip_norm_micro": 400_000, "noise_multiplier_micro": 4_000_000}
    own = mine(1, **other)
    _, export = run(tmp_path, admitted(own, **lie))
    found = look(export, own=[own])
    assert codes(found) == ["BOUNDS"] and found.exit_code == 4
    name = next(iter(lie))
    assert found.alarms[0].seq == 1 and (name.endswith(("hash", "anchor", "id")) or name in found.alarms[0].sentence)


def test_a_corpus_that_was_not_signed_for_is_an_alarm(tmp_path):
    own = mine(1, corpus="letters")
    found = look(run(tmp_path, admitted(own))[1], own=[own])
    assert codes(found) == ["BOUNDS"] and "'letters' is recorded as 'notes'" in found.alarms[0].sentence


def test_an_admission_under_the_contributors_key_that_is_none_of_theirs_is_an_alarm(tmp_path):
    _, export = run(tmp_path, admitted(ONE), admitted(TWO))
    found = look(export, own=[ONE])
    assert codes(found) == ["UNSIGNED"] and found.exit_code == 5 and TWO.descriptor_hash.hex() in found.alarms[0].sentence
    stranger = replace(mine(3), key_id=b"bobs-key")
    assert codes(look(run(tmp_path, admitted(stranger), name="other")[1])) == []
    assert codes(look(tmp_path / "other", key_ids=[b"bobs-key"])) == ["UNSIGNED"], "a further key of the contributor"


@pytest.mark.parametrize(("since", "alarms"), [(DAY - 60, []), (DAY + 60, ["WITHDRAWAL_MISSING"])])
def test_a_withdrawal_that_is_not_entered_within_the_delay_is_an_alarm(tmp_path, since, alarms):
    _, export = run(tmp_path, admitted(ONE))
    said = withdrawal(ONE)
    found = look(export, sent=[said], now=said.time + since)
    assert codes(found) == alarms and found.exit_code == (3 if alarms else 0)
    assert found.rows[0].asked == said.time and found.rows[0].withdrawn is None
    assert codes(look(export, own=[], sent=[said], now=said.time + since)) == alarms, "without its attestation too"


def test_a_withdrawal_that_needs_no_leaf_is_no_alarm(tmp_path):
    """Of what nobody admitted, and for another corpus."""
    _, export = run(tmp_path, admitted(ONE))
    assert codes(look(export, sent=[withdrawal(TWO), withdrawal(ONE, corpus="letters")], now=START + 9 * DAY)) == []


@pytest.mark.parametrize(
    ("reason", "signed", "alarms"),
    [
        ("consent", 1, []),
        ("expired", 1, ["WITHDRAWAL_REASON"]),
        ("legal", 1, ["WITHDRAWAL_REASON"]),
        ("expired", 900, ["WITHDRAWAL_MISSING"]),
    ],
)
def test_a_withdrawal_entered_for_another_reason_or_behind_an_expiry_not_at_all_is_an_alarm(tmp_path, reason, signed, alarms):
    driver, _ = run(tmp_path, admitted(ONE))
    evidence = admitted(ONE).attestation_hash if reason == "expired" else bytes(32)
    driver.ledger.withdraw(ONE.descriptor_hash, reason, evidence, now=driver.tick())
    driver.steps(1)
    export = driver.ledger.export(tmp_path / "withdrawn")
    found = look(export, sent=[withdrawal(ONE, START + signed)], now=START + 3 * DAY)
    assert codes(found) == alarms and found.rows[0].withdrawn.reason == reason


def test_a_ledger_that_grows_is_watched_and_one_that_is_cut_back_or_forked_is_an_alarm(tmp_path):
    driver, early = run(tmp_path, admitted(ONE))
    driver.steps(2)
    late = driver.ledger.export(tmp_path / "late")
    seen = tmp_path / "seen"
    assert codes(look(early, remember=seen)) == codes(look(late, remember=seen)) == []
    found = look(early, remember=seen)
    assert codes(found) == ["BEHIND"] and found.exit_code == 6
    (tmp_path / "fork").mkdir()
    _, fork = run(tmp_path / "fork", admitted(ONE), admitted(TWO))
    assert codes(look(fork, remember=seen)) in (["BEHIND"], ["FORKED"])
    assert codes(look(late, remember=seen)) == [], "what contradicts is not remembered"
    assert codes(look(early, late)) == codes(look(late, early)) == [], "of one ledger the largest is told"
    assert [row.steps for row in look(late, early).rows[:1]] == [12]
    assert codes(look(fork, late)) == ["FORKED"], "two histories at once, without any memory"


def test_an_export_that_fails_its_audit_says_nothing(tmp_path):
    _, export = run(tmp_path, admitted(ONE))
    (export / "policy").write_bytes(b"quorum none\n")
    found = look(export)
    assert found.exit_code == 1 and [alarm.code for alarm in found.alarms] == ["POLICY_FILE"]
    assert [row.seq for row in found.rows] == [None, None]


def test_the_gravest_of_several_alarms_is_the_exit_code(tmp_path):
    _, export = run(tmp_path, admitted(ONE, max_occurrences=0), admitted(TWO), admitted(mine(3)))
    found = look(export, sent=[withdrawal(TWO)], now=START + 9 * DAY)
    assert sorted(codes(found)) == ["BOUNDS", "UNSIGNED", "WITHDRAWAL_MISSING"] and found.exit_code == 5


def test_of_a_pruned_admission_bounds_are_compared_and_what_is_gone_is_not(tmp_path):
    """The aggregate keeps the bounds; key and attestation are gone, and no alarm."""
    for name, lie, alarms in (("honest", {}, []), ("lie", {"max_occurrences": 6}, ["BOUNDS"])):
        driver = Driver(Ledger.create(tmp_path / f"{name}.db", retaining_spec(), SIGNER, now=START))
        driver.admit(admitted(ONE, **lie), admitted(TWO))
        driver.steps(1)
        driver.ledger.withdraw(ONE.descriptor_hash, "consent", bytes(32), now=driver.tick())
        for _ in range(2):
            driver.epoch()
            driver.steps(1)
        driver.ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.epoch()
        assert driver.ledger.prune() > 0
        found = look(driver.ledger.export(tmp_path / name))
        assert codes(found) == alarms
        row = found.rows[0]
        assert row.time is None and row.withdrawn is not None and row.epsilon == driver.ledger.epsilon(ONE.descriptor_hash)


def test_who_stayed_in_a_folded_run_is_shown_by_the_member_record_alone(tmp_path):
    """Without it nobody can say whether they are in there; of another ledger, and of nobody, it is an alarm."""
    driver = Driver(Ledger.create(tmp_path / "run.db", retaining_spec(), SIGNER, now=START))
    driver.admit(admitted(ONE), admitted(TWO, max_occurrences=0), admitted(mine(3)))
    for _ in range(2):
        driver.steps(1)
        driver.epoch()
    summary = driver.ledger.summarise(now=driver.tick())
    driver.ledger.finish(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    aggregates = [found for found, _ in driver.ledger.state.tally.summarised]

    def record(own: Mine) -> Admitted:
        shown = driver.ledger.member(own.descriptor_hash)
        assert shown is not None
        return prove_admitted(summary.seq, aggregates, shown)

    records, epsilon = [record(own) for own in (ONE, TWO)], driver.ledger.epsilon(ONE.descriptor_hash)
    driver.ledger.prune(who_stays=True)
    export = driver.ledger.export(tmp_path / "run")
    unseen = look(export)
    assert codes(unseen) == [] and [(row.seq, row.unnamed) for row in unseen.rows] == [(None, 3), (None, 3)]
    found = look(export, members=records)
    assert codes(found) == ["BOUNDS"], "the cap of the second is not recorded"
    assert [(row.seq, row.time, row.epsilon) for row in found.rows] == [(1, None, epsilon), (2, None, epsilon)]
    late = look(export, own=(ONE,), members=records[:1], sent=[withdrawal(ONE)], now=START + 9 * DAY)
    assert codes(late) == ["WITHDRAWAL_MISSING"]
    driver.ledger.close()
    _, other = run(tmp_path, admitted(mine(4)), name="other")
    lied = replace(records[0], aggregate=replace(records[0].aggregate, clip_micro=1))
    for elsewhere, shown in ((other, records[0]), (export, lied)):
        assert codes(look(elsewhere, own=(ONE, TWO, mine(4)), members=[shown])) == ["MEMBER"]


def test_a_ledger_that_names_nobody_is_told_beside_one_that_names_the_contribution_or_its_withdrawal(tmp_path):
    """The operator may say that a withdrawal matches nothing; whether that is so nothing shows, and no answer says it."""
    driver = Driver(Ledger.create(tmp_path / "run.db", retaining_spec(), SIGNER, now=START))
    driver.admit(admitted(ONE), admitted(mine(3)))
    for _ in range(2):
        driver.steps(1)
        driver.epoch()
    driver.ledger.summarise(now=driver.tick())
    driver.ledger.finish(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.ledger.prune(who_stays=True)
    folded = driver.ledger.export(tmp_path / "run")
    driver.ledger.place.side(".members").unlink()
    driver.ledger.withdraw(ONE.descriptor_hash, "contributor", bytes(32), now=driver.tick())
    entered = driver.ledger.export(tmp_path / "entered")
    driver.ledger.close()
    second = NoteSigner("ledger.example/run2", OTHER_KEY)
    _, named = run(tmp_path, admitted(ONE), name="other", signer=second)
    found = watch([folded, named], [SIGNER.vkey, second.vkey], (ONE,), delay=DAY, now=START + 50)
    assert {(row.origin, row.seq, row.unnamed) for row in found.rows} == {(SIGNER.name, None, 2), (second.name, 1, 0)}
    (row,) = look(entered, own=(ONE,)).rows
    assert row.withdrawn is not None and (row.seq, row.unnamed) == (None, 2)


@pytest.mark.parametrize("limit", [(None, None), (50_000_000, 10**6)], ids=["no limit", "a limit"])
def test_in_a_public_class_no_epsilon_is_claimed_and_a_signed_limit_binds_nothing(tmp_path, limit):
    from attest.descriptor import PUBLIC_BOUNDS

    policy = signed_policy()
    bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    rule = replace(policy.policy.classes[0], public=True, **bounds)
    spec = header_spec(signed_policy(classes=(rule, policy.policy.classes[1])))
    free = {"max_epsilon_micro": limit[0], "max_delta_pico": limit[1], "max_occurrences": 0}
    own = mine(1, **bounds, **free)
    with Ledger.create(tmp_path / "ledger.db", spec, SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admitted(own, max_epsilon_micro=0, max_delta_pico=0))
        driver.steps(1)
        found = look(ledger.export(tmp_path / "export"), own=[own])
    assert codes(found) == [] and found.rows[0].epsilon is None and found.rows[0].steps == 4
