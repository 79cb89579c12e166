"""Fixes what a text costs before any reference is looked at: clip norm, charge, and the epsilon that is quoted."""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from attest.fixed_point import MICRO, PICO, from_micro
from attest.policy.classes import DecodingRule
from dptrain.inference.invisibleink import formulas
from dptrain.inference.invisibleink.formulas import IN_WORDS
from ledger.accountants.phases import check_delta
from ledger.budget.leaves import Mechanism
from ledger.budget.rho import NANO, cap_nano, epsilon_of_rho
from ledger.errors import AccountantError

NAME: Final = "invisibleink"
"""Name of the mechanism in the header of a budget log."""


@dataclass(frozen=True)
class Plan:
    """Holds the public numbers of a generation: all chosen without looking at references, none of them taken from these.

    Guarantee: T draws at these numbers are (epsilon, delta)-DP under the named adjacency, wherever the text ends; with disjoint
    batches that do not depend on payloads, all texts of a run together are.

    Attributes:
        batch: B, references of one text. tokens: T, most tokens of one text; there is no default, and no way to take it from
            references.
        clip: C. delta: of the epsilon that is quoted. tau: temperature. k: of the truncation; None draws from all tokens.
        adjacency: a name of `formulas.ADJACENCIES`. records: m, most references that one person has in a run.

    Raises:
        AccountantError: a number is out of range; the code is its name.
    """

    batch: int
    tokens: int
    clip: float
    delta: float
    tau: float = 1.0
    k: int | None = 50
    adjacency: str = "zero-out"
    records: int = 1

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.k is not None:
            formulas._count("TOP_K", "k of the truncation", self.k)
        self.rho  # noqa: B018 - checks the other numbers

    @classmethod
    def for_epsilon(
        cls,
        epsilon: float,
        *,
        delta: float,
        batch: int,
        tokens: int,
        tau: float = 1.0,
        k: int | None = 50,
        adjacency: str = "zero-out",
        records: int = 1,
    ) -> "Plan":
        """Calibrates the clip norm, so that the charges of all tokens fit a cap of this epsilon and delta.

        They are whole numbers of 1e-9 of rho, so that C is a little below `formulas.clip_norm`.

        Raises:
            AccountantError: a number is out of range; code CAP, epsilon is worth less than 1e-9 of rho a token.
        """
        how = {"adjacency": adjacency, "records": records}
        clip = formulas.clip_norm(epsilon, delta, tokens, batch, tau, **how)
        each = cap_nano(math.floor(epsilon * MICRO), math.floor(delta * PICO)) // tokens
        if each < 1:
            raise AccountantError("CAP", f"epsilon {epsilon:g} is worth less than 1e-9 of rho for each of {tokens} tokens")
        unit = 2.0 * formulas.sensitivity_of(adjacency) * records / (batch * tau)  # eta of C = 1
        clip = min(clip, (math.sqrt(8.0 * each / NANO) - formulas.ROUNDING) / unit)
        while clip > 0 and formulas.nano_rho(clip, batch, tau, **how) > each:
            clip *= 1.0 - 2.0**-40
        return cls(batch, tokens, clip, delta, tau, k, adjacency, records)

    @classmethod
    def of_rule(cls, rule: DecodingRule, *, delta: float) -> "Plan":
        """Returns the numbers that a class of a signed policy has for generation, all of them.

        Raises:
            AccountantError: code CAP, one text costs a contribution more than the rule lets it spend.
        """
        clip, tau = from_micro(rule.clip_norm_micro), from_micro(rule.temperature_micro)
        made = cls(rule.references, rule.tokens, clip, delta, tau, rule.top_k)
        if (cost := made.tokens * made.nano_rho) > rule.max_rho_nano:
            sentence = f"a text of {made.tokens} tokens costs {cost} of 1e-9 rho with what float64 rounds"
            how = f"sign a policy whose rule has max_rho = {cost / NANO:.9f} or more"
            raise AccountantError("CAP", f"{sentence}, the rule lets a contribution spend {rule.max_rho_nano}; {how}")
        return made

    @cached_property
    def nano_rho(self) -> int:
        """Charge of one token, in 1e-9 of rho, rounded up."""
        return formulas.nano_rho(self.clip, self.batch, self.tau, adjacency=self.adjacency, records=self.records)

    @cached_property
    def rho(self) -> float:
        """Rho of a whole text: the charge of T tokens, however long the text becomes."""
        formulas._count("TOKENS", "a number of tokens", self.tokens)
        return self.tokens * self.nano_rho / NANO

    @cached_property
    def epsilon(self) -> float:
        """Epsilon of a whole text at ``delta``, and of all texts over disjoint batches."""
        return epsilon_of_rho(self.rho, self.delta)

    @property
    def mechanism(self) -> str:
        """Name of the mechanism for a log: the law and its exact parameters."""
        top = "all" if self.k is None else self.k
        who = relation(self.adjacency, self.records)
        return f"{NAME} B={self.batch} C={self.clip!r} tau={self.tau!r} k={top} T={self.tokens} {who}"

    @property
    def sentence(self) -> str:
        """Says what a text is worth, with epsilon rounded up to four digits."""
        many = f"{self.records} references of one person at once ({self.adjacency})"
        who = IN_WORDS[self.adjacency] if self.records == 1 else many
        delta = f"{self.delta:g}".replace("e-0", "e-")
        return (
            f"{self.tokens} tokens at most from {self.batch} references, clip norm {self.clip:.6g}, temperature {self.tau:g}: "
            f"epsilon {math.ceil(self.epsilon * 1e4 - 1e-9) / 1e4:.4f} for {who}, at delta {delta}"
        )

    def __str__(self) -> str:
        return self.sentence


def mechanism(salt: bytes | None = None, *, adjacency: str = "zero-out", records: int = 1) -> Mechanism:
    """Returns what the header of a budget log says of this mechanism: each request sets its rho.

    Args:
        salt: by which ids of references become the units that pay (`References.read`); the header pins its SHA-256, so that
            no other salt makes units that have spent nothing yet.
        adjacency, records: between what all charges of the log hold; they are pinned too, for rho under two of them has no sum.
    """
    words = ["InvisibleInk: exponential mechanism over public logits moved by clipped differences"]
    words.append(relation(adjacency, records))
    if salt is not None:
        words.append(pin(salt))
    return Mechanism(NAME, 1, True, "; ".join(words))


def relation(adjacency: str, records: int) -> str:
    """Returns the words that pin in a header between what its charges hold."""
    return f"{adjacency} records={records}"


def pinned(words: str, stated: Mechanism) -> bool:
    """Tells whether the header of a log pins exactly these words."""
    return words in stated.parameters.split("; ")


def pin(salt: bytes) -> str:
    """Returns the words that pin a salt in a header."""
    return f"ids under salt {hashlib.sha256(salt).hexdigest()}"
