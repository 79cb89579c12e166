"""Mutations of valid attestations: 20,000 here, a million with `make mutations`."""

import itertools

import pytest

from attest import cbor
from attest.gate import run_gate
from attest.gate.admission import Passed
from attest.gate.checks import Examiner
from tests.attacks.mutations import (
    CONTENT_HEAD,
    HASH_HEAD,
    NONCE_HEAD,
    TRICKY,
    Judge,
    Mutant,
    Mutator,
    Report,
    claimed_content,
    make_originals,
    parts_of,
    run,
)
from tests.attacks.scene import item_of, signed
from tests.worlds.gate import CORPUS, NOW, make_policy, make_registry


@pytest.mark.slow
def test_no_mutant_of_twenty_thousand_passes():
    report = run(20_000, seed=20260707)
    assert not report.failures, "\n".join(report.failures)
    assert report.total == 20_000 and report.by_code["ADMITTED"] == 0
    assert {"SIG_BAD", "HEADER", "CBOR", "CBOR_NONCANONICAL", "SCHEMA", "TYPE", "RANGE", "OPENING"} <= set(report.by_code)
    assert report.by_code["SIG_BAD"] > 3000, "enough mutants get as far as the signature"
    assert len(report.by_kind) == 18 and min(report.by_kind.values()) > 300


def test_the_originals_hold_bytes_that_look_like_heads_of_fields():
    descriptors = [original.attestation.descriptor for original in make_originals()]
    openings = [original.attestation.opening for original in make_originals()]
    assert sum(d.count(CONTENT_HEAD) > 1 for d in descriptors) >= 16
    for head in (NONCE_HEAD, HASH_HEAD):
        assert sum(o.count(head) > 1 for o in openings) >= 16
    assert any(d.index(CONTENT_HEAD) < d.index(CONTENT_HEAD + cbor.decode(d)[7]) for d in descriptors)
    assert any(o.index(HASH_HEAD) < o.index(HASH_HEAD + cbor.decode(o)[2]) for o in openings)


def test_the_gate_has_learnt_the_form_of_every_original():
    """What the mutants are to confuse is there: the third original of each form is recognised, not decoded."""
    examiner = Examiner(make_policy(make_registry()), make_registry(), NOW)
    originals = [original for original in make_originals() if original.corpus == CORPUS]
    for original in originals:
        outcome = examiner.examine(*parts_of(original.attestation), original.content_hash)
        assert isinstance(outcome, Passed)
    known = list(examiner._known)
    # Of each contributor: the plain one, with all of its contents and nonces, and those with other fields changed.
    forms = {repr(changes) if set(changes) - {"content hash", "nonce"} else "" for changes in TRICKY}
    assert len(known) == 2 * len(forms) == 14


def test_the_judge_sees_what_passes():
    """The instrument itself: a mutant that somebody did sign is reported as a failure."""
    originals, report = make_originals(), Report()
    forged = signed({5: 7_000})
    Judge(originals, report).judge([Mutant("signed after all", forged, CORPUS)])
    assert report.by_code == {"CLIP_BELOW_FLOOR": 1} and len(report.failures) == 1


def test_mutants_are_the_same_for_the_same_seed():
    first, second = (list(itertools.islice(Mutator(make_originals(), 5), 100)) for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_no_mutant_passes_the_worker_processes_and_every_outcome_is_the_same_as_alone():
    originals = [o for o in make_originals() if o.corpus == CORPUS]
    mutants = [m for m in itertools.islice(Mutator(make_originals(), 11), 6000) if m.corpus == CORPUS]
    items = [item_with(o.attestation, o.content_hash, n) for n, o in enumerate(originals)]
    items += [item_with(m.attestation, claimed_content(m.attestation), 1000 + n) for n, m in enumerate(mutants)]
    registry = make_registry()
    reports = [run_gate(items, make_policy(registry), registry, now=NOW, workers=workers) for workers in (1, 2)]
    assert len(reports[0].admitted) == len(originals)
    assert reports[0] == reports[1]


def item_with(attestation, content_hash, number):
    """An item of a corpus whose content has a given hash."""
    item = item_of(attestation, b"", f"{number}.txt")
    return type(item)(item.locator, content_hash, attestation)
