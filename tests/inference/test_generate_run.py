"""A run of texts: paid for before the model runs, whole in its folder or not at all, and going on where it ended."""

import fcntl
import json
import os
import stat
import threading
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from dptrain.errors import ConfigError, NotPrivateUse, ResumeRefused
from dptrain.inference.invisibleink import InvisibleInk, Plan, Task
from dptrain.inference.invisibleink.pool import Pool
from dptrain.inference.invisibleink.references import References
from dptrain.inference.invisibleink.run import Purse, Run, Setting, purse
from dptrain.inference.invisibleink.run.models import digest_of, load
from dptrain.inference.invisibleink.run.run import prepared
from ledger.budget import mark
from ledger.budget.audit import verify_budget
from ledger.budget.log import BudgetLog, is_log
from ledger.errors import AccountantError, LeafRefused, LedgerBusy, LedgerCorrupt, StorageFailed
from ledger.storage.place import Place
from tests.worlds.text_runs import SALT, lines_of, model_folder, spent_by, write_labels, write_references

TASK = Task("Say it.", "[[Of {reference}: ]]Say it.", 20)
PLAN = Plan.for_epsilon(8.0, delta=1e-6, batch=3, tokens=6)
NAMED = {"name": "tiny", "sha256": "00", "dtype": "float32"}


class Broken(Exception):
    """What a machine does that fails."""


@contextmanager
def opened(folder: Path, *, rows="refs.jsonl", plan=PLAN, task=TASK, named=NAMED, log=None, labels=None, words=None):
    """Opens the run in ``folder / "run"`` as the command does."""
    run = prepared(folder / "run")
    purse = Purse.of(run, log)
    salt = purse.salt()
    references = References.read(folder / rows, salt=salt, labels=labels)
    with purse.open(plan, references, salt, epsilon=8.0) as budget:
        told = {"name": str(purse.log), "log_key": budget.header.log_vkey}
        setting = Setting.of(task, plan, references, task_name="t", model=named, budget=told, words=words)
        with Run(run, setting, Pool(references, plan, budget, salt), purse) as found:
            yield found


@cache
def loaded():
    return load(str(model_folder()))[:2]


def ink(plan=PLAN, task=TASK):
    return InvisibleInk(*loaded(), task, plan)


@pytest.fixture
def world(tmp_path):
    write_references(tmp_path / "refs.jsonl", 10)
    return tmp_path



def test_every_batch_makes_one_text_and_the_export_verifies_under_the_key_beside_it(world):
    with opened(world) as run:
        made = run.generate(ink())
        run.finish()
    assert (made.texts, made.new, made.lost, made.exhausted, made.stopped) == (3, 3, 0, False, False)
    texts = lines_of(world / "run/texts.jsonl")
    assert [sorted(one) for one in texts] == [["finish", "label", "number", "text", "tokens"]] * 3
    assert [one["number"] for one in texts] == [1, 2, 3]
    assert {one["finish"] for one in texts} <= {"stop", "length"}
    key = (world / "run/budget.pub").read_text().strip()
    found = verify_budget(world / "run/export", [key])
    assert found.verdict.startswith("FULL") and (found.reserves, found.open) == (3, 0)


