"""The first screen of the report: what a reader knows of an audit in ten seconds, and who vouches for it."""

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_ledgers import ANNA, BORIS, HOSTILE, varied_export

from attest.keys import key_id, public_bytes
from ledger.audit import QUALIFIERS, VERDICTS, AuditReport, Finding, Signer, verify_export
from ledger.audit.findings import BEYOND, UNREAD
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.report import write_report
from ledger.report.page import MAX_TILES
from ledger.report.shown import LONGEST_NAME
from ledger.views.attacker import CASES, FALSE_ALARMS, WATCHER, attacker, detection_limit, hits
from tests.ledger.test_bounds import public_run, told_report
from tests.ledger.told_runs import Told
from tests.worlds.attested_ledgers import put_registry
from tests.worlds.ledgers import OWNER_KEY, SIGNER, START, Driver, admission, header_spec
from tests.worlds.retained_ledgers import crowded_and_pruned

OWNER = public_bytes(OWNER_KEY)
BLOCKS = ["verdict", "open", "attacker", "vouch", "about"]


class Screen(HTMLParser):
    """Reads what a page says before its contents: words of each block, the classes, and the order of all sections.

    Attributes:
        blocks: words by block, in the order of the page.
        tiles: words by class.
        colours: classes of the verdict's box.
        said: first line of the verdict.
        head: words of the page's header.
        headings: of the first section.
        sections: ids, in the order of the page.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.blocks: dict[str, str] = {}
        self.tiles: list[str] = []
        self.headings: list[str] = []
        self.colours = self.said = self.head = ""
        self.sections: list[str] = []
        self._open: list[tuple[str, list[str]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        names = (given.get("class") or "").split()
        self._open.append((tag, names))
        if tag == "section":
            self.sections.append(given["id"])
        if "verdict" in names:
            self.colours = given["class"]
        if tag == "li" and self._within("tiles"):
            self.tiles.append("")
        if tag == "h2" and self.sections == ["verdict"]:
            self.headings.append("")

    def handle_endtag(self, tag):
        if tag in {"dt", "dd", "li", "p", "h2"}:
            self.handle_data(" ")
        while self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tags = {tag for tag, _ in self._open}
        if "header" in tags:
            self.head += data
        if self.sections != ["verdict"] or "section" not in tags:
            return
        for block in filter(self._within, BLOCKS):
            self.blocks[block] = self.blocks.get(block, "") + data
        if self._within("said"):
            self.said += data
        if self._within("tiles") and "li" in tags:
            self.tiles[-1] += data
        if "h2" in tags:
            self.headings[-1] += data

    def _within(self, name: str) -> bool:
        return any(name in names for _, names in self._open)

    def words(self, block: str) -> str:
        """Returns the words of a block, with single spaces."""
        return squeezed(self.blocks.get(block, ""))

    @property
    def whole(self) -> str:
        """Returns all words before the contents."""
        return squeezed(" ".join((self.head, *self.blocks.values())))


def squeezed(words: str) -> str:
    return " ".join(words.split())


def screen(export, tmp_path, report: AuditReport) -> Screen:
    path = write_report(export, tmp_path / "report.html", report=report)
    return Screen(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """An export whose contributors signed, of a public class and a private one; and its audit with the owner's key."""
    export = public_run().export(tmp_path_factory.mktemp("full"))
    report = verify_export(export, [SIGNER.vkey], owner_key=OWNER)
    assert report.verdict == "FULL", report.findings
    return export, report


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    base = tmp_path_factory.mktemp("pruned")
    with crowded_and_pruned(base / "ledger.db", base, people=20, attested=True).ledger as ledger:
        export = ledger.export(base / "export", registry=put_registry(base))
    return export, verify_export(export, [SIGNER.vkey], owner_key=OWNER)


def changed(export, directory):
    """A copy of an export in which one byte of a leaf is another."""
    copy = shutil.copytree(export, directory)
    (bundle,) = (path for path in (copy / "tile/entries").rglob("*") if path.is_file())
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.write_bytes(data)
    return copy


# --- The order ------------------------------------------------------------------------------------------------------------


