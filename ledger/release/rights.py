"""Says what a query's rights allow, and which artifact of a release may answer it.

Nothing is assumed where nothing is known: a class that the rights do not name is not allowed, and a release that was not
checked against its ledger admits nobody.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from attest.fixed_point import MICRO
from attest.schema.cards import card_of
from attest.schema.plain import check_id
from ledger.audit.findings import headline
from ledger.errors import ReleaseRefused, RightsRefused
from ledger.release.check import ReleaseReport
from ledger.release.manifest import Manifest
from ledger.release.tied import few


@dataclass(frozen=True, slots=True)
class Rights:
    """Says what may have influenced the artifact that answers.

    Attributes:
        classes: by name the largest epsilon allowed, None for any, of a public class too. Classes that are not named may have
            no influence at all.
        withdrawn: whether a class may have had influence of which a contribution was withdrawn since the release.
        untied: whether weights may answer that are not, bit for bit, those that the run committed to: they have no epsilon.
        told: whether a release may answer whose verdict is TOLD: every epsilon in it rests on the bounds that the ledger's
            operator wrote.
        code: whether files may lie beside the weights that can carry code, or name some, for a loader to run.
    """

    classes: Mapping[str, float | None] = field(default_factory=dict)
    withdrawn: bool = False
    untied: bool = False
    told: bool = False
    code: bool = False

    _repr_html_ = card_of

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> "Rights":
        """Reads rights that somebody configured: a table of TOML or JSON, as `as_table` gives it.

        ``classes`` is a table of epsilons by class, or ``"any"``; the four flags are true or false. All keys may be left out.

        Raises:
            RightsRefused: code KEY, a key is none of these; TYPE or RANGE, a value is of another kind, or no epsilon.
        """
        if unknown := sorted(map(ascii, table.keys() - {"classes", *FLAGS})):
            known = ", ".join(("classes", *FLAGS))
            raise RightsRefused("KEY", f"rights have no {', '.join(unknown):.200}; their keys are {known}")
        given = table.get("classes", {})
        if not isinstance(given, Mapping):
            sentence = f"classes of rights is {type(given).__name__}, expected a table such as {{open = 4.0}}"
            raise RightsRefused("TYPE", sentence)
        for name in FLAGS:
            if type(table.get(name, False)) is not bool:
                found = type(table[name]).__name__
                raise RightsRefused("TYPE", f"{name} of rights is {found}, expected true or false")
        classes = {check_id(name, "class of rights", error=RightsRefused): _epsilon(name, most) for name, most in given.items()}
        return cls(classes, **{name: bool(table.get(name, False)) for name in FLAGS})

    def as_table(self) -> dict[str, Any]:
        """Returns the table that `from_table` reads."""
        classes = {name: ANY if most is None else most for name, most in self.classes.items()}
        return {"classes": classes} | {name: getattr(self, name) for name in FLAGS}


FLAGS: Final = ("withdrawn", "untied", "told", "code")
"""What rights may allow besides classes, by name."""

ANY: Final = "any"
"""Stands in a table for any epsilon."""


def _epsilon(name: str, found: object) -> float | None:
    """Reads the largest epsilon that a table allows a class."""
    if found == ANY:
        return None
    if type(found) not in (int, float, Decimal):
        sentence = f"epsilon of class {name} is {found!a:.40}, expected a number of at least 0, or {ANY!r}"
        raise RightsRefused("TYPE", sentence)
    assert isinstance(found, int | float | Decimal)
    # An integer is compared as one: it may be too large for a float, and for its digits to be written out.
    if (not isinstance(found, int) and not math.isfinite(found)) or not 0 <= found <= MOST_EPSILON:
        sentence = f"epsilon of class {name} is negative, no number or too large, expected 0 to {MOST_EPSILON:g}, or {ANY!r}"
        raise RightsRefused("RANGE", sentence)
    return float(found)


MOST_EPSILON: Final = 1e9
"""Largest epsilon that rights name; more is ``any``. Below it, doubles tell counts of 1e-6 apart."""


def choose_artifact(
    report: ReleaseReport | None,
    rights: Rights,
    artifacts: Collection[str],
    *,
    withdrawn_classes: Collection[str] | None = None,
) -> str:
    """Returns the artifact that may answer, of those that can be served: the first that the rights admit.

    Guarantee: fails closed. An artifact is returned only if the release was checked in full against its ledger, of which no
    leaf was pruned (with bounds that are TOLD only where the rights say so), its weights are those that the run committed to,
    all of them or all of the adapter, without code beside them (unless the rights say otherwise), and every class from which a
    path leads to the artifact is allowed, at no less than the epsilon that the manifest states.

    Args:
        artifacts: names of what can be served, the most wanted first.
        withdrawn_classes: classes of the contributions withdrawn since the release; None for those that the report names.

    Raises:
        ReleaseRefused: code NO_RELEASE, NOT_CHECKED, or of the last artifact NOT_TIED, CODE, CLASS, EPSILON or WITHDRAWN.
    """
    if report is None or report.manifest is None:
        raise ReleaseRefused("NO_RELEASE", "there is no manifest that a pinned key signed; nothing is served without one")
    enough = ("FULL", "TOLD") if rights.told else ("FULL",)
    if report.verdict not in enough or "PRUNED" in report.qualifiers:
        said = headline(report.verdict, report.qualifiers)
        sentence = f"the release is {said}, not {' or '.join(enough)}; check it with a whole export of its ledger, and its key"
        if report.verdict == "TOLD":
            sentence += "; rights with told=True take the operator's word for the bounds"
        raise ReleaseRefused("NOT_CHECKED", sentence)
    if withdrawn_classes is None:
        withdrawn_classes = report.withdrawn_classes
    refusal = ReleaseRefused("ARTIFACT", "no artifact was offered")
    for name in artifacts:
        found = _refusal(report, report.manifest, rights, name, withdrawn_classes)
        if found is None:
            return name
        refusal = found
    raise refusal


def _refusal(
    report: ReleaseReport, manifest: Manifest, rights: Rights, artifact: str, withdrawn: Collection[str] | None
) -> ReleaseRefused | None:
    """Returns why an artifact may not answer, None if it may."""
    if not rights.untied and (report.weights is None or not report.weights.serves(artifact)):
        status = "not judged" if report.weights is None else report.weights.status
        sentence = f"the weights are {status}, not TIED: what these files learned from is not what the ledger counts"
        return ReleaseRefused("NOT_TIED", f"{sentence}; serve the files as the run saved them")
    if not rights.code and report.weights is not None and report.weights.code:
        named = few(report.weights.code)
        sentence = f"files beside the weights can carry code, or name some ({named}), to which the ledger does not commit"
        return ReleaseRefused("CODE", f"{sentence}; read them, and give rights with code=True, or serve without them")
    part = next((part for part in manifest.artifacts if part.name == artifact), None)
    if part is None:
        return ReleaseRefused("ARTIFACT", f"the release has no artifact {artifact!a:.80}")
    for place, row in enumerate(manifest.classes):
        if not part.influenced_by[place]:
            continue
        most, spent = rights.classes.get(row.name), manifest.epsilon_micro(artifact, place)
        if row.name not in rights.classes:
            return ReleaseRefused("CLASS", f"class {row.name} may have influenced {artifact}, and the rights do not allow it")
        if most is not None and (spent is None or not spent / MICRO <= most):
            told = "public: nothing is promised" if spent is None else f"{spent / MICRO:g}"
            return ReleaseRefused("EPSILON", f"class {row.name} has epsilon {told} in {artifact}, at most {most:g} is allowed")
        gone = bool(report.newer_withdrawals) if withdrawn is None else row.name in withdrawn
        if gone and not rights.withdrawn:
            sentence = f"a contribution that may have influenced {artifact} was withdrawn since; release again, or retrain"
            return ReleaseRefused("WITHDRAWN", sentence)
    return None
