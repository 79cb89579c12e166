"""The attack list of the attestation format, A16 and A21 to A24: what happens between admission and the last step."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from attest import keys, signed_file
from attest.attestation import Attestation
from attest.descriptor import PUBLIC_BOUNDS
from attest.errors import CorpusRefused, RegistryRefused
from attest.gate import Admission, Gate, Refused, Seen
from attest.gate.admission import Passed
from attest.gate.reading import Verified
from attest.registry import RegistryLog
from attest.withdrawal import Withdrawal, sign_withdrawal
from dptrain.errors import ContentChanged, NotPrivateUse
from ledger.audit import verify_export
from ledger.errors import LeafRefused
from ledger.leaves import Admit, Charge, Withdraw, decode_leaf
from ledger.log import Ledger
from ledger.note import NoteSigner
from tests.attacks.scene import item_of, signed
from tests.worlds.gate import BOB, CONTENT, MALLORY, NOW, RAW, make_registry
from tests.worlds.trainer import Trainer
from tests.worlds.training import CLASSES, DAY, PUBLIC, make_world

KEY_ID = keys.key_id(RAW["alice"])


def leaves_of(trainer, *kinds):
    """Leaves of some kinds in the trainer's ledger, all if none is named."""
    with trainer.private.opened.recorder.ledger.rows() as rows:
        leaves = [decode_leaf(row.body) for row in rows]
    return [leaf for leaf in leaves if not kinds or isinstance(leaf, kinds)]


def draws_of(trainer):
    """How often each slot was drawn."""
    return trainer.private.prepared.attempt.streams.sampler.occurrences.tolist()


# --- A5: content changed after the gate saw it --------------------------------------------------------------------------


@pytest.mark.parametrize("change", [b'{"ids": [7', b" ", b""], ids=["edited", "a blank", "emptied"])
@pytest.mark.slow
def test_A5_content_changed_after_admission_stops_training_before_it_is_used(tmp_path, change):
    world = make_world(tmp_path, per_class=1, steps=4, rate="1")
    trainer = Trainer(world)
    data = world.corpus / "internal.jsonl"
    content = data.read_bytes()
    data.write_bytes(change + content[len(change) :] if change else b"")
    with pytest.raises((ContentChanged, CorpusRefused)) as caught:
        trainer.one(next(iter(trainer.steps)))
    assert caught.value.code in ("CONTENT_CHANGED", "CONTENT_MISSING")
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    trainer.close()


# --- A16: bounds softer than the class, past the gate -------------------------------------------------------------------

SOFTER = {
    "CLIP_ABOVE_CLASS": {"clip_norm_micro": 500_001},
    "NOISE_BELOW_CLASS": {"noise_multiplier_micro": 1_499_999},
    "CLIP_BELOW_FLOOR": {"clip_norm_micro": 9_999},
    "EXAMPLES": {"max_examples": 2},
    "CLASS_UNKNOWN": {"admissibility_class": "secret"},
    "PURPOSE": {"purposes": ("generate",)},
}


def forged(admission, **changes):
    """An admission that no gate made, of a descriptor with other fields."""
    signed = replace(admission.descriptor, **changes)
    passed = Passed(signed.digest(), bytes(32), admission.key_id, signed.contributor, signed.admissibility_class)
    return Admission(Attestation(signed.to_cbor(), b"", signed.opening()), passed, admission.holder)


