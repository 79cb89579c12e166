"""Row E8 of the attack list: names and texts of others that would say something of their own in card, disclosure or ML-BOM."""

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from attest.schema.plain import visible
from ledger.errors import ReleaseRefused
from ledger.published import WRITERS, About, bom, card, disclosure_json, disclosure_page, plain
from ledger.published.bundles import canonical
from ledger.release import Publish, check_release, release
from ledger.release.contents import TEXT, Looker
from ledger.release.publishing import facts_of
from ledger.replay.influence import Artifact
from tests.ledger.release_models import model, run_to_the_end
from tests.worlds.ledgers import SIGNER

yaml = pytest.importorskip("yaml")
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])

HOSTILE = [
    "<script>alert(1)</script>", "<!-- -->", "--> <b>bold</b>", "&lt;b&gt; &#60;", "[text](https://evil.example)",
    "![image](https://evil.example/x.png)", "<https://evil.example>", "https://evil.example", "www.evil.example", "`code`",
    "``", "```", "~~~", "**bold**", "__bold__", "~~gone~~", "# heading", "## What was verified", "- item", "+ item", "* item",
    "1. item", "2) item", "> quote", "---", "===", "***", "| a | b |", "a|b", "\\", "\\|", "\\`", "`|`", "$x$", "[a]: /url",
    "[^1]", "a@b.example", ": ", '"', "'", "{{ x }}", "{% x %}", "!!python/object/apply:os.system", "%TAG ! x", "&a *a",
    "no", "null", "1e3", "0x1", "\n# heading", "\n\n---\nlicense: mit\n---\n", "a\nb", "\r\n", "\t", "\0", "\u202ea", "\u2028",
    "\u200b", "\ud800", "épsilon", "😀", "auto_map", "trust_remote_code", "chat_template", " ", "", "`", "x" * 300,
]  # fmt: skip
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40), st.text("`|\\<>&[]()!#*_-+=~:.@\n 1w\"'{}$", max_size=12))


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    base = tmp_path_factory.mktemp("published")
    driver = run_to_the_end(base / "ledger.db")
    with driver.ledger as ledger:
        release(ledger, model(base / "model"), now=driver.tick(), publish=Publish(version="1", about=About("m", "said")))
        manifest = check_release(base / "model", [SIGNER.vkey]).manifest
        return facts_of(manifest, ledger.header, manifest.publication, signed=True)


def kinds(text: str) -> list[str]:
    """Returns what a text consists of, without what it says."""
    found = []
    for token in MARKDOWN.parse(text):
        found.append(token.type)
        inner = [child.type for child in token.children or () if child.type not in ("text", "softbreak", "text_special")]
        found += inner
    return found


@settings(max_examples=50)
@given(TEXTS)
def test_E8_running_text_is_text_whatever_it_says(words):
    for before in ("", "- ", "> ", "# ", "| a | ", "**x**: "):
        shown = MARKDOWN.parse(before + plain.text("x" + words))
        (inline,) = [token for token in shown if token.type == "inline"]
        inner = [child for child in inline.children if child.type not in ("text", "text_special")]
        assert all(child.type in ("strong_open", "strong_close") for child in inner), words
    (inline,) = [token for token in MARKDOWN.parse("- " + plain.text(words + "x")) if token.type == "inline"]
    said = "".join(child.content for child in inline.children)
    assert said.strip() == visible((words + "x").replace("\n", " ")).strip()


@settings(max_examples=50)
@given(TEXTS)
def test_E8_a_code_span_holds_all_of_a_name_and_stays_in_its_cell(words):
    table = f"| a | b |\n|---|---|\n| {plain.code(words)} | end |\n"
    cells = [token for token in MARKDOWN.parse(table) if token.type == "inline"]
    assert [cell.content for cell in cells[:2]] == ["a", "b"] and len(cells) == 4 and cells[3].content == "end"
    (span,) = [child for child in cells[2].children if child.type != "text"]
    assert span.type == "code_inline"
    assert span.content.strip() == visible(words, plain=True).replace("|", "\\x7c").strip()


