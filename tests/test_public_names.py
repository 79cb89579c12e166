"""`dir()` shows what a door offers, and a notebook shows it so that nothing in it can do anything."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attest.schema import cards
from attest.schema.cards import by_name, card, card_of, listing
from attest.schema.rounding import at_most
from dptrain.planning.plan import make_plan
from ledger.audit import verify_export
from ledger.audit.findings import QUALIFIERS, Finding
from tests.worlds.ledgers import SIGNER
from tests.worlds.retained_ledgers import grown

PACKAGES = ("attest", "ledger", "dptrain")
TABLE = {"div", "b", "pre", "table", "tr", "td", "th", "code"}
SHOWN = ("dptrain", "ledger.audit", "ledger.release", "ledger.leaves", "attest.policy", "attest.gate", "dptrain.planning.plan")
"""Doors whose values people look at; the others have parts of the machinery."""


def doors() -> list[str]:
    found = list(PACKAGES)
    for name in PACKAGES:
        package = importlib.import_module(name)
        found += [each.name for each in pkgutil.walk_packages(package.__path__, f"{name}.") if each.ispkg]
    return found


def load(name: str) -> ModuleType:
    if name.startswith("dptrain."):
        pytest.importorskip("torch")
    return importlib.import_module(name)


@pytest.mark.parametrize("name", doors())
def test_dir_of_a_door_shows_what_is_public_and_every_name_of_it_is_there(name: str) -> None:
    """A door without names of its own shows its rooms alone."""
    door = load(name)
    if not hasattr(door, "__all__"):
        shown = [each for each in dir(door) if not each.startswith("_")]
        assert all(
            isinstance(getattr(door, each), ModuleType) and f"{name}.{each}" == getattr(door, each).__name__ for each in shown
        )
        return
    assert dir(door) == sorted(door.__all__) and len(set(door.__all__)) == len(door.__all__)
    if name == "dptrain":
        pytest.importorskip("torch")
    assert all(hasattr(door, each) for each in door.__all__)


def test_dir_of_a_run_shows_what_is_public() -> None:
    pytest.importorskip("torch")
    from dptrain import PrivateTraining

    run = object.__new__(PrivateTraining)
    shown = [name for name in dir(run) if not name.startswith("__")]
    assert {"open", "own", "prepare", "epsilon", "close"} <= set(dir(PrivateTraining)) & set(shown)
    assert not any(name.startswith("_") for name in shown)


def public_records() -> Iterator[Any]:
    for name in SHOWN:
        module = importlib.import_module(name)
        for each in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
            found = getattr(module, each)
            if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
                continue
            if hasattr(module, "__all__") or found.__module__ == name:
                yield found


@pytest.mark.filterwarnings("ignore")
def test_every_public_value_has_a_card() -> None:
    pytest.importorskip("torch")
    from dptrain import PrivateTraining
    from dptrain.engine.header import Epsilon, Epsilons
    from dptrain.engine.step import Steps
    from ledger.log import Ledger

    kinds = {*public_records(), PrivateTraining, Steps, Epsilon, Epsilons, Ledger}
    assert len(kinds) > 50
    assert [kind.__name__ for kind in kinds if not hasattr(kind, "_repr_html_")] == []


class Tags(HTMLParser):
    """Collects the tags of a text and refuses attributes; what is left open is told."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list) -> None:
        assert not attributes
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@dataclasses.dataclass(frozen=True)
class Inner:
    name: str
    size: int


@dataclasses.dataclass(frozen=True)
class Outer:
    title: str
    rows: tuple[Inner, ...]
    digest: bytes
    more: dict[str, Any]
    key: str = dataclasses.field(default="secret", repr=False)

    _repr_html_ = card_of


@given(st.text(), st.text(), st.binary())
def test_no_text_of_others_becomes_markup_or_hides(title: str, name: str, digest: bytes) -> None:
    outer = Outer(title, (Inner(name, 1), Inner(title, 2)), digest, {name: title, "<script>": "\u202e<img src=x>"})
    listed = by_name(title, {name: Inner(title, 1), "x": None}, name)
    for text in (outer._repr_html_(), card(name, [(title, outer)]), listing(name, title), listed):
        found = Tags(text)
        assert set(found.tags) <= TABLE and not found.open
        assert "\u202e" not in text and "secret" not in text


def test_a_card_is_small_and_says_what_it_leaves_out() -> None:
    many = Outer("a", tuple(Inner(str(n), n) for n in range(1000)), b"\x01" * 32, {"share": 0.123456789, "none": None})
    text = many._repr_html_()
    assert len(text) < 4000 and "980 more" in text and "<code>0101010101010101</code>… (32 bytes)" in text
    assert "0.123457" in text and "None" in text
    assert len(card("a", [("b", "x" * 10**6)])) < 500 and cards.LONGEST < 500
    assert "1,980 more" in card("a", [("b", list(range(2000)))])


def test_a_listing_keeps_its_lines_and_says_how_many_it_leaves_out() -> None:
    text = listing("policy", "\n".join(f"line_{n} = <{n}>" for n in range(70)) + "\n")
    assert Tags(text).text == "policy" + "\n".join(f"line_{n} = <{n}>" for n in range(60)) + "\n10 more lines"


def test_figures_by_class_are_one_table_in_which_a_public_class_has_none() -> None:
    text = by_name("epsilon", {"open": Inner("x", 5), "news": None}, "public")
    assert Tags(text).text == "epsilonnamesizeopenx5newspublic"


def test_an_audit_a_ledger_a_plan_and_a_policy_show_themselves(tmp_path: Path) -> None:
    """Real values, from the front doors: the figures of a person are in them, and their size stays small."""
    with grown(tmp_path / "ledger.db", start=1_700_000_000).ledger as ledger:
        export = ledger.export(tmp_path / "export")
        shown = [ledger._repr_html_(), ledger.header._repr_html_(), ledger.header.policy._repr_html_()]
        assert repr(ledger).startswith(f"<Ledger {ledger.header.origin}: step ") and ledger.header.origin in shown[0]
    report = verify_export(export, [SIGNER.vkey])
    plan = make_plan(ledger.header.policy, 4)
    shown += [report._repr_html_(), plan._repr_html_()]
    assert report.verdict in shown[-2] and all(each.name in shown[-1] for each in plan.classes)
    assert all(QUALIFIERS[word].brief.split(":")[0] in Tags(shown[-2]).text for word in report.qualifiers) and report.qualifiers
    presets = [max(each.epsilon, each.epsilon_preset) for each in report.classes if each.epsilon_preset is not None]
    assert presets and all(f"epsilon at most {at_most(epsilon)} at delta" in shown[-2] for epsilon in presets)
    wrong = dataclasses.replace(report, verdict="FAILED", findings=(Finding("ROOT", "seq 1", "another root"),))._repr_html_()
    assert "another root" in wrong and "epsilon" not in wrong, "a record that failed bounds nothing"
    assert "noise_multiplier = " in shown[2] and "[[class]]" in shown[2]
    for text in shown:
        assert set(Tags(text).tags) <= TABLE and 50 < len(text) < 40_000
