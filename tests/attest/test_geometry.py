"""The geometry of a policy: what it goes with, how it is written, and which pairs of factors it finds in a stack."""

from dataclasses import replace
from fractions import Fraction

import pytest

from attest.errors import PolicyRefused, ValueRefused
from attest.policy import DepthRule, MechanismRule, NoisePhase, Policy, SamplingRule
from attest.policy.mechanism import Bands, GeometryRule
from attest.policy.sampling import Groups
from attest.schedule.blocks import derive
from attest.schedule.geometry import BlockEnergy, Pair, couples_of, energies_of, pairs_of
from attest.schedule.stack import Division, Stack, StackTensor
from tests.attest.test_policy_words import OPEN, PLAIN, TEXT
from tests.worlds.ledgers import parameter, stack_of

TANGENT = GeometryRule("lora_tangent")
WHOLE = replace(PLAIN.classes[0], depth=DepthRule(band=(Fraction(0), Fraction(1))))
POLICY = replace(PLAIN, geometry=(TANGENT,), classes=(WHOLE,))
MASKED = replace(WHOLE, name="masked", depth=replace(WHOLE.depth, heads=(0,)))
PATTERNS = replace(WHOLE, depth=DepthRule(patterns=("*.lora_B.*", "head.*")))
ONE = 1 << 20


def only(*adapters: str) -> Policy:
    return replace(POLICY, geometry=tuple(GeometryRule("lora_tangent", None, (name,)) for name in adapters))


def factor(name: str, coordinates: int, adapter: str | None = "clinic", **said) -> StackTensor:
    return replace(parameter(f"layers.{name}.weight", coordinates, adapter=adapter), **said)


def pair(path: str = "0.q", m: int = 6, n: int = 4, rank: int = 2, adapter: str = "clinic") -> list[StackTensor]:
    return [
        factor(f"{path}.lora_B.{adapter}", m * rank, adapter),
        factor(f"{path}.lora_A.{adapter}", n * rank, adapter),
    ]


def ranks_of(stack: Stack, rank: int = 2) -> dict[str, int]:
    found = (tensor.names[0] for tensor in stack.tensors if tensor.trained)
    return {name: rank for name in found if name.split(".")[-3:][0] == "lora_B" and name.endswith(".weight")}


def refused(policy: Policy, *tensors: StackTensor, ranks: dict[str, int] | None = None) -> str:
    stack = stack_of(4, *tensors)
    with pytest.raises(ValueRefused) as caught:
        pairs_of(policy, stack, ranks_of(stack) if ranks is None else ranks)
    assert caught.value.code == "GEOMETRY"
    return caught.value.sentence


# --- the policy -------------------------------------------------------------------------------------------------------------


def test_one_line_says_what_one_table_without_adapters_does():
    text = TEXT.format(disclosure="secret_poisson")
    short = Policy.from_toml('geometry = "lora_tangent"\n' + text)
    assert short == Policy.from_toml(text + '[[geometry]]\nchart = "lora_tangent"\n') == replace(PLAIN, geometry=(TANGENT,))
    assert '\ngeometry = "lora_tangent"\n' in short.to_toml() and "[[geometry]]" not in short.to_toml()
    assert Policy.from_toml(short.to_toml()) == short


@pytest.mark.parametrize("rules", [only("a").geometry, only("a", "b").geometry], ids=["one", "two"])
def test_tables_that_name_adapters_are_written_as_tables(rules):
    policy = replace(PLAIN, geometry=rules)
    assert policy.to_toml().count("[[geometry]]\nchart") == len(rules)
    assert Policy.from_toml(policy.to_toml()) == policy == Policy.from_cbor(policy.to_cbor())


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ('geometry = "euclidean"\n{}', "RANGE"),
        ('geometry = "{{}}"\n{}', "RANGE"),
        ("geometry = 1\n{}", "TYPE"),
        ("geometry = []\n{}", "TYPE"),
        ('geometry = ["lora_tangent"]\n{}', "TYPE"),
        ('{}geometry = "lora_tangent"\n', "KEY"),
    ],
)
def test_text_that_says_a_geometry_wrongly_is_refused(written, code):
    with pytest.raises(PolicyRefused) as caught:
        Policy.from_toml(written.format(TEXT.format(disclosure="secret_poisson")))
    assert caught.value.code == code
    assert code != "KEY" or "above the first table" in caught.value.sentence


