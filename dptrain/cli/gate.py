"""`dptrain gate`: admit or refuse every contribution of a corpus."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from attest.corpus import open_corpus
from attest.gate import GateReport, ReasonCode, Refused, run_gate
from attest.policy import Policy
from dptrain.cli.files import OwnerKey, RegistryFile, read_registry, read_signed_policy
from dptrain.cli.output import JsonFlag, console, counting, moment, print_json, styled, table, utc
from ledger.log import Ledger

SignedPolicyFile = Annotated[
    Path, typer.Argument(metavar="POLICY.cose", exists=True, dir_okay=False, help="Policy signed by the corpus owner.")
]
CorpusPath = Annotated[Path, typer.Argument(metavar="CORPUS", exists=True, help="Directory, or one piece of data.")]


def gate(
    policy: SignedPolicyFile,
    corpus: CorpusPath,
    owner_key: OwnerKey = None,
    registry: RegistryFile = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="LEDGER", exists=True, dir_okay=False, help="Refuse what was withdrawn in this ledger."),
    ] = None,
    now: Annotated[int | None, moment("Moment of admission; default: now.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Refusals that are listed; --json lists all.")] = 20,
    json: JsonFlag = False,
) -> None:
    """Judge every contribution as training would: admitted per class, refused per reason.

    Exit code 1 if anything was refused. Training goes on without refused contributions all the same.
    """
    signed = read_signed_policy(policy, owner_key)
    report = judge(signed.policy, policy, corpus, registry, now, ledger)
    if json:
        print_json(_as_json(report))
    else:
        _print(report, limit)
    if report.refused:
        raise typer.Exit(1)


def judge(rules: Policy, policy: Path, corpus: Path, registry: Path | None, now: int | None, ledger: Path | None) -> GateReport:
    """Run the gate over a corpus, with the withdrawals of a ledger if there is one."""
    withdrawn: frozenset[bytes] = frozenset()
    if ledger is not None:
        with Ledger.open(ledger, read_only=True) as log:
            withdrawn = log.withdrawn
    with counting("judging") as progress:
        return run_gate(
            open_corpus(corpus),
            rules,
            read_registry(policy, registry),
            now=int(time.time()) if now is None else now,
            withdrawn=withdrawn,
            progress=progress,
        )


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(epilog="Example: dptrain gate policy.cose corpus/")(gate)


def _print(report: GateReport, limit: int) -> None:
    counts, out = report.counts(), console()
    out.print(f"{len(report.admitted)} admitted, {len(report.refused)} refused, at {utc(report.now)}")
    for name, count in counts["admitted"].items():
        out.print(styled("green", "  admitted", f" {name}: {count}"))
    for code, count in counts["refused"].items():
        out.print(styled("red", "  refused", f" {code}: {count}. {ReasonCode[code].meaning}"))
    if report.refused and limit:
        rows = table("where", "reason", "sentence")
        rows.columns[1].justify = rows.columns[2].justify = "left"
        for item in report.refused[:limit]:
            rows.add_row(_where(item), str(item.refusal.code), item.refusal.sentence)
        out.print(rows)


def _where(item: Refused) -> str:
    return "(no content)" if item.locator is None else f"{item.locator.source} at {item.locator.offset}"


def _as_json(report: GateReport) -> dict[str, Any]:
    return {
        "now": report.now,
        "registry_root": report.registry_root.hex(),
        **report.counts(),
        "refusals": [
            {
                "code": str(item.refusal.code),
                "sentence": item.refusal.sentence,
                "contributor": item.refusal.contributor,
                "descriptor_hash": item.refusal.descriptor_hash.hex() if item.refusal.descriptor_hash else None,
                "source": item.locator.source if item.locator else None,
                "offset": item.locator.offset if item.locator else None,
            }
            for item in report.refused
        ],
    }
