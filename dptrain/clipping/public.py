"""Sums of public contributions: neither clipped nor noised, and kept apart from everything that is private.

Which contributions are public is read off their signed bounds: the policy lets no private class admit the pair that says so.
"""

import torch

from attest.descriptor import PUBLIC_CLIP_MICRO, PUBLIC_NOISE_MICRO
from attest.fixed_point import from_micro
from dptrain.clipping.fast import Bounds, FastSums, Pieces
from dptrain.errors import NotPrivateUse


def says_public(bounds: Bounds) -> torch.Tensor:
    """Mark the contributions that signed that they are public, (N,)."""
    return (bounds.clip_N == from_micro(PUBLIC_CLIP_MICRO)) & (bounds.sigma_N == from_micro(PUBLIC_NOISE_MICRO))


def is_public(bounds: Bounds) -> bool:
    """Tell if a microbatch holds public contributions.

    Raises:
        NotPrivateUse: it has both kinds. Rows of one microbatch meet in one forward pass and in one product.
    """
    public = says_public(bounds)
    if bool(public.any()) and not bool(public.all()):
        raise NotPrivateUse("MIXED_MICROBATCH", "a microbatch has public and private contributions; they never share one")
    return bool(public.any())


class PublicSums(FastSums):
    """Sums over the public contributions of one logical step, float64 per tensor.

    Guarantee: they are a function of the parameters and of the public contributions drawn. What :meth:`add` takes is masked
    by the profiles and added as it is; a contribution whose permitted gradient is not finite counts as zero, silently. A
    microbatch with a contribution that signed any other bounds than those that say public is refused, so nothing private is
    ever in here.
    """

    def add(self, pieces: Pieces, bounds: Bounds) -> None:
        """Masks and adds the gradients of one microbatch.

        Raises:
            NotPrivateUse: not every contribution of it signed that it is public.
        """
        if not bool(says_public(bounds).all()):
            raise NotPrivateUse(
                "PRIVATE_IN_PUBLIC",
                "a contribution that signed a clip norm and a noise multiplier came to the sums of public contributions, which "
                "have neither clip nor noise",
            )
        super().add(pieces, bounds)

    def coefficients(self, norms_sq_NG: torch.Tensor, bounds: Bounds) -> torch.Tensor:
        """One where a block is permitted and the contribution's permitted gradient is finite, else zero; float64 (N, G)."""
        zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
        finite = torch.isfinite(torch.where(bounds.permitted_NG, norms_sq_NG, zero)).all(1)
        return torch.where(bounds.permitted_NG & finite[:, None], one, zero)
