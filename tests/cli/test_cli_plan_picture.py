"""`dptrain plan`: the picture, on a screen and in files, and signal against noise."""

import io
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from attest.policy import Policy
from dptrain.cli import output
from dptrain.planning.figures import PALETTE, plan_figure, plan_tables
from dptrain.planning.picture import ASCII, UNICODE, phase_picture, plan_picture
from dptrain.planning.plan import make_plan

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(text: str, layers: int, glyphs=ASCII) -> list[str]:
    plan = make_plan(Policy.from_toml(text), layers)
    return ["".join(piece for piece, _ in line) for line in [*plan_picture(plan, glyphs), *phase_picture(plan.phases, glyphs)]]


def test_a_bar_covers_the_blocks_that_a_class_may_touch(policy):
    _, sensitive, public, noise = drawn(policy.read_text(), 4)
    assert sensitive.split()[1] == ".|...#|#"
    assert public.split()[1] == "#|####|#"
    assert noise.split()[1] == "5|5558|8"  # 0.4 of 0.6, in eighths
    assert "z 1.2, epsilon 3." in sensitive and "0.4 to 0.6" in noise


def test_deep_stacks_share_columns_and_half_a_column_is_marked(policy):
    _, sensitive, _, _ = drawn(policy.read_text().replace("from = 0.75", "from = 0.76"), 96)
    bar = sensitive.split()[1]
    assert len(bar) == 52 and bar == ".|" + "." * 36 + "#" * 12 + "|#"
    _, sensitive, _, _ = drawn(policy.read_text().replace("from = 0.75", "from = 0.77"), 96)
    assert sensitive.split()[1] == ".|" + "." * 36 + "+" + "#" * 11 + "|#"


def test_public_classes_and_blocks_by_name_are_told_apart(policy):
    text = policy.read_text()
    text = text.replace("clip_norm = 0.5\nnoise_multiplier = 0.8\n", "public = true\n").replace(
        "{ from = 0.75, to = 1.0 }", '{ set = ["vision.*"] }'
    )
    lines = drawn(text, 4)
    assert "and 1 block by name" in lines[1] and lines[1].split()[1] == ".|....|."
    assert lines[2].split()[1:] == ["o|oooo|o", "public"]


def test_phases_are_a_picture_over_steps(policy):
    text = policy.read_text()
    assert phase_picture(make_plan(Policy.from_toml(text), 4).phases, ASCII) == []
    text = text.replace(
        "[[class]]", "[[noise.phase]]\nfrom_step = 1\nscale = 2\n[[noise.phase]]\nfrom_step = 11\nscale = 1\n[[class]]", 1
    )
    lines = drawn(text, 4)
    assert lines[-2].split()[3] == "|" + "8" * 10 + "4" * 10 + "|"
    assert lines[-1].strip() == "x2 from step 1, x1 from step 11"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("encoding", "glyphs"), [("utf-8", UNICODE), ("ascii", ASCII), ("latin-1", ASCII)])