def test_the_folder_tells_no_id_of_a_reference_and_the_salt_is_for_its_owner_alone(world):
    with opened(world) as run:
        run.generate(ink())
        run.finish()
    files = [path for path in (world / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if b'"r4"' in path.read_bytes()]
    assert stat.S_IMODE((world / "run/budget.salt").stat().st_mode) == 0o600
    assert stat.S_IMODE((world / "run/budget.key").stat().st_mode) == 0o600


def test_the_file_of_a_run_has_all_public_numbers(world):
    with opened(world):
        pass
    told = json.loads((world / "run/run.json").read_text())
    assert told["plan"]["clip"] == PLAN.clip and told["plan"]["nano_rho_per_token"] == PLAN.nano_rho
    assert {"batch", "tokens", "tau", "k", "delta", "adjacency", "records", "epsilon"} <= told["plan"].keys()
    assert told["task"]["sha256"] == TASK.digest and told["model"] == NAMED
    assert told["references"]["count"] == 10


def test_a_text_is_paid_for_by_all_its_references_before_the_first_forward_pass(world):
    seen = []
    with opened(world) as run:
        wanted = ink()
        wanted.check()
        forward = wanted.model.forward

        def watched(*args, **how):
            seen.append(run.log.state.reserves)
            return forward(*args, **how)

        with patch.object(wanted.model, "forward", watched):
            run.generate(wanted, texts=1)
    assert seen and set(seen) == {1}


def test_the_same_run_goes_on_behind_its_last_text(world):
    with opened(world) as run:
        run.generate(ink(), texts=1)
    first = lines_of(world / "run/texts.jsonl")
    with opened(world) as run:
        made = run.generate(ink())
    assert (made.texts, made.new) == (3, 2)
    assert lines_of(world / "run/texts.jsonl")[:1] == first
    with opened(world) as run:
        assert run.generate(ink()).new == 0


def crash(world, at):
    """Begins a text whose model breaks at a forward pass."""
    with opened(world) as run:
        wanted = ink()
        wanted.check()
        forward, calls = wanted.model.forward, []

        def breaks(*args, **how):
            calls.append(None)
            if len(calls) > at:
                raise Broken
            return forward(*args, **how)

        with patch.object(wanted.model, "forward", breaks), pytest.raises(Broken):
            run.generate(wanted)


def test_a_text_that_a_crash_cut_is_spent_and_its_batch_is_not_drawn_from_again(world):
    crash(world, at=8)
    assert len(lines_of(world / "run/texts.jsonl")) == 1
    with opened(world) as run:
        made = run.generate(ink())
        spent = spent_by(run.log, [one.unit for one in run.pool.references])
        open_ = list(run.log.state.open.values())
    assert (made.texts, made.new, made.lost, made.exhausted) == (2, 1, 1, True)
    assert [leaf.releases for leaf in open_] == [PLAN.tokens]
    assert sorted(spent)[-3:] == [PLAN.tokens * PLAN.nano_rho] * 3
    assert [one["number"] for one in lines_of(world / "run/texts.jsonl")] == [1, 3]


def test_a_line_that_a_crash_cut_is_taken_away_and_no_other(world):
    with opened(world) as run:
        run.generate(ink(), texts=2)
    path = world / "run/texts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with opened(world) as run:
        assert (run.texts.whole, run.texts.lost) == (1, 1)
    assert path.read_bytes() == whole[: whole.index(b"\n") + 1]
    path.write_bytes(whole + b'{"number": "x"}\n')
    with pytest.raises(ResumeRefused, match="line 3") as refused, opened(world):
        pass
    assert refused.value.code == "TEXTS"


def test_a_text_is_synced_before_it_counts(world):
    synced, fsync = [], os.fsync
    with opened(world) as run:
        size = (world / "run/texts.jsonl").stat

        def sync(descriptor):
            synced.append(size().st_size)
            return fsync(descriptor)

        with patch("dptrain.inference.invisibleink.run.texts.os.fsync", sync):
            run.generate(ink(), texts=1)
        assert synced[-1] == size().st_size > 0


def test_a_text_that_began_and_was_not_paid_for_is_not_lost(world):
    def coupled(*args, **how):
        raise NotPrivateUse("ROWS_COUPLED", "a row moved another")

    with opened(world) as run:
        with patch("dptrain.inference.invisibleink.generator.check_rows", coupled), pytest.raises(NotPrivateUse):
            run.generate(ink())
        run.log.refresh()
        assert run.texts.lost == 0 and not any(account.spent for account in run.log.state.accounts.values())
    with opened(world) as run:
        assert run.generate(ink()).texts == 3


def test_a_text_whose_contribution_is_withdrawn_before_it_is_paid_for_comes_of_the_next_batch(world):
    with opened(world) as run:
        plain, withdrawn = InvisibleInk.stream, []

        def slower(self, texts, meter, **how):
            if not withdrawn:
                withdrawn.append(meter.units[0])
                with BudgetLog.open(run.log.place) as other:  # as `ledger withdraw` in another process
                    other.withdraw(meter.units[0])
            return plain(self, texts, meter, **how)

        with patch.object(InvisibleInk, "stream", slower):
            made = run.generate(ink())
        assert (made.texts, made.lost, made.exhausted) == (2, 0, True)
        assert spent_by(run.log, withdrawn) == [0]


@pytest.mark.one_in(99)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError, LeafRefused], ids=lambda kind: kind.__name__)
def test_whatever_fails_before_a_text_is_paid_for_loses_no_text(world, kind):
    def fails(self, *args, **how):
        raise kind("RHO", "a token costs more")

    with opened(world) as run:
        with patch.object(BudgetLog, "reserve_text", fails), pytest.raises(kind):
            run.generate(ink())
        assert (run.texts.begun, run.texts.lost) == (0, 0)
    with opened(world) as run:
        assert (run.texts.lost, run.generate(ink()).texts) == (0, 3)


