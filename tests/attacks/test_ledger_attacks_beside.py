"""Rows B1, B4 and B5 of the attack list where no leaf is touched: a disk changes single bytes, of the database or beside it.

What opening a ledger reads is tried in `test_ledger_attacks_storage.py`. Here is what only ``dptrain ledger fsck`` looks at:
pages, indices and triggers, the file of verifier keys, and the weights of epochs.
"""

import hashlib
import json
import random
import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from ledger.errors import LedgerError
from ledger.leaves.weights import WeightRecord
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.storage.beside import check_beside
from ledger.storage.place import Place
from tests.worlds.commands import run_command
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, header_spec
from tests.worlds.retained_ledgers import crowded, crowded_and_pruned

FLIPS = 80
TABLES = ("meta", "entry", "head", "checkpoint", "aggregate", "lease")


def records(epoch: int) -> tuple[WeightRecord, ...]:
    """Three tensors, other ones after every epoch."""
    return tuple(
        WeightRecord((f"layer.{n}.weight",), None, True, "F32", (2, n), hashlib.sha256(b"%d %d" % (epoch, n)).digest())
        for n in range(1, 4)
    )


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A run whose key was changed, with its verifier keys and the weights of its two epochs beside it."""
    path = tmp_path / "ledger.db"
    with Ledger.create(path, header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1), admission(2, "sensitive"))
        for epoch in (1, 2):
            run.digest = ledger.keep_weights(records(epoch))
            run.steps()
            run.epoch()
        ledger.rotate_key(NoteSigner(SIGNER.name, OTHER_KEY), now=run.tick())
        keys = reversed(ledger.state.keys.vkeys)
        path.with_suffix(".pub").write_text("".join(f"{vkey}\n" for vkey in keys))
    return path


def fsck(path: Path) -> dict:
    """What `dptrain ledger fsck` answers; its exit code has to fit."""
    done = run_command(["ledger", "fsck", str(path), "--json"])
    answer = json.loads(done.stdout)
    assert done.exit_code == (0 if answer.get("verdict") == "OK" else 1), done.output
    return answer


def named(path: Path) -> list[tuple[str, str]]:
    """Code and file of every finding."""
    return [(item["code"], item["file"]) for item in fsck(path)["findings"]]


def weights(path: Path) -> list[Path]:
    return sorted(Path(f"{path}.weights").iterdir())


def codes(path: Path) -> list[str]:
    """What is wrong with a ledger, as the command finds it; the epsilons are not computed again."""
    try:
        with Ledger.open(path, read_only=True) as ledger:
            return [finding.code for finding in ledger.examine().findings]
    except LedgerError as error:
        return [error.code]


def content(path: Path) -> object:
    """All that SQLite gives a reader of a file: what made its tables, every row, its index, two words of applications."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        try:
            schema = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()
            rows = [database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES]
            by_data = "terms INDEXED BY terms_data WHERE data IS NOT NULL ORDER BY data, number"
            rows.append(database.execute(f"SELECT data, number FROM {by_data}").fetchall())
            words = [database.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "application_id")]
        except (sqlite3.Error, OverflowError) as error:
            return type(error).__name__
    return schema, rows, words


def flipped(path: Path, places: list[tuple[int, int]]) -> dict[tuple[str, str], list[int]]:
    """Flips one bit at a time of a database, and tells where it was seen, and whether a reader could see a difference.

    Returns:
        Offsets by ("seen" or "unseen", "content" or "unused").
    """
    data, whole = path.read_bytes(), content(path)
    outcomes: dict[tuple[str, str], list[int]] = {}
    for place, bit in places:
        changed = bytearray(data)
        changed[place] ^= bit
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.write_bytes(changed)
        what = "content" if content(path) != whole else "unused"
        outcomes.setdefault(("seen" if codes(path) else "unseen", what), []).append(place)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(data)
    return outcomes


@pytest.mark.parametrize("made", [crowded, crowded_and_pruned])
@pytest.mark.one_in(9)
def test_B1_a_flipped_byte_that_a_reader_could_see_never_goes_unseen(tmp_path, made):
    """Bytes of a database of a few hundred leaves, at random: what is unseen lies where nothing is stored."""
    path = tmp_path / "ledger.db"
    driver = made(path, tmp_path, people=150)
    assert driver.ledger.size > 300
    driver.ledger.close()
    assert not codes(path)
    chance = random.Random(20_261_123)
    size = path.stat().st_size
    outcomes = flipped(path, [(chance.randrange(size), 1 << chance.randrange(8)) for _ in range(FLIPS)])
    assert ("unseen", "content") not in outcomes, outcomes
    counts = Counter({key: len(places) for key, places in outcomes.items()})
    assert counts["seen", "content"] > FLIPS // 4 and counts.total() == FLIPS, counts
    assert not codes(path), "and the file as it was is whole"


