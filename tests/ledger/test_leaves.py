"""Leaves: one encoding per leaf, nothing else accepted, headers that cannot lie about their policy."""

from dataclasses import fields, replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor
from attest.keys import public_bytes
from attest.policy import MechanismRule
from attest.schedule.stack import Stack
from attest.schema.plain import EARLIEST, MAX_TIME
from ledger.errors import LeafRefused
from ledger.leaves import (
    MAX_LEAF_SIZE,
    Admit,
    Charge,
    ChargeClass,
    Clock,
    Close,
    Epoch,
    EpochClass,
    HeaderBlock,
    Key,
    Previous,
    Registry,
    Release,
    Resume,
    Settle,
    Spend,
    SpendRow,
    Summary,
    SummaryClass,
    SummaryKind,
    Withdraw,
    codec,
    decode_leaf,
    encode_leaf,
)
from ledger.leaves.numerics import Numerics, exactness_note
from ledger.note import NoteSigner
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, OWNER_KEY, SIGNER, START, header_spec, parameter, signed_policy, stack_of

uints = st.integers(0, 2**63 - 1)
positive = st.integers(1, 2**63 - 1)
times = st.integers(EARLIEST, MAX_TIME - 1)
hashes = st.binary(min_size=32, max_size=32)
reals = st.floats(0, 1e300, allow_nan=False)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789._/-", min_size=1, max_size=64)
octets = {n: st.binary(min_size=n, max_size=n) for n in (8, 16, 64)}
printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=80)
charge_classes = st.builds(ChargeClass, names, uints, positive, positive, positive, reals, uints, hashes)
epoch_classes = st.builds(EpochClass, uints, uints, uints)


def rows(strategy):
    return st.lists(strategy, min_size=1, max_size=3).map(tuple)


@st.composite
def admissions(draw):
    limit = draw(st.just((0, 0)) | st.tuples(positive, st.integers(1, 10**12 - 1)))
    fields = (positive, times, hashes, names, uints, positive, positive, uints, hashes, octets[8], hashes, uints)
    return Admit(*(draw(field) for field in fields), *limit)


@st.composite
def spend_rows(draw):
    """Rows of groups, active or not, with and without a limit."""
    before = draw(uints)
    times = (before, draw(uints), draw(st.none() | st.integers(before, 2**63 - 1)))
    limit = draw(st.sampled_from([(0, 0), (1, 1), (2**63 - 1, 10**12 - 1)]))
    bounds = (draw(uints), draw(positive), draw(positive), draw(uints), draw(uints))
    own = (draw(positive), draw(hashes), draw(uints), draw(reals), draw(uints))
    return SpendRow(*bounds, *limit, *times, draw(uints), draw(reals), *own)


@st.composite
def summaries(draw):
    counts = draw(st.dictionaries(st.integers(1, 12), st.integers(1, 10**6), min_size=1))
    spent = draw(st.none() | uints)
    variance = draw(reals)
    per_class = SummaryClass(3, 2, spent, spent, variance, draw(st.floats(variance, 1e300)), draw(uints), draw(uints))
    return Summary(
        draw(positive),
        draw(times),
        7,
        7 + sum(counts.values()),
        tuple(SummaryKind(kind, counts[kind]) for kind in sorted(counts)),
        (per_class,) * draw(st.integers(1, 3)),
        draw(rows(hashes)),
        draw(hashes),
        draw(st.none() | positive),
    )


@st.composite
def clocks(draw):
    before = draw(st.integers(EARLIEST + 1, MAX_TIME - 1))
    return Clock(draw(positive), draw(st.integers(EARLIEST, before - 1)), before, draw(printable))


