"""A whole ledger under every accountant: recorded, exported, audited; and lies about its epsilons, which are named."""

import math
from dataclasses import replace

import pytest
from spends import with_rows
from test_export import VKEYS, codes, rebuilt, write

from attest.keys import public_bytes
from ledger import accountants
from ledger.accountants import ACCOUNTANTS
from ledger.audit import verify_export
from ledger.errors import LeafRefused
from ledger.leaves import Epoch, Spend
from ledger.log import Ledger
from tests.worlds.ledgers import OWNER_KEY, SIGNER, START, Driver, descriptor, header_spec, signed_policy


@pytest.fixture(autouse=True)
def _nothing_plugged_in():
    before = accountants.prv._plugged[:]
    accountants.prv._plugged.clear()
    accountants.core.cached.cache_clear()
    yield
    accountants.prv._plugged[:] = before
    accountants.core.cached.cache_clear()


def a_run(base, accountant, **policy):
    with Ledger.create(
        base / "ledger.db", header_spec(signed_policy(accountant=accountant, **policy)), SIGNER, now=START
    ) as ledger:
        Driver(ledger).whole_run()
        return ledger.export(base / "export"), ledger.epsilon(descriptor(1))


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_whole_run_verifies(tmp_path, accountant):
    export, spent = a_run(tmp_path, accountant)
    report = verify_export(export, VKEYS, owner_key=public_bytes(OWNER_KEY))
    assert (report.verdict, report.findings) == ("TOLD", ())
    assert report.accountant.startswith(f"{accountant} (")
    assert spent == accountants.epsilon(1.0, 0.02, 16, 1e-6, accountant)
    assert all(c.epsilon_replace >= c.epsilon > 0 for c in report.classes)
    assert not any("recorded with" in note for note in report.notes)


@pytest.mark.parametrize("accountant", ["rdp", "moments"])
def test_figures_have_no_leeway_and_what_another_version_recorded_is_refused(tmp_path, accountant):
    export, _ = a_run(tmp_path, accountant)

    def earlier(seq, leaf):
        return leaf if seq else replace(leaf, accountant=replace(leaf.accountant, version="renyi-1"))

    with pytest.raises(LeafRefused, match="ACCOUNTANT_VERSION"):
        rebuilt(export, earlier)
    assert "SPEND_EPSILON" in codes(verify_export(shifted(export, lambda micro: micro + 4), VKEYS))


def test_the_auditor_says_where_the_range_of_moments_decides(tmp_path):
    loud, _ = a_run(tmp_path, "moments")
    told = [note for note in verify_export(loud, VKEYS).notes if "lambda" in note]
    assert len(told) == 1 and told[0].startswith("class sensitive: ") and "lambda = 32" in told[0]
    assert accountants.caveat([accountants.Phase(1.0, 0.02, 16)], 1e-6, "moments") is None, "of class open"
    (tmp_path / "pld").mkdir()
    quiet, _ = a_run(tmp_path / "pld", "pld")
    assert not any("lambda" in note for note in verify_export(quiet, VKEYS).notes)


def test_the_accountants_record_different_figures(tmp_path):
    figures = []
    for accountant in ACCOUNTANTS:
        (tmp_path / accountant).mkdir()
        figures.append(a_run(tmp_path / accountant, accountant)[1])
    pld, rdp, moments, prv = figures
    assert pld < rdp < moments and pld < prv <= pld + 0.02


@pytest.mark.parametrize("accountant", ["rdp", "moments"])
def test_caps_and_public_occurrences_count_by_the_accountant_of_the_policy(tmp_path, accountant):
    value = accountants.epsilon_of_phases_capped([accountants.Phase(1.0, 0.5, 100)], 2, 1e-6, accountant)
    assert value == accountants.epsilon_occurrences(2.0, 1e-6, accountant)
    assert value > accountants.epsilon_occurrences(2.0, 1e-6, "pld")


def shifted(export, seq_micro):
    """The export with every recorded epsilon changed, signed anew."""

    def change(_, leaf):
        if isinstance(leaf, Spend):
            return with_rows(leaf, lambda row: replace(row, epsilon_micro=seq_micro(row.epsilon_micro)))
        if isinstance(leaf, Epoch):
            rows = (replace(row, max_epsilon_micro=seq_micro(row.max_epsilon_micro)) for row in leaf.classes)
            return replace(leaf, classes=tuple(rows))
        return leaf

    return write(export, rebuilt(export, change))


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_an_epsilon_below_what_is_true_is_named_under_every_accountant(tmp_path, accountant):
    export, _ = a_run(tmp_path, accountant)
    by = 21_000 if accountant == "prv" else 3
    assert "SPEND_EPSILON" in codes(verify_export(shifted(export, lambda micro: micro - by), VKEYS))


def test_prv_is_held_to_its_bracket(tmp_path):
    """Without a source the top is recorded: what lies down to pld passes, whoever computed it, and nothing outside does."""
    export, spent = a_run(tmp_path, "prv")
    assert spent == accountants.epsilon(1.0, 0.02, 16, 1e-6) + 0.02
    assert verify_export(shifted(export, lambda micro: micro - 19_990), VKEYS).verdict == "TOLD"
    assert codes(verify_export(shifted(export, lambda micro: micro - 20), VKEYS)) == {"SPEND_EPSILON"}, "20010 below the top"


def test_an_auditor_without_the_source_accepts_what_the_writer_s_source_gave_and_says_who_computed(tmp_path):
    def source(phases, delta):
        return accountants.epsilon_of_phases(phases, delta) + 0.0123

    accountants.register_prv(source, lambda: ("opacus", "1.5.4", accountants.prv.SOURCES["opacus"]))
    export, spent = a_run(tmp_path, "prv")
    assert spent == accountants.epsilon(1.0, 0.02, 16, 1e-6) + 0.0123
    accountants.prv._plugged.clear()
    accountants.core.cached.cache_clear()
    report = verify_export(export, VKEYS)
    assert report.verdict == "TOLD"
    assert any("recorded with prv opacus 1.5.4" in note for note in report.notes)


def test_a_ledger_of_one_accountant_does_not_pass_as_one_of_another(tmp_path):
    """The header's accountant is the policy's, so a run recorded by `moments` cannot be told as `pld`."""
    export, _ = a_run(tmp_path, "moments")
    ratio = accountants.epsilon(1.0, 0.02, 16, 1e-6) / accountants.epsilon(1.0, 0.02, 16, 1e-6, "moments")
    report = verify_export(shifted(export, lambda micro: math.ceil(micro * ratio) + 2), VKEYS)
    assert "SPEND_EPSILON" in codes(report)
