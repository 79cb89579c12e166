"""What lies beside a ledger and is read again when its run is resumed: changed, swapped, from elsewhere, or gone.

Who may write that disk and has not the ledger's key: model checkpoints, the keys of earlier draws, the owner's and the ledger's
public keys. What `dptrain ledger fsck` says of checkpoints: `tests/cli/test_cli_ledger_fsck.py`; what it alone looks at:
`test_ledger_attacks_beside.py`.
"""

import gc
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from attest import sign1, signed_file  # noqa: E402
from attest.keys import generate, load_private_key, public_bytes, save_private_key, save_public_key  # noqa: E402
from attest.registry.entries import join, split  # noqa: E402
from dptrain.errors import ResumeRefused  # noqa: E402
from dptrain.record.pin import KIND, PIN, STATE, folder_name  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.errors import LedgerWrongRun, PinRefused  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from ledger.log.pinned import open_pinned, sign_pinned  # noqa: E402
from ledger.note import NoteSigner  # noqa: E402
from tests.attacks.test_ledger_attacks_training import rows_of, run_to, start  # noqa: E402
from tests.worlds.trainer import Trainer, layers  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path, per_class=1, steps=8, rate="0.5", policy_extra="redo_steps = 8")


# --- what the next attempt begins from: model, optimizer, registered states --------------


def checkpoint(world: World, step: int) -> Path:
    return world.root / "ledger.db.checkpoints" / folder_name(step)


def stopped(world: World, **options: object) -> None:
    """A run that saved after steps 2 and 4, and stopped."""
    trainer = start(world, **options)
    run_to(trainer, 4, save_at=(2, 4))
    trainer.close()


def changed_states(path: Path, change: Callable[[dict], object]) -> None:
    """Rewrites the states as torch does: well-formed, and of the size that they had or nearly."""
    state = torch.load(path / STATE, weights_only=True)
    change(state)
    torch.save(state, path / STATE)


def signer_of(world: World) -> NoteSigner:
    with Ledger.open(world.ledger) as ledger:
        return NoteSigner(ledger.header.origin, load_private_key(world.root / "ledger.key"))


def pinned_anew(world: World, path: Path, signer: NoteSigner) -> None:
    """What a thief of the disk does next: gives changed states a pin that names them, under a key of his own."""
    with Ledger.open(world.ledger) as ledger:
        pin, values = open_pinned((path / PIN).read_bytes(), KIND, ledger.state.keys)
    data = (path / STATE).read_bytes()
    values[3:] = [len(data), hashlib.sha256(data).digest()]
    (path / PIN).write_bytes(sign_pinned(KIND, pin, values, signer))


