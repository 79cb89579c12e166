"""Honest exports of runs whose draws are secret and come from groups in turn, with noise correlated in bands and without."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from attest.descriptor import PUBLIC_BOUNDS
from attest.policy import MechanismRule, NoisePhase, SamplingRule
from attest.policy.mechanism import Bands
from attest.policy.sampling import Groups
from ledger.log import Ledger
from tests.vectors.conformance.correlated import BANDS, ONE, public_bounds, seven
from tests.vectors.conformance.honest import Life, PrunedRun, Run, ended, plain, rules
from tests.worlds.attested_ledgers import AttestedDriver, attested_admission
from tests.worlds.ledgers import SIGNER, START
from tests.worlds.retained_ledgers import ANNA, BEN, retaining_spec, vouched_for

THREE: Final = MechanismRule("banded_toeplitz", Bands(bands=3, coefficients=(ONE, 524_288, 393_216)))
TWO_NORMALIZED: Final = MechanismRule("banded_toeplitz", Bands(bands=2, coefficients=(ONE, -600_001), normalized=True))
GAUSSIAN: Final = MechanismRule("gaussian")
RATES: Final = (Fraction(1, 2), Fraction(2, 5))
PHASES: Final = (NoisePhase(1, 2_000_000), NoisePhase(5, 1_250_000), NoisePhase(9, 1_000_000))


def turns_of(groups: int) -> SamplingRule:
    """Returns draws from so many groups in turn."""
    return SamplingRule("cyclic_poisson", Groups(groups=groups))


def under(rule: MechanismRule = GAUSSIAN, groups: int = 3, **fields: Any) -> dict[str, Any]:
    """Returns changes of the policy that make it sign secret draws from groups in turn, over twelve steps."""
    told = rules(*({"sampling_rate": rate} for rate in RATES)) | {"disclosure": "secret_draws", "sampling": turns_of(groups)}
    return told | {"mechanism": rule, "steps": 12, "redo_steps": 12, "epoch_steps": 12, **fields}


def in_windows(*windows: int, people: Callable[[AttestedDriver], None] = seven) -> Life:
    """Returns a life of windows of so many steps."""

    def life(driver: AttestedDriver) -> None:
        people(driver)
        for steps in windows:
            driver.steps(1, steps)
        ended(driver)

    return life


def resumed(driver: AttestedDriver) -> None:
    """A window never settles, and the attempt that follows does its steps again."""
    seven(driver)
    driver.steps(1)
    pin = driver.ledger.pin()
    driver.charge(4)
    driver.ledger.resume(4, pin, now=driver.tick())
    driver.steps(1)
    driver.epoch()
    driver.steps(1)
    ended(driver)


def stopped_after_a_resume(driver: AttestedDriver) -> None:
    """One step is done three times, in a run that ends before its horizon."""
    seven(driver)
    driver.steps(1)
    pin = driver.ledger.pin()
    for _ in range(2):
        driver.steps(1, 1)
        driver.ledger.resume(4, pin, now=driver.tick())
    driver.steps(1, 1)
    ended(driver)


def forked_twice(driver: AttestedDriver) -> None:
    """Two attempts begin at one checkpoint; of the two that follow one charges nothing, and the other begins at a later one."""
    seven(driver)
    driver.steps(1, 3)
    pin = driver.ledger.pin()
    driver.steps(1)
    driver.ledger.resume(3, pin, now=driver.tick())
    driver.steps(1, 2)
    later = driver.ledger.pin()
    driver.charge(3)
    driver.ledger.resume(3, pin, now=driver.tick())
    driver.steps(1)
    driver.ledger.resume(3, pin, now=driver.tick())
    driver.ledger.resume(5, later, now=driver.tick())
    driver.steps(1)
    driver.steps(1, 3)
    ended(driver)


def begun_again(driver: AttestedDriver) -> None:
    """Behind a fork the run begins again: no draw before it has a copy more, and those that have some are drawn once more."""
    seven(driver)
    driver.steps(1)
    pin = driver.ledger.pin()
    driver.steps(1)
    driver.ledger.resume(4, pin, now=driver.tick())
    driver.steps(1, 1)
    driver.withdraw(7)
    driver.epoch()
    driver.ledger.resume(0, None, now=driver.tick())
    driver.steps(1)
    driver.epoch()
    driver.steps(1)
    ended(driver)


def one_step_again(driver: AttestedDriver) -> None:
    """A step of the group that had fewest is done again: nobody has more steps, and everybody's draws have copies more."""
    seven(driver)
    driver.steps(1)
    driver.steps(1, 1)
    pin = driver.ledger.pin()
    driver.steps(1, 3)
    driver.epoch()
    driver.ledger.resume(5, pin, now=driver.tick())
    driver.steps(1, 1)
    ended(driver)


