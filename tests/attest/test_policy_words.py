"""Words of a policy that are specified and not built: signed bytes hold them already, and everybody refuses them by name."""

from dataclasses import replace
from typing import Any

import pytest

from attest import cbor, keys, sign1
from attest.errors import PolicyRefused
from attest.policy import MechanismRule, Policy, SamplingRule, sign_policy, unbuilt, verify_policy
from attest.policy.classes import DecodingRule, ReadRule
from attest.policy.mechanism import MAX_COEFFICIENTS, Bands, Buffers, GeometryRule
from attest.policy.sampling import Bins, Groups, Separation, Sizes, Truncation
from attest.policy.unbuilt import NOT_BUILT, UNBUILT
from ledger import accountants
from ledger.errors import LeafRefused
from tests.worlds.ledgers import SIGNER, START, header_spec, signed_policy

TEXT = """
corpus = "c"
delta = 1e-6
steps = 10
normalizer = 4
disclosure = "{disclosure}"
[[class]]
name = "private"
clip_norm = 1.0
noise_multiplier = 1.1
sampling_rate = 0.1
depth = {{ from = 0.5, to = 1.0 }}
"""
PLAIN = Policy.from_toml(TEXT.format(disclosure="secret_poisson"))
OPEN = Policy.from_toml(TEXT.format(disclosure="occurrences_public"))
ONE = 1 << 20
DIGEST = bytes(range(32))
DECODING = DecodingRule(
    references=7, clip_norm_micro=659_000, temperature_micro=1_200_000, tokens=500, max_rho_nano=2_000_000_000, top_k=50
)


def with_class(**changes: Any) -> dict[str, Any]:
    return {"classes": (replace(PLAIN.classes[0], **changes),)}


def noise(name: str, parameters: Any = None, digest: bytes | None = None) -> dict[str, Any]:
    return {"mechanism": MechanismRule(name, parameters, digest)}


def draws(name: str, parameters: Any, disclosure: str = "secret_draws") -> dict[str, Any]:
    return {"sampling": SamplingRule(name, parameters), "disclosure": disclosure}


WORDS = {
    ("sampling.order", "truncated_poisson"): draws("truncated_poisson", Truncation(most=128, contributions=10_000)),
    ("sampling.order", "balls_in_bins"): draws("balls_in_bins", Bins(bins=5)),
    ("sampling.order", "b_min_sep"): draws("b_min_sep", Separation(separation=4, warm=True)),
    ("sampling.order", "fixed_size_cyclic"): draws("fixed_size_cyclic", Sizes(sizes=(16,)), "occurrences_public"),
    ("reads.set", "*"): with_class(reads=ReadRule(adapters=("clinic",), patterns=("text_model.*",)))
    | {"isolation_required": True},
    ("purposes", "query"): with_class(purposes=("query",), query=replace(DECODING, top_k=None)),
    ("query", "*"): with_class(purposes=("query", "train"), query=DECODING),
}
"""A policy for every word that is refused by name."""


def refused(**changes: Any) -> PolicyRefused:
    with pytest.raises(PolicyRefused) as caught:
        replace(PLAIN, **changes)
    return caught.value


def lifted(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> Policy:
    """A policy as a later version would make it."""
    monkeypatch.setattr(unbuilt, "UNBUILT", {})
    return replace(PLAIN, **changes)


def test_the_cases_are_all_words_that_are_refused():
    assert set(WORDS) == {(key, word) for key, words in UNBUILT.items() for word in words}


@pytest.mark.parametrize("case", WORDS, ids=".".join)
def test_nobody_can_make_a_policy_that_says_what_is_not_built(case):
    error = refused(**WORDS[case])
    assert error.code == NOT_BUILT and "specified, not built yet" in error.sentence


@pytest.mark.parametrize("case", WORDS, ids=".".join)
def test_each_word_is_refused_by_its_own_row(case, monkeypatch):
    """Without the other rows: else one word would hide behind another that comes first."""
    key, word = case
    monkeypatch.setattr(unbuilt, "UNBUILT", {key: {word: UNBUILT[key][word]}})
    error = refused(**WORDS[case])
    assert error.code == NOT_BUILT and error.sentence.startswith(key if word == "*" else f"{key} {word!r}")


@pytest.mark.parametrize("case", WORDS, ids=".".join)
def test_the_frozen_bytes_and_the_text_hold_every_word(case, monkeypatch):
    policy = lifted(monkeypatch, WORDS[case])
    assert Policy.from_cbor(policy.to_cbor()) == policy != PLAIN
    assert Policy.from_toml(policy.to_toml()) == policy
    assert policy.as_json() != PLAIN.as_json()


@pytest.mark.parametrize("case", WORDS, ids=".".join)
def test_bytes_that_say_it_are_refused_by_name_by_whoever_reads_them(case, monkeypatch):
    """The signer took another version: gate, trainer, ledger and auditor read what it signed through one function."""
    owner = keys.generate()
    with monkeypatch.context() as later:
        payload = replace(lifted(later, WORDS[case]), registry_root=bytes(32)).to_cbor()
    message = sign1.sign(payload, owner, contributor="owner", typ=sign1.TYP_POLICY)
    with pytest.raises(PolicyRefused) as caught:
        verify_policy(payload, message, keys.public_bytes(owner))
    assert caught.value.code == NOT_BUILT


def test_a_header_with_such_a_policy_is_refused_by_writer_and_auditor(monkeypatch):
    sound = header_spec(policy=signed_policy()).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)
    with monkeypatch.context() as later:
        later.setattr(unbuilt, "UNBUILT", {})
        first, second = signed_policy().policy.classes
        asked = replace(first, purposes=("query", "train"), query=DECODING)
        false = signed_policy(classes=(asked, second))
        changes = {"policy_payload": false.payload, "policy_sign1": false.sign1}
        assert replace(sound, **changes).policy.classes[0].query  # it is the word that is refused, and nothing else
    with pytest.raises(LeafRefused) as caught:
        replace(sound, **changes)
    assert caught.value.code == NOT_BUILT and "query" in caught.value.sentence


