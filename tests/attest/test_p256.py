"""Keys of P-256: what their files hold, who may read them, and that of a signature there is one form."""

import os

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import keys
from attest.errors import KeyRefused, SignatureRefused
from attest.keys import p256

KEY = ec.derive_private_key(7, ec.SECP256R1())


def code(caught) -> str:
    return caught.value.code


@settings(max_examples=30)
@given(st.binary(max_size=60))
def test_what_is_signed_verifies_and_nothing_else_does(message):
    signature = p256.sign(KEY, message)
    p256.verify(p256.point(KEY), signature, message)
    KEY.public_key().verify(signature, message, ec.ECDSA(hashes.SHA256()))
    for other in (message + b"\0", b"x" + message):
        with pytest.raises(SignatureRefused):
            p256.verify(p256.point(KEY), signature, other)


def test_the_other_signature_that_verifies_is_refused_since_anybody_can_make_it():
    r, s = decode_dss_signature(p256.sign(KEY, b"message"))
    other = encode_dss_signature(r, p256.ORDER - s)
    KEY.public_key().verify(other, b"message", ec.ECDSA(hashes.SHA256()))
    with pytest.raises(SignatureRefused):
        p256.verify(p256.point(KEY), other, b"message")
    for bad in (b"", b"\0", p256.sign(KEY, b"message") + b"\0"):
        with pytest.raises(SignatureRefused):
            p256.verify(p256.point(KEY), bad, b"message")


def test_only_points_of_the_curve_are_keys():
    point = p256.point(KEY)
    assert len(point) == p256.POINT_SIZE and p256.public_pem(point).startswith(b"-----BEGIN PUBLIC KEY-----")
    off = point[:-1] + bytes([point[-1] ^ 1])
    for bad in (b"", bytes(65), off, point[:64], point + b"\0", b"\x02" + point[1:33]):
        with pytest.raises(KeyRefused) as caught:
            p256.public_key(bad)
        assert code(caught) == "FORMAT"


@pytest.mark.parametrize("passphrase", [None, "opened by this"])
def test_a_key_file_is_its_owners_and_comes_back(tmp_path, passphrase):
    path = tmp_path / "signing.key"
    p256.save_private_key(path, KEY, passphrase)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert p256.point(p256.load_private_key(path, passphrase)) == p256.point(KEY)
    with pytest.raises(KeyRefused) as caught:
        p256.save_private_key(path, KEY)
    assert code(caught) == "EXISTS"
    with pytest.raises(KeyRefused) as caught:
        p256.load_private_key(path, "another" if passphrase else "needless")
    assert code(caught) == "PASSPHRASE"
    path.chmod(0o640)
    with pytest.raises(KeyRefused) as caught:
        p256.load_private_key(path, passphrase)
    assert code(caught) == "MODE"


def test_a_key_of_another_kind_is_refused(tmp_path):
    keys.save_private_key(tmp_path / "ledger.key", keys.generate())
    p256.save_private_key(tmp_path / "p384.key", ec.generate_private_key(ec.SECP384R1()))
    (tmp_path / "text.key").write_text("no key")
    (tmp_path / "text.key").chmod(0o600)
    for name in ("ledger.key", "p384.key", "text.key"):
        with pytest.raises(KeyRefused) as caught:
            p256.load_private_key(tmp_path / name)
        assert code(caught) == "FORMAT"
