"""Rights envelopes: signed for one client of one gate, for a time, and for nothing else."""

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor, sign1
from attest.errors import AttestError, KeyRefused
from attest.keys import public_bytes
from attest.withdrawal import Withdrawal, sign_withdrawal, verify_withdrawal
from ledger.errors import ReleaseRefused, RightsRefused
from ledger.release import Rights, check_release, choose_artifact
from ledger.serving import AllowedClass, Granted, RightsEnvelope, open_rights, sign_rights
from ledger.serving.envelope import MAX_CLASSES, MAX_ENVELOPE, MAX_LIFETIME, read_rights
from tests.worlds.serving import BOTH, GRANTER, HOLDER, KEYS, NAME, NOW, STRANGER, envelope, serve, signed

RAW = public_bytes(GRANTER)
TYPES = sorted(value for name, value in vars(sign1).items() if name.startswith("TYP_") and value != sign1.TYP_RIGHTS)

names = st.from_regex(r"[a-z0-9._/-]{1,64}", fullmatch=True)
epsilons = st.none() | st.integers(0, 10**15)


@st.composite
def envelopes(draw: st.DrawFn) -> RightsEnvelope:
    begins = draw(st.integers(0, 250_000_000_000))
    flags = {name: draw(st.booleans()) for name in ("withdrawn", "untied", "told", "code")}
    return RightsEnvelope.of(
        draw(st.dictionaries(names, epsilons, max_size=MAX_CLASSES)),
        audience=draw(names),
        holder=draw(names),
        serial=draw(st.binary(min_size=16, max_size=16)),
        not_before=begins,
        expires=begins + draw(st.integers(1, MAX_LIFETIME)),
        generation=draw(st.lists(names, max_size=MAX_CLASSES)),
        **flags,
    )


def opened(data: bytes, *, now: int = NOW, audience: str = NAME, holder: str | None = HOLDER, **more: Any) -> Granted:
    return open_rights(data, [RAW], audience, now, holder=holder, **more)


def refusal(data: Any, **changes: Any) -> str:
    with pytest.raises(RightsRefused) as caught:
        opened(data, **changes)
    return caught.value.code


def forged(payload: bytes, typ: str = sign1.TYP_RIGHTS, key: Any = GRANTER) -> bytes:
    """Bytes that a granter really signed, whatever they say."""
    return cbor.encode([payload, sign1.sign(payload, key, contributor="data-office", typ=typ)])


@given(envelopes())
def test_what_was_signed_is_what_is_read_and_no_other_bytes_are_it(found: RightsEnvelope) -> None:
    data = sign_rights(found, GRANTER, granter="data-office")
    assert len(data) <= MAX_ENVELOPE
    again = open_rights(data, [public_bytes(STRANGER), RAW], found.audience, found.not_before, holder=found.holder)
    assert again.envelope == found and again.granter == "data-office"
    assert RightsEnvelope.from_cbor(found.to_cbor()) == found and again.rights == found.rights


def test_the_largest_envelope_is_within_the_limit() -> None:
    long = [f"{number:02}".rjust(64, "z") for number in range(MAX_CLASSES)]
    data = signed(dict.fromkeys(long, 10**15), generation=long, audience="a" * 64, holder="h" * 64)
    assert MAX_ENVELOPE - 4096 < len(data) <= MAX_ENVELOPE
    assert opened(data, audience="a" * 64, holder="h" * 64).envelope.generation == tuple(long)


def test_every_flipped_bit_of_an_envelope_is_refused() -> None:
    data = signed({"open": 4_000_000, "sensitive": None})
    assert opened(data)
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            assert refusal(bytes(changed)) in {"MALFORMED", "KEY", "SIGNATURE"}, (at, bit)
    for cut in range(len(data)):
        assert refusal(data[:cut]) == "MALFORMED"
    assert refusal(data + b"\0") == refusal(data + data) == refusal(b"\xff" * (MAX_ENVELOPE + 1)) == "MALFORMED"


