"""The certified level from its definition: one contribution at a time, Python integers, exact rationals, nothing shared.

Works on given per-contribution gradients (lists of tensors, one per scheduled tensor) and returns int64 integers.
"""

import math
from fractions import Fraction

import torch


def multiplier(clip: Fraction, sigma: Fraction, stds: list[float]) -> Fraction:
    """z_i = max(sigma_i, min s_l / C_i)."""
    return max(sigma, min(Fraction(s) for s in stds) / clip)


def holds(integers: list[torch.Tensor], stds: list[float], clip: Fraction, sigma: Fraction, bits: int) -> bool:
    """Both signed bounds, in exact arithmetic, for integers k on the lattices s_l 2^-b of their tensors' blocks."""
    flat, white = Fraction(0), 0
    used = []
    for k, std in zip(integers, stds, strict=True):
        square = sum(v * v for v in k.flatten().tolist())
        if square:
            used.append(std)
        white += square
        flat += Fraction(std) ** 2 * square
    grid = Fraction(1, 1 << 2 * bits)
    return flat * grid <= clip**2 and white * grid * sigma**2 <= 1


def integers_of(
    gradient: list[torch.Tensor], stds: list[float], clip: float, sigma: float, bits: int, margin: float
) -> list[torch.Tensor]:
    """Integers of one contribution: norms, coefficient, truncation, certificate; zeros if it cannot be certified.

    Args:
        gradient: float64, by tensor, masked tensors left out. stds: of their blocks.
    """
    c, s = (Fraction(round(v * 10**6), 10**6) for v in (clip, sigma))
    z = float(multiplier(c, s, stds))
    flat = math.sqrt(sum(float(g.double().square().sum()) for g in gradient))
    white = math.sqrt(sum(float(g.double().square().sum()) / std**2 for g, std in zip(gradient, stds, strict=True)))
    if not math.isfinite(flat) or not math.isfinite(white):
        return [torch.zeros_like(g, dtype=torch.int64) for g in gradient]
    factor = 1.0 if flat == 0 else min(1.0, (1 - margin) * clip / flat, (1 - margin) / (z * white))
    k = [torch.trunc(g.double() * (factor / std * 2.0**bits)).to(torch.int64) for g, std in zip(gradient, stds, strict=True)]
    if not holds(k, stds, c, s, bits):
        raise AssertionError("the margin does not cover this contribution; the reference does not shrink")
    return k


def holds_l1(integers: list[torch.Tensor], stds: list[float], clip: Fraction, sigma: Fraction, bits: int) -> bool:
    """Both signed bounds as L1 norms, in exact arithmetic: sum of s_l 2^-b |k| at most C, sum of 2^-b |k| at most 1 / sigma."""
    sizes = [sum(abs(v) for v in k.flatten().tolist()) for k in integers]
    flat = sum(Fraction(std) * size for std, size in zip(stds, sizes, strict=True))
    return flat <= clip * (1 << bits) and sum(sizes) * sigma <= 1 << bits


def integers_of_l1(
    gradient: list[torch.Tensor], stds: list[float], clip: float, sigma: float, bits: int, margin: float
) -> list[torch.Tensor]:
    """As `integers_of`, clipped and certified in L1 norms: what Laplace noise is added to."""
    c, s = (Fraction(round(v * 10**6), 10**6) for v in (clip, sigma))
    z = float(multiplier(c, s, stds))
    sizes = [math.fsum(abs(v) for v in g.double().flatten().tolist()) for g in gradient]
    flat, white = math.fsum(sizes), math.fsum(size / std for size, std in zip(sizes, stds, strict=True))
    factor = 1.0 if flat == 0 else min(1.0, (1 - margin) * clip / flat, (1 - margin) / (z * white))
    k = [torch.trunc(g.double() * (factor / std * 2.0**bits)).to(torch.int64) for g, std in zip(gradient, stds, strict=True)]
    if not holds_l1(k, stds, c, s, bits):
        raise AssertionError("the margin does not cover this contribution; the reference does not shrink")
    return k