FAMILIES = {
    **{name: MechanismRule(name) for name in ("laplace", "discrete_gaussian", "skellam")},
    "dense": MechanismRule("dense", None, bytes(32)),
    "banded": MechanismRule("banded", Bands(bands=2), bytes(32)),
    "banded_toeplitz": MechanismRule("banded_toeplitz", Bands(bands=2, coefficients=(ONE, 1))),
}


@pytest.mark.parametrize("exactness", ["fast", "certified"])
@pytest.mark.parametrize("name", FAMILIES)
def test_noise_that_is_not_gaussian_is_refused_with_its_reason(name, exactness):
    with pytest.raises(PolicyRefused) as caught:
        replace(OPEN, geometry=(TANGENT,), mechanism=FAMILIES[name], exactness=exactness)
    assert caught.value.code == "GEOMETRY" and repr(name) in caught.value.sentence
    correlated = name.startswith(("banded", "dense"))
    reason = "no one space in which noise of two steps cancels" if correlated else "takes exactness 'certified'"
    assert reason in caught.value.sentence and "'gaussian'" in caught.value.sentence


def test_noise_of_a_package_is_refused(monkeypatch):
    monkeypatch.setitem(MechanismRule.PARAMETERS.provided, "mine.cauchy", None)
    with pytest.raises(PolicyRefused) as caught:
        replace(PLAIN, geometry=(TANGENT,), mechanism=MechanismRule("mine.cauchy"))
    assert caught.value.code == "GEOMETRY" and "mine.cauchy" in caught.value.sentence


def test_certified_integers_are_refused():
    with pytest.raises(PolicyRefused) as caught:
        replace(PLAIN, geometry=(TANGENT,), exactness="certified")
    assert caught.value.code == "GEOMETRY" and "floating point" in caught.value.sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_budgets": (1, 2, 3)},
        {"noise_phases": (NoisePhase(2, 2_000_000),)},
        {"disclosure": "occurrences_public"},
        {"disclosure": "occurrences_public", "noise_injection": "per_sample"},
        {"noise_injection": "per_microbatch", "noise_microbatches": 4},
        {"disclosure": "occurrences_public", "sampling": SamplingRule("cyclic")},
        {"disclosure": "occurrences_public", "sampling": SamplingRule("shuffled")},
        {"disclosure": "secret_draws", "sampling": SamplingRule("cyclic_poisson", Groups(groups=3))},
        {"classes": (WHOLE, MASKED)},
        {"isolation_required": True},
    ],
)
def test_everything_else_goes_with_a_geometry(changes):
    policy = replace(PLAIN, geometry=(TANGENT,), **changes)
    assert Policy.from_cbor(policy.to_cbor()) == policy


# --- pairs of a stack -------------------------------------------------------------------------------------------------------


def test_pairs_are_found_with_their_sizes_and_blocks():
    stack = stack_of(
        4,
        *pair("0.q", m=6, n=4, rank=2),
        *pair("0.v", m=5, n=3, rank=4),
        *pair("2.q", m=7, n=2, rank=3, adapter="lab"),
        factor("2.lora_B.clinic.bias", 8, names=("layers.2.lora_B.clinic.bias",)),
        factor("1.base", 100, None),
        factor("3.q.lora_B.old", 6, "old", trained=False),
        factor("3.q.lora_A.old", 4, "old", trained=False),
    )
    ranks = {"layers.0.q.lora_B.clinic.weight": 2, "layers.0.v.lora_B.clinic.weight": 4, "layers.2.q.lora_B.lab.weight": 3}
    found = pairs_of(POLICY, stack, ranks)
    places = {tensor.names[0]: place for place, tensor in enumerate(stack.tensors)}
    blocks = derive(POLICY.classes, stack)
    assert [(p.a, p.rank, p.m, p.n) for p in found] == [
        (places["layers.0.q.lora_B.clinic.weight"], 2, 6, 4),
        (places["layers.0.v.lora_B.clinic.weight"], 4, 5, 3),
        (places["layers.2.q.lora_B.lab.weight"], 3, 7, 2),
    ]
    assert [stack.tensors[p.b].names[0] for p in found] == [name.replace("lora_B", "lora_A") for name in ranks]
    assert [blocks[p.block].name for p in found] == ["layer.0", "layer.0", "layer.2"]
    assert found == pairs_of(POLICY, stack, dict(reversed(ranks.items())), blocks)
    assert [(p.coordinates, p.energy) for p in found] == [(20, 2 * 8), (32, 3 * 5), (27, 2 * 7)]
    assert energies_of(found, blocks) == (BlockEnergy(0, 2, 52, 31), BlockEnergy(2, 1, 35, 22))


