"""Honest exports of runs whose noise is correlated between steps, by each family, with rows that were released again."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from attest.descriptor import PUBLIC_BOUNDS
from attest.policy import MechanismRule
from attest.policy.mechanism import Bands, Buffers
from ledger.accountants.correlated import Banded, Dense, rule_of
from ledger.log import Ledger
from tests.vectors.conformance.honest import Life, PrunedRun, Run, due, ended, ordered, plain, rules
from tests.worlds.attested_ledgers import AttestedDriver, attested_admission
from tests.worlds.ledgers import SIGNER, START, signed_policy
from tests.worlds.retained_ledgers import ANNA, BEN, retaining_spec, vouched_for

ONE: Final = 1 << 20
BANDS: Final = MechanismRule("banded_toeplitz", Bands(bands=4, coefficients=(ONE, 524_288, 393_216, 327_680)))
NORMALIZED: Final = MechanismRule(
    "banded_toeplitz", Bands(bands=5, coefficients=(ONE, 700_001, -300_003, 200_005, 99_999), normalized=True)
)
INVERSE: Final = MechanismRule("banded_inverse", Bands(bands=3, coefficients=(ONE, -524_288, -131_073)))
BUFFERS: Final = MechanismRule(
    "buffered_toeplitz", Buffers(decays=(989_560_464_998, 549_755_813_889), scales=(3 << 37, 1 << 38))
)
COLUMNS: Final = rule_of(
    Banded([[1.0, 0.5, 0.25 - 0.03 * j] if j % 2 else [0.75, -0.25, 0.1 * j / 12] for j in range(12)])
)
PLAIN_COLUMNS: Final = rule_of(Banded([[1.0, 0.5 + 0.01 * j] for j in range(12)], normalized=False))
DENSE: Final = rule_of(
    Dense([[(1.2 - 0.9 * (j % 2)) / (1 + max(i - j, 0)) if j <= i else 0.0 for j in range(12)] for i in range(12)], share=1.0)
)
NARROW: Final = rule_of(Dense([[1.0 if i == j else 0.25 * (j == i - 3) for j in range(12)] for i in range(12)], share=1.0))
"""A dense matrix of which four diagonals hold something at most."""

_BANDS = b"".join(value.to_bytes(4, "big") for value in BANDS.parameters.coefficients)
BANDS_IN_FILE: Final = MechanismRule("banded_toeplitz", Bands(bands=4), hashlib.sha256(_BANDS).digest(), _BANDS)
INDEPENDENT: Final = MechanismRule("banded_toeplitz", Bands(bands=2, coefficients=(ONE, 0)))


def under(rule: MechanismRule, **fields: Any) -> dict[str, Any]:
    """Returns changes of the policy that make it sign correlated noise: turns every four steps and every three, of twelve."""
    return ordered("cyclic", **{"mechanism": rule, "redo_steps": 12, **fields})


def seven(driver: AttestedDriver) -> None:
    """Admits five contributions of one class and two of the other; the first and the last of the five have equal turns."""
    driver.admit(*(attested_admission(n) for n in (1, 2, 5, 6, 7)))
    driver.admit(attested_admission(3, "sensitive"), attested_admission(4, "sensitive", sigma_micro=4_000_000))


def drawn(driver: AttestedDriver, steps: int = 4, released: int | None = None) -> None:
    """Charges a window, and draws who is due in its steps or in the first of them alone; then it never settles."""
    run, caps = driver.ledger.state, driver.ledger.header.caps_enforced
    everybody = list(run.contributions.values())
    opened = driver.charge(steps)
    for step in range(opened.first_step, opened.first_step + (steps if released is None else released)):
        turns = [everybody[number] for number in due(driver, step)]
        held = [one.number for one in turns if not (caps and 0 < one.terms.bounds.max_occurrences <= one.occurrences)]
        driver.ledger.draw(step, held, now=driver.tick())
    if released is None:
        driver.ledger.settle(opened, steps, now=driver.tick())


def in_windows(*windows: int, people: Callable[[AttestedDriver], None] = seven) -> Life:
    """Returns a life of windows of so many steps."""

    def life(driver: AttestedDriver) -> None:
        people(driver)
        for steps in windows:
            drawn(driver, steps)
        ended(driver)

    return life


def resumed(driver: AttestedDriver) -> None:
    """A window ends after two of its steps; the attempt that follows does these again, and then the others."""
    seven(driver)
    drawn(driver)
    pin = driver.ledger.pin()
    drawn(driver, released=2)
    driver.ledger.resume(4, pin, now=driver.tick())
    drawn(driver)
    driver.epoch()
    drawn(driver)
    ended(driver)


def forked_twice(driver: AttestedDriver) -> None:
    """Two attempts begin at one checkpoint, and the third at one that the second left."""
    seven(driver)
    drawn(driver, 3)
    pin = driver.ledger.pin()
    drawn(driver)
    driver.ledger.resume(3, pin, now=driver.tick())
    drawn(driver, 2)
    later = driver.ledger.pin()
    drawn(driver, released=1)
    driver.ledger.resume(3, pin, now=driver.tick())
    drawn(driver)
    driver.ledger.resume(5, later, now=driver.tick())
    drawn(driver)
    drawn(driver, 3)
    ended(driver)


def never_drawn(driver: AttestedDriver) -> None:
    """A window is charged and nobody was drawn in it: its steps are none that were done before."""
    seven(driver)
    driver.charge(2)
    driver.ledger.resume(0, None, now=driver.tick())
    for _ in range(3):
        drawn(driver)
    ended(driver)


def gone_before(driver: AttestedDriver) -> None:
    """Three leave with their gradients in the releases, one before its first turn; then steps are done again."""
    seven(driver)
    driver.withdraw(6)
    drawn(driver)
    pin = driver.ledger.pin()
    drawn(driver)
    for n in (7, 1, 3):
        driver.withdraw(n)
    driver.epoch()
    driver.ledger.resume(4, pin, now=driver.tick())
    drawn(driver)
    driver.epoch()
    drawn(driver)
    driver.ledger.resume(8, driver.ledger.pin(), now=driver.tick())
    drawn(driver)
    ended(driver)


def with_caps(driver: AttestedDriver) -> None:
    """Some signed how often they take part at most; they pay for steps that are done again all the same."""
    driver.admit(attested_admission(1, max_occurrences=1), attested_admission(2, max_occurrences=3))
    driver.admit(attested_admission(3, "sensitive", max_occurrences=2))
    drawn(driver)
    pin = driver.ledger.pin()
    drawn(driver)
    driver.ledger.resume(4, pin, now=driver.tick())
    drawn(driver)
    drawn(driver)
    ended(driver)


def beside_a_public_class(driver: AttestedDriver) -> None:
    """A class of which nothing is promised takes turns too."""
    driver.admit(attested_admission(1, clip_micro=PUBLIC_BOUNDS.clip_micro, sigma_micro=PUBLIC_BOUNDS.sigma_micro))
    driver.admit(attested_admission(3, "sensitive"), attested_admission(4, "sensitive"))
    drawn(driver)
    driver.ledger.resume(0, None, now=driver.tick())
    for _ in range(3):
        drawn(driver)
    ended(driver)


KEPT: Final = {"max_epsilon_micro": 12_619_508, "max_delta_pico": 1_000_000}
"""The least limit that an open contribution keeps in a run of twelve steps, three of which may be done again."""

WIDE: Final = {"max_epsilon_micro": 17_000_000, "max_delta_pico": 1_000_000}
"""A limit that it keeps with a small run behind that one."""


def limited(driver: AttestedDriver) -> None:
    """Admits two that signed limits over all runs, and one of the other class."""
    driver.admit(attested_admission(1, **KEPT), attested_admission(2, **WIDE), attested_admission(3, "sensitive"))


def open_window(driver: AttestedDriver) -> None:
    """The second window is charged, and one of its steps drawn; nothing is closed."""
    seven(driver)
    drawn(driver)
    drawn(driver, released=1)


def pruned(place: Path, directory: Path, *, people: int, folded: bool = False, **changes: Any) -> AttestedDriver:
    """Three left, and the leaves of two of them are gone when steps are done again in which their gradients are.

    ``folded``: the run is closed then, and every ADMIT leaf goes.
    """
    driver = AttestedDriver(Ledger.create(place, retaining_spec(**changes), SIGNER, now=START), now=START)
    seven(driver)
    drawn(driver)
    pin = driver.ledger.pin()
    drawn(driver)
    for n in (7, 1):
        driver.withdraw(n)
    driver.epoch()
    drawn(driver)
    driver.withdraw(3)
    driver.epoch()
    driver.ledger.summarise(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    drawn(driver)
    driver.epoch()
    driver.ledger.prune()
    driver.ledger.resume(4, pin, now=driver.tick())
    for _ in range(2):
        drawn(driver)
    driver.epoch()
    if folded:
        driver.epoch()
        driver.ledger.summarise(now=driver.tick())
        drawn(driver)
        ended(driver)
        vouched_for(driver, ANNA, BEN)
        driver.ledger.prune(who_stays=True)
    return driver


def public_bounds() -> dict[str, Any]:
    """Returns changes of a class of the policy that make it public."""
    bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    return {"public": True, **bounds}


def classes(*changes: dict[str, Any]) -> dict[str, Any]:
    """Returns changes of the policy by which its two classes take turns every four steps and every three, and are others."""
    rates = (rule.sampling_rate for rule in signed_policy(**ordered("cyclic")).policy.classes)
    return rules(*({"sampling_rate": rate, **own} for rate, own in zip(rates, changes, strict=True)))


LASTING: Final = under(BANDS, steps=24, epoch_steps=4)
"""Changes of the policy of a run that is pruned while it goes on."""

RUNS: Final[dict[str, Run]] = {
    "bands": Run("noise correlated by a banded Toeplitz strategy, in a cyclic order", in_windows(4, 4, 4), under(BANDS)),
    "bands, normalized": Run(
        "columns of norm 1, and a horizon that ends within a period",
        in_windows(4, 4, 3),
        under(NORMALIZED, steps=11, epoch_steps=11),
    ),
    "banded inverse": Run("noise correlated by a strategy with a banded inverse", in_windows(4, 4, 4), under(INVERSE)),
    "buffers": Run("noise correlated by two buffers", in_windows(4, 4, 4), under(BUFFERS)),
    "bands of independent noise": Run(
        "a strategy that correlates nothing", in_windows(4, 4, 4), under(INDEPENDENT), like="bands"
    ),
    "bands, certified, by rdp": Run(
        "correlated noise at the level certified, by the accountant rdp, with divided clip norms",
        in_windows(4, 4, 4),
        under(BANDS, exactness="certified", accountant="rdp", noise_budgets=(1_000_000, 2_000_000, 500_000)),
    ),
    "bands by prv": Run(
        "the accountant prv of correlated noise", in_windows(4, 4), under(BANDS, accountant="prv"), like="bands"
    ),
    "bands, resumed": Run("two steps are done again", resumed, under(BANDS)),
    "bands, normalized, resumed": Run("two steps are done again, and no column is another's", resumed, under(NORMALIZED)),
    "banded inverse, resumed": Run("two steps are done again under a banded inverse", resumed, under(INVERSE)),
    "buffers, resumed": Run("two steps are done again under buffers", resumed, under(BUFFERS)),
    "bands, forked": Run("three attempts begin at two checkpoints", forked_twice, under(BANDS, redo_steps=20)),
    "bands, never drawn": Run("steps that were charged and not run are not done again", never_drawn, under(BANDS)),
    "bands, some gone": Run("who left pays for steps that are done again", gone_before, under(BANDS)),
    "buffers, some gone": Run("who left pays for all steps that are done again", gone_before, under(BUFFERS)),
    "bands, caps": Run("caps on turns, and steps done again", with_caps, under(BANDS), {"caps_enforced": True}),
    "bands, a public class": Run(
        "a public class beside a private one, in periods of their own",
        beside_a_public_class,
        under(BANDS, **classes(public_bounds(), {})),
    ),
    "bands, limits": Run(
        "limits over all runs, one of which the run as it is planned with three steps done again keeps by less than 1e-6",
        in_windows(4, 4, people=limited),
        under(BANDS, redo_steps=3),
    ),
    "bands, open": Run("a run that goes on", open_window, under(BANDS), like="bands, never drawn"),
    "bands in a file": Run(
        "coefficients that might stand in the policy lie in a leaf behind the header", resumed, under(BANDS_IN_FILE)
    ),
    "columns": Run("a column of its own for every step, scaled to norm 1", in_windows(4, 4, 4), under(COLUMNS)),
    "columns, resumed": Run("two steps are done again under columns of their own", resumed, under(PLAIN_COLUMNS)),
    "dense": Run("a dense strategy, some numbers of which are negative", in_windows(4, 4, 4), under(DENSE)),
    "dense, resumed": Run("two steps are done again under a dense strategy", resumed, under(DENSE)),
    "dense, narrow, some gone": Run("a dense strategy that ends before the matrix does", gone_before, under(NARROW)),
    "bands, pruned": PrunedRun(
        "who left and whose leaf is gone pays for steps that are done again",
        plain,
        LASTING,
        verdict="SUMMARISED",
        grow=pruned,
    ),
    "bands, everybody gone": PrunedRun(
        "likewise in a closed run of which every ADMIT leaf is gone",
        plain,
        LASTING,
        verdict="SUMMARISED",
        grow=partial(pruned, folded=True),
    ),
}
"""Honest exports by name."""
