"""What a run keeps secret beside its ledger until it is over goes with its end, or with what opens the ledger next."""

import shlex
import subprocess

import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import ResumeRefused  # noqa: E402
from dptrain.record.recorder import Recorder  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.worlds.commands import run_command  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

NOISE = (
    'disclosure = "occurrences_public"\nsampling = { order = "cyclic" }\n'
    f'noise = {{ family = "banded_toeplitz", parameters = {{ bands = 2, coefficients = [{1 << 20}, {1 << 19}] }} }}\n'
)
SECRETS = {
    ".sealed": {"rate": "0.5", "template_extra": {"max_occurrences": 2}},
    ".noise": {"rate": '"1/2"', "policy_extra": NOISE},
}


class Killed(BaseException):
    """A process that is killed."""


def killed_behind_its_last_leaf(path, monkeypatch, kind):
    """Returns the world and the secret of a run whose process ended between the CLOSE leaf and the deletion."""
    world = make_world(path, **{"per_class": 1, "steps": 2} | SECRETS[kind])
    trainer = Trainer(world)

    def kill(recorder) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "delete_secrets", kill)
        with pytest.raises(Killed):
            trainer.run(save_every=1)
        trainer.close()
    left = world.ledger.with_name(world.ledger.name + kind)
    assert left.exists()
    return world, left


def fsck(world, code: int) -> str:
    found = run_command(["ledger", "fsck", world.ledger])
    assert found.exit_code == code, found.output
    return " ".join(found.output.split())


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_that_a_killed_run_left_is_named_by_fsck_and_deleted_with_a_word_by_who_resumes(
    tmp_path, monkeypatch, kind
) -> None:
    world, left = killed_behind_its_last_leaf(tmp_path, monkeypatch, kind)
    assert "SECRET_LEFT" in fsck(world, 1)
    with pytest.warns(UserWarning, match=f"deleted .*{left.name}"), pytest.raises(ResumeRefused, match="FINISHED"):
        Trainer(world, resume=True)
    assert not left.exists()
    fsck(world, 0)


def test_the_command_that_fsck_names_deletes_it(tmp_path, monkeypatch) -> None:
    world, left = killed_behind_its_last_leaf(tmp_path / "a place", monkeypatch, ".noise")
    with Ledger.open(world.ledger, read_only=True) as ledger:
        (finding,) = ledger.examine().findings
    assert (finding.code, finding.where) == ("SECRET_LEFT", str(left))
    command = shlex.split(finding.sentence.rpartition("delete it: ")[2])
    assert command[0] == "rm" and command[-1] == str(left)
    subprocess.run(command, check=True)
    assert not left.exists()
    fsck(world, 0)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_run_that_ends_leaves_none_and_one_that_is_not_over_is_whole_with_them(tmp_path, kind) -> None:
    world = make_world(tmp_path, **{"per_class": 1, "steps": 2} | SECRETS[kind])
    trainer = Trainer(world)
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 1:
            trainer.private.save()
            break
    trainer.close()
    left = world.ledger.with_name(world.ledger.name + kind)
    assert left.exists()
    fsck(world, 0)
    second = Trainer(world, resume=True)
    second.run()
    second.close()
    assert not left.exists()
    fsck(world, 0)