def test_rules_that_name_adapters_leave_others_alone():
    stack = stack_of(4, *pair("0.q"), *pair("0.q", adapter="lab"), factor("1.lora_magnitude_vector.lab", 3, "lab"))
    ranks = {name: rank for name, rank in ranks_of(stack).items() if "clinic" in name}
    (found,) = pairs_of(only("clinic"), stack, ranks)
    assert "clinic" in stack.tensors[found.a].names[0]


def test_without_a_geometry_there_is_no_pair():
    stack = stack_of(4, *pair())
    assert couples_of(PLAIN, stack) == () == pairs_of(PLAIN, stack, {})
    with pytest.raises(ValueRefused, match="no pair under the geometry"):
        pairs_of(PLAIN, stack, ranks_of(stack))


def test_a_model_that_is_one_lora_layer_has_a_pair():
    names = ("lora_B.clinic.weight", "lora_A.clinic.weight")
    stack = stack_of(1, *(factor("0.x", 8, names=(name,), places=(("", -1),)) for name in names))
    assert [(p.m, p.n) for p in pairs_of(POLICY, stack, {names[0]: 2})] == [(4, 4)]


def test_pairs_ascend_by_the_first_factor_and_go_by_the_last_word_of_a_name():
    stack = stack_of(4, *pair("0.q"), *pair("0.q.lora_AB"), *pair("1.lora_B.k"))
    found = pairs_of(POLICY, stack, ranks_of(stack))
    names = [tuple(stack.tensors[place].names[0] for place in (p.a, p.b)) for p in found]
    paths = ["layers.0.q.lora_AB", "layers.0.q", "layers.1.lora_B.k"]
    assert names == [(f"{path}.lora_B.clinic.weight", f"{path}.lora_A.clinic.weight") for path in paths]


@pytest.mark.parametrize(
    ("r", "m", "n", "energy"), [(2, 5, 4, 14), (3, 7, 6, 30), (1, 6, 9, 14), (4, 8, 8, 48), (4, 4, 4, 16), (8, 4, 6, 24)]
)
def test_the_energy_of_a_pair_is_the_dimension_of_its_tangent_space(r, m, n, energy):
    assert Pair(0, 1, r, m, n, 0).energy == energy <= r * (m + n) == Pair(0, 1, r, m, n, 0).coordinates


def whole(count: int = 2) -> tuple[Division, ...]:
    return (Division("heads", count, ((0, count, 1),)),)


def each(count: int = 2) -> tuple[Division, ...]:
    return (Division("heads", count, tuple((k, k + 1, 1) for k in range(count))),)


