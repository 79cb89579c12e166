"""Policies, headers and an honest export of runs in which classes read some adapters alone; and what is none."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from attest.policy import ClassRule, DepthRule, Policy
from attest.policy.classes import ReadRule
from attest.policy.mechanism import GeometryRule
from attest.schedule.reads import FORWARDS
from attest.schedule.stack import StackTensor
from ledger.leaves import HeaderSpec
from tests.vectors.conformance.honest import Run, plain
from tests.worlds.ledgers import header_spec, parameter, signed_policy, stack_of

REQUIRED: Final = {"isolation_required": True}


def reading(rule: ClassRule, *adapters: str, **changes: Any) -> ClassRule:
    """Returns a class whose forward reads these adapters."""
    return replace(rule, reads=ReadRule(adapters=adapters), **changes)


def policies(policy: Policy) -> Iterator[tuple[str, Policy]]:
    """Yields policies of classes with reads."""
    first, second = policy.classes
    yield "a class that reads no adapter", replace(policy, classes=(reading(first), second), **REQUIRED)
    both = (reading(first, "clinic"), reading(second, "clinic", "lab.2"))
    yield "two classes that read adapters", replace(policy, classes=both, **REQUIRED)
    bound = reading(first, "clinic", "lab", depth=DepthRule(adapter="lab"))
    yield "a class that touches one of those that it reads", replace(policy, classes=(bound, second), **REQUIRED)


def malformed() -> Iterator[tuple[str, dict[int, Any]]]:
    """Yields fields of a class that are no reads."""
    yield "null", {9: None}
    yield "without adapters", {9: {}}
    yield "a name that is none", {9: {1: ["a b"]}}
    yield "out of order", {9: {1: ["lab", "clinic"]}}
    yield "no patterns", {9: {1: ["lab"], 2: []}}
    yield "a field more", {9: {1: ["lab"], 3: 1}}
    yield "an adapter that is touched and left out", {5: {4: "clinic"}, 9: {1: ["lab"]}}


def factor(name: str, adapter: str | None, **said: Any) -> StackTensor:
    """Returns a tensor of a layer."""
    return replace(parameter(f"layers.{name}", 6, adapter=adapter), **said)


ONE, OTHER = factor("0.q.lora_A.one.weight", "one"), factor("0.q.lora_A.two.weight", "two")
UPPER = factor("1.q.lora_A.two.weight", "two")
BASE = factor("0.q.base.weight", None, trained=False)
TENSORS: Final = (ONE, OTHER, UPPER, BASE)
ROWS: Final = [["open", [0, 3]], ["sensitive", [1, 2, 3]]]
"""What the classes read as leaf 0 says it: blocks 0 to 2 are adapters, 3 is the base."""


def rules(*reads: tuple[str, ...] | None, depths: tuple[DepthRule, ...] = ()) -> dict[str, Any]:
    """Returns a policy whose two classes are bound to an adapter each, and read these."""
    own = depths or (DepthRule(adapter="one"), DepthRule(adapter="two"))
    made = (
        replace(rule, depth=depth, reads=None if adapters is None else ReadRule(adapters=adapters))
        for rule, depth, adapters in zip(signed_policy().policy.classes, own, reads, strict=True)
    )
    return {"classes": tuple(made), **REQUIRED}


APART: Final = rules(("one",), ("two",))


def spec(*tensors: StackTensor, **policy: Any) -> HeaderSpec:
    """Returns a header of two classes with an adapter each, which read their own, unless it is told another policy."""
    return header_spec(signed_policy(**{**APART, **policy}), stack=stack_of(2, *(tensors or TENSORS)))


def headers() -> Iterator[tuple[str, HeaderSpec]]:
    """Yields headers with reads."""
    yield "classes that read their own adapters", spec()
    yield "one that reads both", spec(**rules(("one",), ("one", "two")))
    yield "one that reads everything", spec(**rules(("one",), None))
    everything = DepthRule(band=(Fraction(0), Fraction(1)))
    trained = (ONE, replace(BASE, trained=True))
    yield "one without adapters, and the base", spec(
        *trained, **rules(("one",), (), depths=(everything, DepthRule(patterns=("*.base.*",))))
    )
    pair = (factor("1.q.lora_A.one.weight", "one"), replace(factor("1.q.lora_B.one.weight", "one"), coordinates=12))
    tangent = spec(*pair, OTHER, geometry=(GeometryRule("lora_tangent", None, ("one",)),))
    yield "reads and pairs", replace(tangent, ranks={pair[1].names[0]: 2})


def false_headers(fields: dict[int, Any]) -> Iterator[tuple[str, dict[int, Any]]]:
    """Yields changes of the fields of the first of these headers that are no header."""
    first, second = ROWS
    for name, said in (
        ("another rule of forwards", ["dptrain.forwards/2", ROWS]),
        ("of one class", [FORWARDS, [first]]),
        ("with a block more", [FORWARDS, [["open", [0, 1, 3]], second]]),
        ("of the adapter of another", [FORWARDS, [["open", [1, 3]], second]]),
        ("with blocks out of order", [FORWARDS, [["open", [3, 0]], second]]),
        ("of no block", [FORWARDS, [["open", []], second]]),
        ("that are null", None),
    ):
        yield name, fields | {30: said}
    for last in (27, 29):
        yield f"left out, with {last} fields", {key: value for key, value in fields.items() if key <= last}
    yield "with one generator for all", fields | {23: "unaddressed"}
    yield "behind pairs that there are none of", fields | {29: []}
    yield "behind turns", fields | {28: [[4, 1.0, 1.0], [4, 1.0, 1.0]]}


def unread() -> Iterator[tuple[str, tuple[StackTensor, ...], dict[str, Any]]]:
    """Yields models to which the reads of a policy do not fit, with that policy; the header says the reads of `ROWS`."""
    yield "an adapter that the model does not have", TENSORS, rules(("one", "six"), ("two",))
    whole = DepthRule(band=(Fraction(0), Fraction(1)))
    yield "blocks that are touched and not read", TENSORS, rules(("one",), ("two",), depths=(whole, DepthRule(adapter="two")))
    yield "a parameter that is not of its adapter by name", (*TENSORS, factor("1.v.weight", "two")), APART
    both = replace(UPPER, names=("layers.1.q.base.weight", "layers.1.q.lora_A.two.weight"))
    yield "a parameter that is so by one of its names alone", (ONE, OTHER, both, BASE), APART


RUNS: Final[dict[str, Run]] = {
    "reads of classes": Run(
        "two classes that read their own adapters alone", plain, APART, {"stack": stack_of(2, *TENSORS)}, like="poisson"
    )
}
