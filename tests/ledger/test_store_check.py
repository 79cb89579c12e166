"""The suite for authors of stores: our own stores and that of the page keep the promise, and stores that break it are found."""

import os
import re
import types
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from ledger.audit import verify_export
from ledger.errors import LedgerError, StorageFailed, StoreUnfit
from ledger.log import Ledger
from ledger.storage import Place, place, register_store
from ledger.storage.checking import check_store
from ledger.storage.place import store_of
from ledger.storage.store import create_store
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending" / "store.md"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what a test registers."""
    monkeypatch.setattr(place, "_KINDS", dict(place._KINDS))


def example() -> str:
    """The store of the page."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (text,) = [block for block in blocks if "register_store(" in block]
    return text


def made(text: str) -> None:
    """Registers a store, as its author's module would."""
    exec(compile(text, str(PAGE), "exec"), types.ModuleType("shown_store").__dict__)


def fresh(scheme: str, directory: Path) -> Callable[[], Place]:
    numbers = count()
    return lambda: Place.of(f"{scheme}:///{directory / f'{next(numbers)}.ledger'}")


def test_sqlite_keeps_the_promise(tmp_path):
    check_store(fresh("sqlite", tmp_path))


def test_postgresql_keeps_the_promise(cluster):
    numbers = count()
    check_store(lambda: Place.of(f"{cluster.url()}?schema=checked_{os.getpid()}_{next(numbers)}"))


def test_the_store_of_the_page_keeps_the_promise(tmp_path):
    made(example())
    check_store(fresh("onefile", tmp_path))


def test_a_ledger_lives_in_the_store_of_the_page(tmp_path):
    made(example())
    name = f"onefile:///{tmp_path / 'ledger.cbor'}"
    with Ledger.create(name, header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1))
        run.steps()
        run.epoch()
        pin, size = ledger.pin(), ledger.size
        assert ledger.place.shown == name and (tmp_path / "ledger.cbor.highwater").is_file()
    with Ledger.open(name, SIGNER, recompute=True) as ledger:
        ledger.check_pin(pin)
        assert verify_export(ledger.export(tmp_path / "export"), [SIGNER.vkey]).size == ledger.size == size


BROKEN = [
    ("CREATE", {"if store._path.exists():": "if False:"}),
    ("ORDER", {"row.seq == len(leaves) and row.body and row.leaf_hash": "True"}),
    ("ATOMIC", {"            for item in attested:\n": "            self._save(state)\n            for item in attested:\n"}),
    ("ONE_WRITER", {"fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)": "pass"}),
    ("ONE_WRITER", {'store._save(state | {"fence": state["fence"] + 1})': "store._save(state)"}),
    (
        "PREFIX",
        {"OneFileSnapshot(self._load())": 'OneFileSnapshot(type("", (), {"__getitem__": lambda _, k: self._load()[k]})())'},
    ),
    ("DURABLE", {'{"fence": state["fence"] + 1}': '{"fence": state["fence"] + 1, "notes": {}}'}),
    (
        "CRASH",  # what is written reaches the other stores of its process, and the disk never
        {
            "EMPTY |=": "CACHE = {}\nEMPTY |=",
            "cbor2.loads(self._path.read_bytes())": "cbor2.loads(CACHE[self._path])",
            "atomic_write(self._path, cbor2.dumps(state))": "CACHE[self._path] = self._path.touch() or cbor2.dumps(state)",
        },
    ),
    ("NOTE", {"_hold(note.startswith(old) and signed": "_hold(True"}),
    ("PRUNE", {"covered or row[1] != ADMIT_KIND": "True"}),
    ("PRUNE", {"_hold(seq < before": "_hold(True"}),
    ("PRUNE", {'state["attested"].pop(seq, None)': "pass"}),
    ("DROP", {"_hold(aligned and not any(row[3] for row in inside)": "_hold(True"}),
    ("ASIDE", {"self._path.unlink(missing_ok=True)": "pass"}),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("code", "changes"), BROKEN)
def test_a_store_that_breaks_a_part_of_the_promise_is_found_under_its_name(code, changes, tmp_path):
    text = example()
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    made(text)
    with pytest.raises(StoreUnfit) as found:
        check_store(fresh("onefile", tmp_path))
    assert found.value.code == code, found.value


def test_a_scheme_has_one_store_and_malformed_ones_none():
    for scheme in ("sqlite", "postgres", "One", "1file", "one file", ""):
        with pytest.raises(LedgerError) as found:
            register_store(scheme, object)
        assert found.value.code == "SCHEME"
    register_store("one-file", type("Store", (), {}))
    again = type("Store", (), {})  # as a cell of a notebook that is run once more
    register_store("one-file", again)
    assert store_of(Place.of("one-file:///ledger")) is again
    with pytest.raises(LedgerError):
        register_store("other", dict, aliases=("one-file",))
    with pytest.raises(LedgerError) as found:
        Place.of("other:///ledger")
    assert found.value.code == "URL"


def test_a_store_whose_module_is_missing_says_what_to_do(tmp_path):
    register_store("gone", "no_such_module:Store", needs="pip install gone ({error})")
    with pytest.raises(StorageFailed) as found:
        create_store(Place.of(f"gone:///{tmp_path / 'ledger'}"))
    assert found.value.code == "DRIVER" and found.value.sentence.startswith("pip install gone (No module named")


def test_an_installed_package_offers_its_store(tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "offered-1.dist-info").mkdir(parents=True)
    (site / "offered-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1\n")
    offered = "[dptrain.stores]\nonefile = offered_store\nhalf = half_store\n"
    (site / "offered-1.dist-info" / "entry_points.txt").write_text(offered)
    (site / "offered_store.py").write_text(example())
    (site / "half_store.py").write_text("import no_such_driver\n")
    monkeypatch.syspath_prepend(site)
    with closing(create_store(Place.of(f"onefile:///{tmp_path / 'ledger'}"))) as store:
        assert type(store).__module__ == "offered_store"
    with pytest.raises(StorageFailed) as found:
        Place.of("half:///ledger")
    assert found.value.code == "DRIVER" and "no_such_driver" in found.value.sentence
