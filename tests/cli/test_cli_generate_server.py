"""`dptrain generate` with its budget in a PostgreSQL database: runs of two processes share it, and no password is in sight."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dptrain.inference.invisibleink.retrieval import CORPUS
from ledger.budget.log import BudgetLog
from ledger.storage.place import Place
from tests.worlds.postgres import Cluster, require_server
from tests.worlds.programs import started, told
from tests.worlds.text_runs import lines_of, write_corpus, write_queries, write_world


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    require_server()
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def url(server, shell, request) -> str:
    return f"{server.url()}?schema=g{abs(hash(request.node.name)) % 10**8}"


def at_once(folder: Path, *typed: list[str]) -> list[int]:
    """Runs commands at the same time; returns their exit codes."""
    running = [started(folder, words) for words in typed]
    for process in running:
        process.join()
    assert all(process.exitcode in (0, 1) for process in running), [told(folder, process) for process in running]
    return [process.exitcode for process in running]


def test_two_processes_that_share_a_budget_on_a_server_make_as_many_texts_as_it_holds(shell, url):
    typed = [*write_world(shell.directory, 15), "--budget", url, "--state", "state"]
    told = shell.json(*typed, "--out", "one", "--texts", "1")
    assert told["texts"] == 1 and told["budget"].startswith("postgresql://tester@127.0.0.1")
    assert shell.json(*typed, "--plan")["texts_left"] == 4
    at_once(shell.directory, [*typed, "--out", "one"], [*typed, "--out", "two"])
    texts = [one for name in ("one", "two") for one in lines_of(shell.directory / name / "texts.jsonl")]
    assert len(texts) == 5, "each of 5 batches pays for one text, whichever process made it"
    again = shell.json(*typed, "--out", "three", code=1)
    assert (again["texts"], again["exhausted"]) == (0, True)
    for name in ("one", "two", "three"):
        found = shell.json("ledger", "verify", f"{name}/export", "--key", f"{name}/budget.pub")
        assert found["verdict"].startswith("FULL")
    assert found["reserves"] == 5
    assert {path.name for path in (shell.directory / "state").iterdir()} >= {"ledger.key", "ledger.pub", "ledger.salt"}


def test_two_processes_that_begin_a_budget_at_the_same_time_make_one(shell, url):
    typed = [*write_world(shell.directory, 15), "--budget", url, "--state", "state"]
    at_once(shell.directory, [*typed, "--out", "one"], [*typed, "--out", "two"])
    paths = [shell.directory / name / "texts.jsonl" for name in ("one", "two")]
    assert sum(len(lines_of(path)) for path in paths if path.exists()) == 5
    assert shell.json(*typed, "--plan")["texts_left"] == 0


def test_a_server_that_is_down_is_no_new_budget_and_its_run_goes_on_when_it_is_back(shell, server, url):
    world = write_world(shell.directory, 15)
    typed, down = ([*world, "--budget", one, "--state", "state"] for one in (url, url.replace(f":{server.port}/", ":9/")))
    shell.json(*typed, "--out", "one", "--texts", "1")
    salt = shell.directory / "state/ledger.salt"
    kept, names = salt.read_bytes(), sorted(path.name for path in salt.parent.iterdir())
    for lost in (False, True):
        if lost:
            salt.unlink()
        for more in (["--out", "one"], ["--out", "two"], ["--plan"]):
            said = shell.json(*down, *more, code=1)
            assert said["error"]["code"] == "CONNECTION" and "restore the connection" in str(said)
    assert not salt.exists() and not (shell.directory / "one/budget.salt").exists()
    assert shell.json(*typed, "--out", "one", code=1)["error"]["code"] == "SALT"
    salt.write_bytes(kept)
    salt.chmod(0o600)
    shell.json(*typed, "--out", "one")
    assert len(lines_of(shell.directory / "one/texts.jsonl")) == 5
    assert sorted(path.name for path in salt.parent.iterdir()) == names


def test_two_processes_that_ask_one_corpus_are_answered_as_often_as_it_pays(shell, url):
    typed = [*write_corpus(shell.directory), "--budget", url, "--state", "state"]
    shell.run(*typed, "--out", "one", "--one")
    write_queries(shell.directory / "queries.jsonl", {f"q{number}": "tea" for number in range(4)})
    codes = at_once(shell.directory, [*typed, "--out", "two"], [*typed, "--out", "three"])
    assert 1 in codes
    texts = [one for name in ("two", "three") for one in lines_of(shell.directory / name / "texts.jsonl")]
    assert len(texts) == 2, "the corpus pays for 3 queries, and one was asked before"
    with BudgetLog.open(Place.of(url, shell.directory / "state"), read_only=True) as log:
        assert log.state.spent(log.account(CORPUS)) <= log.header.cap("corpus")
    assert shell.json(*typed, "--plan")["queries_left"] == 0


def test_the_password_of_a_budget_is_in_no_file_and_no_answer(shell, url, server):
    typed = [*write_world(shell.directory), "--budget", url, "--state", "state", "--out", "run"]
    shown = [shell.run(*typed).output, shell.run(*typed, "--json").output, shell.run(*typed, "--plan").output]
    shown += [shell.run(*typed, "--records", "2", code=1).output]
    files = [path for place in ("run", "state") for path in (shell.directory / place).rglob("*") if path.is_file()]
    assert len(files) > 8
    assert server.password not in "".join(shown)
    assert not [path for path in files if server.password.encode() in path.read_bytes()]


def test_a_budget_on_a_server_asks_for_a_state_directory_and_a_file_takes_none(shell, url):
    typed = [*write_world(shell.directory), "--out", "run"]
    assert "--state" in shell.json(*typed, "--budget", url, code=2)["error"]["sentence"]
    assert "beside it" in shell.json(*typed, "--budget", "b.db", "--state", "s", code=2)["error"]["sentence"]
    assert "--state goes with --budget" in shell.json(*typed, "--state", "s", code=2)["error"]["sentence"]
    assert "no place" in shell.json(*typed, "--budget", "ftp://there/b", code=2)["error"]["sentence"]
    assert shell.json(*typed, "--budget", "sqlite:///b.db")["texts"] == 3 and (shell.directory / "b.salt").exists()


def test_a_lost_salt_of_a_budget_on_a_server_is_not_made_anew(shell, url):
    typed = [*write_world(shell.directory), "--budget", url, "--state", "state"]
    shell.run(*typed, "--out", "one", "--texts", "1")
    (shell.directory / "state/ledger.salt").rename(shell.directory / "kept")
    assert shell.json(*typed, "--out", "two", code=1)["error"]["code"] == "SALT"
    (shell.directory / "kept").rename(shell.directory / "state/ledger.salt")
    assert shell.json(*typed, "--out", "two")["texts"] == 2
