"""Several runs over one corpus: what was spent before is counted, cited and audited, and a signed limit stops a run in time."""

import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

pytest.importorskip("torch")

from attest import signed_file
from attest.keys import generate, load_private_key, public_bytes
from attest.policy import Policy, open_policy, sign_policy
from attest.withdrawal import PASSING, REGISTRY_REASONS
from dptrain.errors import ConfigError
from ledger.accountants import MICRO, Phase, epsilon_of_phases
from ledger.audit import verify_export
from ledger.errors import BudgetExceeded, LeafRefused, LedgerBehind, LedgerClosed
from ledger.log import Ledger
from ledger.note import NoteSigner
from tests.worlds.trainer import Trainer
from tests.worlds.training import CLASSES, World, make_world

STEPS = 4


def signed(limit: int) -> dict[str, int]:
    """A limit in 1e-6 at the delta of these worlds, 1e-5."""
    return {"max_epsilon_micro": limit, "max_delta_pico": 10**7}


class OtherLedger(World):
    """The same world with a ledger of another name."""

    name = "second.db"

    @property
    def ledger(self) -> Path:
        return self.root / self.name


def other(world: World) -> World:
    return OtherLedger(**vars(world))


def finish(trainer: Trainer, export: Path) -> Path:
    trainer.run()
    trainer.private.opened.recorder.finish(STEPS, bytes(32), "held", trainer.private.opened.recorder.ledger.state.last_time)
    trainer.private.export(export)
    trainer.close()
    return export


def test_a_second_run_cites_the_first_and_carries_what_it_spent(tmp_path):
    world = make_world(tmp_path, per_class=2, steps=STEPS)
    first = finish(Trainer(world), tmp_path / "one")
    second = finish(Trainer(other(world), earlier=[world.ledger]), tmp_path / "two")
    with Ledger.open(world.ledger) as one, Ledger.open(other(world).ledger) as two:
        (cited,) = two.header.previous
        assert (cited.origin, cited.size, cited.header_digest) == (one.header.origin, one.size, one.header_digest)
        keys = [one.state.keys.current, two.state.keys.current]
    report = verify_export(second, keys, earlier=[first])
    assert report.verdict == "FULL", report.findings
    assert [item.code for item in verify_export(second, keys, earlier=[]).findings] == ["EARLIER_MISSING"]