def gone_before(driver: AttestedDriver) -> None:
    """Three leave, one before the first charge and two before a fork behind which their draws have copies more."""
    seven(driver)
    driver.withdraw(6)
    driver.steps(1)
    pin = driver.ledger.pin()
    driver.steps(1)
    for n in (7, 3):
        driver.withdraw(n)
    driver.epoch()
    driver.ledger.resume(4, pin, now=driver.tick())
    driver.withdraw(1)
    driver.steps(1)
    driver.epoch()
    driver.steps(1)
    ended(driver)


def late(driver: AttestedDriver) -> None:
    """Two come behind the first window, into the groups that follow; steps before they came are done again."""
    driver.admit(attested_admission(1), attested_admission(3, "sensitive"))
    driver.steps(1)
    pin = driver.ledger.pin()
    driver.steps(1, 3)
    driver.admit(attested_admission(2), attested_admission(5, sigma_micro=1_700_000))
    driver.steps(1, 1)
    driver.ledger.resume(4, pin, now=driver.tick())
    driver.steps(2)
    ended(driver)


def with_caps(driver: AttestedDriver) -> None:
    """Some signed how often they take part at most, over two attempts."""
    driver.admit(attested_admission(1, max_occurrences=1), attested_admission(2, max_occurrences=3))
    driver.admit(attested_admission(3, "sensitive", max_occurrences=2))
    driver.steps(2)
    driver.ledger.resume(4, driver.ledger.pin(), now=driver.tick())
    driver.steps(2)
    ended(driver)


def beside_a_public_class(driver: AttestedDriver) -> None:
    """A class of which nothing is promised is drawn from by groups too."""
    driver.admit(attested_admission(1, clip_micro=PUBLIC_BOUNDS.clip_micro, sigma_micro=PUBLIC_BOUNDS.sigma_micro))
    driver.admit(attested_admission(3, "sensitive"), attested_admission(4, "sensitive"))
    driver.steps(1)
    driver.charge(4)
    driver.ledger.resume(4, driver.ledger.pin(), now=driver.tick())
    driver.steps(1)
    ended(driver)


def open_window(driver: AttestedDriver) -> None:
    """A step is done again, and a window is charged; nothing is closed."""
    stopped = driver.ledger
    seven(driver)
    driver.steps(1)
    driver.steps(1, 2)
    stopped.resume(4, stopped.pin(), now=driver.tick())
    driver.charge(2)


