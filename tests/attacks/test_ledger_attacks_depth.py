"""Rows B20 and B21 of the attack list, for the blocks of a header: a log that says other depths than the owner signed.

The liar has the log's key and writes leaf 0 at will. What does not follow from the signed policy and the named stack is
refused by the writer and found by an auditor. What is said of the stack itself is the operator's word: it is told as such,
and a release whose tensors have other names, sizes or values is found.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from attest import cbor
from attest.policy import DepthRule
from attest.schedule.stack import NO_TOWER, Division, Stack, StackTensor
from ledger.audit import verify_export
from ledger.errors import LeafRefused
from ledger.export import write_export
from ledger.leaves import Epoch, Header, HeaderBlock, HeaderSpec, Leaf, encode_leaf
from ledger.leaves.header import scheduled_blocks
from ledger.leaves.weights import WeightRecord, frozen_digest
from ledger.log import Ledger
from ledger.merkle import leaf_hash, root
from ledger.note import checkpoint_text, sign_note
from ledger.release.check import check_release
from ledger.release.create import release
from ledger.replay.signer import KeyChain
from ledger.storage.store import Row
from tests.ledger.release_models import safetensors
from tests.worlds.ledgers import SIGNER, STACK, START, Driver, admission, header_spec, parameter, signed_policy, stack_of
from tests.worlds.retained_ledgers import leaves_of

TOLD = "names, order and coordinates"
Blocks = Sequence[HeaderBlock]


def policy(**depths: DepthRule):
    """The policy of the other attacks, with other depths."""
    rules = signed_policy().policy.classes
    return signed_policy(classes=tuple(replace(rule, depth=depths.get(rule.name, rule.depth)) for rule in rules))


def run_of(place: Path, spec: HeaderSpec | None = None) -> list[Leaf]:
    """A whole run: two epochs of two windows, five admissions, a withdrawal."""
    with Ledger.create(place, spec or header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        return leaves_of(ledger)


def lying(header: Header, blocks: Blocks) -> bytes:
    """Leaf 0 with other blocks, as canonical as an honest one."""
    value = cbor.decode(encode_leaf(header))
    order = [rule.name for rule in header.policy.classes]
    groups: dict[tuple[tuple[str, ...], float], int] = {}
    rows = [[b.name, b.coordinates, groups.setdefault((b.classes, b.std), len(groups))] for b in blocks]
    value[13] = [[[order.index(name) for name in classes], std] for classes, std in groups]
    value[14] = rows
    return cbor.encode(value)


def exported(leaves: Sequence[Leaf], first: bytes, directory: Path) -> Path:
    """The leaves behind another leaf 0, signed with the log's own key."""
    bodies = [first, *map(encode_leaf, leaves[1:])]
    note = sign_note(checkpoint_text(SIGNER.name, len(bodies), root(bodies)), SIGNER)
    rows = [Row(seq, 0, leaf_hash(body), body) for seq, body in enumerate(bodies)]
    return write_export(leaves[0], rows, note, directory, keys=KeyChain(leaves[0]))


def refused(leaves: Sequence[Leaf], change: Callable[[list[HeaderBlock]], Blocks], code: str, tmp_path: Path) -> None:
    """The header is none for whoever writes it, and an auditor names the lie; nothing is wrong with the honest one."""
    header = leaves[0]
    assert isinstance(header, Header) and lying(header, header.blocks) == encode_leaf(header)
    assert verify_export(exported(leaves, encode_leaf(header), tmp_path / "honest"), [SIGNER.vkey]).verdict == "TOLD"
    blocks = tuple(change(list(header.blocks)))
    assert blocks != header.blocks
    with pytest.raises(LeafRefused) as caught:
        replace(header, blocks=blocks)
    assert caught.value.code == code
    report = verify_export(exported(leaves, lying(header, blocks), tmp_path / "lie"), [SIGNER.vkey])
    assert report.verdict == "FAILED"
    assert [(found.code, found.where) for found in report.findings] == [(code, "seq 0")]


