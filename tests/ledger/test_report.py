"""The report: one page, nothing fetched, nothing run, every foreign word escaped."""

import re
from decimal import Decimal
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from ledger_runs import SIGNER, START, Driver, admission, header_spec

from ledger.audit import verify_export
from ledger.leaves import HeaderBlock
from ledger.log import Ledger
from ledger.report import write_report
from ledger.report.charts import rounded_up, step_chart, ticks
from ledger.report.page import _layers

EXTRAS = {
    "gate": {
        "admitted": {"open": 3, "sensitive": 2},
        "refused": {"SIG_BAD": 1, "EXPIRED": 4},
        "examples": [{"code": "SIG_BAD", "sentence": "<script>alert(1)</script>"}, "a plain line"],
    },
    "results": [{"model": "routed", "accuracy": 0.913}, {"model": "uniform", "accuracy": 0.874, "note": "same ε"}],
}
VOID = {"meta", "rect", "line", "polyline"}


class Balanced(HTMLParser):
    """Fails on tags that do not nest, and on anything that fetches or runs."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert tag not in {"script", "link", "iframe", "img", "object", "embed", "base", "form"}
        assert not any(name.startswith("on") or name in {"src", "href", "action"} for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    base = tmp_path_factory.mktemp("report")
    with Ledger.create(base / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        return ledger.export(base / "export")


def page(export, tmp_path, keys=(SIGNER.vkey,), extras=None) -> str:
    return write_report(
        export, tmp_path / "report.html", report=verify_export(export, list(keys)), extras=extras
    ).read_text(encoding="utf-8")


def test_a_report_is_one_well_formed_page_without_scripts_or_network(export, tmp_path):
    text = page(export, tmp_path, extras=EXTRAS)
    parser = Balanced()
    parser.feed(text)
    assert parser.open == [] and {"svg", "table", "title", "main"} <= parser.seen
    assert not re.search(r"https?://|url\(|@import|javascript:", text)
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text and "@media print" in text


def test_a_report_shows_verdict_classes_schedule_gate_and_results(export, tmp_path):
    text = page(export, tmp_path, extras=EXTRAS)
    for expected in ("FULL", "sensitive", "layers.2", "SIG_BAD", "0.913", "same ε", SIGNER.name, "not touched"):
        assert expected in text
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_a_failed_audit_says_so_and_lists_the_findings(export, tmp_path):
    text = page(export, tmp_path, keys=())
    assert "✗ FAILED" in text and "Findings" in text and "FULL" not in text
    Balanced().feed(text)


def test_a_run_without_epochs_or_contributions_has_a_report(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Balanced().feed(page(ledger.export(tmp_path / "empty"), tmp_path))
        Driver(ledger).admit(admission(1))
        Balanced().feed(page(ledger.export(tmp_path / "one"), tmp_path))


def test_layers_merge_when_they_are_alike():
    blocks = [
        HeaderBlock(f"h.{n}.{part}", 10, ("a",) if n < 2 else (), 1.0 if n < 2 else 0.0)
        for n in range(4)
        for part in "qk"
    ]
    assert _layers(blocks, ["a"]) == [("h.0 … h.1", 40, (1.0,)), ("h.2 … h.3", 40, (None,))]


@pytest.mark.parametrize("top", [0, 1e-9, 0.3, 1, 7.77, 1000, 123456.7])
def test_ticks_are_few_and_cover(top):
    found = ticks(top)
    assert found[0] == 0 and found[-1] >= top and 2 <= len(found) <= 7


def test_labels_of_close_lines_do_not_overlap():
    chart = step_chart([10], {name: [1.0] for name in "abcd"}, x_label="x", y_label="y")
    heights = [float(y) for y in re.findall(r'class="label s\d" x="[\d.]+" y="([\d.]+)"', chart)]
    assert len(heights) == 4 and min(b - a for a, b in pairwise(heights)) >= 16


@pytest.mark.parametrize("value,shown", [(0.0, "0"), (1.82824, "1.829"), (0.012341, "0.01235"), (12345.6, "12350")])
def test_shown_bounds_are_rounded_up(value, shown):
    assert str(rounded_up(value)) == shown and rounded_up(value) >= Decimal(value)
