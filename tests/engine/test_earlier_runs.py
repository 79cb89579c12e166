"""Several runs over one corpus: what was spent before is counted, cited and audited, and a signed limit stops a run in time."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from attest.keys import load_private_key
from ledger.accountants import MICRO, Phase, epsilon_of_phases
from ledger.audit.earlier import verify_with_earlier
from ledger.errors import BudgetExceeded, LeafRefused, LedgerBehind, LedgerClosed
from ledger.log import Ledger
from ledger.note import NoteSigner
from tests.trainers import Trainer
from tests.worlds import World, make_world

STEPS = 4


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
    trainer.private.recorder.finish(STEPS, bytes(32), trainer.private.recorder.ledger.state.last_time)
    trainer.private.recorder.export(export)
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
    report = verify_with_earlier(second, keys, [first])
    assert report.verdict == "FULL", report.findings
    assert [item.code for item in verify_with_earlier(second, keys, []).findings] == ["EARLIER_MISSING"]


def test_a_run_that_could_exceed_a_signed_limit_never_begins(tmp_path):
    probe = make_world(tmp_path / "probe", per_class=1, steps=STEPS)
    trainer = Trainer(probe)
    redo = trainer.private.policy.redo_steps
    trainer.close()
    once = epsilon_of_phases([Phase(0.6, 0.5, STEPS + redo)], 1e-5)
    limit = int(once * MICRO) + 1000
    world = make_world(tmp_path / "world", per_class=2, steps=STEPS, template_extra={"max_epsilon_micro": limit})
    finish(Trainer(world), tmp_path / "one")
    with pytest.raises(BudgetExceeded) as refused:
        Trainer(other(world), earlier=[world.ledger])
    assert refused.value.code == "BUDGET" and refused.value.nearest < STEPS and not other(world).ledger.exists()
    tight = make_world(tmp_path / "tight", per_class=1, steps=STEPS, template_extra={"max_epsilon_micro": limit // 4})
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
    heir = Trainer(other(world), replaces=world.ledger)
    (cited,) = heir.private.recorder.ledger.header.previous
    carried = heir.private.recorder._spent.carried(heir.private.recorder.admitted()[0])
    heir.close()
    assert (cited.origin, cited.reason) == ("test-corpus/ledger", "compromised") and carried.epsilon > 0