@pytest.mark.parametrize("data", ["text", None, bytearray(signed()), memoryview(signed()), [signed()]])
def test_what_is_no_bytes_is_refused_by_a_code(data: Any) -> None:
    assert refusal(data) == "MALFORMED"


@pytest.mark.parametrize("typ", TYPES)
def test_rights_signed_for_another_purpose_are_none_and_serve_no_other_purpose(typ: str) -> None:
    """The same key may grant rights and sign attestations: one is never taken for the other."""
    assert len(TYPES) == 8
    assert refusal(forged(envelope().to_cbor(), typ)) == "SIGNATURE"
    payload, message = cbor.decode(signed())
    with pytest.raises(AttestError, match="HEADER"):
        sign1.verify(message, payload, RAW, typ=typ)


def test_other_documents_of_the_house_are_no_rights_though_a_granter_signed_them(tmp_path) -> None:
    withdrawal = sign_withdrawal(Withdrawal(bytes(32), "notes", NOW, "consent"), GRANTER, signer="data-office")
    assert refusal(cbor.encode(list(withdrawal))) == "SIGNATURE"
    assert refusal(forged(withdrawal[0])) == "MALFORMED", "signed as rights, and of another schema"
    payload, message = cbor.decode(signed())
    with pytest.raises(AttestError):
        verify_withdrawal(payload, message, RAW, signer="data-office", corpus="notes")
    served = serve(tmp_path)
    manifest = (served.adapters / "release.cose").read_bytes()
    assert refusal(manifest) in {"KEY", "MALFORMED"}


PLAIN = cbor.decode(envelope({"open": 4_000_000, "sensitive": None}).to_cbor())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({13: True}, "labels"),
        ({0: 1}, "labels"),
        ({1: "dptrain.rights/2"}, "schema"),
        ({1: "dptrain.withdrawal/1"}, "schema"),
        ({2: "House"}, "audience"),
        ({3: ""}, "holder"),
        ({3: 7}, "holder"),
        ({4: bytes(15)}, "serial"),
        ({5: -1}, "not_before"),
        ({5: 1.5}, "not_before"),
        ({6: 2**62}, "expires"),
        ({7: None}, "classes"),
        ({7: [["open", 4_000_000.0]]}, "epsilon"),
        ({7: [["open", -1]]}, "epsilon"),
        ({7: [["open", 10**15 + 1]]}, "epsilon"),
        ({7: [["open", True]]}, "epsilon"),
        ({7: [["open"]]}, "array of 2"),
        ({7: [["open", 1, 2]]}, "array of 2"),
        ({7: [["open", 1], ["open", 2]]}, "ascending"),
        ({7: [["sensitive", 1], ["open", 2]]}, "ascending"),
        ({8: 1}, "withdrawn"),
        ({9: None}, "untied"),
        ({10: "yes"}, "told"),
        ({11: 0}, "code"),
        ({12: ["chat", "chat"]}, "ascending"),
        ({12: ["b", "a"]}, "ascending"),
        ({12: ["CHAT"]}, "identifier"),
        ({12: {}}, "array"),
    ],
)
def test_a_signed_envelope_of_another_form_is_refused(change: dict[int, Any], says: str) -> None:
    data = forged(cbor.encode(dict(sorted((PLAIN | change).items()))))
    with pytest.raises(RightsRefused, match=says) as caught:
        opened(data)
    assert caught.value.code == "MALFORMED"


@pytest.mark.parametrize("label", PLAIN)
def test_a_signed_envelope_without_a_field_is_refused(label: int) -> None:
    assert refusal(forged(cbor.encode({key: value for key, value in PLAIN.items() if key != label}))) == "MALFORMED"


@pytest.mark.parametrize("number", [b"\xf9\x7e\x00", b"\xf9\x7c\x00", b"\xf9\xfc\x00", b"\xfb\x7f\xf0" + bytes(6)])
def test_no_epsilon_is_nan_or_infinite_though_a_granter_signed_it(number: bytes) -> None:
    whole = cbor.encode(PLAIN)
    assert whole.count(cbor.encode(4_000_000)) == 1
    assert refusal(forged(whole.replace(cbor.encode(4_000_000), number))) == "MALFORMED"
    for found in (math.nan, math.inf, 4.0):
        with pytest.raises(RightsRefused):
            AllowedClass("open", found)  # type: ignore[arg-type]