RECORDS = st.one_of(
    admissions(),
    st.builds(Charge, positive, times, positive, uints, positive, positive, rows(charge_classes), octets[16], uints),
    st.builds(Settle, positive, times, positive, uints, rows(reals)),
    st.builds(Spend, positive, times, rows(spend_rows())),
    st.builds(Withdraw, positive, times, hashes, st.none() | positive, names, hashes),
    st.builds(Epoch, positive, times, positive, uints, uints, rows(epoch_classes), hashes, printable, st.none() | hashes),
    st.builds(Resume, positive, times, positive, uints, positive, hashes, st.none() | positive),
    st.builds(Resume, positive, times, positive, st.just(0), st.none(), st.none(), st.none()),
    st.builds(Close, positive, times, uints, uints),
    summaries(),
    st.builds(Key, positive, times, printable, printable, octets[64], octets[64]),
    st.builds(Release, positive, times, uints, positive, hashes, hashes, hashes, hashes),
    clocks(),
    st.builds(Registry, positive, times, st.just(bytes(32)), hashes.filter(any)),
)


@given(RECORDS)
def test_every_record_round_trips(leaf):
    data = encode_leaf(leaf)
    assert decode_leaf(data) == leaf
    value = cbor.decode(data)
    assert list(value) == list(range(len(value))) and (value[0], value[1], value[2]) == (leaf.seq, leaf.KIND, leaf.time)


@given(st.lists(admissions(), min_size=1, max_size=3), st.data())
def test_admissions_are_encoded_by_form_as_the_general_encoder_writes_them(leaves, data):
    """Also those of a form that another leaf made, at any position and with any digests."""
    again = [replace(leaf, seq=data.draw(positive), anchor=data.draw(hashes)) for leaf in leaves]
    again += [replace(leaf, descriptor_hash=data.draw(hashes), attestation_hash=data.draw(hashes)) for leaf in leaves]
    few = codec.AdmitForms(most=2)
    for leaf in (*leaves, *again, *again, *leaves):
        expected = cbor.encode(codec._record_map(leaf))
        assert encode_leaf(leaf) == few.encode(leaf) == expected and decode_leaf(expected) == leaf


@settings(max_examples=300)
@given(RECORDS, st.data())
def test_a_changed_leaf_is_refused_or_decodes_to_other_content_with_the_same_bytes(leaf, data):
    changed = bytearray(encode_leaf(leaf))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded = decode_leaf(bytes(changed))
    except LeafRefused:
        return
    assert decoded != leaf and encode_leaf(decoded) == bytes(changed)


@given(RECORDS, st.sampled_from([None, True, False, -1, 2**63, 1.5, "x", b"x", [], {}]), st.data())
def test_a_field_of_another_type_is_refused_or_stays_itself(leaf, junk, data):
    value = cbor.decode(encode_leaf(leaf))
    key = data.draw(st.sampled_from(sorted(value)))
    value[key] = junk
    try:
        bad = cbor.encode(value)
    except Exception:
        return
    try:
        decoded = decode_leaf(bad)
    except LeafRefused:
        return
    assert encode_leaf(decoded) == bad


@given(RECORDS)
def test_missing_and_unknown_fields_are_refused(leaf):
    value = cbor.decode(encode_leaf(leaf))
    short = {key: item for key, item in value.items() if key != len(value) - 1}
    for bad in (short, {**value, len(value): 0}, {**value, -1: 0}, {**value, "a": 0}, list(value.values()), 0, None):
        with pytest.raises(LeafRefused):
            decode_leaf(cbor.encode(bad))


@pytest.mark.parametrize("kind", [-1, 6, 7, 10, 12, 13, 14, 15, 2**40, None, "1", True])
def test_reserved_and_unknown_kinds_are_refused(kind):
    with pytest.raises(LeafRefused):
        decode_leaf(cbor.encode({0: 1, 1: kind, 2: START}))


WIRE = (Admit, Charge, Settle, Spend, SpendRow, Epoch, Summary, SummaryClass, Key, Release, Clock, Registry, Previous)


