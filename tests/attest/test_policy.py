"""The corpus policy: written by people, signed by owners, read exactly."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor, keys, sign1, signed_file
from attest.errors import PolicyRefused
from attest.policy import ClassRule, DepthRule, Policy, open_policy, sign_policy, verify_policy

TEXT = """
corpus = "clinic-notes-2026"
delta = 1e-6
accountant = "pld"
disclosure = "secret_poisson"
exactness = "fast"
steps = 2000
normalizer = 64
[noise]
family = "gaussian"
injection = "scheduled"
[floors]
clip_norm = 0.01
noise_multiplier = 0.5
[gate]
max_window_days = 90
contributor_cap = 500
max_examples = 4
[[class]]
name = "sensitive"
clip_norm = 1.0
noise_multiplier = 1.1
sampling_rate = 0.004
depth = { from = 0.75, to = 1.0 }
[[class]]
name = "open"
clip_norm = 2
noise_multiplier = 0.6
sampling_rate = 1
max_window_days = 30
depth = { set = ["vision.*", "text.[0-9]"], head = true, embeddings = false }
"""


def refused(text):
    with pytest.raises(PolicyRefused) as caught:
        Policy.from_toml(text)
    return caught.value


def test_reads_every_key_exactly():
    policy = Policy.from_toml(TEXT)
    assert policy.delta == Fraction(1, 10**6)
    assert (policy.steps, policy.redo_steps, policy.epoch_steps, policy.window_steps) == (2000, 2000, 200, 16)
    assert (policy.min_clip_norm_micro, policy.min_noise_multiplier_micro) == (10_000, 500_000)
    assert (policy.max_window, policy.contributor_cap, policy.max_examples) == (90 * 86400, 500, 4)
    sensitive, public = policy.classes
    assert sensitive == ClassRule(
        name="sensitive",
        clip_norm_micro=1_000_000,
        noise_multiplier_micro=1_100_000,
        sampling_rate=Fraction(1, 250),
        depth=DepthRule(band=(Fraction(3, 4), Fraction(1))),
    )
    assert public.sampling_rate == 1 and public.max_window == 30 * 86400
    assert public.depth == DepthRule(patterns=("vision.*", "text.[0-9]"), head=True, embeddings=False)
    assert [rule.depth.kind for rule in policy.classes] == ["band", "set"]
    assert policy.registry_root is None and policy.adjacency == "zero-out" and policy.retention_epochs == 0
    assert (sensitive.bounds.clip_norm, sensitive.bounds.noise_multiplier) == (1.0, 1.1)


def test_defaults():
    lines = [
        line for line in TEXT.split("[noise]")[0].splitlines() if line.split(" = ")[0] in {"corpus", "delta", "steps"}
    ]
    policy = Policy.from_toml("\n".join([*lines, "normalizer = 1", "[[class]]" + TEXT.split("[[class]]")[1]]))
    assert (policy.accountant, policy.disclosure, policy.exactness) == ("pld", "secret_poisson", "fast")
    assert (policy.mechanism.name, policy.noise_injection) == ("gaussian", "scheduled")
    assert (policy.min_clip_norm_micro, policy.min_noise_multiplier_micro) == (1, 1)
    assert (policy.max_window, policy.contributor_cap, policy.max_examples) == (63072000, 1_000_000, 1)
    assert replace(policy, steps=5, redo_steps=-1, epoch_steps=-1).epoch_steps == 1


@pytest.mark.parametrize(
    ("depth", "kind"),
    [
        ("{ from = 0, to = 1 }", "band"),
        ("{ layers = [9, 10, 11] }", "layers"),
        ('{ set = ["vision.*"] }', "set"),
        ('{ adapter = "clinic" }', "adapter"),
        ("{ from = 0.5, to = 1, head = false, embeddings = true }", "band"),
        ("{ from = 0.5, to = 1, heads = [0, 1, 4095] }", "band"),
        ("{ layers = [1], experts = [0, 65535], heads = [3] }", "layers"),
    ],
)
def test_depth_forms_survive_both_encodings(depth, kind):
    policy = Policy.from_toml(TEXT.replace("{ from = 0.75, to = 1.0 }", depth))
    assert policy.classes[0].depth.kind == kind
    assert Policy.from_cbor(policy.to_cbor()) == policy


def test_a_depth_without_masks_encodes_as_it_did_before_there_were_any():
    policy = Policy.from_toml(TEXT)
    depths = [fields[5] for fields in cbor.decode(policy.to_cbor(), max_size=1 << 20)[22]]
    assert [sorted(depth) for depth in depths] == [[1], [3, 5, 6]]


@pytest.mark.parametrize(
    ("depth", "code"),
    [
        ("{ from = 0, to = 1, heads = [] }", "TYPE"),
        ("{ from = 0, to = 1, heads = 3 }", "TYPE"),
        ("{ from = 0, to = 1, heads = [1, 0] }", "RANGE"),
        ("{ from = 0, to = 1, heads = [1, 1] }", "RANGE"),
        ("{ from = 0, to = 1, experts = [-1] }", "RANGE"),
        ("{ from = 0, to = 1, experts = [65536] }", "RANGE"),
        ("{ from = 0, to = 1, experts = [true] }", "TYPE"),
        ("{ from = 0, to = 1, experts = [0.0] }", "TYPE"),
        ('{ set = ["vision.*"], heads = [0] }', "RANGE"),
        ('{ adapter = "clinic", experts = [0] }', "RANGE"),
        ("{ heads = [0] }", "RANGE"),
        ("{ from = 0, to = 1, haeds = [0] }", "KEY"),
    ],
)
def test_masks_are_strict(depth, code):
    error = refused(TEXT.replace("{ from = 0.75, to = 1.0 }", depth))
    assert error.code == code and "depth" in error.sentence


@pytest.mark.parametrize(
    ("label", "value"),
    [(7, [1, 0]), (7, []), (8, [0, 0]), (7, None), (8, {0: 0}), (7, b"\x00"), (7, ["0"]), (9, [0]), (8, [65536])],
)
def test_signed_masks_are_strict(label, value):
    policy = Policy.from_toml(TEXT)
    fields = cbor.decode(policy.to_cbor(), max_size=1 << 20)
    fields[22][0][5][label] = value
    with pytest.raises(PolicyRefused):
        Policy.from_cbor(cbor.encode(fields))


@pytest.mark.parametrize(
    ("old", "new", "found", "near"),
    [
        ("normalizer =", "normaliser = 1\nnormalizer =", "normaliser", "normalizer"),
        ("clip_norm = 1.0", "clip_norm = 1.0\nclipnorm = 1", "clipnorm", "clip_norm"),
        ("injection =", "inject = 1\ninjection =", "inject", "injection"),
        ("contributor_cap =", "contributors_cap = 1\ncontributor_cap =", "contributors_cap", "contributor_cap"),
        ("[floors]", "[floors]\nnoise = 1", "noise", "noise_multiplier"),
        ("from = 0.75", "form = 0.1, from = 0.75", "form", "from"),
        ("delta = 1e-6", 'delta = 1e-6\nregistry_root = "00"', "registry_root", "geometry"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(old, new, found, near):
    error = refused(TEXT.replace(old, new))
    assert error.code == "KEY" and repr(found) in error.sentence and repr(near) in error.sentence


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("[floors]", "[floors]\nretention_epochs = 2", "above the first table"),
        ("delta = 1e-6", "delta = 1e-6\nauditor_quorum = 1", "into [ledger]"),
        ("delta = 1e-6", "delta = 1e-6\nclip_norm = 1", "into [floors] or into [[class]]"),
    ],
)
def test_a_key_in_the_wrong_table_is_told_where_it_belongs(old, new, place):
    error = refused(TEXT.replace(old, new, 1))
    assert error.code == "KEY" and f"which belongs {place}" in error.sentence


@pytest.mark.parametrize(
    "line", ["corpus =", "delta =", "steps =", "normalizer =", "name =", "clip_norm = 1.0", "depth = { f"]
)
def test_a_missing_key_is_named(line):
    text = "\n".join(row for row in TEXT.splitlines() if not row.startswith(line))
    if line.startswith("name"):
        text = text.replace('name = "open"', "")
    error = refused(text)
    assert error.code == "KEY" and line.split(" ")[0] in error.sentence


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("delta = 1e-6", "delta = nan"),
        ("delta = 1e-6", "delta = inf"),
        ("delta = 1e-6", "delta = 0"),
        ("delta = 1e-6", "delta = -1e-6"),
        ("delta = 1e-6", "delta = 9.9e-13"),
        ("delta = 1e-6", "delta = 1"),
        ("delta = 1e-6", "delta = 1.0"),
        ("delta = 1e-6", 'delta = "1e-6"'),
        ("delta = 1e-6", "delta = true"),
        ("delta = 1e-6", "delta = 1e-999999999"),
        ("delta = 1e-6", "delta = 0." + "1" * 90),
        ("clip_norm = 1.0", "clip_norm = nan"),
        ("clip_norm = 1.0", "clip_norm = inf"),
        ("clip_norm = 1.0", "clip_norm = 0"),
        ("clip_norm = 1.0", "clip_norm = -1.0"),
        ("clip_norm = 1.0", "clip_norm = 1.0000001"),
        ("clip_norm = 1.0", "clip_norm = true"),
        ("clip_norm = 1.0", 'clip_norm = "1"'),
        ("clip_norm = 1.0", "clip_norm = 0.009999"),
        ("noise_multiplier = 1.1", "noise_multiplier = 0.0"),
        ("noise_multiplier = 1.1", "noise_multiplier = 1e300"),
        ("noise_multiplier = 1.1", "noise_multiplier = 0.499999"),
        ("sampling_rate = 0.004", "sampling_rate = 0"),
        ("sampling_rate = 0.004", "sampling_rate = 1.0000001"),
        ("sampling_rate = 0.004", "sampling_rate = -0.1"),
        ("sampling_rate = 0.004", "sampling_rate = nan"),
        ("steps = 2000", "steps = 0"),
        ("steps = 2000", "steps = 2000.0"),
        ("steps = 2000", "steps = true"),
        ("steps = 2000", "steps = 2000\nredo_steps = -1"),
        ("steps = 2000", "steps = 2000\nepoch_steps = -1"),
        ("steps = 2000", "steps = 2000\nwindow_steps = 0"),
        ("steps = 2000", 'steps = 2000\nadjacency = "add-remove"'),
        ("normalizer = 64", "normalizer = 0"),
        ("normalizer = 64", "normalizer = 64.5"),
        ('accountant = "pld"', 'accountant = "PLD"'),
        ('accountant = "pld"', "accountant = 1"),
        ('disclosure = "secret_poisson"', 'disclosure = "secret"'),
        ('exactness = "fast"', 'exactness = "exact"'),
        ('family = "gaussian"', 'family = "none"'),
        ('injection = "scheduled"', 'injection = "per_sample"'),
        ('name = "open"', 'name = "sensitive"'),
        ('name = "open"', 'name = "Open"'),
        ('name = "open"', 'name = "\u043epen"'),
        ('corpus = "clinic-notes-2026"', 'corpus = "Clinic notes"'),
        ("max_window_days = 90", "max_window_days = 0"),
        ("max_window_days = 90", "max_window_days = 1.5"),
        ("max_window_days = 90", "max_window_days = 100000"),
        ("contributor_cap = 500", "contributor_cap = 0"),
        ("max_examples = 4", "max_examples = 0"),
        ("{ from = 0.75, to = 1.0 }", "{ from = 0.75 }"),
        ("{ from = 0.75, to = 1.0 }", "{ to = 0.75 }"),
        ("{ from = 0.75, to = 1.0 }", "{ from = 1.0, to = 0.75 }"),
        ("{ from = 0.75, to = 1.0 }", "{ from = 0.75, to = 0.75 }"),
        ("{ from = 0.75, to = 1.0 }", "{ from = -0.1, to = 1.0 }"),
        ("{ from = 0.75, to = 1.0 }", "{ from = 0.75, to = 1.1 }"),
        ("{ from = 0.75, to = 1.0 }", "{ from = 0.75, to = nan }"),
        ("{ from = 0.75, to = 1.0 }", "{ from = 0.75, to = 1.0, layers = [1] }"),
        ("{ from = 0.75, to = 1.0 }", "{ }"),
        ("{ from = 0.75, to = 1.0 }", "{ head = true }"),
        ("{ from = 0.75, to = 1.0 }", "{ layers = [] }"),
        ("{ from = 0.75, to = 1.0 }", "{ layers = [2, 1] }"),
        ("{ from = 0.75, to = 1.0 }", "{ layers = [1, 1] }"),
        ("{ from = 0.75, to = 1.0 }", "{ layers = [-1] }"),
        ("{ from = 0.75, to = 1.0 }", "{ layers = [true] }"),
        ("{ from = 0.75, to = 1.0 }", "{ layers = 3 }"),
        ("{ from = 0.75, to = 1.0 }", "{ set = [] }"),
        ("{ from = 0.75, to = 1.0 }", '{ set = ["a b"] }'),
        ("{ from = 0.75, to = 1.0 }", '{ set = ["a", "a"] }'),
        ("{ from = 0.75, to = 1.0 }", '{ adapter = "" }'),
        ("{ from = 0.75, to = 1.0 }", "{ adapter = 1 }"),
        ("{ from = 0.75, to = 1.0 }", "{ from = 0.75, to = 1.0, head = 1 }"),
        ("{ from = 0.75, to = 1.0 }", "1"),
        ("[noise]", "noise = 1\n[other]"),
        ("[[class]]", "[class]"),
        ("delta = 1e-6", "delta = 1e-6\ndelta = 1e-5"),
        ("delta = 1e-6", "delta = "),
    ],
)
def test_refuses(old, new):
    assert old in TEXT
    assert refused(TEXT.replace(old, new)).sentence


def test_refuses_hostile_text():
    assert refused("x = " + "[" * 5000).code == "TOML"
    assert refused("#" * (1 << 21)).code == "SIZE"
    assert refused(None).code == "TYPE"
    assert refused("").code == "KEY"
    assert refused(TEXT.split("[[class]]")[0] + "class = 1").code in {"KEY", "TYPE"}
    assert refused("class = [1]\n" + TEXT.split("[[class]]")[0]).code == "TYPE"


FRACTIONS = st.fractions(min_value=0, max_value=1, max_denominator=10**6)


@settings(max_examples=60, deadline=None)
@given(
    low=FRACTIONS,
    high=FRACTIONS,
    rate=FRACTIONS.filter(bool),
    delta=st.fractions(Fraction(1, 10**9), Fraction(1, 2), max_denominator=10**12),
    steps=st.integers(1, 10**6),
    clip=st.integers(1, 10**9),
    noise=st.integers(1, 10**9),
    head=st.none() | st.booleans(),
)
def test_cbor_round_trip(low, high, rate, delta, steps, clip, noise, head):
    depth = DepthRule(adapter="a", head=head) if low >= high else DepthRule(band=(low, high), head=head)
    rule = ClassRule(name="c", clip_norm_micro=clip, noise_multiplier_micro=noise, sampling_rate=rate, depth=depth)
    policy = Policy(corpus="x", delta=delta, steps=steps, normalizer=1, classes=(rule,), registry_root=b"r" * 32)
    assert Policy.from_cbor(policy.to_cbor()) == policy


def changed(policy, key, value):
    fields = cbor.decode(policy.to_cbor(), max_size=1 << 20)
    fields[key] = value
    return cbor.encode(fields)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (1, "dptrain.policy/1"),
        (1, "dptrain.policy/3"),
        (13, "gaussian"),
        (13, ["gaussian", {}]),
        (13, ["gaussian", {1: 2}, None]),
        (13, ["gaussian", None, None]),
        (13, ["gaussian", {}, b"d" * 32]),
        (13, ["correlated", {}, None]),
        (3, [2, 2000000]),
        (3, [1, 0]),
        (3, [-1, 10]),
        (3, [1, 10, 1]),
        (3, [True, 1000000]),
        (3, 1e-6),
        (8, True),
        (8, 2000.0),
        (9, -1),
        (11, -1),
        (21, b"short"),
        (21, "x" * 32),
        (22, []),
        (22, [1]),
        (22, {}),
        (22, None),
        (23, 1),
        ("steps", 5),
    ],
    ids=str,
)
def test_cbor_refuses(world, key, value):
    with pytest.raises(PolicyRefused):
        Policy.from_cbor(changed(world.policy, key, value))


def test_cbor_refuses_depth_of_other_forms(world):
    fields = cbor.decode(world.policy.to_cbor(), max_size=1 << 20)
    for depth in (
        {},
        {1: 5},
        {2: 5},
        {7: 1},
        {1: [[3, 4]]},
        {1: [[6, 8], [1, 1]]},
        {4: "a", 2: [1]},
        {4: "a", 5: None},
        3,
    ):
        fields[22][0][5] = depth
        with pytest.raises(PolicyRefused):
            Policy.from_cbor(cbor.encode(fields))


def test_constructor_refuses_floats_and_loose_types(world):
    rule = world.policy.classes[0]
    for changes in ({"delta": 1e-6}, {"classes": [rule]}, {"classes": ("x",)}, {"registry_root": "r" * 32}):
        with pytest.raises(PolicyRefused):
            replace(world.policy, **changes)
    for changes in ({"sampling_rate": 0.004}, {"depth": {"from": 0}}, {"clip_norm_micro": 1.0}):
        with pytest.raises(PolicyRefused):
            replace(rule, **changes)
    with pytest.raises(PolicyRefused):
        DepthRule(band=[Fraction(0), Fraction(1)])


def test_signed_file_round_trip(world, tmp_path):
    owner = keys.generate()
    payload, message = sign_policy(Policy.from_toml(TEXT), owner, owner="clinic", registry_root=b"r" * 32)
    signed_file.write(tmp_path / "policy.cose", payload, message)
    signed = open_policy(tmp_path / "policy.cose", keys.public_bytes(owner))
    assert signed.owner == "clinic" and signed.payload == payload and signed.sign1 == message
    assert signed.policy == replace(Policy.from_toml(TEXT), registry_root=b"r" * 32)
    assert signed.digest.hex() == sign1.subject_of(payload).removeprefix("sha-256:")
    assert verify_policy(payload, message, keys.public_bytes(owner)) == signed


def test_signing_asks_for_a_registry_root(world):
    for root in (None, b"short"):
        with pytest.raises(PolicyRefused):
            sign_policy(world.policy, keys.generate(), owner="clinic", registry_root=root)


def open_code(path, raw):
    with pytest.raises(PolicyRefused) as caught:
        open_policy(path, raw)
    return caught.value.code


def test_open_refuses_what_the_owner_did_not_sign(world, tmp_path):
    owner = keys.generate()
    raw, path = keys.public_bytes(owner), tmp_path / "policy.cose"
    payload, message = sign_policy(world.policy, owner, owner="clinic", registry_root=b"r" * 32)
    signed_file.write(path, payload, message)
    assert open_code(path, keys.public_bytes(keys.generate())) == "SIG_BAD"
    assert open_code(path, bytes(32)) == "KEY_WEAK"
    assert open_code(tmp_path / "absent.cose", raw) == "FILE"
    assert open_code(tmp_path, raw) == "FILE"
    text = tmp_path / "policy.toml"
    text.write_text(TEXT)
    assert open_code(text, raw) == "UNSIGNED"
    text.write_bytes(b"\xff\x00 something else")
    assert open_code(text, raw) == "FORMAT"
    other = replace(world.policy, steps=1, registry_root=b"r" * 32).to_cbor()
    signed_file.write(path, other, message)
    assert open_code(path, raw) == "HEADER"
    signed_file.write(path, payload, sign1.sign(payload, owner, contributor="clinic"))
    assert open_code(path, raw) == "HEADER"
    bare = replace(world.policy, registry_root=None).to_cbor()
    signed_file.write(path, bare, sign1.sign(bare, owner, contributor="clinic", typ=sign1.TYP_POLICY))
    assert open_code(path, raw) == "SCHEMA"
    junk = b"\x01"
    signed_file.write(path, junk, sign1.sign(junk, owner, contributor="clinic", typ=sign1.TYP_POLICY))
    assert open_code(path, raw) == "SCHEMA"
    path.write_bytes(cbor.encode([payload, message]) + b"\x00")
    assert open_code(path, raw) == "FORMAT"
    path.write_bytes(b"\x00" * (2 << 20))
    assert open_code(path, raw) == "SIZE"


def test_every_byte_of_a_signed_policy_is_bound(world):
    owner = keys.generate()
    raw = keys.public_bytes(owner)
    payload, message = sign_policy(world.policy, owner, owner="clinic", registry_root=b"r" * 32)
    for position in range(len(payload)):
        data = bytearray(payload)
        data[position] ^= 1 << (position % 8)
        with pytest.raises(PolicyRefused):
            verify_policy(bytes(data), message, raw)


def test_find_class(world):
    assert world.policy.class_rule("open").name == "open"
    assert world.policy.find_class("absent") is None
    with pytest.raises(PolicyRefused) as caught:
        world.policy.class_rule("absent")
    assert caught.value.code == "CLASS_UNKNOWN" and "sensitive" in caught.value.sentence
