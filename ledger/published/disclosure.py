"""Answers what NIST SP 800-226 asks of a differential privacy guarantee, point by point, as a page and as JSON.

Each answer names whose signature it follows from, or that nothing is recorded. Source: NIST SP 800-226 (March 2025),
Guidelines for Evaluating Differential Privacy Guarantees; its topics are named and its section numbers are not.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from attest.keys import key_id
from attest.policy import ClassRule
from attest.schema.plain import utc
from ledger.audit.findings import BEYOND, QUALIFIERS, headline
from ledger.leaves import Header
from ledger.leaves.header import ADDRESSED, TEXTS
from ledger.published.facts import Facts, decimal
from ledger.published.plain import code, text

OWNER: Final = "corpus owner"
CONTRIBUTORS: Final = "contributors"
LEDGER: Final = "ledger's key"
TRAINER: Final = "trainer's record, under the ledger's key"
AUDIT: Final = "audit"
NOBODY: Final = "not recorded"
PROJECT: Final = "the design; no signature"

SOURCES: Final = {
    OWNER: "the policy in leaf 0, which the corpus owner signed",
    CONTRIBUTORS: "attestations that contributors signed, held against the registry of their keys",
    LEDGER: "leaves and manifest, which the ledger's key signed; nobody else stands behind them",
    TRAINER: "what the trainer wrote into the ledger; the ledger's key signed it, and no audit can see whether it is so",
    AUDIT: "computed again by the audit from signed leaves",
    PROJECT: "how dptrain works, as its guarantee says; no record of this run shows it",
    NOBODY: "nothing in ledger or manifest says anything of it",
}
"""Whose word an answer is, each explained."""

REFERENCE: Final = "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees (March 2025)"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answers a topic. `figures`: what is said in numbers, for programs; texts alone for people."""

    topic: str
    source: str
    said: tuple[str, ...]
    figures: tuple[tuple[str, Any], ...] = ()


def answers(facts: Facts) -> Iterator[Answer]:
    """Yields the answers, in an order that a reader asks in."""
    header, policy, publication = facts.header, facts.header.policy, facts.publication
    signed = publication.verdict != "TOLD"
    bounds = CONTRIBUTORS if signed else LEDGER
    yield Answer(
        "Unit of privacy",
        bounds,
        (
            "One contribution: one signed descriptor and all examples under it. It is not a person: who stands behind several "
            "contributions has as many units, and the ledger names no person.",
            f"{sum(row.contributions for row in facts.classes)} contributions were admitted, {facts.withdrawn} withdrawals "
            "are recorded.",
        ),
    )
    yield Answer(
        "Neighbouring datasets (adjacency)",
        OWNER,
        (
            f"{policy.adjacency}: the payload of one contribution is replaced by a null of the same public shape. That the "
            "contribution exists is public.",
            "Beside it stands the epsilon if its content is replaced by another content.",
        ),
        (("adjacency", policy.adjacency),),
    )
    yield Answer(
        "Privacy parameters (epsilon and delta)",
        AUDIT,
        (
            f"(epsilon, delta)-differential privacy with delta {facts.delta}. Epsilon is that of the contribution of the class "
            "that spent most, rounded up to a millionth.",
            *(
                f"Class {row.name}: epsilon {decimal(row.epsilon_micro)}, {decimal(row.replace_micro)} if content is replaced."
                if row.epsilon_micro is not None and row.replace_micro is not None
                else f"Class {row.name}: public, no promise."
                for row in facts.classes
            ),
            "They count the whole planned horizon, since the run had not gone to its signed end."
            if facts.horizon
            else "They count what was charged up to the signed end of the run.",
        ),
        (
            ("delta", facts.delta),
            ("planned_horizon", facts.horizon),
            (
                "classes",
                [
                    {"class": row.name, "epsilon_micro": row.epsilon_micro, "epsilon_replace_micro": row.replace_micro}
                    for row in facts.classes
                ],
            ),
        ),
    )
    yield Answer(
        "Trust model",
        LEDGER,
        (
            "Central model: the trainer sees the data in the clear. Contributors sign bounds, the corpus owner signs the "
            f"policy, the operator of the ledger {facts.origin} signs the record, and anybody audits it offline.",
            f"The audit of the {facts.size} leaves that the release cites says "
            f"{headline(publication.verdict, publication.qualifiers)}: {facts.verdict}.",
            "That the trainer did what it recorded is its word.",
        ),
        (
            ("verdict", publication.verdict),
            ("qualifiers", list(publication.qualifiers)),
            ("owner_key_id", key_id(header.owner_key).hex()),
            ("log_vkey", facts.log_vkey),
        ),
    )
    yield Answer(
        "Mechanism",
        OWNER,
        (
            f"Noise of the family {policy.mechanism.name}, injected {policy.noise_injection}, on the sum of clipped gradients, "
            "block by block (DP-SGD).",
            *map(_bounds, policy.classes),
            "Contributions may have signed stricter bounds, never looser ones."
            if signed
            else "That no contribution has looser bounds is the word of the ledger's operator.",
        ),
        (("family", policy.mechanism.name), ("injection", policy.noise_injection)),
    )
    yield Answer(
        "Sampling",
        OWNER,
        (
            f"Order {policy.sampling.name}, disclosure {policy.disclosure}.",
            "Who was drawn is secret, and epsilon counts on it where rates are below 1. That draws were made and kept so is "
            "the trainer's word."
            if policy.secret
            else "Who was drawn is public: every occurrence counts in full, without amplification.",
        ),
        (("order", policy.sampling.name), ("disclosure", policy.disclosure), ("amplification", header.amplification)),
    )
    yield Answer(
        "Composition",
        AUDIT,
        (
            f"All steps of the run together, by the accountant {header.accountant.name} ({header.accountant.library} "
            f"{header.accountant.version}): step {facts.step} of {policy.steps}, and at most {policy.redo_steps} done again.",
            _counted(header),
        ),
        (("accountant", header.accountant.name), ("steps", policy.steps), ("step", facts.step)),
    )
    yield Answer(
        "Floating point and random numbers",
        TRAINER,
        (f"Exactness {policy.exactness}. {header.exactness_note}",),
        (("exactness", policy.exactness), ("clip_margin", repr(header.clip_margin))),
    )
    yield Answer(
        "Side channels",
        NOBODY,
        (
            "Nothing is recorded of timing, memory, power or logs of the training machine, and no figure covers them.",
            "Random numbers of the forward passes are a contribution's own."
            if header.randomness == ADDRESSED
            else "Random numbers of the forward passes come from one generator: who knows its seed may learn draws.",
        ),
    )
    yield Answer(
        "Data exposure and access",
        PROJECT,
        (
            "Ledger and export hold no content and no name: content, contributor, data class and principal stand there as "
            "salted commitments. How raw data was collected, stored and deleted is not recorded.",
        ),
    )
    yield Answer(
        "Hyperparameter tuning",
        NOBODY,
        (
            "Trials whose results chose this run's settings are in the figures only if they are runs that the ledger counts. "
            "Nothing shows that there were no others.",
        ),
    )
    yield Answer(
        "What is released",
        LEDGER,
        (
            f"Weights {facts.weights}, released {utc(facts.time)}; the last step that the run had released is {facts.step}.",
            "Whatever is computed from them alone costs no further epsilon."
            if facts.weights == "TIED"
            else "The figures are said of the weights of the run, and not of every file here.",
            *(f"{part.name}: {_influence(facts, part.influenced_by)}." for part in facts.artifacts),
            facts.statements[0],
        ),
        (("weights", facts.weights), ("root", facts.root.hex()), ("size", facts.size)),
    )
    yield Answer("Utility and bias", NOBODY, ("No accuracy, and no effect on groups of people, is recorded or verified.",))
    yield Answer(
        "What was not verified",
        AUDIT,
        (
            *(f"{word}: {QUALIFIERS[word].sentence}." for word in publication.qualifiers),
            *(f"No export shows {item}." for item in BEYOND),
        ),
    )