@pytest.mark.slow
def test_a_screen_without_unicode_gets_plain_characters(policy, encoding, glyphs):
    """Also an epsilon without bound, which is shown by a character that ASCII lacks."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    for arguments in (
        ["plan", str(policy)],
        ["account", *["--noise-multiplier", "0", "--sampling-rate", "1", "--steps", "1", "--delta", "1e-5"]],
    ):
        done = subprocess.run([sys.executable, "-m", "dptrain", *arguments], env=environment, capture_output=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, b"")
        shown = done.stdout.decode(encoding)
        assert (glyphs.wall + glyphs.outside in shown) or "account" in arguments
        assert ("∞" in shown, "inf" in shown) == ((encoding == "utf-8"), (encoding != "utf-8")) or "plan" in arguments


class Tables(HTMLParser):
    """Cells of the tables of a page."""

    def __init__(self):
        super().__init__()
        self.cells, self.inside = [], False

    def handle_starttag(self, tag, attributes):
        self.inside = tag in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.cells.append(data)
            self.inside = False


def test_the_plan_is_drawn_to_files(shell, policy):
    plan = shell.json("plan", "policy.toml", "--layers", "4")
    shell.run("plan", "policy.toml", "--layers", "4", "--plot", "plan.svg")
    root = ElementTree.parse(shell.directory / "plan.svg").getroot()
    bars = [group.get("id") for group in root.iter(f"{SVG}g") if "/" in group.get("id", "")]
    reached = [f"{item['name']}/{block}" for item in plan["classes"] for block in item["blocks"]]
    assert [bar for bar in bars if not bar.startswith("noise/")] == reached
    assert {bar for bar in bars if bar.startswith("noise/")} == {f"noise/{block['name']}" for block in plan["blocks"]}
    assert root.findtext(f"{SVG}title") == "clinic-notes-2026: 20 steps"
    shell.run("plan", "policy.toml", "--layers", "4", "--plot", "plan.html")
    page = Tables()
    page.feed((shell.directory / "plan.html").read_text())
    assert {"sensitive", "epsilon", "layer.3", "0.6"} <= set(page.cells)
    for name in ("plan.svg", "plan.html"):
        source = (shell.directory / name).read_text()
        assert not re.search(r"https?:|<!DOCTYPE svg|@import|<script|<image", re.sub(r'xmlns(:xlink)?="[^"]*"', "", source))


def test_names_from_a_policy_cannot_break_out_of_a_figure(tmp_path, policy):
    plan = make_plan(Policy.from_toml(policy.read_text().replace("{ from = 0.75, to = 1.0 }", '{ set = ["[!a]*"] }')), 4)
    hostile = "<script>$x^{</title>\x1b\u202e"
    for name in ("odd.svg", "odd.html", "odd.png"):
        plan_figure(plan, hostile, hostile).write(tmp_path / name, plan_tables(plan, hostile))
    root = ElementTree.parse(tmp_path / "odd.svg").getroot()
    assert "sensitive/set [!a]*" in {group.get("id") for group in root.iter(f"{SVG}g")}
    assert root.findtext(f"{SVG}title") == "<script>$x^{</title>\\x1b\\u202e"
    page = (tmp_path / "odd.html").read_text()
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page and page.count("</title>") == 2


def test_figures_are_refused_before_anything_is_computed(shell, policy, monkeypatch):
    monkeypatch.setattr("dptrain.cli.plan.make_plan", lambda *_, **__: 1 / 0)
    shell.write("there.svg", "mine")
    for name in ("there.svg", "plan.pdf", "plan", "nowhere/plan.svg"):
        assert shell.json("plan", "policy.toml", "--plot", name, code=2)["error"]["code"] == "USAGE"
    assert (shell.directory / "there.svg").read_text() == "mine"


@pytest.mark.parametrize("suffix", ["svg", "html", "png"])
def test_a_figure_without_matplotlib_says_what_to_install_before_anything_is_computed(shell, policy, monkeypatch, suffix):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("dptrain.cli.plan.make_plan", lambda *_, **__: 1 / 0)
    error = shell.json("plan", "policy.toml", "--plot", f"plan.{suffix}", code=1)["error"]
    assert error["code"] == "PLOT_EXTRA_MISSING" and "pip install 'dptrain[plot]'" in error["sentence"]


def test_without_matplotlib_a_plan_still_has_its_picture_on_the_terminal(shell, policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "noise" in shell.run("plan", "policy.toml", "--layers", "4").stdout


def colours(path: Path) -> set[str]:
    """Colours of an image: matplotlib is in the extra `dev`, so this never goes untested."""
    from matplotlib.image import imread

    dots = (imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    return {f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in {tuple(dot) for dot in dots.tolist()}}


@pytest.mark.parametrize(
    "command",
    [
        "plan policy.toml --layers 4",
        pytest.param(
            "account --noise-multiplier 1 --sampling-rate 1 --steps 4 --delta 1e-5 --curve steps", marks=pytest.mark.slow
        ),
    ],
)
def test_a_plan_and_a_curve_have_the_same_colours_as_png_and_as_svg(shell, policy, command):
    shell.run(*command.split(), "--plot", "made.svg")
    shell.run(*command.split(), "--plot", "made.png")
    source = (shell.directory / "made.svg").read_text()
    ElementTree.fromstring(source)
    assert {*PALETTE[:2], "#ffffff"} <= colours(shell.directory / "made.png") & set(re.findall("#[0-9a-f]{6}", source))


def test_a_deep_stack_with_phases_is_drawn_and_public_classes_are_pale(shell, policy):
    text = policy.read_text().replace("clip_norm = 0.5\nnoise_multiplier = 0.8\n", "public = true\n")
    phases = "[[noise.phase]]\nfrom_step = 1\nscale = 2\n[[noise.phase]]\nfrom_step = 11\nscale = 1\n[[class]]"
    shell.write("deep.toml", text.replace("[[class]]", phases, 1))
    shell.run("plan", "deep.toml", "--layers", "96", "--plot", "deep.svg")
    root = ElementTree.parse(shell.directory / "deep.svg").getroot()
    styles = {group.get("id"): group[0].get("style") for group in root.iter(f"{SVG}g") if "/" in group.get("id", "")}
    assert "opacity: 0.35" in styles["public/layer.0"] and "opacity" not in styles["sensitive/layer.95"]
    words = [word.text for word in root.iter(f"{SVG}text")]
    assert "times the noise" in words and "public: nothing is promised" in words


def norms(shell, **found: float) -> list[dict]:
    shell.write("norms.json", json.dumps(found))
    arguments = ("--gradient-norms", "norms.json", "--contributions", "sensitive=50", "--contributions", "public=3")
    return shell.json("plan", "policy.toml", "--layers", "4", *arguments)["signals"]


def test_signal_is_the_clipped_norm_over_the_noise(shell, policy):
    """Clipped as training clips, over all blocks of the class together."""
    found = norms(shell, **{"*": 0.3, "sensitive/head": 0.4})
    of_class = [item for item in found if item["class"] == "sensitive"]
    assert [(item["block"], item["gradient_norm"]) for item in of_class] == [("layer.3", 0.3), ("head", 0.4)]
    assert [item["clipped_norm"] for item in of_class] == [0.3, 0.4]  # norm 0.5 is the clip norm
    assert of_class[1]["signal_of_one"] == pytest.approx(0.4 / 0.6)
    assert of_class[1]["signal_of_step"] == pytest.approx(50 * 0.1 * 0.4 / 0.6)
    assert of_class[1]["signal_of_run"] == pytest.approx(math.sqrt(20) * 50 * 0.1 * 0.4 / 0.6)
    doubled = [item for item in norms(shell, **{"*": 0.6, "sensitive/head": 0.8}) if item["class"] == "sensitive"]
    assert [item["clipped_norm"] for item in doubled] == pytest.approx([0.3, 0.4])


def test_without_counts_no_step_is_claimed(shell, policy):
    shell.write("norms.json", '{"*": 0.3}')
    answer = shell.json("plan", "policy.toml", "--gradient-norms", "norms.json")
    assert {item["signal_of_step"] for item in answer["signals"]} == {None}
    assert "?: give a CORPUS" in shell.run("plan", "policy.toml", "--gradient-norms", "norms.json").stdout


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "{", '{"*": NaN}', '{"*": -1}', '{"*": "1"}', '{"*": true}', '{"layer.0": 1}', '{"*": 1, "layre.0": 1}'],
)
def test_norms_that_cannot_be_used_are_refused(shell, policy, text):
    shell.write("norms.json", text)
    error = shell.json("plan", "policy.toml", "--gradient-norms", "norms.json", code=1)["error"]
    assert error["code"] == "GRADIENT_NORMS"
    assert "layer.0" in error["sentence"] or "layre" not in text


def test_a_narrow_terminal_gets_a_list_and_no_broken_number(monkeypatch):
    rows = output.table("class", "epsilon", "if content replaced")
    rows.add_row("sensitive", "1.500", "2.496")
    for width, whole in ((20, False), (120, True)):
        screen = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, soft_wrap=True)
        monkeypatch.setattr(output, "console", lambda screen=screen: screen)
        output.print_table(rows)
        shown = screen.file.getvalue()
        assert "1.500" in shown and ("  if content replaced: 2.496" in shown) is not whole


def test_a_figure_says_what_its_epsilons_are_about(shell, policy):
    shell.run("plan", "policy.toml", "--plot", "plan.html")
    page = (shell.directory / "plan.html").read_text()
    assert page.count("delta 1e-06, pld, zero-out") == 2 and "all redone" in page and "Phases of the noise" in page