def test_verdict_what_was_not_verified_classes_and_who_vouches_come_first_then_spending_then_cryptography(full, tmp_path):
    seen = screen(*full[:1], tmp_path, full[1])
    assert list(seen.blocks) == BLOCKS
    assert [squeezed(heading) for heading in seen.headings] == [
        "Not verified",
        "What an attacker can tell from this run",
        "Who vouches for what",
        "What it is about",
    ]
    places = [seen.sections.index(ident) for ident in ("verdict", "spent", "qualifiers", "scope", "about", "checkpoints")]
    assert places == sorted(places) and places[:2] == [0, 1]


@pytest.mark.parametrize("world", ["full", "pruned"])
def test_no_hash_and_no_key_id_is_on_the_first_screen(world, request, tmp_path):
    export, report = request.getfixturevalue(world)
    assert not re.search(r"[0-9a-f]{8}", screen(export, tmp_path, report).whole)


def test_the_first_screen_says_when_the_run_was_what_the_model_is_and_that_both_are_the_operators_word(full, tmp_path):
    export, report = full
    seen = screen(export, tmp_path, report)
    assert (report.began, report.last_time, report.layers) == (START, report.last_time, 4) and report.last_time > START
    assert report.model_fingerprint == header_spec().model_fingerprint.hex()
    assert "the corpus notes, 2025-06-15; recorded in the ledger ledger.example/run1" in squeezed(seen.head)
    told = seen.words("about")
    assert "From 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:5" in told and "by the operator's clock; closed" in told
    assert "4 layers, 1,110 parameters, 1,000 of them frozen, as the operator tells." in told
    assert "8 steps charged of 40 planned." in told


# --- The classes ----------------------------------------------------------------------------------------------------------


def test_a_class_has_the_sentence_of_policy_check_at_what_was_spent_and_a_public_one_has_no_number(full, tmp_path):
    export, report = full
    public, private = screen(export, tmp_path, report).tiles
    spent = report.classes[1]
    tail = attacker(spent.epsilon, report.delta).split(" tells ")[1]
    assert f"The attacker tells {tail}" in squeezed(private)
    assert f"from a given other content in at most {hits(spent.epsilon_replace, report.delta)}." in squeezed(private)
    assert f"The attacker {WATCHER}. Blind guessing finds 5 of 100." in screen(export, tmp_path, report).words("attacker")
    assert "public" in public and not re.search(r"\d|ε", public)


def test_the_verdict_says_how_well_the_worst_class_is_recognised_and_that_public_ones_are_promised_nothing(full, tmp_path):
    export, report = full
    public, private = report.classes
    told = "An attacker recognises a {}contribution in at most {} of 100 cases; blind guessing, in 5."
    less = replace(private, epsilon=private.epsilon * 20)
    for classes, worst in (((public, private), private), ((private, less), less), ((less, private), less)):
        seen = screen(export, tmp_path, replace(report, classes=classes))
        assert told.format("private " if public in classes else "", hits(worst.epsilon, report.delta)) in seen.words("verdict")
        assert ("Of public classes nothing is promised." in seen.words("verdict")) is (public in classes)
    for classes, expected in (((public, public), False), ((public, replace(private, epsilon=0.0)), True)):
        seen = screen(export, tmp_path, replace(report, classes=classes))
        assert ("No contribution has spent anything yet." in seen.words("verdict")) is expected
        assert "Of public classes nothing is promised." in seen.words("verdict") and "recognises" not in seen.words("verdict")
    assert "cases so far;" in screen(export, tmp_path, replace(report, finished=False)).words("verdict")


@pytest.mark.parametrize(("epsilon", "said"), [(0.5, ""), (3.3, "little"), (8.0, "nothing")])
def test_a_good_record_of_little_privacy_is_not_shown_as_privacy(full, tmp_path, epsilon, said):
    """The word judges the record. A reader takes it for the model's privacy, unless the figure stands against it."""
    export, report = full
    private = replace(report.classes[1], epsilon=epsilon)
    seen = screen(export, tmp_path, replace(report, classes=(private, private)))
    sentence = "The record is FULL; of privacy this promises {}."
    told = [word for word in ("little", "nothing") if sentence.format(word) in seen.words("verdict")]
    assert told == ([said] if said else [])