def test_the_wire_order_of_fields_is_what_it_was():
    """A reordered field would change every ledger; this fails first."""
    assert {cls.__name__: " ".join(field.name for field in fields(cls)) for cls in WIRE} == {
        "Admit": "seq time descriptor_hash class_name profile_id clip_micro sigma_micro max_occurrences "
        "attestation_hash key_id anchor carried_micro max_epsilon_micro max_delta_pico",
        "Charge": "seq time window attempt first_step n_steps classes noise_stream fence",
        "Settle": "seq time window steps_released variances",
        "Spend": "seq time rows",
        "SpendRow": "profile_id clip_micro sigma_micro max_occurrences carried_micro max_epsilon_micro max_delta_pico "
        "window_before attempt_before window_until occurrences loss count members_root steps variance epsilon_micro",
        "Epoch": "seq time number step charged classes model_digest isolation frozen_digest",
        "Summary": "seq time first end kinds classes subtree_roots set_root previous",
        "SummaryClass": "contributions active sum_epsilon_micro max_epsilon_micro min_variance max_variance charged "
        "occurrences",
        "Key": "seq time old_vkey new_vkey old_signature new_signature",
        "Release": "seq time step size root manifest_digest artifacts_digest withdrawals_root",
        "Clock": "seq time before reason",
        "Registry": "seq time before after",
        "Previous": "origin size root header_digest log_vkey reason",
    }
    row = SpendRow(1, 500_000, 3_000_000, 0, 0, 0, 0, 2, 0, None, 0, 0.0, 5, b"\x01" * 32, 16, 2.25, 123_456)
    key = "91" + "01" + "1a0007a120" + "1a002dc6c0" + "00" * 4 + "02" + "00" + "f6" + "00" + "f90000"
    facts = "05" + "5820" + "01" * 32 + "10" + "f94080" + "1a0001e240"
    assert encode_leaf(Spend(7, 1_800_000_000, (row,))).hex() == "a4" + "0007" + "0104" + "021a6b49d200" + "0381" + key + facts


def make(**changes):
    spec = header_spec(**{key: value for key, value in changes.items() if key not in ("signer", "time")})
    signer = changes.get("signer", SIGNER)
    return spec.header(origin=signer.name, log_vkey=signer.vkey, time=changes.get("time", START))


def test_a_header_round_trips_with_its_policy_and_profiles():
    header = make(numerics=Numerics("float64", "device"), caps_enforced=True)
    decoded = decode_leaf(encode_leaf(header))
    assert decoded == header
    assert decoded.policy == signed_policy().policy and decoded.delta == 1e-6
    assert [(p.class_name, p.blocks) for p in decoded.profiles] == [("open", (0, 1, 2)), ("sensitive", (2,))]
    assert [decoded.min_std(index) for index in (0, 1)] == [1.0, 1.5]
    assert decoded.amplification == "poisson" and decoded.accountant.name == "pld"


def test_a_header_names_the_registry_and_no_ledger_of_another_schema_is_read():
    header = make(registry_root=b"\x05" * 32)
    value = cbor.decode(encode_leaf(header), max_size=MAX_LEAF_SIZE)
    assert value[20] == b"\x05" * 32 and decode_leaf(encode_leaf(header)) == header
    for root in (b"\x05" * 31, None, "x" * 32):
        with pytest.raises(LeafRefused):
            make(registry_root=root)
    before = {key: item for key, item in value.items() if key < 20} | {3: "dptrain.ledger/1"}
    with pytest.raises(LeafRefused, match=r"dptrain\.ledger/1.*dptrain\.ledger/4"):
        decode_leaf(cbor.encode(before))


def earlier(**changes) -> Previous:
    signer = NoteSigner(changes.pop("origin", "ledger.example/run0"), changes.pop("key", OTHER_KEY))
    fields = {"size": 77, "root": b"\x01" * 32, "header_digest": b"\x02" * 32, "log_vkey": signer.vkey, "reason": "spent"}
    return Previous(origin=signer.name, **fields | changes)