def test_A16_an_admission_softer_than_its_class_is_refused_where_bounds_become_noise(tmp_path):
    """Whoever hands the resolver an admission that the gate would not have made gets no noise for it, and the gate's code."""
    world = make_world(tmp_path, classes=CLASSES + PUBLIC, per_class=1, steps=2, policy_extra="[floors]\nclip_norm = 0.01")
    trainer = Trainer(world)
    schedule = trainer.private.prepared.schedule
    admissions = {slot.resolution.class_name: slot.admitted.admission for slot in trainer.private.prepared.pool.slots}
    private, public = admissions["sensitive"], admissions["encyclopedia"]
    assert schedule.resolve(forged(private)) == schedule.resolve(private)
    assert schedule.resolve(forged(private, clip_norm_micro=10_000, noise_multiplier_micro=1_500_000)).bounds.clip_norm == 0.01
    says_public = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    for code, softer in (
        *((code, forged(private, **changes)) for code, changes in SOFTER.items()),
        ("CLIP_ABOVE_CLASS", forged(private, **says_public)),
        ("BOUNDS_NOT_PUBLIC", forged(public, clip_norm_micro=500_000, noise_multiplier_micro=1_500_000)),
    ):
        with pytest.raises(NotPrivateUse) as refused:
            schedule.resolve(softer)
        assert refused.value.code == code and softer.descriptor_hash.hex()[:16] in refused.value.sentence
    with pytest.raises(NotPrivateUse, match="NO_POLICY"):
        replace(schedule, policy=None).resolve(private)
    trainer.close()


# --- A21: clocks ----------------------------------------------------------


def test_A21_a_clock_set_back_between_admission_and_training_is_CLOCK(tmp_path):
    world = make_world(tmp_path, per_class=1, steps=4, rate="1")
    now = [world.now]
    trainer = Trainer(world, clock=lambda: now[0])
    now[0] = world.now - 61
    with pytest.raises(LeafRefused) as caught:
        trainer.one(next(iter(trainer.steps)))
    assert caught.value.code == "CLOCK"
    assert not leaves_of(trainer, Charge)
    trainer.close()


def test_A21_every_admission_of_a_batch_has_its_one_time_and_time_never_runs_back(tmp_path):
    world = make_world(tmp_path, per_class=2, steps=4, rate="1")
    ticks = iter(range(world.now, world.now + 10**6, 7))
    trainer = Trainer(world, clock=lambda: next(ticks))
    clock_back = trainer.private.opened.now
    object.__setattr__(trainer.private.opened, "now", lambda: clock_back() - 60)
    trainer.run()
    assert {leaf.time for leaf in leaves_of(trainer, Admit)} == {trainer.private.opened.gate.now}
    times = [leaf.time for leaf in leaves_of(trainer)]
    assert times == sorted(times)
    trainer.close()


@pytest.mark.parametrize("when", ["at a resume", "within the run"])
@pytest.mark.one_in(3)
def test_A21_a_clock_that_ran_far_ahead_lets_nothing_expire_unasked(tmp_path, when):
    """A machine that is 250 days ahead: nothing is written by its clock, and the run goes on once the clock is right."""
    world = make_world(tmp_path, per_class=1, steps=8, rate="1")
    now = [world.now]
    trainer = Trainer(world, clock=lambda: now[0])
    steps = iter(trainer.steps)
    for _ in range(4):
        trainer.one(next(steps))
    trainer.private.save()
    size = trainer.private.opened.recorder.ledger.size
    now[0] = world.now + 250 * DAY
    if when == "within the run":
        with pytest.raises(LeafRefused) as caught:
            trainer.one(next(steps))
        assert trainer.private.opened.recorder.ledger.size == size
        trainer.close()
    else:
        trainer.close()
        with pytest.raises(LeafRefused) as caught:
            Trainer(world, resume=True, clock=lambda: now[0])
    assert caught.value.code == "CLOCK_JUMP"
    assert "days before" in caught.value.sentence and "--clock-jump-ok" in caught.value.sentence
    now[0] = world.now + 60
    again = Trainer(world, resume=True, clock=lambda: now[0])
    again.run()
    assert not leaves_of(again, Withdraw) and again.private.opened.recorder.ledger.finished
    again.close()


def test_A21_a_clock_that_is_right_after_a_long_pause_is_said_to_be(tmp_path):
    world = make_world(tmp_path, per_class=1, steps=8, rate="1")
    now = [world.now]
    trainer = Trainer(world, clock=lambda: now[0])
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 4:
            break
    trainer.private.save()
    trainer.close()
    now[0] = world.now + 201 * DAY
    again = Trainer(world, resume=True, clock=lambda: now[0], clock_jump_ok=True)
    again.run()
    assert {leaf.reason for leaf in leaves_of(again, Withdraw)} == {"expired"}
    again.close()