@settings(max_examples=50)
@given(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40)).filter(lambda text: "\ud800" not in text))
def test_E8_a_scalar_of_yaml_is_that_text_and_one_line(words):
    shown = plain.scalar(words)
    assert yaml.safe_load(f"- {shown}\n- end\n") == [words, "end"] and shown.isascii() and "\n" not in shown


@settings(max_examples=20, deadline=None)
@given(words=TEXTS)
def test_E8_no_text_changes_what_a_page_consists_of(facts, words):
    ascii_words = "".join(char for char in words if " " <= char <= "~")[:96] or "x"

    def hostile(text: str):
        """Facts in which everything that others wrote says this; the header's own words too."""
        about = replace(facts.publication.about, name=text[:96])
        header = replace_header(facts.header, text)
        parts = tuple(Artifact(text[:200], part.blocks, part.influenced_by) for part in facts.artifacts)
        return replace(
            facts,
            origin=text,
            log_vkey=text,
            artifacts=parts,
            statements=tuple(f"{text} {sentence} {text}" for sentence in facts.statements),
            publication=replace(facts.publication, about=about),
            header=header,
        )

    harmless, other = hostile("x"), hostile(ascii_words)
    for write in (card, disclosure_page):
        assert kinds(write(other)) == kinds(write(harmless)), ascii_words
        assert "evil.example" not in "".join(t.attrGet("href") or "" for t in links(write(other)))
    front = card(other).split("\n---\n")[0].removeprefix("---\n")
    assert yaml.safe_load(front) == {"tags": ["differential-privacy", "dptrain"]}
    assert len(json.loads(disclosure_json(other))["answers"]) == len(json.loads(disclosure_json(harmless))["answers"])
    told = json.loads(bom(other, []))
    assert told["metadata"]["component"]["name"] == ascii_words[:96] and canonical(told)


def links(text: str):
    return [
        child for token in MARKDOWN.parse(text) for child in token.children or () if child.type in ("link_open", "image")
    ]


def replace_header(header, text: str):
    """A header whose words of others say this, without the checks that would refuse some of them."""
    found = copy.copy(header)
    object.__setattr__(found, "exactness_note", text)
    object.__setattr__(found, "accountant", replace(header.accountant, library=text[:200], version=text[:200]))
    return found


@pytest.mark.parametrize("words", HOSTILE)
def test_E8_a_description_is_quoted_whole_or_refused(facts, words):
    try:
        about = About("m", words)
    except ReleaseRefused as error:
        assert error.code == "ABOUT"
        return
    text = card(replace(facts, publication=replace(facts.publication, about=about)))
    plainly = card(replace(facts, publication=replace(facts.publication, about=About("m", "x\n" * words.count("\n") + "x"))))
    outside = [kind for kind in kinds(text) if "paragraph" not in kind and kind != "inline"]
    assert outside == [kind for kind in kinds(plainly) if "paragraph" not in kind and kind != "inline"]
    assert [token.content for token in MARKDOWN.parse(text) if token.type == "html_block"] == [
        token.content for token in MARKDOWN.parse(plainly) if token.type == "html_block"
    ]


@pytest.mark.parametrize(
    "field", [{"license": 'mit"'}, {"license": "mit\nx: y"}, {"language": ("en\n",)}, {"base_model": ("a b",)},
              {"tags": ("#a",)}, {"tags": ("a\nb",)}, {"tags": ('a"',)}, {"name": "a\nb"}, {"name": "é"},
              {"description": "a\u202eb"}]
)  # fmt: skip
def test_E8_front_matter_takes_no_text_that_means_something_there(field):
    with pytest.raises(ReleaseRefused):
        About(**({"name": "m"} | field))


@pytest.mark.parametrize("name", ["auto_map", "trust_remote_code", "chat_template", "class_path", "attn_implementation"])
def test_E8_a_class_or_a_model_of_that_name_makes_no_document_one_that_names_code(facts, name):
    rows = tuple(replace(row, name=f"{name}{place}" if place else name) for place, row in enumerate(facts.classes))
    publication = replace(facts.publication, about=About(name, "said", tags=(name,), base_model=(f"{name}/x",)))
    for path in WRITERS:
        looker = Looker(path)
        looker.take(WRITERS[path](replace(facts, classes=rows, publication=publication), []).encode())
        assert looker.form() == (TEXT, ())
