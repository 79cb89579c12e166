"""A29 of the attack list: consent to one use that is changed into consent to another, or presented to another."""

from dataclasses import replace

import pytest

from attest import cbor, keys
from attest.descriptor import GENERATE, TRAIN
from attest.errors import GateFailed
from attest.gate import Gate, Refused
from attest.gate.reading import Verified
from tests.attacks.scene import LEFT_OUT, item_of, signed, with_fields
from tests.attest.test_purposes import BOTH, purposes_of
from tests.worlds.gate import CONTENT, MALLORY, NOW, RAW

SAID = {"none": LEFT_OUT, "train": [TRAIN], "generate": [GENERATE], "both": [GENERATE, TRAIN]}
"""Lists what field 16 of a descriptor may say."""

CHANGES = {f"{was} made {now}": (was, now) for was in SAID for now in SAID if was != now}
"""Every change of one into another: purposes stripped, swapped, appended and taken out."""


@pytest.fixture
def policy(scene):
    """The policy of the scene, with both uses in each class: what refuses is then the signature alone."""
    return purposes_of(scene.policy, sensitive=BOTH, open=BOTH)


def saying(words, **made):
    """An attestation that says these purposes, properly signed."""
    return signed({} if words is LEFT_OUT else {16: words}, **made)


@pytest.mark.parametrize("purpose", [TRAIN, GENERATE])
@pytest.mark.parametrize("name", CHANGES)
def test_A29_purposes_that_are_changed_behind_the_signature_are_refused(scene, policy, name, purpose):
    was, now = CHANGES[name]
    good, wanted = saying(SAID[was]), saying(SAID[now])
    changed = with_fields(cbor.decode(good.descriptor), {16: SAID[now]})
    assert cbor.encode(changed) == wanted.descriptor
    # The message as it was is of another descriptor; a header that fits has the signature of another message.
    assert scene.code(replace(wanted, sign1=good.sign1), policy=policy, purpose=purpose) == "HEADER"
    moved = replace(wanted, sign1=wanted.sign1[:-64] + good.sign1[-64:])
    assert scene.code(moved, policy=policy, purpose=purpose) == "SIG_BAD"
    by_another = saying(SAID[now], key=MALLORY, header={4: keys.key_id(RAW["alice"])})
    assert scene.code(by_another, policy=policy, purpose=purpose) == "SIG_BAD"


@pytest.mark.parametrize("purpose", [TRAIN, GENERATE])
@pytest.mark.parametrize("name", SAID)
def test_A29_what_was_signed_for_one_use_is_refused_where_it_is_presented_to_the_other(scene, policy, name, purpose):
    allowed = [TRAIN] if SAID[name] is LEFT_OUT else SAID[name]
    assert scene.code(saying(SAID[name]), policy=policy, purpose=purpose) == ("ADMITTED" if purpose in allowed else "PURPOSE")


@pytest.mark.parametrize("purpose", [TRAIN, GENERATE])
def test_A29_a_class_that_has_another_use_does_not_lend_it(scene, purpose):
    """Bob may attest both classes, and signed for both uses; each class of the policy has one of them."""
    words = {TRAIN: {"sensitive": (TRAIN,), "open": (GENERATE,)}, GENERATE: {"sensitive": (GENERATE,), "open": (TRAIN,)}}
    policy = purposes_of(scene.policy, **words[purpose])
    assert scene.code(saying(SAID["both"]), policy=policy, purpose=purpose) == "ADMITTED"
    other = TRAIN if purpose == GENERATE else GENERATE
    assert scene.code(saying(SAID["both"]), policy=policy, purpose=other) == "PURPOSE"


@pytest.mark.parametrize("purpose", [TRAIN, GENERATE])
def test_A29_what_is_remembered_of_one_use_serves_the_very_message_and_that_use_alone(scene, policy, purpose):
    memory = Verified(purpose=purpose)
    gate = Gate(policy, scene.registry, workers=1, remember=memory, purpose=purpose)

    def codes(*attestations):
        judged = gate.judge([item_of(one, CONTENT) for one in attestations], now=NOW)
        return [str(outcome.refusal.code) if isinstance(outcome, Refused) else "ADMITTED" for outcome in judged]

    good = saying(SAID["both"])
    assert codes(good) == codes(good) == ["ADMITTED"] and memory.spared == 1
    for name in ("none", "train", "generate"):
        wanted = saying(SAID[name])
        assert codes(replace(wanted, sign1=wanted.sign1[:-64] + good.sign1[-64:])) == ["SIG_BAD"]
    other = TRAIN if purpose == GENERATE else GENERATE
    assert codes(saying([other])) == ["PURPOSE"]
    with pytest.raises(GateFailed, match="PURPOSE"):
        Gate(policy, scene.registry, workers=1, remember=memory, purpose=other)
    # Nor under another policy, once the class has lost the use: signatures are all that is spared.
    lost = purposes_of(policy, sensitive=(other,))
    assert lost.classes != policy.classes
    kept = Gate(lost, scene.registry, workers=1, remember=memory, purpose=purpose)
    (outcome,) = kept.judge([item_of(good, CONTENT)], now=NOW)
    assert str(outcome.refusal.code) == "PURPOSE"
