"""Declares `dptrain generate`, and loads what does its work when it is called."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

from dptrain.cli.inputs import OwnerKey, RegistryFile
from dptrain.cli.ledger.place import checked
from dptrain.cli.options import argument, file_option, moment, option
from dptrain.cli.results import JsonFlag, Result


def generate(
    task: Annotated[str, argument("Prompts of the texts: a .toml file, or mimic, mimic-augpe, tab, yelp.", metavar="TASK")],
    corpus: Annotated[
        list[Path] | None,
        argument("With --policy: directories, or pieces of data, with attestations.", metavar="[CORPUS]...", exists=True),
    ] = None,
    model: Annotated[
        str | None, option("Causal language model: a folder, or a name of the hub; its own code is never run.", metavar="MODEL")
    ] = None,
    references: Annotated[
        Path | None,
        file_option("FILE.jsonl", 'The owner\'s own references: rows {"id", "text"}; an empty or null text keeps its place.'),
    ] = None,
    epsilon: Annotated[
        float | None,
        option(
            "Epsilon of one text, in a new budget of all texts of a reference; with --share of N queries. Sets the clip norm.",
            metavar="E",
        ),
    ] = None,
    delta: Annotated[float | None, option("Delta at which it holds: below one over the references.", metavar="D")] = None,
    batch: Annotated[int | None, option("References B of one text: public, empty ones included.", metavar="B")] = None,
    tokens: Annotated[
        int | None, option("Most tokens T of one text: all are paid for, beforehand. Never read off references.", metavar="T")
    ] = None,
    out: Annotated[
        Path | None,
        option("Folder of the run: texts, public numbers, budget, export. The same command goes on in it.", metavar="RUN"),
    ] = None,
    tau: Annotated[float | None, option("Temperature; default: 1.", metavar="TAU")] = None,
    top_k: Annotated[
        str | None,
        option("Draw from the k likeliest public tokens, and those within 2C/B, or from all; default: 50.", metavar="K"),
    ] = None,
    texts: Annotated[
        int | None,
        option("Texts in the folder at the end, with --label of that; default: one for each batch.", metavar="N", min=1),
    ] = None,
    labels: Annotated[
        str | None,
        option(
            "Public labels, by which batches are formed: a .csv or .jsonl list of id and label; data-class for the signed one.",
            metavar="LIST",
        ),
    ] = None,
    label: Annotated[str | None, option("Texts of this label alone.", metavar="LABEL")] = None,
    word: Annotated[
        list[str] | None, option("A public word of the task that is the same for all texts; repeat.", metavar="NAME=WORD")
    ] = None,
    records: Annotated[
        int, option("Most references of one person: epsilon is for all of them, at m^2 the cost.", metavar="M", min=1)
    ] = 1,
    adjacency: Annotated[
        str,
        option(
            "Between what epsilon holds: zero-out, a reference and none; replace-one; zero-logits; retrieval, a document of "
            "the corpus and none, where each query retrieves its references.",
            metavar="RELATION",
        ),
    ] = "zero-out",
    queries: Annotated[
        Path | None,
        file_option("QUERIES.jsonl", 'With --adjacency retrieval: public queries, rows {"id", "text"}; each gets a text.'),
    ] = None,
    query: Annotated[str | None, option("With --adjacency retrieval: one public query.", metavar="TEXT")] = None,
    share: Annotated[
        int | None,
        option("With --adjacency retrieval: queries that E is for; each costs an N-th of what E is worth.", metavar="N", min=1),
    ] = None,
    weights: Annotated[
        Path | None,
        file_option("WORDS.csv", "With --adjacency retrieval: public weights of words, word,weight; default: all weigh alike."),
    ] = None,
    partition: Annotated[str, option("How batches are formed; hash, of the ids, is the one way.", metavar="HOW")] = "hash",
    aggregation: Annotated[str, option("How references come together; mean is the one way.", metavar="HOW")] = "mean",
    budget: Annotated[
        str | None,
        option(
            "Budget log that lies elsewhere, or postgresql://USER@HOST/DATABASE; default: in RUN, or beside POLICY, for all "
            "its runs.",
            metavar="LOG.db",
        ),
    ] = None,
    budget_key: Annotated[
        Path | None, option("Private key of that log; default: beside it. Made with a new log.", metavar="KEY", dir_okay=False)
    ] = None,
    state: Annotated[
        Path | None,
        option(
            "With --budget on a server: folder here for its record, key and salt. Made with a new log.",
            metavar="DIR",
            file_okay=False,
        ),
    ] = None,
    minibatch: Annotated[
        int | None, option("Rows that go through the model at a time; default: all B + 1.", metavar="ROWS", min=1)
    ] = None,
    compile: Annotated[
        bool,
        option("Compile the step of the model first: faster texts, the same privacy; needs a C++ compiler.", "--compile"),
    ] = False,
    dtype: Annotated[str, option("float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str | None, option("cpu, cuda or another of torch; default: a GPU where there is one.")] = None,
    plan: Annotated[bool, option("Say what it costs and make nothing; needs no model, and no torch.", "--plan")] = False,
    one: Annotated[bool, option("Make one text more, and show it as it comes.", "--one")] = False,
    policy: Annotated[
        Path | None, file_option("POLICY.cose", "For attested references: policy, whose generation rule has the numbers.")
    ] = None,
    class_name: Annotated[
        str | None, option("With --policy: class whose contributions are read.", "--class", metavar="NAME")
    ] = None,
    field: Annotated[
        str | None, option("With --policy: field of .jsonl rows that holds the text; default: text.", metavar="NAME")
    ] = None,
    owner_key: OwnerKey = None,
    registry: RegistryFile = None,
    ledger: Annotated[
        str | None,
        option("With --policy: refuse what was withdrawn in this ledger.", metavar="LEDGER", callback=checked),
    ] = None,
    withdrawal: Annotated[
        list[Path] | None, file_option("WITHDRAWAL", "With --policy: signed withdrawal, entered into the budget; repeat.")
    ] = None,
    earlier: Annotated[
        list[str] | None,
        option(
            "With --policy: ledger, or export, of an earlier run: counts in limits over all runs, of a new budget; repeat.",
            metavar="LEDGER",
        ),
    ] = None,
    earlier_key: Annotated[list[Path] | None, file_option("PUB", "Public key of an earlier export; repeat.")] = None,
    now: Annotated[int | None, moment("With --policy: moment of admission; default: now.")] = None,
    json: JsonFlag = False,
) -> Result:
    """Make texts from private references with a language model: InvisibleInk, with a budget for every reference.

    Every text is drawn from B references of its own, and paid for before the model runs: all T tokens, by each of the B. When a
    text ends early, the tokens that were never computed go back; after a crash nothing does. Texts are written whole, one at a
    time; the same command on the same folder goes on. Epsilon is for one reference against none, over the whole run. Not
    protected: the task, labels, ids, B, T, their number and order, and what the model was trained on. Draws have entropy of
    the system; there is no seed.

    References are rows of your own (`--references`), or contributions that were signed for generation (`--policy`, `--class`):
    then the gate admits them, and the numbers are those that their class was signed with. All runs of a policy pay from one
    budget, POLICY.budget.db beside it. Signed withdrawals in POLICY.budget.db.withdrawals/ are entered before each text; who is
    gone makes no text, and the run goes on with the others.

    With `--adjacency retrieval` each public query takes the B documents of the corpus that share most words with it. Any query
    may reach any document, so the corpus pays for each, and costs add up over queries.

    First `--plan`, for the clip norm, the number of texts and the price. At the end RUN/export is for auditors: `dptrain ledger
    verify RUN/export --key RUN/budget.pub`. Ctrl-C ends it between two tokens, with exit code 130.

    Example: `dptrain generate tab --references cases.jsonl --epsilon 8 --delta 1e-6 --batch 7 --tokens 200 --plan`
    """
    given = locals()
    asked = import_module("dptrain.cli.generate.asked")
    found = asked.Asked(**given)
    return asked.planned(found) if plan else import_module("dptrain.cli.generate.making").made(found)
