"""The classes of a policy, each field declared once."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Final

from attest.descriptor import MAX_COUNT, MAX_MICRO, PUBLIC_CLIP_MICRO, PUBLIC_NOISE_MICRO, TRAIN
from attest.documents import check_fields, declared
from attest.documents.groups import Inline, Many
from attest.documents.kinds import Days, Exact, Flag, Identifier, Reading, Scaled, Whole
from attest.errors import PolicyRefused
from attest.micro import from_micro
from attest.policy.depth import DepthRule
from attest.policy.uses import PURPOSE, DecodingRule, ReadRule, check_uses

MAX_WINDOW: Final = 100 * 365 * 86400
"""Most seconds for which an attestation may be valid, whatever a policy says."""

_COUNT: Final = Whole(1, MAX_COUNT, "count")
_BOUND: Final = Scaled(1, MAX_MICRO)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassRule:
    """One admissibility class. The sentences of the fields say what each means.

    The bounds of a public class are `PUBLIC_CLIP_MICRO` and `PUBLIC_NOISE_MICRO`, which say so, and no others.

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
        Exact(Fraction(0), Fraction(1), above=True, one_over=True),
        "Probability q with which each contribution of the class is drawn in a step, above 0 and at most 1: a "
        'number, or one over a whole number in quotes, `"1/30"`. On average a contribution is drawn q T times. '
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
        "What of the model the forward of the class reads, beside what it may touch. Left out, all of it. [Not built"
        " yet](#specified-not-built-yet).",
        default=None,
        optional=True,
        shown="the whole model",
    )
    purposes: tuple[str, ...] = declared(
        10,
        Many(PURPOSE, 1, 3, "purposes", ascending=True),
        "What contributions of the class may be used for, sorted: `generate`, `query`, `train`. All but `train` is [not built"
        " yet](#specified-not-built-yet).",
        default=(TRAIN,),
        optional=True,
    )
    generation: DecodingRule | None = declared(
        11,
        Inline(DecodingRule, "decoding-rule", "generation", "{ references = 7, ... }"),
        "How texts are generated from contributions. [Not built yet](#specified-not-built-yet).",
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
        "Lengths in tokens, ascending; a contribution may sign one of them as its public length. [Not built"
        " yet](#specified-not-built-yet).",
        default=(),
        optional=True,
    )

    def __post_init__(self) -> None:
        check_fields(self, PolicyRefused)
        says_public = (self.clip_norm_micro, self.noise_multiplier_micro) == (PUBLIC_CLIP_MICRO, PUBLIC_NOISE_MICRO)
        if says_public and not self.public:
            raise PolicyRefused(
                "RANGE", f"class {self.name} has the bounds by which contributors sign that data is public; set public = true"
            )
        if self.public and not says_public:
            raise PolicyRefused(
                "RANGE",
                f"class {self.name} is public and has a clip_norm or noise_multiplier; a public class is neither clipped nor"
                " noised: leave both out, or leave out public",
            )
        if self.public and self.max_epsilon_total_micro is not None:
            raise PolicyRefused(
                "RANGE", f"class {self.name} is public, with no claim of an epsilon; leave out max_epsilon_total, or public"
            )
        check_uses(self.purposes, self.generation, self.query, self.reads, self.depth.adapter)

    @classmethod
    def implied(cls, table: Any, reading: Reading) -> dict[str, Any]:
        """Returns the bounds of a public class, which nobody writes.

        Raises:
            PolicyRefused: Code KEY, somebody did.
        """
        if table.get("public", False) is not True:
            return {}
        given = [name for name in ("clip_norm", "noise_multiplier") if name in table]
        if given:
            raise reading.error(
                "KEY",
                f"class {ascii(table.get('name'))[:80]} is public and gives {' and '.join(given)}; a public class is neither"
                " clipped nor noised: leave the bounds out, or leave out public",
            )
        return {"clip_norm_micro": PUBLIC_CLIP_MICRO, "noise_multiplier_micro": PUBLIC_NOISE_MICRO}

    def hidden(self) -> tuple[str, ...]:
        """Returns the fields that say nothing in this class: the bounds of a public one."""
        return ("clip_norm_micro", "noise_multiplier_micro") if self.public else ()

    def asked(self) -> list[tuple[str, str]]:
        """Returns the words of the class that a version may not serve, with their keys."""
        stated = {
            "reads": self.reads,
            "generation": self.generation,
            "query": self.query,
            "public_lengths": self.public_lengths,
        }
        return [
            *(("purposes", word) for word in self.purposes),
            *((key, "") for key, value in stated.items() if value not in (None, ())),
        ]

    @property
    def clip_norm(self) -> float:
        """Preset clip norm as a double; says nothing in a public class."""
        return from_micro(self.clip_norm_micro)

    @property
    def noise_multiplier(self) -> float:
        """Preset noise multiplier as a double."""
        return from_micro(self.noise_multiplier_micro)