CHANGES = {
    "model": lambda state: next(iter(state["model"].values())).mul_(2),
    "learning rate": lambda state: state["optimizer"]["param_groups"][0].update(lr=0.5),
    "moments of the optimizer": lambda state: next(iter(state["optimizer"]["state"].values()))["exp_avg"].add_(1),
    "seed of the forward passes": lambda state: state["registered"][0].update(seed="00" * 16),
    "registered states": lambda state: state["registered"].append({"last_epoch": 3}),
    "nothing that is loaded": lambda state: state.update(more=1),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.one_in(23)
def test_a_state_changed_between_stop_and_resume_is_refused_before_anything_is_charged_or_loaded(world, what):
    stopped(world)
    changed_states(checkpoint(world, 4), CHANGES[what])
    size, kept = rows_of(world.ledger), []

    def adam(parameters: object) -> torch.optim.Optimizer:
        kept.extend(parameters)
        return torch.optim.AdamW(kept, lr=1e-2)

    with pytest.raises(PinRefused) as caught:
        Trainer(world, resume=True, optimizer=adam)
    assert caught.value.code == "STATE_CHANGED" and "step-00000004" in caught.value.sentence
    assert rows_of(world.ledger) == size
    torch.manual_seed(0)
    fresh = layers().model.parameters()
    assert all(torch.equal(own, new) for own, new in zip(kept, fresh, strict=True)), "the model is as it was made"


def swap(world: World) -> None:
    """The states of one checkpoint of a run under the pin of another."""
    shutil.copy(checkpoint(world, 2) / STATE, checkpoint(world, 4) / STATE)


def pass_off(world: World) -> None:
    """A whole earlier checkpoint, pin and all, under the name of a later one."""
    shutil.rmtree(checkpoint(world, 4))
    checkpoint(world, 2).rename(checkpoint(world, 4))


def resign(world: World) -> None:
    changed_states(checkpoint(world, 4), CHANGES["model"])
    pinned_anew(world, checkpoint(world, 4), NoteSigner(signer_of(world).name, generate()))


def claim_later(world: World) -> None:
    """An honest pin that says it is of a later step."""
    path = checkpoint(world, 2) / PIN
    data = path.read_bytes()
    shutil.rmtree(checkpoint(world, 4))
    path.write_bytes(data.replace(b"\x06\x02\x07", b"\x06\x04\x07", 1))
    assert path.read_bytes() != data
    checkpoint(world, 2).rename(checkpoint(world, 4))


def link_elsewhere(world: World) -> None:
    (checkpoint(world, 4) / STATE).unlink()
    (checkpoint(world, 4) / STATE).symlink_to(checkpoint(world, 2) / STATE)


def pipe(world: World) -> None:
    (checkpoint(world, 4) / STATE).unlink()
    os.mkfifo(checkpoint(world, 4) / STATE)


SWAPS = {
    "states of another step": (swap, "STATE_CHANGED"),
    "another step under its name": (pass_off, "CHECKPOINT_MOVED"),
    "signed by somebody else": (resign, "UNSIGNED"),
    "a pin that says a later step": (claim_later, "UNSIGNED"),
    "a link to other states": (link_elsewhere, "STATE_CHANGED"),
    "no states": (lambda world: (checkpoint(world, 4) / STATE).unlink(), "STATE_MISSING"),
    "a pipe": (pipe, "STATE_CHANGED"),
    "no pin": (lambda world: (checkpoint(world, 4) / PIN).unlink(), "PIN_MISSING"),
    "half a pin": (lambda world: os.truncate(checkpoint(world, 4) / PIN, 100), "PIN"),
    "an empty directory": (lambda world: checkpoint(world, 6).mkdir(), "PIN_MISSING"),
}


@pytest.mark.parametrize("how", SWAPS)
@pytest.mark.one_in(23)
def test_a_checkpoint_that_is_swapped_signed_anew_or_not_whole_is_refused(world, how):
    stopped(world)
    attack, code = SWAPS[how]
    attack(world)
    size = rows_of(world.ledger)
    with pytest.raises(PinRefused) as caught:
        Trainer(world, resume=True)
    assert caught.value.code == code
    assert any(way in caught.value.sentence for way in ("remove the checkpoint to resume from an older one", "its own name"))
    assert rows_of(world.ledger) == size


@pytest.mark.parametrize("same_key", [True, False], ids=["under one key", "under another key"])
@pytest.mark.one_in(3)
def test_a_checkpoint_of_another_ledger_is_refused(world, tmp_path, same_key):
    other = make_world(tmp_path / "other", per_class=1, steps=8, rate="0.5", policy_extra="redo_steps = 8")
    stopped(world)
    stopped(other, **({"ledger_key": world.root / "ledger.key"} if same_key else {}))
    shutil.rmtree(checkpoint(world, 4))
    shutil.copytree(checkpoint(other, 4), checkpoint(world, 4))
    size = rows_of(world.ledger)
    with pytest.raises((LedgerWrongRun, PinRefused)) as caught:
        Trainer(world, resume=True)
    assert caught.value.code == ("WRONG_RUN" if same_key else "UNSIGNED")
    assert rows_of(world.ledger) == size


def test_after_a_change_of_the_ledgers_key_its_checkpoints_are_taken_and_changed_ones_refused(world):
    stopped(world)
    old = signer_of(world)
    new = generate()
    with Ledger.open(world.ledger, old) as ledger:
        ledger.rotate_key(NoteSigner(old.name, new), now=int(time.time()))
    (world.root / "ledger.key").unlink()
    (world.root / "ledger.pub").unlink()
    save_private_key(world.root / "ledger.key", new)
    kept = (checkpoint(world, 4) / STATE).read_bytes()
    changed_states(checkpoint(world, 4), CHANGES["model"])
    with pytest.raises(PinRefused, match="STATE_CHANGED"):
        Trainer(world, resume=True)
    gc.collect()
    (checkpoint(world, 4) / STATE).write_bytes(kept)
    trainer = start(world, resume=True)
    assert trainer.private.prepared.start_step == 4
    assert (world.root / "ledger.pub").read_text().split() == [NoteSigner(old.name, new).vkey, old.vkey], "as fsck wants it"
    run_to(trainer, 6, save_at=(6,))
    trainer.close()
    pinned_anew(world, checkpoint(world, 6), old)
    with pytest.raises(PinRefused, match="UNSIGNED"):
        Trainer(world, resume=True)
    gc.collect()
    shutil.rmtree(checkpoint(world, 6))
    trainer = start(world, resume=True)
    run_to(trainer, 8)
    trainer.private.export(world.root / "export")
    trainer.close()
    assert verify_export(world.root / "export", [NoteSigner(old.name, new).vkey]).verdict == "FULL"


# --- what else lies beside the ledger -----------------------------------------------------


def test_the_keys_of_earlier_draws_are_those_that_the_run_wrote(tmp_path):
    """Others would count other draws, so that somebody could be drawn more often than they signed."""
    world = make_world(
        tmp_path, per_class=2, steps=8, rate="0.5", template_extra={"max_occurrences": 2}, policy_extra="redo_steps = 8"
    )
    stopped(world)
    sealed = world.root / "ledger.db.sealed"
    whole = sealed.read_bytes()
    with Ledger.open(world.ledger) as ledger:
        pin, rows = open_pinned(whole, "dptrain.draws/1", ledger.state.keys)
    forged = sign_pinned("dptrain.draws/1", pin, [[0, bytes(32)]], NoteSigner(pin.origin, generate()))
    swapped = whole.replace(rows[0][1], bytes(32))
    assert swapped != whole
    for data in (forged, swapped, whole[:-1], b"{}", (checkpoint(world, 4) / PIN).read_bytes()):
        sealed.write_bytes(data)
        trainer = Trainer(world, resume=True)
        with pytest.raises(ResumeRefused) as caught:
            trainer.begin()
        assert caught.value.code == "SEALED_STORE" and "start a new run" in caught.value.sentence
        trainer.close()
    sealed.write_bytes(whole)
    start(world, resume=True).begin().close()


def test_an_owner_who_is_put_in_the_place_of_the_corpus_owner_is_refused(world):
    """Policy and registry word for word, every signature by another key: whoever holds it could withdraw and enrol anybody."""
    stopped(world)
    mallory = generate()
    save_public_key(world.root / "owner.pub", public_bytes(mallory), "owner")
    payload, _ = signed_file.read(world.root / "policy.cose")
    signed_file.write(
        world.root / "policy.cose", payload, sign1.sign(payload, mallory, contributor="owner", typ=sign1.TYP_POLICY)
    )
    registry = world.root / "registry.cbor"
    entries = [entry for entry, _ in split(registry.read_bytes())]
    signed = [(entry, sign1.sign(entry, mallory, contributor="owner", typ=sign1.TYP_REGISTRY)) for entry in entries]
    registry.write_bytes(join(signed))
    size = rows_of(world.ledger)
    with pytest.raises(ResumeRefused) as caught:
        Trainer(world, resume=True)
    assert caught.value.code == "ANOTHER_RUN" and "key of the corpus owner" in caught.value.sentence
    assert rows_of(world.ledger) == size


def test_a_public_key_file_that_names_another_key_is_refused(world):
    stopped(world)
    public = world.root / "ledger.pub"
    public.write_text(NoteSigner(signer_of(world).name, generate()).vkey + "\n")
    with pytest.raises(ResumeRefused) as caught:
        Trainer(world, resume=True)
    assert caught.value.code == "PUBLIC_KEY" and signer_of(world).vkey in caught.value.sentence
    gc.collect()
    public.unlink()
    Trainer(world, resume=True).close()
    assert public.read_text().split() == [signer_of(world).vkey]
