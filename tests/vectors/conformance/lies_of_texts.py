"""Lies about budgets by which the contributions of runs make texts, and that runs count."""

from typing import Any, Final

from ledger.note import NoteSigner
from tests.vectors.conformance.beside import signed_for_both
from tests.vectors.conformance.honest import ended, rules
from tests.vectors.conformance.lies import Lie
from tests.vectors.conformance.lying import flipped
from tests.vectors.conformance.replaced import another, cited
from tests.vectors.conformance.several import PASSED_BY_TEXTS, SECOND, LaterLife, carrying, going_on
from tests.worlds.attested_ledgers import AttestedDriver


def beside_texts_but(less: int) -> LaterLife:
    """Returns the life of the run `texts counted`, but for what contributions are said to have spent before."""

    def life(driver: AttestedDriver, registry: Any) -> None:
        people = [(n, "open", signed_for_both()) for n in (1, 2, 5)] + [(3, "sensitive", {})]
        driver.admit(*(carrying(registry, n, name, less, **signed) for n, name, signed in people))
        driver.ledger.withdraw_all(registry.withdrawn_among(driver.ledger.state.contributions), now=driver.tick())
        driver.steps(1)
        ended(driver)

    return life


OF_ANOTHER: Final = NoteSigner("ledger.example/others", SECOND.private_key)


LIES: Final[dict[str, Lie]] = {
    "texts not carried": Lie(
        "contributions of a class that makes texts are said to have spent 4e-6 less than these may cost",
        "texts counted",
        another("texts counted", later=beside_texts_but(less=4)),
        "CARRIED",
    ),
    "texts not carried of who was never admitted there": Lie(
        "who was not admitted to texts is said to have spent nothing, and may be yet",
        "texts counted",
        another("texts counted", later=going_on((5, "open"), less=10**9)),
        "CARRIED",
    ),
    "texts beyond a limit": Lie(
        "a run and all texts that a rule allows pass the limit of a class by little",
        "texts within a limit",
        another("texts within a limit", policy=rules({"max_epsilon_total_micro": PASSED_BY_TEXTS}, {})),
        "BUDGET",
    ),
    "a budget not given": Lie(
        "a run counts a budget, and its export is not given", "texts and a run counted", dict, "EARLIER_MISSING",
        earlier=("texts counted",),
    ),
    "another history of a budget": Lie(
        "the export of a budget is of another history than was counted", "texts counted", dict, "EARLIER_FORKED",
        earlier=("a budget, another history",),
    ),
    "two histories of a budget": Lie(
        "two histories of a budget are given, of which one is counted", "texts counted", dict, "EARLIER_FORKED",
        earlier=("a budget", "a budget, another history"),
    ),
    "more leaves of a budget cited than given": Lie(
        "the export of a budget is shorter than it was counted", "texts counted", dict, "EARLIER_BEHIND",
        earlier=("a budget, before",),
    ),
    "a budget that is wrong": Lie(
        "a byte of a leaf of a budget is another", "texts counted", dict, "EARLIER",
        earlier=(("a budget", flipped("tile/entries/", -70)),),
    ),
    "a budget cited under another name": Lie(
        "a budget is counted under another name and key",
        "texts counted",
        cited("texts counted", origin=OF_ANOTHER.name, log_vkey=OF_ANOTHER.vkey),
        "EARLIER_NAME",
    ),
    "a budget left out": Lie(
        "a run of those who make texts counts nothing",
        "texts counted",
        another("texts counted", texts=(), later=going_on((1, "open"), **signed_for_both())),
        "EARLIER_LEFT_OUT",
    ),
    "a budget that was counted left out": Lie(
        "a run counts one that counted a budget, and not the budget",
        "texts and a run counted",
        another("texts and a run counted", texts=()),
        "EARLIER_UNCITED",
    ),
    "drawn though withdrawn from texts": Lie(
        "who was withdrawn in a budget takes part",
        "texts counted",
        another("texts counted", later=going_on((2, "open"), **signed_for_both())),
        "EARLIER_WITHDRAWN",
    ),
}