def test_A21_a_run_that_a_false_clock_locked_goes_on_behind_a_clock_leaf(tmp_path):
    """Who was withdrawn as expired by the false clock stays withdrawn; nobody else is, and the export is FULL again."""
    world = make_world(tmp_path, per_class=1, steps=8, rate="1")
    now = [world.now]
    trainer = Trainer(world, clock=lambda: now[0])
    steps = iter(trainer.steps)
    for _ in range(4):
        trainer.one(next(steps))
    trainer.private.save()
    trainer.close()
    now[0] = world.now + 201 * DAY
    wrong = Trainer(world, resume=True, clock=lambda: now[0], clock_jump_ok=True).begin()
    log = wrong.private.opened.recorder.ledger
    admission = wrong.private.prepared.pool.slots[0].admitted.admission
    gone = admission.descriptor_hash
    log.withdraw(gone, "expired", admission.attestation_hash, now=now[0])
    wrong.close()
    now[0] = world.now + 60
    with pytest.raises(LeafRefused) as caught:
        Trainer(world, resume=True, clock=lambda: now[0])
    assert caught.value.code == "CLOCK" and "set-clock" in caught.value.sentence
    signer = NoteSigner("test-corpus/ledger", keys.load_private_key(world.root / "ledger.key"))
    with Ledger.open(world.ledger, signer) as log:
        log.set_clock("the machine was 201 days ahead", now=now[0])
    again = Trainer(world, resume=True, clock=lambda: now[0])
    again.run()
    log = again.private.opened.recorder.ledger
    assert log.finished and log.state.withdrawals.keys() == {gone}
    report = verify_export(again.private.export(tmp_path / "export"), [signer.vkey], now=now[0])
    assert report.verdict == "FULL" and len(report.clock_sets) == 1
    again.close()


# --- A22: expiry and withdrawal while a verdict is remembered ----------------------------------------------------------


def codes(gate, items, **options):
    """One reading of a corpus through a gate that remembers."""
    outcomes = list(gate.judge(items, **options))
    return [str(outcome.refusal.code) if isinstance(outcome, Refused) else "ADMITTED" for outcome in outcomes]


def test_A22_a_remembered_verdict_falls_with_the_clock_the_withdrawals_and_the_content(scene):
    gate = Gate(scene.policy, scene.registry, workers=1, remember=Verified())
    good = item_of(signed(), CONTENT)
    digest = gate_hash(scene)
    assert codes(gate, [good], now=NOW) == ["ADMITTED"]
    assert codes(gate, [good], now=NOW + 999) == ["ADMITTED"]
    assert codes(gate, [good], now=NOW + 1000) == ["EXPIRED"]
    assert codes(gate, [good], now=NOW - 1001) == ["NOT_YET_VALID"]
    assert codes(gate, [good], now=-1) == ["CLOCK"]
    assert codes(gate, [good], now=NOW, withdrawn={digest}) == ["WITHDRAWN"]
    assert codes(gate, [item_of(signed(), CONTENT + b"\n")], now=NOW) == ["CONTENT_MISMATCH"]
    assert codes(gate, [item_of(signed(), None)], now=NOW) == ["CONTENT_MISSING"]
    assert codes(gate, [good, good], now=NOW) == ["ADMITTED", "REPLAYED"]


def gate_hash(scene):
    """Descriptor hash of the good attestation."""
    return scene.outcome(signed()).descriptor_hash


def test_A22_expiry_within_an_epoch_ends_the_draws_at_the_next_charge(tmp_path):
    """Windows of two steps, epochs of four: the clock passes the end of validity within the second window."""
    world = make_world(tmp_path, per_class=1, steps=8, rate="1")
    now = [world.now + 195 * DAY]
    trainer = Trainer(world, clock=lambda: now[0])
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 3:
            now[0] = world.now + 200 * DAY
    assert draws_of(trainer) == [4, 4, 4]
    assert {leaf.reason for leaf in leaves_of(trainer, Withdraw)} == {"expired"}
    trainer.close()


