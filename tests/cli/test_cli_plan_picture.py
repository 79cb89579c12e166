"""`dptrain plan`: the picture, on a screen and in files, and signal against noise."""

import io
import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from attest.policy import Policy
from dptrain.cli import output
from dptrain.planning.figures import PALETTE, Canvas, Rect, Stroke, Words
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
    titles = [title.text for rect in root.iter(f"{SVG}rect") for title in rect.findall(f"{SVG}title")]
    reached = [block for item in plan["classes"] for block in item["blocks"]]
    assert [title for title in titles if ":" not in title] == reached
    assert {title.partition(":")[0] for title in titles if ":" in title} == {block["name"] for block in plan["blocks"]}
    shell.run("plan", "policy.toml", "--layers", "4", "--plot", "plan.html")
    page = Tables()
    page.feed((shell.directory / "plan.html").read_text())
    assert {"sensitive", "epsilon", "layer.3", "0.6"} <= set(page.cells)
    assert "http" not in (shell.directory / "plan.html").read_text().replace("http://www.w3.org/2000/svg", "")


def test_names_from_a_policy_cannot_break_out_of_a_figure(shell, policy):
    shell.write("odd.toml", policy.read_text().replace("{ from = 0.75, to = 1.0 }", '{ set = ["[!a]*"] }'))
    shell.run("plan", "odd.toml", "--plot", "odd.svg")
    ElementTree.parse(shell.directory / "odd.svg")


def test_figures_are_refused_before_anything_is_computed(shell, policy, monkeypatch):
    monkeypatch.setattr("dptrain.cli.plan.commands.make_plan", lambda *_, **__: 1 / 0)
    shell.write("there.svg", "mine")
    for name in ("there.svg", "plan.pdf", "plan", "nowhere/plan.svg"):
        assert shell.json("plan", "policy.toml", "--plot", name, code=2)["error"]["code"] == "USAGE"
    assert (shell.directory / "there.svg").read_text() == "mine"


def test_a_png_without_matplotlib_says_what_to_install(shell, policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    error = shell.json("plan", "policy.toml", "--plot", "plan.png", code=1)["error"]
    assert error["code"] == "PLOT_EXTRA_MISSING" and "pip install 'dptrain[plot]'" in error["sentence"]


def pixels(path: Path) -> list[list[str]]:
    """Colours of an image, row by row: matplotlib is in the extra `dev`, so this never goes untested."""
    from matplotlib.image import imread

    return [["#" + "".join(f"{round(255 * float(v)):02x}" for v in dot[:3]) for dot in row] for row in imread(path)]


def test_a_png_shows_what_the_svg_shows(tmp_path):
    canvas = Canvas(60, 40, "title")
    canvas.add(
        Rect(10, 10, 20, 8, PALETTE[0]),
        Rect(40, 10, 10, 8, PALETTE[1], opacity=0.5),
        Stroke(((5, 30), (55, 30)), PALETTE[2], width=3),
        Rect(12, 12, 4, 4, PALETTE[3]),
        Words(30, 38, "$x_1^{", size=6),  # no formula: a name from a policy must not be typeset
    )
    canvas.write(tmp_path / "one.png")
    dots = pixels(tmp_path / "one.png")  # two for every unit
    assert (len(dots[0]), len(dots)) == (120, 80)
    assert dots[30][50] == PALETTE[0] and dots[26][28] == PALETTE[3] and dots[60][60] == PALETTE[2]
    half = [round((int(PALETTE[1][i : i + 2], 16) + 255) / 2) for i in (1, 3, 5)]
    assert all(abs(int(dots[28][90][i : i + 2], 16) - v) <= 2 for i, v in zip((1, 3, 5), half, strict=True))
    assert dots[2][2] == dots[50][110] == "#ffffff"
    assert any(dot != "#ffffff" for row in dots[64:78] for dot in row), "words are drawn too"


@pytest.mark.slow
def test_a_plan_and_a_curve_as_png_have_the_colours_of_the_svg(shell, policy):
    asked = "account --noise-multiplier 1 --sampling-rate 1 --steps 4 --delta 1e-5 --curve steps"
    for name, command in (("plan", ["plan", "policy.toml", "--layers", "4"]), ("curve", asked.split())):
        shell.run(*command, "--plot", f"{name}.svg")
        shell.run(*command, "--plot", f"{name}.png")
        root = ElementTree.parse(shell.directory / f"{name}.svg").getroot()
        dots = pixels(shell.directory / f"{name}.png")
        assert (len(dots[0]), len(dots)) == (2 * round(float(root.get("width"))), 2 * round(float(root.get("height"))))
        found = {dot for row in dots for dot in row}
        lines = {item.get("stroke") for item in root.iter(f"{SVG}polyline")}
        whole = {item.get("fill") for item in root.iter(f"{SVG}rect") if not item.get("fill-opacity")}
        assert lines | whole > {"#ffffff"} and lines | whole <= found, name


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
