"""Build the command tree. Each group is one file; no file here imports torch."""

import typer

from dptrain.cli.account import account, calibrate
from dptrain.cli.attest import commands as attest
from dptrain.cli.gate import gate
from dptrain.cli.ledger import commands as ledger
from dptrain.cli.plan.commands import plan
from dptrain.cli.policy import app as policy
from dptrain.cli.registry import commands as registry
from dptrain.cli.release import release
from dptrain.cli.results import RootGroup
from dptrain.cli.train import demo, train

app = typer.Typer(
    name="dptrain",
    cls=RootGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # A traceback with local variables could show keys; an unexpected error prints Python's plain one.
    pretty_exceptions_enable=False,
    help="Differentially private training with signed per-contribution bounds and an auditable privacy ledger. "
    "Exit codes: 0 done, 1 refused or failed check, 2 wrong use."
    "\n\nContributors start with `dptrain attest --help`, corpus owners with `dptrain policy --help`, who trains with "
    "`dptrain gate --help`, auditors with `dptrain ledger verify --help`. Example: `dptrain demo`",
)
OWNERS = "For corpus owners"
TRAINERS = "For who trains"
KEEPERS = "For operators and auditors"

app.add_typer(attest.app, name="attest", rich_help_panel="For contributors")
app.add_typer(registry.app, name="registry", rich_help_panel=OWNERS)
app.add_typer(policy, name="policy", rich_help_panel=OWNERS)
for panel, functions in (
    (OWNERS, (calibrate, account)),
    (TRAINERS, (gate, plan, train)),
    (KEEPERS, (release,)),
    ("To try it", (demo,)),
):
    for function in functions:
        app.command(rich_help_panel=panel)(function)
app.add_typer(ledger.app, name="ledger", rich_help_panel=KEEPERS)


def main() -> None:
    """Entry point of the `dptrain` script."""
    # Named here, so that help and completion are the same under `python -m dptrain`.
    app(prog_name="dptrain")