def test_a_header_cites_earlier_ledgers():
    cited = (earlier(), earlier(header_digest=b"\x03" * 32, reason="compromised"))
    header = make(previous=cited)
    assert decode_leaf(encode_leaf(header)) == header and header.previous == cited
    assert make().previous == ()


@pytest.mark.parametrize(
    "cited",
    [
        (earlier(), earlier(size=78)),
        (earlier(reason="compromised"), earlier(header_digest=bytes(32), reason="compromised")),
        (earlier(origin=SIGNER.name, reason="compromised"),),
        (earlier(key=LOG_KEY, reason="compromised"),),
        [earlier()],
        ("ledger.example/run0",),
    ],
    ids=["twice", "two compromised", "the compromised origin", "the compromised key", "a list", "a text"],
)
def test_a_header_refuses_earlier_ledgers_that_it_may_not_cite(cited):
    with pytest.raises(LeafRefused) as refused:
        make(previous=cited)
    assert refused.value.code in ("PREVIOUS", "TYPE")


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 0},
        {"root": bytes(31)},
        {"header_digest": "x" * 32},
        {"reason": "forgotten"},
        {"log_vkey": "nonsense"},
        {"log_vkey": SIGNER.vkey},
    ],
)
def test_an_earlier_ledger_is_cited_whole(changes):
    with pytest.raises(LeafRefused):
        earlier(**changes)


def test_a_summary_whose_kinds_do_not_fill_its_range_is_refused():
    row = SummaryClass(1, 1, 5, 5, 0.5, 1.0, 4, 4)
    kinds = (SummaryKind(1, 2), SummaryKind(4, 3))
    assert Summary(9, START, 2, 7, kinds, (row,), (bytes(32),), bytes(32), None).end == 7
    wrong = {
        "too short": (2, 6, kinds),
        "empty": (2, 2, kinds),
        "out of order": (2, 7, kinds[::-1]),
        "twice": (2, 6, (kinds[0], kinds[0])),
    }
    for first, end, found in wrong.values():
        with pytest.raises(LeafRefused):
            Summary(9, START, first, end, found, (row,), (bytes(32),), bytes(32), None)
    with pytest.raises(LeafRefused):
        SummaryClass(1, 1, 5, 5, 1.0, 0.5, 4, 4)


@pytest.mark.slow
def test_a_large_model_fits_one_leaf():
    """Eighty layers of nine parameters; a mixture of 64 experts in each, one by one, does too, and of 1024 does not."""

    def layers(parts) -> Stack:
        return stack_of(80, *(parameter(f"layers.{n}.{part}.weight", 4096 * 4096) for n in range(80) for part in parts))

    parts = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "norm1", "norm2")
    assert len(encode_leaf(make(stack=layers(parts)))) < 12_000
    assert len(encode_leaf(make(stack=layers([f"experts.{n}" for n in range(64)])))) < 60_000
    with pytest.raises(LeafRefused) as refused:
        encode_leaf(make(stack=layers([f"experts.{n}" for n in range(1024)])))
    assert refused.value.code == "SIZE"


def _blocks(**changes):
    blocks = list(make().blocks)
    for index, block in changes.items():
        blocks[int(index[1:])] = block
    return tuple(blocks)