REFUSALS = {
    "no adapter": (POLICY, [factor("0.q", 4, None)], "finds no trained LoRA pair"),
    "no pair in an adapter": (POLICY, [factor("0.q.ia3_l.clinic", 4)], "finds no trained LoRA pair"),
    "no pair that trains": (POLICY, [replace(t, trained=False) for t in pair()] + [factor("1.x", 1, None)], "no trained LoRA"),
    "no such adapter": (only("clinik"), pair(), "adapter 'clinik' of [[geometry]] has no trained LoRA pair"),
    "one adapter of two": (only("clinic", "lab"), pair(), "adapter 'lab'"),
    "lora_A alone": (POLICY, pair()[1:] + pair("1.q"), "has no partner: layers.0.q.lora_B.clinic.weight"),
    "lora_B alone": (POLICY, pair()[:1] + pair("1.q"), "has no partner: layers.0.q.lora_A.clinic.weight"),
    "a partner that is frozen": (POLICY, [pair()[0], replace(pair()[1], trained=False)], "has no partner"),
    "a partner of another adapter": (POLICY, [pair()[0], pair(adapter="lab")[1]], "has no partner"),
    "factors of an embedding": (
        POLICY,
        [*pair(), factor("0.e", 4, names=("layers.0.e.lora_embedding_A.clinic",))],
        "a factor of an embedding",
    ),
    "the other factor of an embedding": (
        POLICY,
        [*pair(), factor("0.e", 4, names=("layers.0.e.lora_embedding_B.clinic",))],
        "a factor of an embedding",
    ),
    "a magnitude": (POLICY, [*pair(), factor("0.q.lora_magnitude_vector.clinic", 4)], "the magnitude of DoRA"),
    "factors without a module": (
        POLICY,
        [replace(t, names=(t.names[0].removesuffix(".weight"),)) for t in pair()],
        "is not named P.lora_A.clinic.weight",
    ),
    "a bias of lora_A": (POLICY, [*pair(), factor("0.q", 4, names=("layers.0.q.lora_A.clinic.bias",))], "has no partner"),
    "a factor with two names": (
        POLICY,
        [
            *pair("1.q"),
            replace(pair()[0], names=("layers.0.q.lora_B.clinic.weight", "layers.0.v.lora_B.clinic.weight")),
            pair()[1],
        ],
        "has 2 names",
    ),
    "an adapter by name alone": (POLICY, [*pair("1.q"), factor("0.q.lora_B.clinic", 12, None)], "of the model itself in the"),
    "a pair of no adapter": (
        POLICY,
        [*pair("1.q"), factor("0.q.lora_B.ward", 12, None), factor("0.q.lora_A.ward", 8, None)],
        "is of adapter 'ward' by its name, and of the model itself in the stack",
    ),
    "another adapter than by name": (
        only("clinic"),
        [*pair("1.q"), factor("0.q.lora_A.clinic", 8, "lab")],
        "of adapter 'lab' in the stack",
    ),
    "heads of which a class has some": (
        replace(POLICY, classes=(WHOLE, MASKED)),
        [replace(pair()[0], divisions=each()), replace(pair()[1], divisions=whole())],
        "layers.0.q.lora_B.clinic.weight of a pair is cut by a mask of heads or experts into",
    ),
    "heads of which nobody has the rest": (
        replace(POLICY, classes=(MASKED,)),
        [replace(pair()[0], divisions=each()), replace(pair()[1], divisions=whole())],
        "cut by a mask",
    ),
    "a depth that has one factor": (replace(POLICY, classes=(PATTERNS,)), pair(), "and its partner in layer.0 (frozen)"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_no_pair_is_refused_by_name(name):
    policy, tensors, told = REFUSALS[name]
    assert told in refused(policy, *tensors)


@pytest.mark.parametrize("rank", [0, -1, 3, 16, True, 2.0, None, "2"])
def test_a_rank_that_does_not_fit_is_refused(rank):
    assert "lora_B.clinic.weight" in refused(POLICY, *pair(), ranks={"layers.0.q.lora_B.clinic.weight": rank})


def test_ranks_are_those_of_the_pairs():
    assert "has no rank" in refused(POLICY, *pair(), ranks={})
    stray = {"layers.0.q.lora_B.clinic.weight": 2, "layers.0.q.lora_A.clinic.weight": 2}
    assert "lora_A.clinic.weight', which is no pair" in refused(POLICY, *pair(), ranks=stray)


def test_an_empty_factor_has_no_rank():
    assert "divides the 12 and 0" in refused(POLICY, pair()[0], replace(pair()[1], coordinates=0))


def test_a_mask_that_leaves_pairs_whole_is_no_obstacle():
    """All heads, or a pair that no mask divides."""
    every = replace(WHOLE, depth=replace(WHOLE.depth, heads=(0, 1)))
    tensors = [replace(pair()[0], divisions=each()), replace(pair()[1], divisions=whole())]
    stack = stack_of(4, *tensors, *pair("1.mlp"))
    assert len(pairs_of(replace(POLICY, classes=(every,)), stack, ranks_of(stack))) == 2
    stack = stack_of(4, *pair("1.mlp"), factor("0.q", 8, None, divisions=each()))
    assert len(pairs_of(replace(POLICY, classes=(WHOLE, MASKED)), stack, ranks_of(stack))) == 1


def test_a_pair_that_no_class_may_touch_is_a_pair():
    upper = replace(WHOLE, depth=DepthRule(band=(Fraction(1, 2), Fraction(1))))
    stack = stack_of(4, *pair("0.q"), *pair("3.q"))
    found = pairs_of(replace(POLICY, classes=(upper,)), stack, ranks_of(stack))
    blocks = derive((upper,), stack)
    assert [blocks[p.block].name for p in found] == ["layer.0 (frozen)", "layer.3"]
