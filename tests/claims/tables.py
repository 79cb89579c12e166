"""Makes the tables of docs/mechanism that say what tables of the code say, and takes proofs out of docstrings."""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from tests.claims.paragraphs import ROOT

_PROOF = re.compile(r"^Proof:\n(.*)\Z", re.MULTILINE | re.DOTALL)


def proof(path: str) -> str:
    """The proof in the docstring of a module: all behind the line that says so.

    Raises:
        LookupError: the module has none.
    """
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or ""
    found = _PROOF.search(docstring)
    if found is None:
        raise LookupError(f"the docstring of {path} has no line 'Proof:'")
    return inspect.cleandoc(found[1]).replace("``", "`")


def optimizers() -> Iterator[str]:
    """Returns what is told of every optimizer of torch; a slow test holds each row to runs."""
    import torch

    from dptrain.sandbox import isolation

    yield "| optimizer of `torch.optim` | as it is | with `clip_grad_norm_` | with `private.clip_blocks_` |"
    yield "|---|---|---|---|"
    for name, kind in sorted(vars(torch.optim).items()):
        if not inspect.isclass(kind):
            continue
        if kind in isolation.KNOWN:
            yield f"| {name} | held | weakened | held |"
        elif kind in isolation._REFUSED:
            yield f"| {name} | " + " | ".join([f"refused, `{isolation._REFUSED[kind][0]}`"] * 3) + " |"


def families() -> Iterator[str]:
    """Returns what goes with what, of the families that come with dptrain."""
    from attest.schema.words import is_foreign
    from ledger.accountants.table import TABLE

    yield "| family | accountant | exactness | injection | disclosure | clip norm | accounting counts on secret draws |"
    yield "|---|---|---|---|---|---|---|"
    rows: dict[str, list[str]] = {}
    for name, cost in TABLE.items():
        if not is_foreign(name):
            words = (cost.accountants, cost.exactness, cost.injections, cost.disclosures)
            row = " | ".join(", ".join(f"`{word}`" for word in each) for each in words)
            rows.setdefault(f"{row} | L{cost.norm} | {'yes' if cost.amplified else 'no'}", []).append(f"`{name}`")
    yield from (f"| {', '.join(names)} | {row} |" for row, names in rows.items())


def rules() -> Iterator[str]:
    """The gradient rules that come with dptrain, in the words of their docstrings."""
    from dptrain.gradients import attention, generic, registry, rules, whole_modules

    own = {room.__name__ for room in (attention, generic, rules, whole_modules)}
    yield "| module | which | how its gradient is split |"
    yield "|---|---|---|"
    for entry in registry._entries:
        rule: Any = getattr(entry.make, "args", (entry.make,))[0]
        if rule.__module__ not in own:
            continue
        kinds = ", ".join(f"`{kind}`" if isinstance(kind, str) else f"`nn.{kind.__name__.lstrip('_')}`" for kind in entry.kinds)
        when = getattr(entry.when, "func", entry.when)
        which = "" if when is None else _first(when).removeprefix("Tells whether ").removesuffix(".")
        yield f"| {'any' if kinds == '`nn.Module`' else kinds} | {which} | {_first(rule)} |"


def adapters() -> Iterator[str]:
    """The tuners of peft whose forward was shown to be exact and to keep rows apart."""
    from dptrain.blocks.adapters import CHECKED, VARIANTS, WHOLE

    called = sorted({source.removesuffix(".").rpartition(".")[2] for source in CHECKED.values()} - {"utils"})
    whole = sorted(source.removesuffix(".").rpartition(".")[2] for source in WHOLE)
    yield "| of `peft.tuners` | how |"
    yield "|---|---|"
    yield f"| {', '.join(f'`{name}`' for name in called)}, and `modules_to_save` | rules of the modules that they call |"
    yield f"| {', '.join(f'`{name}`' for name in whole)} | generic path for the whole layer, where it uses bare tensors |"
    yield f"| variants of LoRA: {', '.join(f'`{name}`' for name in sorted(VARIANTS))} | as those |"


def _first(what: object) -> str:
    sentence = " ".join((inspect.getdoc(what) or "").partition("\n\n")[0].split())
    return re.sub(r":\w+:`~?([^`]*)`", r"`\1`", sentence).replace("``", "`").replace("|", r"\|")


