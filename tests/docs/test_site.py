"""The site has what the source has: every code, command, public name and picture; links lead somewhere, and no server is asked.

The slow tests build the whole site, run its notebooks, and look at pages in Chromium, as wide as a phone.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from publish.site import api, codes, errors, links, navigation
from publish.site.cures import CURES
from tests.docs.blocks import ROOT, pages
from tests.docs.browser import browser, chromium

SOURCES = {path: path.read_text(encoding="utf-8") for name in codes.PACKAGES for path in (ROOT / name).rglob("*.py")}
WORD = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|[A-Z]{4,}"


def documented() -> set[str]:
    return {place.code for place in codes.every()}


# Errors ------------------------------------------------------------------------------------------------------------------


def test_every_code_that_the_source_raises_is_on_the_page_of_errors() -> None:
    """Another reader than the page's: what stands first in an exception, by its text alone."""
    raised: set[str] = set()
    for text in SOURCES.values():
        raised.update(re.findall(r"\b(?:raise|return)\s+[A-Z]\w+\(\s*f?\"([A-Z][A-Z0-9_]{2,})\",", text))
        raised.update(re.findall(r"\bFinding\(\s*\"([A-Z][A-Z0-9_]{2,})\",", text))
    assert len(raised) > 350
    assert raised - documented() == set()


def test_every_code_that_a_test_expects_is_on_the_page_of_errors() -> None:
    """Tests name codes that were seen to be raised."""
    expected: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path.parent.name != "docs":
            expected.update(re.findall(rf"\.code == \"({WORD})\"", path.read_text(encoding="utf-8")))
    assert len(expected) > 150
    # Words that a test itself makes up, and pass through an error of ours.
    assert {code for code in expected - documented() if any(f'"{code}"' in text for text in SOURCES.values())} == set()


def test_every_member_of_a_table_of_words_is_on_the_page_of_errors() -> None:
    from attest.errors import ReasonCode
    from ledger.audit.findings import QUALIFIERS, VERDICTS
    from ledger.proofs.monitoring import ALARMS

    known = documented()
    assert set(map(str, ReasonCode)) | set(QUALIFIERS) | set(VERDICTS) | set(ALARMS) <= known


def test_every_code_has_sentences_that_say_something() -> None:
    places = codes.every()
    empty = [place for place in places if len(re.sub(r"\W", "", place.sentence)) < 6]
    assert empty == []
    by_code: dict[str, list[codes.Place]] = {}
    for place in places:
        by_code.setdefault(place.code, []).append(place)
    with_cure = sum(any(place.cure for place in found) for found in by_code.values())
    print(f"{len(by_code)} codes, {len(places)} sentences, {with_cure} codes with a cure of their own")
    assert all(errors.carried_by(place) for place in places)
    marks = (codes.OPEN, codes.CLOSE)
    assert all(not any(mark in errors.said(place) for mark in marks) for place in places)


def test_every_code_has_a_cure_and_every_cure_a_code() -> None:
    lacking = {errors.carried_by(place) for place in codes.every() if not place.cure} - CURES.keys()
    assert not lacking, f"publish/site/cures.py says nothing of {sorted(lacking)}"
    assert CURES.keys() <= {errors.carried_by(place) for place in codes.every()}
    page = errors.page_of("ledger", codes.every())
    items = [line for line in page.splitlines() if line.startswith("* ")]
    assert len(items) > 500 and all('<span class="cure">' in line for line in items)


def test_a_sentence_is_read_with_its_placeholders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "ROOT", tmp_path)
    text = 'class Refused(Exception):\n    """Refuses."""\n\n\ndef f(size):\n'
    text += '    raise Refused("TOO_LONG", f"it has {size} bytes; cut it")\n'
    (tmp_path / "some.py").write_text(text)
    (place,) = codes.Reader([codes.Source(tmp_path / "some.py")]).places()
    assert (place.code, place.kind, place.line) == ("TOO_LONG", "Refused", 6)
    assert (place.cause, place.cure) == (f"it has {codes.OPEN}size{codes.CLOSE} bytes", "cut it")


# Commands and names ------------------------------------------------------------------------------------------------------


def test_every_command_has_its_section_with_every_option() -> None:
    import typer

    from dptrain.cli.app import app
    from publish.site import commands

    told = commands.pages()
    root = typer.main.get_command(app)
    for name, command in root.commands.items():
        members = {f"{name} {word}": one for word, one in getattr(command, "commands", {}).items()} or {name: command}
        page = told.get(f"reference/commands-{name}.md", told["reference/commands.md"])
        for path, one in members.items():
            section = page.partition(f"## dptrain {path}\n")[2].partition("\n## ")[0]
            options = [word for parameter in one.params for word in parameter.opts if word.startswith("--")]
            assert section and [word for word in options if f"{word}" not in section] == []


def test_the_pages_of_the_api_name_every_public_name_of_their_doors() -> None:
    named = {path for text in api.pages().values() for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    for door in (door for doors in api.DOORS.values() for door in doors):
        found = api.names_of(door)
        assert set(found.values()) <= named
    assert "dptrain.engine.private_training.PrivateTraining" in named and len(named) > 120


def test_a_public_name_that_is_defined_nowhere_is_refused() -> None:
    with pytest.raises(api.NotFound, match="no_such_name"):
        api.defined("attest.keys", "no_such_name")


# Links and navigation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[a](concepts.md#epsilon)", "[a](concepts.md#epsilon)"),
        ("[a](../SECURITY.md#x)", f"[a]({links.repository()}/blob/main/SECURITY.md#x)"),
        ("[a](../tests/docs)", f"[a]({links.repository()}/tree/main/tests/docs)"),
        ("[a](../README.md)", f"[a]({links.repository()}#readme)"),
        ("[a](https://example.org/b)", "[a](https://example.org/b)"),
        ("```md\n[a](../SECURITY.md)\n```", "```md\n[a](../SECURITY.md)\n```"),
        ("[`a [b]`](../LICENSE)", f"[`a [b]`]({links.repository()}/blob/main/LICENSE)"),
    ],
)
def test_links_out_of_the_docs_lead_to_the_repository(link: str, expected: str) -> None:
    assert links.outward(link, "guarantee.md") == expected


