"""Every fenced block of every page is run, by this harness or by a test that is registered for it; see `tests.docs`."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, blocks_of, pages
from tests.docs.registered import ELSEWHERE, MOST_NOT_RUN, REASONS, SLOW
from tests.docs.running import LANGUAGES, Failed, Page
from tests.docs.shown import is_shown
from tests.docs.worlds import WORLDS

TEXTS = dict(pages())


def harnessed() -> Iterator[Any]:
    """Yields pages that hold a block which is not run elsewhere, slow ones marked."""
    for name, text in TEXTS.items():
        if any(block.language not in ELSEWHERE.get(name, {}) for block in blocks_of(text)):
            yield pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [], id=name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(harnessed()))
def test_the_blocks_of_a_page_do_what_it_says(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="pages train: pip install 'dptrain[train]'")
    Page(name, tmp_path / "page").run(TEXTS[name])


@pytest.mark.parametrize(("name", "languages"), list(ELSEWHERE.items()), ids=list(ELSEWHERE))
def test_a_page_that_another_test_runs_is_read_by_it_and_has_such_blocks(name: str, languages: dict[str, str]) -> None:
    assert name in TEXTS, f"{name} is gone: take it out of tests/docs/registered.py"
    there = Counter(block.language for block in blocks_of(TEXTS[name]))
    for language, test in languages.items():
        assert there[language], f"{name} has no {language} block any more: take it out of tests/docs/registered.py"
        source = (ROOT / test).read_text(encoding="utf-8")
        assert "```" in source, f"{test} reads no fences"
        assert Path(name).name in source or _names_its_folder(name, source), f"{test} does not read {name}"


def _names_its_folder(name: str, source: str) -> bool:
    """Whether a test reads all pages of the folder."""
    folder = Path(name).parent.name
    return re.search(rf'"{folder}"\)?\)?\.r?glob\("\*\.md"\)', source) is not None or f'/ "{folder}"' in source


def test_every_block_has_a_language_that_somebody_runs() -> None:
    wrong = [
        f"{name}:{block.line}: {block.language or 'no language'}"
        for name, text in TEXTS.items()
        for block in blocks_of(text)
        if block.language not in LANGUAGES and block.language not in ELSEWHERE.get(name, {}) and "not run" not in block.told
    ]
    assert not wrong, wrong


def test_blocks_that_nobody_runs_are_few_and_say_why(record_property: Any) -> None:
    left = [
        (block.told["not run"], f"{name}:{block.line}")
        for name, text in TEXTS.items()
        for block in blocks_of(text)
        if "not run" in block.told and block.language not in ELSEWHERE.get(name, {})
    ]
    for reason, count in Counter(reason for reason, _ in left).most_common():
        print(f"{count} not run: {reason}: {', '.join(place for one, place in left if one == reason)}")
        record_property(f"not run: {reason}", count)
    assert {reason for reason, _ in left} <= set(REASONS), left
    assert len(left) <= MOST_NOT_RUN


PAGE = """
<!-- world: own_data -->
```sh
mkdir inner && cd inner && export WORD=said
```

```sh
echo "$WORD in $(basename "$PWD") 12 times"; test -f ../data.jsonl
```
```text
said in inner 7 times
```