def test_bytes_that_mean_the_same_and_are_longer_are_refused() -> None:
    whole = cbor.encode(PLAIN)
    assert refusal(forged(b"\xb8\x0c" + whole[1:])) == "MALFORMED", "the head of the map in two bytes"
    assert refusal(forged(b"\xbf" + whole[1:] + b"\xff")) == "MALFORMED", "a map of no definite length"
    assert refusal(forged(whole + b"\xf6")) == "MALFORMED"


def test_rights_are_for_one_gate_and_one_client() -> None:
    data = signed()
    assert refusal(data, audience="house/other") == refusal(data, audience="house") == "AUDIENCE"
    assert refusal(data, holder="client-8") == refusal(data, holder="") == "HOLDER"
    assert opened(data, holder=None).envelope.holder == HOLDER, "to read them takes no holder"


def test_rights_hold_from_their_first_second_up_to_the_one_before_they_expire() -> None:
    data = signed(not_before=NOW, expires=NOW + 10)
    assert opened(data, now=NOW) and opened(data, now=NOW + 9)
    assert refusal(data, now=NOW - 1) == "NOT_YET"
    assert refusal(data, now=NOW + 10) == refusal(data, now=NOW + 10**9) == "EXPIRED"


def test_rights_that_expired_stay_expired_when_the_clock_steps_back() -> None:
    granted = read_rights(signed(not_before=NOW, expires=NOW + 10), [RAW], NAME)
    granted.require(NOW, latest=NOW + 9)
    with pytest.raises(RightsRefused, match="EXPIRED"):
        granted.require(NOW, latest=NOW + 10)


def test_revoked_rights_hold_no_more_whatever_the_clock_says() -> None:
    data, other = signed(), signed(serial=bytes(16))
    assert refusal(data, revoked={bytes(range(16))}) == refusal(data, revoked={bytes(range(16))}, now=0) == "REVOKED"
    assert opened(other, revoked={bytes(range(16))})


def test_nothing_lasts_longer_than_the_limit_or_not_at_all() -> None:
    assert opened(signed(not_before=NOW, expires=NOW + MAX_LIFETIME))
    for expires in (NOW + MAX_LIFETIME + 1, NOW, NOW - 1):
        with pytest.raises(RightsRefused, match="LIFETIME"):
            signed(not_before=NOW, expires=expires)
        plain = PLAIN | {5: NOW, 6: expires}
        assert refusal(forged(cbor.encode(plain))) == "LIFETIME"


def test_only_a_pinned_key_grants_rights() -> None:
    assert refusal(signed(key=STRANGER)) == "KEY"
    with pytest.raises(RightsRefused, match="KEY"):
        open_rights(signed(), [], NAME, NOW)
    payload, message = cbor.decode(signed(key=STRANGER))
    own = cbor.decode(cbor.decode(message[1:])[0])
    named = sign1.protected_header(payload, cbor.decode(cbor.decode(cbor.decode(signed())[1][1:])[0])[4], own[15][1], own[16])
    assert refusal(cbor.encode([payload, sign1.assemble(named, message[-64:])])) == "SIGNATURE", "the key's id is no key"
    with pytest.raises((RightsRefused, KeyRefused)):
        open_rights(signed(), [bytes(32)], NAME, NOW)


def test_every_envelope_has_a_serial_of_its_own() -> None:
    made = {RightsEnvelope.of(BOTH, audience="a", holder="b", not_before=0, expires=1).serial for _ in range(100)}
    assert len(made) == 100 and {len(serial) for serial in made} == {16}


# --- what rights allow ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return check_release(serve(tmp_path_factory.mktemp("served")).adapters, KEYS, now=NOW)


