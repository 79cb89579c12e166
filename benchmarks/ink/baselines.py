"""Chooses next tokens as other papers do, each with exact accounting: what a token costs, and what its page says it costs.

An arm begins a step for each text. A step maps private logits (B, V) and public logits (V,) to the probabilities of the next
token, or to None where the arm's budget is spent. All logits are float64. The protected unit is one reference. The adjacency is
`zero-out`: a reference is replaced by the null reference, and B stays.

Arms are for studies: their noise comes from a seeded generator, so what they write has no privacy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from dptrain.inference.gaussian import epsilon_of, sigma_analytic
from ledger.budget.rho import NANO, bounded_range_nano, cap_nano, epsilon_of_rho, gaussian_nano, pure_nano

Array = Any
"""A float64 array of numpy."""

NO_GUARANTEE: Final = "private, no guarantee"
"""Said of an epsilon that was computed from the references: it is private itself, and holds for these references alone."""


class Choice(NamedTuple):
    """Holds the probabilities of the next token, (V,), and whether references moved them."""

    probabilities: Array
    private: bool


Step = Callable[[Array, Array], "Choice | None"]
"""Maps private logits (B, V) and public logits (V,) to a choice; None where nothing more may be written."""


@dataclass(frozen=True)
class Bill:
    """Says what the texts of an arm cost.

    Attributes:
        epsilon: of every reference, at delta; infinite where nothing is hidden.
        guarantee: the adjacency it holds under, "public", "none" or `NO_GUARANTEE`.
        claimed: the epsilon that the arm's page says, where it is another.
    """

    epsilon: float
    delta: float
    guarantee: str
    claimed: float | None = None


class Arm(Protocol):
    """Writes texts token by token.

    Attributes:
        name: of the arm. B: references of a text. reads: rows of the model that a token needs.
    """

    name: str
    B: int

    @property
    def reads(self) -> int: ...

    def begin(self, numbers: np.random.Generator) -> Step:
        """Returns the step of one text."""

    def bill(self) -> Bill:
        """Returns what the texts begun so far cost each reference; B references serve one text alone."""


def softmax(logits: Array) -> Array:
    """Returns probabilities along the last axis."""
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def top_k(logits: Array, k: int) -> Array:
    """Returns which tokens are among the k largest logits, ties kept."""
    return logits >= np.partition(logits, -min(k, len(logits)))[-min(k, len(logits))]


def within(logits: Array, kept: Array, tau: float) -> Array:
    """Returns the probabilities of the kept tokens at temperature tau, and 0 elsewhere."""
    return softmax(np.where(kept, logits / tau, -np.inf))


def cap(epsilon: float, delta: float) -> int:
    """Returns the rho, in 1e-9, that (epsilon, delta) is worth."""
    return cap_nano(round(epsilon * 10**6), round(delta * 10**12))


def range_of(nano: int) -> float:
    """Returns the largest range of a log-ratio whose rho is at most ``nano`` (in 1e-9)."""
    return math.sqrt(8 * nano / NANO) * (1 - 1e-12)


@dataclass(frozen=True)
class PublicOnly:
    """Reads no reference: the bound below, epsilon 0."""

    tau: float = 1.0
    k: int = 100
    B: int = 0
    name: str = "public"

    @property
    def reads(self) -> int:
        return 1

    def begin(self, numbers: np.random.Generator) -> Step:
        return lambda private, public: Choice(within(public, top_k(public, self.k), self.tau), False)

    def bill(self) -> Bill:
        return Bill(0.0, 0.0, "public")


@dataclass(frozen=True)
class NonPrivate:
    """Takes the mean of the private logits: the bound above, without privacy."""

    B: int
    tau: float = 1.0
    k: int = 100
    name: str = "non-private"

    @property
    def reads(self) -> int:
        return self.B

    def begin(self, numbers: np.random.Generator) -> Step:
        def step(private: Array, public: Array) -> Choice:
            mean = private.mean(0)
            return Choice(within(mean, top_k(mean, self.k), self.tau), True)

        return step

    def bill(self) -> Bill:
        return Bill(math.inf, 0.0, "none")


class Formulas(Protocol):
    """The parts of InvisibleInk that a step needs."""

    def aggregate(self, private_logits: Array, public_logits: Array, clip: float) -> Array: ...

    def expanded_top_k(self, public_logits: Array, k: int, clip: float, references: int) -> Array: ...


@dataclass(frozen=True)
class Ink:
    """Is InvisibleInk: clips what each reference adds to the public logits, and samples from Top-k+.

    Attributes:
        formulas: whose parts are used. clip: C. tokens: T, all of which are paid.
    """

    formulas: Formulas
    clip: float
    B: int
    tokens: int
    delta: float
    tau: float = 1.0
    k: int = 100
    name: str = "ink"

    @classmethod
    def calibrated(cls, formulas: Formulas, epsilon: float, delta: float, B: int, tokens: int, **rest: Any) -> "Ink":
        """Returns the arm with the largest clip norm: C = B tau range / 2 (Theorem 2 solved for C)."""
        tau = rest.get("tau", 1.0)
        return cls(formulas, B * tau * range_of(cap(epsilon, delta) // tokens) / 2, B, tokens, delta, **rest)

    @property
    def reads(self) -> int:
        return self.B + 1

    def begin(self, numbers: np.random.Generator) -> Step:
        def step(private: Array, public: Array) -> Choice:
            kept = np.zeros(len(public), dtype=bool)
            kept[self.formulas.expanded_top_k(public, self.k, self.clip, self.B)] = True
            return Choice(within(self.formulas.aggregate(private, public, self.clip), kept, self.tau), True)

        return step

    def bill(self) -> Bill:
        if self.clip == 0:
            return Bill(0.0, self.delta, "zero-out")
        nano = self.tokens * bounded_range_nano(2 * self.clip / (self.B * self.tau))
        return Bill(epsilon_of_rho(nano / NANO, self.delta), self.delta, "zero-out")


AMIN_NOISE, AMIN_THRESHOLD = 0.3, 0.7
"""The noise s of the screening and its threshold, as in the scripts of the InvisibleInk paper."""


def screening_nano(B: int, noise: float, *, page: bool = False) -> int:
    """Returns the rho, in 1e-9, of the screening that one private token ends.

    The sparse vector technique with threshold noise Lap(s) and query noise Lap(2s) is (2 sensitivity / s)-DP. The query is the
    L1 distance of the mean private distribution to the public one: its sensitivity is 2/B under zero-out. The page takes 1/B.
    """
    return pure_nano(2 * (1 if page else 2) / (B * noise))


def token_nano(clip: float, B: int, tau: float, *, page: bool = False) -> int:
    """Returns the rho, in 1e-9, of one private token: logits in [-C, C] move by 2C/B under zero-out. The page takes C/B."""
    return bounded_range_nano(2 * (1 if page else 2) * clip / (B * tau))


def feasible(epsilon: float, delta: float, B: int, tokens: int = 100, noise: float = AMIN_NOISE, *, page: bool = False) -> bool:
    """Says whether Amin et al. can write any private token: False where the screening alone spends epsilon ("INF")."""
    return tokens * screening_nano(B, noise, page=page) < cap(epsilon, delta)


@dataclass(frozen=True)
class Amin:
    """Is Amin et al. 2024: clips logits themselves to [-C, C], and writes public tokens for free where they are near.

    A text ends with its last private token. ``noise`` 0 leaves the screening out: every token is private.

    With ``page`` it is calibrated and screened as the InvisibleInk page and its scripts have it: sensitivities C/B and 1/B, and
    the distance is that of the clipped mean's softmax. Clipped means of neighbours differ by 2C/B at each token, so that
    distance moves by up to 2 tanh(C/B).

    Attributes:
        clip: C. tokens: private tokens of a text at most. noise: s. threshold: theta.
    """

    clip: float
    B: int
    tokens: int
    delta: float
    tau: float = 1.0
    noise: float = AMIN_NOISE
    threshold: float = AMIN_THRESHOLD
    page: bool = False
    name: str = "amin"

    @classmethod
    def calibrated(cls, epsilon: float, delta: float, B: int, tokens: int, **rest: Any) -> "Amin | None":
        """Returns the arm with the largest clip norm for ``tokens`` private tokens; None where none is feasible ("INF")."""
        noise, page, tau = rest.get("noise", AMIN_NOISE), rest.get("page", False), rest.get("tau", 1.0)
        left = cap(epsilon, delta) // tokens - (screening_nano(B, noise, page=page) if noise else 0)
        if left <= 0:
            return None
        return cls(range_of(left) * B * tau / (2 if page else 4), B, tokens, delta, **rest)

    @property
    def reads(self) -> int:
        return self.B + 1 if self.noise else self.B

    def clipped(self, private: Array) -> Array:
        """Returns the mean of the private logits, each shifted so that its largest is C, and clipped to [-C, C]."""
        return np.clip(private - private.max(-1, keepdims=True) + self.clip, -self.clip, self.clip).mean(0)

    def distance(self, private: Array, public: Array) -> float:
        """Returns what is screened: how far the references move the next token."""
        ours = softmax(self.clipped(private)) if self.page else softmax(private).mean(0)
        return float(np.abs(ours - softmax(public)).sum())

    def begin(self, numbers: np.random.Generator) -> Step:
        written, limit = 0, self.threshold + numbers.laplace(0, self.noise) if self.noise else -math.inf

        def step(private: Array, public: Array) -> Choice | None:
            nonlocal written, limit
            if written == self.tokens:
                return None
            if self.noise:
                if self.distance(private, public) + numbers.laplace(0, 2 * self.noise) <= limit:
                    return Choice(softmax(public), False)
                limit = self.threshold + numbers.laplace(0, self.noise)
            written += 1
            return Choice(softmax(self.clipped(private) / self.tau), True)

        return step

    def bill(self) -> Bill:
        screens = pure_nano(2 * self._moved() / self.noise) if self.noise else 0
        true = self.tokens * (token_nano(self.clip, self.B, self.tau) + screens)
        said = self.tokens * token_nano(self.clip, self.B, self.tau, page=True)
        said += self.tokens * screening_nano(self.B, self.noise, page=True) if self.noise else 0
        claimed = epsilon_of_rho(said / NANO, self.delta) if self.page else None
        return Bill(epsilon_of_rho(true / NANO, self.delta), self.delta, "zero-out", claimed)

    def _moved(self) -> float:
        return 2 * math.tanh(self.clip / self.B) if self.page else 2 / self.B


def renyi(p: Array, q: Array, order: float) -> float:
    """Returns the larger of the two Renyi divergences between p and q, both positive."""
    forward = np.logaddexp.reduce(order * np.log(p) + (1 - order) * np.log(q))
    backward = np.logaddexp.reduce(order * np.log(q) + (1 - order) * np.log(p))
    return float(max(forward, backward, 0.0) / (order - 1))


@dataclass
class AdaPMixED:
    """Is AdaPMixED (Flemings et al. 2024), made to write: mixes each reference's distribution with the public one.

    A reference's weight is the largest at which the mixture is within beta order of the public distribution. A token's loss is
    what leaving one reference out changes. A text ends where the losses reach epsilon, so its length tells of the references.
    The epsilon is no guarantee: it is computed from them.

    Attributes:
        adjacency: what leaving out means: `add-or-remove` (a mean of B - 1) or `zero-out` (the public distribution instead).
        order, beta: of the divergences. k, noise, weight, threshold: of the noisy screening.
    """

    epsilon: float
    delta: float
    B: int
    adjacency: str = "add-or-remove"
    order: float = 15.0
    beta: float = 0.3
    k: int = 60
    noise: float = 0.01
    weight: float = 1e-4
    threshold: float = 4.5
    name: str = "adapmixed"
    spent: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.adjacency not in ("add-or-remove", "zero-out"):
            raise ValueError(f"an adjacency of AdaPMixED is add-or-remove or zero-out, got {self.adjacency!r}")

    @property
    def reads(self) -> int:
        return self.B + 1

    def mixed(self, private: Array, public: Array) -> Array:
        """Returns each reference's mixture with the public distribution, (B, V), from probabilities."""
        return np.stack([self._weight(each, public) * (each - public) + public for each in private])

    def _weight(self, private: Array, public: Array) -> float:
        most = self.beta * self.order
        if renyi(private, public, self.order) <= most:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            fits = renyi(middle * private + (1 - middle) * public, public, self.order) <= most
            low, high = (middle, high) if fits else (low, middle)
        return low

    def loss(self, mixed: Array, public: Array) -> float:
        """Returns the largest divergence that leaving out one reference makes, over the references at hand."""
        whole, total = mixed.mean(0), mixed.sum(0)
        if self.adjacency == "zero-out":
            without = (total - mixed + public) / self.B
        elif self.B == 1:
            without = public[None]
        else:
            without = (total - mixed) / (self.B - 1)
        return max(renyi(np.maximum(each, 1e-300), whole, self.order) for each in without)

    def screened(self, private: Array, public: Array, numbers: np.random.Generator) -> bool:
        """Says whether the public distribution is taken: the noisy mean is too far from it."""
        kept = np.argpartition(public, -min(self.k, len(public)))[-min(self.k, len(public)) :]
        near = self.weight * private.mean(0)[kept] + (1 - self.weight) * public[kept]
        noisy = np.abs(near + numbers.normal(0, self.noise, len(kept))) + 1e-300
        return renyi(public[kept] / public[kept].sum(), noisy / noisy.sum(), self.order) > self.threshold

    def epsilon_of(self, loss: float) -> float:
        """Returns the epsilon at delta of a Renyi loss at the order."""
        order = self.order
        return max(0.0, loss + math.log1p(-1 / order) - math.log(self.delta * order) / (order - 1))

    def begin(self, numbers: np.random.Generator) -> Step:
        place, total = len(self.spent), 0.0
        self.spent.append(0.0)

        def step(private: Array, public: Array) -> Choice | None:
            nonlocal total
            ours, theirs = softmax(private), softmax(public)
            after = total + (self.weight / (self.B * self.noise)) ** 2 * self.order
            if self.screened(ours, theirs, numbers):
                choice = Choice(theirs, False)
            else:
                mixed = self.mixed(ours, theirs)
                choice = Choice(mixed.mean(0), True)
                after += self.loss(mixed, theirs)
            if self.epsilon_of(after) > self.epsilon:
                return None
            total = after
            self.spent[place] = self.epsilon_of(total)
            return choice

        return step

    def bill(self) -> Bill:
        """Returns the largest epsilon of a text, computed from its references."""
        return Bill(max(self.spent, default=0.0), self.delta, NO_GUARANTEE)


