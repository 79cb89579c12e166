"""Files beside a ledger that its key signs: of one kind, of this ledger's past, and under the key of then."""

import pytest

from attest import cbor, sign1
from ledger.errors import LedgerBehind, LedgerClosed, LedgerError, LedgerForked, LedgerWrongRun, PinRefused
from ledger.log import Ledger
from ledger.log.pinned import sign_pinned
from ledger.note import NoteSigner
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, SIGNER, START, Driver, header_spec

KIND = "dptrain.test/1"
SUCCESSOR = NoteSigner(SIGNER.name, OTHER_KEY)


def refused(ledger: Ledger, data: bytes, kind: str = KIND) -> str:
    with pytest.raises(PinRefused) as caught:
        ledger.open_pinned(data, kind)
    return caught.value.code


def test_what_was_signed_is_read_back_by_every_reader(run, path):
    data = run.ledger.sign_pinned(KIND, [7, "text", b"bytes", [[1, b"x"]]])
    pin = run.ledger.pin()
    run.withdraw(9)
    with Ledger.open(path) as reader:
        assert reader.open_pinned(data, KIND) == (pin, [7, "text", b"bytes", [[1, b"x"]]])


def test_no_byte_of_it_can_be_changed(run):
    """Guarantee: the key signed exactly these values as this kind."""
    data = run.ledger.sign_pinned(KIND, [7])
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises((PinRefused, LedgerWrongRun)):
            run.ledger.open_pinned(bytes(changed), KIND)
    for other in (b"", data[:-1], data + b"\0", cbor.encode([b"", b""]), cbor.encode({})):
        assert refused(run.ledger, other) == "FORMAT"


def test_a_file_of_another_kind_is_refused_though_the_key_signed_it(run):
    assert refused(run.ledger, run.ledger.sign_pinned("dptrain.other/1", [7])) == "KIND"
    data = run.ledger.sign_pinned(KIND, [7])
    payload, _ = cbor.decode(data)
    release = sign1.sign(payload, LOG_KEY, contributor="ledger", typ=sign1.TYP_RELEASE)
    assert refused(run.ledger, cbor.encode([payload, release])) == "UNSIGNED"
    other = sign1.sign(payload, LOG_KEY, contributor="somebody", typ=sign1.TYP_PINNED)
    assert refused(run.ledger, cbor.encode([payload, other])) == "UNSIGNED"


def test_another_ledgers_is_refused_under_its_key_and_under_ours(run, tmp_path):
    with Ledger.create(tmp_path / "other.db", header_spec(run_id=b"r" * 16), SIGNER, now=START) as other:
        same_key = other.sign_pinned(KIND, [7])
    with Ledger.create(tmp_path / "third.db", header_spec(), SUCCESSOR, now=START) as other:
        other_key = other.sign_pinned(KIND, [7])
    with pytest.raises(LedgerWrongRun):
        run.ledger.open_pinned(same_key, KIND)
    assert refused(run.ledger, other_key) == "UNSIGNED"


def test_a_past_that_the_ledger_lacks_is_refused(run):
    pin = run.ledger.pin()
    for changes, kind in (({"size": 99}, LedgerBehind), ({"root": bytes(32)}, LedgerForked)):
        wrong = type(pin)(**{name: getattr(pin, name) for name in pin.__slots__} | changes)
        with pytest.raises(kind):
            run.ledger.open_pinned(sign_pinned(KIND, wrong, [7], SIGNER), KIND)


def test_after_a_change_of_the_key_what_the_old_one_signed_before_it_counts_and_nothing_else(run):
    """A key that was retired signs nothing about a ledger that contains its retirement."""
    before = run.ledger.sign_pinned(KIND, [1])
    run.ledger.rotate_key(SUCCESSOR, now=run.tick())
    assert run.ledger.open_pinned(before, KIND)[1] == [1]
    assert run.ledger.open_pinned(run.ledger.sign_pinned(KIND, [2]), KIND)[1] == [2]
    for _ in range(2):
        assert refused(run.ledger, sign_pinned(KIND, run.ledger.pin(), [3], SIGNER)) == "UNSIGNED"
        run.withdraw(9)
    early = cbor.decode(cbor.decode(before)[0])
    pin = type(run.ledger.pin())(*list(early.values())[1:5])
    assert refused(run.ledger, sign_pinned(KIND, pin, [4], SUCCESSOR)) == "UNSIGNED", "it had not signed yet"


def test_a_reader_signs_nothing(run, path):
    run.ledger.close()
    with Ledger.open(path) as reader, pytest.raises(LedgerClosed):
        reader.sign_pinned(KIND, [])
    with pytest.raises(LedgerError):
        run.ledger.sign_pinned(KIND, [])


def test_a_whole_run_reads_what_it_signed_at_its_beginning(run):
    data = run.ledger.sign_pinned(KIND, [1])
    Driver(run.ledger, now=START + 10).whole_run()
    assert run.ledger.open_pinned(data, KIND)[1] == [1]
