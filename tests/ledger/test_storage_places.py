"""Names of ledgers: paths and URLs, what lies beside them, and that no password is ever shown."""

from pathlib import Path

import pytest

from ledger.errors import LedgerError
from ledger.storage.place import Place


@pytest.mark.parametrize(
    ("ledger", "file"),
    [
        ("ledger.db", "ledger.db"),
        (Path("runs/ledger.db"), "runs/ledger.db"),
        ("sqlite:///runs/ledger.db", "runs/ledger.db"),
        ("sqlite:////var/ledger.db", "/var/ledger.db"),
        ("odd:name", "odd:name"),
    ],
)
def test_a_file_is_named_by_path_or_url(ledger, file):
    place = Place.of(ledger)
    assert (place.kind, place.target, place.shown, place.beside) == ("sqlite", file, file, Path(file))
    assert place.side(".highwater") == Path(f"{file}.highwater")
    assert (place.key, place.public) == (Path(file).with_suffix(".key"), Path(file).with_suffix(".pub"))
    assert Place.of(place) is place


def test_a_server_keeps_its_files_in_a_state_directory():
    place = Place.of("postgresql://writer:secret@db.example:5433/privacy?sslmode=verify-full&schema=run7", "/state")
    assert (place.kind, place.schema, place.name) == ("postgresql", "run7", "run7")
    assert place.target == "postgresql://writer:secret@db.example:5433/privacy?sslmode=verify-full"
    assert place.side(".withdrawals") == Path("/state/ledger.withdrawals")
    assert (place.key, place.public) == (Path("/state/ledger.key"), Path("/state/ledger.pub"))


@pytest.mark.parametrize(
    ("url", "name", "schema"),
    [
        ("postgresql://db.example/privacy", "privacy", "dptrain"),
        ("postgres://db.example/privacy?schema=dptrain", "privacy", "dptrain"),
        ("postgresql://db.example/two%20words", "two words", "dptrain"),
        ("postgresql:///?service=clinic", "ledger", "dptrain"),
        ("postgresql://a:1,b:2/privacy?target_session_attrs=read-write", "privacy", "dptrain"),
    ],
)
def test_the_name_of_a_ledger_on_a_server(url, name, schema):
    place = Place.of(url)
    assert (place.name, place.schema, place.beside) == (name, schema, None)


def test_a_password_is_never_shown():
    for url in (
        "postgresql://writer:s3cret@db.example/privacy",
        "postgresql://writer@db.example/privacy?password=s3cret",
        "postgresql://writer:s3cret@a,b/privacy?sslpassword=s3cret&schema=run7",
        "postgresql://writer:s3cret%40x@db.example/privacy",
    ):
        place = Place.of(url, "/state")
        assert "s3cret" in place.target
        assert "s3cret" not in f"{place.shown}{place!r}{place}" and "writer@" in place.shown


@pytest.mark.parametrize(
    ("ledger", "state", "code"),
    [
        ("mysql://db.example/privacy", None, "URL"),
        ("postgresql+psycopg://db.example/privacy", None, "URL"),
        ("file:///ledger.db", None, "URL"),
        ("sqlite://ledger.db", None, "URL"),
        ("sqlite://", None, "URL"),
        ("sqlite:///", None, "URL"),
        ("sqlite:///ledger.db?mode=ro", None, "URL"),
        ("postgresql://writer:se/cret@h/d", None, "URL"),
        ("postgresql://writer:se?cret@h/d", None, "URL"),
        ("postgresql://writer:se#cret@h/d", None, "URL"),
        ("postgresql://h/d?schema=", None, "URL"),
        ("postgresql://h/d?schema=a&schema=b", None, "URL"),
        ("postgresql://h/d?schema=Run7", None, "URL"),
        ("postgresql://h/d?schema=pg_catalog", None, "URL"),
        ("postgresql://h/d?schema=a;drop%20table%20entry", None, "URL"),
        ("postgresql://h/d?schema=" + "a" * 49, None, "URL"),
        ("ledger.db", "/state", "STATE"),
        ("sqlite:///ledger.db", "/state", "STATE"),
    ],
)
def test_what_names_no_ledger_is_refused(ledger, state, code):
    with pytest.raises(LedgerError) as found:
        Place.of(ledger, state)
    assert found.value.code == code and "cret" not in str(found.value)


def test_a_server_without_state_directory_has_no_files_beside_it():
    place = Place.of("postgresql://writer:s3cret@db.example/privacy")
    for ask in (lambda: place.side(".highwater"), lambda: place.key, lambda: place.public, lambda: place.directory):
        with pytest.raises(LedgerError, match="STATE") as found:
            ask()
        assert "s3cret" not in str(found.value)
