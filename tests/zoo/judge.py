"""What is said of one family under one variant: exact, refused by name, or at fault; and how that was found."""

import warnings
from dataclasses import asdict, dataclass

import torch
import transformers

from tests.reference.graphs import MAP, PAIR
from tests.zoo.exact import Compared, compare
from tests.zoo.families import ZOO
from tests.zoo.family import Layers
from tests.zoo.start import EXACT, start

INEXACT = "INEXACT"
"""The start passed and two steps ran, but a gradient that the router delivers is not the contribution's own."""

UNSHOWN = "UNSHOWN"
"""The start passed and two steps ran, but the comparison could not be made."""

FAULTS = frozenset({INEXACT, UNSHOWN, "RAW"})
"""Verdicts that are never right."""


@dataclass(frozen=True)
class Result:
    """One line of the report.

    Attributes:
        verdict: ``exact``, a refusal's code, or one of :data:`FAULTS`. stage, sentence, layers, probe, earlier, slow: as in
            :class:`tests.zoo.start.Outcome`. errors: the largest relative error per comparison. worst: the largest of
            those in one type, the first unless another fails; and the tensor. tensors: the largest by tensor. dtype: what was
            computed in. maps, pairs: linear maps and LoRA pairs that are nodes of autograd as steps compute. drawn: whether
            the forward draws random numbers. missed: trained tensors that the probes named as without a gradient, and that
            have one on records. unprobed, notices, seconds, probing, stepping: as in ``Outcome``.
    """

    family: str
    kind: str
    variant: str
    verdict: str
    stage: str = ""
    sentence: str = ""
    layers: Layers = None
    probe: bool = False
    earlier: tuple[tuple[Layers, str], ...] = ()
    slow: tuple[str, ...] = ()
    errors: dict[str, float] | None = None
    worst: float | None = None
    tensor: str = ""
    tensors: dict[str, float] | None = None
    dtype: str = ""
    maps: int = 0
    pairs: int = 0
    drawn: bool = False
    unprobed: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    seconds: float = 0.0
    probing: float = 0.0
    stepping: float = 0.0

    def as_json(self) -> dict:
        return asdict(self)


def prepare_process() -> None:
    """One thread, and no warnings of models about their configurations, for whoever judges one family after the other."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


def judge(name: str, variant: str) -> Result:
    """Starts a run, and compares gradients where it passed."""
    family = ZOO[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = start(family, variant)
        values = {key: value for key, value in vars(found).items() if key != "verdict"}
        verdict = found.verdict
        if verdict == EXACT:
            try:
                compared = compare(family, variant, found.layers)
            except Exception as error:
                verdict = UNSHOWN
                values["sentence"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
            else:
                worst, last = _worst(list(compared.values())), list(compared.values())[-1]
                values |= {
                    "errors": {key: c.worst for key, c in compared.items()}, "worst": worst.worst, "tensor": worst.tensor,
                    "tensors": {
                        t: max(c.tensors[t] for c in compared.values() if c.dtype is worst.dtype) for t in worst.tensors
                    },
                    "maps": last.nodes[MAP], "pairs": last.nodes[PAIR],
                    "dtype": str(worst.dtype).removeprefix("torch."), "drawn": worst.drawn,
                    "missed": tuple(sorted(set(found.unprobed) & set().union(*(c.live for c in compared.values())))),
                }  # fmt: skip
                if not worst.exact:
                    verdict = INEXACT
                    bad = [key for key, c in compared.items() if not c.exact]
                    values["sentence"] = (
                        f"{worst.tensor}: off by {worst.worst:.0e} of its own norm in {worst.dtype} (compared: "
                        f"{', '.join(bad)})"
                    )
    return Result(name, family.kind, variant, verdict, **values)


def _worst(compared: list[Compared]) -> Compared:
    """The comparison with the largest error of those that fail, or else of those in the type of the first."""
    failed = [one for one in compared if not one.exact]
    among = failed or [one for one in compared if one.dtype is compared[0].dtype]
    return max(among, key=lambda one: one.worst if one.worst == one.worst else float("inf"))
