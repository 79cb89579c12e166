"""The commands that README and docs show exist, with the options shown; the Python shown is Python."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dptrain.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for found in re.finditer(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            yield page.name, found[1]


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    for page, text in blocks("sh"):
        for line in text.replace("\\\n", " ").splitlines():
            for part in line.split(" && "):
                if part.startswith("dptrain "):
                    yield page, shlex.split(part, comments=True)[1:]
    for page in PAGES:
        for found in re.finditer(r"`dptrain ([a-z][^`]*)`", page.read_text(encoding="utf-8")):
            yield page.name, shlex.split(found[1])


SHOWN = list(shown_commands())


def test_the_pages_show_commands_and_python():
    assert len(SHOWN) > 20
    assert list(blocks("python"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("page", "words"), SHOWN, ids=[" ".join(words[:3]) for _, words in SHOWN])
def test_a_shown_command_exists_with_its_options(page, words):
    command = typer.main.get_command(app)
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if hasattr(command, "commands"):
        assert not rest, f"{page}: there is no command dptrain {' '.join(words)}"
        return
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    unknown = [word for word in rest if word.startswith("--") and word not in known]
    assert unknown == [], f"{page}: dptrain {' '.join(words)}"


@pytest.mark.parametrize(("page", "text"), list(blocks("python")), ids=lambda value: value if value.endswith(".md") else "")
def test_shown_python_compiles(page, text):
    compile(text, page, "exec")


FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", FENCED.sub("", page.read_text(encoding="utf-8"))):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_lead_to_headings():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*\.md|)#([^)]+)\)", page.read_text(encoding="utf-8")):
            there = page.parent / target if target else page
            assert anchor in anchors(there), f"{page.name} links to {target}#{anchor}"
