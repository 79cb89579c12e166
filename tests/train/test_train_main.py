"""`dptrain train`: a whole run from a file, its resumption, and every kind of bad input as one line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageClassification

import dptrain.engine.prepared
import dptrain.engine.private_training
from attest import signed_file
from attest.registry import RegistryLog
from attest.withdrawal import Withdrawal, sign_withdrawal
from dptrain.data.workers import Workers
from dptrain.demo.public import TIERS
from dptrain.tasks.runconfig import RunConfig
from dptrain.tasks.runs import STAMP
from dptrain.train import main, print_outcome, train
from ledger.audit import verify_export
from ledger.log import Ledger
from tests.worlds.commands import run_command
from tests.worlds.digits import Digits
from tests.worlds.programs import ran

TrainJson = Callable[..., tuple[int, dict]]


def test_a_run_trains_saves_and_leaves_a_record_that_verifies(digits_world: Digits, train_json: TrainJson) -> None:
    code, result = train_json(digits_world.run)
    assert code == 0
    assert result["verdict"] == "FULL"
    assert result["private"] is True
    assert 0.0 <= result["accuracy"] <= 1.0
    assert [row["class"] for row in result["classes"]] == ["sensitive", "internal", "open"]
    assert [row["epsilon"] for row in result["classes"]] == pytest.approx([tier.epsilon for tier in TIERS], abs=1e-3)
    assert sum(row["admitted"] for row in result["classes"]) == 60
    key = (digits_world.root / "ledger.pub").read_text().split()
    assert verify_export(result["export"], key).verdict == "FULL"
    assert AutoModelForImageClassification.from_pretrained(result["model"]).config.num_labels == 10
    assert (digits_world.root / "ledger.db.checkpoints").is_dir()


def test_a_run_file_may_ask_for_workers(digits_world: Digits, train_json: TrainJson, monkeypatch: pytest.MonkeyPatch) -> None:
    digits_world.change_run('output = "out"', 'output = "out"\nworkers = 1\nprefetch = 3')
    given, original = [], Workers.__init__

    def made(self: Workers, *how: object) -> None:
        original(self, *how)
        given.append((how[:2], self.wait_ready(60)))

    monkeypatch.setattr(Workers, "__init__", made)
    code, result = train_json(digits_world.run)
    assert (code, result["verdict"], given) == (0, "FULL", [((1, 3), True)])


def test_A24_an_older_registry_than_one_that_was_used_is_refused_by_train(
    digits_world: Digits, train_json: TrainJson, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate saw the revocation; whoever cuts it off again, which takes no key, gets no run over this corpus."""
    root, made = digits_world.root, digits_world.made
    path = root / "registry.cbor"
    before = path.read_bytes()
    log = RegistryLog(path, made.keys["owner"])
    name = log.registry.contributors[0].name
    entries = len(log.registry.roots)
    log.revoke(name, at=made.now, now=made.now)
    gate = ["gate", str(root / "policy.cose"), str(root / "corpus"), "--owner-key", str(root / "keys" / "owner.pub"), "--json"]
    assert "KEY_REVOKED" in json.loads(run_command(gate).stdout)["refused"]
    path.write_bytes(before)
    code, answer = train_json(digits_world.run)
    assert code == 1 and answer["error"]["code"] == "REGISTRY_OLDER"
    assert f"has {entries} entries" in answer["error"]["sentence"]
    assert f"one with {entries + 1} entries" in answer["error"]["sentence"]
    assert not (root / "ledger.db").exists()


def test_nothing_that_is_printed_tells_of_training_losses(digits_world: Digits, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(digits_world.run)]) == 0
    printed = "".join(capsys.readouterr())
    assert "FULL" in printed
    assert "loss" not in printed.lower()
    assert "norm" not in printed.lower().replace("clip norm", "")


