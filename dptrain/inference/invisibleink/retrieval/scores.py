"""Scores a document for a query, from the two alone.

Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009. What BM25 learns from the corpus
is public here: weights of words in place of inverse document frequencies, a constant in place of the average length.
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
from typing import Final

from attest.files import read_limited
from dptrain.errors import ConfigError

_MOST_LIST: Final = 1 << 26
_WORD: Final = re.compile(r"\w+")

MOST_WEIGHT: Final = 10**6
"""Largest weight, and k1: a score is then finite whatever the document is, and below 1e16 for the longest query."""

MOST_LENGTH: Final = 10**9
"""Most words of a usual document."""

Score = Callable[[str, str], float]
"""Scores a document for a query: ``score(query, text)``, larger is better, and a finite number whatever the text is.

It follows from these two alone. An inverse document frequency, an average length, a clustering, an index or a normalisation
that was learned from the corpus breaks the guarantee of `Retrieval`, and so does a memory of earlier documents or queries. A
model that was trained on public text, and embeds one text at a time, is fine.
"""


@dataclass(frozen=True)
class Lexical:
    """Scores by words that query and document share, each with its public weight, saturated in how often it stands there.

    Guarantee: the score of a document follows from the query, that document, and public constants. It is finite whatever stands
    in the document, since all constants have a bound: a score that is refused would tell of one document.

    Attributes:
        weights: public weight of a word, 0 to `MOST_WEIGHT`, as its inverse document frequency in public text. A word that is
            not in it weighs as much as the heaviest, since it is rare; without a list every word weighs 1.
        k1: from where on further occurrences count little, 0 to `MOST_WEIGHT`. b: how far length counts, 0 to 1.
        length: words of a usual document, a public constant up to `MOST_LENGTH`.

    Raises:
        ConfigError: code WEIGHTS, a weight or a constant is out of range.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    k1: float = 1.2
    b: float = 0.75
    length: int = 100

    def __post_init__(self) -> None:
        sound = all(0.0 <= one <= MOST_WEIGHT for one in (self.k1, *self.weights.values())) and 0.0 <= self.b <= 1.0
        if not sound or not isinstance(self.length, int) or not 1 <= self.length <= MOST_LENGTH:
            sentence = f"weights and k1 are 0 to {MOST_WEIGHT}, b is 0 to 1, and length a whole number from 1 to {MOST_LENGTH}"
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