def test_A22_a_withdrawal_within_an_epoch_ends_the_draws_at_the_next_charge(tmp_path):
    world = make_world(tmp_path, per_class=1, steps=8, rate="1")
    trainer = Trainer(world)
    name = "contributor-internal"
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 3:
            slot = next(s for s in trainer.private.prepared.pool.slots if s.admitted.admission.descriptor.contributor == name)
            withdrawal = Withdrawal(slot.descriptor_hash, "test-corpus", world.now, "consent")
            payload, message = sign_withdrawal(withdrawal, world.contributor_keys[name], signer=name)
            signed_file.write(world.root / "ledger.db.withdrawals" / "w.cose", payload, message)
    assert sorted(draws_of(trainer)) == [4, 8, 8]
    assert [leaf.reason for leaf in leaves_of(trainer, Withdraw)] == ["consent"]
    trainer.close()


# --- A23: poisoning what the gate remembers ----------------------------------------------------------


def poisoned():
    """Messages that share as much as possible with one whose verdict is remembered; none may profit from it."""
    good = signed()
    other = signed(nonce=bytes(16))
    flipped = good.sign1[:-1] + bytes([good.sign1[-1] ^ 1])
    return {
        "same descriptor, last bit of the signature": (replace(good, sign1=flipped), "SIG_BAD"),
        "same descriptor, signature of zeros": (replace(good, sign1=good.sign1[:-64] + bytes(64)), "SIG_BAD"),
        "same message, other nonce": (replace(other, sign1=good.sign1), "HEADER"),
        "other nonce, its own header, the remembered signature": (
            replace(other, sign1=other.sign1[:-64] + good.sign1[-64:]),
            "SIG_BAD",
        ),
        "same key id and contributor, another's key": (signed(key=MALLORY, header={4: KEY_ID}), "SIG_BAD"),
        "same key id, another contributor": (signed({"contributor": "bob"}, key=BOB, header={4: KEY_ID}), "SIG_BAD"),
        "looser bound, the remembered signature": (with_signature_of(good, signed({5: 2_000_000})), "SIG_BAD"),
        "later end, the remembered signature": (with_signature_of(good, signed({9: NOW + 5000})), "SIG_BAD"),
        "other class, the remembered signature": (with_signature_of(good, signed({4: "open"})), "SIG_BAD"),
    }


def with_signature_of(source, attestation):
    """An attestation with its own header and the signature of another."""
    return replace(attestation, sign1=attestation.sign1[:-64] + source.sign1[-64:])


@pytest.mark.parametrize("name", poisoned())
def test_A23_a_remembered_verdict_serves_the_very_message_alone(scene, name):
    attestation, code = poisoned()[name]
    good = item_of(signed(), CONTENT)
    gate = Gate(scene.policy, scene.registry, workers=1, remember=Verified())
    assert codes(gate, [good], now=NOW) == ["ADMITTED"]
    for _ in range(2):
        assert codes(gate, [item_of(attestation, CONTENT)], now=NOW) == [code]
        assert codes(gate, [item_of(attestation, CONTENT), good], now=NOW) == [code, "ADMITTED"]
    assert scene.code(attestation) == code


def test_A23_a_refusal_is_not_remembered_for_the_rightful_message(scene):
    gate = Gate(scene.policy, scene.registry, workers=1, remember=Verified())
    good, bad = signed(), signed(key=MALLORY, header={4: KEY_ID})
    assert codes(gate, [item_of(bad, CONTENT)], now=NOW) == ["SIG_BAD"]
    assert codes(gate, [item_of(good, CONTENT)], now=NOW) == ["ADMITTED"]


def test_A23_a_verdict_under_one_policy_or_registry_does_not_hold_under_another(scene):
    """What a gate remembers dies with the gate; another policy or registry means another gate."""
    gate = Gate(scene.policy, scene.registry, workers=1, remember=Verified())
    assert codes(gate, [item_of(signed(), CONTENT)], now=NOW) == ["ADMITTED"]
    stricter = tuple(replace(rule, clip_norm_micro=999_999) for rule in scene.policy.classes)
    other = Gate(replace(scene.policy, classes=stricter), scene.registry, workers=1, remember=Verified())
    assert codes(other, [item_of(signed(), CONTENT)], now=NOW) == ["CLIP_ABOVE_CLASS"]