def at(blocks: list[HeaderBlock], place: int, **changes: object) -> list[HeaderBlock]:
    blocks[place] = replace(blocks[place], **changes)
    return blocks


@pytest.fixture(scope="module")
def leaves(tmp_path_factory) -> list[Leaf]:
    return run_of(tmp_path_factory.mktemp("run") / "ledger.db")


# --- bands ------------------------------------------------------------------------------


def test_B20_a_band_widened_by_a_block_below_it_is_found(leaves, tmp_path):
    """With the noise that both classes need there, as the max rule has it."""
    both = leaves[0].blocks[2]
    refused(leaves, lambda found: at(found, 1, classes=both.classes, std=both.std), "DEPTH_WIDER", tmp_path)


def test_B20_a_band_narrowed_by_a_block_in_it_is_found(leaves, tmp_path):
    """Fewer classes, less noise: sensitive would keep its word, and open would lose a block and its waste."""
    refused(leaves, lambda found: at(found, 2, classes=("sensitive",)), "DEPTH_NARROWER", tmp_path)


def test_B20_a_block_left_out_of_the_schedule_is_found(leaves, tmp_path):
    refused(leaves, lambda found: [found[0], *found[2:]], "DEPTH_DROPPED", tmp_path)


def test_B20_a_frozen_block_left_out_is_found(leaves, tmp_path):
    refused(leaves, lambda found: found[:3], "DEPTH_DROPPED", tmp_path)


def test_B21_a_block_recorded_as_frozen_with_noise_0_is_found(leaves, tmp_path):
    refused(leaves, lambda found: at(found, 1, classes=(), std=0.0), "DEPTH_NARROWER", tmp_path)


def test_B20_blocks_in_the_wrong_order_are_found(leaves, tmp_path):
    refused(leaves, lambda found: [found[1], found[0], *found[2:]], "DEPTH_ORDER", tmp_path)


def test_B20_layers_that_trade_names_are_found_where_their_classes_or_sizes_differ(leaves, tmp_path):
    def traded(found: list[HeaderBlock]) -> Blocks:
        a, b = found[1].name, found[2].name
        return at(at(found, 1, name=b), 2, name=a)

    refused(leaves, traded, "DEPTH_WIDER", tmp_path)


def test_B20_another_number_of_coordinates_is_found(leaves, tmp_path):
    refused(leaves, lambda found: at(found, 1, coordinates=1), "COORDINATES", tmp_path)


# --- patterns, heads, experts, adapters ---------------------------------------------------


def test_B20_a_block_renamed_out_of_a_pattern_is_found(tmp_path):
    spec = header_spec(policy(sensitive=DepthRule(patterns=("layers.2.*",))))
    leaves = run_of(tmp_path / "ledger.db", spec)

    def renamed(found: list[HeaderBlock]) -> Blocks:
        return at(found, 2, name="layer.3", classes=("open",), std=found[0].std)

    refused(leaves, renamed, "DEPTH_NARROWER", tmp_path)


def owned(name: str, kind: str, count: int) -> StackTensor:
    """A parameter of layer 0, ten coordinates of which belong to each head or expert."""
    division = Division(kind, count, tuple((owner, owner + 1, 1) for owner in range(count)))
    return StackTensor((name,), 10 * count, ((NO_TOWER, 0),), divisions=(division,))


ATTENTION = stack_of(1, owned("layers.0.q.weight", "heads", 4), owned("layers.0.experts", "experts", 3))
BAND = (Fraction(0), Fraction(1))


@pytest.mark.parametrize("kind", ["heads", "experts"])
def test_B20_a_mask_widened_by_one_head_or_expert_is_found(tmp_path, kind):
    narrow, wide = (policy(sensitive=DepthRule(band=BAND, **{kind: own})) for own in ((0,), (0, 1)))
    leaves = run_of(tmp_path / "ledger.db", header_spec(narrow, stack=ATTENTION))
    refused(leaves, lambda _: scheduled_blocks(wide.policy, ATTENTION), "DEPTH_WIDER", tmp_path)


