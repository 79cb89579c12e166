"""Retrieves the references of a query from a corpus, which pays before one document is looked at."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.paying import BudgetMeter, PaidBefore, paid_for
from dptrain.inference.invisibleink.plan import Plan
from dptrain.inference.invisibleink.references import References
from dptrain.inference.invisibleink.retrieval.queries import QUERY, checked
from dptrain.inference.invisibleink.retrieval.scores import Lexical, Score
from ledger.budget import Unit
from ledger.budget.log import BudgetLog

if TYPE_CHECKING:
    from dptrain.inference.invisibleink.generator import InvisibleInk, Stream

ADJACENCY: Final = "retrieval"
"""Name of the adjacency under which retrieved references are charged."""

CORPUS: Final = Unit("corpus", "references")
"""Pays for every query. A log has one corpus: were its name taken from what is in it, a changed corpus would have new money."""

ATTESTED: Final = (
    "attested references have a rule by which each pays for the texts of its own batch; a query looks at all, and moves a text "
    "by twice as much. A retrieved text would need a rule of its own, which nobody signed: give references of your own"
)
"""Says why references that others signed for are not retrieved."""

_FINITE: Final = "give one that returns a finite number for every text, from query and text alone"


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
        self._lexical = self.score if type(self.score) is Lexical else None  # another class may score in a way of its own
        self._documents = tuple((one.id, one.text, self._read(one.text)) for one in references if one.text)

    def best(self, query: str, batch: int) -> tuple[str | None, ...]:
        """Returns the B best documents for a query, the best first, and None in the place of each that is missing.

        It is private what is returned: nothing but a text that was paid for may follow from it (`stream`).

        Raises:
            ConfigError: code BATCH; QUERY, as `checked`; SCORE, a score is not finite or could not be computed. That tells of
                one document, though in no word of it: a scorer that can end so keeps no promise. `Lexical` cannot.
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

        Guarantee: no document is looked at before T tokens were paid for, and a receipt says so. Where the model, or the test
        of its rows, then cannot begin, nothing of a document was released; what a scorer that fails has cost is spent.

        Args:
            meter: pays for one text, by `CORPUS`. labels: public words of the task, the query among them: this one.

        Raises:
            BudgetExhausted: the cap of the corpus would be passed; nothing is charged, and nothing was retrieved.
            NotPaid: code RECEIPT, the meter gave none of T tokens; nothing was retrieved.
            ConfigError: code ADJACENCY, the plan is of another; QUERY, the words have another query; as `best`. Else as
                `InvisibleInk.stream`.
        """
        plan = ink.plan
        if plan.adjacency != ADJACENCY:
            sentence = f"references are retrieved, and the plan is of adjacency {plan.adjacency}, which costs too little"
            raise ConfigError("ADJACENCY", f"{sentence}; give the plan adjacency={ADJACENCY!r}")
        if (labels or {}).get(QUERY, checked(query)) != query:
            sentence = f"the word {QUERY} of the prompts is another than the query that retrieves"
            raise ConfigError("QUERY", f"{sentence}; give one query for both")
        ink._prompts(labels)  # what is wrong with the query is told before it is paid for
        receipt = paid_for(meter, plan)
        return ink.stream(self.best(query, plan.batch), PaidBefore(meter, receipt), labels=labels)

    def _read(self, text: str) -> Any:
        return text if self._lexical is None else self._lexical.terms(text)

    def _scored(self, query: str, read: Any) -> float:
        try:
            found = float(self.score(query, read) if self._lexical is None else self._lexical.of_terms(query, read))
        except Exception as error:  # what it says may have words of the document
            raise ConfigError("SCORE", f"the scorer ended with {type(error).__name__} on a document; {_FINITE}") from None
        if not math.isfinite(found):
            raise ConfigError("SCORE", f"the score of a document is {found}; {_FINITE}")
        return found


@dataclass(frozen=True)
class Corpus:
    """Stands where a run of batches has its pool: retrieves for one query at a time, and has the corpus pay.

    Attributes:
        retrieval: of its documents. plan: the numbers. log: pays.
    """

    retrieval: Retrieval
    plan: Plan
    log: BudgetLog

    @property
    def references(self) -> References:
        """All documents."""
        return self.retrieval.references

    def go_on(self, places: Mapping[str | None, int]) -> None:
        """Does nothing: queries have names, and no turns."""

    def left(self) -> int | None:
        """Returns for how many queries the budget holds T tokens now; None without a cap."""
        self.log.refresh()
        left = self.log.state.left(CORPUS.kind, self.log.account(CORPUS), now=self.log.state.last_time)
        return None if left is None else max(0, left) // (self.plan.tokens * self.plan.nano_rho)

    def stream(
        self, ink: "InvisibleInk", query: str, *, labels: Mapping[str, str], request: bytes | None = None
    ) -> "Stream":
        """Pays for a query, retrieves, and returns the iterator of its tokens. Raises as `Retrieval.stream`."""
        return self.retrieval.stream(ink, query, BudgetMeter(self.log, (CORPUS,), request), labels=labels)