def test_A23_two_batches_of_one_epoch_share_what_was_admitted(scene):
    seen = Seen()
    gate = Gate(scene.policy, scene.registry, workers=1, remember=Verified(), seen=seen)
    assert codes(gate, [item_of(signed(), CONTENT)], now=NOW) == ["ADMITTED"]
    assert codes(gate, [item_of(signed(), CONTENT)], now=NOW) == ["REPLAYED"]


# --- A24: keys revoked after admission ----------------------------------------------------------


def revoked(at):
    """A later state of the registry in which the owner revoked Alice's key."""
    return make_registry(lambda log: log.revoke("alice", at=at, now=NOW))


def test_A24_a_revoked_key_is_KEY_REVOKED_from_its_second_on(scene):
    assert scene.code(signed(), registry=revoked(NOW)) == "KEY_REVOKED"
    assert scene.code(signed(), registry=revoked(NOW - 500)) == "KEY_REVOKED"
    assert scene.code(signed(), registry=revoked(NOW + 1)) == "ADMITTED"
    assert scene.code(signed(), registry=revoked(NOW + 1), now=NOW + 1) == "KEY_REVOKED"


def test_A24_a_policy_that_names_an_earlier_root_takes_the_registry_with_the_revocation(scene):
    """So nobody has to sign the policy again for a revocation to count."""
    later = revoked(NOW)
    assert later.root() != scene.policy.registry_root and later.extends(scene.policy.registry_root)
    gate = Gate(scene.policy, later, workers=1)
    assert codes(gate, [item_of(signed(), CONTENT)], now=NOW) == ["KEY_REVOKED"]


def test_A24_an_older_registry_than_a_run_used_is_refused_by_its_ledgers_memory_and_by_the_corpus(tmp_path):
    """Also where no leaf of the ledger cites what came after the admission: a grant to somebody else, say."""
    world = make_world(tmp_path, per_class=1, steps=6, rate="1")
    path = world.root / "registry.cbor"
    before = path.read_bytes()
    log = RegistryLog(path, world.owner_key)
    trainer = Trainer(world)
    steps = iter(trainer.steps)
    trainer.one(next(steps))
    trainer.one(next(steps))
    trainer.private.save()
    log.grant("contributor-open", classes=["open"], cap=9, now=world.now)
    after = path.read_bytes()
    trainer.one(next(steps))  # charges the second window, and sees the newer registry
    trainer.close()
    ledgers, corpora = world.root / "ledger.db.registry", world.root / ".corpus.registry"
    used = ledgers.read_bytes()
    assert used == corpora.read_bytes()
    path.write_bytes(before)
    for gone in (corpora, ledgers):
        gone.unlink()
        with pytest.raises(RegistryRefused, match=r"REGISTRY_ROOT.*rolled back"):
            Trainer(world, resume=True)  # the ledger says it by itself, whatever lies beside it
        gone.write_bytes(used)
    world.ledger.rename(world.root / "first.db")
    for suffix in (".registry", ".highwater", ".checkpoints"):
        (world.root / f"ledger.db{suffix}").rename(world.root / f"first.db{suffix}")
    with pytest.raises(RegistryRefused, match=r"has 4 entries .*for this corpus one with 5 entries"):
        Trainer(world)  # another run over the same corpus
    path.write_bytes(after)
    Trainer(world).close()


def test_A24_a_second_key_of_the_contributor_does_not_heal_what_the_revoked_one_signed(scene):
    registry = make_registry(
        lambda log: log.enrol("alice", RAW["mallory"], classes=(), not_before=NOW, not_after=NOW + 10, now=NOW),
        lambda log: log.revoke("alice", RAW["alice"], at=NOW, now=NOW),
    )
    assert scene.code(signed(), registry=registry) == "KEY_REVOKED"
    assert scene.code(signed(key=MALLORY), registry=registry) == "ADMITTED"
    assert scene.code(signed(header={4: keys.key_id(RAW["mallory"])}), registry=registry) == "SIG_BAD"