@pytest.mark.parametrize("kind", ["heads", "experts"])
def test_B20_a_mask_narrowed_by_one_head_or_expert_is_found(tmp_path, kind):
    narrow, wide = (policy(sensitive=DepthRule(band=BAND, **{kind: own})) for own in ((0,), (0, 1)))
    leaves = run_of(tmp_path / "ledger.db", header_spec(wide, stack=ATTENTION))
    refused(leaves, lambda _: scheduled_blocks(narrow.policy, ATTENTION), "DEPTH_NARROWER", tmp_path)


ADAPTERS = stack_of(1, parameter("layers.0.one", 8, adapter="one"), parameter("layers.0.two", 8, adapter="two"))


def test_B20_classes_that_trade_adapters_are_found(tmp_path):
    own = policy(open=DepthRule(adapter="one"), sensitive=DepthRule(adapter="two"))
    leaves = run_of(tmp_path / "ledger.db", header_spec(own, stack=ADAPTERS))

    def swapped(found: list[HeaderBlock]) -> Blocks:
        a, b = found
        return [replace(a, classes=b.classes, std=b.std), replace(b, classes=a.classes, std=a.std)]

    refused(leaves, swapped, "DEPTH_WIDER", tmp_path)


# --- what is said of the stack itself: told, and found in a release ----------------------------


def tensors(**values: tuple[str, int]) -> dict[str, tuple[str, list[int], bytes]]:
    """Tensors of bytes by name, as safetensors has them."""
    return {name.replace("__", "."): ("U8", [size], bytes([byte]) * size) for name, (byte, size) in values.items()}


def committed(found: dict[str, tuple[str, list[int], bytes]], *, frozen: frozenset[str] = frozenset(), **adapters: str):
    """What an epoch commits to of them; those of an adapter by the last part of their names."""
    rows = []
    for name, (dtype, shape, data) in found.items():
        adapter, digest = adapters.get(name.rpartition(".")[2]), hashlib.sha256(data).digest()
        rows.append(WeightRecord((name,), adapter, name not in frozen, dtype, tuple(shape), digest))
    return tuple(rows)


MODEL = tensors(layers__0__weight=(1, 6), layers__1__weight=(2, 100), layers__2__weight=(3, 4), embedding__weight=(4, 1000))
FROZEN = frozenset({"embedding.weight"})


def released(tmp_path: Path, spec: HeaderSpec, records: Sequence[WeightRecord], found=None):
    """The verdict on the export, its notes, and the check of a release of these tensors."""
    with Ledger.create(tmp_path / "ledger.db", spec, SIGNER, now=START) as ledger:
        driver = Driver(ledger, frozen_digest=spec.frozen_digest)
        driver.digest = ledger.keep_weights(records)
        driver.admit(admission(1), admission(3, "sensitive"))
        driver.steps(2)
        driver.epoch()
        directory = tmp_path / "model"
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(safetensors(found or MODEL))
        release(ledger, directory, now=driver.tick())
        report = verify_export(ledger.export(tmp_path / "export"), [SIGNER.vkey])
    checked = check_release(directory, [SIGNER.vkey])
    return report, checked


def without(name: str, *others: StackTensor) -> Stack:
    """The usual stack with other parameters in the place of one."""
    return stack_of(4, *(tensor for tensor in STACK.tensors if tensor.names != (name,)), *others)


def commits(records: Sequence[WeightRecord], stack: Stack = STACK) -> bytes | None:
    return frozen_digest(records, stack.names)


def test_a_run_whose_release_has_the_tensors_of_its_stack_passes_and_nothing_frozen_is_as_told(tmp_path):
    records = committed(MODEL, frozen=FROZEN)
    report, checked = released(tmp_path, header_spec(frozen_digest=commits(records)), records)
    assert report.verdict == checked.verdict == "TOLD"
    assert sum(TOLD in note for note in report.notes) == sum("frozen, as told" in note for note in report.notes) == 1
    assert not any("as told" in note for note in checked.notes) and checked.weights.status == "TIED"
    assert "FROZEN_TOLD" in report.qualifiers and "FROZEN_TOLD" not in checked.qualifiers


