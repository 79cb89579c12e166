"""What every fuzz target is made of, and what breaks it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

LIMIT = 0.05
"""Seconds of the processor that one input may take, instrumentation included."""


class BrokenInvariant(AssertionError):
    """A target found what must not be."""


def require(condition: bool, what: str) -> None:
    """Stop the fuzzer unless something holds."""
    if not condition:
        raise BrokenInvariant(what)


@dataclass(frozen=True)
class Target:
    """One reader of bytes from outside.

    Args:
        run: Reads an input and checks the invariants.
        seeds: Inputs to begin with.
        longest: Bytes of the longest input.
        seconds: What one input may take, as `LIMIT`; more where something is printed.
    """

    run: Callable[[bytes], None]
    seeds: list[bytes]
    longest: int = 4096
    seconds: float = LIMIT


def timed(run: Callable[[bytes], None], seconds: float = LIMIT) -> Callable[[bytes], None]:
    """A target that also fails for an input that is slow again and again: by the processor's time, not a busy machine's."""

    def timed_run(data: bytes) -> None:
        for _ in range(4):
            started = time.thread_time()
            run(data)
            if time.thread_time() - started <= seconds:
                return
        raise BrokenInvariant(f"an input of {len(data)} bytes takes more than {seconds} s")

    return timed_run
