"""Every word in code style on a page of the docs is a word of the code, or stands in a short list of words from outside.

A page goes stale one name at a time: a function gets another name, an option goes, a test moves. So each backtick on a page
is held against the code. Paths exist, dotted names of ours resolve, and every other word is a name or stands in a string of
the code. Docstrings and comments are not code here: a name that is left only there is stale too.
"""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = ("attest", "ledger", "dptrain", "tests", "benchmarks", "fuzz", "recipes")

OUTSIDE = frozenset(
    {
        # of other programs and formats, and examples of what a reader has
        "COMMAND", "TheirLinear", "some_library", "register_grad_sampler",
        "secure_mode", "target_delta",
        "--schema", "Killed", "PORT", "inkey", "pg_dump", "sk", "cp", "KEYID",
        # of torch, in the tables of what a run takes
        "BatchNorm", "EmbeddingBag", "InstanceNorm",
    }
)  # fmt: skip
"""Words of other programs. A word of ours never stands here: mend the page instead."""

WORD = re.compile(r"--[a-z][\w-]*|[A-Za-z_]\w*")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_QUOTED = re.compile(r"\w[/.]\w")
_PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*\.(py|md|toml|cddl|json|cfg)|(attest|ledger|dptrain|tests|docs)(/[\w.*-]+)+/?")
_PROSE = frozenset({"tests/claims/clauses.toml", "tests/claims/limits.toml"})
"""Sentences of pages, which say of a word that it is one no more than the page does."""

_NAMES = frozenset({"id", "attr", "arg", "name", "module", "asname"})
"""Fields of a syntax tree that hold a name."""

_DOTTED = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+(\(\))?")


@cache
def tracked() -> tuple[Path, ...]:
    """Files of the project."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.splitlines() or [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
    return tuple(ROOT / name for name in names if (ROOT / name).is_file())


@cache
def words_of_the_code() -> frozenset[str]:
    """Names in programs, words in their strings, and words of other files that are no prose."""
    found: set[str] = set()
    for path in tracked():
        found.update(path.relative_to(ROOT).parts, [path.stem])
        if path.relative_to(ROOT).as_posix() in _PROSE:
            continue
        if path.suffix == ".py":
            found.update(_of_program(path))
        elif path.suffix in (".toml", ".cddl", ".mjs", ".go", ".html", ".jsonl") or path.name == "Makefile":
            found.update(WORD.findall(path.read_text(encoding="utf-8")))
    return frozenset(found)


@cache
def strings_of_the_code() -> str:
    """Every string of the programs, one after the other, so that a name in the middle of one is found."""
    return "\n".join(text for path in tracked() if path.suffix == ".py" for text in _read(path)[1])


@cache
def _of_program(path: Path) -> frozenset[str]:
    """Names of a program, and words in its strings."""
    names, strings = _read(path)
    return frozenset(word for name in names for word in name.split(".")).union(*map(WORD.findall, strings))


@cache
def _read(path: Path) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names of a program, and its strings but its docstrings, in one pass."""
    names: set[str] = set()
    strings: list[str] = []
    left: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"), str(path))]
    while left:
        node = left.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                strings.append(node.value)
            elif isinstance(node.value, bytes):
                strings.append(node.value.decode("latin-1"))
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        for field, value in vars(node).items():  # its fields, and numbers of where it stands
            kind = type(value)
            if kind is str:
                if field in _NAMES:
                    names.add(value)
            elif kind is list:
                left += [one for one in value if isinstance(one, ast.AST)]
            elif kind is not int and isinstance(value, ast.AST):
                left.append(value)
    return frozenset(names), tuple(strings)


def spans(text: str) -> list[str]:
    """What stands in backticks in the sentences and tables of a page."""
    return [span for span in _SPAN.findall(_FENCE.sub("", text)) if not re.fullmatch(r"[0-9a-f]{12,}", span)]


def unknown(span: str, page: Path) -> list[str]:
    """What of a span is no word of the code."""
    if (_PATH.fullmatch(span) and _is_file(span, page)) or (_QUOTED.search(span) and span in strings_of_the_code()):
        return []
    if _PATH.fullmatch(span) and "/" in span:
        return [span]
    if _DOTTED.fullmatch(span) and not _PATH.fullmatch(span):
        return [] if _resolves(span.removesuffix("()").split(".")) else [span]
    return [word for word in WORD.findall(span) if not _known(word)]


def _is_file(span: str, page: Path) -> bool:
    """Whether it is a path from root or page, or the name of a file anywhere; modules may go without their ending."""
    if "/" not in span:
        return any(path.match(span) for path in tracked())
    return any(place.joinpath(f"{span}{ending}").exists() for place in (page.parent, ROOT) for ending in ("", ".py"))


def _known(word: str) -> bool:
    if word in words_of_the_code() or word in OUTSIDE:
        return True
    return word.startswith("test_") and any(name.startswith(word) for name in words_of_the_code())


def _resolves(parts: list[str]) -> bool:
    """Whether a dotted name leads to a module, and from there on to words of its folder."""
    for depth in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:depth])
        file = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
        if file.is_file():
            files = [file, *file.parent.glob("*.py")] if file.name == "__init__.py" else [file]
            named = {word for one in files for word in _of_program(one)}
            return all(part in named for part in parts[depth:])
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_word_in_code_style_is_a_word_of_the_code(page: Path) -> None:
    missing = [f"`{span}`: {word}" for span in spans(page.read_text(encoding="utf-8")) for word in unknown(span, page)]
    assert not missing, f"{page.name} names what the code does not have: {sorted(set(missing))}"


def test_no_word_from_outside_is_a_word_of_the_code_or_of_no_page() -> None:
    said = {word for page in PAGES for span in spans(page.read_text(encoding="utf-8")) for word in WORD.findall(span)}
    assert said >= OUTSIDE, f"no page says these any more: {sorted(OUTSIDE - said)}"


def test_names_that_are_gone_are_found() -> None:
    page = ROOT / "docs" / "guarantee.md"
    assert unknown("attest.cbor.decode", page) == unknown("ledger/merkle.py", page) == unknown("verify_inclusion()", page) == []
    gone = ["attest.cbor.un" + "do", "ledger/merkle_" + "gone.py", "--no-such-" + "option", "NoSuch" + "Class.decode"]
    assert [unknown(word, page) for word in gone] == [[gone[0]], [gone[1]], [gone[2]], [gone[3].split(".")[0]]]


def test_a_word_of_the_glossary_has_one_entry() -> None:
    entries = re.findall(r"\*\*([^*]+)\*\*", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert len(entries) > 40
    twice = {word for word in entries if entries.count(word) > 1} - {"Release", "release"}
    assert not twice, f"the glossary says these twice: {sorted(twice)}"