```python
number = 6 * 7
print(number, "is deadbeefdeadbeef")
```
```text
41 is 0123456789abcdef
```
"""


def test_the_harness_runs_a_page_from_top_to_bottom(tmp_path: Path) -> None:
    page = Page("docs/none.md", tmp_path / "page")
    page.run(PAGE)
    assert page.ran == 5 and page.names["number"] == 42 and page.work.name == "inner"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```sh\nfalse\n```\n", "exit code 1, expected 0"),
        ("```sh\nfalse | true\n```\n", "exit code 1"),
        ("```sh\ntrue\n# exit code 1\n```\n", "exit code 0, expected 1"),
        ("```sh\necho $UNSET\n```\n", "UNSET"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```sh\necho a\n```\n```text\nb\n```\n", "shown and printed differ"),
        ("```text\nb\n```\n", "nothing that was run"),
        ("```sh\necho b\n```\nA sentence.\n```text\nb\n```\n", "nothing that was run"),
        ("```toml\ndelat = 1e-6\n```\n", "delat"),
        ("```toml\n[[class]]\nname = 'a'\nclip_norm = -1.0\n```\n", "clip_norm"),
        ("```toml\n[run]\nmicrobatch = 'many'\n```\n", "microbatch"),
        ("```json\n{\n```\n", "JSONDecodeError"),
        ("```diff\n a = 1\n-b = 2\n+b = 1 / 0\n```\n", "ZeroDivisionError"),
        ("```\na\n```\n", "no language"),
        ("<!-- not run: no idea -->\n```sh\ntrue\n```\n", "is no reason of"),
        ("<!-- world: nowhere -->\n```sh\ntrue\n```\n", "there is no world 'nowhere'"),
        ("<!-- file: train.py -->\n```python\na = 1\n```\n", "no later block names train.py"),
    ],
)
def test_the_harness_finds_what_a_page_says_wrongly(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=re.escape(expected)):
        Page("docs/none.md", tmp_path / "page").run(text)


def test_a_comment_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ValueError, match="is none of"):
        blocks_of("<!-- wrld: own_data -->\n```sh\ntrue\n```\n")
    with pytest.raises(ValueError, match="not closed"):
        blocks_of("```sh\ntrue\n")


def test_settings_and_files_are_held_against_their_readers(tmp_path: Path) -> None:
    text = (
        "```toml\ndepth = { from = 0.5, to = 1.0 }\ndepth = { layers = [1] }\n```\n"
        '```toml\n[[class]]\nname = "open"\npublic = true\n\n[[noise.phase]]\nfrom_step = 1\nscale = 2.0\n```\n'
        '```toml\n[optimizer]\nname = "sgd"\n```\n'
        "<!-- file: train.py -->\n```python\nprint('trained')\n```\n```sh\npython train.py\n```\n```text\ntrained\n```\n"
        "1. In a list:\n\n   ```python\n   if True:\n       print('here')\n   ```\n"
    )
    page = Page("docs/none.md", tmp_path / "page")
    page.run(text)
    assert page.ran == 7


@pytest.mark.parametrize("name", list(WORLDS))
def test_a_world_has_what_it_says(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="worlds train: pip install 'dptrain[train]'")
    page = Page("docs/none.md", tmp_path / "page")
    page.run(f"<!-- world: {name} -->\n```sh\ntrue\n```\n")
    said = re.findall(r"`([\w./]+)`", WORLDS[name].__doc__ or "")
    assert said
    for word in said:
        assert word in page.names or (page.work / word).exists() or word in WORLDS or is_told(word), f"{name} has no {word}"


def is_told(word: str) -> bool:
    """Whether a word in the docstring of a world is neither a file nor a name: a column, a class, a key."""
    return word in {"label", "author", "text", "sensitive", "general", "owner", "alice", "shards", "run/keys/"}


@pytest.mark.parametrize(
    ("shown", "printed", "matches"),
    [
        ("a b 1\n", "a   b 2.5\n", True),
        ("a b\n", "a c\n", False),
        ("id ...\n", "id 5f1c\n", True),
        ("id ...\n", "id 5f1c\nmore\n", False),
        ("a\n...\nz\n", "a\nb\nc\nz\n", True),
        ("spent 1.2e-6\n", "spent 3\n", True),
        ("FULL\n", "FAILED\n", False),
        ("on 2026-11-01 10:00\n", "on 2027-01-31 09:59\n", True),
    ],
)
def test_words_are_compared_and_figures_are_not(shown: str, printed: str, matches: bool) -> None:
    assert is_shown(shown, printed) is matches