def test_a_run_that_could_exceed_a_signed_limit_never_begins(tmp_path):
    probe = make_world(tmp_path / "probe", per_class=1, steps=STEPS)
    trainer = Trainer(probe)
    redo = trainer.private.policy.redo_steps
    trainer.close()
    once = epsilon_of_phases([Phase(0.6, 0.5, STEPS + redo)], 1e-5)
    limit = int(once * MICRO) + 1000
    world = make_world(tmp_path / "world", per_class=2, steps=STEPS, template_extra=signed(limit))
    finish(Trainer(world), tmp_path / "one")
    with pytest.raises(BudgetExceeded) as refused:
        Trainer(other(world), earlier=[world.ledger])
    assert refused.value.code == "BUDGET" and refused.value.nearest < STEPS and not other(world).ledger.exists()
    tight = make_world(tmp_path / "tight", per_class=1, steps=STEPS, template_extra=signed(limit // 4))
    with pytest.raises(BudgetExceeded):
        Trainer(tight)


def test_a_run_that_is_still_open_or_was_rolled_back_is_not_counted(tmp_path):
    world = make_world(tmp_path, per_class=1, steps=STEPS)
    trainer = Trainer(world)
    trainer.one(next(iter(trainer.steps)))
    trainer.close()
    with pytest.raises(LedgerClosed) as refused:
        Trainer(other(world), earlier=[world.ledger])
    assert refused.value.code == "EARLIER_OPEN" and not other(world).ledger.exists()


def test_a_resumed_run_holds_its_earlier_ledgers_against_what_it_cites(tmp_path):
    world = make_world(tmp_path, per_class=1, steps=STEPS)
    finish(Trainer(world), tmp_path / "one")
    backup = {path: path.read_bytes() for path in tmp_path.glob("ledger.db*") if path.is_file()}
    with Ledger.open(world.ledger, signer_of(world)) as ledger:
        ledger.withdraw(bytes(32), "contributor", bytes(32), now=ledger.state.last_time)
    second = Trainer(other(world), earlier=[world.ledger])
    second.one(next(iter(second.steps)))
    second.private.save()
    second.close()
    for path in tmp_path.glob("ledger.db*"):
        if path.is_file():
            path.unlink()
    for path, data in backup.items():
        path.write_bytes(data)
    with pytest.raises(LedgerBehind):
        Trainer(other(world), earlier=[world.ledger], resume=True)
    resumed = Trainer(other(world), resume=True)
    resumed.close()


def signer_of(world: World) -> NoteSigner:
    return NoteSigner("test-corpus/ledger", load_private_key(world.root / "ledger.key"))


def test_a_ledger_whose_key_was_stolen_goes_on_under_another_origin_and_key_only(tmp_path):
    world = make_world(tmp_path, per_class=1, steps=STEPS)
    trainer = Trainer(world)
    trainer.one(next(iter(trainer.steps)))
    trainer.close()
    for options in ({"origin": "test-corpus/ledger"}, {"ledger_key": tmp_path / "ledger.key"}):
        with pytest.raises(LeafRefused) as refused:
            Trainer(other(world), replaces=world.ledger, **options)
        assert refused.value.code == "PREVIOUS" and not other(world).ledger.exists()
    heir = Trainer(other(world), replaces=world.ledger).begin()
    (cited,) = heir.private.opened.recorder.ledger.header.previous
    name, found = next(iter(heir.private.opened.recorder.ledger.state.contributions.items()))
    carried = heir.private.opened.recorder._spent.carried(name, 1e-5, found.terms)
    with Ledger.open(world.ledger, read_only=True) as lost:
        spent, terms = lost.state.epsilon(lost.state.contributions[name]), found.terms
        account = lost.state.plans.account(terms.class_index, terms.bounds, terms.limit)
        assert carried == account.planned.epsilon(1e-5) > spent, "the whole plan, not the steps shown"
    heir.close()
    assert (cited.origin, cited.reason) == ("test-corpus/ledger", "compromised") and carried > 0


def test_the_exports_of_earlier_runs_will_do_where_their_ledgers_are_not(tmp_path):
    """Another machine: it has the export, and the verifier key by another way."""
    world = make_world(tmp_path, per_class=2, steps=STEPS)
    first = finish(Trainer(world), tmp_path / "one")
    key = tmp_path / "one.pub"
    (world.root / "ledger.pub").rename(key)
    for path in tmp_path.glob("ledger.*"):
        if path.is_file():
            path.unlink()
    second = finish(Trainer(other(world), earlier=[first], earlier_keys=[key]), tmp_path / "two")
    keys = [key.read_text().strip(), (world.root / "second.pub").read_text().strip()]
    report = verify_export(second, keys, earlier=[first])
    assert report.verdict == "FULL", report.findings
    with Ledger.open(other(world).ledger) as two:
        assert all(found.terms.carried_micro > 0 for found in two.state.contributions.values())


def test_a_resumed_run_holds_the_exports_of_earlier_runs_against_what_it_cites(tmp_path):
    world = make_world(tmp_path, per_class=1, steps=STEPS)
    first = finish(Trainer(world), tmp_path / "one")
    with Ledger.open(world.ledger, signer_of(world)) as ledger:
        ledger.withdraw(bytes(32), "contributor", bytes(32), now=ledger.state.last_time)
        grown = ledger.export(tmp_path / "grown")
    keys = {"earlier_keys": [world.root / "ledger.pub"]}
    second = Trainer(other(world), earlier=[grown], **keys)
    second.one(next(iter(second.steps)))
    second.private.save()
    second.close()
    with pytest.raises(LedgerBehind):
        Trainer(other(world), earlier=[first], resume=True, **keys)
    Trainer(other(world), earlier=[grown], resume=True, **keys).close()


@pytest.mark.parametrize("export", [False, True])
@pytest.mark.one_in(3)
def test_what_was_withdrawn_in_an_earlier_run_is_withdrawn_here_before_the_first_step(tmp_path, export):
    world = make_world(tmp_path, per_class=2, steps=STEPS)
    trainer = Trainer(world).begin()
    recorder = trainer.private.opened.recorder
    gone, ended, *_ = recorder.admitted()
    root = recorder.ledger.state.registry_roots[-1]
    recorder.ledger.withdraw(ended, "key-revoked", root, now=recorder.ledger.state.last_time)
    trainer.run()
    recorder.ledger.withdraw(gone, "consent", bytes(range(32)), now=recorder.ledger.state.last_time)
    recorder.finish(STEPS, bytes(32), "held", recorder.ledger.state.last_time)
    recorder.export(tmp_path / "one")
    trainer.close()
    options = {"earlier": [tmp_path / "one" if export else world.ledger], "earlier_keys": [world.root / "ledger.pub"]}
    second = Trainer(other(world), **options).begin()
    state = second.private.opened.recorder.ledger.state
    assert set(state.withdrawals) == {gone} and state.charged == 0
    (leaf,) = second.private.opened.recorder._spent.withdrawn.values()
    assert (leaf[1].reason, leaf[1].evidence_hash) == ("consent", bytes(range(32)))
    second.close()
    Trainer(other(world), resume=True, **options).close()
    assert REGISTRY_REASONS | {"expired"} == PASSING


def test_an_export_is_audited_before_anything_of_it_is_counted(tmp_path):
    world = make_world(tmp_path, per_class=1, steps=STEPS)
    first = finish(Trainer(world), tmp_path / "one")
    stranger = NoteSigner("test-corpus/ledger", generate()).vkey
    for code, keys in (("EARLIER_KEY", []), ("EARLIER_KEY", [tmp_path / "nowhere.pub"]), ("EARLIER", [stranger])):
        with pytest.raises((ConfigError, LeafRefused)) as refused:
            Trainer(other(world), earlier=[first], earlier_keys=keys)
        assert refused.value.code == code and not other(world).ledger.exists()
    checkpoint = first / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes().replace(b"test-corpus/ledger", b"test-corpus/ledges"))
    with pytest.raises(LeafRefused) as refused:
        Trainer(other(world), earlier=[first], earlier_keys=[world.root / "ledger.pub"])
    assert refused.value.code == "EARLIER" and "FAILED" in refused.value.sentence


def test_an_export_of_a_run_that_is_open_is_not_counted(tmp_path):
    world = make_world(tmp_path, per_class=1, steps=STEPS)
    trainer = Trainer(world)
    trainer.one(next(iter(trainer.steps)))
    trainer.private.opened.recorder.export(tmp_path / "one")
    trainer.close()
    with pytest.raises(LeafRefused) as refused:
        Trainer(other(world), earlier=[tmp_path / "one"], earlier_keys=[world.root / "ledger.pub"])
    assert refused.value.code == "EARLIER_OPEN"


def test_a_run_with_a_fixed_test_key_is_no_earlier_run(tmp_path):
    """It spent without bound, whatever its ledger says of epsilon."""
    world = make_world(tmp_path, per_class=1, steps=STEPS)
    trainer = Trainer(world, insecure_test_key=bytes(range(32)))
    trainer.run()
    trainer.private.opened.recorder.finish(STEPS, bytes(32), "held", trainer.private.opened.recorder.ledger.state.last_time)
    trainer.close()
    with pytest.raises(LeafRefused) as refused:
        Trainer(other(world), earlier=[world.ledger])
    assert refused.value.code == "EARLIER_NOT_PRIVATE" and not other(world).ledger.exists()


def test_a_limit_of_a_class_outlives_the_policy_that_says_it(tmp_path):
    """The second policy has none and a delta of 1e-2, at which next to nothing is spent; the first one's binds all the same."""
    once = epsilon_of_phases([Phase(0.6, 0.5, 2 * STEPS)], 1e-5)
    limited = CLASSES + f"max_epsilon_total = {once + 0.1:.6f}\n"
    world = make_world(tmp_path, per_class=1, steps=STEPS, classes=limited)
    finish(Trainer(world), tmp_path / "one")
    first = Policy.from_cbor(open_policy(world.policy, public_bytes(world.owner_key)).payload)
    assert first.classes[2].max_epsilon_total_micro == round((once + 0.1) * MICRO)
    classes = tuple(replace(rule, max_epsilon_total_micro=None) for rule in first.classes)
    second = replace(first, classes=classes, delta=Fraction(1, 100), registry_root=None)
    payload, message = sign_policy(second, world.owner_key, owner="owner", registry_root=world.registry.root())
    signed_file.write(world.policy, payload, message)
    Trainer(other(world)).close()  # by itself it may run
    for path in world.root.glob("second.*"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    with pytest.raises(BudgetExceeded) as refused:
        Trainer(other(world), earlier=[world.ledger])
    assert "the policy of test-corpus/ledger allows its class" in refused.value.sentence
    assert refused.value.nearest == 0 and not other(world).ledger.exists()