def test_an_interrupted_run_is_resumed(digits_world: Digits, train_json: TrainJson, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    save = dptrain.engine.private_training.PrivateTraining.save

    def save_and_fail(engine: dptrain.engine.private_training.PrivateTraining) -> Path:
        saved.append(save(engine))
        raise KeyboardInterrupt

    monkeypatch.setattr(dptrain.engine.private_training.PrivateTraining, "save", save_and_fail)
    with pytest.raises(KeyboardInterrupt):
        main([str(digits_world.run)])
    monkeypatch.undo()
    assert saved[0].name == "step-00000002"
    code, refused = train_json(digits_world.run)
    assert (code, refused["error"]["code"]) == (1, "LEDGER_EXISTS")
    code, result = train_json(digits_world.run, "--resume")
    assert (code, result["verdict"]) == (0, "FULL")
    assert result["classes"][0]["steps_charged"] >= 4


@pytest.mark.slow
def test_resuming_a_finished_run_is_one_line(digits_world: Digits, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(digits_world.run)]) == 0
    digits_world.change_run('output = "out"', 'output = "again"')
    capsys.readouterr()
    assert main([str(digits_world.run), "--resume"]) == 1
    assert_one_line(capsys.readouterr().err)


def test_a_comparison_run_is_stamped_and_makes_no_ledger(digits_world: Digits, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = train(RunConfig.load(digits_world.run), privacy=False)
    print_outcome(outcome)
    printed = capsys.readouterr()
    assert STAMP in printed.out and STAMP in printed.err
    assert not outcome.private and outcome.export is None
    assert (Path(outcome.model) / "NOT_PRIVATE").read_text().strip() == STAMP
    assert not (digits_world.root / "ledger.db").exists()


def test_a_comparison_run_learns_what_ordinary_training_would(digits_world: Digits) -> None:
    """Its gradient is that of the mean loss over the draw."""
    from dptrain.tasks.image_classification import build, per_example_loss
    from dptrain.tasks.runs import WithoutPrivacy

    config = RunConfig.load(digits_world.run)
    model, collate = build(config.model)
    run = WithoutPrivacy(config.data, microbatch=7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    _, _, steps = run.prepare(model, optimizer, collate)
    step = next(iter(steps))
    batches = []
    for rows in step:
        batches.append(dict(rows))
        run.backward(per_example_loss(model, rows), rows)
    found = model.classifier.weight.grad.clone()
    model.zero_grad()
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    per_example_loss(model, whole).mean().backward()
    assert torch.allclose(found, model.classifier.weight.grad, atol=1e-6)


def break_policy(world: Digits) -> None:
    (world.root / "policy.cose").write_bytes(b"\x00not a policy")


def leave_policy_unsigned(world: Digits) -> None:
    world.change_run('policy = "policy.cose"', 'policy = "policy.toml"')


def lose_policy(world: Digits) -> None:
    (world.root / "policy.cose").unlink()


def use_another_owner(world: Digits) -> None:
    world.change_run('owner_key = "keys/owner.pub"', 'owner_key = "keys/contributor-01.pub"')


def write_unknown_key(world: Digits) -> None:
    world.change_run("microbatch = 16", "microbatches = 16")


def ask_for_less_privacy(world: Digits) -> None:
    world.change_run("microbatch = 16", "noise_multiplier = 0.1")


def lose_corpus(world: Digits) -> None:
    world.change_run('corpus = "corpus"', 'corpus = "elsewhere"')


def corrupt_every_sequence(world: Digits) -> None:
    for path in (world.root / "corpus").glob("*.attest"):
        path.write_bytes(b"\xff" + path.read_bytes()[1:])


def lose_content(world: Digits) -> None:
    for path in (world.root / "corpus").glob("*.jsonl"):
        path.write_text("")


def lose_validation(world: Digits) -> None:
    (world.root / "validation.jsonl").unlink()


def use_another_size(world: Digits) -> None:
    world.change_run("pixel_max = 16", "image_size = 16")


def keep_an_old_export(world: Digits) -> None:
    (world.root / "out" / "export").mkdir(parents=True)


@pytest.mark.parametrize(
    "spoil",
    [
        break_policy, leave_policy_unsigned, lose_policy, use_another_owner, write_unknown_key, ask_for_less_privacy,
        lose_corpus, corrupt_every_sequence, lose_content, lose_validation, use_another_size, keep_an_old_export,
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_1(
    digits_world: Digits, capsys: pytest.CaptureFixture[str], spoil: Callable[[Digits], None]
) -> None:
    spoil(digits_world)
    assert main([str(digits_world.run)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert_one_line(printed.err)


def test_one_corrupt_sequence_does_not_stop_the_others(digits_world: Digits, train_json: TrainJson) -> None:
    victim = digits_world.root / "corpus" / "contributor-01.jsonl.attest"
    victim.write_bytes(b"\xff" + victim.read_bytes()[1:])
    code, result = train_json(digits_world.run)
    assert (code, result["verdict"]) == (0, "FULL")
    assert result["classes"][0]["admitted"] == 0
    assert result["refused"]


@pytest.mark.parametrize("program", [["-m", "dptrain", "train"], pytest.param(["-m", "dptrain.train"], marks=pytest.mark.slow)])
def test_the_ways_to_start_a_run_report_alike(digits_world: Digits, program: list[str]) -> None:
    digits_world.change_run('policy = "policy.cose"', 'policy = "policy.toml"')
    done = ran([*program, str(digits_world.run), "--json"], Path(__file__).parents[2])
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"]


@pytest.mark.slow
def test_accelerate_launches_a_run_and_a_kill_can_be_resumed(digits_world: Digits) -> None:
    root = Path(__file__).parents[2]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu", "-m", "dptrain.train"]
    environment = os.environ | {"PYTHONPATH": str(root)}
    child = subprocess.Popen(
        [*launch, str(digits_world.run)], env=environment, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    checkpoint = digits_world.root / "ledger.db.checkpoints" / "step-00000002"
    while not checkpoint.is_dir() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert checkpoint.is_dir()
    done = subprocess.run(
        [*launch, str(digits_world.run), "--resume", "--json"], env=environment, cwd=root, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "FULL"


def assert_one_line(text: str) -> None:
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    code, _, sentence = lines[0].partition(": ")
    assert code.replace("_", "").isupper() and sentence


@pytest.mark.slow
def test_a_run_file_makes_the_inbox_before_its_first_charge_and_takes_what_lies_there(
    digits_world: Digits, train_json: TrainJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = dptrain.engine.prepared.PreparedRun
    inbox, begin = digits_world.root / "ledger.db.withdrawals", engine.begin

    def dropped(self: dptrain.engine.prepared.PreparedRun) -> None:
        assert inbox.stat().st_mode & 0o777 == 0o700 and not (digits_world.root / "ledger.db").exists()
        digest = self.pool.slots[0].descriptor_hash
        withdrawal = Withdrawal(digest, self.policy.corpus, digits_world.made.now, "consent")
        payload, message = sign_withdrawal(withdrawal, digits_world.made.keys["owner"], signer="owner")
        signed_file.write(inbox / "w.cose", payload, message)
        begin(self)

    monkeypatch.setattr(engine, "begin", dropped)
    code, result = train_json(digits_world.run)
    assert (code, result["verdict"]) == (0, "FULL")
    assert (inbox / "w.cose.taken").exists()
    with Ledger.open(digits_world.root / "ledger.db") as ledger:
        assert len(ledger.state.withdrawals) == 1
        assert sum(row.pool_count for row in ledger.state.windows[0].classes) == 59, "before the first charge"


@pytest.mark.slow
def test_a_run_whose_ledger_is_deleted_ends_with_one_line_and_exit_code_1(
    digits_world: Digits, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = dptrain.engine.private_training.PrivateTraining
    save = engine.save

    def saved_and_deleted(self: dptrain.engine.private_training.PrivateTraining) -> Path:
        made = save(self)
        (digits_world.root / "ledger.db").unlink(missing_ok=True)
        return made

    monkeypatch.setattr(engine, "save", saved_and_deleted)
    assert main([str(digits_world.run)]) == 1
    printed = capsys.readouterr()
    assert_one_line(printed.err)
    assert printed.err.startswith("UNLINKED") and "FULL" not in printed.out
    assert not (digits_world.root / "out" / "export").exists()
    monkeypatch.undo()
    for suffix in ("-wal", "-shm"):
        (digits_world.root / f"ledger.db{suffix}").unlink(missing_ok=True)
    (digits_world.root / "ledger.db.rescued-1").rename(digits_world.root / "ledger.db")
    assert main([str(digits_world.run), "--resume"]) == 0
    assert "FULL" in capsys.readouterr().out
