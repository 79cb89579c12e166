"""Retrieves the references of a text by a public query: the B best documents of a corpus, null ones where fewer are there.

Why this costs what `formulas.ADJACENCIES` says of ``retrieval``. The score of a document follows from the query and this
document alone, and the order of equal scores from public ids. So where one document becomes null the others keep their order:
if it was among the best B, exactly the next one comes in, or a null reference; if not, nothing changes. The B references differ
in one, which moves the mean of clipped differences by at most 2C/B. Where m documents become null it is at most m, and 2mC/B.

Which row of the model a reference gets is drawn at random, for each text anew (`InvisibleInk.stream`). So neighbours can be
paired, arrangement by arrangement, such that one row differs and all others stand where they stood. Each pair costs what was
said. Arrangements have the same odds for both, and whoever saw which pair was drawn would learn nothing by it; who does not see
it knows less. Rows by rank would need a model whose rows keep every bit in another place, which kernels seldom do.

Nothing else may look at scores: there is no threshold, no number of references that follows from them, no text that is not
made. Every query looks at every document, so queries compose sequentially: the corpus pays for each (`CORPUS`), beforehand.

Source of the scorer: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009. What BM25 learns
from the corpus is public here: weights of words in place of inverse document frequencies, a constant in place of the average
length.
"""

import csv
import hashlib
import io
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attest.files import read_limited
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.paying import BudgetMeter, PaidBefore
from dptrain.inference.invisibleink.references import References
from ledger.budget import Unit

if TYPE_CHECKING:
    from dptrain.inference.invisibleink.generator import InvisibleInk, Stream

ADJACENCY: Final = "retrieval"
"""Name of the adjacency under which retrieved references are charged."""

CORPUS: Final = Unit("corpus", "references")
"""Pays for every query. A log has one corpus: were its name taken from what is in it, a changed corpus would have new money."""

QUERY: Final = "query"
"""Public word of a task that stands for the query."""

MOST_QUERY: Final = 4096
"""Characters of a query."""

_MOST_LIST: Final = 1 << 26
_WORD: Final = re.compile(r"\w+")

Score = Callable[[str, str], float]
"""Scores a document for a query: ``score(query, text)``, larger is better, and a finite number whatever the text is.

It follows from these two alone. An inverse document frequency, an average length, a clustering, an index or a normalisation
that was learned from the corpus breaks the guarantee of `Retrieval`, and so does a memory of earlier documents or queries. A
model that was trained on public text, and embeds one text at a time, is fine.
"""


