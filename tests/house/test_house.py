"""The house is counted right: on small trees whose circles, arrows and sentences are known by hand."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.house import __main__ as command
from tests.house import arrows, known, prose
from tests.house.layers import TABLE, Drawing
from tests.house.modules import Code

DRAWING = """
packages = ["low", "high"]
presentation = ["high.shown"]

[[low]]
stone = ["stone"]

[[high]]
roof = ["roof"]

[[high]]
wall = ["wall"]
door = ["shown"]

[[high]]
floor = ["floor"]
"""


def tree(root: Path, files: Mapping[str, str]) -> Code:
    for name, text in {"low/__init__.py": "", "low/stone.py": "", "high/__init__.py": "", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Code(root, ["low", "high"])


def test_an_import_is_told_apart_by_when_it_happens_and_leads_to_the_module_that_it_names(tmp_path: Path) -> None:
    text = """
import low.stone, os
from typing import TYPE_CHECKING
from .wall.brick import red
try:
    from high import floor
finally:
    pass
if TYPE_CHECKING:
    from high.wall import brick, colour
else:
    import high.shown
def late():
    from . import roof2
"""
    files = {"high/roof.py": text, "high/wall/__init__.py": "from ..floor import f", "high/wall/brick.py": "red = colour = 1"}
    code = tree(tmp_path, {**files, "high/floor.py": "", "high/shown.py": "", "high/roof2.py": ""})
    assert code.arrows == {
        ("high.roof", "low.stone", "start"),
        ("high.roof", "high.wall.brick", "start"),
        ("high.roof", "high.floor", "start"),
        ("high.roof", "high.wall.brick", "typing"),
        ("high.roof", "high.wall", "typing"),
        ("high.roof", "high.shown", "start"),
        ("high.roof", "high.roof2", "call"),
        ("high.wall", "high.floor", "start"),
    }


def test_circles_are_found_by_every_kind_of_import_and_between_rooms_where_no_two_modules_make_one(tmp_path: Path) -> None:
    files = {
        "high/roof.py": "def f():\n    import high.floor",
        "high/floor.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import high.roof",
        "high/wall/__init__.py": "",
        "high/wall/a.py": "import high.shown.a",
        "high/wall/b.py": "",
        "high/shown/__init__.py": "",
        "high/shown/a.py": "",
        "high/shown/b.py": "import high.wall.b",
    }
    code = tree(tmp_path, files)
    assert arrows.circles(arrows.between_modules(code)) == [("high.floor", "high.roof")]
    assert arrows.circles(arrows.between_modules(code, ("start", "call"))) == []
    assert arrows.circles(arrows.between_modules(code, ("start", "typing"))) == []
    assert arrows.circles(arrows.between_rooms(code)) == [("high.floor", "high.roof"), ("high.shown", "high.wall")]


@pytest.mark.parametrize("number", [2, 3, 30])
def test_a_ring_is_one_circle_and_what_hangs_on_it_is_none(number: int) -> None:
    ring = {(str(one), str((one + 1) % number)) for one in range(number)}
    assert arrows.circles(ring | {("in", "0"), ("0", "out"), ("in", "out")}) == [tuple(sorted(map(str, range(number))))]


def test_arrows_go_up_between_layers_and_packages_and_never_within_a_layer(tmp_path: Path) -> None:
    files = {
        "low/stone.py": "import high.floor",
        "high/floor.py": "import high.wall, low.stone",
        "high/wall.py": "import high.shown, high",
        "high/roof.py": "import high.floor, high.nowhere",
        "high/shown.py": "",
        "high/nowhere.py": "import high.roof",
    }
    code, drawing = tree(tmp_path, files), Drawing(DRAWING)
    assert arrows.upward(arrows.between_rooms(code), drawing) == [
        ("high.floor", "high.wall"),
        ("high.wall", "high"),
        ("low.stone", "high.floor"),
    ]
    rooms = {module.room for module in code.modules.values()}
    assert drawing.without_place(rooms) == ["high.nowhere"]
    assert drawing.without_room(rooms - {"high.roof"}) == ["high.roof"]


def test_a_room_has_one_place_in_the_drawing() -> None:
    with pytest.raises(ValueError, match=r"high\.wall more than once"):
        Drawing(DRAWING.replace('["floor"]', '["floor", "wall"]'))


def test_known_circles_may_only_become_smaller_and_go() -> None:
    listed = [{"a", "b", "c", "d"}, {"x", "y"}]
    assert known.differences("circles", listed, listed) == []
    (new,) = known.differences("circles", [*listed, {"p", "q"}], listed)
    assert new.startswith("new in circles: p, q; move what they share")
    grown = known.differences("circles", [{"a", "b", "c", "d"}, {"x", "y", "z"}], listed)
    assert [sentence.split(";")[0] for sentence in grown] == ["new in circles: x, y, z", "gone from circles: x, y"]
    (smaller,) = known.differences("circles", [{"a", "b"}, {"c", "d"}, {"x", "y"}], listed)
    assert "of a, b, c, d is left a, b and c, d; write that in its place" in smaller
    (gone,) = known.differences("circles", [{"x", "y"}], listed)
    assert gone == "gone from circles: a, b, c, d; take it off known.toml, so that it cannot come back"


def test_a_folder_is_full_above_twelve_files_beside_its_door(tmp_path: Path) -> None:
    rooms = {f"high/wall/room{number}.py": "" for number in range(12)}
    full = known.found(tree(tmp_path, {**rooms, "high/wall/__init__.py": ""}), Drawing(DRAWING))["full_folders"]
    assert full == []
    full = known.found(tree(tmp_path, {"high/wall/room12.py": ""}), Drawing(DRAWING))["full_folders"]
    assert full == [{"high/wall"}]


def test_sentences_are_those_of_paragraphs_and_lists_with_code_as_one_word() -> None:
    page = """# A heading is no sentence.

