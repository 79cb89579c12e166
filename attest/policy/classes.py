"""The classes of a policy, each field declared once: blocks that a class may touch, and uses of its contributions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Final, Literal

from attest.descriptor import GENERATE, MAX_COUNT, MAX_MICRO, PUBLIC_BOUNDS, PURPOSES, QUERY, TRAIN, SignedBounds
from attest.errors import PolicyRefused
from attest.schema import Checked, check_fields, declared
from attest.schema.cards import card_of
from attest.schema.groups import Band, Inline, Many
from attest.schema.kinds import Days, Exact, Flag, Identifier, Reading, Scaled, Text, Whole, Word

PATTERN: Final = Text(re.compile(r"[A-Za-z0-9_.*?\[\]!-]{1,128}"), "a pattern like 'vision.*'", "tstr .size (1..128)")
"""A shell-style pattern of the names of parameters."""

ADAPTER_NAME: Final = Text(re.compile(r"[A-Za-z0-9_.-]{1,64}"), "a name such as 'clinic'", "tstr .size (1..64)")
"""The name of an adapter."""

_INDEX: Final = Whole(0, 65535, "0..65535")


@dataclass(frozen=True, slots=True)
class DepthRule:
    """Says which blocks of the layer stack a class may touch; exactly one of `band`, `layers`, `patterns`, `adapter` is set.

    The sentences of the fields say what each means.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """

    CDDL: ClassVar = "depth-rule"
    PREFIX: ClassVar = "depth."
    FORMS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "band": ("embeddings", "head", "heads", "experts"),
        "layers": ("embeddings", "head", "heads", "experts"),
        "patterns": ("embeddings", "head"),
        "adapter": ("embeddings", "head"),
    }
    """Fields of which exactly one is stated, each with those that may stand beside it."""

    band: tuple[Fraction, Fraction] | None = declared(
        1,
        Band(("from", "to")),
        "Fractions of the depth, 0 at the input side; the first below the second.",
        key="",
        default=None,
        optional=True,
    )
    layers: tuple[int, ...] | None = declared(
        2,
        Many(_INDEX, 1, 4096, "layer indices", ascending=True),
        "Indices into the layer stack, ascending.",
        default=None,
        optional=True,
    )
    patterns: tuple[str, ...] | None = declared(
        3,
        Many(PATTERN, 1, 4096, "name patterns"),
        "Shell-style patterns of whole parameter names.",
        key="set",
        default=None,
        optional=True,
    )
    adapter: str | None = declared(
        4, ADAPTER_NAME, "Name of an adapter; the class touches its parameters only.", default=None, optional=True
    )
    embeddings: bool | None = declared(
        5, Flag(), "Whether the class may touch the embeddings; left out, the depth says it.", default=None, optional=True
    )
    head: bool | None = declared(
        6, Flag(), "Whether the class may touch the output head; left out, the depth says it.", default=None, optional=True
    )
    heads: tuple[int, ...] | None = declared(
        7,
        Many(_INDEX, 1, 4096, "numbers of heads", ascending=True),
        "Query heads of attention that the class may touch, ascending; left out for all. With a band or layers only.",
        default=None,
        optional=True,
    )
    experts: tuple[int, ...] | None = declared(
        8,
        Many(_INDEX, 1, 4096, "numbers of experts", ascending=True),
        "Experts that the class may touch, ascending; left out for all, and their router. With a band or layers only.",
        default=None,
        optional=True,
    )

    _repr_html_ = card_of

    @property
    def everything(self) -> bool:
        """Tells whether the class may touch every parameter that is trained, whatever the layers are."""
        ends = self.embeddings is not False and self.head is not False
        return self.band == (Fraction(0), Fraction(1)) and ends and self.heads is None and self.experts is None

    def __post_init__(self) -> None:
        chosen = [name for name in self.FORMS if getattr(self, name) is not None]
        if len(chosen) != 1:
            found = " and ".join(chosen) or "none"
            raise PolicyRefused("RANGE", f"depth sets {found}, expected one of from/to, layers, set, adapter")
        for name in ("heads", "experts"):
            if getattr(self, name) is not None and name not in self.FORMS[chosen[0]]:
                sentence = f"depth.{name} goes with from/to or layers, whose attention or experts it narrows; leave it out"
                raise PolicyRefused("RANGE", sentence)
        check_fields(self, PolicyRefused)

    @property
    def kind(self) -> Literal["band", "layers", "set", "adapter"]:
        """Tells which of the four forms this is."""
        if self.band is not None:
            return "band"
        if self.layers is not None:
            return "layers"
        return "set" if self.patterns is not None else "adapter"


_MEANINGS: Final = {
    GENERATE: "texts are generated from them, published once",
    QUERY: "a service answers queries from them",
    TRAIN: "a model is trained on them",
}

PURPOSE: Final = Word({word: _MEANINGS[word] for word in PURPOSES})
"""A use of a contribution, one of the words that contributors sign too."""


class Section(Checked):
    """A part of a policy with no rules over several of its fields. Raises PolicyRefused: code TYPE or RANGE."""

    __slots__ = ()
    ERROR: ClassVar = PolicyRefused


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRule(Section):
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
        "Shell-style patterns of the parameters outside of adapters that are read; left out for all of them. [Not built"
        " yet](#specified-not-built-yet).",
        key="set",
        default=None,
        optional=True,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingRule(Section):
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
        "Most zero-concentrated privacy loss rho of a contribution, over all texts; at least that of one. A token costs"
        " C^2 / (2 B^2 tau^2), rounded up to 1e-9.",
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
        if self.text_nano > self.max_rho_nano:
            text, token, most = (
                f"{nano // 10**9}.{nano % 10**9:09d}" for nano in (self.text_nano, self.token_nano, self.max_rho_nano)
            )
            raise PolicyRefused(
                "RANGE",
                f"one text of {self.tokens} tokens costs a contribution a rho of {text}, {token} a token, and max_rho is"
                f" {most}: no text could be paid; raise max_rho, references or temperature, or lower clip_norm or tokens",
            )

    @property
    def token_nano(self) -> int:
        """Returns the rho that one token costs a contribution, C^2 / (2 B^2 tau^2), in 1e-9 rounded up, of whole numbers."""
        return -(-(10**9) * self.clip_norm_micro**2 // (2 * self.references**2 * self.temperature_micro**2))

    @property
    def text_nano(self) -> int:
        """Returns the least rho that one text costs a contribution, in 1e-9: that of its most tokens."""
        return self.tokens * self.token_nano


MAX_WINDOW: Final = 100 * 365 * 86400
"""Most seconds for which an attestation may be valid, whatever a policy says."""

_COUNT: Final = Whole(1, MAX_COUNT, "count")
_BOUND: Final = Scaled(1, MAX_MICRO)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassRule:
    """One admissibility class. The sentences of the fields say what each means.

    The bounds of a public class are `PUBLIC_BOUNDS`, which say so, and no others.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """

    CDDL: ClassVar = "class-rule"
    TELLS: ClassVar = ("name", " of class {}")

    name: str = declared(1, Identifier(), "Identifier. Contributors sign it, and the registry grants it.")
    public: bool = declared(
        7,
        Flag("true"),
        "Whether contributions of the class are public: neither clipped nor noised, with no promise at all; see below.",
        default=False,
        optional=True,
        shown="`false`",
        rule="then 2 is the largest micro and 3 the smallest",
    )
    clip_norm_micro: int = declared(
        2,
        _BOUND,
        "Preset C: the Euclidean norm to which the gradient of a contribution, averaged over its examples, is "
        "clipped. A contribution may sign less, never more.",
        shown="required, except in a public class",
    )
    noise_multiplier_micro: int = declared(
        3,
        _BOUND,
        "Preset sigma: noise as a multiple of the clip norm. A contribution may sign more, never less.",
        shown="required, except in a public class",
    )
    sampling_rate: Fraction = declared(
        4,
        Exact(Fraction(0), Fraction(1), above=True, ratio=True),
        "Probability q with which each contribution of the class is drawn in a step, above 0 and at most 1: a "
        'number, or a ratio of whole numbers in quotes, `"256/60000"`. On average a contribution is drawn q T times. '
        "Under an order in [`[sampling]`](#sampling) it takes part once in 1/q steps.",
    )
    depth: DepthRule = declared(
        5, Inline(DepthRule, "depth-rule", "depth", "{ from = 0.75, to = 1.0 }"), "What the class may touch; below."
    )
    max_window: int | None = declared(
        6,
        Days(MAX_WINDOW),
        "A shorter validity for this class.",
        key="max_window_days",
        default=None,
        shown="`[gate]`",
        nil=True,
    )
    max_epsilon_total_micro: int | None = declared(
        8,
        _BOUND,
        "The most epsilon that a contribution of the class may spend over all runs over the corpus together, at "
        "this policy's delta; see [below](#a-limit-over-all-runs).",
        default=None,
        optional=True,
        rule="at the policy's delta; not with 7",
    )
    reads: ReadRule | None = declared(
        9,
        Inline(ReadRule, "read-rule", "reads", '{ adapters = ["clinic"] }'),
        "Adapters that are active in the forwards of the class: `{ adapters = [] }` is the model without any. Left out, all"
        " are. A release certifies epsilon 0 where no path of blocks that classes touch and read leads. Needs `[isolation]"
        " required = true`.",
        default=None,
        optional=True,
        shown="the whole model",
        rule="with 31 of the policy",
    )
    purposes: tuple[str, ...] = declared(
        10,
        Many(PURPOSE, 1, 3, "purposes", ascending=True),
        "What contributions of the class may be used for, sorted: `generate`, `query`, `train`. A contribution is used for what"
        " its contributor signed and its class has. `query` is [not built yet](#specified-not-built-yet).",
        default=(TRAIN,),
        optional=True,
    )
    generation: DecodingRule | None = declared(
        11,
        Inline(DecodingRule, "decoding-rule", "generation", "{ references = 7, ... }"),
        "How texts are generated from contributions, a table with the [keys below](#specified-not-built-yet).",
        default=None,
        optional=True,
        rule="exactly where 10 has generate",
    )
    query: DecodingRule | None = declared(
        12,
        Inline(DecodingRule, "decoding-rule", "query", "{ references = 7, ... }"),
        "How queries are answered from contributions. [Not built yet](#specified-not-built-yet).",
        default=None,
        optional=True,
        rule="exactly where 10 has query",
    )
    public_lengths: tuple[int, ...] = declared(
        13,
        Many(_COUNT, 1, 64, "lengths", ascending=True, empty=True),
        "Lengths in tokens, ascending. A contribution may sign one of them as its public length, to which its examples are"
        " padded or cut; one that signs none has the longest. See [lengths](#lengths-that-everybody-may-know).",
        default=(),
        optional=True,
    )

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        check_fields(self, PolicyRefused)
        if self.bounds.public and not self.public:
            sentence = f"class {self.name} has the bounds by which contributors sign that data is public; set public = true"
            raise PolicyRefused("RANGE", sentence)
        if self.public and not self.bounds.public:
            raise PolicyRefused(
                "RANGE",
                f"class {self.name} is public and has a clip_norm or noise_multiplier; a public class is neither clipped nor"
                " noised: leave both out, or leave out public",
            )
        if self.public and self.max_epsilon_total_micro is not None:
            sentence = f"class {self.name} is public, with no claim of an epsilon; leave out max_epsilon_total, or public"
            raise PolicyRefused("RANGE", sentence)
        self._check_uses()

    def _check_uses(self) -> None:
        """Refuses a rule of decoding without its purpose, a purpose without its rule, and moving what is not read."""
        for word, rule in ((GENERATE, self.generation), (QUERY, self.query)):
            if (word in self.purposes) != (rule is not None):
                key = {GENERATE: "generation", QUERY: "query"}[word]
                raise PolicyRefused("RANGE", f"purpose {word!r} and the table {key} go together; give both, or neither")
        adapter = self.depth.adapter
        if self.reads is not None and adapter is not None and adapter not in self.reads.adapters:
            sentence = f"the class is bound to adapter {adapter!r}, which its reads leave out; name it there"
            raise PolicyRefused("RANGE", sentence)

    @classmethod
    def implied(cls, table: Any, reading: Reading) -> dict[str, Any]:
        """Returns the bounds of a public class, which nobody writes. Raises PolicyRefused: code KEY, somebody did."""
        if table.get("public", False) is not True:
            return {}
        given = [name for name in ("clip_norm", "noise_multiplier") if name in table]
        if given:
            raise reading.error(
                "KEY",
                f"class {ascii(table.get('name'))[:80]} is public and gives {' and '.join(given)}; a public class is neither"
                " clipped nor noised: leave the bounds out, or leave out public",
            )
        return {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}

    def hidden(self) -> tuple[str, ...]:
        """Returns the fields that say nothing in this class: the bounds of a public one."""
        return ("clip_norm_micro", "noise_multiplier_micro") if self.public else ()

    def asked(self) -> list[tuple[str, str]]:
        """Returns the words of the class that a version may not serve, with their keys."""
        stated = {
            "reads.set": self.reads and self.reads.patterns,
            "query": self.query,
        }
        return [
            *(("purposes", word) for word in self.purposes),
            *((key, "") for key, value in stated.items() if value is not None),
        ]

    @property
    def trained(self) -> bool:
        """Tells whether models are trained on contributions of the class."""
        return TRAIN in self.purposes

    def public_length_for(self, tokens: int) -> int | None:
        """Returns the shortest length that the class offers and that holds so many tokens, else its longest; None of none."""
        return next((length for length in self.public_lengths if length >= tokens), max(self.public_lengths, default=None))

    @property
    def bounds(self) -> SignedBounds:
        """Returns the presets of the class, without a cap."""
        return SignedBounds(self.clip_norm_micro, self.noise_multiplier_micro)