@given(st.floats(0, 800), st.floats(0, 0.5))
def test_hits_are_rounded_up_and_grow_with_epsilon(epsilon, delta):
    found = hits(epsilon, delta)
    assert found >= CASES * detection_limit(epsilon, delta, FALSE_ALARMS) > found - 1
    assert FALSE_ALARMS * CASES <= found <= CASES and hits(epsilon * 1.5 + 0.1, delta) >= found


def test_a_class_without_a_charge_has_spent_nothing_and_one_without_a_bound_rules_nothing_out(full, tmp_path):
    export, report = full
    public, private = report.classes
    for epsilon, expected in ((0.0, "nothing spent"), (float("inf"), "recognised in at most 100 of 100")):
        found = replace(private, epsilon=epsilon, epsilon_replace=epsilon)
        tile = squeezed(screen(export, tmp_path, replace(report, classes=(public, found))).tiles[1])
        assert expected in tile and ("this rules nothing out" in tile) is bool(epsilon)


def test_of_many_classes_some_are_on_the_first_screen_and_the_others_are_counted(full, tmp_path):
    export, report = full
    classes = tuple(replace(report.classes[1], name=f"class-{n}") for n in range(MAX_TILES + 3))
    seen = screen(export, tmp_path, replace(report, classes=classes, blocks=(), multipliers=(), epochs=(), releases=()))
    assert len(seen.tiles) == MAX_TILES and "3 more classes are in the table below." in seen.words("attacker")


# --- Who vouches ----------------------------------------------------------------------------------------------------------


def test_a_full_audit_names_owner_contributors_operator_and_whoever_cosigned(full, tmp_path):
    export, report = full
    told = screen(export, tmp_path, report).words("vouch")
    assert "The corpus owner owner, by the key that this audit was given." in told
    assert "Contributors: 4 attestations under 2 keys that the owner lists. Which people these are, no record shows." in told
    assert "The operator, by the ledger's key." in told and "Nobody has cosigned this record." in told


def test_who_cosigned_is_counted_by_role_and_a_signature_that_counts_for_nothing_is_not(tmp_path):
    export = varied_export(tmp_path)
    report = verify_export(export, [SIGNER.vkey])
    told = screen(export, tmp_path, report).words("vouch")
    assert "1 of 2 auditors whom the policy names cosigned; it asks for 2." in told and "other key" not in told
    late = tuple(replace(signer, counts=signer.of_log) for signer in report.signers)
    assert "0 of 2 auditors" in screen(export, tmp_path, replace(report, signers=late)).words("vouch")
    stranger = (*report.signers, Signer("somebody", "00000000", START, False))
    assert "1 other key given to this audit cosigned." in screen(export, tmp_path, replace(report, signers=stranger)).words(
        "vouch"
    )
    watched = replace(report, witnesses=(BORIS.vkey,), witness_quorum=1, auditors=(ANNA.vkey,), quorum=1)
    told = screen(export, tmp_path, watched).words("vouch")
    assert "1 of 1 auditor whom" in told and "0 of 1 witness whom the policy names cosigned; it asks for 1." in told


@pytest.mark.parametrize("given", [None, OWNER], ids=["unpinned", "pinned"])
def test_an_audit_without_the_owners_key_says_so_in_its_first_line_and_of_the_policy(full, tmp_path, given):
    export = full[0]
    seen = screen(export, tmp_path, verify_export(export, [SIGNER.vkey], owner_key=given))
    unpinned = given is None
    assert ("The owner's key was not given (UNPINNED)." in squeezed(seen.said)) is unpinned
    assert ("Whoever writes the record could have made it, the policy and the list" in seen.words("vouch")) is unpinned
    assert ("the audit was not given the owner's key" in seen.words("open")) is unpinned
    assert ("weak" in seen.colours.split()) is unpinned, "a reader who was given no key does not see the colour of one who was"


@pytest.mark.parametrize("given", [None, OWNER], ids=["unpinned", "pinned"])
def test_an_audit_that_broke_off_before_the_policy_still_says_whether_it_had_the_owners_key(full, tmp_path, given):
    report = verify_export(full[0], [], owner_key=given)
    assert report.verdict == "FAILED" and report.owner_pinned is (given is not None)
    assert ("The owner's key was not given" in screen(full[0], tmp_path, report).said) is (given is None)


