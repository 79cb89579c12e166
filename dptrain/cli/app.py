"""Build the command tree: all groups and commands, in the order of help. `train` and `demo` start what alone imports torch."""

from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from dptrain.cli import policy
from dptrain.cli.account import account, calibrate
from dptrain.cli.attest import commands as contributor
from dptrain.cli.attest.anchor import anchor
from dptrain.cli.attest.show import show as show_attestations
from dptrain.cli.attest.verify import verify as verify_attestations
from dptrain.cli.check import check
from dptrain.cli.gate import NoKeptReading, gate
from dptrain.cli.generate import generate
from dptrain.cli.inputs import load_training
from dptrain.cli.options import file_argument, option, wrong_if
from dptrain.cli.plan import plan
from dptrain.cli.registry import commands as registry
from dptrain.cli.registry import show as registry_show
from dptrain.cli.release import release
from dptrain.cli.results import JsonFlag, LedgerGroup, RootGroup
from dptrain.cli.rights import commands as rights
from dptrain.programs import guarded


def train(
    run: Annotated[Path, file_argument("RUN.toml", "The run file.")],
    resume: Annotated[bool, option("Continue from the last checkpoint of this run.", "--resume")] = False,
    clock_jump_ok: Annotated[
        bool, option("The clock is right though it is over 14 days ahead of the ledger's last leaf.", "--clock-jump-ok")
    ] = False,
    no_kept_reading: NoKeptReading = False,
    dry_run: Annotated[
        bool, option("Decode every record, take three steps on rows that are nobody's, charge nothing.", "--dry-run")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Train as a run file says; the same as `accelerate launch -m dptrain.train RUN.toml`.

    Nothing in a run file can weaken the guarantee: everything it rests on is in the signed policy.

    To train a text or image classifier from a file. For a model or loop of your own use `dptrain.PrivateTraining` in Python.

    Example: `dptrain train run.toml`
    """
    flags = {"--resume": resume, "--clock-jump-ok": clock_jump_ok, "--no-kept-reading": no_kept_reading, "--json": json}
    flags |= {"--dry-run": dry_run}
    arguments = [str(run), *(flag for flag, given in flags.items() if given)]
    raise typer.Exit(load_training("dptrain.train").main(arguments))


def demo(
    directory: Annotated[Path, option("Where everything is written.", "--dir", metavar="DIR")] = Path("demo"),
    serve: Annotated[
        bool, option("Train private adapters of a small language model instead, serve them, and ask until refused.", "--serve")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Go the whole way on real data that comes with the package: keys, policy, gate, training, export, audit, report.

    With `--serve` the data are generated texts, and the way goes on: a server with rights and budgets, and clients that ask it.

    Example: `dptrain demo --dir demo`
    """
    arguments = ["--dir", str(directory), *(["--json"] if json else [])]
    raise typer.Exit(load_training("dptrain.demo.serving" if serve else "dptrain.demo.stages").main(arguments))


def quickstart(
    data: Annotated[Path, file_argument("DATA", "A .jsonl, .csv or .parquet file of flat records; each is a contribution.")],
    epsilon: Annotated[float, option("Most epsilon of a contribution after all steps.", metavar="E")] = 8.0,
    epochs: Annotated[float, option("How often a contribution is drawn on average.", metavar="N")] = 4.0,
    batch_size: Annotated[int, option("How many contributions a step draws on average.", metavar="B")] = 256,
    delta: Annotated[float | None, option("Default: at most 1e-6, and a tenth of one over the contributions.")] = None,
    label: Annotated[str | None, option("Column that is predicted; default: label, target, class or y.")] = None,
    by: Annotated[str | None, option("Column that says whose a record is; all of one person are one contribution.")] = None,
    directory: Annotated[Path, option("Where everything is written.", "--dir", metavar="DIR")] = Path("run"),
    json: JsonFlag = False,
) -> None:
    """Make a private training run of data that is all yours: keys, signed policy, attestations, and a program to start from.

    The noise is the least whose epsilon stays within the target, some steps that are done again included. The program trains a
    small classifier; put your model and your loss in its place. In Python, `PrivateTraining.own` does this for any data set.

    Example: `dptrain quickstart data.jsonl --epsilon 8 --epochs 4`
    """
    given = {"--epsilon": epsilon, "--epochs": epochs, "--batch-size": batch_size, "--delta": delta, "--label": label}
    given["--by"] = by
    arguments = [str(data), "--dir", str(directory), *(["--json"] if json else [])]
    arguments += [f"{name}={value}" for name, value in given.items() if value is not None]
    raise typer.Exit(load_training("dptrain.demo.quickstart").main(arguments))


def serve(
    config: Annotated[Path, file_argument("SERVE.toml", "The server's file.")],
    init: Annotated[bool, option("Make the budget log and its key that the file names, and end.", "--init")] = False,
    export: Annotated[
        Path | None, option("Sign the budget log, write an export of it for auditors, and end.", metavar="DIR")
    ] = None,
    he: Annotated[
        bool, option("Serve adapters to encrypted states alone: no base model, no text, no state in clear.", "--he")
    ] = False,
    add_token: Annotated[
        str | None, option("Add a client to the file of tokens, print its token once, and end.", metavar="CLIENT")
    ] = None,
    operator: Annotated[
        bool, option("With --add-token: one that sees budgets and posture, and asks for no text.", "--operator")
    ] = False,
    corpus: Annotated[
        bool, option("With --add-token: the budget of a corpus of this name pays, in place of a user's.", "--corpus")
    ] = False,
    allow: Annotated[
        list[str] | None,
        option("With --add-token: class that may have influence, and its largest epsilon; repeat.", metavar="CLASS=EPSILON"),
    ] = None,
    port: Annotated[int | None, option("In place of that of the file; 0 for any that is free.", min=0, max=65535)] = None,
    json: JsonFlag = False,
) -> None:
    """Serve a release: an artifact answers only where rights admit it, and private answers are paid from a budget.

    The file says which release, by whose keys, which classes of answers, how they are released and how much each user may
    spend. Requests have the shape of OpenAI's. Nothing is served before release, ledger and budget were checked.

    First `--init` and `--add-token`, once; then without either. A signal ends it: running answers end, the budget is signed.

    Example: `dptrain serve serve.toml`
    """
    loaded = load_training("dptrain.serve.program")
    about = operator or corpus or allow is not None
    wrong_if(about and add_token is None, "--operator, --corpus and --allow go with --add-token")
    chosen = sum((init, he, add_token is not None, export is not None))
    wrong_if(chosen > 1, "give one of --init, --export, --he and --add-token")
    how = {"init": init, "export": export, "encrypted_only": he, "token": add_token, "operator": operator, "allow": allow}
    how |= {"corpus": corpus, "port": port}
    raise typer.Exit(guarded(lambda: int(loaded.main(config, **how, as_json=json)), as_json=json))


CONTRIBUTORS = "For contributors"
OWNERS = "For corpus owners"
TRAINERS = "For who trains"
KEEPERS = "For operators and auditors"


def _add(group: typer.Typer, commands: Iterable[Callable[..., Any]], panel: str | None = None) -> None:
    """Adds commands to a group; each is called as its function."""
    for command in commands:
        group.command(rich_help_panel=panel)(command)


def _group(name: str, panel: str, text: str, commands: Iterable[Callable[..., Any]] = (), **settings: Any) -> None:
    """Adds a group to the tree."""
    made = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help=text, **settings)
    _add(made, commands)
    app.add_typer(made, name=name, rich_help_panel=panel)


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



def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"dptrain {metadata.version('dptrain')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, option("Print the version.", "--version", is_eager=True, callback=_print_version)] = False,
) -> None:
    """Takes the options of the program itself."""