BAD_HEADERS = {
    "other owner's key": dict(owner_key=public_bytes(OTHER_KEY)),
    "less noise than the max rule": dict(
        blocks=_blocks(b2=HeaderBlock("layer.2", 4, ("open", "sensitive"), 1.0))
    ),
    "more noise than the max rule": dict(blocks=_blocks(b0=HeaderBlock("layer.0", 6, ("open",), 2.0))),
    "noise on a frozen block": dict(blocks=_blocks(b3=HeaderBlock("embeddings (untrained)", 1000, (), 1.0))),
    "unknown class": dict(blocks=_blocks(b0=HeaderBlock("layer.0", 6, ("secret",), 1.0))),
    "classes out of order": dict(blocks=_blocks(b2=HeaderBlock("layer.2", 4, ("sensitive", "open"), 1.5))),
    "class named twice": dict(blocks=_blocks(b0=HeaderBlock("layer.0", 6, ("open", "open"), 1.0))),
    "two blocks of one name": dict(blocks=_blocks(b1=HeaderBlock("layer.0", 6, ("open",), 1.0))),
    "a class without blocks": dict(blocks=_blocks(b2=HeaderBlock("layer.2", 4, ("open",), 1.0))),
    "no blocks": dict(blocks=()),
    "short run id": dict(run_id=b"1"),
    "short fingerprint": dict(model_fingerprint=b"1"),
    "no word on isolation": dict(isolation=""),
    "a long word on isolation": dict(isolation="x" * 201),
    "isolation as a flag": dict(isolation=True),
    "randomness of another kind": dict(randomness="seeded"),
    "no randomness": dict(randomness=None),
    "an unprobed tensor without a name": dict(unprobed=("",)),
    "an unprobed tensor by number": dict(unprobed=(3,)),
    "private as a number": dict(private=1),
    "negative time": dict(time=-1),
    "boolean time": dict(time=True),
}


DERIVED = {
    "margin of one": (dict(clip_margin=1.0), "RANGE"),
    "margin NaN": (dict(clip_margin=float("nan")), "RANGE"),
    "margin of an int": (dict(clip_margin=0), "RANGE"),
    "no margin": (dict(clip_margin=0.0), "NUMERICS"),
    "the margin of another level": (dict(clip_margin=2.0**-20), "NUMERICS"),
    "empty note": (dict(exactness_note=""), "TYPE"),
    "a note of one's own": (dict(exactness_note="certified: every sum is exact"), "NUMERICS"),
    "the note of another level": (
        dict(exactness_note=exactness_note("certified", "gaussian", 22)),
        "NUMERICS",
    ),
}


@pytest.mark.parametrize("case", DERIVED, ids=str)
def test_what_a_header_says_of_its_numerics_is_what_its_policy_gives(case):
    changes, code = DERIVED[case]
    with pytest.raises(LeafRefused) as refused:
        replace(make(), **changes)
    assert refused.value.code == code


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("generator", ["host", "device"])
@pytest.mark.parametrize("exactness", ["fast", "certified"])
def test_precision_and_generator_are_read_from_what_the_header_says(precision, generator, exactness):
    word = Numerics(precision, generator)
    header = decode_leaf(encode_leaf(make(policy=signed_policy(exactness=exactness), numerics=word)))
    assert header.numerics == word
    for wrong in (("half", "host"), ("float32", "moon"), ("float32", "host", "bfloat16")):
        with pytest.raises(LeafRefused):
            Numerics(*wrong)


@pytest.mark.parametrize("wire", ["float32", "float32 sums"])
@pytest.mark.parametrize(("exactness", "precision"), [("fast", "float32"), ("fast", "float64"), ("certified", "float32")])
def test_sums_sent_as_float32_are_a_word_of_fast_float32_runs_alone(exactness, precision, wire):
    word = Numerics(precision, "host", wire)
    policy = signed_policy(exactness=exactness)
    if (exactness, precision) != ("fast", "float32"):
        with pytest.raises(LeafRefused, match="NUMERICS"):
            make(policy=policy, numerics=word)
        return
    header = decode_leaf(encode_leaf(make(policy=policy, numerics=word)))
    assert header.numerics == word and "float32 before they are added" in header.exactness_note
    assert ("sums over microbatches are float64" in header.exactness_note) == (wire == "float32"), "no sentence denies another"


@pytest.mark.parametrize(
    "row",
    [
        {"version": "pld-0"},
        {"library": "elsewhere"},
        {"parameters": "interval=1e-9 relation=ADD_OR_REMOVE_ONE rounding=up-1e-6"},
    ],
)
def test_an_accountant_that_never_recorded_anything_is_refused(row):
    header = make()
    with pytest.raises(LeafRefused) as refused:
        replace(header, accountant=replace(header.accountant, **row))
    assert refused.value.code == "ACCOUNTANT_VERSION" and "pld-2" in refused.value.sentence


