"""Takes tensors at a module around their own, where their own does not tell contributions apart.

A table of positions is looked up once for all rows; windows of a picture are rows, several to an example; a tensor is used
past the module that owns it. The next module around may have one row per example again. It then runs once more for these
tensors, on the generic path (:mod:`dptrain.gradients.generic`); all other tensors below it keep their own, faster rules. The
last module around is the model itself.
"""

import warnings
from collections.abc import Sequence
from itertools import takewhile

from torch import nn

from dptrain.errors import CoupledModel, LossShape, UnsupportedModule
from dptrain.routing.router import FallbackNotice, Router, Site

Refusal = CoupledModel | LossShape | UnsupportedModule

LIFTED = frozenset(
    {"BATCH_DIMENSION", "CROSS_SAMPLE_GRADIENT", "GRADIENT_MISMATCH", "LOSS_DETACHED", "NO_RULE", "STATE_IN_GENERIC_PATH"}
)
"""Refusals of one module that say nothing of the modules around it."""

SHOWN = 5
"""Names of tensors in a notice, at most."""


class Around:
    """Moves tensors of a router to modules around their own, one step for each refusal.

    Guarantee: a move follows from refusals on rows that are nobody's, before anything is charged. It changes where a gradient
    is looked for, and nothing of what is demanded of it: every proof of the start is made anew afterwards, on all tensors.
    What contributions have in common (statistics of a batch, capacities, losses over it) is refused as ever.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._causes: dict[int, Refusal] = {}

    def after(self, refusals: Sequence[Refusal]) -> dict[int, str]:
        """Returns where tensors are to be taken after these refusals: by index in the schedule, the path of a module.

        Raises:
            CoupledModel, LossShape, UnsupportedModule: one of these refusals, which no module around lifts.
        """
        found = dict(self._router.around)
        for refusal in refusals:
            moved = self._concerned(refusal) if refusal.code in LIFTED else {}
            if not moved:
                raise refusal
            for index, paths in moved.items():
                first = self._causes.get(index, refusal)
                if first.code == "LOSS_DETACHED":  # which says least
                    first = refusal
                self._causes[index] = first
                path = self._next(paths, found.get(index))
                if path is None:
                    raise refusal if first is refusal or refusal.code == "LOSS_DETACHED" else _nowhere(first, refusal)
                found[index] = path
        return found

    def without_graph(self, refusal: LossShape) -> LossShape:
        """Returns a refusal of losses that carry no graph, which modules around those that never ran may lift."""
        router = self._router
        if refusal.code == "LOSS_DETACHED":
            idle = (index for site in router.sites if site.name not in router.order for index in site.tensors.values())
            refusal.tensors = tuple(dict.fromkeys(idle))
        return refusal

    def tell(self) -> None:
        """Warns of every module that runs again for tensors of modules inside it, and says why."""
        for site in self._router.sites:
            names = sorted(key for key, index in site.tensors.items() if index in self._causes)
            if not site.around or not names:
                continue
            shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            codes = ", ".join(sorted({str(self._causes[site.tensors[key]].code) for key in names}))
            warnings.warn(
                f"{site.name or 'the model itself'} ({type(site.module).__name__}) runs once more per microbatch for tensors "
                f"inside it ({shown}), whose own modules do not tell contributions apart ({codes}): exact but slower. Freezing "
                "these tensors spares that",
                FallbackNotice,
                stacklevel=3,
            )

    def _concerned(self, refusal: Refusal) -> dict[int, list[str]]:
        """Tensors that a refusal is about, and the paths of the modules at which they were taken."""
        sites = self._router.sites
        if refusal.rule is not None:
            return {index: [site.name] for site in sites if site.rule is refusal.rule for index in site.tensors.values()}
        found = {index: _sites_of(self._router, index) for index in map(self._router.first_of, refusal.tensors)}
        return {index: [site.name for site in own] for index, own in found.items()}

    def _next(self, paths: Sequence[str], before: str | None) -> str | None:
        """The nearest module around all these that can be run; None where there is none.

        Args:
            before: where the tensor is taken already, because of another use of it.
        """
        inside = paths if before is None or before in paths else [*paths, before]
        path: str | None = _common(inside)
        if path in inside:
            path = _parent(path)
        model = self._router.model
        while path is not None and type(model.get_submodule(path)).forward is nn.Module.forward:
            path = _parent(path)
        return path


def _sites_of(router: Router, index: int) -> list[Site]:
    return [site for site in router.sites if index in site.tensors.values()]


def _common(paths: Sequence[str]) -> str:
    steps = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(step[0] for step in takewhile(lambda step: len(set(step)) == 1, steps))


def _parent(path: str | None) -> str | None:
    """The path one step up; None above the model itself."""
    return path.rpartition(".")[0] if path else None


def _nowhere(first: Refusal, last: Refusal) -> Refusal:
    return type(first)(
        first.code,
        f"{first.sentence}. No module around it serves in its place, up to the model itself, where the run found {last.code}: "
        f"{last.sentence}",
    )
