"""The command tree. Each group is one file; no file here imports torch."""

import typer

from dptrain.cli import account, gate, policy, release, train
from dptrain.cli.attest import commands as attest
from dptrain.cli.ledger import commands as ledger
from dptrain.cli.output import RootGroup
from dptrain.cli.plan import commands as plan
from dptrain.cli.registry import commands as registry

app = typer.Typer(
    name="dptrain",
    cls=RootGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # A traceback with local variables could show keys; an unexpected error prints Python's plain one.
    pretty_exceptions_enable=False,
    help="Differentially private training with signed per-contribution bounds and an auditable privacy ledger. "
    "Exit codes: 0 done, 1 refused or failed check, 2 wrong use.",
)
app.add_typer(attest.app, name="attest")
app.add_typer(registry.app, name="registry")
app.add_typer(policy.app, name="policy")
gate.register(app)
plan.register(app)
account.register(app)
train.register(app)
app.add_typer(ledger.app, name="ledger")
release.register(app)


def main() -> None:
    """Entry point of the `dptrain` script."""
    # Named here, so that help and completion are the same under `python -m dptrain`.
    app(prog_name="dptrain")
