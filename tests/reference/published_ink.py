"""InvisibleInk as its page has it, the naive transcription: Algorithm 1, Theorem 2 and the calibration of section 4."""

import numpy as np


def aggregate(private_logits, public_logits, clip):
    """Line 5: the public logits, and the mean of the clipped differences."""
    return public_logits + np.clip(private_logits - public_logits, -clip, clip).mean(0)


def expanded_top_k(public_logits, k, clip, references):
    """Line 9: tokens whose public logit is within 2C/B of the k-th largest."""
    least = np.sort(public_logits)[-min(k, len(public_logits))]
    return public_logits >= least - 2 * clip / references


def rho(clip, references, tau, tokens=1):
    """Theorem 2."""
    return tokens * clip**2 / (2 * references**2 * tau**2)


def clip_norm(rho, references, tau, tokens):
    """Section 4; section 5.4 prints the factor inverted."""
    return references * tau * (2 * rho / tokens) ** 0.5
