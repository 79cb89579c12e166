"""Trainers of TRL that have no private form, each with the cause."""

from dptrain.errors import NotPrivateUse

_GROUPS = (
    "the advantage of a completion is its reward measured against those of others, and tokens are averaged over the batch, so "
    "that one contribution moves the gradients of the rest"
)
_WHITENED = "advantages are whitened over a batch, so that the reward of one contribution moves the gradients of all others"
_SAMPLED = (
    "completions are sampled while the model trains and padded to the longest of a batch; this build has no private step that "
    "samples"
)
_TAUGHT = "the divergence from a teacher is averaged over the tokens of a batch, partly on sampled completions; not built"
_NOT_BUILT = "its loss is one per pair and could be private; this build has it for DPO and reward models alone"

CAUSES: dict[str, str] = {
    "GRPOTrainer": _GROUPS,
    "RLOOTrainer": _GROUPS,
    "A2POTrainer": _GROUPS,
    "GMPOTrainer": _GROUPS,
    "AsyncGRPOTrainer": _GROUPS,
    "SDPOTrainer": _GROUPS,
    "PPOTrainer": _WHITENED,
    "KTOTrainer": (
        "the baseline of its loss is a KL divergence that is estimated over a batch, from prompts with the completions of "
        "others, so that one contribution moves the gradients of the rest"
    ),
    "BCOTrainer": "the reward shift of its loss is a running mean over batches, which is kept from step to step without noise",
    "OnlineDPOTrainer": _SAMPLED,
    "NashMDTrainer": _SAMPLED,
    "XPOTrainer": _SAMPLED,
    "GKDTrainer": _TAUGHT,
    "GOLDTrainer": _TAUGHT,
    "MiniLLMTrainer": _TAUGHT,
    "DistillationTrainer": _TAUGHT,
    "AsyncDistillationTrainer": _TAUGHT,
    "ServerDistillationTrainer": _TAUGHT,
    "IWOPDTrainer": _TAUGHT,
    "SDFTTrainer": _TAUGHT,
    "ORPOTrainer": _NOT_BUILT,
    "CPOTrainer": _NOT_BUILT,
    "TPOTrainer": _NOT_BUILT,
    "PRMTrainer": "its loss is one per token and could be private; not built. Use PrivateTrainer over a token classifier",
}


def refuse(name: str) -> None:
    """Raises NotPrivateUse, code COUPLED_TRAINER, for a trainer of TRL that has no private form.

    Args:
        name: of the class; with or without ``Private`` before it.
    """
    cause = CAUSES.get(name.removeprefix("Private"))
    if cause is not None:
        raise NotPrivateUse(
            "COUPLED_TRAINER",
            f"{name.removeprefix('Private')} has no private form: {cause}. Use PrivateSFTTrainer, PrivateRewardTrainer, or "
            "PrivateDPOTrainer on pairs that were sampled and judged before",
        )
