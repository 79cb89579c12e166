"""Signed bounds from decimals, for tests that think in doubles; short, since that is all."""

from collections.abc import Sequence

from attest.descriptor import SignedBounds
from dptrain.clipping import fast


def signed(clip: float, sigma: float) -> SignedBounds:
    """The bounds nearest to these that can be signed."""
    return SignedBounds(max(1, round(clip * 1e6)), max(1, round(sigma * 1e6)))


def bounds_of(rows: Sequence[tuple[float, float, tuple[int, ...]]], blocks: int) -> fast.Bounds:
    """Bounds of a microbatch from (clip norm, noise multiplier, profile) per contribution."""
    return fast.bounds_of([(signed(clip, sigma), profile) for clip, sigma, profile in rows], blocks)