def test_B20_a_parameter_renamed_out_of_a_pattern_is_told_as_the_operators_word_and_found_in_a_release(tmp_path):
    """Sensitive may touch layer 2 alone, by name; the header calls that tensor another name."""
    stack = without("layers.2.weight", parameter("layers.3.weight", 4))
    spec = header_spec(policy(sensitive=DepthRule(patterns=("layers.1.*",))), stack=stack)
    report, checked = released(tmp_path, spec, committed(MODEL, frozen=FROZEN))
    assert report.verdict == "TOLD" and any(TOLD in note for note in report.notes)
    assert checked.verdict == "FAILED" and {found.code for found in checked.findings} == {"STACK"}
    assert "layers.2.weight" in checked.findings[0].sentence


def test_B21_a_parameter_said_to_be_untrained_is_told_to_be_frozen_and_found_in_a_release(tmp_path):
    """Layer 1 was trained without noise. Its record says that it was trained, or has not the values of before."""
    lied = without("layers.1.weight", parameter("layers.1.weight", 100, trained=False))
    before = committed(MODEL | tensors(layers__1__weight=(9, 100)), frozen=FROZEN | {"layers.1.weight"})
    spec = header_spec(stack=lied, frozen_digest=commits(before, lied))
    for number, frozen in enumerate((FROZEN, FROZEN | {"layers.1.weight"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        report, checked = released(folder, spec, committed(MODEL, frozen=frozen))
        assert report.verdict == "TOLD" and report.blocks[1].classes == ("open", "sensitive")
        assert "FROZEN_TOLD" in report.qualifiers and any("frozen, as told: 1,100 coordinates" in note for note in report.notes)
        assert checked.verdict == "FAILED"
        assert {found.code for found in checked.findings} == ({"STACK", "FROZEN"} if number == 0 else {"FROZEN"})


def test_B21_frozen_values_that_a_record_repeats_and_the_files_do_not_have_are_not_tied(tmp_path):
    lied = without("layers.1.weight", parameter("layers.1.weight", 100, trained=False))
    before = committed(MODEL | tensors(layers__1__weight=(9, 100)), frozen=FROZEN | {"layers.1.weight"})
    _, checked = released(tmp_path, header_spec(stack=lied, frozen_digest=commits(before, lied)), before)
    assert checked.weights.status == "UNTIED" and checked.weights.files[0].changed == ("layers.1.weight",)
    assert {"FROZEN_TOLD", "WEIGHTS_NOT_TIED"} <= set(checked.qualifiers)


def test_B21_an_epoch_with_other_frozen_parameters_than_the_header_is_found(tmp_path):
    digest = commits(committed(MODEL, frozen=FROZEN))
    with Ledger.create(tmp_path / "ledger.db", header_spec(frozen_digest=digest), SIGNER, now=START) as ledger:
        driver = Driver(ledger, frozen_digest=digest)
        driver.whole_run()
        leaves = leaves_of(ledger)
    seq = next(leaf.seq for leaf in leaves if isinstance(leaf, Epoch))
    for number, other in enumerate((bytes(32), None)):
        lied = [replace(leaf, frozen_digest=other) if leaf.seq == seq else leaf for leaf in leaves]
        report = verify_export(exported(lied, encode_leaf(lied[0]), tmp_path / str(number)), [SIGNER.vkey])
        assert [(found.code, found.where) for found in report.findings] == [("FROZEN", f"seq {seq}")]


def test_B21_the_writer_closes_no_epoch_with_other_frozen_parameters(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(frozen_digest=bytes(32)), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps(1)
        with pytest.raises(LeafRefused) as caught:
            driver.epoch()
        assert caught.value.code == "FROZEN"


def test_B20_a_parameter_of_another_size_is_told_as_the_operators_word_and_found_in_a_release(tmp_path):
    stack = without("layers.0.weight", parameter("layers.0.weight", 7))
    report, checked = released(tmp_path, header_spec(stack=stack), committed(MODEL, frozen=FROZEN))
    assert report.verdict == "TOLD" and any(TOLD in note for note in report.notes)
    assert [found.code for found in checked.findings] == ["STACK"]


def test_B20_a_parameter_left_out_of_the_stack_is_told_as_the_operators_word_and_found_in_a_release(tmp_path):
    stack = without("layers.1.weight")
    report, checked = released(tmp_path, header_spec(stack=stack), committed(MODEL, frozen=FROZEN))
    assert report.verdict == "TOLD" and any(TOLD in note for note in report.notes)
    assert [found.code for found in checked.findings] == ["STACK"]


def test_B20_parameters_that_trade_adapters_are_found_in_a_release(tmp_path):
    own = policy(open=DepthRule(adapter="one"), sensitive=DepthRule(adapter="two"))
    found = tensors(layers__0__one=(1, 8), layers__0__two=(2, 8))
    one, two = ADAPTERS.tensors
    swapped = replace(ADAPTERS, tensors=(replace(one, adapter="two"), replace(two, adapter="one")))
    records = committed(found, one="one", two="two")
    report, checked = released(tmp_path, header_spec(own, stack=swapped), records, found)
    assert report.verdict == "TOLD" and {item.code for item in checked.findings} == {"STACK"}


def test_B20_a_parameter_placed_in_another_layer_than_its_name_says_is_no_stack(leaves, tmp_path):
    """Layer 0 is called layer 3 by its place: a form with a place of its own, on the wire."""
    value = cbor.decode(encode_leaf(leaves[0]))
    words, towers, divisions, forms, rows = value[26]
    place = rows[1][0]
    forms[place] = [*forms[place][:3], [[0, 3]], forms[place][4]]
    value[26] = [words, towers, divisions, forms, rows]
    report = verify_export(exported(leaves, cbor.encode(value), tmp_path / "lie"), [SIGNER.vkey])
    assert [(found.code, found.where) for found in report.findings] == [("STACK", "seq 0")]


def test_B20_another_rule_of_depth_is_not_read(leaves, tmp_path):
    value = cbor.decode(encode_leaf(leaves[0])) | {25: "dptrain.depth/2"}
    report = verify_export(exported(leaves, cbor.encode(value), tmp_path / "lie"), [SIGNER.vkey])
    assert [(found.code, found.where) for found in report.findings] == [("DEPTH_SCHEMA", "seq 0")]


LIED = {"stack": without("layers.1.weight", parameter("layers.1.weight", 100, trained=False))}
"""A header that calls frozen what was trained without noise."""


def test_a_frozen_parameter_without_a_record_is_frozen_as_told(tmp_path):
    part = {name: tensor for name, tensor in MODEL.items() if name != "layers.1.weight"}
    records = committed(part, frozen=FROZEN)
    spec = header_spec(**LIED, frozen_digest=commits(records, LIED["stack"]))
    _, checked = released(tmp_path, spec, records, part)
    assert "FROZEN_TOLD" in checked.qualifiers
    assert any("have no record" in note and "layers.1.weight" in note for note in checked.notes)


def test_what_is_computed_from_a_frozen_parameter_is_what_it_gives_as_told(tmp_path):
    """Changed bytes are shipped under a name that is said to be computed from the frozen ones."""
    before = MODEL | tensors(layers__1__weight=(9, 100))
    records = list(committed(before, frozen=FROZEN | {"layers.1.weight"}))
    dtype, shape, data = MODEL["layers.1.weight"]
    made = ("base.layers.1.weight",), None, False, dtype, tuple(shape), hashlib.sha256(data).digest(), ("layers.1.weight",)
    records = tuple(sorted([*records, WeightRecord(*made)], key=lambda record: record.names[0]))
    files = {name: tensor for name, tensor in MODEL.items() if name != "layers.1.weight"}
    spec = header_spec(**LIED, frozen_digest=commits(records, LIED["stack"]))
    _, checked = released(tmp_path, spec, records, files | {"base.layers.1.weight": MODEL["layers.1.weight"]})
    assert "FROZEN_TOLD" in checked.qualifiers
    assert any("computed from frozen ones" in note and "base.layers.1.weight" in note for note in checked.notes)
