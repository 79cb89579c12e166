"""Policies, headers and an honest export where classes are for generation too, or alone; and what is none."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from attest.policy import Policy
from attest.policy.classes import DecodingRule
from ledger.leaves import HeaderSpec
from tests.vectors.conformance.honest import Run, plain
from tests.worlds.ledgers import GENERATING, header_spec, signed_policy

DECODING: Final = DecodingRule(
    references=7, clip_norm_micro=500_000, temperature_micro=1_000_000, tokens=100, max_rho_nano=10**9, top_k=50
)
FIELDS: Final = {1: 7, 2: 500_000, 3: 1_000_000, 4: 100, 5: 10**9, 6: 50}
"""The same as bytes say it."""

LEAST: Final = DECODING.text_nano
"""The least rho that pays one text."""


def both(policy: Policy) -> Policy:
    """Returns a policy whose first class is for generation too."""
    first, *others = policy.classes
    return replace(policy, classes=(replace(first, purposes=("generate", "train"), generation=DECODING), *others))


def policies(policy: Policy) -> Iterator[tuple[str, Policy]]:
    """Yields policies of classes from which texts are generated."""
    first, second = policy.classes
    alone = replace(first, purposes=("generate",), generation=DECODING)
    yield "a class that is for generation too", both(policy)
    yield "a class that is for generation alone", replace(policy, classes=(alone, second))
    yield "no class that is for training", replace(policy, classes=(alone, replace(alone, name=second.name)))
    for name, changes in (
        ("with the least rho that pays one text", {"max_rho_nano": LEAST}),
        ("from the whole vocabulary", {"top_k": None}),
        ("from one reference", {"references": 1, "tokens": 1}),
    ):
        yield f"generation {name}", replace(policy, classes=(replace(alone, generation=replace(DECODING, **changes)), second))


def malformed() -> Iterator[tuple[str, dict[int, Any]]]:
    """Yields fields of a class that are no generation."""
    purposes = {10: ["generate", "train"]}
    yield "generation without its purpose", {11: FIELDS}
    yield "the purpose without generation", purposes
    yield "purposes out of order", {10: ["train", "generate"], 11: FIELDS}
    yield "a purpose twice", {10: ["generate", "generate"], 11: FIELDS}
    yield "no purpose", {10: []}
    yield "queries", {10: ["query", "train"], 12: FIELDS}
    yield "generation and queries", {10: ["generate", "query"], 11: FIELDS, 12: FIELDS}
    for key in (1, 2, 3, 4, 5):
        yield f"generation without field {key}", purposes | {11: {k: v for k, v in FIELDS.items() if k != key}}
    for name, said in (
        ("a rho that pays no text", {5: LEAST - 1}),
        ("one token more than its rho pays", {4: 101, 5: LEAST}),
        ("no references", {1: 0}),
        ("a temperature of nothing", {3: 0}),
        ("top 0", {6: 0}),
        ("a field more", {7: 1}),
        ("a clip norm that is a float", {2: 0.5}),
    ):
        yield f"generation with {name}", purposes | {11: FIELDS | said}
    yield "generation that is null", {11: None}


BESIDE: Final = {"classes": (GENERATING, *signed_policy().policy.classes)}
"""Before the two classes of a run stands one that only generates, so that their places are not those in the policy."""


def headers() -> Iterator[tuple[str, HeaderSpec]]:
    """Yields headers of policies with such a class."""
    yield "a class that is not for training", header_spec(signed_policy(**BESIDE))


def false_headers(fields: dict[int, Any]) -> Iterator[tuple[str, dict[int, Any]]]:
    """Yields changes of the fields of that header that are no header."""
    groups = fields[13]
    moved = [[[place + 1 for place in places], *rest] for places, *rest in groups]
    yield "places of classes as in the policy", fields | {13: moved}
    wider = [[[*places, 2] if places else places, *rest] for places, *rest in groups]
    yield "the place of a class that is not for training", fields | {13: wider}
    only = signed_policy(classes=(GENERATING, replace(GENERATING, name="poems")))
    yield "no class that is for training", fields | {5: only.payload, 6: only.sign1}
    trained = signed_policy(classes=(replace(GENERATING, purposes=("generate", "train")), *BESIDE["classes"][1:]))
    yield "a class that is for training and touches nothing", fields | {5: trained.payload, 6: trained.sign1}


RUNS: Final[dict[str, Run]] = {
    "generation beside training": Run(
        "a policy with a class from which texts are generated, and nothing is trained on", plain, BESIDE, like="poisson"
    )
}
