"""What holds of a release, in words: the true sentences of docs/guarantee.md and nothing stronger."""

from collections.abc import Sequence
from typing import Final

from ledger.release.tied import Tie, told, told_beside
from ledger.rules.influence import Artifact
from ledger.rules.isolation import Isolation

DIRECT: Final = (
    "A (direct isolation): at every step{until} and from every state, with the data, draws and noise of everyone else fixed, "
    "the update of parameters and optimizer state outside the blocks of its class is not a function of a contribution's "
    "payload. That rests on what the trainer recorded and no ledger can show: the optimizer is one that moves every tensor by "
    "its own gradients, nothing changed these after their release but a clip of each block by itself, and nothing else wrote "
    "parameters."
)
NOTHING_YET: Final = (
    "A (direct isolation): the trainer recorded that the optimizer is one that keeps it. Whether gradients were left as they "
    "were released is recorded with an epoch, and none was closed before this release, so nothing is said of it."
)
WEAKER: Final = (
    "A (direct isolation) does not hold of this run, as the trainer recorded: {reason}. Within one step, parameters and "
    "optimizer state outside the blocks of its class may follow from a contribution's payload, through what was released of "
    "other blocks. That influence is indirect, and B bounds it."
)
INDIRECT: Final = (
    "B (indirect influence): the whole trajectory of the run, blocks outside those of its class included, is (epsilon, "
    "delta = {delta})-differentially private with respect to each private contribution, under zero-out adjacency: its payload "
    "against a null of the same public shape. Epsilon is at most that of its class in this manifest."
)
HORIZON: Final = (
    "The run did not go to its signed end when this was released, so epsilon is that of its whole planned horizon: when to "
    "stop may have been decided by looking at the model."
)
NO_PATH: Final = (
    "D (no path): no class may touch a block of artifact {name}, as far as the influence graph of the ledger's header goes: it "
    "holds parameters as they were before the first step, and is exactly independent of every contribution. It is said of "
    "these parameters, not of a file that claims to hold them."
)
PATHS: Final = (
    "All adapters are active in every forward, so every class reads every block: where a class may have trained any block of "
    "an artifact, a path is counted from every class that trained anything."
)
NOT_SAID: Final = (
    "Not said: that blocks outside those of its class are independent of a contribution after a whole run; that the weights to "
    "which the ledger commits are what training gave, which is its operator's word; what settings, tokenizer and code make of "
    "them when they are loaded, to which no leaf commits; and anything of contributions of public classes."
)


def statements(
    artifacts: Sequence[Artifact], delta: str, weights: Tie, isolation: Isolation, *, step: int, horizon: bool
) -> tuple[str, ...]:
    """Returns what holds of a release with these artifacts, at the policy's delta.

    Args:
        artifacts: the parts of the model.
        delta: as the manifest spells it.
        weights: what the files have to do with the weights of the run.
        isolation: how statement A stands at the end of the leaves that the manifest cites.
        step: last released step by then.
        horizon: whether epsilons are those of the planned horizon.
    """
    free = [part.name for part in artifacts if part.blocks and not any(part.influenced_by)]
    said = [direct(isolation, step), INDIRECT.format(delta=delta)]
    said += [HORIZON] if horizon else []
    said += [NO_PATH.format(name=name) for name in free]
    return (*said, PATHS, told(weights), *told_beside(weights), NOT_SAID)


def direct(isolation: Isolation, step: int) -> str:
    """Returns statement A as it stands: whole, up to the last epoch that speaks for it, or the weaker sentence by name."""
    if not isolation.held:
        return WEAKER.format(reason=isolation.told)
    if not isolation.until:
        return NOTHING_YET
    if isolation.until < step:
        return DIRECT.format(until=f" up to step {isolation.until}, of later ones nothing is said,")
    return DIRECT.format(until="")