def test_where_one_party_holds_every_key_the_first_line_says_so_and_nobody_else_vouches(tmp_path):
    key = key_id(OWNER)
    alone = NoteSigner(SIGNER.name, OWNER_KEY)
    with Ledger.create(tmp_path / "ledger.db", header_spec(), alone, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1, key_id=key), admission(2, "sensitive", key_id=key))
        driver.steps()
        export = ledger.export(tmp_path / "export")
    report = verify_export(export, [alone.vkey], owner_key=OWNER)
    assert "ONE_PARTY" in report.qualifiers, report
    for verdict in ("TOLD", "FULL"):
        seen = screen(export, tmp_path, replace(report, verdict=verdict))
        assert squeezed(seen.said).split(" ", 1)[1] == f"{verdict} One party holds every key (ONE_PARTY)."
        assert "Nobody else vouches for anything here." in seen.words("verdict")
        assert "Everything One party, owner: one key signs policy, attestations and record." in seen.words("vouch")
        assert "The corpus owner" not in seen.words("vouch") and "Contributors" not in seen.words("vouch")
    assert seen.colours == "verdict full weak"


# --- Verdicts -------------------------------------------------------------------------------------------------------------


def test_a_changed_byte_is_failed_without_a_figure_and_says_what_was_found_and_what_to_do(full, tmp_path):
    export = changed(full[0], tmp_path / "changed")
    report = verify_export(export, [SIGNER.vkey], owner_key=OWNER)
    seen = screen(export, tmp_path, report)
    assert list(seen.blocks) == BLOCKS[:2] and seen.tiles == [] and seen.colours == "verdict failed"
    assert VERDICTS["FAILED"].brief in seen.words("verdict") and "✗ FAILED" in squeezed(seen.said)
    assert seen.words("open").startswith("What was found 1 finding: LEAF.")
    assert "ask the operator, and keep the export: it is the evidence" in seen.words("open")
    assert seen.sections[1] == "findings"


def test_a_fault_in_the_meaning_of_leaves_is_failed_without_a_figure_too(full, tmp_path):
    findings = tuple(Finding(f"CODE_{n % 10}", "seq 3", "it is wrong") for n in range(30))
    seen = screen(full[0], tmp_path, replace(full[1], verdict="FAILED", findings=findings))
    assert list(seen.blocks) == BLOCKS[:2] and not re.search(r"ε|epsilon|of 100|contributor", seen.whole)
    assert "30 findings: CODE_0, " in seen.words("open") and "CODE_7 and others." in seen.words("open")
    assert "those further down are of what could be read, and prove nothing" in seen.words("verdict")


FIGURE = re.compile(r"ε ≤ [\d.]+ at the bounds of the policy recognised in at most \d+ of 100")


def test_where_bounds_are_told_figures_are_those_of_the_policy_whatever_the_operator_wrote(tmp_path):
    report = told_report(tmp_path / "told", admission(1), admission(2, "sensitive", sigma_micro=50_000_000))
    honest = told_report(tmp_path / "honest", admission(1), admission(2, "sensitive"))
    assert report.classes[1].epsilon < honest.classes[1].epsilon
    seen = screen(tmp_path / "told" / "export", tmp_path, report)
    expected = screen(tmp_path / "honest" / "export", tmp_path, honest)
    figures = [FIGURE.search(squeezed(tile))[0] for tile in seen.tiles]
    assert figures == [FIGURE.search(squeezed(tile))[0] for tile in expected.tiles]
    assert "other content" not in seen.words("attacker"), "that figure is the operator's word"
    assert "no contributor's signature was verified" in seen.words("verdict")
    assert "The operator, who says too which class each is in. No attestation was shown." in seen.words("vouch")
    assert "Contributors" not in seen.words("vouch")


def test_what_the_operator_tells_stands_beside_it_where_it_is_less(tmp_path):
    report = told_report(tmp_path / "told", admission(1, sigma_micro=40_000_000), admission(2, "sensitive"))
    less, same = screen(tmp_path / "told" / "export", tmp_path, report).tiles
    believed = hits(report.classes[0].epsilon, report.delta)
    assert believed < hits(report.classes[0].epsilon_preset, report.delta)
    assert f"Who believes the bounds that the operator told: in at most {believed}." in squeezed(less)
    assert "believes" not in same