def disclosure_page(facts: Facts) -> str:
    """Returns the answers as a page of Markdown."""
    return "\n".join(_page(facts)) + "\n"


def disclosure_json(facts: Facts) -> str:
    """Returns the answers as JSON."""
    told = {
        "schema": "dptrain.disclosure/1",
        "reference": REFERENCE,
        "model": facts.publication.about.name,
        "origin": facts.origin,
        "sources": [{"source": name, "means": means} for name, means in SOURCES.items()],
        "answers": [
            {
                "topic": item.topic,
                "source": item.source,
                "said": list(item.said),
                "figures": [{"name": name, "value": value} for name, value in item.figures],
            }
            for item in answers(facts)
        ],
    }
    return json.dumps(told, indent=1, ensure_ascii=True) + "\n"


def _page(facts: Facts) -> Iterator[str]:
    yield f"# Privacy disclosure: {text(facts.publication.about.name)}"
    yield ""
    yield f"Answers the topics of {text(REFERENCE)}. dptrain release wrote it from the audit of the ledger"
    yield f"{code(facts.origin)}; dptrain release --check writes it again and compares. Every answer says whose word it is."
    for item in answers(facts):
        yield ""
        yield f"## {text(item.topic)}"
        yield ""
        yield f"*Whose word: {text(item.source)}*"
        yield ""
        yield from (f"- {text(sentence)}" for sentence in item.said)
    yield ""
    yield "## Whose word"
    yield ""
    yield from (f"- {text(name)}: {text(means)}" for name, means in SOURCES.items())


def _counted(header: Header) -> str:
    """Says which other ledgers count, and that their figures stand elsewhere."""
    runs, budgets = ([item.origin for item in header.previous if (item.reason == TEXTS) is texts] for texts in (False, True))
    told = []
    if runs:
        named = f"Earlier runs that the ledger counts: {', '.join(runs)}"
        told.append(f"{named}. What was spent in them is not in the figures above.")
    if budgets:
        named = f"Budgets of texts that the ledger counts: {', '.join(budgets)}"
        told.append(f"{named}. What contributions may spend there is not in the figures above.")
    return " ".join(told) or "The ledger counts no earlier run; other runs over the same data are not in the figures above."


def _bounds(rule: ClassRule) -> str:
    if rule.public:
        return f"Class {rule.name}: public, neither clipped nor noised."
    clip, noise = decimal(rule.clip_norm_micro), decimal(rule.noise_multiplier_micro)
    return f"Class {rule.name}: clip norm {clip}, noise multiplier {noise}, sampling rate {rule.sampling_rate}."


def _influence(facts: Facts, reached: tuple[bool, ...]) -> str:
    names = [row.name for row, path in zip(facts.classes, reached, strict=True) if path]
    return f"may hold the influence of {', '.join(names)}" if names else "holds the influence of no class"
