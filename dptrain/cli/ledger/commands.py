"""Put the commands of `dptrain ledger` together. A short room: it loads all rooms beside it, when one of them is asked for."""

import typer

from dptrain.cli.ledger import audit, cosign, export, proofs, trace, upkeep

app = typer.Typer(rich_markup_mode="markdown")

for panel, functions in (
    (
        "For who keeps the ledger",
        (
            *(trace.show, export.withdraw, export.export, cosign.merge, cosign.witness_request, cosign.witness_answer),
            *(upkeep.retain, upkeep.rotate_key, upkeep.set_clock, upkeep.fsck, upkeep.init),
        ),
    ),
    ("For auditors", (audit.verify, audit.report, cosign.cosign, cosign.auditor_key)),
    ("For contributors", (audit.monitor, trace.trace, proofs.prove, proofs.verify_proof)),
):
    for function in functions:
        app.command(rich_help_panel=panel)(function)