@dataclass(frozen=True)
class Lexical:
    """Scores by words that query and document share, each with its public weight, saturated in how often it stands there.

    Guarantee: the score of a document follows from the query, that document, and public constants.

    Attributes:
        weights: public weight of a word, 0 or more, as its inverse document frequency in public text. A word that is not in it
            weighs as much as the heaviest, since it is rare; without a list every word weighs 1.
        k1: from where on further occurrences count little. b: how far length counts, 0 to 1.
        length: words of a usual document, a public constant.

    Raises:
        ConfigError: code WEIGHTS, a weight or a constant is out of range.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    k1: float = 1.2
    b: float = 0.75
    length: int = 100

    def __post_init__(self) -> None:
        sound = all(0.0 <= one < math.inf for one in (self.k1, self.b, *self.weights.values()))
        if not sound or self.b > 1.0 or self.length < 1:
            sentence = "weights and k1 are finite numbers of 0 or more, b is one up to 1, and length a whole number from 1 on"
            raise ConfigError("WEIGHTS", f"{sentence}; all are public, and none is learned from the corpus")

    @classmethod
    def read(cls, path: str | Path) -> "Lexical":
        """Reads a public list of weights: CSV with the head ``word,weight``.

        Raises:
            ConfigError: code WEIGHTS, a line is none of that, or a word stands twice. FileRefused: it cannot be read.
        """
        found: dict[str, float] = {}
        try:
            text = read_limited(path, _MOST_LIST, "list of weights").decode("utf-8-sig")
            reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
            if reader.fieldnames != ["word", "weight"]:
                raise ConfigError("WEIGHTS", f"{path}, line 1: expected the head word,weight")
            for row in reader:
                [word], weight = words_of(row["word"]), float(row["weight"])
                if word in found:
                    raise ConfigError("WEIGHTS", f"{path}, line {reader.line_num}: its word stood on a line before; keep one")
                found[word] = weight
        except (ValueError, TypeError, csv.Error) as error:
            raise ConfigError("WEIGHTS", f"{path} has a line that is no word and weight: {error}") from None
        return cls(found)

    def __call__(self, query: str, text: str) -> float:
        """Returns the score, 0 or more."""
        return self.of_terms(query, self.terms(text))

    def terms(self, text: str) -> dict[str, float]:
        """Returns how much each word of a document counts, before its weight: up to k1 + 1."""
        found = words_of(text)
        long = self.k1 * (1.0 - self.b + self.b * len(found) / self.length)
        return {word: count * (self.k1 + 1.0) / (count + long) for word, count in Counter(found).items()}

    def of_terms(self, query: str, terms: Mapping[str, float]) -> float:
        """Returns the score of a document by its terms; each word of the query counts once."""
        asked = dict.fromkeys(words_of(query))
        return math.fsum(self.weights.get(word, self._rare) * terms.get(word, 0.0) for word in asked)

    @cached_property
    def _rare(self) -> float:
        return max(self.weights.values(), default=1.0)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of all public numbers."""
        said = [self.k1, self.b, self.length, sorted(self.weights.items())]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def words_of(text: str) -> list[str]:
    """Returns the words of a text, in one spelling of capitals and composed characters."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class Retrieval:
    """Finds the references of a query in a corpus, and pays for it before it looks.

    Guarantee: where one document of the corpus becomes null, the references of a query differ in at most one, whatever the
    query is; where m do, in at most m. Exactly B are returned, in an order that follows from scores, which no row may have.
    This holds for scores that follow from query and document alone (`Score`); a document that is null has no score, comes
    behind all others, and is the same null reference wherever it lies. Ids are public and decide between equal scores.

    Args:
        references: the owner's own, as `References.read` has them. score: see `Score`.

    Raises:
        ConfigError: code ADJACENCY, the references are attested.
    """

    def __init__(self, references: References, score: Score | None = None) -> None:
        if references.rule is not None:
            raise ConfigError("ADJACENCY", ATTESTED)
        self.references, self.score = references, Lexical() if score is None else score
        self._documents = tuple((one.id, one.text, self._read(one.text)) for one in references if one.text)

    def best(self, query: str, batch: int) -> tuple[str | None, ...]:
        """Returns the B best documents for a query, the best first, and None in the place of each that is missing.

        It is private what is returned: nothing but a text that was paid for may follow from it (`stream`).

        Raises:
            ConfigError: code BATCH; QUERY, as `checked`; SCORE, a score is not finite or could not be computed. That tells of
                one document, though in no word of it: a scorer that can end so keeps no promise.
        """
        checked(query)
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise ConfigError("BATCH", f"a text has {batch!r:.40} references; expected a public whole number from 1 on")
        scored = sorted((-self._scored(query, read), one, text) for one, text, read in self._documents)
        found: list[str | None] = [text for _, _, text in scored[:batch]]
        return (*found, *[None] * (batch - len(found)))

    def stream(
        self, ink: "InvisibleInk", query: str, meter: BudgetMeter, *, labels: Mapping[str, str] | None = None
    ) -> "Stream":
        """Pays for a query, retrieves its references, and returns the iterator of the tokens of its text.

        Guarantee: no document is looked at before T tokens were paid for. Where the model, or the test of its rows, then cannot
        begin, nothing of a document was released; what a scorer that fails has cost is spent.

        Args:
            meter: pays for one text, by `CORPUS`. labels: public words of the task, the query among them.

        Raises:
            BudgetExhausted: the cap of the corpus would be passed; nothing is charged, and nothing was retrieved.
            ConfigError: code ADJACENCY, the plan is of another; as `best`. Else as `InvisibleInk.stream`.
        """
        plan = ink.plan
        if plan.adjacency != ADJACENCY:
            sentence = f"references are retrieved, and the plan is of adjacency {plan.adjacency}, which costs too little"
            raise ConfigError("ADJACENCY", f"{sentence}; give the plan adjacency={ADJACENCY!r}")
        checked(query)
        ink._prompts(labels)  # what is wrong with the query is told before it is paid for
        receipt = meter.reserve(plan.tokens, mechanism=plan.mechanism, nano_rho=plan.nano_rho)
        return ink.stream(self.best(query, plan.batch), PaidBefore(meter, receipt), labels=labels)

    def _read(self, text: str) -> Any:
        return self.score.terms(text) if isinstance(self.score, Lexical) else text

    def _scored(self, query: str, read: Any) -> float:
        try:
            found = float(self.score.of_terms(query, read) if isinstance(self.score, Lexical) else self.score(query, read))
        except Exception as error:  # what it says may have words of the document
            raise ConfigError("SCORE", f"the scorer ended with {type(error).__name__} on a document; {_FINITE}") from None
        if not math.isfinite(found):
            raise ConfigError("SCORE", f"the score of a document is {found}; {_FINITE}")
        return found


def checked(query: str) -> str:
    """Returns a query that can be asked.

    Raises:
        ConfigError: code QUERY, it is empty, too long, or has what no prompt can have.
    """
    if not isinstance(query, str) or not query.strip() or len(query) > MOST_QUERY:
        raise ConfigError("QUERY", f"a query is a text of 1 to {MOST_QUERY} characters, and not all of them spaces")
    if "\0" in query or any("\ud800" <= char <= "\udfff" for char in query):
        raise ConfigError("QUERY", "a query has a zero, or half of a character, which no prompt can have; take it out")
    return query


ATTESTED: Final = (
    "attested references have a rule by which each pays for the texts of its own batch; a query looks at all, and moves a text "
    "by twice as much. A retrieved text would need a rule of its own, which nobody signed: give references of your own"
)
"""Says why references that others signed for are not retrieved."""

_FINITE: Final = "give one that returns a finite number for every text, from query and text alone"