def test_attestations_whose_keys_nothing_shows_are_no_contributors_word(tmp_path):
    told = Told.honest()
    told.registry = None
    export = told.export(tmp_path)
    report = verify_export(export, [SIGNER.vkey], owner_key=OWNER)
    assert report.verdict == "TOLD" and report.bounds.held == 4
    seen = screen(export, tmp_path, report)
    assert "Attestations are there, but nothing shows who signed them." in seen.words("vouch")
    assert "Contributors" not in seen.words("vouch")


def test_a_summarised_audit_says_whose_word_is_in_place_of_what_is_gone(pruned, tmp_path):
    export, report = pruned
    seen = screen(export, tmp_path, report)
    assert seen.colours == "verdict summarised" and "for that part auditors vouch" in seen.words("verdict")
    assert "Contributors: 4 attestations under 2 keys" in seen.words("vouch")
    assert "Auditors, for 16 that are gone." in seen.words("vouch")
    assert "The run is not closed: figures may grow." in seen.words("attacker")
    everybody = replace(report, bounds=replace(report.bounds, admits=0, held=0))
    assert "Contributors" not in screen(export, tmp_path, everybody).words("vouch")


# --- Words ----------------------------------------------------------------------------------------------------------------


def test_whatever_weakens_a_verdict_is_beside_it_in_its_fixed_words_and_so_is_what_no_audit_finds(full, tmp_path):
    export, report = full
    told = screen(export, tmp_path, replace(report, qualifiers=tuple(sorted(QUALIFIERS)))).words("open")
    assert all(f"{found.brief} {word}" in told for word, found in QUALIFIERS.items())
    for qualifiers in (report.qualifiers, ()):
        told = screen(export, tmp_path, replace(report, qualifiers=qualifiers)).words("open")
        assert all(sentence in told for sentence in BEYOND[:2])
        assert [word for word in QUALIFIERS if word in told.split()] == list(qualifiers)


def test_every_verdict_and_qualifier_has_words_for_one_screen():
    for word, found in {**QUALIFIERS, **VERDICTS, "UNREAD": UNREAD}.items():
        assert found.brief and found.brief[-1].isalpha() and not set("\n<>") & set(found.brief), word
    assert all(len(found.brief) <= 80 and found.brief[0].islower() for found in QUALIFIERS.values())


@pytest.mark.parametrize("verdict", ["FULL", "SUMMARISED", "TOLD", "FAILED"])
def test_no_word_of_the_ledger_is_in_the_verdict_or_among_what_was_not_verified(full, tmp_path, verdict):
    """Whatever names, times and sentences an export has, these two blocks are the program's own words."""
    export, report = full
    if verdict == "FAILED":
        report = replace(report, findings=(Finding("LEAF", "seq 3", "it was changed"),))
    report = replace(report, verdict=verdict)
    hostile = replace(
        report,
        origin=HOSTILE,
        corpus=HOSTILE,
        owner=HOSTILE,
        accountant=HOSTILE,
        isolation=HOSTILE,
        notes=(HOSTILE,),
        findings=tuple(replace(finding, where=HOSTILE, sentence=HOSTILE) for finding in report.findings),
        classes=tuple(replace(row, name=HOSTILE + row.name) for row in report.classes),
        signers=tuple(replace(signer, name=HOSTILE) for signer in report.signers),
        blocks=tuple(replace(block, classes=()) for block in report.blocks),
        unprobed=(HOSTILE,),
        began=2**63 - 1,
        last_time=10**400,
    )
    plain, seen = screen(export, tmp_path, report), screen(export, tmp_path, hostile)
    assert [seen.words(block) for block in BLOCKS[:2]] == [plain.words(block) for block in BLOCKS[:2]]
    assert seen.said == plain.said and seen.headings == plain.headings and list(seen.blocks) == list(plain.blocks)
    assert "alert(1)" in seen.whole and "A" * LONGEST_NAME not in seen.whole and "\u202e" not in seen.whole
