"""Reads the parameters of a Gaussian release, under our names and those of the published page, and says what they are worth.

``preset = "published"`` is the parameter set of TenSafe's page "Differential Privacy: Post-Transformer Gaussian Mechanism":
epsilon 1.0, delta 1e-5, clip norm 1.0, sigma 4.8448, cap 10.0. The page computes sigma by the classical formula, at an
epsilon for which its theorem says nothing, and takes the clip norm for the sensitivity. What the noise is worth is computed
here instead: epsilon 1.610 for two inputs, 0.751 for one against none, at delta 1e-5. That is what an answer says, and what
it is charged.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from dptrain.errors import ConfigError
from dptrain.inference.gaussian import ADJACENCIES, Worth, releases_within, sensitivity_of, sigma_analytic, sigma_classical
from ledger.accountants.phases import check_delta, check_epsilon, is_real

PUBLISHED: Final = "published"

PRESETS: Final[Mapping[str, Mapping[str, float]]] = {
    PUBLISHED: {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0, "sigma": 4.8448, "cap": 10.0},
}

PAGE_NAMES: Final = {
    "dp_epsilon": "epsilon", "dp_delta": "delta", "dp_sensitivity": "clip", "dp_sigma": "sigma", "max_epsilon": "cap",
}  # fmt: skip
"""Our names of the page's parameters. Its sensitivity is the norm to which a state is clipped, so that is how it is read."""

CALIBRATIONS: Final = {"analytic": sigma_analytic, "classical": sigma_classical}

_NUMBERS: Final = ("epsilon", "delta", "clip", "sigma", "cap")
_DEFAULTS: Final[Mapping[str, Any]] = {"clip": 1.0, "delta": 1e-5, "adjacency": "replace_one", "calibration": "analytic"}


@dataclass(frozen=True)
class Parameters:
    """Holds the parameters of a Gaussian release; made by `parameters_of`, or by hand.

    Attributes:
        clip: L2 norm to which a state is clipped. delta: of every (epsilon, delta) that is said.
        sigma: standard deviation of the noise of one release.
        adjacency: what is charged, `dptrain.inference.gaussian.ADJACENCIES`.
        epsilon: what was asked of one release, where it was; what that release is worth is `worth`.
        cap: epsilon at delta that a privacy unit may spend in all, None where it is set elsewhere.
        preset: name of the set that these are, None if of none.
    """

    clip: float
    delta: float
    sigma: float
    adjacency: str
    epsilon: float | None = None
    cap: float | None = None
    preset: str | None = None

    def __post_init__(self) -> None:
        self.worth  # noqa: B018 - refuses what is out of range
        if self.cap is not None:
            check_epsilon(self.cap, "a cap")

    @cached_property
    def worth(self) -> Worth:
        """Returns what one release is worth."""
        return Worth(self.clip, self.sigma, self.delta, 1, self.adjacency)

    def within(self, adjacency: str | None = None) -> int | None:
        """Returns how many releases fixed beforehand the cap pays for, by exact composition; None without a cap.

        A filter, which also holds where a client decides as it goes, pays for fewer.
        """
        if self.cap is None:
            return None
        return releases_within(self.sigma, self.cap, self.delta, sensitivity_of(self.clip, adjacency or self.adjacency))

    @cached_property
    def statement(self) -> str:
        """Says at start what one release guarantees, beside what was asked for."""
        name = f"preset {self.preset}: " if self.preset else ""
        asked = f"; asked for: epsilon {self.epsilon:g}" if self.epsilon is not None else ""
        if self.cap is None:
            return f"{name}{self.worth.sentence}{asked}"
        most = " or ".join(f"{self.within(each)} ({each})" for each in ("replace_one", "replace_null"))
        return f"{name}{self.worth.sentence}{asked}; a cap of epsilon {self.cap:g} is reached after {most} releases"


def parameters_of(given: Mapping[str, Any]) -> Parameters:
    """Reads parameters from a table of a configuration, under our names or the page's.

    A preset fixes all of its numbers: naming one again is allowed, changing one is not. Without a preset, sigma is given, or
    calibrated from epsilon: ``calibration = "analytic"`` (default) or ``"classical"``. The sensitivity of the calibration is
    that of the adjacency, 2 clip norms under ``replace_one`` (default).

    Raises:
        ConfigError: code PRESET, no such set, or a number that is another one than the set's; PARAMETER, an unknown name, a
        number
            given under two names, or neither sigma nor epsilon.
        AccountantError: a number is out of range, or its theorem does not hold.
    """
    found = dict(_renamed(given))
    preset = found.pop("preset", None)
    known = {"adjacency", "calibration", *_NUMBERS}
    if unknown := sorted(found.keys() - known):
        names = ", ".join(sorted({"preset", *known, *PAGE_NAMES}))
        raise ConfigError("PARAMETER", f"a Gaussian release has no parameter {', '.join(unknown)}; there are {names}")
    for name in _NUMBERS:
        if name in found and not is_real(found[name]):
            raise ConfigError("PARAMETER", f"{name} is a number, got {found[name]!r}")
    if preset is not None:
        return _of_preset(preset, found)
    asked = {**_DEFAULTS, **found}
    adjacency, sigma, epsilon = asked["adjacency"], asked.get("sigma"), asked.get("epsilon")
    sensitivity = sensitivity_of(asked["clip"], adjacency)
    if sigma is None:
        if epsilon is None:
            raise ConfigError("PARAMETER", 'a Gaussian release needs epsilon, sigma, or preset = "published"; none is given')
        if asked["calibration"] not in CALIBRATIONS:
            names = " or ".join(CALIBRATIONS)
            raise ConfigError("PARAMETER", f"calibration is {names}, got {asked['calibration']!r}")
        sigma = CALIBRATIONS[asked["calibration"]](check_epsilon(epsilon), check_delta(asked["delta"]), sensitivity)
    elif "calibration" in found:
        raise ConfigError("PARAMETER", "sigma is given, so nothing is calibrated; leave out calibration, or sigma")
    cap = None if asked.get("cap") is None else float(asked["cap"])
    return Parameters(float(asked["clip"]), float(asked["delta"]), float(sigma), adjacency, epsilon, cap)


def _renamed(given: Mapping[str, Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        ours = PAGE_NAMES.get(name, name)
        if ours in found:
            raise ConfigError("PARAMETER", f"{ours} is given twice, once as {name}; give it once")
        found[ours] = value
    return found


def _of_preset(preset: Any, found: Mapping[str, Any]) -> Parameters:
    if preset not in PRESETS:
        raise ConfigError("PRESET", f"there is no preset {preset!r}; there is {', '.join(PRESETS)}")
    numbers = PRESETS[preset]
    for name, value in found.items():
        if name == "calibration":
            raise ConfigError("PRESET", f"preset {preset} fixes sigma: nothing is calibrated; leave out calibration, or preset")
        if name in numbers and not math.isclose(value, numbers[name], rel_tol=5e-5 if name == "sigma" else 0.0):
            raise ConfigError(
                "PRESET", f"preset {preset} has {name} {numbers[name]:g}, got {value!r}; leave out preset to choose it yourself"
            )
    adjacency = found.get("adjacency", _DEFAULTS["adjacency"])
    if adjacency not in ADJACENCIES:
        raise ConfigError("PARAMETER", f"an adjacency is one of {', '.join(ADJACENCIES)}, got {adjacency!r}")
    return Parameters(**numbers, adjacency=adjacency, preset=preset)
