"""The report: one page, nothing fetched, nothing run, every foreign word escaped."""

import base64
import dataclasses
import hashlib
import math
import random
import re
import shutil
import time
from decimal import Decimal
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import StrictUndefined, UndefinedError
from report_ledgers import ANNA, BORIS, EXTRAS, HOSTILE, many_layers, varied_export

from ledger.audit import AuditReport, EpochRow, Finding, WithdrawalCount, WithdrawalRow, verify_export
from ledger.audit.findings import IgnoredLine, SummaryRow
from ledger.leaves import HeaderBlock
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.report import page as page_room
from ledger.report import write_report
from ledger.report.charts import bin_edges, distribution, over_time, ticks
from ledger.report.extras import ExtrasRefused
from ledger.report.rows import HEATS, MAX_EXAMPLES, MAX_POINTS, merged, shade
from ledger.report.shown import LONGEST_NAME, rounded_down, rounded_up, text, utc
from ledger.views.summary import ClassSummary, ReleasedPart, spread_of
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec

VOID = {"meta"}


class Balanced(HTMLParser):
    """Fails on tags that do not nest, on ids that come twice, and on anything that fetches or runs."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []
        self.pointed: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.look(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.look(tag, attrs)

    def look(self, tag, attrs):
        self.seen.add(tag)
        assert tag not in {"script", "link", "iframe", "img", "object", "embed", "base", "form", "foreignobject", "use"}
        for name, value in attrs:
            assert not name.startswith("on") and name not in {"src", "action", "srcset", "style", "xlink:href"}
            if name == "id":
                assert value not in self.ids
                self.ids.append(value)
            if name == "href":
                assert tag == "a" and value.startswith("#")
                self.pointed.add(value[1:])
            if name in {"aria-labelledby", "aria-describedby"}:
                self.pointed.update(value.split())

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    base = tmp_path_factory.mktemp("report")
    with Ledger.create(base / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        return ledger.export(base / "export")


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    export = varied_export(tmp_path_factory.mktemp("varied"))
    report = verify_export(export, [SIGNER.vkey])
    assert report.verdict == "TOLD", report.findings
    return export, report


def page(export, tmp_path, keys=(SIGNER.vkey,), extras=None, report=None) -> str:
    report = report or verify_export(export, list(keys))
    return write_report(export, tmp_path / "report.html", report=report, extras=extras).read_text(encoding="utf-8")


def well_formed(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == [] and parser.pointed <= set(parser.ids)
    return parser


def test_a_report_is_one_well_formed_page_without_scripts_or_network(varied, tmp_path):
    found = page(varied[0], tmp_path, report=varied[1], extras=EXTRAS)
    assert {"svg", "table", "caption", "title", "desc", "main", "nav", "header", "footer"} <= well_formed(found).seen
    assert not re.search(r"https?://|url\(|@import|javascript:", found)
    assert "prefers-color-scheme: dark" in found and "@media print" in found


def test_the_policy_of_the_page_allows_nothing_but_its_own_style_sheet_by_digest(export, tmp_path):
    found = page(export, tmp_path)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', found)[1]
    style = re.search(r"<style>(.*?)</style>", found, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert found.index("Content-Security-Policy") < found.index("<style>") and found.count("<style") == 1


def test_a_report_shows_every_part_that_an_auditor_asks_for(varied, tmp_path):
    found = page(varied[0], tmp_path, report=varied[1], extras=EXTRAS)
    for expected in (
        "◑</span> TOLD",
        "ε per class over the run",
        "How expenditure is distributed",
        "layer.6 … head",
        "may not touch",
        "21 withdrawals by class and reason",
        "never admitted",
        "The attestation&#x27;s validity has ended.",
        "0.913",
        "same ε",
        SIGNER.name,
        SIGNER.verifier.key_id.hex(),
        "names 2 auditors and asks for 2 of them: not so many have cosigned",
        ANNA.name,
        "has not cosigned",
        "in no epoch yet",
    ):
        assert expected in found, expected


def test_a_failed_audit_says_so_lists_the_findings_and_leaves_no_figure_at_a_glance(export, tmp_path):
    found = page(export, tmp_path, keys=())
    assert "✗</span> FAILED" in found and "Findings" in found and "FULL" not in found
    well_formed(found)
    audited = verify_export(export, [SIGNER.vkey])
    wrong = dataclasses.replace(audited, verdict="FAILED", findings=(Finding("LEAF", "seq 3", "it was changed"),))
    found = page(export, tmp_path, report=wrong)
    assert "prove nothing" in found and "class='tiles'" not in found and "FULL" not in found
    assert "class='tiles'" in page(export, tmp_path, report=audited)


def test_a_summarised_audit_is_told_apart_by_word_sign_and_colour(export, tmp_path):
    audited = dataclasses.replace(verify_export(export, [SIGNER.vkey]), verdict="SUMMARISED")
    found = page(export, tmp_path, report=audited)
    assert "class='verdict summarised'" in found and "◐</span> SUMMARISED" in found and "FULL" not in found
    well_formed(found)


def test_a_refused_checkpoint_is_printed_and_said_to_be_unsigned(export, tmp_path):
    found = page(export, tmp_path, keys=())
    assert "No signature was verified." in found and SIGNER.name in found.split("Signed checkpoint")[1]


def test_an_audit_that_ends_at_the_leaves_still_says_who_signed(varied, tmp_path):
    export = tmp_path / "export"
    shutil.copytree(varied[0], export)
    (bundle,) = (path for path in (export / "tile/entries").rglob("*") if path.is_file())
    bundle.write_bytes(bundle.read_bytes()[:-1] + b"\xff")
    found = page(export, tmp_path)
    assert "FAILED" in found and "No signature was verified" not in found and "the ledger itself" in found
    assert "1 signature line could not be verified: by keys not pinned, and the audit never came to the policy." in found
    assert "names no auditors" not in found


def signers(report: AuditReport, export, tmp_path) -> list[str]:
    told = page(export, tmp_path, report=report).split("id='signers-c'")[1].split("</table>")[0]
    return [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in told.split("<tr>")[2:]]


def test_signers_auditors_and_those_who_have_not_cosigned_are_told_apart(varied, tmp_path):
    export, report = varied
    assert signers(report, export, tmp_path) == [
        f"{SIGNER.name} {SIGNER.verifier.key_id.hex()} the ledger itself verified – none",
        f"{ANNA.name} {ANNA.verifier.key_id.hex()} auditor verified 2025-06-15 15:15:00 UTC",
        f"{BORIS.name} {BORIS.verifier.key_id.hex()} auditor has not cosigned – none",
    ]
    stranger = dataclasses.replace(report, auditors=(BORIS.vkey,))
    assert signers(stranger, export, tmp_path)[1].split(" ", 2)[2].startswith("other pinned key")


def test_a_ledger_that_was_handed_over_shows_its_keys(tmp_path):
    successor = NoteSigner(SIGNER.name, OTHER_KEY)
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.whole_run()
        assert "keys-c" not in page(ledger.export(tmp_path / "before"), tmp_path)
        ledger.rotate_key(successor, now=driver.tick())
        found = page(ledger.export(tmp_path / "after"), tmp_path)
    well_formed(found)
    told = re.sub("<[^>]*>", " ", found.split("id='keys-c'")[1].split("</table>")[0]).split()
    assert told[-8:] == [
        *("1", SIGNER.name, SIGNER.verifier.key_id.hex(), "replaced"),
        *("2", SIGNER.name, successor.verifier.key_id.hex(), "current"),
    ]


def words(html: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def section_of(found: str, ident: str) -> str:
    return found.split(f"<section id='{ident}'>")[1].split("</section>")[0]


def test_the_verdict_stands_before_everything_else(varied, tmp_path):
    found = page(varied[0], tmp_path, report=varied[1], extras=EXTRAS)
    body = found.split("<main")[1]
    places = [
        body.index(part)
        for part in ("class='verdict told'", "class='tiles'", "<nav", "id='spent'", "id='scope'", "id='notes'", "id='about'")
    ]
    assert places == sorted(places)


def test_every_claim_names_its_leaves_and_what_nobody_can_know_is_said(varied, tmp_path):
    export, report = varied
    assert [(row.kind, row.count) for row in report.kinds if row.kind in ("HEADER", "RELEASE", "CLOSE")] == [
        ("HEADER", 1),
        ("RELEASE", 2),
    ]
    assert sum(row.count for row in report.kinds) == report.size
    told = words(section_of(page(export, tmp_path, report=report), "scope"))
    for expected in (
        f"hashed to the root, signed by {SIGNER.name}, key id {SIGNER.verifier.key_id.hex()} all {report.size} leaves",
        "signed by the key that it names for owner leaf 0, HEADER",
        "leaves: 200 ADMIT, 10 CHARGE, 9 SETTLE, 1 RESUME",
        "Releases cite this ledger as it was",
        "that the trainer did what it recorded",
        "dptrain release --check",
    ):
        assert expected in told, expected
    assert "Summaries" not in told and "The run is over" not in told and "The policy is the corpus owner" not in told
    known = dataclasses.replace(report, owner_pinned=True)
    told = words(section_of(page(export, tmp_path, report=known), "scope"))
    assert "owner's key that was pinned" in told.replace("&#x27;", "'") and "The policy is the corpus owner" in told


def test_an_audit_that_failed_claims_nothing(varied, tmp_path):
    wrong = dataclasses.replace(varied[1], verdict="FAILED", findings=(Finding("LEAF", "seq 3", "it was changed"),))
    assert "id='scope'" not in page(varied[0], tmp_path, report=wrong)


def test_releases_are_told_last_first_with_influence_and_cost(varied, tmp_path):
    export, report = varied
    found = page(export, tmp_path, report=report)
    well_formed(found)
    told = words(section_of(found, "releases"))
    first, last = report.releases
    assert told.index(last.manifest_digest) < told.index(first.manifest_digest)
    assert f"Leaf {last.seq}: step {last.step}," in told and f"cites {last.size} leaves, root {last.root}" in told
    assert f"full open, sensitive {rounded_up(last.parts[0].epsilons[0])} {rounded_up(last.parts[0].epsilons[1])}" in told
    assert "of the planned horizon and all steps that may be done again" in told
    parts = (
        ReleasedPart("full", ("open", "sensitive"), (None, math.inf), (None, math.inf)),
        ReleasedPart("base", (), (None, 0.0), (None, 0.0)),
    )
    odd = dataclasses.replace(last, planned_horizon=False, parts=parts)
    found = page(export, tmp_path, report=dataclasses.replace(report, releases=(odd,), release_count=60))
    told = words(section_of(found, "releases"))
    assert "full open, sensitive public no bound known base none no influence no influence" in told
    assert "59 earlier releases are left out" in told and "of the whole run" in told
    many = tuple(dataclasses.replace(last, seq=n, parts=last.parts * 15) for n in range(50))
    found = page(export, tmp_path, report=dataclasses.replace(report, releases=many, release_count=60))
    well_formed(found)
    told = words(section_of(found, "releases"))
    assert "50 earlier releases are left out" in told and told.count("10 more parts are left out") == 10 and "Leaf 40:" in told
    assert "id='releases'" not in page(export, tmp_path, report=dataclasses.replace(report, releases=(), release_count=0))


def test_signature_lines_that_count_for_nothing_are_listed(varied, tmp_path):
    export, report = varied
    assert "ignored-c" not in page(export, tmp_path, report=report)
    rows = (IgnoredLine(BORIS.name, "0badf00d", 2, BORIS.vkey), IgnoredLine(HOSTILE, "12345678", 1, None))
    found = page(export, tmp_path, report=dataclasses.replace(report, ignored=rows))
    well_formed(found)
    told = words(found.split("id='ignored-c'")[1].split("</table>")[0])
    assert f"{BORIS.name} 0badf00d 2 {BORIS.name} {BORIS.verifier.key_id.hex()} damaged, forged, or by another key" in told
    assert "3 signature lines could not be verified: by keys neither pinned nor named by the policy." in found


def test_summaries_are_told_with_what_is_gone_and_who_vouches(varied, tmp_path):
    export, report = varied
    assert "Summaries" not in page(export, tmp_path, report=report)
    rows = (SummaryRow(400, 1, 200, (ANNA.name,), 150), SummaryRow(500, 200, 300, ()))
    found = page(export, tmp_path, report=dataclasses.replace(report, verdict="SUMMARISED", summaries=rows))
    well_formed(found)
    told = re.sub("<[^>]*>", " ", found.split("id='summaries-c'")[1].split("</table>")[0]).split()
    assert told[-10:] == ["400", "1", "199", "150", ANNA.name, "500", "200", "299", "0", "none"]
    assert "by the summaries alone" in found
    assert f"all {report.size} leaves, 150 of them by their hash alone" in words(section_of(found, "scope"))
    whole = dataclasses.replace(report, summaries=rows[1:])
    assert "by the summaries alone" not in page(export, tmp_path, report=whole)


def test_a_quorum_is_told_as_met_missed_or_not_asked_for(varied, tmp_path):
    export, report = varied
    assert "not so many have cosigned" in page(export, tmp_path, report=report)
    met = page(export, tmp_path, report=dataclasses.replace(report, quorum=1, quorum_met=True))
    assert "they have cosigned" in met and "not so many" not in met
    watched = {"witnesses": report.auditors[:1], "witness_quorum": 1}
    late = page(export, tmp_path, report=dataclasses.replace(report, **watched, witness_quorum_met=False))
    assert "names 1 witness and asks for 1 of them: not so many" in late
    seen = page(export, tmp_path, report=dataclasses.replace(report, **watched, witness_quorum_met=True))
    assert "names 1 witness and asks for 1 of them: <strong>they have cosigned" in seen and ">witness<" in seen
    nobody = dataclasses.replace(report, auditors=(), quorum=None, quorum_met=None, qualifiers=())
    none = page(export, tmp_path, report=nobody)
    assert "names no auditors" in none and "have cosigned" not in none


def test_a_run_without_epochs_or_contributions_has_a_report(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        well_formed(page(ledger.export(tmp_path / "empty"), tmp_path))
        driver = Driver(ledger)
        driver.admit(admission(1))
        well_formed(page(ledger.export(tmp_path / "one"), tmp_path))
        driver.epoch()
        well_formed(page(ledger.export(tmp_path / "uncharged"), tmp_path))


def test_hostile_words_are_shown_and_never_markup(varied, tmp_path):
    report = varied[1]
    hostile = dataclasses.replace(
        report,
        verdict="FAILED",
        origin=HOSTILE,
        corpus=HOSTILE,
        owner=HOSTILE,
        accountant=HOSTILE,
        notes=(HOSTILE,),
        findings=(Finding(HOSTILE, HOSTILE, HOSTILE),),
        classes=tuple(dataclasses.replace(c, name=HOSTILE + c.name) for c in report.classes),
        blocks=tuple(dataclasses.replace(b, classes=()) for b in report.blocks),
        withdrawal_counts=(WithdrawalCount(HOSTILE, HOSTILE, 1),),
        withdrawals=(WithdrawalRow(1, 2**63 - 1, HOSTILE, HOSTILE, HOSTILE, 1, 1.0),),
    )
    export = tmp_path / "export"
    export.mkdir()
    export.joinpath("checkpoint").write_bytes(HOSTILE.encode("utf-8", "surrogatepass") + b"\xff\n\n\xe2\x80\x94 x y\n")
    found = page(export, tmp_path, report=hostile, extras=EXTRAS)
    assert "img" not in well_formed(found).seen and "&lt;script&gt;" in found
    assert not any(char in found for char in "\u202e\x00\ud800") and r"\u202e" in found and r"\ud800" in found
    assert "A" * 1001 not in found and "3,06" in found


@given(st.text(st.characters(), max_size=60))
def test_words_stay_words(foreign):
    shown = text(foreign)
    assert not set("<>\"'") & set(shown) and shown.isprintable()
    assert not any(not char.isprintable() for char in shown)


def test_the_template_escapes_whatever_it_prints_and_takes_nothing_for_granted():
    """Also of an expression that joins foreign words with others, and of one that nobody meant to be foreign."""
    template, _ = page_room._template()
    environment = template.environment
    assert environment.autoescape is True and environment.undefined is StrictUndefined
    for expression in ("word", "[word, word]|join(', ')", "word|cut(90)", "'a' if not word else word", "word|code"):
        printed = environment.from_string("{{ " + expression + " }}").render(word=HOSTILE)
        assert "<script" not in printed and "<img" not in printed and "\\u202e" in printed and printed.isprintable()
    source = resources.files("ledger.report").joinpath("page.html").read_text("utf-8")
    assert not re.search(r"\|\s*(safe|urlize|xmlattr)|autoescape|~", source)
    with pytest.raises(UndefinedError):
        environment.from_string("{{ nothing }}").render()


@pytest.mark.parametrize(
    "extras",
    [
        {"gate": []},
        {"gate": {"admitted": {"open": -1}}},
        {"gate": {"admitted": {"open": True}}},
        {"gate": {"refused": {"SIG_BAD": "3"}}},
        {"gate": {"refused": {"SIG_BAD": float("nan")}}},
        {"gate": {"refused": {"SIG_BAD": 2**63}}},
        {"gate": {"refused": ["SIG_BAD"]}},
        {"gate": {"examples": {"a": 1}}},
        {"gate": {"examples": [3]}},
        {"results": "good"},
        {"results": [[1]]},
        {"tables": [[{"a": 1}]]},
        {"tables": {"noise": {"a": 1}}},
        {"tables": {"noise": [1]}},
        {"tables": {f"table {n}": [] for n in range(9)}},
    ],
)
def test_extras_of_another_form_are_refused_and_nothing_is_written(export, tmp_path, extras):
    with pytest.raises(ExtrasRefused) as refused:
        page(export, tmp_path, extras=extras)
    assert refused.value.code == "EXTRAS" and "expected" in refused.value.sentence
    assert not (tmp_path / "report.html").exists()


def test_the_gates_own_json_serves_as_extras_and_is_marked_as_told(export, tmp_path):
    refusals = [{"code": "SIG_BAD", "sentence": f"number {n}"} for n in range(MAX_EXAMPLES + 5)]
    gate = {"now": 1, "admitted": {"open": 1}, "refused": {"SIG_BAD": len(refusals)}, "refusals": refusals}
    found = page(export, tmp_path, extras={"gate": gate})
    assert "Told by the operator" in found and f"{MAX_EXAMPLES} of {len(refusals)} refusals" in found
    assert f"number {MAX_EXAMPLES - 1}" in found and f"number {MAX_EXAMPLES}<" not in found


def test_further_tables_of_the_operator_stand_under_the_results_as_told(export, tmp_path):
    rows = [{"block": "head", "this policy": "100 %"}] * 300
    found = page(export, tmp_path, extras={"tables": {"noise of each block <b>": rows, "other": []}})
    well_formed(found)
    assert "Told by the operator" in found and "<span>noise of each block &lt;b&gt;</span>" in found
    assert found.count("<th scope='row'>head</th>") == 200 and "100 more rows are left out" in found


def test_long_names_of_the_extras_are_cut(export, tmp_path):
    found = page(export, tmp_path, extras={"gate": {"admitted": {"x" * 500: 1}}, "results": {"y" * 500: 1}})
    assert "x" * LONGEST_NAME in found and "x" * (LONGEST_NAME + 1) not in found
    assert "y" * (LONGEST_NAME + 1) not in found


def test_an_unbounded_epsilon_is_told_and_not_drawn(varied, tmp_path):
    export, report = varied
    endless = dataclasses.replace(report.classes[0], epsilon=math.inf, spread=spread_of({1.0: 3, math.inf: 1}))
    found = page(export, tmp_path, report=dataclasses.replace(report, classes=(endless, *report.classes[1:])))
    well_formed(found)
    assert "Infinity" in found and "so nothing is drawn" in found and "run-wide" not in found


def block(name: str, classes=(), std: float = 0.0) -> HeaderBlock:
    return HeaderBlock(name, 10, classes, std)


def summary(name: str, **fields) -> ClassSummary:
    values = {"active": 1, "withdrawn": 0, "sampling_rate": 0.1, "noise_multiplier": 1.0, "steps": 1, "epsilon": 1.0}
    return ClassSummary(name, **(values | {"epsilon_replace": 2.0, "blocks": 1, "coordinates": 1} | fields))


def test_layers_merge_when_they_are_alike():
    blocks = tuple(block(f"h.{n}.{part}", ("a",) if n < 2 else (), 1.0 if n < 2 else 0.0) for n in range(4) for part in "qk")
    multipliers = tuple((1.5,) if it.classes else (None,) for it in blocks)
    found = merged(AuditReport(verdict="TOLD", findings=(), classes=(summary("a"),), blocks=blocks, multipliers=multipliers))
    assert [(row.first, row.last, row.coordinates, row.cells) for row in found] == [
        ("h.0", "h.1", 40, (1.5,)),
        ("h.2", "h.3", 40, (None,)),
    ]


def test_a_public_class_has_no_figure_in_any_layer(export, tmp_path):
    blocks = (block("a", ("p",)), block("b", ("p", "s"), 2.0), block("c", ("s",), 2.0))
    report = AuditReport(
        verdict="TOLD",
        findings=(),
        classes=(summary("p", public=True, epsilon=None, epsilon_replace=None), summary("s")),
        blocks=blocks,
        multipliers=((None, None), (None, 2.0), (None, 2.0)),
    )
    rows = re.search(r"class='heatmap'.*?</table>", page(export, tmp_path, report=report), re.DOTALL)[0].split("<tr>")[2:]
    assert [re.findall(r"<td class='(none|heat)", row) for row in rows] == [
        ["none", "none"],
        ["none", "heat"],
        ["none", "heat"],
    ]
    assert ["public" in row for row in rows] == [True, True, False]


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_a_shade_is_of_the_style_sheet_and_grows_with_the_figure(a, b, c):
    least, value, most = sorted((a, b, c))
    assert 0 <= shade(least, (least, most)) <= shade(value, (least, most)) <= shade(most, (least, most)) < HEATS


@pytest.mark.parametrize("top", [0, 1e-9, 0.3, 1, 7.77, 1000, 123456.7])
def test_ticks_are_few_and_cover(top):
    found = ticks(top)
    assert found[0] == 0 and found[-1] >= top and 2 <= len(found) <= 7


def heights_of_labels(chart: str) -> list[float]:
    return [float(y) for y in re.findall(r"class='label c\d' x='[\d.]+' y='([-\d.]+)'", chart)]


@pytest.mark.parametrize("count,value", [(4, 1.0), (4, 0.001), (30, 0.01)])
def test_labels_of_close_lines_do_not_overlap_and_stay_in_the_drawing(count, value):
    series = {f"class-{n}": [1.0 if n == 0 else value] for n in range(count)}
    chart = over_time("x", "t", [10], series, "x", "y")
    heights, drawing = heights_of_labels(chart), int(re.search(r"viewBox='0 0 720 (\d+)'", chart)[1])
    assert len(heights) == count and min(b - a for a, b in pairwise(heights)) >= 15.9
    assert heights[0] > 8 and heights[-1] < drawing


def test_lines_differ_in_more_than_colour():
    series = {f"c{n}": [1.0] for n in range(64)}
    chart = over_time("x", "t", [10], series, "x", "y").split("</svg>")[0]
    styles = re.findall(r"polyline class='line c(\d) d(\d)'", chart)
    assert len(set(styles)) == 64 and all(a[1] != b[1] for a, b in pairwise(styles[:8]))


def test_columns_of_a_distribution_stand_over_what_they_count():
    chart = distribution("x", "t", spread_of({0.5: 2, 1.0: 6, 2.0: 1}))
    told = re.findall(r"<title>([^<]*): (\d+)</title>", chart)
    assert told == [("0.5000 to 0.6000", "2"), ("1 to 1.100", "6"), ("1.900 to 2", "1")] or [n for _, n in told] == [
        "2",
        "6",
        "1",
    ]
    assert len(bin_edges(spread_of({1.0: 1}))) == 21


@pytest.mark.parametrize("value,shown", [(0.0, "0"), (1.82824, "1.829"), (0.012341, "0.01235"), (12345.6, "12350")])
def test_shown_bounds_are_rounded_up(value, shown):
    assert str(rounded_up(value)) == shown and rounded_up(value) >= Decimal(value)


@given(st.floats(1e-9, 1e9))
def test_shown_noise_is_rounded_down(value):
    assert Decimal(value) * Decimal("0.999") <= rounded_down(value) <= Decimal(value)


def test_times_that_are_none_are_shown_as_they_are():
    assert utc(2**63).startswith(f"{2**63} s") and "2025-06-15 15:06:40 UTC" in utc(START)


def test_a_page_is_small_whatever_the_ledger_holds(export, tmp_path):
    """Epochs, blocks, findings, withdrawals and what the operator tells, each in thousands; a contribution is never a row."""
    names = [f"class-{n:03}-{'x' * 50}" for n in range(8)]
    spread = spread_of({n / 1000: n for n in range(1, 5000)})
    epochs = tuple(
        EpochRow(n, n, n * 10, (n / 100,) * 8, n * 20, START + n, (10**5,) * 8, (n,) * 8, "ab" * 32) for n in range(1, 5001)
    )
    blocks = tuple(block(f"layers.{n}.heads {n}", tuple(names[: n % 8 + 1]), 1.0 + n) for n in range(5000))
    report = AuditReport(
        verdict="FAILED",
        findings=tuple(Finding("LEAF", f"seq {n}", "x" * 60_000) for n in range(200)),
        steps=50_000,
        charged=50_000,
        classes=tuple(summary(name, active=10**5, spread=spread, epsilon=50.0) for name in names),
        epochs=epochs,
        blocks=blocks,
        multipliers=tuple(tuple(1.0 + n if place <= n % 8 else None for place in range(8)) for n in range(5000)),
        withdrawal_counts=tuple(WithdrawalCount(name, "contributor", 10**4) for name in names),
        withdrawals=tuple(WithdrawalRow(n, START, "ab" * 32, "contributor", names[0], 1, 1.0) for n in range(50)),
    )
    extras = {
        "gate": {"refused": {f"R{n}": n for n in range(5000)}, "examples": [{"sentence": "y" * 9000}] * 5000},
        "results": [{f"column {n}": "z" * 9000 for n in range(100)}] * 500,
    }
    found = page(export, tmp_path, report=report, extras=extras)
    well_formed(found)
    assert f"Of 5,000 epochs {MAX_POINTS} are shown" in found and "<th scope='row' class=num>5,000</th>" in found
    assert "rows are left out" in found and "all others" in found
    without_results = page(export, tmp_path, report=report, extras={"gate": extras["gate"]})
    assert len(without_results.encode()) < 1_000_000


@pytest.mark.slow
def test_a_hundred_thousand_contributions_make_a_page_below_a_megabyte_in_less_than_five_seconds(tmp_path):
    dice, count = random.Random(1), 100_000
    with Ledger.create(tmp_path / "ledger.db", many_layers(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        for wave in range(4):
            numbers = range(wave * count // 4, (wave + 1) * count // 4)
            driver.admit(*(admission(n, clip_micro=1_000_000 - 150_000 * dice.randrange(4)) for n in numbers))
            driver.steps()
        driver.epoch()
        ledger.withdraw_all([(descriptor(n), "contributor", bytes(32)) for n in range(2000)], now=driver.tick())
        export = ledger.export(tmp_path / "export")
    report = verify_export(export, [SIGNER.vkey])
    assert report.verdict == "TOLD" and report.classes[0].spread.contributions == count
    start = time.perf_counter()
    found = page(export, tmp_path, report=report, extras=EXTRAS)
    assert time.perf_counter() - start < 5 and len(found.encode()) < 1_000_000
    assert "The last 50 of 2,000" in found
