"""What a run that counts a budget of texts is told to contributors, auditors and readers, by every command that asks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attest.withdrawal import Withdrawal
from ledger.audit.verify import earlier_run
from ledger.budget.generation import OverRuns
from ledger.errors import ExportRefused, LedgerBehind, LedgerForked
from ledger.leaves import Previous
from ledger.leaves.header import TEXTS
from ledger.proofs.monitoring import Mine, watch
from ledger.proofs.tracing import FOR_TEXTS, OTHERS, open_exports, trace_over
from ledger.published.disclosure import _counted
from ledger.replay.earlier_runs import SpentRegistry
from ledger.replay.earlier_texts import WITHDRAWN
from ledger.storage.place import Place
from ledger.views.trace import Wanted
from tests.attacks.test_ledger_attacks_texts import (
    FOUR,
    KEYS,
    LATER,
    SECOND,
    TEXTS_SIGNER,
    Budget,
    attested,
    member,
    name_of,
    run,
    texts,
    withdrawn_from,
)
from tests.worlds.commands import Shell
from tests.worlds.gate import NOW
from tests.worlds.generating import created, signed, unit
from tests.worlds.ledgers import SIGNER, header_spec
from tests.worlds.postgres import Cluster

NOON = LATER + 5000


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """A budget, and a run that counts it."""
    budget = Budget(tmp_path).export()
    registry = SpentRegistry([], [texts(budget)])
    return budget, run(tmp_path, "one", member(FOUR[0], registry), previous=registry.previous)


def test_verify_takes_budgets_among_the_earlier_exports(tmp_path, both):
    budget, export = both
    asked = ["ledger", "verify", str(export), *(word for key in KEYS for word in ("--key", key)), "--now", str(NOON)]
    shell = Shell(tmp_path)
    found = shell.json(*asked, "--earlier", str(budget))
    assert found["verdict"] == "TOLD" and "EARLIER_TOLD" not in found["qualifiers"]
    assert any(f"counted with {TEXTS_SIGNER.name}, a budget log of texts" in note for note in found["notes"])
    assert "EARLIER_TOLD" in shell.json(*asked)["qualifiers"]
    broken = budget / "checkpoint"
    broken.write_bytes(broken.read_bytes().replace(b"texts", b"tests"))
    shown = shell.run(*asked, "--earlier", str(budget), code=1).stdout
    assert shown.startswith("FAILED") and "the budget log is FAILED" in shown


def test_a_withdrawal_that_came_by_a_budget_is_no_alarm_to_its_contributor(tmp_path):
    _, late = withdrawn_from(tmp_path)
    registry = SpentRegistry([], [texts(late)])
    entered = list(registry.withdrawn_among([name_of(FOUR[0])]))
    one = replace(member(FOUR[0], registry), key_id=Mine.of("one", FOUR[0]).key_id)
    said = Withdrawal(name_of(FOUR[0]), header_spec().header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=NOW).policy.corpus,
                      NOW - 1, "consent")  # fmt: skip
    for name, previous, expected in (("counted", registry.previous, set()), ("alone", (), {"WITHDRAWAL_REASON"})):
        carried = one.carried_micro if previous else 0
        export = run(tmp_path, name, replace(one, carried_micro=carried), previous=previous, withdraws=entered)
        found = watch([export], KEYS, [Mine.of("one", FOUR[0])], [("one.cose", said)], delay=60, now=NOON)
        alarms = {alarm.code for alarm in found.alarms} - {"BOUNDS"}  # of another corpus than the clinic's
        assert alarms == expected
        (row,) = found.rows
        assert row.withdrawn is not None and row.withdrawn.reason == WITHDRAWN


def test_a_trace_counts_no_texts_and_says_so_and_takes_no_export_of_a_budget(tmp_path, both):
    budget, export = both
    found = trace_over(open_exports([export], KEYS, now=NOON), Wanted(descriptor_hash=name_of(FOUR[0])))
    assert [item.origin for item in found.not_given] == [TEXTS_SIGNER.name] and "EARLIER_TOLD" in found.qualifiers
    assert f"{FOR_TEXTS} {TEXTS_SIGNER.name}" in found.unseen and OTHERS in found.unseen
    with pytest.raises(ExportRefused):
        open_exports([export, budget], KEYS, now=NOON)
    (tmp_path / "one.attest").write_bytes(FOUR[0].to_cbor())
    words = ["ledger", "trace", name_of(FOUR[0]).hex(), str(export), str(budget), "--key", SIGNER.vkey]
    shown = " ".join(Shell(tmp_path).run(*words, code=2).stderr.replace("│", " ").split())
    assert "is an export of a budget, which is no run: ask 'dptrain ledger show' with --attestation" in shown


def test_a_disclosure_tells_budgets_from_runs():
    header = header_spec().header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=NOW)
    ran = Previous("a.example/run", 2, bytes(32), bytes(32), _vkey("a.example/run"), "spent")
    budget = Previous("a.example/texts", 2, bytes(32), bytes(range(32)), _vkey("a.example/texts"), TEXTS)
    said = {cited: _counted(replace(header, previous=cited)) for cited in ((), (ran,), (budget,), (ran, budget))}
    assert "counts no earlier run" in said[()] and "texts" not in said[ran,]
    assert said[budget,].startswith("Budgets of texts that the ledger counts: a.example/texts. What contributions may spend")
    assert said[ran, budget] == f"{said[ran,]} {said[budget,]}"


def _vkey(name: str) -> str:
    return replace(SECOND, name=name).vkey


def test_the_audit_of_a_run_says_in_json_how_a_budget_is_cited(both):
    from ledger.audit import verify_export

    budget, export = both
    report = verify_export(export, KEYS, now=NOON)
    (row,) = report.cited
    assert (row.origin, row.reason, row.size) == (TEXTS_SIGNER.name, TEXTS, texts(budget).cited.size)
    assert "(texts, " in json.dumps(report.to_json())


def test_an_earlier_run_may_have_entered_withdrawals_of_a_budget_and_hands_them_on(tmp_path):
    _, late = withdrawn_from(tmp_path)
    registry = SpentRegistry([], [texts(late)])
    entered = list(registry.withdrawn_among([name_of(FOUR[0])]))
    first = run(tmp_path, "one", member(FOUR[0], registry), previous=registry.previous, withdraws=entered)
    later = SpentRegistry([earlier_run(first, KEYS, now=NOON)], [texts(late)])
    assert list(later.withdrawn_among([name_of(FOUR[0]), name_of(attested(77))])) == entered


def test_a_budget_on_a_server_is_counted_by_its_address_alone(cluster: Cluster, tmp_path):
    """As an earlier run there is: no state directory is needed to read."""
    pytest.importorskip("torch")
    from dptrain.record.earlier_runs import Earlier

    url = f"{cluster.url()}?schema=beside"
    with created(Place.of(url, tmp_path / "state"), over_runs=OverRuns.of(signed(), ["sensitive"])) as log:
        log.admit(FOUR[:2], now=NOW)
        log.withdraw(unit(FOUR[0]), now=NOW)
        size, root = log.size, log.root
    (cited,) = (registry := Earlier([url]).registry(None, bytes(32))).previous
    assert (cited.size, cited.root, cited.reason) == (size, root, TEXTS)
    assert [name for name, *_ in registry.withdrawn_among([name_of(one) for one in FOUR])] == [name_of(FOUR[0])]
    Earlier([url]).registry((cited,), bytes(32))
    with pytest.raises(LedgerBehind):
        Earlier([url]).registry((replace(cited, size=size + 1),), bytes(32))
    with pytest.raises(LedgerForked):
        Earlier([url]).registry((replace(cited, root=bytes(32)),), bytes(32))
