"""Keeps the accountant `prv`: privacy random variables composed by FFT (Gopi, Lee and Wutschitz 2021), in a bracket of `pld`.

The value of record is that of opacus's PRVAccountant, which needs torch; so it is plugged in from outside (`register`). Its
error bars are 0.01 in epsilon, and what it gives lies in [pld, pld + 0.02]; whatever does not (the domain it chooses can be too
small, or too large to compute on) is replaced by the top of that bracket, as is everything where nothing is plugged in. So an
auditor without torch can check a recorded value: it is a bound if not below `pld`, and honest if at most 0.02 above.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from ledger.accountants.phases import Counted, Phase
from ledger.accountants.pld import composed as pld
from ledger.accountants.table import RELEASE, Accountant, Recorder

WIDTH: Final = 0.02
"""A recorded value of `prv` lies at most so much above `pld`'s."""

ALONE: Final = f"pld+{WIDTH} rounding=up-1e-6"
"""Account in a header where nothing was plugged in."""

SOURCES: Final = {"opacus": "eps_error=0.01 delta_error=delta*0.001 points<=4194304"}
"""Libraries that may be plugged in, with their parameters: a header that names another one, or others, is refused."""

Source = Callable[[Sequence[Phase], float], float | None]
"""Takes phases in normal form and delta; None where it has no value."""

About = Callable[[], tuple[str, str, str] | None]
"""Returns (library, version, parameters) of a source, None if its library is not installed."""

_plugged: list[tuple[Source, About]] = []


def register(source: Source, about: About) -> None:
    """Plugs in what computes values, in the place of what was plugged in before."""
    _plugged[:] = [(source, about)]


def epsilon(phases: Sequence[Phase], delta: float, pld_value: float) -> float:
    """Returns the value of record of `prv`, given that of `pld` for the same phases.

    Guarantee: Never below ``pld_value``, which is an upper bound by itself; at most `WIDTH` above. Where nothing is sampled, it
    is ``pld_value``, which then is exact.
    """
    if all(p.sampling_rate == 1.0 or p.noise_multiplier < pld.UNSAMPLED_BELOW for p in phases):
        return pld_value
    found = _plugged[0][0](phases, delta) if _plugged else None
    if found is None or not pld_value <= found <= pld_value + WIDTH:
        return pld_value + WIDTH
    return found


class Prv(Accountant):
    """Takes what is plugged in, within the bracket; counts public occurrences as `pld` does."""

    name: ClassVar[str] = "prv"
    held_to: ClassVar[str] = "pld"

    def sampled(self, phases: tuple[Phase, ...], delta: float, family: str, *, replace: bool = False) -> float:
        return epsilon(phases, delta, pld.epsilon_of_phases(phases, delta))

    def sampled_over(
        self, runs: tuple[tuple[Phase, ...], ...], delta: float, family: str, *, replace: bool = False
    ) -> tuple[float, ...]:
        """Shares what `pld` composes; what is plugged in has a grid of its own for every run."""
        values = pld.epsilon_of_runs(runs, delta, False)
        return tuple(epsilon(run, delta, value) for run, value in zip(runs, values, strict=True))

    def counted(self, participation: Counted, delta: float, family: str) -> float:
        return pld.epsilon_of_counted(participation, delta)

    def describe(self) -> tuple[str, str, str]:
        about = _plugged[0][1]() if _plugged else None
        if about is None:
            return "dptrain", pld.KERNEL, ALONE
        library, version, parameters = about
        return library, f"{version}+{pld.KERNEL}", within_bracket(parameters)

    def recorders(self) -> tuple[Recorder, ...]:
        """Returns the top of the bracket, and each source that may be plugged in."""
        plugged = (Recorder(name, rf"{RELEASE}\+{pld.KERNEL}", within_bracket(said)) for name, said in SOURCES.items())
        return (Recorder("dptrain", pld.KERNEL, ALONE), *plugged)

    def leeway(self, library: str, version: str) -> float:
        """Returns `WIDTH`: the figure is held against that of `pld`."""
        return WIDTH


def within_bracket(parameters: str) -> str:
    """Returns what a header says of a source with these parameters."""
    return f"{parameters} bracket={pld.KERNEL}+0..{WIDTH} else=+{WIDTH} rounding=up-1e-6"