SENSITIVITY_OF_VOTES: Final = {"zero-out": math.sqrt(2), "add-or-remove": 1.0}
"""L2 sensitivity of a histogram of nearest candidates: a reference that becomes null moves its vote, so two counts change."""


@dataclass(frozen=True)
class AugPE:
    """Is AugPE (Xie et al. 2024): candidates that references vote for are kept and varied; it reads no logits.

    Votes get Gaussian noise that makes all rounds together (epsilon, delta)-DP, by the exact curve of the Gaussian mechanism.
    With ``page`` the sensitivity is 1, as the InvisibleInk page takes it, and epsilon is larger than it says.

    Attributes:
        rounds: of voting. variations: of each kept candidate.
    """

    epsilon: float
    delta: float
    rounds: int = 3
    variations: int = 7
    page: bool = False
    name: str = "augpe"

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on each count."""
        sensitivity = SENSITIVITY_OF_VOTES["add-or-remove" if self.page else "zero-out"]
        return sigma_analytic(self.epsilon, self.delta, sensitivity, self.rounds)

    def bill(self) -> Bill:
        """Returns the exact epsilon; `rho` has what a zCDP budget would take."""
        true = epsilon_of(self.sigma, self.delta, SENSITIVITY_OF_VOTES["zero-out"], self.rounds)
        return Bill(true, self.delta, "zero-out", self.epsilon if self.page else None)

    def rho(self) -> float:
        """Returns the rho of all rounds."""
        return self.rounds * gaussian_nano(SENSITIVITY_OF_VOTES["zero-out"], self.sigma) / NANO

    def calls(self, count: int) -> int:
        """Returns how many whole texts the model writes for ``count`` texts.

        Texts that are kept are not written again, so that it is 8 + 7 (rounds - 1) each; the page counts 8 a round.
        """
        return count * (1 + self.variations) + (self.rounds - 1) * count * self.variations

    def write(
        self, count: int, references: Array, new: Callable[[int], list[str]], vary: Callable[[Sequence[str]], list[str]],
        encode: Callable[[Sequence[str]], Array], numbers: np.random.Generator,
    ) -> list[str]:  # fmt: skip
        """Returns ``count`` texts.

        Args:
            references: features of the private references, (N, W). new: writes texts without a reference. vary: writes one
                variation of each text. encode: features of texts.
        """
        kept: list[str] = []
        candidates = new(count * (1 + self.variations))
        for turn in range(self.rounds):
            if turn:
                candidates = kept + [text for _ in range(self.variations) for text in vary(kept)]
            noisy = votes(references, encode(candidates)) + numbers.normal(0, self.sigma, len(candidates))
            kept = [candidates[place] for place in np.argsort(-noisy, kind="stable")[:count]]
        return kept


def votes(references: Array, candidates: Array) -> Array:
    """Returns how many references are nearest to each candidate, (m,), by Euclidean distance of features; each votes once."""
    squares = (candidates**2).sum(1)[None] - 2 * references @ candidates.T
    return np.bincount(squares.argmin(1), minlength=len(candidates)).astype(float)