def test_B4_no_flipped_byte_of_the_tables_and_triggers_goes_unseen(kept):
    """The texts that made them, in steps; a blank of a table may be another blank, and means no other table."""
    texts = list(re.finditer(rb"CREATE (?:TABLE|TRIGGER|INDEX)[\t\n -~]+", kept.read_bytes()))
    assert sum(text[0].startswith(b"CREATE TRIGGER") for text in texts) > 5
    places = [at for text in texts for at in range(text.start(), text.end(), 83)]
    data = kept.read_bytes()
    outcomes = flipped(kept, [(at, 1 << at % 4) for at in places if data[at] not in b' "\t\n'])
    assert ("unseen", "content") not in outcomes, outcomes
    assert len(outcomes["seen", "content"]) > 30, outcomes


def test_B1_every_flipped_byte_of_the_verifier_keys_and_of_the_weights_is_named_with_its_file(kept):
    with Ledger.open(kept, read_only=True) as ledger:
        chain, epochs, place = ledger.state.keys, ledger.state.epochs, Place.of(kept)
    for path, code in ((kept.with_suffix(".pub"), "PUBLIC_KEY"), (weights(kept)[0], "WEIGHTS")):
        data = path.read_bytes()
        for at in range(len(data)):
            changed = bytearray(data)
            changed[at] ^= 1 << at % 8
            path.write_bytes(changed)
            found = check_beside(place, chain, epochs, 0).findings
            assert found and {(item.code, item.where) for item in found} == {(code, str(path))}, (path, at)
        path.write_bytes(data)
    assert not check_beside(place, chain, epochs, 0).findings
    assert named(kept) == []


def test_B5_files_beside_a_ledger_that_were_exchanged_cut_or_lost_are_named_by_fsck(kept):
    public, (first, second) = kept.with_suffix(".pub"), weights(kept)
    keys, data = public.read_text(), first.read_bytes()
    answer = fsck(kept)
    assert (answer["keys"], answer["weights"], answer["pages"], answer["findings"]) == (2, 2, True, [])
    public.write_text(keys + NoteSigner("another.example/run", OTHER_KEY).vkey + "\n")
    assert named(kept) == [("PUBLIC_KEY", str(public))]
    public.write_text(keys.splitlines()[1] + "\n")
    assert named(kept) == [("PUBLIC_KEY", str(public))], "the key that signs it now is left out"
    public.write_text(f"# the run of November\n\n{keys}")
    assert named(kept) == [], "comments and empty lines are the keeper's own"
    public.write_bytes(b"\xff" + keys.encode())
    assert named(kept) == [("PUBLIC_KEY", str(public))]
    public.write_text(keys)
    first.write_bytes(data[:-1])
    assert named(kept) == [("WEIGHTS", str(first))]
    first.write_bytes(second.read_bytes())
    assert named(kept) == [("WEIGHTS", str(first))]
    first.unlink()
    answer = fsck(kept)
    assert [(item["code"], item["file"]) for item in answer["findings"]] == [("WEIGHTS_MISSING", str(first))]
    assert "UNRECORDED" in answer["findings"][0]["sentence"] and answer["verdict"] == "FAILED"
    shown = run_command(["ledger", "fsck", str(kept)]).stdout
    assert "WEIGHTS_MISSING" in shown and first.stem[:16] in shown.replace("\n", "")


def test_a_ledger_without_weights_or_verifier_keys_is_whole_and_so_is_one_with_a_crash_behind_it(kept):
    (weights(kept)[0].parent / ".half.cbor.0011223344556677.tmp").write_bytes(b"")
    with Ledger.open(kept, read_only=True) as ledger:
        ledger.keep_weights(records(3))  # and then it died, before the EPOCH leaf
    answer = fsck(kept)
    assert (answer["verdict"], answer["weights"], answer["weights_unused"]) == ("OK", 2, 1)
    shutil.rmtree(f"{kept}.weights")
    kept.with_suffix(".pub").unlink()
    answer = fsck(kept)
    assert (answer["verdict"], answer["keys"], answer["weights"]) == ("OK", None, None)
    shown = " ".join(run_command(["ledger", "fsck", str(kept)]).stdout.split())
    assert "no file of verifier keys, no weights of epochs (a release from here would be UNRECORDED)" in shown


def test_weights_of_epochs_that_retention_let_go_are_not_missed_and_later_ones_are(tmp_path):
    path = tmp_path / "ledger.db"
    driver = crowded_and_pruned(path, tmp_path, people=20)
    before, epochs = driver.ledger.pruned_before, driver.ledger.state.epochs
    driver.ledger.close()
    Path(f"{path}.weights").mkdir()
    answer = fsck(path)
    let_go = [epoch for epoch in epochs if epoch.seq < before]
    assert answer["weights_let_go"] == len(let_go) > 0
    assert len(answer["findings"]) == len(epochs) - len(let_go) > 0
    assert {item["code"] for item in answer["findings"]} == {"WEIGHTS_MISSING"}
