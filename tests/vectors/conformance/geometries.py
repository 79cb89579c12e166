"""Policies, headers and an honest export of runs in which pairs of LoRA factors have a geometry; and what is none."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from attest.policy import DepthRule, NoisePhase, Policy, SamplingRule
from attest.policy.mechanism import GeometryRule
from attest.schedule.geometry import FRAMES
from attest.schedule.stack import Division, StackTensor
from ledger.leaves import HeaderSpec
from tests.vectors.conformance.groups import turns_of
from tests.vectors.conformance.honest import Run, plain, rules
from tests.worlds.ledgers import header_spec, parameter, signed_policy, stack_of

TANGENT: Final = {"geometry": (GeometryRule("lora_tangent"),)}
EVERY: Final = ["lora_tangent", {}, None]


def of(*adapters: tuple[str, ...]) -> dict[str, Any]:
    """Returns a geometry of some adapters each."""
    return {"geometry": tuple(GeometryRule("lora_tangent", None, own) for own in adapters)}


def policies(policy: Policy) -> Iterator[tuple[str, Policy]]:
    """Yields policies with a geometry."""
    yield "a geometry of all adapters", replace(policy, **TANGENT)
    yield "geometries of two adapters and of one", replace(policy, **of(("clinic", "lab.2"), ("a",)))
    phased = {"noise_phases": (NoisePhase(2, 2_000_000),), "noise_budgets": (1, 2, 3)}
    yield "a geometry, phases and budgets", replace(policy, **phased, **TANGENT)
    yield "a geometry and groups", replace(policy, disclosure="secret_draws", sampling=turns_of(3), **TANGENT)
    turns = {"disclosure": "occurrences_public", "sampling": SamplingRule("cyclic"), "noise_injection": "per_sample"}
    slow = tuple(replace(rule, sampling_rate=Fraction(1, 30)) for rule in policy.classes)
    yield "a geometry, turns and noise per sample", replace(policy, classes=slow, **turns, **TANGENT)
    masked = replace(policy.classes[1], depth=DepthRule(band=(Fraction(0), Fraction(1)), heads=(0,)))
    yield "a geometry and heads, which may split a pair", replace(policy, classes=(policy.classes[0], masked), **TANGENT)


def malformed() -> Iterator[tuple[str, dict[int, Any]]]:
    """Yields fields of a policy that are no geometry, or one with what it does not go with."""
    yield "none written out", {34: []}
    yield "that is none", {34: [["euclidean", {}, None]]}
    yield "without brackets", {34: EVERY}
    yield "without a place for adapters", {34: [EVERY[:2]]}
    yield "with a parameter", {34: [["lora_tangent", {1: 1}, None]]}
    yield "of no adapter", {34: [["lora_tangent", {}, []]]}
    yield "of a name that is none", {34: [["lora_tangent", {}, ["a b"]]]}
    yield "of adapters out of order", {34: [["lora_tangent", {}, ["b", "a"]]]}
    yield "of all adapters and of one", {34: [EVERY, ["lora_tangent", {}, ["a"]]]}
    yield "of one adapter twice", {34: [["lora_tangent", {}, ["a", "b"]], ["lora_tangent", {}, ["b"]]]}
    yield "65 of them", {34: [["lora_tangent", {}, [f"a{n}"]] for n in range(65)]}
    yield "certified", {34: [EVERY], 7: "certified"}
    for family, accountant in (("laplace", "pld"), ("discrete_gaussian", "rdp"), ("skellam", "rdp")):
        yield f"under {family} noise", {34: [EVERY], 4: accountant, 7: "certified", 13: [family, {}, None]}
    for name, law in (
        ("bands", ["banded_toeplitz", {1: 2, 2: [1 << 20, 5]}, None]),
        ("bands of an inverse", ["banded_inverse", {1: 2, 2: [1 << 20, 5]}, None]),
        ("buffers", ["buffered_toeplitz", {1: [1 << 39], 2: [1 << 38]}, None]),
        ("banded strategies", ["banded", {1: 2}, bytes(32)]),
        ("dense strategies", ["dense", {}, bytes(32)]),
    ):
        yield f"under noise of {name}", {34: [EVERY], 6: "secret_draws", 13: law, 26: ["cyclic_poisson", {1: 3}]}


def factor(name: str, coordinates: int, adapter: str | None = "clinic", **said: Any) -> StackTensor:
    """Returns a tensor of a layer."""
    return replace(parameter(f"layers.{name}", coordinates, adapter=adapter), **said)


B, A = factor("1.q.lora_B.clinic.weight", 12), factor("1.q.lora_A.clinic.weight", 8)
PAIR: Final = (A, B)
OTHER: Final = (factor("0.v.lora_A.lab.weight", 15, "lab"), factor("0.v.lora_B.lab.weight", 9, "lab"))
BIAS, BASE = factor("1.q.lora_B.clinic.bias", 6), factor("1.q.base.weight", 24, None, trained=False)
TENSORS: Final = (*PAIR, *OTHER, BIAS, BASE)
RANKS: Final = {B.names[0]: 2, OTHER[1].names[0]: 3}
ROWS: Final = [[1, 0, 3], [5, 3, 2]]
"""The pairs as leaf 0 says them."""


def spec(*tensors: StackTensor, **policy: Any) -> HeaderSpec:
    """Returns a header whose policy has a geometry of all adapters, unless it is told another."""
    stack = stack_of(2, *(tensors or TENSORS))
    names = {tensor.names[0] for tensor in stack.tensors}
    own = {name: rank for name, rank in RANKS.items() if name in names}
    return header_spec(signed_policy(**{**TANGENT, **policy}), stack=stack, ranks=own)


def headers() -> Iterator[tuple[str, HeaderSpec]]:
    """Yields headers with pairs."""
    yield "pairs of two adapters, with a bias", spec()
    yield "pairs of one adapter of two", replace(spec(**of(("clinic",))), ranks={B.names[0]: 2})


def false_headers(fields: dict[int, Any]) -> Iterator[tuple[str, dict[int, Any]]]:
    """Yields changes of the fields of the first of these headers that are no header."""
    first, second = ROWS
    for name, said in (
        ("another rule of frames", ["dptrain.frames/2", ROWS]),
        ("a pair too few", [FRAMES, [first]]),
        ("a pair twice", [FRAMES, [first, first, second]]),
        ("out of order", [FRAMES, [second, first]]),
        ("the wrong way round", [FRAMES, [[0, 1, 3], second]]),
        ("of two layers", [FRAMES, [[1, 3, 3], second]]),
        ("beyond the stack", [FRAMES, [first, [5, 6, 2]]]),
        ("of a rank that does not divide", [FRAMES, [[1, 0, 2], second]]),
        ("of rank 0", [FRAMES, [first, [5, 3, 0]]]),
        ("with a field more", [FRAMES, [[*first, 1], second]]),
        ("that are null", None),
        ("none of them", [FRAMES, []]),
    ):
        yield name, fields | {29: said}
    yield "left out", {key: value for key, value in fields.items() if key < 28}
    yield "left out, with no turns", {key: value for key, value in fields.items() if key < 29}
    yield "in the place of turns", {key: value for key, value in fields.items() if key < 28} | {28: fields[29]}
    yield "with turns", fields | {28: [[4, 1.0, 1.0], [4, 1.0, 1.0]]}


def unpaired() -> Iterator[tuple[str, tuple[StackTensor, ...], dict[str, Any]]]:
    """Yields models that have no pairs, or other tensors beside them, with what else their policy says.

    The header of each is formed as if nobody looked: the first pair is `PAIR` where it is there.
    """
    named = of(("clinic",))
    yield "lora_A alone", (*PAIR, OTHER[0]), {}
    yield "lora_B alone", (*PAIR, OTHER[1]), {}
    yield "a partner that is not trained", (*PAIR, OTHER[0], replace(OTHER[1], trained=False)), {}
    yield "a factor of an embedding", (*PAIR, factor("0.e.lora_embedding_A.clinic", 6)), {}
    yield "a magnitude of DoRA", (*PAIR, factor("1.q.lora_magnitude_vector.clinic.weight", 6)), {}
    yield "a factor that is no module's", (*PAIR, factor("0.q.lora_A.clinic", 6)), {}
    tied = replace(OTHER[1], names=("layers.0.v.lora_B.lab.weight", "layers.0.w.lora_B.lab.weight"))
    yield "a factor with two names", (*PAIR, OTHER[0], tied), {}
    yield "a factor of the model itself, by name of an adapter", (*PAIR, factor("0.k.lora_B.clinic.weight", 6, None)), {}
    hidden = (factor("0.k.lora_B.ward.weight", 6, None), factor("0.k.lora_A.ward.weight", 6, None))
    yield "a pair that is said to be of no adapter", (*PAIR, *hidden), {}
    yield "an adapter that the policy names and nobody trains", PAIR, of(("clinic", "lab"))
    yield "no pair in the adapter that the policy names", (*OTHER, BIAS), named
    split = (
        replace(A, divisions=(Division("heads", 2, ((0, 2, 1),)),)),
        replace(B, divisions=(Division("heads", 2, ((0, 1, 1), (1, 2, 1))),)),
    )
    head = DepthRule(band=(Fraction(0), Fraction(1)), heads=(0,))
    yield "a pair that heads split", split, rules({}, {"depth": head})
    yield "a pair of which a class has one factor", PAIR, rules({}, {"depth": DepthRule(patterns=("*.lora_B.*",))})


RUNS: Final[dict[str, Run]] = {
    "pairs of LoRA factors": Run(
        "pairs of two adapters that move along tangent spaces",
        plain,
        TANGENT,
        {"stack": stack_of(2, *TENSORS), "ranks": RANKS},
        like="poisson",
    )
}