def test_what_fails_once_a_text_is_paid_for_is_noted_as_lost(world):
    with opened(world) as run:
        plain = run.log.reserve_text

        def fails(*args, **how):
            plain(*args, **how)
            raise KeyboardInterrupt

        with patch.object(run.log, "reserve_text", fails), pytest.raises(KeyboardInterrupt):
            run.generate(ink())
        assert run.texts.lost == 1 == len(run.log.state.open)


def test_deleting_the_texts_makes_no_new_money(world):
    with opened(world) as run:
        run.generate(ink())
    (world / "run/texts.jsonl").unlink()
    (world / "run/begun.json").unlink()
    with opened(world) as run:
        made = run.generate(ink())
    assert (made.texts, made.exhausted) == (0, True)


def test_deleting_the_run_makes_no_new_money_where_the_log_lies_elsewhere(world):
    log = world / "safe.db"
    with opened(world, log=log) as run:
        run.generate(ink())
    for path in sorted((world / "run").rglob("*"), reverse=True):
        path.unlink()
    with opened(world, log=log) as run:
        made = run.generate(ink())
    assert (made.texts, made.exhausted) == (0, True)


def test_another_salt_beside_the_same_log_is_refused_because_ids_would_be_fresh_units(world):
    with opened(world):
        pass
    salt = world / "run/budget.salt"
    kept = salt.read_bytes()
    salt.unlink()
    with pytest.raises(ResumeRefused, match="spent nothing") as refused, opened(world):
        pass
    assert refused.value.code == "SALT" and not salt.exists()
    salt.write_bytes(SALT)
    salt.chmod(0o600)
    with pytest.raises(ResumeRefused, match="another salt") as refused, opened(world):
        pass
    assert refused.value.code == "SALT"
    salt.write_bytes(kept)
    salt.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read") as open_to_all, opened(world):
        pass
    assert open_to_all.value.code == "SALT"


UNREACHED = "postgresql://nobody@127.0.0.1:9/texts"


@pytest.mark.parametrize("salted", [True, False])
def test_while_a_server_is_down_its_log_does_not_count_as_absent(world, salted):
    """Else a second salt would be made, and a key, and somebody would be told to do away with the mark of the log."""
    pytest.importorskip("psycopg")
    state = world / "state"
    found = Purse.of(world, UNREACHED, None, state)
    if salted:
        state.mkdir()
        found.salt_file.write_bytes(SALT)
        found.salt_file.chmod(0o600)
    kept = sorted(state.glob("*"))
    references = References.read(world / "refs.jsonl", salt=SALT)
    asked = [lambda: found.exists, found.cites, lambda: found.open(PLAN, references, SALT, epsilon=8.0)]
    for ask in asked if salted else [*asked, found.salt, lambda: found.salt(make=False)]:
        with pytest.raises(StorageFailed, match=r"CONNECTION.*restore the connection"):
            ask()
        assert sorted(state.glob("*")) == kept, "nothing was made"


def test_what_is_no_log_is_told_from_what_nobody_can_read(tmp_path):
    nothing, strange = tmp_path / "none.db", tmp_path / "strange.db"
    assert not is_log(Place.of(nothing))
    strange.write_bytes(b"what is this?" * 100)
    with pytest.raises(LedgerCorrupt):
        is_log(Place.of(strange))


def test_who_asks_what_a_log_counts_waits_until_it_is_made(world, monkeypatch):
    references, found, tables = References.read(world / "refs.jsonl", salt=SALT), Purse.of(world), threading.Event()
    taken_over = mark.taken_over

    def late(place):
        tables.set()
        time.sleep(0.3)
        return taken_over(place)

    monkeypatch.setattr(mark, "taken_over", late)
    assert found.cites() is None
    maker = threading.Thread(target=lambda: found.open(PLAN, references, SALT, epsilon=8.0).close())
    maker.start()
    try:
        assert tables.wait(60) and found.exists
        assert found.cites() == ()
    finally:
        maker.join()


