"""Budget logs: what is reserved, refused, freed and told; restarts, copies, clocks; sums are those of the leaves."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.budget import Mechanism, Notice, Unit
from ledger.budget import log as room
from ledger.budget.leaves import Commit, Epoch, Reserve, decode_leaf
from ledger.budget.log import BudgetLog, adopt
from ledger.budget.mark import Reached, path_of
from ledger.budget.notices import told, webhook
from ledger.errors import (
    BudgetExhausted,
    LeafRefused,
    LedgerBehind,
    LedgerClosed,
    LedgerCorrupt,
    LedgerError,
    LedgerForked,
    LedgerReplaced,
    LedgerWrongRun,
    StorageFailed,
)
from ledger.merkle import root as root_of
from ledger.note import NoteSigner, checkpoint_text, open_note, parse_checkpoint, sign_note
from ledger.storage.place import Place
from tests.worlds.budgets import ANNA, UNIT_COST, cap_of, copied, created, spec
from tests.worlds.ledgers import LOG_KEY, SIGNER, START

BEN = Unit("user", "ben")
ROOT = Path(__file__).parents[2]


def spent(log: BudgetLog, unit: Unit = ANNA) -> int:
    return log.balance(unit).spent


def leaves(log: BudgetLog) -> list:
    return [decode_leaf(row.body) for row in log.rows(log.size)]


def sums_of(log: BudgetLog) -> dict[bytes, int]:
    """Adds up the leaves in another way than the code does."""
    found: dict[bytes, int] = {}
    reserved = {leaf.seq: leaf for leaf in leaves(log) if isinstance(leaf, Reserve)}
    back = {leaf.reserved: leaf.computed for leaf in leaves(log) if isinstance(leaf, Commit)}
    for seq, leaf in reserved.items():
        for account in (leaf.account, leaf.parent):
            if account is not None:
                found[account] = found.get(account, 0) + back.get(seq, leaf.releases) * leaf.rho_nano
    return found


# --- paying ---------------------------------------------------------------------------------------------------------------


def test_a_reservation_is_there_for_every_other_process_when_it_is_granted(place: Place) -> None:
    with created(place) as log:
        paid = log.reserve(ANNA, "token", 7, now=START)
        with BudgetLog.open(place) as other:
            assert spent(other) == 7 * UNIT_COST and list(other.state.open) == [paid.seq]
            assert other.root == log.root


def test_the_cap_is_granted_to_the_last_release_and_not_one_more(place: Place) -> None:
    with created(place, 10) as log:
        log.reserve(ANNA, "token", 9, now=START)
        with pytest.raises(BudgetExhausted) as refused:
            log.reserve(ANNA, "token", 2, now=START)
        assert (refused.value.spent, refused.value.asked, refused.value.unit) == (9 * UNIT_COST, 2 * UNIT_COST, "user")
        assert refused.value.cap == log.header.cap("user") and refused.value.code == "EXHAUSTED"
        log.reserve(ANNA, "token", 1, now=START)
        with pytest.raises(BudgetExhausted):
            log.reserve(ANNA, "token", 1, now=START)
        log.reserve(BEN, "token", 10, now=START)
        assert spent(log) == spent(log, BEN) == 10 * UNIT_COST


def test_a_refused_request_calls_no_model(place: Place) -> None:
    calls = []

    def answer(log: BudgetLog, tokens: int) -> None:
        log.reserve(ANNA, "token", tokens, now=START)
        calls.append(tokens)

    with created(place, 3) as log:
        answer(log, 3)
        before = spent(log)
        for _ in range(5):
            with pytest.raises(BudgetExhausted):
                answer(log, 1)
        assert calls == [3] and spent(log) == before


def test_what_was_never_computed_comes_back_and_what_was_computed_does_not(place: Place) -> None:
    with created(place, 10) as log:
        paid = log.reserve(ANNA, "token", 10, now=START)
        log.commit(paid, 4, now=START)
        assert spent(log) == 4 * UNIT_COST
        for computed in (0, 4):
            with pytest.raises(LeafRefused, match="COMMITTED"):
                log.commit(paid, computed, now=START)
        paid = log.reserve(ANNA, "token", 6, now=START)
        with pytest.raises(LeafRefused, match="COMPUTED"):
            log.commit(paid, 7, now=START)
        log.commit(paid, 6, now=START)
        assert spent(log) == 10 * UNIT_COST


@pytest.mark.one_in(99)
def test_a_crash_between_reserving_and_committing_frees_nothing(place: Place) -> None:
    created(place, 10).close()
    code = "import pickle; from tests.worlds.budgets import *; log = BudgetLog.open(pickle.loads(bytes.fromhex(sys.argv[1])));"
    code += "log.reserve(ANNA, 'token', 6, now=START); os.kill(os.getpid(), 9)"
    named = pickle.dumps(place).hex()
    done = subprocess.run([sys.executable, "-c", f"import sys; {code}", named], capture_output=True, cwd=ROOT)
    assert done.returncode == -9, done.stderr
    with BudgetLog.open(place) as log:
        assert spent(log) == 6 * UNIT_COST and len(log.state.open) == 1
        with pytest.raises(BudgetExhausted):
            log.reserve(ANNA, "token", 5, now=START)


def test_no_option_releases_uncharged(place: Place) -> None:
    with created(place) as log:
        for mechanism, releases, each in (
            ("token", 0, None), ("token", -1, None), ("token", 1, 0), ("token", 1, UNIT_COST - 1), ("token", 1, UNIT_COST + 1),
            ("asked", 1, 4), ("asked", 1, 0), ("other", 1, None), ("other", 1, 1), ("token", True, None), ("token", 1.0, None),
            ("token", 1 << 62, None),
        ):  # fmt: skip
            with pytest.raises(LeafRefused):
                log.reserve(ANNA, mechanism, releases, rho_nano=each, now=START)
        assert log.size == 1
        assert log.reserve(ANNA, "asked", 2, rho_nano=77, now=START).rho_nano == 77
        assert log.reserve(ANNA, "asked", 1, now=START).rho_nano == 5
        assert spent(log) == 2 * 77 + 5
    for rho in (0, -1):
        with pytest.raises(LeafRefused):
            Mechanism("free", rho, True, "nothing")


def test_a_new_session_opens_no_new_money(place: Place) -> None:
    with created(place, 5, caps={"user": cap_of(5), "session": cap_of(2)}) as log:
        for n in range(5):
            log.reserve(Unit("session", f"s{n}", ANNA), "token", 1, now=START)
        with pytest.raises(BudgetExhausted) as refused:
            log.reserve(Unit("session", "s5", ANNA), "token", 1, now=START)
        assert refused.value.unit == "user" and spent(log) == 5 * UNIT_COST
        session = Unit("session", "s0", BEN)
        log.reserve(session, "token", 2, now=START)
        with pytest.raises(BudgetExhausted) as refused:
            log.reserve(session, "token", 1, now=START)
        assert refused.value.unit == "session" and spent(log, BEN) == 2 * UNIT_COST
    for wrong in (lambda: Unit("session", "s"), lambda: Unit("user", "u", ANNA), lambda: Unit("session", "s", session)):
        with pytest.raises(LeafRefused, match="PARENT"):
            wrong()
    with pytest.raises(LeafRefused, match="SESSION_ALONE"):
        spec(caps={"session": cap_of(2)}).header(SIGNER.name, SIGNER.vkey, START)


def test_who_has_no_cap_pays_for_nothing(place: Place) -> None:
    with created(place, caps={"user": cap_of(5)}) as log:
        corpus = Unit("corpus", "letters")
        for unit in (corpus, Unit("session", "s", corpus)):
            with pytest.raises(LeafRefused, match="NO_CAP"):
                log.reserve(unit, "token", 1, now=START)


@pytest.mark.parametrize("name", ["Anna", "anna ", "", "аnna", "a" * 65, "an\0na", 7])
def test_a_second_spelling_is_no_second_unit(name: str) -> None:
    with pytest.raises(LeafRefused):
        Unit("user", name)


# --- restarts, clocks, copies ---------------------------------------------------------------------------------------------


@pytest.mark.one_in(99)
def test_a_restart_resets_nothing(place: Place) -> None:
    created(place, 4).close()
    for n in range(4):
        with BudgetLog.open(place) as log:
            assert spent(log) == n * UNIT_COST
            log.reserve(ANNA, "token", 1, now=START + n)
    for _ in range(3):
        with BudgetLog.open(place) as log, pytest.raises(BudgetExhausted):
            log.reserve(ANNA, "token", 1, now=START + 9)


def test_a_clock_that_goes_back_pays_for_nothing(place: Place) -> None:
    with created(place) as log:
        log.reserve(ANNA, "token", 1, now=START + 100)
        for now in (START + 39, START, 0):
            with pytest.raises(LeafRefused, match="CLOCK"):
                log.reserve(ANNA, "token", 1, now=now)
        log.reserve(ANNA, "token", 1, now=START + 40)
        assert [leaf.time for leaf in leaves(log)] == [START, START + 100, START + 100]


def test_a_log_that_was_rolled_back_is_refused(backend) -> None:
    created(backend.place, 3).close()
    saved = backend.save()
    with BudgetLog.open(backend.place) as log:
        log.reserve(ANNA, "token", 3, now=START)
    backend.restore(saved)
    with pytest.raises((LedgerBehind, LedgerCorrupt, LedgerForked)) as refused:
        BudgetLog.open(backend.place)
    assert refused.value.code in ("BEHIND", "COPIED")


def test_a_row_that_was_edited_is_refused(backend) -> None:
    with created(backend.place, 3) as log:
        log.reserve(ANNA, "token", 3, now=START)
        log.reserve(BEN, "token", 1, now=START)
    backend.edit("UPDATE entry SET body = (SELECT body FROM entry WHERE seq = 2) WHERE seq = 1")
    with pytest.raises(LedgerCorrupt):
        BudgetLog.open(backend.place)


def test_a_head_that_is_not_that_of_the_leaves_is_refused(backend) -> None:
    with created(backend.place, 3) as log:
        log.reserve(ANNA, "token", 3, now=START)
    backend.edit(f"UPDATE head SET frontier = x'{bytes(32).hex()}'")
    with pytest.raises(LedgerCorrupt, match="HEAD"):
        BudgetLog.open(backend.place)


def test_a_last_row_that_was_removed_is_refused_by_who_opens_and_by_who_has_it_open(backend) -> None:
    with created(backend.place, 3) as log:
        log.reserve(ANNA, "token", 3, now=START)
        head = log._frontier.copy()
        log.reserve(BEN, "token", 1, now=START)
        hexed = head.to_bytes().hex()
        backend.edit("DELETE FROM entry WHERE seq >= 2", f"UPDATE head SET size = 2, frontier = x'{hexed}'")
        with pytest.raises(LedgerBehind):
            log.reserve(ANNA, "token", 1, now=START)
        with pytest.raises(LedgerClosed, match="HANDLE"):
            log.reserve(ANNA, "token", 1, now=START)
    with pytest.raises(LedgerBehind):
        BudgetLog.open(backend.place)


def test_a_copy_in_another_place_is_refused(path: Path) -> None:
    created(path, 3).close()
    with pytest.raises(LedgerBehind, match="COPIED"):
        BudgetLog.open(copied(Place.of(path), "elsewhere"))
    alone = path.with_name("alone.db")
    shutil.copy(path, alone)
    with pytest.raises(LedgerBehind, match="MARK_MISSING"):
        BudgetLog.open(alone)


@pytest.mark.parametrize("kept", [b"", b"\0" * 512, b"dptrain.mark/1 1 00 x y\n"])
def test_a_damaged_mark_is_refused(path: Path, kept: bytes) -> None:
    created(path).close()
    path_of(Place.of(path)).write_bytes(kept)
    with pytest.raises(LedgerCorrupt, match="MARK"):
        BudgetLog.open(path)


def test_no_bit_of_a_mark_can_be_flipped(path: Path) -> None:
    data = Reached(7, bytes(range(32)), "inode:9").to_bytes()
    assert len(data) == 512 and Reached.from_bytes(data, "it") == Reached(7, bytes(range(32)), "inode:9")
    for at in range(len(data)):
        with pytest.raises(LedgerCorrupt):
            Reached.from_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "it")


def test_another_history_than_the_marked_one_is_refused(path: Path) -> None:
    with created(path) as log:
        log.reserve(ANNA, "token", 1, now=START)
        identity = log._store.identity
    path_of(Place.of(path)).write_bytes(Reached(2, bytes(32), identity).to_bytes())
    with pytest.raises(LedgerForked):
        BudgetLog.open(path)


def test_a_file_that_was_replaced_while_it_is_open_pays_for_nothing(path: Path) -> None:
    with created(path, 3) as log:
        log.reserve(ANNA, "token", 1, now=START)
        twin = path.with_name("twin.db")
        shutil.copy(path, twin)
        os.replace(twin, path)
        with pytest.raises((LedgerReplaced, LedgerBehind)):
            log.reserve(ANNA, "token", 1, now=START)


def test_a_corrupt_file_is_refused(path: Path) -> None:
    with created(path) as log:
        for _ in range(50):
            log.reserve(ANNA, "token", 1, now=START)
    data = bytearray(path.read_bytes())
    for damaged in (b"", b"no database" * 100, bytes(data[: len(data) // 2]), bytes(data[:100]) + os.urandom(len(data) - 100)):
        path.write_bytes(damaged)
        for side in ("-wal", "-shm"):
            Path(f"{path}{side}").unlink(missing_ok=True)
        with pytest.raises((LedgerError, StorageFailed)):
            BudgetLog.open(path)


def test_a_file_that_cannot_be_written_pays_for_nothing(path: Path) -> None:
    """Run by a user whom the rights of files bind."""
    created(path).close()
    code = """
