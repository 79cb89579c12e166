"""Honest exports of runs that count earlier runs, and all honest exports by name."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.accountants import to_micro_up
from ledger.audit.verify import earlier_run
from ledger.budget.audit.given import earlier_texts
from ledger.leaves.header import COMPROMISED, SPENT
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.replay.contributions import AdmitSpec
from ledger.replay.earlier_runs import SpentRegistry
from tests.vectors.conformance import (
    by_prv,
    consenting,
    correlated,
    geometries,
    groups,
    honest,
    narrowed,
    retained,
    withdrawing,
)
from tests.vectors.conformance.beside import LIVES, TEXTS_SIGNER, budget_files, signed_for_both
from tests.vectors.conformance.honest import NOW, Pins, Run, ended, plain
from tests.vectors.conformance.written import Files, put
from tests.worlds.attested_ledgers import AttestedDriver, attested_admission, attested_header, attested_policy
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START

SECOND: Final = NoteSigner("ledger.example/run2", OTHER_KEY)
THIRD: Final = NoteSigner("ledger.example/run3", Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35))))
LATER: Final = Pins(log=(SIGNER.vkey, SECOND.vkey, THIRD.vkey))
"""What the reader of several runs brings: the keys of all their ledgers."""

BESIDE: Final = Pins(log=(*LATER.log, TEXTS_SIGNER.vkey))
"""What the reader of runs and of a budget beside them brings."""

LaterLife = Callable[[AttestedDriver, SpentRegistry], None]


@dataclass(frozen=True)
class LaterRun(Run):
    """A run that counts others.

    Attributes:
        counts: the honest exports that it counts, by name.
        lost: those of them whose key was lost.
        texts: the budgets of texts that it counts, by name.
        later: what happens behind the header, in place of `life`.
    """

    pins: Pins = LATER
    signer: NoteSigner = SECOND
    start: int = START + 1000
    counts: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    later: LaterLife = lambda driver, registry: None

    def files(self) -> Files:
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder)
            runs = [self._counted(base / name, name) for name in self.counts]
            texts = [earlier_texts(put(budget_files(name), base / name), BESIDE.log, now=NOW) for name in self.texts]
            registry = SpentRegistry(runs, texts)
            header = {"previous": registry.previous} | self.header
            spec = attested_header(attested_policy(**self.policy), **header)
            with Ledger.create(base / "ledger.db", spec, self.signer, now=self.start) as ledger:
                self.later(AttestedDriver(ledger, now=self.start), registry)
                return self._exported(ledger, base)

    def _counted(self, place: Path, name: str) -> Any:
        reason = COMPROMISED if name in self.lost else SPENT
        return earlier_run(put(files_of(name), place), BESIDE.log, reason=reason, now=NOW)


def carrying(registry: SpentRegistry, n: int, class_name: str = "open", less: int = 0, **changes: Any) -> AdmitSpec:
    """Returns an admission that says what its contribution spent before, or some 1e-6 less."""
    spec = attested_admission(n, class_name, **changes)
    carried = to_micro_up(registry.carried(spec.descriptor_hash, 1e-6, spec))
    return replace(spec, carried_micro=max(0, carried - less))


def going_on(*who: tuple[int, str], windows: int = 1, less: int = 0, **changes: Any) -> LaterLife:
    """Returns a run of one window of contributions of whom some took part before, as what they carry says."""

    def life(driver: AttestedDriver, registry: SpentRegistry) -> None:
        driver.admit(*(carrying(registry, n, name, less, **changes) for n, name in who))
        driver.steps(windows)
        ended(driver)

    return life


def in_turns(*who: tuple[int, str], less: int = 0) -> LaterLife:
    """Returns a run of correlated noise, of contributions of whom some took part before."""

    def life(driver: AttestedDriver, registry: SpentRegistry) -> None:
        driver.admit(*(carrying(registry, n, name, less) for n, name in who))
        for _ in range(3):
            correlated.drawn(driver)
        ended(driver)

    return life


PEOPLE: Final = (1, "open"), (2, "open"), (3, "sensitive"), (5, "open")
"""Three of those of the run `poisson`, and one who is new."""


def once_more(driver: AttestedDriver, registry: SpentRegistry) -> None:
    """Contribution 2 was withdrawn in an earlier run, and so is here, before the first charge."""
    driver.admit(carrying(registry, 1), carrying(registry, 2), carrying(registry, 5))
    driver.ledger.withdraw_all(registry.withdrawn_among(driver.ledger.state.contributions), now=driver.tick())
    driver.steps(1)
    ended(driver)


def limited(driver: AttestedDriver, registry: SpentRegistry) -> None:
    """The contribution with a limit over all runs takes part again."""
    signed = {"max_epsilon_micro": 50_000_000, "max_delta_pico": 1_000_000}
    driver.admit(carrying(registry, 1, **signed), carrying(registry, 2))
    driver.steps(1)
    ended(driver)


def capped(driver: AttestedDriver, registry: SpentRegistry) -> None:
    """Those whose cap made what they spent before less."""
    driver.admit(carrying(registry, 1, max_occurrences=1), carrying(registry, 2, max_occurrences=3), carrying(registry, 4))
    driver.steps(1)
    ended(driver)


def folded(driver: AttestedDriver, registry: SpentRegistry) -> None:
    """Contribution 2 stayed in a run that says of nobody any more who stayed; 10 left it, and 70 and 72 are new."""
    driver.admit(*(carrying(registry, n) for n in (2, 10, 70)), carrying(registry, 72, "sensitive"))
    driver.ledger.withdraw_all(registry.withdrawn_among(driver.ledger.state.contributions), now=driver.tick())
    driver.steps(1)
    ended(driver)


def limit_of(micro: int) -> dict[str, int]:
    """Returns what a contribution signs that limits its epsilon over all runs at delta 1e-6."""
    return {"max_epsilon_micro": micro, "max_delta_pico": 1_000_000}


TIGHT, WIDE = limit_of(1_800_000), limit_of(2_500_000)
"""A limit that a run as it is planned keeps within alone, and one that it keeps within together with a run before it."""

KEPT, PASSED = limit_of(1_961_500), limit_of(1_961_400)
"""A limit that a second run as it is planned keeps within by the filter over runs, and one that it does not."""


ALLOWED, PASSED_BY_TEXTS = 3_270_900, 3_270_870
"""A limit of a class that a run as it is planned keeps within, together with all texts that the rule of the budget allows, and
one that it does not."""


def beside_texts(driver: AttestedDriver, registry: SpentRegistry) -> None:
    """Contribution 2 was withdrawn in a budget, and is here before the first charge; 5 was never admitted there."""
    driver.admit(*(carrying(registry, n, **signed_for_both()) for n in (1, 2, 5)), carrying(registry, 3, "sensitive"))
    driver.ledger.withdraw_all(registry.withdrawn_among(driver.ledger.state.contributions), now=driver.tick())
    driver.steps(1)
    ended(driver)


def small_limits(driver: AttestedDriver) -> None:
    """Two signed limits that this run keeps within; with a second one like it only one of them is kept."""
    driver.admit(attested_admission(1, **KEPT), attested_admission(2, **PASSED))
    driver.steps(1)
    ended(driver)


def ended_again(driver: AttestedDriver, registry: SpentRegistry) -> None:
    """One whose attestation ended in the run before has gone, the others go on."""
    driver.admit(carrying(registry, 1), carrying(registry, 3, "sensitive"))
    driver.steps(1)
    ended(driver)


RUNS: Final[dict[str, Run]] = (
    honest.RUNS
    | by_prv.RUNS
    | correlated.RUNS
    | groups.RUNS
    | geometries.RUNS
    | narrowed.RUNS
    | consenting.RUNS
    | withdrawing.RUNS
    | retained.RUNS
    | {
        "later run": LaterRun(
            "a run that counts an earlier one", plain, counts=("poisson",), earlier=("poisson",), later=going_on(*PEOPLE)
        ),
        "later run, told": LaterRun(
            "nobody gives the export of the run that is counted",
            plain,
            counts=("poisson",),
            later=going_on(*PEOPLE),
            of="later run",
        ),
        "earlier run, the later given": Run(
            "a run with the export of a later one, which counts it", plain, pins=LATER, earlier=("later run",), of="poisson"
        ),
        "third run": LaterRun(
            "a run that counts two, of which one counts the other",
            plain,
            counts=("poisson", "later run"),
            earlier=("later run", "poisson"),
            later=going_on(*PEOPLE),
            signer=THIRD,
            start=START + 2000,
        ),
        "later run by rdp": LaterRun(
            "a run of the accountant rdp counts one of pld",
            plain,
            {"accountant": "rdp"},
            counts=("poisson",),
            earlier=("poisson",),
            later=going_on(*PEOPLE),
        ),
        "third run, two accountants": LaterRun(
            "a run counts one of pld and one of rdp",
            plain,
            counts=("poisson", "later run by rdp"),
            earlier=("poisson", "later run by rdp"),
            later=going_on(*PEOPLE),
            signer=THIRD,
            start=START + 2000,
        ),
        "public draws counted": LaterRun(
            "a run of secret draws counts one of public draws",
            plain,
            counts=("public draws",),
            earlier=("public draws",),
            later=going_on(*PEOPLE),
        ),
        "caps counted": LaterRun(
            "a run counts one in which caps made epsilon smaller",
            plain,
            counts=("caps that bind",),
            earlier=("caps that bind",),
            later=capped,
        ),
        "phases counted": LaterRun(
            "a run of one level of noise counts one of three",
            plain,
            counts=("phases",),
            earlier=("phases",),
            later=going_on(*PEOPLE),
        ),
        "lost run counted": LaterRun(
            "the key of an earlier run was lost: its whole plan is counted, for whoever its classes could have",
            plain,
            counts=("open",),
            earlier=("open",),
            lost=("open",),
            later=going_on(*PEOPLE),
        ),
        "third run, one lost": LaterRun(
            "a run counts one whose key was lost, and one that counts it as lost too",
            plain,
            counts=("open", "lost run counted"),
            earlier=("open", "lost run counted"),
            lost=("open",),
            later=going_on(*PEOPLE),
            signer=THIRD,
            start=START + 2000,
        ),
        "withdrawn before": LaterRun(
            "who withdrew from an earlier run is withdrawn before the first charge",
            plain,
            counts=("withdrawal",),
            earlier=("withdrawal",),
            later=once_more,
        ),
        "limit over runs": LaterRun(
            "a limit of epsilon over two runs", plain, counts=("limit",), earlier=("limit",), later=limited
        ),
        "limit beside a closed run": LaterRun(
            "a limit over all runs; the export of one from before that shares nobody is given",
            plain,
            earlier=("strangers",),
            of="limit",
        ),
        "limit beside an open run": LaterRun(
            "the other export is of a run that is not closed: limits may still be passed with it",
            plain,
            earlier=("open strangers",),
            of="limit",
        ),
        "limit beside a told run": LaterRun(
            "the other export is of a run whose admissions are its operator's word",
            plain,
            earlier=("told strangers",),
            of="limit",
        ),
        "limit before a later run": LaterRun(
            "the other export is of a later run that shares nobody: nothing is held against it",
            plain,
            earlier=("newcomer after a pruned run",),
            of="limit",
        ),
        "limit before a run that counts nothing": LaterRun(
            "another export beside is of a later run that shares contributions and does not count this one",
            plain,
            earlier=("strangers", "counts nothing"),
            of="limit",
        ),
        "counts nothing": LaterRun(
            "a run of one of those of the run limit that nothing is counted in",
            plain,
            later=going_on((2, "open")),
            signer=THIRD,
        ),
        "open strangers": LaterRun(
            "a run of others that is not closed",
            plain,
            later=lambda driver, _: driver.admit(attested_admission(6), attested_admission(8)),
            signer=THIRD,
            start=START - 100,
            like="strangers",
        ),
        "told strangers": LaterRun(
            "a run of others, without what they signed",
            plain,
            later=going_on((6, "open"), (8, "open")),
            signer=THIRD,
            start=START - 100,
            beside=(False, False),
            verdict="TOLD",
            like="strangers",
        ),
        "texts counted": LaterRun(
            "a run counts a budget by which its contributions make texts: with all that its rule allows, for all of a class",
            plain,
            pins=BESIDE,
            texts=("a budget",),
            earlier=("a budget",),
            later=beside_texts,
            like="later run",
        ),
        "texts counted, told": LaterRun(
            "nobody gives the export of the budget that is counted",
            plain,
            pins=BESIDE,
            texts=("a budget",),
            later=beside_texts,
            of="texts counted",
        ),
        "texts counted, which grew": LaterRun(
            "the export of the budget that is counted has more leaves by now",
            plain,
            pins=BESIDE,
            texts=("a budget, before",),
            earlier=("a budget",),
            later=going_on((1, "open"), (3, "sensitive"), **signed_for_both()),
            like="texts counted",
        ),
        "texts and a run counted": LaterRun(
            "a run counts one that counted a budget, and the budget",
            plain,
            pins=BESIDE,
            counts=("texts counted",),
            texts=("a budget",),
            earlier=("texts counted", "a budget"),
            later=going_on((1, "open"), (5, "open"), **signed_for_both()),
            signer=THIRD,
            start=START + 2000,
            like="texts counted",
        ),
        "texts and a run apart": LaterRun(
            "a run counts another one and a budget, neither of which counts the other",
            plain,
            pins=BESIDE,
            counts=("poisson",),
            texts=("a budget",),
            earlier=("poisson", "a budget"),
            later=going_on((5, "open")),
            like="texts counted",
        ),
        "texts within a limit": LaterRun(
            "a limit of a class over a run, as it is planned, and all texts that a rule allows",
            plain,
            honest.rules({"max_epsilon_total_micro": ALLOWED}, {}),
            pins=BESIDE,
            texts=("a budget",),
            earlier=("a budget",),
            later=going_on((1, "open"), **signed_for_both()),
            like="texts counted",
        ),
        "texts that may yet be made": LaterRun(
            "a limit over all runs; a budget that is not counted names nobody of this run, and may yet",
            plain,
            pins=BESIDE,
            earlier=("a budget of nobody yet",),
            of="limit",
        ),
        "small limits": Run("limits over all runs of which one uses more than half", small_limits),
        "small limit kept": LaterRun(
            "a second run whose whole plan a limit over both allows",
            plain,
            counts=("small limits",),
            earlier=("small limits",),
            later=going_on((1, "open"), **KEPT),
        ),
        "class limit": Run(
            "the policy limits the epsilon of a class over all runs",
            plain,
            honest.rules({"max_epsilon_total_micro": 2_250_000}, {}),
        ),
        "class limit counted": LaterRun(
            "a run whose policy states no limit keeps within that of an earlier one",
            plain,
            counts=("class limit",),
            earlier=("class limit",),
            later=going_on(*PEOPLE),
        ),
        "expiry counted": LaterRun(
            "a run counts one in which an attestation ended",
            plain,
            counts=("expiry",),
            earlier=("expiry",),
            later=ended_again,
        ),
        "clock set back, counted": LaterRun(
            "a run counts one whose clock was set back",
            plain,
            counts=("clock set back",),
            earlier=("clock set back",),
            later=ended_again,
            start=START + 2,
        ),
        "correlated noise counted": LaterRun(
            "a run of secret draws counts one of correlated noise, of which steps were done again",
            plain,
            counts=("bands, resumed",),
            earlier=("bands, resumed",),
            later=going_on(*PEOPLE),
        ),
        "correlated noise over public draws": LaterRun(
            "a run of correlated noise counts one of public draws: their losses are of one family",
            plain,
            correlated.under(correlated.BUFFERS),
            counts=("public draws",),
            earlier=("public draws",),
            later=in_turns(*PEOPLE),
        ),
        "third run, correlated noise": LaterRun(
            "a run counts one of correlated noise and one of public draws, of which one counts the other",
            plain,
            counts=("public draws", "correlated noise over public draws"),
            earlier=("correlated noise over public draws", "public draws"),
            later=going_on(*PEOPLE),
            signer=THIRD,
            start=START + 2000,
        ),
        "lost run of correlated noise": LaterRun(
            "of a run of correlated noise whose key was lost its whole plan is counted, with all that may be done again",
            plain,
            counts=("bands, open",),
            earlier=("bands, open",),
            lost=("bands, open",),
            later=going_on(*PEOPLE),
        ),
        "limit over correlated noise": LaterRun(
            "a limit over two runs, of which the first has correlated noise",
            plain,
            counts=("bands, limits",),
            earlier=("bands, limits",),
            later=going_on((2, "open"), **correlated.WIDE),
        ),
        "groups counted": LaterRun(
            "a run counts one of draws from groups whose draws have copies",
            plain,
            counts=("groups and bands, resumed",),
            earlier=("groups and bands, resumed",),
            later=going_on(*PEOPLE),
        ),
        "groups over turns": LaterRun(
            "a run of draws from groups counts one in which correlated noise was released again",
            plain,
            groups.under(groups.THREE),
            counts=("bands, resumed",),
            earlier=("bands, resumed",),
            later=going_on(*PEOPLE, windows=2),
        ),
        "lost run of groups": LaterRun(
            "of a run of draws from groups whose key was lost its whole plan is counted, with all copies that it may come to",
            plain,
            counts=("groups and bands, open",),
            earlier=("groups and bands, open",),
            lost=("groups and bands, open",),
            later=going_on(*PEOPLE),
        ),
        "limit over groups": LaterRun(
            "a limit over two runs, of which the first draws from groups",
            plain,
            counts=("groups and bands, limits",),
            earlier=("groups and bands, limits",),
            later=going_on((2, "open"), **groups.WIDE),
        ),
        "runs apart": LaterRun(
            "a run counts two that share contributions, of which neither counts the other",
            plain,
            counts=("poisson", "beside it"),
            earlier=("poisson", "beside it"),
            later=going_on(*PEOPLE),
            signer=THIRD,
            start=START + 10_000,
        ),
        "beside it": LaterRun(
            "a run of those of the run poisson that nothing is counted in",
            plain,
            later=lambda driver, _: honest.plain(driver),
            start=START + 9000,
        ),
        "a stranger given": LaterRun(
            "the export of a run that shares nobody is given besides",
            plain,
            earlier=("poisson", "strangers"),
            of="later run",
        ),
        "strangers": LaterRun(
            "a run of others", plain, later=going_on((6, "open"), (8, "open")), signer=THIRD, start=START - 100
        ),
        "pruned run counted": LaterRun(
            "an earlier run of which nothing says any more who stayed",
            plain,
            counts=("a member withdrawn",),
            earlier=("a member withdrawn",),
            later=folded,
            verdict="SUMMARISED",
        ),
        "newcomer after a pruned run": LaterRun(
            "a newcomer carries nothing of an earlier run of which nothing says any more who stayed: that is told",
            plain,
            counts=("a member withdrawn",),
            earlier=("a member withdrawn",),
            later=going_on((70, "open"), less=10**9),
            verdict="SUMMARISED",
        ),
        "limit after a pruned run": LaterRun(
            "a limit over runs that may not hold for who stayed in an earlier run, of whom nothing says who they are",
            plain,
            counts=("a member withdrawn",),
            earlier=("a member withdrawn",),
            later=going_on((70, "open"), **TIGHT),
            verdict="SUMMARISED",
        ),
        "wide limit after a pruned run": LaterRun(
            "a limit over runs that holds whoever stayed in an earlier run of which nothing says that any more",
            plain,
            counts=("a member withdrawn",),
            earlier=("a member withdrawn",),
            later=going_on((70, "open"), **WIDE),
            verdict="SUMMARISED",
            like="limit after a pruned run",
        ),
        "stranger to a pruned run": LaterRun(
            "an earlier run of which nothing says any more who stayed is given, and not cited: who spent there is told",
            plain,
            earlier=("a member withdrawn",),
            later=going_on((70, "open"), (71, "open")),
            start=START + 9000,
        ),
    }
)
"""Honest exports by name."""


@cache
def files_of(name: str) -> Files:
    """Returns the files of an honest export, or of a budget."""
    return budget_files(name) if name in LIVES else RUNS[name].files()
