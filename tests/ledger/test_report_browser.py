"""The report in a real browser: what is fetched, what fits, what can be read, reached by keyboard, and heard."""

import shutil
import subprocess
from itertools import pairwise

import pytest
from headless_chromium import CHROMIUM, Browser, Page
from report_ledgers import EXTRAS, varied_export

from ledger.audit import verify_export
from ledger.report import write_report
from tests.worlds.ledgers import SIGNER

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; apt-get install chromium")

WIDTHS = (320, 360, 400, 768, 1100)
"""CSS pixels: the least that WCAG 2.2 asks for (1.4.10, reflow), phones, a tablet, a desk."""

# Every text that is shown, with the least contrast between it and any colour behind it (WCAG 2.2, 1.4.3), as text: ratio.
CONTRAST = """
(() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3]));
  const light = c => c.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = element => {
    const chain = []; for (let e = element; e; e = e.parentElement) chain.push(parse(getComputedStyle(e).backgroundColor));
    return chain.reverse().reduce((below, c) => over(c, below), [255, 255, 255]);
  };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.data.trim();
    const box = element.getBoundingClientRect();
    if (!words || box.width < 2 || box.height < 2 || element.closest('title, desc, .hear')) continue;
    const style = getComputedStyle(element), below = behind(element);
    const ink = parse(element.closest('svg') ? style.fill : style.color);
    found.push([words.slice(0, 60), ratio(over(ink, below), below)]);
  }
  return found;
})()
"""

# Every line, mark and bar with its contrast to the page (WCAG 2.2, 1.4.11).
STROKES = """
(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const paper = light(parse(getComputedStyle(document.body).backgroundColor));
  return [...document.querySelectorAll('svg .line, svg .mark, svg .bar, svg .base')].map(e => {
    const style = getComputedStyle(e), ink = light(parse(e.matches('.bar') ? style.fill : style.stroke));
    return [e.getAttribute('class'), (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05)];
  });
})()
"""

# What reaches beyond the screen, outside of the parts that scroll by themselves.
OVERFLOW = """
[...document.querySelectorAll('body *')].filter(e => !e.matches('.skip') && !e.closest('.scroll > *')
  && e.getBoundingClientRect().width > 0 && e.getBoundingClientRect().right > innerWidth + .5)
  .map(e => e.tagName + ' ' + e.textContent.trim().slice(0, 40))
"""