@pytest.mark.parametrize("case", BAD_HEADERS, ids=str)
def test_headers_that_contradict_themselves_are_refused(case):
    with pytest.raises(LeafRefused):
        make(**BAD_HEADERS[case])


def test_mechanisms_without_accounting_are_refused():
    with pytest.raises(LeafRefused) as refused:
        make(policy=signed_policy(mechanism=MechanismRule("laplace")))
    assert refused.value.code == "POLICY_UNSUPPORTED"


def test_a_policy_with_another_payload_or_owner_is_refused():
    header = make()
    other = signed_policy(delta=Fraction(1, 10**5))
    for change in ({"policy_payload": other.payload}, {"policy_sign1": other.sign1}, {"owner": "mallory"}):
        with pytest.raises(LeafRefused):
            replace(header, **change)


def test_the_log_key_is_named_after_the_origin():
    header = make()
    for vkey in (NoteSigner("other", LOG_KEY).vkey, "nonsense", ""):
        with pytest.raises(LeafRefused):
            replace(header, log_vkey=vkey)
    assert public_bytes(OWNER_KEY) == header.owner_key


def test_a_header_says_what_its_optimizer_and_its_forward_leave_open():
    """Keys 22 to 24: isolation, randomness, unprobed tensors; names come in any order and stand in one."""
    header = make(isolation="optimizer Prodigy couples tensors", randomness="unaddressed", unprobed=("b", "a", "b"))
    value = cbor.decode(encode_leaf(header), max_size=MAX_LEAF_SIZE)
    assert [value[key] for key in (22, 23, 24)] == [header.isolation, "unaddressed", ["a", "b"]] and len(value) == 28
    assert decode_leaf(encode_leaf(header)) == header and header.unprobed == ("a", "b")
    for changed in ({24: ["b", "a"]}, {24: ["a", "a"]}, {24: None}, {24: "ab"}, {23: "x"}, {22: None}):
        with pytest.raises(LeafRefused):
            decode_leaf(cbor.encode(value | changed))


@pytest.mark.parametrize("told", ["optimizer SAM is not known to keep tensors apart", "Held", "held "])
def test_a_header_whose_policy_requires_isolation_says_that_it_is_held(told):
    policy = signed_policy(isolation_required=True)
    assert make(policy=policy).isolation == "held"
    with pytest.raises(LeafRefused) as refused:
        make(policy=policy, isolation=told)
    assert refused.value.code == "ISOLATION_REQUIRED"


def test_a_header_has_one_encoding():
    """Groups repeated, unused, or out of their order of first use would be a second spelling of one header."""
    value = cbor.decode(encode_leaf(make()), max_size=65_535)
    groups, blocks = value[13], value[14]
    swapped = [[name, size, {0: 1, 1: 0}.get(group, group)] for name, size, group in blocks]
    for changed in ({13: [groups[1], groups[0], groups[2]], 14: swapped}, {13: [*groups, groups[0]]}):
        with pytest.raises(LeafRefused) as refused:
            decode_leaf(cbor.encode({**value, **changed}))
        assert refused.value.code == "SCHEMA"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "poisson"),
        ({"disclosure": "occurrences_public"}, "none"),
        ({"mechanism": MechanismRule("laplace"), "exactness": "certified"}, "poisson"),
        ({"mechanism": MechanismRule("discrete_gaussian"), "exactness": "certified", "accountant": "rdp"}, "none"),
        ({"mechanism": MechanismRule("skellam"), "exactness": "certified", "accountant": "rdp"}, "none"),
    ],
    ids=str,
)
def test_a_header_says_whether_its_accounting_counts_on_secret_draws(changes, expected):
    header = header_spec(signed_policy(**changes)).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)
    assert header.amplification == expected and decode_leaf(encode_leaf(header)) == header