def pruned(place: Path, directory: Path, *, people: int, **changes: Any) -> AttestedDriver:
    """Three left, and the leaves of two of them are gone when their draws come to have copies more."""
    driver = AttestedDriver(Ledger.create(place, retaining_spec(**changes), SIGNER, now=START), now=START)
    seven(driver)
    driver.steps(1)
    pin = driver.ledger.pin()
    driver.steps(1)
    for n in (7, 1):
        driver.withdraw(n)
    driver.epoch()
    driver.steps(1)
    driver.withdraw(3)
    driver.epoch()
    driver.ledger.summarise(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.steps(1)
    driver.epoch()
    driver.ledger.prune()
    driver.ledger.resume(4, pin, now=driver.tick())
    driver.steps(2)
    driver.epoch()
    driver.epoch()
    driver.ledger.summarise(now=driver.tick())
    driver.steps(1)
    ended(driver)
    vouched_for(driver, ANNA, BEN)
    driver.ledger.prune(who_stays=True)
    return driver


def classes(*changes: dict[str, Any]) -> dict[str, Any]:
    """Returns changes of the policy by which its two classes have their rates, and are others."""
    return rules(*({"sampling_rate": rate, **own} for rate, own in zip(RATES, changes, strict=True)))


KEPT: Final = {"max_epsilon_micro": 17_961_852, "max_delta_pico": 1_000_000}
"""The least limit that an open contribution keeps in a run of twelve steps of bands, two of which may be done again."""

WIDE: Final = {"max_epsilon_micro": 25_000_000, "max_delta_pico": 1_000_000}
"""A limit that it keeps with a small run behind that one."""


def limited(driver: AttestedDriver) -> None:
    """Admits two that signed limits over all runs, and one of the other class."""
    driver.admit(attested_admission(1, **KEPT), attested_admission(2, **WIDE), attested_admission(3, "sensitive"))


RUNS: Final[dict[str, Run]] = {
    "groups": Run("secret draws from three groups in turn, each step with noise of its own", in_windows(4, 4, 4), under()),
    "groups, stopped early": Run(
        "a run that ends after five steps, two of which are of one group", in_windows(4, 1), under(), like="groups"
    ),
    "groups in phases": Run(
        "noise in three phases, in each of which another group has most steps",
        in_windows(4, 4, 4),
        under(noise_phases=PHASES),
        like="groups",
    ),
    "groups in phases, resumed": Run(
        "steps of a phase are done again", resumed, under(noise_phases=PHASES, redo_steps=4), like="groups"
    ),
    "more groups than steps": Run(
        "a horizon that ends before the last group has a turn", in_windows(4), under(groups=9, steps=8), like="groups"
    ),
    "groups, resumed": Run("a window never settles, and its steps are done again", resumed, under(), like="groups"),
    "groups, one step again": Run(
        "one step is done three times, in a run that ends before its horizon",
        stopped_after_a_resume,
        under(redo_steps=2),
        like="groups",
    ),
    "groups by rdp": Run("the accountant rdp of draws from groups", in_windows(4, 4), under(accountant="rdp"), like="groups"),
    "groups, late": Run("who comes later is of the groups that follow", late, under(), like="groups"),
    "groups and bands": Run("noise correlated in as many bands as there are groups", in_windows(4, 4, 4), under(THREE)),
    "groups and bands, normalized": Run(
        "fewer bands than groups, and columns of norm 1",
        in_windows(4, 4, 3),
        under(TWO_NORMALIZED, 4, steps=11, epoch_steps=11),
        like="groups and bands",
    ),
    "groups and four bands": Run(
        "four bands and five groups, with divided clip norms, at the level certified",
        forked_twice,
        under(BANDS, 5, exactness="certified", noise_budgets=(1_000_000, 2_000_000, 500_000)),
        like="groups and bands",
    ),
    "groups and bands, resumed": Run(
        "draws before the steps that are done again have a copy more", resumed, under(THREE), like="groups and bands"
    ),
    "groups and bands, resumed, by rdp": Run(
        "likewise by the accountant rdp", resumed, under(THREE, accountant="rdp"), like="groups and bands"
    ),
    "groups and bands, resumed, by prv": Run(
        "likewise by the accountant prv", resumed, under(THREE, accountant="prv"), like="groups and bands"
    ),
    "groups and bands, forked": Run(
        "three attempts charge steps behind two checkpoints, and one charges nothing",
        forked_twice,
        under(THREE, redo_steps=20),
        like="groups and bands",
    ),
    "groups and bands, begun again": Run(
        "the run begins again behind a fork, and draws that have copies are done again",
        begun_again,
        under(THREE, redo_steps=20),
        like="groups and bands",
    ),
    "groups and bands, one step again": Run(
        "nobody has more steps, and everybody's draws have copies more", one_step_again, under(THREE), like="groups and bands"
    ),
    "groups and bands, some gone": Run(
        "who left before a fork has a row again behind it", gone_before, under(THREE), like="groups and bands"
    ),
    "groups and bands, late": Run(
        "who comes behind the steps that are done again has no more copies than draws",
        late,
        under(THREE),
        like="groups and bands",
    ),
    "groups and bands, caps": Run(
        "caps on occurrences, of draws that have copies",
        with_caps,
        under(THREE),
        {"caps_enforced": True},
        like="groups and bands",
    ),
    "groups and bands, a public class": Run(
        "a public class beside a private one",
        beside_a_public_class,
        under(THREE, **classes(public_bounds(), {})),
        like="groups and bands",
    ),
    "groups and bands, limits": Run(
        "limits over all runs, one of which the run as it is planned with two steps done again keeps by less than 1e-6",
        in_windows(4, 4, people=limited),
        under(THREE, redo_steps=2),
        like="groups and bands",
    ),
    "groups and bands, open": Run("a run that goes on", open_window, under(THREE), like="groups and bands"),
    "groups and bands, everybody gone": PrunedRun(
        "who left spends more, and every ADMIT leaf of the closed run is gone",
        plain,
        under(THREE, steps=24, epoch_steps=4),
        verdict="SUMMARISED",
        grow=pruned,
    ),
}
"""Honest exports by name."""