# Text of the drawings that is shown and reaches out of its drawing, or is smaller than 10 pixels.
SVG_TEXT = """
[...document.querySelectorAll('svg text')].filter(t => t.getBoundingClientRect().width > 0).filter(t => {
  const own = t.getBoundingClientRect(), all = t.ownerSVGElement.getBoundingClientRect();
  const scale = all.width / t.ownerSVGElement.viewBox.baseVal.width;
  return own.left < all.left - 1 || own.right > all.right + 1 || own.top < all.top - 1 || own.bottom > all.bottom + 1
    || parseFloat(getComputedStyle(t).fontSize) * scale < 10;
}).map(t => t.textContent)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("varied")
    export = varied_export(base)
    report = verify_export(export, [SIGNER.vkey])
    assert report.verdict == "TOLD", report.findings
    write_report(export, base / "plain.html", report=report)
    return write_report(export, base / "report.html", report=report, extras=EXTRAS)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as started:
        yield started


@pytest.fixture
def page(browser, path):
    return browser.open(path.as_uri())


def unfold(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")


def test_nothing_but_the_page_is_fetched_and_the_browser_has_nothing_to_complain_of(page, path):
    unfold(page)
    assert page.requested() == [path.as_uri()] and page.complaints() == []
    assert page.evaluate("document.scripts.length + document.images.length + document.querySelectorAll('[style]').length") == 0


def test_the_policy_of_the_page_stops_what_slips_in(browser, path, tmp_path):
    """The last line of defence: were a hostile word ever markup, it could neither run, nor fetch, nor restyle."""
    (tmp_path / "stolen.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    slipped = (
        "<script>document.title = 'owned'</script><p id='p' style='color: rgb(1, 2, 3)' onclick='document.title = 1'>x</p>"
        "<img src='stolen.svg' onerror=\"document.title = 'owned'\"><style>#p { color: rgb(1, 2, 3) }</style>"
        "<form id='f' action='stolen.svg'></form>"
    )
    tampered = tmp_path / "tampered.html"
    tampered.write_text(path.read_text(encoding="utf-8").replace("</main>", f"{slipped}</main>"), encoding="utf-8")
    page = browser.open(tampered.as_uri())
    page.evaluate("document.getElementById('p').click()")
    assert page.evaluate("document.title").startswith("Privacy ledger of")
    assert page.evaluate("getComputedStyle(document.getElementById('p')).color") != "rgb(1, 2, 3)"
    assert page.evaluate("document.images[0].naturalWidth") == 0
    refused = " ".join(page.complaints())
    assert all(directive in refused for directive in ("script-src", "style-src", "img-src")), refused


@pytest.mark.one_in(99)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_reaches_beyond_the_screen(page, width):
    page.resize(width, mobile=width < 700)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERFLOW) == []
    assert page.evaluate(SVG_TEXT) == []


def test_on_a_phone_the_verdict_is_on_the_first_screen_and_before_the_contents(page):
    page.resize(360, mobile=True)
    box = "document.querySelector('{}').getBoundingClientRect()"
    assert page.evaluate(f"{box.format('.verdict')}.bottom") < 400
    assert page.evaluate(f"{box.format('.tiles')}.bottom <= {box.format('nav')}.top")


def test_on_a_phone_what_was_not_verified_begins_on_the_first_screen_and_nothing_is_between_it_and_the_verdict(page):
    page.resize(400, 860, mobile=True)
    box = "document.querySelector('{}').getBoundingClientRect()"
    assert page.evaluate(f"{box.format('.open')}.top - {box.format('.verdict')}.bottom") < 40
    assert page.evaluate(f"{box.format('.open')}.top") < 430


def test_on_a_desk_it_stands_beside_the_verdict_and_the_classes_and_who_vouches_are_on_the_first_screen(page):
    page.resize(1100, 900)
    box = "document.querySelector('{}').getBoundingClientRect()"
    assert page.evaluate(f"{box.format('.open')}.left >= {box.format('.verdict')}.right")
    assert abs(page.evaluate(f"{box.format('.open')}.top - {box.format('.verdict')}.top")) < 30
    assert page.evaluate(f"{box.format('.tiles')}.bottom") < 900 and page.evaluate(f"{box.format('.vouch')}.top") < 800


def test_on_a_phone_no_bar_is_cut_so_that_their_lengths_can_be_compared(page):
    page.resize(360, mobile=True)
    ends = "filter(e => e.checkVisibility()).map(e => e.getBoundingClientRect().right)"
    bars = page.evaluate(f"[...document.querySelectorAll('td svg.inline')].{ends}")
    assert len(bars) >= 8 and max(bars) <= 360 - 14


# Words of tables and lists that are broken in the middle: one word on two lines. Digests and file names may be.
BROKEN_WORDS = """
(() => {
  const found = [], walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentElement.closest('code, pre, svg, .hear')) continue;
    for (const match of node.data.matchAll(/[A-Za-z]{4,}/g)) {
      const range = document.createRange();
      range.setStart(node, match.index); range.setEnd(node, match.index + match[0].length);
      const tops = new Set([...range.getClientRects()].filter(r => r.width > 1).map(r => Math.round(r.top)));
      if (tops.size > 1 && match[0].length < 25) found.push(match[0]);
    }
  }
  return found;
})()
"""


@pytest.mark.parametrize("width", [360, 768])
def test_no_word_is_broken_on_a_phone(browser, path, width):
    """Of the page without extras, whose words may be anything."""
    page = browser.open((path.parent / "plain.html").as_uri())
    page.resize(width, mobile=width < 700)
    unfold(page)
    assert page.evaluate(BROKEN_WORDS) == []


def test_text_of_twice_the_size_still_fits(page):
    page.resize(1024)
    page.evaluate("document.documentElement.style.fontSize = '200%'")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1024 and page.evaluate(OVERFLOW) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_and_every_line_has_contrast(page, scheme):
    page.media(prefers_color_scheme=scheme)
    page.resize(1100)
    unfold(page)
    words = page.evaluate(CONTRAST)
    assert len(words) > 200 and [(word, ratio) for word, ratio in words if ratio < 4.5] == []
    lines = page.evaluate(STROKES)
    assert len(lines) > 20 and [(kind, ratio) for kind, ratio in lines if ratio < 3] == []
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is (scheme == "light")


def test_the_darkest_shade_of_the_heat_map_can_be_read(page):
    """The page at hand may not use every shade, and the style sheet has them all."""
    for scheme in ("light", "dark"):
        page.media(prefers_color_scheme=scheme)
        for shade in range(8):
            page.evaluate(f"document.querySelectorAll('td.heat').forEach(cell => cell.className = 'heat h{shade}')")
            assert [pair for pair in page.evaluate(CONTRAST) if pair[1] < 4.5] == []


def test_whoever_hears_the_page_finds_landmarks_headings_figures_and_tables_by_name(page):
    page.resize(360, mobile=True)
    unfold(page)
    heard = page.heard()
    roles = [role for role, _ in heard]
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert roles.count(landmark) == 1
    assert all(name for role, name in heard if role in {"image", "table", "navigation", "heading", "link"})
    figures = [name for role, name in heard if role == "image"]
    assert figures == ["ε per class over the run", "Contributions of class open by ε", "Contributions of class sensitive by ε"]
    assert roles.count("table") == len({name for role, name in heard if role == "table"}) >= 12
    assert ("rowheader", "layer.6 … head") in heard
    cells = [name for role, name in heard if role == "cell"]
    assert "may not touch" in " ".join(name for _, name in heard) and "–" not in cells
    assert not any(role == "image" and not name for role, name in heard)


def test_every_figure_is_described_and_its_numbers_stand_in_a_table_beside_it(page):
    told = page.evaluate(
        "[...document.querySelectorAll('svg[role=img]')].map(svg => ["
        "document.getElementById(svg.getAttribute('aria-describedby')).textContent,"
        "svg.closest('figure').querySelectorAll('details table').length])"
    )
    assert len(told) == 4  # the lines are drawn twice, for wide and for narrow screens; one of them is shown
    assert all("The table below has every figure" in words and tables == 1 for words, tables in told)
    page.resize(1100)
    assert [role for role, _ in page.heard()].count("image") == 3


def test_headings_do_not_skip_a_level(page):
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_all_of_it_can_be_reached_and_opened_by_keyboard_and_focus_is_seen(page):
    page.resize(1100)
    page.press("Tab", 9)
    focused = "(() => { const e = document.activeElement, box = e.getBoundingClientRect(), s = getComputedStyle(e);"
    focused += " return [e.tagName, e.textContent.slice(0, 20), box.left, s.outlineStyle, e.getAttribute('role')]; })()"
    tag, words, left, outline, _ = page.evaluate(focused)
    assert (tag, words) == ("A", "Skip to the verdict") and left >= 0 and outline == "solid"
    stops, opened = [], 0
    for _ in range(200):
        page.press("Tab", 9)
        tag, words, left, outline, role = page.evaluate(focused)
        if tag in {"BODY", "HTML"}:
            break
        assert outline == "solid" and left >= 0, (tag, words)
        stops.append((tag, role))
        if tag == "SUMMARY":
            page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
            page.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter", windowsVirtualKeyCode=13)
            opened += page.evaluate("document.activeElement.parentElement.open")
    folded = page.evaluate("document.querySelectorAll('details').length")
    assert opened == folded == sum(tag == "SUMMARY" for tag, _ in stops)
    assert sum(role == "group" for _, role in stops) == page.evaluate("document.querySelectorAll('[tabindex=\"0\"]').length")
    assert stops.count(("A", None)) == page.evaluate("document.querySelectorAll('main a').length")


def test_a_link_of_the_contents_leads_to_its_heading(page):
    targets = page.evaluate(
        "[...document.querySelectorAll('nav a')].map(a => [a.textContent, document.querySelector(a.hash + ' h2').textContent])"
    )
    assert page.evaluate("[...document.querySelectorAll('main a')].every(a => document.querySelector(a.hash))")
    assert len(targets) >= 8 and all(link == heading for link, heading in targets)


def test_on_paper_it_is_light_all_folded_parts_are_shown_and_nothing_is_cut_off(page):
    page.media("print", prefers_color_scheme="dark")
    page.resize(700)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    heights = page.evaluate(
        "[...document.querySelectorAll('details table')]"
        ".map(t => t.checkVisibility({contentVisibilityAuto: true}) && t.getBoundingClientRect().height)"
    )
    assert len(heights) >= 5 and all(height and height > 20 for height in heights)
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="there is no pdftotext; apt-get install poppler-utils")
def test_the_printed_page_has_every_figure(page, tmp_path):
    page.media("")
    (tmp_path / "report.pdf").write_bytes(page.pdf())
    words = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "report.pdf", "-"], capture_output=True, check=True, text=True
    ).stdout
    for expected in (
        "TOLD",
        "Figures of this chart",
        "CLASS_NOT_GRANTED",
        "What each had spent when it left",
        "never admitted",
        "model digest",
    ):
        assert expected in words, expected


def test_words_of_another_writing_do_not_reorder_their_neighbours(browser, path, tmp_path):
    """Foreign text that may run from right to left stands in a cell of its own, and moves nothing outside of it."""
    page = browser.open(path.as_uri())
    assert page.evaluate(
        "[...document.querySelectorAll('td, th, code')].every(e => getComputedStyle(e).unicodeBidi.includes('isolate'))"
    )