_group(
    "attest",
    CONTRIBUTORS,
    "A contributor's tools: keys, attestations, anchors, withdrawals.\n\nIn this order: `keygen` once; `sign` and "
    "`verify` for every batch of data; `show` to read what was signed; `anchor` to find what became of a content; `withdraw` "
    "to take data back; `rotate` and `revoke` when a key changes or is lost.",
    (
        *(contributor.keygen, contributor.sign, verify_attestations, show_attestations, anchor),
        *(contributor.prove, contributor.rotate, contributor.revoke, contributor.withdraw),
    ),
)
_group(
    "registry",
    OWNERS,
    "Which contributor key may attest which classes: a log that only grows, every entry signed by the corpus owner. "
    "The policy names one state of it; the gate accepts that state and every later one.\n\n`init` once, `add` for every "
    "contributor, `grant` when the classes change, `rotate` and `revoke` for keys; `show` and `verify` for everybody. Every "
    "change is signed with the owner's key: by default owner.key beside the registry; the public half is owner.pub there.",
    (
        *(registry.init, registry.add, registry.prove, registry.grant, registry.rotate, registry.revoke),
        *(registry.set_clock, registry_show.show, registry_show.verify),
    ),
)
_group(
    "policy",
    OWNERS,
    "Write, explain, sign and show the rules of a corpus.\n\n`init` once; edit; `check` until it says what you want to "
    "promise, `noise` for less noise at the same epsilon; `sign`; hand out policy.cose, registry.cbor and owner.pub; "
    "registry.names goes to the trainer alone. Contributors and auditors `check` and `show`.",
    (policy.init, policy.check, policy.noise, policy.sign, policy.show),
)
_add(app, (calibrate, account), OWNERS)
_add(app, (check, gate, plan, train, generate), TRAINERS)
_group(
    "ledger",
    KEEPERS,
    "The signed record of a run: keep it, audit it, prove what is in it.\n\nTraining writes the ledger. Who keeps it "
    "hands out an `export`; an auditor needs that and two public keys, got by another way; a contributor needs the export and "
    "the descriptor hash that `dptrain attest show` prints. None of them needs torch.",
    cls=LedgerGroup,
)
_add(app, (release, serve), KEEPERS)
_group(
    "rights",
    KEEPERS,
    "What a client of a service may be answered from: signed for one client of one gate, until a time.\n\n`sign` as whoever "
    "grants rights, with a key of `dptrain attest keygen` that the service pins; `show` and `verify` for everybody. The gate "
    "of the service admits a query only to what these rights and the release allow.",
    (rights.sign, rights.show, rights.verify),
)
_add(app, (quickstart,), "For who owns all the data")
_add(app, (demo,), "To try it")


def main() -> None:
    """Entry point of the `dptrain` script."""
    # Named here, so that help and completion are the same under `python -m dptrain`.
    app(prog_name="dptrain")
