"""Findings on a screen: grouped by class, warnings marked, with the lines of `policy.toml` to change."""

import re
import textwrap

from attest.policy import Policy
from dptrain.cli.advice.case import CorpusSize
from dptrain.cli.advice.consequence import Consequence
from dptrain.cli.output import console, styled

_PAIR = re.compile(r"\((\S+,) (\S+)\)")
"""(epsilon, delta), which stays on one line."""

_WIDEST = 100
"""Columns beyond which lines of prose are hard to follow."""


def print_check(rules: Policy, size: CorpusSize | None, refused: tuple[str, ...], found: tuple[Consequence, ...]) -> None:
    """Print what `policy check` found."""
    out = console()
    out.print(
        f"policy of corpus {rules.corpus}: {rules.steps} steps, delta {float(rules.delta):g}, accountant {rules.accountant}"
    )
    if size is not None:
        missing = "not said" if size.basis == "given" else "0"
        counts = ", ".join(
            f"{rule.name} {size.classes[rule.name]:,}" if rule.name in size.classes else f"{rule.name} {missing}"
            for rule in rules.classes
        )
        out.print(f"{size.total:,} contributions, {size.basis}{_CAVEAT[size.basis]}: {counts}")
    for name in [*(rule.name for rule in rules.classes), None]:
        group = [item for item in found if item.class_name == name]
        if group:
            out.print(f"\n{'all classes together' if name is None else f'class {name}'}")
        for item in group:
            _print_finding(item)
    for sentence in refused:
        out.print(styled("red", "✗", f" {sentence}"))
    warnings = sum(item.level == "warning" for item in found)
    if found:
        out.print(f"\n{warnings or 'no'} likely mistake{'' if warnings == 1 else 's'}")


_CAVEAT = {"given": " by hand", "attested": " (nothing verified)", "admitted": " by the gate"}


def _print_finding(item: Consequence) -> None:
    out = console()
    width = min(_WIDEST, out.width) - 4
    sentence = _PAIR.sub("(\\1\u00a0\\2)", item.sentence)
    first, *rest = (
        line.replace("\u00a0", " ") for line in textwrap.wrap(sentence, width, break_long_words=False, break_on_hyphens=False)
    )
    warned = item.level == "warning"
    out.print(styled("bold yellow", "  ! ", first) if warned else f"  · {first}")
    for line in rest:
        out.print(f"    {line}")
    for change in item.changes:
        out.print(styled("bold yellow", "    → ", str(change)))