One two three. Four `a b c` six!
Seven
eight (nine [ten eleven](https://example.org/a.b)). <!-- not this. -->

| tables | are none. |

* an item of five words
* two – items

```
no code. at all.
```
"""
    assert prose.sentences(page) == [3, 3, 5, 5, 2]


def test_docstrings_that_ask_are_found_on_functions_and_attributes(tmp_path: Path) -> None:
    text = '"""Whatever."""\nx = 1\n"""How many."""\n'
    text += 'def f():\n    """Which one, and\n    what of it."""\nclass C:\n    """Says what."""\n'
    code = tree(tmp_path, {"high/roof.py": text})
    assert prose.questions(code.modules.values()) == ["high.roof: How many.", "high.roof: Which one, and"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is absent")
def test_the_state_of_a_revision_stands_beside_that_of_the_files_with_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    surface = "class PrivateTraining:\n    def open(cls, a, *, b): ...\n    def close(self): ...\n    def _own(self): ...\n"
    tree(tmp_path, {str(TABLE): DRAWING, "high/roof.py": surface, "high/shown.py": "1\n"})
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "high/shown.py").write_text("import high.roof\n" * 6)
    asked = ["house", "--root", str(tmp_path), "--against", "HEAD"]

    monkeypatch.setattr("sys.argv", [*asked, "--json"])
    assert command.main() == 0
    states = json.loads(capsys.readouterr().out)
    before, here = states["HEAD"], states["here"]
    assert (before["product"]["lines"]["value"], here["product"]["lines"]["value"]) == (5, 10)
    assert (before["high"]["presentation"]["value"], here["high"]["presentation"]["value"]) == (20.0, 60.0)
    assert before["high"]["upward"] == {"value": 0}
    assert here["high"]["upward"] == {"value": 1, "names": ["high.shown -> high.roof"]}
    assert here["high"]["methods"]["names"] == ["open", "close"] and here["high"]["parameters"]["names"] == ["a", "b"]
    assert here["product"]["one_importer"] == {"value": 1, "names": ["high.roof"]} and here["low"]["methods"]["value"] is None

    monkeypatch.setattr("sys.argv", [*asked, "--list", "upward"])
    assert command.main() == 0
    shown = capsys.readouterr().out
    assert "lines" in shown and "2.00" in shown and "  high.shown -> high.roof" in shown

    monkeypatch.setattr("sys.argv", [*asked[:-1], "nowhere"])
    assert command.main() == 1
    assert "git has no tree of nowhere" in capsys.readouterr().err
