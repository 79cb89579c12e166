"""Says where this machine draws the noise of every family, and how fast: what `dptrain policy check --device` shows."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from attest.policy import Policy
from attest.policy.mechanism import MechanismRule
from dptrain.errors import ConfigError, DptrainError
from dptrain.noise.device import require, require_family
from dptrain.noise.keystream import KeyStream
from dptrain.noise.mechanism import MECHANISMS, Mechanism, Source, Step, mechanism_of
from ledger.accountants.correlated import Dense, strategy_of
from ledger.accountants.correlated.costs import Correlated
from ledger.accountants.table import DEVICE, HOST, TABLE
from ledger.errors import AccountantError
from ledger.leaves.numerics import lattice_bits, least_multiplier

COORDINATES: Final = 1 << 20
"""Coordinates of a release that is measured; where they would take long, a sixteenth of them."""

LONG: Final = 0.25
"""Seconds of a release beyond which fewer coordinates are measured."""

_FEW: Final = COORDINATES >> 4
_RELEASES: Final = 5
"""Releases of a family at most: one that makes its tables, one that shows how long they take, and three that count."""

KINDS: Final = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True)
class Draws:
    """Says whether noise of a family is drawn by a generator on this machine, and what a coordinate of a release takes.

    Attributes:
        family: as a policy signs it. generator: `host` or `device`. of_policy: whether the policy signs it.
        coordinates: of the release that was measured. nanoseconds: a coordinate, from the clipped sum on the device to the
            release there; None where nothing was measured. code: of the refusal, empty where there is none. sentence: why it
            is refused or was not measured; else empty.
        drawn: whether a run under a policy with this family and with this generator would be taken.
    """

    family: str
    generator: str
    of_policy: bool
    drawn: bool
    coordinates: int = 0
    nanoseconds: float | None = None
    code: str = ""
    sentence: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the row for `--json`; times stand in it where they were measured."""
        row: dict[str, Any] = {
            "family": self.family, "generator": self.generator, "of_policy": self.of_policy, "drawn": self.drawn,
            "code": self.code or None, "sentence": self.sentence or None,
        }  # fmt: skip
        if self.nanoseconds is None:
            return row
        seconds = self.nanoseconds * 1e-3
        return row | {"coordinates": self.coordinates, "nanoseconds": self.nanoseconds, "seconds_per_million": seconds}