@settings(max_examples=300)
@given(st.integers(0, 10**15 - 1))
def test_an_epsilon_is_allowed_up_to_the_very_millionth_that_was_signed(report, spent: int) -> None:
    """Doubles lie between two counts; no count below 1e15 is taken for its neighbour, or refused for its own."""
    rows = tuple(replace(row, epsilon_micro=spent, replace_micro=spent) for row in report.manifest.classes)
    priced = replace(report, manifest=replace(report.manifest, classes=rows))
    same, less = (envelope({"open": most, "sensitive": None}).rights for most in (spent, max(0, spent - 1)))
    assert choose_artifact(priced, same, ["full"]) == "full"
    if spent:
        with pytest.raises(ReleaseRefused, match="EPSILON"):
            choose_artifact(priced, less, ["full"])


def test_a_withdrawal_refuses_what_its_class_may_have_influenced_and_nothing_else(report) -> None:
    full, base, one, two = report.manifest.artifacts
    own = replace(one, influenced_by=(True, False)), replace(two, influenced_by=(False, True))
    apart = replace(report, manifest=replace(report.manifest, artifacts=(full, base, *own)), newer_withdrawals=1)
    rights = envelope().rights
    for gone, left in ((("open",), "adapter:two"), (("sensitive",), "adapter:one"), (("open", "sensitive"), "base")):
        told = replace(apart, withdrawn_classes=gone)
        assert choose_artifact(told, rights, ["full", "adapter:one", "adapter:two", "base"]) == left
        assert choose_artifact(told, replace(rights, withdrawn=True), ["full"]) == "full"
    assert choose_artifact(replace(apart, withdrawn_classes=()), rights, ["full"]) == "full"
    with pytest.raises(ReleaseRefused, match="WITHDRAWN"):
        choose_artifact(replace(apart, withdrawn_classes=None), rights, ["adapter:one", "adapter:two"])


@given(
    st.builds(
        Rights,
        st.dictionaries(names, st.none() | st.floats(0, 1e9)),
        *[st.booleans() for _ in range(4)],
    )
)
def test_configured_rights_are_read_as_they_were_written(rights: Rights) -> None:
    assert Rights.from_table(rights.as_table()) == rights


def test_configured_rights_may_say_nothing_and_take_any_kind_of_number() -> None:
    assert Rights.from_table({}) == Rights()
    table = {"classes": {"open": 4, "a": Decimal("0.25"), "b": 2.5, "c": "any"}, "told": True}
    assert Rights.from_table(table) == Rights({"open": 4.0, "a": 0.25, "b": 2.5, "c": None}, told=True)


@pytest.mark.parametrize(
    ("table", "code"),
    [
        ({"class": {}}, "KEY"),
        ({"classes": {}, "withdrawn_classes": []}, "KEY"),
        ({1: True}, "KEY"),
        ({"classes": ["open"]}, "TYPE"),
        ({"classes": "any"}, "TYPE"),
        ({"classes": {"open": "4"}}, "TYPE"),
        ({"classes": {"open": None}}, "TYPE"),
        ({"classes": {"open": True}}, "TYPE"),
        ({"classes": {7: 4}}, "TYPE"),
        ({"told": 1}, "TYPE"),
        ({"code": "true"}, "TYPE"),
        ({"withdrawn": None}, "TYPE"),
        ({"classes": {"Open": 4}}, "RANGE"),
        ({"classes": {"open": -1}}, "RANGE"),
        ({"classes": {"open": -0.001}}, "RANGE"),
        ({"classes": {"open": math.nan}}, "RANGE"),
        ({"classes": {"open": math.inf}}, "RANGE"),
        ({"classes": {"open": Decimal("NaN")}}, "RANGE"),
        ({"classes": {"open": Decimal("Infinity")}}, "RANGE"),
        ({"classes": {"open": 1e10}}, "RANGE"),
        ({"classes": {"open": 10**400}}, "RANGE"),
        ({"classes": {"open": -(10**5000)}}, "RANGE"),
    ],
)
def test_configured_rights_of_another_form_are_refused(table: dict[Any, Any], code: str) -> None:
    with pytest.raises(RightsRefused) as caught:
        Rights.from_table(table)
    assert caught.value.code == code
