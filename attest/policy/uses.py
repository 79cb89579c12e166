"""Uses of the contributions of a class beside training, and the part of the model that their forward reads."""

from dataclasses import dataclass
from typing import ClassVar, Final

from attest.descriptor import GENERATE, MAX_COUNT, MAX_MICRO, PURPOSES, QUERY, TRAIN
from attest.documents import check_fields, declared
from attest.documents.groups import Many
from attest.documents.kinds import Scaled, Whole, Word
from attest.errors import PolicyRefused
from attest.policy.depth import ADAPTER_NAME, PATTERN

_MEANINGS: Final = {
    GENERATE: "texts are generated from them, published once",
    QUERY: "a service answers queries from them",
    TRAIN: "a model is trained on them",
}

PURPOSE: Final = Word({word: _MEANINGS[word] for word in PURPOSES})
"""A use of a contribution, one of the words that contributors sign too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRule:
    """Says what the forward of a class reads: the model without its adapters, or a part of that, and some adapters."""

    CDDL: ClassVar = "read-rule"
    PREFIX: ClassVar = "reads."

    adapters: tuple[str, ...] = declared(
        1,
        Many(ADAPTER_NAME, 0, 256, "names of adapters", ascending=True),
        "Adapters that are active in the forward, ascending; none for the model without adapters.",
    )
    patterns: tuple[str, ...] | None = declared(
        2,
        Many(PATTERN, 1, 4096, "name patterns"),
        "Shell-style patterns of the parameters outside of adapters that are read; left out for all of them.",
        key="set",
        default=None,
        optional=True,
    )

    def __post_init__(self) -> None:
        check_fields(self, PolicyRefused)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingRule:
    """Says how contributions make texts: a token is drawn from clipped differences of logits, averaged over references."""

    CDDL: ClassVar = "decoding-rule"
    PREFIX: ClassVar = "generation or query: "

    references: int = declared(1, Whole(1, 65535, "1..65535"), "References B of one text, empty ones included; public.")
    clip_norm_micro: int = declared(2, Scaled(1, MAX_MICRO), "Largest difference C that a reference makes in a logit.")
    temperature_micro: int = declared(3, Scaled(1, MAX_MICRO), "Temperature tau of the softmax from which a token is drawn.")
    tokens: int = declared(4, Whole(1, MAX_COUNT, "count"), "Most tokens T of one text; all of them are charged, beforehand.")
    max_rho_nano: int = declared(
        5,
        Scaled(1, 10**15, "nano", 9),
        "Most zero-concentrated privacy loss rho of a contribution, over all texts; a token costs C^2 / (2 B^2 tau^2).",
    )
    top_k: int | None = declared(
        6,
        Whole(1, MAX_COUNT, "count"),
        "Tokens out of which one is drawn, by the logits without references; left out for the whole vocabulary.",
        default=None,
        optional=True,
    )

    def __post_init__(self) -> None:
        check_fields(self, PolicyRefused)


def check_uses(
    purposes: tuple[str, ...], generation: DecodingRule | None, query: DecodingRule | None, reads: ReadRule | None,
    adapter: str | None,
) -> None:  # fmt: skip
    """Refuses a rule of decoding without its purpose, a purpose without its rule, and a class that moves what it does not read.

    Raises:
        PolicyRefused: Code RANGE.
    """
    for word, rule, key in ((GENERATE, generation, "generation"), (QUERY, query, "query")):
        if (word in purposes) != (rule is not None):
            raise PolicyRefused("RANGE", f"purpose {word!r} and the table {key} go together; give both, or neither")
    if reads is not None and adapter is not None and adapter not in reads.adapters:
        raise PolicyRefused("RANGE", f"the class is bound to adapter {adapter!r}, which its reads leave out; name it there")
