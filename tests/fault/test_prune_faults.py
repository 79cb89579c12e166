"""Faults inside pruning: every system call of it fails, or the process dies there; the connection is cut at every message.

After each the ledger opens, every epsilon computed again; what was to go is all there or all gone, hashes, and bodies with
their attestations; and nothing that the ledger says has changed: not an epsilon, not a charge, not a withdrawal, not a root.
Then the operator prunes again where it did not happen, and the run goes on.
"""

import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.errors import LedgerError, RetentionRefused, StorageFailed
from ledger.log import Ledger
from ledger.storage.place import Place
from ledger.storage.sql.schema import TABLES
from tests.fault.scene import NOT_FILES
from tests.fault.server_scene import Proxy
from tests.fault.test_syscall_faults import CANNOT_FAIL, FAULTS, JOBS, MUTATING, spread
from tests.fault.tracing import HARNESS, Outcome, Writers, require_strace
from tests.worlds.ledgers import SIGNER, Driver
from tests.worlds.retained_ledgers import ready_to_prune, vouched_and_older

LIVES = ("prune", "drop_hashes")
ATTEMPTS = 200


def told(ledger: Ledger) -> dict[str, Any]:
    """What a ledger says of its run, and nothing of how it is stored."""
    run = ledger.state
    return {
        "epsilons": {hash_: run.epsilon(found) for hash_, found in run.contributions.items()},
        "charged": (run.charged_phases, run.position, run.attempt, run.spends),
        "pools": [run.register.pool(place) for place in range(2)],
        "withdrawals": run.withdrawals,
        "epochs": run.epochs,
        "roots": {size: ledger._file.root_at(size) for size in ledger._file.checkpoints},
        "notes": ledger._file.checkpoints,
        "tree": (ledger.size, ledger.root),
    }