def test_every_page_stands_in_one_place() -> None:
    found = [name.removeprefix("docs/") for name, _ in pages() if name.startswith("docs/")]

    def leaves(nodes: object) -> list[str]:
        if isinstance(nodes, str):
            return [nodes]
        inner = nodes.values() if isinstance(nodes, dict) else nodes
        return [leaf for node in inner for leaf in leaves(node)]  # type: ignore[attr-defined]

    assert sorted(leaves(navigation.navigation(found))) == sorted(found)
    with pytest.raises(navigation.Unplaced, match=r"stray\.md"):
        navigation.navigation([*found, "stray.md"])


# Pictures ----------------------------------------------------------------------------------------------------------------


def test_the_pictures_hold_the_figures_that_are_computed_today() -> None:
    pytest.importorskip("torch", reason="strategies of correlated noise need it")
    from publish.site import pictures

    assert len(pictures.PICTURES) >= 8
    assert {path.stem for path in pictures.FOLDER.glob("*.svg")} == set(pictures.PICTURES)
    for name, one in pictures.PICTURES.items():
        kept = pictures.figures_in(pictures.FOLDER / f"{name}.svg")
        assert pictures.like(one.figures(), kept), f"{name} is old: python -m publish.site.pictures"


def test_every_picture_is_on_a_page_and_says_what_it_shows() -> None:
    from publish.site import pictures

    shown = {}
    for name, text in pages():
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+\.svg)\)", text):
            assert ((ROOT / name).parent / target).is_file(), f"{name} shows {target}"
            shown[Path(target).stem] = alt
    assert shown == {name: one.alt for name, one in pictures.PICTURES.items()}


def test_the_way_of_a_contribution_passes_rooms_that_are_there() -> None:
    from publish.site import pictures

    assert all((ROOT / room).exists() for _, room, _ in pictures.PICTURES["way-of-a-contribution"].figures()["boxes"])


def test_figures_are_compared_to_nine_digits() -> None:
    from publish.site.pictures import like

    assert like({"a": [1.0, "b"]}, {"a": (1.0 + 1e-12, "b")}) and like({1: 2}, {"1": 2})
    assert not like({"a": [1.0]}, {"a": [1.0001]}) and not like({"a": 1}, {"b": 1}) and not like([1], [1, 2])


# The whole ---------------------------------------------------------------------------------------------------------------

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path) -> None:
    pytest.importorskip("torch", reason="notebooks train: pip install 'dptrain[train]'")
    pytest.importorskip("nbclient", reason="pip install 'dptrain[docs]'")
    from publish.site.notebooks import executed, markdown

    page = markdown(executed(path), path.name)
    assert EXPECTED[path.stem] in page


EXPECTED = {"own-data": "FULL (", "sign-and-refuse": "CONTENT_MISMATCH", "audit": "FAILED"}
"""What each notebook prints where it does what it says."""


def test_notebooks_are_stored_without_outputs() -> None:
    import json

    assert {path.stem for path in NOTEBOOKS} == set(EXPECTED)
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does; notebooks are not run, which a test of their own does."""
    pytest.importorskip("mkdocs", reason="pip install 'dptrain[docs]'")
    place = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    done = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True,
        env=os.environ | {"DOCS_NOTEBOOKS": "no", "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return place


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=\"((?:https?:)?//[^\"]+)\"")
    for page in site.rglob("*.html"):
        found = [one for one in loaded.findall(page.read_text(encoding="utf-8")) if "canonical" not in one]
        assert found == [], page
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")) == [], sheet


SAMPLE = (
    "index.html", "quickstart.html", "concepts.html", "faq.html", "policy.html", "guarantee.html", "auditors.html",
    "models.html", "reference/errors.html", "reference/errors-ledger.html", "reference/api-dptrain.html",
    "reference/commands-ledger.html", "formats/ledger.html", "mechanism/guarantees.html", "notebooks/own-data.html",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="there is no chromium here: apt-get install chromium")
def test_no_page_scrolls_sideways_on_a_phone_or_asks_a_server(site: Path) -> None:
    with browser() as shown:
        for page in SAMPLE:
            shown.open((site / page).as_uri(), "phone")
            wide, seen = shown.value("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert wide <= seen, f"{page} is {wide} wide where {seen} are seen"
        assert [one for one in shown.asked if not one.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.skipif(chromium() is None, reason="there is no chromium here: apt-get install chromium")
def test_the_browser_sees_a_page_that_is_too_wide(tmp_path: Path) -> None:
    page = tmp_path / "wide.html"
    page.write_text("<!doctype html><meta name=viewport content='width=device-width'><div style='width:700px'>wide</div>")
    with browser() as shown:
        shown.open(page.as_uri(), "phone")
        wide, seen = shown.value("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide > seen or seen > 390
        shown.picture(tmp_path / "shot.png")
    assert (tmp_path / "shot.png").read_bytes().startswith(b"\x89PNG") and shutil.which("bash")