def test_who_holds_the_directory_of_a_log_keeps_nobody_waiting_for_ever(world, monkeypatch):
    monkeypatch.setattr(purse, "ALONE_SECONDS", 0.2)
    references, found, errors = References.read(world / "refs.jsonl", salt=SALT), Purse.of(world), []

    def asking():
        for ask in (found.cites, lambda: found.open(PLAN, references, SALT, epsilon=8.0)):
            try:
                ask()
            except LedgerBusy as error:
                errors.append(str(error))

    held = os.open(world, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        one = threading.Thread(target=asking, daemon=True)
        one.start()
        one.join(20)
        assert len(errors) == 2 and all("LOCKED" in one and str(world) in one and "end what hangs" in one for one in errors)
    finally:
        os.close(held)
    assert not found.exists
    found.open(PLAN, references, SALT, epsilon=8.0).close()


def test_a_salt_is_there_whole_or_not_at_all_and_replaces_none(tmp_path, monkeypatch):
    found = Purse.of(tmp_path)

    def killed(*given):
        raise Broken

    for name in ("fdopen", "fsync", "link"):
        with monkeypatch.context() as broken, pytest.raises(Broken):
            broken.setattr(os, name, killed)
            found.salt()
        assert not found.salt_file.exists()
    fresh = purse.fresh_salt

    def second():
        found.salt_file.write_bytes(SALT)  # of another process, in this moment
        found.salt_file.chmod(0o600)
        return fresh()

    monkeypatch.setattr(purse, "fresh_salt", second)
    assert found.salt() == SALT == found.salt_file.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["budget.salt"]


def test_a_log_and_a_salt_that_another_process_makes_in_one_moment_go_together(tmp_path, monkeypatch):
    def made(self):
        self.salt_file.write_bytes(SALT)
        self.salt_file.chmod(0o600)
        return True

    monkeypatch.setattr(Purse, "exists", property(made))
    assert Purse.of(tmp_path).salt() == SALT


@pytest.mark.parametrize("made", [{}, {"records": 12}, {"adjacency": "replace-one"}], ids=str)
def test_a_log_is_for_one_adjacency_and_one_number_of_records_because_rho_under_two_has_no_sum(world, made):
    def plan(**how):
        return Plan.for_epsilon(4.0, delta=1e-6, batch=3, tokens=6, **how)

    with opened(world, log=world / "safe.db", plan=plan(**made)) as run:
        run.generate(ink(plan(**made)), texts=1)
    for path in (world / "run").iterdir():
        path.unlink()
    for other in ({}, {"records": 1, "adjacency": "zero-logits"}, {"records": 12}, {"adjacency": "replace-one"}):
        if other != made:
            another = opened(world, log=world / "safe.db", plan=plan(**other))
            with pytest.raises(ConfigError, match="no sum") as refused, another:
                pass
            assert refused.value.code == "BUDGET"
    with opened(world, log=world / "safe.db", plan=Plan.for_epsilon(2.0, delta=1e-6, batch=3, tokens=6, **made)):
        pass


@pytest.mark.parametrize(
    "code, change",
    [
        ("RUN_PLAN", {"plan": Plan.for_epsilon(7.0, delta=1e-6, batch=3, tokens=6)}),
        ("RUN_TASK", {"task": Task("Say it!", "[[Of {reference}: ]]Say it!", 20)}),
        ("RUN_MODEL", {"named": {**NAMED, "sha256": "01"}}),
        ("RUN_REFERENCES", {"rows": "more.jsonl"}),
        ("RUN_WORDS", {"words": {"mood": "calm"}}),
    ],
)
def test_another_plan_task_model_or_references_is_refused_by_name(world, code, change):
    write_references(world / "more.jsonl", 11)
    with opened(world):
        pass
    before = (world / "run/run.json").read_bytes()
    with pytest.raises(ResumeRefused, match="begin another") as refused, opened(world, **change):
        pass
    assert refused.value.code == code
    assert (world / "run/run.json").read_bytes() == before
    with opened(world, named={**NAMED, "name": "the same elsewhere"}):
        pass


def test_two_processes_do_not_write_into_one_folder(world):
    with opened(world), pytest.raises(ResumeRefused) as refused, opened(world):
        pass
    assert refused.value.code == "RUN_OPEN"


def test_a_folder_of_something_else_is_refused(world):
    (world / "run").mkdir()
    (world / "run/thesis.txt").write_text("mine")
    with pytest.raises(ResumeRefused) as refused:
        prepared(world / "run")
    assert refused.value.code == "RUN_FOLDER"
    (world / "run/thesis.txt").unlink()
    (world / "run/.lock").touch()  # all that a run leaves that was killed right then
    assert prepared(world / "run") == world / "run"


def test_a_finished_text_gives_back_what_was_never_computed(world):
    found, words, _ = load(str(model_folder(ends=True)))
    long = Plan.for_epsilon(8.0, delta=1e-6, batch=3, tokens=40)
    with opened(world, plan=long) as run:
        run.generate(InvisibleInk(found, words, TASK, long))
        run.log.refresh()
        spent = [account.spent for account in run.log.state.accounts.values()]
    tokens = [one["tokens"] for one in lines_of(world / "run/texts.jsonl")]
    assert min(tokens) < 40
    assert sorted(spent) == sorted(count * long.nano_rho for count in tokens for _ in range(3))


def test_labels_take_turns_and_each_has_texts_of_its_own_references(world):
    listed = write_labels(world / "labels.csv", labels=("calm", "calm", "loud"))
    task = Task("Say {mood}.", "[[Of {reference}: ]]Say {mood}.", 20, labels=("mood",))
    plan = Plan.for_epsilon(8.0, delta=1e-6, batch=2, tokens=4)
    with opened(world, task=task, plan=plan, labels=listed) as run:
        assert run.pool.sizes == {"calm": 3, "loud": 1}
        made = run.generate(ink(plan, task))
    assert made.texts == 4
    assert [one["label"] for one in lines_of(world / "run/texts.jsonl")] == ["calm", "loud", "calm", "calm"]


def test_a_word_that_nothing_says_is_told_before_anything_is_paid(world):
    task = Task("Say {mood}.", "[[Of {reference}: ]]Say {mood}.", 20, labels=("mood",))
    with opened(world, task=task) as run:
        with pytest.raises(ConfigError) as refused:
            run.generate(ink(task=task))
        assert refused.value.code == "LABELS" and run.log.state.reserves == 0 and run.texts.lost == 0


def test_a_text_that_is_stopped_is_spent_for_what_was_computed_and_is_not_written(world):
    pieces = []
    with opened(world) as run:
        made = run.generate(ink(), stop=lambda: len(pieces) >= 2, piece=pieces.append)
        run.log.refresh()
        spent = [account.spent for account in run.log.state.accounts.values()]
    assert made.stopped and (made.texts, made.lost) == (0, 1)
    assert spent == [2 * PLAN.nano_rho] * 3
    assert not lines_of(world / "run/texts.jsonl")


def test_pieces_make_the_text_that_is_written(world):
    pieces = []
    with opened(world) as run:
        run.generate(ink(), texts=1, piece=pieces.append)
    assert "".join(pieces) == lines_of(world / "run/texts.jsonl")[0]["text"]


def test_the_numbers_of_a_signed_rule_are_those_of_the_plan_and_a_text_that_costs_more_is_refused():
    from attest.policy.classes import DecodingRule

    numbers = {"references": 5, "clip_norm_micro": 500_000, "temperature_micro": 1_000_000, "tokens": 100, "top_k": 40}
    rule = DecodingRule(max_rho_nano=500_000_100, **numbers)
    plan = Plan.of_rule(rule, delta=1e-6)
    assert (plan.batch, plan.clip, plan.tau, plan.tokens, plan.k, plan.delta) == (5, 0.5, 1.0, 100, 40, 1e-6)
    assert rule.text_nano == 500_000_000 and plan.tokens * plan.nano_rho == 500_000_100  # rounding is paid for
    with pytest.raises(AccountantError, match=r"max_rho = 0\.500000100 or more") as refused:
        Plan.of_rule(DecodingRule(max_rho_nano=500_000_099, **numbers), delta=1e-6)
    assert refused.value.code == "CAP"


def test_a_model_is_loaded_from_its_folder_and_named_by_what_it_computes(tmp_path):
    one, words, told = load(str(model_folder()))
    assert told["sha256"] == digest_of(one, words) == load(str(model_folder()))[2]["sha256"]
    assert told["sha256"] != load(str(model_folder()), dtype="bfloat16")[2]["sha256"]
    assert told["sha256"] != load(str(model_folder(ends=True)))[2]["sha256"]
    one.model.layers[0].input_layernorm.weight.data[0] += 1e-6
    assert digest_of(one, words) != told["sha256"]
    for source, how, code in (
        (str(tmp_path / "none"), {}, "MODEL"), (str(tmp_path), {}, "MODEL"),
        (str(model_folder()), {"dtype": "int8"}, "DTYPE"), (str(model_folder()), {"device": "cuda:99"}, "DEVICE"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as refused:
            load(source, **how)
        assert refused.value.code == code


def test_a_log_that_is_no_budget_of_contributions_is_refused(world):
    from tests.worlds.budgets import created

    log = world / "other.db"
    created(log).close()
    log.with_suffix(".salt").write_bytes(SALT)
    log.with_suffix(".salt").chmod(0o600)
    with pytest.raises(ConfigError, match="dptrain generate") as refused, opened(world, log=log):
        pass
    assert refused.value.code == "BUDGET"
    with BudgetLog.open(Place.of(log)) as found:
        assert found.state.reserves == 0