Held = tuple[int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def held(ledger: Ledger) -> Held:
    """What is gone: up to where, bodies and hashes; and what is there: attestations and terms."""
    with ledger._file.store.snapshot() as snapshot:
        found = list(snapshot.rows())
        signed = tuple(seq for seq, _ in snapshot.attestations())
        terms = tuple(number for number, data in snapshot.terms() if data)
    bodies, hashes = (tuple(row.seq for row in found if not getattr(row, name)) for name in ("body", "leaf_hash"))
    return ledger.pruned_before, ledger.hashes_before, bodies, hashes, signed, terms


@dataclass(frozen=True, slots=True)
class Before:
    """A ledger before a life, what it says, and what is gone of it before and after."""

    directory: Path
    said: dict[str, Any]
    whole: Held
    lean: Held
    calls: Counter[str]


class Scene:
    """Both lives, once lived, with their calls counted."""

    def __init__(self, writers: Writers, folder: Path) -> None:
        self.writers, self.folder, self._made = writers, folder, 0
        self.lives: dict[str, Before] = {}
        directory = folder / "prune"
        directory.mkdir()
        ready_to_prune(directory)
        for life in LIVES:
            before = looked_at(directory)
            lived = self.begin(directory)
            outcome = writers.run(life, lived, trace=folder / f"trace-{life}")
            assert outcome.end == "done", outcome
            calls = Counter({call: n for call, n in outcome.calls.items() if call not in NOT_FILES | HARNESS})
            after = looked_at(lived)
            assert after[0] == before[0] and after[1] != before[1]
            assert life == "drop_hashes" or all(len(after[1][at]) < len(before[1][at]) for at in (4, 5))
            self.lives[life] = Before(directory, *before, after[1], calls)
            directory = lived

    def begin(self, directory: Path) -> Path:
        """A copy to strike."""
        self._made += 1
        return Path(shutil.copytree(directory, self.folder / f"run{self._made}"))


def looked_at(directory: Path) -> tuple[dict[str, Any], Held]:
    with Ledger.open(directory / "ledger.db", SIGNER, read_only=True, recompute=True) as ledger:
        return told(ledger), held(ledger)


@pytest.fixture(scope="module")
def retained(tmp_path_factory: pytest.TempPathFactory):
    require_strace()
    with Writers() as writers:
        yield Scene(writers, tmp_path_factory.mktemp("pruned"))


def strike(scene: Scene, life: str, call: str, n: int, fault: str) -> str:
    """One fault, and all that must hold after it; returns how the life ended and what was gone."""
    before = scene.lives[life]
    directory = scene.begin(before.directory)
    outcome = scene.writers.run(life, directory, "-e", f"inject={call}:{FAULTS[fault]}:when={n}")
    name = (life, call, n, fault, outcome.end, outcome.code)
    assert outcome.end != "untyped", (name, outcome.sentence)
    assert (outcome.end == "killed") == (fault == "KILL"), name
    try:
        said, found = looked_at(directory)
        assert said == before.said, "what the ledger says has changed"
        assert found in (before.whole, before.lean), "a part is gone"
        if outcome.end == "done" or any(report.get("gone") for report in outcome.reports):
            assert found == before.lean, "it was reported as gone"
        goes_on(directory, life, before)
    except (AssertionError, LedgerError) as error:
        raise AssertionError(f"{name}: {error!r}") from error
    shutil.rmtree(directory)
    return f"{outcome.end} {outcome.code}, {'gone' if found == before.lean else 'there'}"


def goes_on(directory: Path, life: str, before: Before) -> None:
    """What the operator does next."""
    with Ledger.open(directory / "ledger.db", SIGNER) as ledger:
        try:
            ledger.prune() if life == "prune" else ledger.drop_hashes()
        except RetentionRefused as error:
            assert error.code == ("NO_SUMMARY" if life == "prune" else "NOT_PRUNED")
        assert held(ledger) == before.lean and told(ledger) == before.said
        driver = Driver(ledger, now=ledger.state.last_time, streams=900)
        ledger.resume(ledger.state.position, ledger.pin(), now=driver.tick())
        driver.steps(1)


def sweep(scene: Scene, chosen: list[tuple[str, str, int, str]]) -> Counter[str]:
    with ThreadPoolExecutor(JOBS) as pool:
        ends = Counter(pool.map(lambda item: strike(scene, *item), chosen))
    print(f"{len(chosen)} injections, {dict(ends)}, partly gone 0, changed figures 0")
    return ends


def every(scene: Scene, life: str, faults: tuple[str, ...]) -> list[tuple[str, str, int, str]]:
    return [
        (life, call, n, fault)
        for call, count in sorted(scene.lives[life].calls.items())
        for fault in faults
        if fault == "KILL" or call not in CANNOT_FAIL
        for n in range(1, count + 1)
    ]


@pytest.mark.one_in(9)
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.slow
def test_a_sample_of_faults_leaves_all_or_nothing(retained: Scene, life: str) -> None:
    """``FAULTS=n`` takes more or fewer of them."""
    chosen = [item for item in every(retained, life, tuple(FAULTS)) if item[1] in MUTATING]
    sweep(retained, spread(chosen, int(os.environ.get("FAULTS", "40")) // 4))


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_call_leaves_all_or_nothing(retained: Scene, life: str, fault: str) -> None:
    ends = sweep(retained, every(retained, life, (fault,)))
    assert any("gone" in end for end in ends) and any("there" in end for end in ends)


def test_both_lives_sync_what_they_do(retained: Scene) -> None:
    """A sweep over nothing would pass."""
    for before in retained.lives.values():
        assert before.calls["pwrite64"] > 5 and before.calls["fdatasync"] >= 2


class OnServer:
    """A ledger on a server, and copies of its tables to begin again from."""

    def __init__(self, server, tmp_path: Path, schema: str) -> None:
        self.server, self.schema, self.state = server, schema, tmp_path / "state"
        vouched_and_older(self.place(), tmp_path, people=20, attested=True, retention_hash_epochs=1).ledger.close()

    def place(self, port: int | None = None) -> Place:
        url = self.server.url() if port is None else self.server.url(port=port)
        return Place.of(f"{url}?schema={self.schema}", self.state)

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self.server.url(), options=f"-c search_path={self.schema}") as connection:
            connection.execute("SET session_replication_role = replica")
            for statement in statements:
                connection.execute(statement)

    def save(self) -> None:
        names = [(f"saved_{name}", name) for name in TABLES]
        self._execute(*(f"DROP TABLE IF EXISTS {saved}" for saved, _ in names))
        self._execute(*(f"CREATE TABLE {saved} AS TABLE {name}" for saved, name in names))

    def restore(self) -> None:
        for name in TABLES:
            self._execute(f"DELETE FROM {name}", f"INSERT INTO {name} TABLE saved_{name}")

    def looked_at(self):
        with Ledger.open(self.place(), read_only=True, recompute=True) as ledger:
            return told(ledger), held(ledger)


def opened(ledger: OnServer, port: int | None = None) -> Ledger:
    """Opens it to write, once the server has noticed that the writer before is gone."""
    for _ in range(ATTEMPTS):
        try:
            return Ledger.open(ledger.place(port), SIGNER)
        except LedgerError as error:
            if error.code != "LOCKED":
                raise
    raise AssertionError("the lock is never given up")


def did(ledger: Ledger, life: str) -> Outcome:
    try:
        ledger.prune() if life == "prune" else ledger.drop_hashes()
    except StorageFailed as error:
        return Outcome(end="failed", code=error.code)
    return Outcome(end="done")


@pytest.mark.one_in(9)
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.slow
def test_a_connection_cut_inside_leaves_all_or_nothing(server, tmp_path, life):
    cut(server, tmp_path, life, "after", every=13)


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("where", ["before", "inside", "after"])
def test_a_connection_cut_at_every_message_leaves_all_or_nothing(server, tmp_path, life, where):
    cut(server, tmp_path, life, where, every=1)


def cut(server, tmp_path, life, where, every):
    """Cuts the connection at every so many messages, until there are no more."""
    made = OnServer(server, tmp_path, f"retained_{life}_{where}_{every}")
    if life == "drop_hashes":
        with opened(made) as ledger:
            ledger.prune()
    made.save()
    said, whole = made.looked_at()
    with opened(made) as ledger:
        assert did(ledger, life).end == "done"
    _, lean = made.looked_at()
    message, cuts, ends = 1 - every, -1, Counter[str]()
    while True:
        message, cuts = message + every, cuts + 1
        made.restore()
        proxy = Proxy(server.port)
        ledger = opened(made, proxy.port)
        proxy.arm(message, where)
        outcome = did(ledger, life)
        ledger.close()
        proxy.close()
        assert outcome.end == "done" or outcome.code in ("CONNECTION", "COMMIT_UNKNOWN"), outcome
        again, found = made.looked_at()
        assert again == said and found in (whole, lean)
        assert outcome.end != "done" or found == lean
        ends[f"{outcome.end} {outcome.code}, {'gone' if found == lean else 'there'}"] += 1
        if not proxy.struck:
            break
    with opened(made) as ledger:
        driver = Driver(ledger, now=ledger.state.last_time, streams=900)
        ledger.resume(ledger.state.position, ledger.pin(), now=driver.tick())
        driver.steps(1)
    print(f"{life}, {where}: {cuts} cuts, {dict(ends)}, partly gone 0, changed figures 0")
    assert message > 50 and any("there" in end for end in ends) and any("gone" in end for end in ends)