import os, sys
from tests.worlds.budgets import *
from ledger.errors import LedgerError
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
try:
    BudgetLog.open(sys.argv[1]).reserve(ANNA, "token", 1, now=START)
except LedgerError as error:
    print(type(error).__name__, error.code)
"""
    for side in ("", "-wal", "-shm", ".mark", ".lock", ".highwater"):
        if (file := Path(f"{path}{side}")).exists():
            file.chmod(0o444)
    closed = [parent for parent in path.parents[1:] if parent.stat().st_uid == os.getuid() and parent.stat().st_mode & 1 == 0]
    modes = {parent: parent.stat().st_mode & 0o7777 for parent in (path.parent, *closed)}
    try:
        for parent in modes:
            parent.chmod(0o555 if parent == path.parent else modes[parent] | 0o011)
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT)
    finally:
        for parent, mode in modes.items():
            parent.chmod(mode)
    assert done.stdout.startswith("StorageFailed"), (done.stdout, done.stderr)


def test_a_commit_that_the_disk_refuses_grants_nothing_and_ends_the_handle(path: Path, monkeypatch) -> None:
    with created(path) as log:
        def refuse(*_args: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(room.mark.os, "pwrite", refuse)
        with pytest.raises(StorageFailed, match="MARK"):
            log.reserve(ANNA, "token", 1, now=START)
        monkeypatch.undo()
        with pytest.raises(LedgerClosed):
            log.reserve(ANNA, "token", 1, now=START)
    with BudgetLog.open(path) as log:
        assert spent(log) == UNIT_COST  # what was committed before the mark counts


def test_a_log_that_was_moved_is_adopted_under_a_checkpoint_and_keeps_what_was_spent(path: Path) -> None:
    with created(path, 5) as log:
        log.reserve(ANNA, "token", 3, now=START)
        log.close_epoch(SIGNER, now=START)
        log.reserve(ANNA, "token", 1, now=START)
    note = Place.of(path).side(".highwater").read_bytes()
    moved = copied(Place.of(path), "moved")
    with adopt(moved, note, SIGNER.vkey) as log:
        assert spent(log) == 4 * UNIT_COST
        log.reserve(ANNA, "token", 1, now=START)
    with BudgetLog.open(moved) as log, pytest.raises(BudgetExhausted):
        log.reserve(ANNA, "token", 1, now=START)


def test_an_old_copy_is_not_adopted(path: Path) -> None:
    with created(path, 5) as log:
        log.reserve(ANNA, "token", 3, now=START)
    old = copied(Place.of(path), "old")
    with BudgetLog.open(path) as log:
        log.reserve(ANNA, "token", 1, now=START)
        log.close_epoch(SIGNER, now=START)
        note = log.checkpoint()
    with pytest.raises(LedgerBehind, match="BEHIND"):
        adopt(old, note, SIGNER.vkey)
    with pytest.raises(LedgerWrongRun):
        BudgetLog.open(path, log_key="another")


def test_no_log_is_written_over(place: Place) -> None:
    created(place).close()
    with pytest.raises(LedgerError, match="EXISTS"):
        created(place)
    with BudgetLog.open(place) as log:
        log.reserve(ANNA, "token", 1, now=START)


def test_the_ledger_of_a_run_is_no_budget(run, path: Path) -> None:
    run.ledger.close()
    with pytest.raises((LedgerCorrupt, LedgerBehind)):
        BudgetLog.open(path)


def test_a_handle_that_was_forked_pays_for_nothing(path: Path) -> None:
    with created(path) as log:
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                log.reserve(ANNA, "token", 1, now=START)
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert spent(log) == 0


def test_who_reads_alone_reserves_nothing(place: Place) -> None:
    with created(place) as log, BudgetLog.open(place, read_only=True) as reader:
        log.reserve(ANNA, "token", 1, now=START)
        assert spent(reader) == UNIT_COST
        with pytest.raises(LedgerClosed, match="READ_ONLY"):
            reader.reserve(ANNA, "token", 1, now=START)


# --- epochs, sums ---------------------------------------------------------------------------------------------------------


def test_epochs_sign_totals_that_are_those_of_the_leaves(place: Place) -> None:
    with created(place) as log:
        first = log.reserve(ANNA, "token", 5, now=START)
        log.reserve(Unit("session", "s", BEN), "token", 2, now=START)
        log.commit(first, 3, now=START)
        leaf = log.close_epoch(SIGNER, now=START + 5)
        assert (leaf.number, leaf.reserves, leaf.open, leaf.accounts) == (1, 2, 1, 3)
        assert (leaf.reserved_nano, leaf.freed_nano) == (7 * UNIT_COST, 2 * UNIT_COST)
        sums = sums_of(log)
        assert leaf.accounts_root == root_of([account + n.to_bytes(8, "big") for account, n in sorted(sums.items())])
        signed = parse_checkpoint(open_note(log.checkpoint(), [SIGNER.vkey]).text)
        assert (signed.size, signed.root, signed.origin) == (log.size, log.root, SIGNER.name)
        assert root_of([row.body for row in log.rows(log.size)]) == signed.root
        assert log.place.side(".highwater").read_bytes() == log.checkpoint()
        assert log.close_epoch(SIGNER, now=START + 5).number == 2
        with pytest.raises(LedgerWrongRun):
            log.close_epoch(NoteSigner("another", LOG_KEY), now=START + 5)


def test_a_signer_signs_no_second_history_and_nothing_without_its_own_memory(path: Path) -> None:
    kept = Place.of(path).side(".highwater")
    with created(path) as log:
        log.reserve(ANNA, "token", 1, now=START)
        log.close_epoch(SIGNER, now=START)
        note, size = kept.read_bytes(), log.size
        for told in (checkpoint_text(SIGNER.name, size, bytes(32)), checkpoint_text(SIGNER.name, size + 5, bytes(32))):
            kept.write_bytes(sign_note(told, SIGNER))
            with pytest.raises((LedgerForked, LedgerBehind)):
                log.close_epoch(SIGNER, now=START)
        kept.write_bytes(sign_note(checkpoint_text(SIGNER.name, size, log.root), NoteSigner("another", LOG_KEY)))
        with pytest.raises(LedgerBehind, match="HIGHWATER"):
            log.close_epoch(SIGNER, now=START)
        kept.unlink()
        with pytest.raises(LedgerBehind, match="HIGHWATER"):
            log.close_epoch(SIGNER, now=START)
        kept.write_bytes(note)
        assert log.size == size and log.close_epoch(SIGNER, now=START).number == 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("rcse"), st.integers(0, 3), st.integers(1, 6)), max_size=25))
def test_sums_are_those_of_the_leaves_whatever_is_asked(tmp_path_factory, acts) -> None:
    path = tmp_path_factory.mktemp("b") / "b.db"
    with created(path, 10, caps={"user": cap_of(10), "session": cap_of(7)}) as log:
        people, paid = [Unit("user", f"u{n}") for n in range(4)], []
        for act, who, count in acts:
            with suppress(BudgetExhausted, LeafRefused):
                if act == "r":
                    paid.append(log.reserve(people[who], "token", count, now=START))
                elif act == "s":
                    paid.append(log.reserve(Unit("session", f"s{count}", people[who]), "token", count, now=START))
                elif act == "c" and paid:
                    log.commit(paid[who % len(paid)], count - 1, now=START)
                elif act == "e":
                    log.close_epoch(SIGNER, now=START)
        sums = sums_of(log)
        assert {account: found.spent for account, found in log.state.accounts.items() if found.spent} == {
            account: n for account, n in sums.items() if n
        }
        assert all(found.spent <= (log.header.cap(found.unit) or 0) for found in log.state.accounts.values())
        with BudgetLog.open(path) as again:
            assert again.state.accounts_root() == log.state.accounts_root() and again.root == log.root


# --- notices --------------------------------------------------------------------------------------------------------------


def test_thresholds_and_exhaustion_are_told_once_each(place: Place) -> None:
    heard: list[int] = []
    with created(place, 10) as log:
        for _ in range(4):
            paid = log.reserve(ANNA, "token", 6, now=START)
            log.commit(paid, 0, now=START)
        log.reserve(ANNA, "token", 6, now=START)
        assert log.deliver(lambda notice: heard.append(notice.percent), now=START) == 1 and heard == [50]
        log.reserve(ANNA, "token", 3, now=START)
        for _ in range(3):
            with pytest.raises(BudgetExhausted):
                log.reserve(ANNA, "token", 2, now=START)
        log.reserve(ANNA, "token", 1, now=START)
        with pytest.raises(BudgetExhausted):
            log.reserve(ANNA, "token", 1, now=START)
    with BudgetLog.open(place) as log:
        assert log.deliver(lambda notice: heard.append(notice.percent), now=START) == 2
        assert log.deliver(lambda notice: heard.append(notice.percent), now=START) == 0
    assert heard == [50, 80, 0]  # the cap pays for ten and a bit more, so 100 % are not reached


def test_several_thresholds_are_reached_at_once_and_told_in_order_for_both_who_pay(path: Path) -> None:
    with created(path, caps={"user": (1_000_000, 10_000_000), "session": (1_000_000, 10_000_000)}) as log:
        cap = log.header.cap("user")
        log.reserve(Unit("session", "s", ANNA), "asked", 1, rho_nano=cap, now=START)
        found = [(leaf.unit, leaf.percent) for leaf in leaves(log) if isinstance(leaf, Notice)]
        assert found == [(unit, percent) for unit in ("user", "session") for percent in (50, 80, 100)]


def test_a_notice_that_did_not_arrive_is_kept_and_sent_again(path: Path) -> None:
    heard: list[int] = []

    def fails(notice: Notice) -> None:
        raise LedgerError("WEBHOOK", "no")

    with created(path, 10) as log:
        log.reserve(ANNA, "token", 9, now=START)
        with pytest.raises(LedgerError):
            log.deliver(fails, now=START)
    with BudgetLog.open(path) as log:
        assert log.deliver(lambda notice: heard.append(notice.percent), now=START) == 2 and heard == [50, 80]


def test_refused_sessions_of_any_name_do_not_fill_the_log(path: Path) -> None:
    with created(path, caps={"user": cap_of(9), "session": cap_of(2)}) as log:
        for n in range(9):
            with pytest.raises(BudgetExhausted):
                log.reserve(Unit("session", f"s{n}", ANNA), "token", 3, now=START)
        assert log.size == 1


def test_a_webhook_posts_what_was_told_and_keeps_what_was_not_taken(path: Path) -> None:
    heard, answers = [], [500, 204, 302]

    class Officer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append((self.path, self.headers["Idempotency-Key"], body))
            self.send_response(answers[len(heard) - 1])
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Officer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with created(path, 10) as log:
            log.reserve(ANNA, "token", 9, now=START)
            send = webhook(log.header, f"http://127.0.0.1:{server.server_port}/privacy?to=officer")
            for taken in (0, 1):
                with pytest.raises(LedgerError, match="WEBHOOK"):
                    log.deliver(send, now=START)
                assert len(log.state.undelivered) == 2 - taken
            assert heard[0] == heard[1] and heard[0][0] == "/privacy?to=officer"
            assert heard[0][2] == told(log.header, next(leaf for leaf in leaves(log) if isinstance(leaf, Notice)))
            assert heard[0][2]["event"] == "threshold-50" and heard[0][2]["unit"] == log.account(ANNA).hex()
            assert "anna" not in json.dumps(heard)
    finally:
        server.shutdown()
    for url in ("http://officer.example/", "ftp://localhost/", "nonsense", "https://"):
        with pytest.raises(LedgerError, match="URL"):
            webhook(log.header, url)


def test_an_epoch_leaf_is_all_that_is_appended_by_closing(path: Path) -> None:
    with created(path) as log:
        log.close_epoch(SIGNER, now=START)
        assert isinstance(leaves(log)[-1], Epoch) and log.size == 2
