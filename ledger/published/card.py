"""Writes the model card of a release: front matter as the Hugging Face Hub reads it, and the figures that the audit found.

Source: Hugging Face Hub, "Model Cards" (metadata in YAML at the top of README.md).
"""

from collections.abc import Iterator
from typing import Final

from attest.schema.plain import utc
from ledger.audit.findings import QUALIFIERS, WHERE_BEYOND, headline
from ledger.published.facts import About, Facts, decimal, recognised
from ledger.published.plain import code, scalar, text
from ledger.views.attacker import CASES, WATCHER

MARK: Final = "<!-- Written by dptrain release, from the audit of the ledger. dptrain release --check writes it again. -->"
"""Stands in every card; a README.md that has it and is not listed as a document is none."""

_TAGS: Final = ("differential-privacy", "dptrain")


def card(facts: Facts) -> str:
    """Returns the model card."""
    return "\n".join([*_front(facts.publication.about), "", MARK, "", *_body(facts), ""])


def _front(about: About) -> Iterator[str]:
    yield "---"
    if about.license is not None:
        yield f"license: {scalar(about.license)}"
    for key, values in (
        ("language", about.language),
        ("base_model", about.base_model),
        ("tags", tuple(dict.fromkeys((*_TAGS, *about.tags)))),
    ):
        if values:
            yield f"{key}:"
            yield from (f"- {scalar(value)}" for value in values)
    yield "---"


def _body(facts: Facts) -> Iterator[str]:
    publication, policy = facts.publication, facts.header.policy
    yield f"# {text(publication.about.name)}"
    yield ""
    yield "## What the audit found"
    yield ""
    yield f"**{headline(publication.verdict, publication.qualifiers).replace('_', chr(92) + '_')}**: {text(facts.verdict)}."
    yield ""
    yield (
        "The verdict says that the record is sound, and not that the privacy is strong. That epsilon says, and the last column "
        f"below: in how many of {CASES} cases, at most, an attacker recognises a contribution who {WATCHER}."
    )
    yield ""
    yield "| what | found |"
    yield "|---|---|"
    mechanism, accountant = policy.mechanism.name, facts.header.accountant
    for what, value in (
        ("unit of privacy", "the contribution, not a person: one signed descriptor, and all examples under it"),
        ("adjacency", f"{code(policy.adjacency)}: the payload of one contribution against a null of its public shape"),
        ("delta", code(facts.delta)),
        ("epsilon counts", "the whole planned horizon" if facts.horizon else "what was charged up to the signed end"),
        ("disclosure", code(policy.disclosure)),
        ("exactness", code(policy.exactness)),
        ("mechanism", code(mechanism)),
        ("accountant", f"{code(accountant.name)} of {code(accountant.library)} {code(accountant.version)}"),
        ("weights", facts.weights),
        ("last released step", f"{facts.step} of {policy.steps}"),
        ("withdrawn contributions", str(facts.withdrawn)),
        ("ledger", f"{code(facts.origin)}, {facts.size} leaves, root {code(facts.root.hex())}"),
        ("released", utc(facts.time)),
    ):
        yield f"| {what} | {value} |"
    yield ""
    yield f"| class | contributions | withdrawn | epsilon | epsilon if content is replaced | recognised, of {CASES} |"
    yield "|---|---|---|---|---|---|"
    for row in facts.classes:
        figures: tuple[str, ...] = ("no promise (public)",) * 3
        if row.epsilon_micro is not None and row.replace_micro is not None:
            hits = recognised(row.epsilon_micro, facts.delta)
            told = f"{hits} (rules nothing out)" if hits == CASES else str(hits)
            figures = (decimal(row.epsilon_micro), decimal(row.replace_micro), told)
        yield f"| {code(row.name)} | {row.contributions} | {row.withdrawn} | {' | '.join(figures)} |"
    yield ""
    for part in facts.artifacts:
        names = [code(row.name) for row, path in facts.spent(part) if path]
        yield f"- {code(part.name)} may hold the influence of {', '.join(names) or 'no class'}"
    yield ""
    yield "### What holds"
    yield ""
    yield from (f"- {text(sentence)}" for sentence in facts.statements)
    yield ""
    yield "### What was not verified"
    yield ""
    yield from (f"- {text(word)}: {text(QUALIFIERS[word].sentence)}" for word in publication.qualifiers)
    yield f"- {text(WHERE_BEYOND)}"
    yield ""
    yield "### How to check"
    yield ""
    yield (
        "This page proves nothing by itself. Take the keys from places that whoever gave you this model does not control: "
        "LEDGER.pub, OWNER.pub of the corpus, and RELEASE.pem, which is model.pub then."
    )
    yield ""
    yield "```sh"
    yield "dptrain release --check . --key LEDGER.pub --owner-key OWNER.pub"
    if facts.signed:
        yield "python -m model_signing verify key --signature model.sig --public_key RELEASE.pem ."
    yield "```"
    if publication.about.description is not None:
        yield ""
        yield "## What the releaser says"
        yield ""
        yield "Nobody verified this part, nor license, language, base model and tags."
        yield ""
        for line in publication.about.description.split("\n"):
            yield f"> {text(line)}" if line.strip() else ">"