def test_every_word_of_a_policy_is_accounted_for_or_refused_by_name():
    assert set(MechanismRule.PARAMETERS) == set(accountants.TABLE)
    assert set(SamplingRule.PARAMETERS) == {"poisson", "cyclic", "shuffled", "cyclic_poisson"} | set(UNBUILT["sampling.order"])
    assert set(GeometryRule.PARAMETERS) == {"lora_tangent"} and "geometry" not in UNBUILT


def test_a_signer_refuses_before_anything_is_signed(monkeypatch):
    with monkeypatch.context() as later:
        policy = lifted(later, WORDS["reads.set", "*"])
    with pytest.raises(PolicyRefused) as caught:
        sign_policy(policy, keys.generate(), owner="owner", registry_root=bytes(32))
    assert caught.value.code == NOT_BUILT


WRONG = {
    "no such mechanism": lambda: MechanismRule("correlated"),
    "parameters where none are": lambda: MechanismRule("gaussian", Bands(bands=2, coefficients=(ONE, 1))),
    "no parameters": lambda: MechanismRule("banded_toeplitz", None, DIGEST),
    "others' parameters": lambda: MechanismRule("banded_toeplitz", Groups(groups=2)),
    "a digest of what is stated": lambda: MechanismRule("banded_toeplitz", Bands(bands=2, coefficients=(ONE, 1)), DIGEST),
    "neither digest nor coefficients": lambda: MechanismRule("banded_toeplitz", Bands(bands=2)),
    "coefficients of what has a digest": lambda: MechanismRule("banded", Bands(bands=2, coefficients=(ONE, 1)), DIGEST),
    "a digest of gaussian noise": lambda: MechanismRule("gaussian", None, DIGEST),
    "a short digest": lambda: MechanismRule("dense", None, DIGEST[:31]),
    "fewer coefficients than bands": lambda: Bands(bands=3, coefficients=(ONE, 1)),
    "another first coefficient": lambda: Bands(bands=2, coefficients=(ONE - 1, 1)),
    "a coefficient above one": lambda: Bands(bands=2, coefficients=(ONE, ONE + 1)),
    "a float": lambda: Bands(bands=2, coefficients=(ONE, 1.0)),
    "one band": lambda: Bands(bands=1, coefficients=(ONE,)),
    "too many": lambda: Bands(bands=MAX_COEFFICIENTS + 1, coefficients=(ONE,) * (MAX_COEFFICIENTS + 1)),
    "more scales than decays": lambda: Buffers(decays=(1,), scales=(1, 1)),
    "a decay of one": lambda: Buffers(decays=(1 << 40,), scales=(1,)),
    "no such scheme": lambda: SamplingRule("without_replacement"),
    "one group": lambda: SamplingRule("cyclic_poisson", Groups(groups=1)),
    "poisson with parameters": lambda: SamplingRule("poisson", Groups(groups=2)),
    "no such geometry": lambda: GeometryRule("euclidean"),
    "adapters out of order": lambda: GeometryRule("lora_tangent", None, ("b", "a")),
    "an adapter twice": lambda: ReadRule(adapters=("a", "a")),
    "no patterns": lambda: ReadRule(adapters=(), patterns=()),
    "no references": lambda: replace(DECODING, references=0),
    "a temperature of none": lambda: replace(DECODING, temperature_micro=0),
    "a purpose that is none": lambda: replace(PLAIN.classes[0], purposes=("sell",)),
    "purposes out of order": lambda: replace(PLAIN.classes[0], purposes=("train", "generate"), generation=DECODING),
    "no purpose": lambda: replace(PLAIN.classes[0], purposes=()),
    "generation without its purpose": lambda: replace(PLAIN.classes[0], generation=DECODING),
    "a purpose without its rule": lambda: replace(PLAIN.classes[0], purposes=("query", "train"), generation=None),
    "lengths out of order": lambda: replace(PLAIN.classes[0], public_lengths=(512, 128)),
    "poisson under another secret": lambda: replace(PLAIN, disclosure="secret_draws"),
    "another scheme under poisson's": lambda: replace(PLAIN, sampling=SamplingRule("balls_in_bins", Bins(bins=5))),
    "turns in secret": lambda: replace(PLAIN, sampling=SamplingRule("fixed_size_cyclic", Sizes(sizes=(16,)))),
    "a size too many": lambda: replace(OPEN, sampling=SamplingRule("fixed_size_cyclic", Sizes(sizes=(16, 16)))),
    "two geometries of one adapter": lambda: replace(
        PLAIN, geometry=(GeometryRule("lora_tangent", None, ("a",)), GeometryRule("lora_tangent"))
    ),
    "reads without statement A": lambda: replace(PLAIN, **with_class(reads=ReadRule(adapters=("clinic",)))),
    "a class that moves what it does not read": lambda: replace(
        PLAIN.classes[0],
        depth=replace(PLAIN.classes[0].depth, band=None, adapter="clinic"),
        reads=ReadRule(adapters=("lab",)),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_malformed_is_refused_as_that_and_not_as_unbuilt(case):
    with pytest.raises(PolicyRefused) as caught:
        WRONG[case]()
    assert caught.value.code in ("TYPE", "RANGE")


BAD_BYTES = {
    "mechanism": [
        13,
        [["dense", {}, None], ["dense", {1: 1}, DIGEST], ["banded", {}, DIGEST], ["banded", {1: 2, 4: 1}, DIGEST]],
    ],
    "sampling": [
        26,
        [["balls_in_bins", {}], ["balls_in_bins", {1: 5, 2: 5}], ["b_min_sep", {1: 5, 2: False}], ["poisson", {}]],
    ],
    "geometry": [34, [[], [["lora_tangent", {}]], [["lora_tangent", {}, []]], [["lora_tangent", {1: 1}, None]], None]],
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bytes_are_strict_in_what_is_not_built_too(name, monkeypatch):
    monkeypatch.setattr(unbuilt, "UNBUILT", {})
    label, values = BAD_BYTES[name]
    plain = cbor.decode(PLAIN.to_cbor())
    if name == "sampling":
        plain[6] = "secret_draws"
    for value in values:
        with pytest.raises(PolicyRefused):
            Policy.from_cbor(cbor.encode(plain | {label: value}))


@pytest.mark.parametrize(
    "change", [{9: {}}, {10: ["train"]}, {10: []}, {11: None}, {13: []}, {9: {1: ["a"], 2: None}}, {14: 1}]
)
def test_bytes_of_a_class_are_strict_in_what_is_not_built_too(change, monkeypatch):
    monkeypatch.setattr(unbuilt, "UNBUILT", {})
    plain = cbor.decode(PLAIN.to_cbor())
    with pytest.raises(PolicyRefused):
        Policy.from_cbor(cbor.encode(plain | {22: [plain[22][0] | change]}))


def test_a_table_of_text_says_which_word_is_missing():
    for extra, code in {
        "[noise]\nparameters = { bands = 2 }\n": "KEY",
        '[noise]\nfamily = "gaussian"\nparameters = { bands = 2 }\n': "KEY",
        '[noise]\nfamily = "banded"\n': "KEY",
        '[noise]\nfamily = "banded"\nparameters = { bands = 2, band = 3 }\n': "KEY",
        '[noise]\nfamily = "dense"\ndigest = "AB"\n': "TYPE",
        '[noise]\nfamily = "dense"\n': "RANGE",
        "[[geometry]]\nadapters = []\n": "KEY",
        '[geometry]\nchart = "lora_tangent"\n': "TYPE",
    }.items():
        with pytest.raises(PolicyRefused) as caught:
            Policy.from_toml(TEXT.format(disclosure="secret_poisson").replace("[[class]]", f"{extra}[[class]]"))
        assert caught.value.code == code, extra
