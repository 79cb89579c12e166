"""Words that the format of a policy specifies and this version does not serve yet: refused by name, here and nowhere else.

Whoever makes or reads a policy (signer, gate, resolver, ledger, auditor) makes a `Policy`, which asks `refuse_unbuilt`. To
build a capability, take its row out of `UNBUILT`: bytes, text and pages hold its words already.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from attest.errors import PolicyRefused

NOT_BUILT: Final = "NOT_BUILT"
"""Code of the refusal."""

ANY: Final = "*"
"""Stands for every value of a field that is refused whatever it says."""

_SAMPLED: Final = (
    "draws that stay secret, whose amplification nobody has but by Monte Carlo: for a delta of 1e-6 that takes some 5e7 samples"
)

UNBUILT: Final[Mapping[str, Mapping[str, str]]] = {
    "sampling.order": {
        "truncated_poisson": "secret draws of which a step keeps so many at most, at random: who is left out hangs on others",
        "balls_in_bins": _SAMPLED,
        "b_min_sep": _SAMPLED,
        "fixed_size_cyclic": "turns of a fixed number of contributions",
    },
    "reads.set": {ANY: "a forward that reads a part of the model outside of adapters alone"},
    "purposes": {"query": "queries that contributions answer"},
    "query": {ANY: "queries that contributions answer"},
}
"""Words that no policy may say yet, by the key under which they stand, each with what it will mean."""


def refuse_unbuilt(asked: Iterable[tuple[str, str]]) -> None:
    """Refuses what is specified and not built, of keys of a policy that are stated, each with its word.

    Guarantee: on return no word was asked for that this version would ignore.

    Raises:
        PolicyRefused: Code `NOT_BUILT`, with the key and the word.
    """
    for key, word in asked:
        unbuilt = UNBUILT.get(key, {})
        told = unbuilt.get(word, unbuilt.get(ANY))
        if told is not None:
            named = f"{key} {word!r}" if word in unbuilt else key
            raise PolicyRefused(NOT_BUILT, f"{named} is specified, not built yet ({told}); leave it out, or take another word")
