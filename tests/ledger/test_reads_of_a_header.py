"""Reads of a header: its bytes, what they must say, and which parts of a model a release then certifies free of a class."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import release_models

from attest import cbor
from attest.policy import ClassRule, DepthRule
from attest.policy.classes import ReadRule
from attest.policy.mechanism import GeometryRule
from attest.schedule.reads import FORWARDS
from ledger.errors import LeafRefused, ReleaseRefused
from ledger.leaves import Header, HeaderSpec, decode_leaf, encode_leaf
from ledger.leaves.reads import ClassReads, Reads
from ledger.release import Rights, check_release, choose_artifact, release
from ledger.replay.influence import artifacts
from tests.attest.test_geometry import pair
from tests.worlds.ledgers import SIGNER, START, header_spec, parameter, signed_policy, stack_of

BASE = parameter("layers.0.weight", 5, trained=False)
ONE, TWO = (parameter(f"layers.0.lora_A.{name}.weight", 6, adapter=name) for name in ("one", "two"))
TENSORS = (BASE, ONE, TWO)
OPEN, SENSITIVE = ["open", [0, 2]], ["sensitive", [1, 2]]
"""The rows of the two classes: blocks 0 and 1 are the adapters, 2 is the base."""


def rule(name: str, reads: tuple[str, ...] | None, **depth: Any) -> ClassRule:
    bounds = {"clip_norm_micro": 10**6, "noise_multiplier_micro": 10**6, "sampling_rate": Fraction(1, 50)}
    own = None if reads is None else ReadRule(adapters=reads)
    return ClassRule(name=name, depth=DepthRule(**depth), reads=own, **bounds)


def spec(*rules: ClassRule, tensors: Any = TENSORS, **changes: Any) -> HeaderSpec:
    own = rules or (rule("open", ("one",), adapter="one"), rule("sensitive", ("two",), adapter="two"))
    policy = {"classes": own, "isolation_required": True} | changes.pop("policy", {})
    return header_spec(signed_policy(**policy), stack=stack_of(1, *tensors), **changes)


def made(*rules: ClassRule, **changes: Any) -> Header:
    return spec(*rules, **changes).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)


def plain(header: Header) -> dict[int, Any]:
    found: dict[int, Any] = cbor.decode(encode_leaf(header), max_size=1 << 16)
    return found


def refused(value: dict[int, Any]) -> LeafRefused:
    with pytest.raises(LeafRefused) as caught:
        decode_leaf(cbor.encode(value))
    return caught.value


def reached(header: Header) -> dict[str, tuple[bool, ...]]:
    return {part.name: part.influenced_by for part in artifacts(header, final=True)}


def test_a_header_says_what_each_class_reads_and_is_read_back():
    header = made()
    assert decode_leaf(encode_leaf(header)) == header
    assert [plain(header)[key] for key in (28, 29, 30)] == [[], None, [FORWARDS, [OPEN, SENSITIVE]]]
    assert header.reading == {"open": {0, 2}, "sensitive": {1, 2}}


def test_a_header_whose_policy_has_no_reads_keeps_its_bytes_and_every_class_reads_everything():
    header = made(rule("open", None, adapter="one"), rule("sensitive", None, adapter="two"))
    assert header.reads is None and max(plain(header)) == 27
    assert set(header.reading.values()) == {frozenset({0, 1, 2})}


def test_a_class_without_reads_beside_one_with_them_reads_everything():
    header = made(rule("open", ("one",), adapter="one"), rule("sensitive", None, adapter="two"))
    assert plain(header)[30] == [FORWARDS, [OPEN, ["sensitive", [0, 1, 2]]]]


def test_reads_and_a_geometry_stand_beside_each_other():
    tensors = (*pair("0.q", 6, 4, 2), BASE)
    own = (rule("open", ("clinic",), adapter="clinic"), rule("sensitive", ("clinic",), adapter="clinic"))
    ranks = {"layers.0.q.lora_B.clinic.weight": 2}
    header = made(*own, tensors=tensors, ranks=ranks, policy={"geometry": (GeometryRule("lora_tangent"),)})
    assert decode_leaf(encode_leaf(header)) == header and header.pairs and plain(header)[29] is not None
    assert refused(plain(header) | {29: None}).code == "GEOMETRY"


WRONG: dict[str, tuple[Any, str]] = {
    "another rule of forwards": (["dptrain.forwards/2", [OPEN, SENSITIVE]], "READS"),
    "no classes": ([FORWARDS, []], "TYPE"),
    "a class too few": ([FORWARDS, [OPEN]], "READS"),
    "classes out of order": ([FORWARDS, [SENSITIVE, OPEN]], "READS"),
    "a class twice": ([FORWARDS, [OPEN, OPEN]], "READS"),
    "a class of another name": ([FORWARDS, [OPEN, ["other", [1, 2]]]], "READS"),
    "a block less": ([FORWARDS, [["open", [0]], SENSITIVE]], "READS"),
    "a block more": ([FORWARDS, [["open", [0, 1, 2]], SENSITIVE]], "READS"),
    "the adapter of another": ([FORWARDS, [["open", [1, 2]], SENSITIVE]], "READS"),
    "a block beyond the model": ([FORWARDS, [["open", [0, 2, 3]], SENSITIVE]], "READS"),
    "blocks out of order": ([FORWARDS, [["open", [2, 0]], SENSITIVE]], "READS"),
    "no block": ([FORWARDS, [["open", []], SENSITIVE]], "TYPE"),
    "a place below nothing": ([FORWARDS, [["open", [-1, 2]], SENSITIVE]], "RANGE"),
    "a field more": ([FORWARDS, [OPEN, SENSITIVE], 1], "SCHEMA"),
    "null": (None, "SCHEMA"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_follow_from_policy_and_stack_about_reads_is_refused(name):
    said, code = WRONG[name]
    assert refused(plain(made()) | {30: said}).code == code


def test_the_field_stands_exactly_where_a_class_has_reads():
    with_it, without = plain(made()), plain(made(rule("open", None, adapter="one"), rule("sensitive", None, adapter="two")))
    assert refused({key: value for key, value in with_it.items() if key < 28}).code == "READS"
    assert refused({key: value for key, value in with_it.items() if key < 30}).code == "SCHEMA"
    claimed = refused(without | {key: with_it[key] for key in (28, 29, 30)})
    assert claimed.code == "READS" and "no class of the policy has any" in claimed.sentence
    assert refused(with_it | {31: 1}).code == "SCHEMA"


def test_a_header_of_reads_made_by_hand_is_held_to_the_same_rule():
    header = made()
    for reads in (None, Reads(FORWARDS, (ClassReads("open", (0, 2)), ClassReads("sensitive", (0, 1, 2))))):
        with pytest.raises(LeafRefused) as caught:
            replace(header, reads=reads)
        assert caught.value.code == "READS"


def test_where_one_generator_serves_everybody_nobody_reads_apart():
    with pytest.raises(LeafRefused, match="random numbers") as caught:
        made(randomness="unaddressed")
    assert caught.value.code == "READS"


def test_what_reads_cannot_be_of_is_refused_where_the_stack_is_known():
    loose = parameter("layers.0.q.weight", 6, adapter="two")
    for rules, tensors, told in (
        ((rule("open", ("one",), adapter="one"), rule("sensitive", ("six", "two"), adapter="two")), TENSORS, "'six'"),
        ((rule("open", ("one",), band=(Fraction(0), Fraction(1))), rule("sensitive", ("two",), adapter="two")), TENSORS,
         "does not read"),
        ((), (*TENSORS, loose), "not by its name"),
    ):  # fmt: skip
        with pytest.raises(LeafRefused, match=told) as caught:
            made(*rules, tensors=tensors)
        assert caught.value.code == "READS"


def test_an_adapter_that_nobody_else_reads_is_influenced_by_its_own_class_alone():
    assert reached(made()) == {
        "full": (True, True), "base": (False, False), "adapter:one": (True, False), "adapter:two": (False, True)
    }  # fmt: skip


def test_influence_follows_the_reads_and_no_more():
    chain = made(rule("open", ("one",), adapter="one"), rule("sensitive", ("one", "two"), adapter="two"))
    assert reached(chain)["adapter:one"] == (True, False), "nobody whom open reads"
    assert reached(chain)["adapter:two"] == (True, True), "one is read by sensitive, which writes two"
    everybody = made(rule("open", ("one",), adapter="one"), rule("sensitive", None, adapter="two"))
    assert reached(everybody)["adapter:two"] == (True, True)


def test_a_base_that_a_class_trains_leads_to_every_adapter():
    base = replace(BASE, trained=True)
    header = made(
        rule("open", ("one",), adapter="one"), rule("sensitive", (), patterns=("layers.0.weight",)), tensors=(base, ONE, TWO)
    )
    assert reached(header)["adapter:one"] == (True, True)
    assert reached(header)["base"] == (False, True), "the class of the base reads no adapter"


def patched(monkeypatch: pytest.MonkeyPatch, weights: release_models.Tensors) -> None:
    """Lets the runs of `release_models` train the tensors of two adapters."""
    records = release_models.records
    monkeypatch.setattr(release_models, "WEIGHTS", weights)
    monkeypatch.setattr(
        release_models, "records",
        lambda tensors: tuple(replace(record, adapter=record.names[0].split(".")[3]) for record in records(tensors)),
    )  # fmt: skip


@pytest.fixture
def released(path, tmp_path, monkeypatch):
    """A release of a base and two adapters, one folder each, of a run in which nobody reads the adapter of another."""
    patched(monkeypatch, {tensor.names[0]: ("F32", [6], bytes(24)) for tensor in (ONE, TWO)})
    driver = release_models.run_to_the_end(path, spec())
    with driver.ledger:
        yield release(driver.ledger, release_models.model(tmp_path / "model"), now=driver.tick())


def test_a_release_certifies_an_epsilon_of_0_where_no_path_leads(released):
    manifest = released.manifest
    cost = {row.name: row.epsilon_micro for row in manifest.classes}
    assert manifest.epsilon_micro("adapter:one", 0) == cost["open"] > 0 == manifest.epsilon_micro("adapter:one", 1)
    assert manifest.epsilon_micro("adapter:two", 1) == cost["sensitive"] > 0 == manifest.epsilon_micro("adapter:two", 0)
    told = [sentence for sentence in manifest.statements if "no path leads from class " in sentence]
    assert [("sensitive" in one, "adapter:one" in one) for one in told] == [(True, True), (False, False)]
    assert not any("All adapters are active" in sentence for sentence in manifest.statements)
    report = check_release(released.path.parent, [SIGNER.vkey])
    assert report.verdict == "TOLD", report.findings


def test_the_weights_of_an_earlier_epoch_certify_no_adapter_free(path, tmp_path, monkeypatch):
    """Which epoch is released may have followed from what another class released."""
    weights = {tensor.names[0]: ("F32", [6], bytes(24)) for tensor in (ONE, TWO)}
    patched(monkeypatch, weights)
    driver = release_models.run_to_the_end(path, spec())
    with driver.ledger:
        monkeypatch.setattr(release_models, "WEIGHTS", release_models.weights_of_epoch(3))
        made = release(driver.ledger, release_models.model(tmp_path / "model"), now=driver.tick())
    assert made.manifest.weights.step == 24 < made.manifest.step
    assert [part.influenced_by for part in made.manifest.artifacts if part.name == "adapter:one"] == [(True, True)]
    assert check_release(tmp_path / "model", [SIGNER.vkey]).verdict == "TOLD"


def test_rights_that_name_its_own_class_alone_open_an_adapter_and_no_other(released):
    report = check_release(released.path.parent, [SIGNER.vkey])
    alone = Rights({"open": None}, told=True, untied=True)
    assert choose_artifact(report, alone, ["adapter:one"]) == "adapter:one"
    with pytest.raises(ReleaseRefused) as caught:
        choose_artifact(report, alone, ["adapter:two"])
    assert caught.value.code == "CLASS"
    with pytest.raises(ReleaseRefused):
        choose_artifact(report, alone, ["full"])
