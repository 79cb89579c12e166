"""Retrieves the references of a text by a public query: the B best documents of a corpus, null ones where fewer are there.

Why this costs what `formulas.ADJACENCIES` says of ``retrieval``. The score of a document follows from the query and this
document alone, and the order of equal scores from public ids. So where one document becomes null the others keep their order:
if it was among the best B, exactly the next one comes in, or a null reference; if not, nothing changes. The B references differ
in one, which moves the mean of clipped differences by at most 2C/B. Where m documents become null it is at most m, and 2mC/B.

Which row of the model a reference gets is drawn at random, for each text anew (`InvisibleInk.stream`). So neighbours can be
paired, arrangement by arrangement, such that one row differs and all others stand where they stood. Each pair costs what was
said. The odds of a pair are the same for both neighbours, so to tell which one was drawn would cost nothing more, and not to
tell it does not either. Rows by rank would need rows that keep every bit in another place, and kernels promise none.

Nothing else may look at scores: there is no threshold, no number of references that follows from them, no text that is not
made. Every query looks at every document, so queries compose sequentially: the corpus pays for each (`CORPUS`), beforehand.

* `scores`: what scores a document, and what no scorer may look at.
* `queries`: public queries, and the place that they have in a task.
* `corpus`: retrieves, and has the corpus pay.
"""

from dptrain.inference.invisibleink.retrieval.corpus import ADJACENCY, ATTESTED, CORPUS, Corpus, Retrieval
from dptrain.inference.invisibleink.retrieval.queries import (
    MOST_QUERY,
    QUERY,
    checked,
    one_query,
    read_queries,
    words_of_queries,
)
from dptrain.inference.invisibleink.retrieval.scores import Lexical, Score, words_of

__all__ = [
    "ADJACENCY",
    "ATTESTED",
    "CORPUS",
    "MOST_QUERY",
    "QUERY",
    "Corpus",
    "Lexical",
    "Retrieval",
    "Score",
    "checked",
    "one_query",
    "read_queries",
    "words_of",
    "words_of_queries",
]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