def measured(name: str) -> Iterator[str]:
    """Returns a table of figures that benchmarks measured, from `benchmarks/measured.json`.

    Raises:
        LookupError: there is no table of this name.
    """
    tables = json.loads((ROOT / "benchmarks" / "measured.json").read_text(encoding="utf-8"))
    if name not in tables:
        raise LookupError(f"benchmarks/measured.json has no table {name!r}; it has {', '.join(tables)}")
    own = tables[name]
    for cells in (own["columns"], ["---"] * len(own["columns"]), *own["rows"]):
        if len(cells) != len(own["columns"]):
            raise LookupError(f"a row of table {name!r} of benchmarks/measured.json has {len(cells)} cells: {cells}")
        yield f"|{'|'.join(cells)}|" if cells[0] == "---" else f"| {' | '.join(cells)} |".replace("|  |", "| |")


def prism(name: str) -> Iterator[str]:
    """Returns a table of `benchmarks/prism.json`: of the toy, the shapes of large models, the list of tasks, or of one task."""
    from benchmarks.prism import compare, shapes, toy

    rows = json.loads((ROOT / "benchmarks" / "prism.json").read_text(encoding="utf-8"))
    kinds = {"toy": toy.lines_of, "shapes": shapes.lines_of, "tasks": compare.tasks_lines}
    yield from kinds[name](rows) if name in kinds else compare.lines_of(rows, name)


def readers() -> Iterator[str]:
    """Returns how often readers of released states were right, from `benchmarks/inference_readers.json`."""
    from benchmarks.inference_readers import lines_of

    yield from lines_of(json.loads((ROOT / "benchmarks" / "inference_readers.json").read_text(encoding="utf-8"))["rows"])


def places() -> Iterator[str]:
    """Returns what the published noise does at every place of a model, from `benchmarks/inference_gaussian.json`."""
    from benchmarks.inference_places import lines_of

    yield from lines_of(json.loads((ROOT / "benchmarks" / "inference_gaussian.json").read_text(encoding="utf-8"))["places"])


def ink_claims() -> Iterator[str]:
    """Returns published claims of InvisibleInk beside ours, from `benchmarks/ink_claims.json`."""
    from benchmarks.ink.claims import lines

    yield from lines()


def ink_arms() -> Iterator[str]:
    """Returns what ways to write from few references make of court cases, from `benchmarks/ink_real.json`."""
    from benchmarks.ink.real import lines

    yield from lines(json.loads((ROOT / "benchmarks" / "ink_real.json").read_text(encoding="utf-8"))["table"])


def ink_examples() -> Iterator[str]:
    """Returns texts of three arms, by indices that the operating system drew, from `benchmarks/ink.json`."""
    names = {"public": "public", "ink": "InvisibleInk", "amin": "Amin et al."}
    yield f"| epsilon | {' | '.join(names.values())} |"
    yield "|---|" + "---|" * len(names)
    for row in json.loads((ROOT / "benchmarks" / "ink.json").read_text(encoding="utf-8"))["examples"]:
        cells = [row["texts"][name].replace("<", "&lt;").replace("|", r"\|") for name in names]
        yield f"| {row['epsilon']:g} | {' | '.join(cells)} |"


def energies() -> Iterator[str]:
    """Returns the noise on Z of three ways to train a pair, by rank and gauge, from closed forms that tests hold to draws."""
    from dptrain.geometry.energy import DESIGNS, noise_on_product, pair_of

    gauges, size = (1.0, 10.0, 100.0), 1024
    columns = [("tangent", (1.0,)), ("factors", gauges), ("frozen", gauges)]
    heads = [f"{name}{f', gauge {gauge:g}' if len(own) > 1 else ', any gauge'}" for name, own in columns for gauge in own]
    yield f"| r | {' | '.join(heads)} | numbers trained: {', '.join(DESIGNS)} |"
    yield "|---|" + "---|" * (len(heads) + 1)
    for r in (2, 4, 8, 16, 32):
        pairs = {gauge: pair_of(size, size, [1.0] * r, gauge) for gauge in gauges}
        cells = [f"{noise_on_product(name, pairs[gauge]):,.0f}" for name, own in columns for gauge in own]
        trained = ", ".join(f"{design.trained(pairs[1.0]):,}" for design in DESIGNS.values())
        yield f"| {r} | {' | '.join(cells)} | {trained} |"


KINDS = {
    "energies": energies, "optimizers": optimizers, "families": families, "rules": rules, "adapters": adapters,
    "readers": readers, "places": places, "ink claims": ink_claims, "ink arms": ink_arms,
    "ink examples": ink_examples,
}  # fmt: skip
