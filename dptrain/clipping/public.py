"""Sums of public contributions: neither clipped nor noised, and kept apart from everything that is private.

Which contributions are public is read off their signed bounds: the policy lets no private class admit the pair that says so.
"""

import torch

from dptrain.clipping.fast import Bounds, FastSums, Pieces
from dptrain.errors import NotPrivateUse


def is_public(bounds: Bounds) -> bool:
    """Tell if a microbatch holds public contributions.

    Raises:
        NotPrivateUse: it has both kinds. Rows of one microbatch meet in one forward pass and in one product.
    """
    kinds = {signed.public for signed in bounds.signed}
    if len(kinds) > 1:
        raise NotPrivateUse("MIXED_MICROBATCH", "a microbatch has public and private contributions; they never share one")
    return True in kinds


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
        if not all(signed.public for signed in bounds.signed):
            raise NotPrivateUse(
                "PRIVATE_IN_PUBLIC",
                "a contribution that signed a clip norm and a noise multiplier came to the sums of public contributions, which "
                "have neither clip nor noise",
            )
        super().add(pieces, bounds)

    def coefficients(self, norms_sq_NG: torch.Tensor, bounds: Bounds) -> torch.Tensor:
        """One where a block is permitted and the contribution's permitted gradient is finite, else zero; float64 (N, G)."""
        finite = torch.isfinite(bounds.masked(norms_sq_NG)).all(1)
        return bounds.masked(finite[:, None].double())
