"""The results as a table, and the page of the documents that is made of the expectations."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.zoo.expectations import Expectations, Expected
from tests.zoo.families import ZOO
from tests.zoo.family import LIBRARY, RANDOM, VARIANTS, Family
from tests.zoo.judge import FAULTS, INEXACT, Result
from tests.zoo.start import EXACT

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def line(result: Result) -> str:
    """One result in one line, for who watches."""
    shown = f"{result.worst:.0e} {result.dtype}" if result.worst is not None else ""
    layers = f" layers={result.layers}" if result.layers is not None else ""
    extra = f" | unprobed: {len(result.unprobed)} ({result.unprobed[0]})" if result.unprobed else ""
    if result.missed:
        extra += f" | of them with a gradient on records: {len(result.missed)} ({result.missed[0]})"
    times = f"[{result.seconds:.1f} s, probes {result.probing:.2f}, steps {result.stepping:.2f}]"
    return (
        f"{result.family} · {result.variant}: {result.verdict} {shown}{layers}{' probe' if result.probe else ''} {times} "
        f"{result.stage} {result.sentence[:160]}{extra}"
    )


def table(results: Sequence[Result]) -> str:
    """A Markdown table of results, with counts."""
    lines = []
    for variant in VARIANTS:
        own = [r for r in results if r.variant == variant]
        if not own:
            continue
        counts = Counter(r.verdict for r in own)
        exact, faults = counts.pop(EXACT, 0), sum(counts.pop(code, 0) for code in FAULTS)
        named = ", ".join(f"{code} {n}" for code, n in counts.most_common())
        refused = f"{sum(counts.values())} refused by name ({named or 'none'})"
        lines.append(f"* {variant}: {len(own)} families, {exact} exact, {refused}, {faults} at fault")
        maps, pairs = (sum(bool(count) for count in counts) for counts in ([r.maps for r in own], [r.pairs for r in own]))
        lines.append(f"  Linear maps were nodes of autograd in {maps} of them, LoRA pairs in {pairs}")
    lines += ["", "| family | variant | outcome | largest error | why |", "|---|---|---|---|---|"]
    for r in results:
        shown = f"{r.worst:.0e} ({r.dtype})" if r.worst is not None else ""
        given = f" with `layers={r.layers!r}`" if r.layers is not None and r.verdict == EXACT else ""
        given += " with `probe=`" if r.probe else ""
        why = (f"{r.stage}: " if r.stage else "") + r.sentence.replace("|", "\\|").replace("\n", " ")[:220]
        lines.append(f"| {r.family} | {r.variant} | {r.verdict}{given} | {shown} | {why} |")
    return "\n".join(lines)


INTRO = """\
# Which models train

{count} families of models were taken through the start of a private run, each built small, with the library's own dropout:
once with the weights that its library gives it and once with all weights random. {exact} train. {probe} of these need records
given as `probe=`, since rows made up of zeros and ones say nothing to them.

*Trains* means that the gradient of every contribution equals what autograd finds for it alone, tensor by tensor: to 1e-9 in
float64 where the model can, and to 2e-3 in float32, as steps compute. The others are refused before anything is charged,
with the code that is shown.{unseen} *Slower* names classes without a rule of their own, which run once more per microbatch.

## Check a model of yours

<!-- world: to_check -->
```sh
dptrain check bert-base/                                     # a folder of transformers; weights may be missing
dptrain check net.py:make --inputs x=float32:3,32,32         # a callable that returns a module
dptrain check train.py                                       # a script: read, never run
```

The start of a run is tried and thrown away: verdict, code and sentence are its own. Advice is tried on a copy; the lines that
helped are shown, and how much of the model they leave to train. Where rows and a loss cannot be made up, give `--inputs` or
`--rows`, and `--loss`. In Python: `print(dptrain.check(model))`.

In a script (loops, also for Opacus and accelerate, Trainers of transformers and TRL) every line is named that a run refuses,
that weakens its promise or that must change, with what to write. Modules beside it and the model itself are not seen. Exit code
1 says that something is refused or weakened, 2 that there was nothing to check.

The rest is made of `tests/zoo/expected.toml`, to which `make zoo` holds the engine.
"""

BEGIN, END = "<!-- made by `python -m tests.zoo --docs`; do not edit -->", "<!-- end of what is made -->"


def page(expected: Expectations) -> str:
    """The whole of ``docs/models.md``."""
    families = expected.families
    exact = sum(entry.exact for entry in families.values())
    missed = any(INEXACT in entry.verdicts.values() for entry in families.values())
    unseen = " What is\n*not seen by the start* is not exact, and must not be trained so." if missed else ""
    probe = sum(entry.exact and entry.probe for entry in families.values())
    lines = [INTRO.format(count=len(families), exact=exact, probe=probe, unseen=unseen)]
    lines += [BEGIN, ""]
    used = [name for name in expected.reasons if any(e.reason == name for e in families.values())]
    for kind in dict.fromkeys(ZOO[name].kind for name in families):
        lines += [f"## {kind[0].upper()}{kind[1:]}", "", "| family | class | trains | remarks |", "|---|---|---|---|"]
        for name, entry in families.items():
            if ZOO[name].kind == kind:
                lines.append(_row(ZOO[name], entry))
        lines.append("")
    lines += ["## Why, and what to do", ""]
    for name in used:
        reason = expected.reasons[name]
        codes = ", ".join(f"`{code}`" for code in reason.codes if code not in FAULTS)
        lines += [f"### {name.replace('-', ' ')}", ""]
        lines += [f"{codes + ': ' if codes else ''}{reason.why} *What to do:* {reason.do}", ""]
    return "\n".join([*lines, END, ""])


def _row(family: Family, entry: Expected) -> str:
    remarks = []
    if entry.exact:
        trains = "yes"
        if entry.layers is not None:
            remarks.append(f"`layers={json.dumps(entry.layers)}`")
        if entry.probe:
            remarks.append("`probe=` with records of your own")
    else:
        trains = "no"
        codes = dict.fromkeys(v for v in entry.verdicts.values() if v not in (EXACT, *FAULTS))
        remarks += [f"`{code}`" for code in codes]
        unseen = [variant for variant in VARIANTS if entry.verdicts[variant] == INEXACT]
        if unseen:
            which = {(LIBRARY,): " with the library's own weights", (RANDOM,): " with random weights"}.get(tuple(unseen), "")
            remarks.append(f"**not seen by the start{which}**")
        if "RAW" in entry.verdicts.values():
            remarks.append("the start breaks")
        if entry.reason:
            remarks.append(f"[{entry.reason.replace('-', ' ')}](#{entry.reason})")
    if family.frozen and family.kind != "several kinds of input":
        remarks.append("frozen: " + ", ".join(f"`{part}`" for part in family.frozen))
    if entry.slow:
        remarks.append("slower: " + ", ".join(f"`{kind}`" for kind in entry.slow))
    if family.note:
        remarks.append(family.note)
    return f"| {family.name} | `{family.model}` | {trains} | {'; '.join(remarks)} |"