@dataclass(frozen=True)
class Surveyed:
    """Holds what a machine draws on one device.

    Attributes:
        device: its name in torch. model: the maker's name, None of a processor. refusal: of the device's own arithmetic, None
            where it passed the test that the first release of a run makes. threads: of torch. draws: by family and generator.
    """

    device: str
    model: str | None
    refusal: ConfigError | None
    threads: int
    draws: tuple[Draws, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns it for `--json`."""
        refused = self.refusal
        check = {
            "passed": refused is None,
            "code": refused.code if refused else None,
            "sentence": refused.sentence if refused else None,
        }
        rows = [row.as_json() for row in self.draws]
        return {"device": self.device, "model": self.model, "check": check, "threads": self.threads, "draws": rows}


def device_of(name: str) -> torch.device:
    """Returns a device that is there: of this name, or of `auto` a GPU where there is one.

    Raises:
        ConfigError: code DEVICE, this machine, or this build of torch, has none of that name.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        found = torch.device(name)
        if found.type not in KINDS:
            raise RuntimeError(f"expected {', '.join(KINDS)}, one of them with its number, or auto")
        return torch.empty(1, device=found).device
    except (RuntimeError, AssertionError) as error:
        told = str(error).strip().partition("\n")[0]
        raise ConfigError("DEVICE", f"there is no device {name!r:.40} here: {told:.160}; take cpu or auto") from error


def survey(policy: Policy, device: torch.device) -> Surveyed:
    """Measures releases of every family of the table, on the sums of a device: noise of the processor, and of the device.

    The policy says which family is its own, of how many draws, and of which strategy where steps share noise; one step in the
    middle of its run is measured then. What a run refuses at `open` is refused here by the very same sentence.
    """
    refusal = None
    try:
        require(device)
    except ConfigError as error:
        refusal = error
    families = dict.fromkeys((*TABLE, policy.mechanism.name))
    rows = [_of(family, generator, policy, device) for family in families for generator in (HOST, DEVICE)]
    model = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return Surveyed(str(device), model, refusal, torch.get_num_threads(), tuple(rows))


def _of(family: str, generator: str, policy: Policy, device: torch.device) -> Draws:
    own = family == policy.mechanism.name
    try:
        if family not in MECHANISMS:
            mechanism_of(family, Source(bytes(16), 0, bytes(32), bits=32))  # says so
        if generator == DEVICE:
            require_family(family)
            require(device)
    except DptrainError as error:
        return Draws(family, generator, own, False, code=error.code, sentence=error.sentence)
    if not own and (isinstance(TABLE[family], Correlated) or "." in family):
        told = "its time hangs on the parameters that a policy signs; check a policy that has them"
        return Draws(family, generator, own, True, sentence=told)
    try:
        coordinates, seconds = _measured(family, generator, policy, own, device)
    except (AccountantError, DptrainError, RuntimeError, TypeError) as error:  # no coefficients at hand, or no float64 there
        told = str(error).strip().partition("\n")[0]
        return Draws(family, generator, own, True, sentence=f"a release failed: {told}")
    return Draws(family, generator, own, True, coordinates, seconds / coordinates * 1e9)


def _measured(family: str, generator: str, policy: Policy, own: bool, device: torch.device) -> tuple[int, float]:
    """Returns coordinates and seconds of a release: the best of those of the largest size that was taken."""
    least = least_multiplier(policy) if any(not rule.public for rule in policy.classes) else 1.0
    exactness = TABLE[family].exactness[-1]
    rule = policy.mechanism if own else MechanismRule(family)
    draws = (policy.noise_microbatches or 1) if own else 1
    source = Source(
        *(bytes(16), 0, KeyStream.fresh_master()), bits=lattice_bits(exactness, family, COORDINATES, least), draws=draws,
        generator=generator, rule=rule, steps=policy.steps,
    )  # fmt: skip
    mechanism = mechanism_of(family, source)
    try:
        taken: dict[int, list[float]] = {}
        size = _FEW
        for turn, (number, state) in enumerate(_states(mechanism, source)):
            total = torch.zeros(size, dtype=torch.float64, device=device)
            kept, step = state(size), Step(number, 0, 1.0, 1.0, draws)
            total[:1].cpu()  # waits for the device
            start = time.perf_counter()
            mechanism.release(total, kept, step)
            total[:1].cpu()
            taken.setdefault(size, []).append(time.perf_counter() - start)
            if turn == 1 and taken[_FEW][1] * (COORDINATES / _FEW) <= LONG:
                size = COORDINATES
    finally:
        mechanism.destroy()
    largest = max(taken)
    return largest, min(taken[largest][-3:])


def _states(mechanism: Mechanism, source: Source) -> Iterator[tuple[int, Callable[[int], Any]]]:
    """Yields steps in ascending order, and for each what makes the state before it, of so many coordinates.

    Of noise that is correlated between steps they lie in the middle of the run, where every step before counts.
    """
    if not isinstance(TABLE[source.rule.name if source.rule else ""], Correlated):
        yield from ((number, lambda size: mechanism.init([torch.Size([size])])) for number in range(1, _RELEASES + 1))
        return
    assert source.rule is not None
    dense = isinstance(strategy_of(source.rule, source.steps), Dense)
    held: Any = mechanism
    first = max(1, min(source.steps // 2 + 1, source.steps - _RELEASES + 1))
    for number in range(first, min(first + _RELEASES, source.steps + 1)):

        def before(size: int, done: int = number - 1) -> Any:
            if not done:
                return mechanism.init([torch.Size([size])])
            state = {"step 0 0": torch.tensor(done), "buffers 0 0": torch.zeros(held.buffers, size, dtype=torch.float64)}
            if dense:
                state |= {f"key 0 {source.attempt}": torch.frombuffer(bytearray(source.key), dtype=torch.uint8)}
            return held.load_state_dict(state)

        yield number, before
