"""Key hygiene against the published edge cases of Ed25519, and keys on disk."""

import base64
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from attest import keys
from attest.errors import FileRefused, KeyRefused, SignatureRefused
from attest.keys import ed25519 as points

ROOT = Path(__file__).resolve().parents[2]
P = points.P
# Encodings of the eight points of small order: canonical ones, y >= p, and x = 0 with the sign bit.
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]


def weak(raw):
    try:
        keys.check_public_key(raw)
    except KeyRefused as error:
        return error.code == "KEY_WEAK"
    return False


@pytest.mark.parametrize("text", SMALL_ORDER)
def test_small_order_and_non_canonical_keys_are_refused(text):
    assert weak(bytes.fromhex(text))


def test_every_key_with_y_of_p_or_more_is_refused_for_its_encoding():
    for excess in range(19):
        for sign in (0, 1):
            raw = (P + excess | sign << 255).to_bytes(32, "little")
            assert weak(raw) and points.decompress(raw) is None
            with pytest.raises(KeyRefused, match="canonical"):
                keys.check_public_key(raw)


def test_x_of_zero_with_a_sign_is_no_encoding():
    for y in (1, P - 1):
        assert points.decompress(y.to_bytes(32, "little")) is not None
        assert points.decompress((y | 1 << 255).to_bytes(32, "little")) is None


def test_points_of_order_eight_are_told_from_mixed_ones():
    for text in SMALL_ORDER[:8]:
        raw = bytes.fromhex(text)
        if points.decompress(raw) is not None:
            with pytest.raises(KeyRefused, match="small order"):
                keys.check_public_key(raw)


def test_a_small_order_key_that_verifies_everything_is_refused_as_a_verifier():
    identity = bytes.fromhex(SMALL_ORDER[0])
    forged = identity + bytes(32)
    ed25519.Ed25519PublicKey.from_public_bytes(identity).verify(forged, b"any message")
    with pytest.raises(KeyRefused):
        keys.verify_signature(identity, forged, b"any message")


def test_mixed_order_keys_are_refused():
    torsion = points.decompress(bytes.fromhex(SMALL_ORDER[4]))
    sound = points.decompress(keys.public_bytes(keys.generate()))
    x, y, z, _ = points.add(sound, torsion)
    inverse = pow(z, -1, P)
    raw = (y * inverse % P | (x * inverse % P & 1) << 255).to_bytes(32, "little")
    assert weak(raw)


def test_malleated_signatures_are_refused():
    key = keys.generate()
    raw, signature = keys.public_bytes(key), key.sign(b"m")
    s = int.from_bytes(signature[32:], "little")
    for multiple in (1, 2):
        other = signature[:32] + (s + multiple * points.L).to_bytes(32, "little")
        with pytest.raises(SignatureRefused) as caught:
            keys.verify_signature(raw, other, b"m")
        assert caught.value.code == "SIG_BAD"
    for other in (signature[:-1], signature + b"\x00", b""):
        with pytest.raises(SignatureRefused):
            keys.verify_signature(raw, other, b"m")


def test_fresh_keys_are_accepted_and_the_curve_agrees_with_the_library():
    base = points.decompress(bytes.fromhex("58" + "66" * 31))
    for scalar_seed in range(1, 6):
        key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([scalar_seed]) * 32)
        raw = keys.public_bytes(key)
        keys.check_public_key(raw)
        keys.check_public_key(keys.public_bytes(key.public_key()))
        assert points.is_identity(points.multiply(points.L, points.decompress(raw)))
    assert points.is_identity(points.multiply(points.L, base))


@pytest.mark.parametrize("raw", [b"", b"\x01" * 31, b"\x01" * 33, "x" * 32, None, bytearray(32)])
def test_keys_of_other_shape_are_refused(raw):
    with pytest.raises(KeyRefused):
        keys.check_public_key(raw)


def test_private_key_round_trip_with_and_without_passphrase(tmp_path):
    key = keys.generate()
    for form in ("pem", "openssh"):
        for name, passphrase in (("plain", None), ("locked", "correct horse"), ("bytes", b"battery")):
            path = tmp_path / f"{form}-{name}"
            keys.save_private_key(path, key, passphrase, form=form)
            assert os.stat(path).st_mode & 0o777 == 0o600
            assert keys.public_bytes(keys.load_private_key(path, passphrase)) == keys.public_bytes(key)
            assert (b"OPENSSH" in path.read_bytes()) is (form == "openssh")


def refusal(call, *arguments):
    with pytest.raises(KeyRefused) as caught:
        call(*arguments)
    return caught.value


def key_code(call, *arguments):
    return refusal(call, *arguments).code


@pytest.mark.parametrize("form", ["pem", "openssh"])
def test_private_key_refusals(tmp_path, form):
    key, path = keys.generate(), tmp_path / "key"
    keys.save_private_key(path, key, "secret", form=form)
    before = path.read_bytes()
    assert key_code(keys.save_private_key, path, keys.generate()) == "EXISTS"
    assert path.read_bytes() == before
    assert key_code(keys.load_private_key, path) == "PASSPHRASE"
    assert key_code(keys.load_private_key, path, "wrong") == "PASSPHRASE"
    assert key_code(keys.save_private_key, tmp_path / "empty", key, "") == "PASSPHRASE"
    assert key_code(keys.load_private_key, tmp_path / "absent") == "FILE"
    path.chmod(0o640)
    assert key_code(keys.load_private_key, path, "secret") == "MODE"
    path.chmod(0o600)
    keys.save_private_key(tmp_path / "plain", key, form=form)
    assert key_code(keys.load_private_key, tmp_path / "plain", "secret") == "PASSPHRASE"
    junk = tmp_path / "junk"
    junk.write_bytes(b"not a key")
    junk.chmod(0o600)
    assert key_code(keys.load_private_key, junk) == "FORMAT"
    junk.write_bytes(b"x" * 20000)
    assert key_code(keys.load_private_key, junk) == "FORMAT"
    for size in (40, 100, 200):
        junk.write_bytes(before[:size])
        assert key_code(keys.load_private_key, junk) == "FORMAT"


def test_a_private_key_is_not_written_through_a_symbolic_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert key_code(keys.save_private_key, tmp_path / "link", keys.generate()) == "EXISTS"
    assert not (tmp_path / "target").exists()


def test_a_private_key_is_read_through_a_symbolic_link_with_the_permissions_of_the_file_itself(tmp_path):
    key, link = keys.generate(), tmp_path / "link"
    keys.save_private_key(tmp_path / "key", key)
    link.symlink_to(tmp_path / "key")
    assert keys.public_bytes(keys.load_private_key(link)) == keys.public_bytes(key)
    (tmp_path / "key").chmod(0o644)
    assert key_code(keys.load_private_key, link) == "MODE"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o777])
def test_a_private_key_that_others_may_touch_is_refused(tmp_path, mode):
    keys.save_private_key(tmp_path / "key", keys.generate())
    (tmp_path / "key").chmod(mode)
    with pytest.raises(KeyRefused, match=f"{mode:04o}.*chmod 600") as caught:
        keys.load_private_key(tmp_path / "key")
    assert caught.value.code == "MODE"


def test_a_named_pipe_or_folder_in_place_of_a_key_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert key_code(keys.load_private_key, tmp_path / "pipe") == "FILE"
    assert key_code(keys.load_private_key, tmp_path) == "FILE"


def test_a_private_key_that_cannot_be_written_whole_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert key_code(keys.save_private_key, tmp_path / "key", keys.generate()) == "FILE"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("form", ["PKCS8", "OpenSSH"])
def test_a_private_key_of_another_kind_is_refused(tmp_path, form):
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, getattr(serialization.PrivateFormat, form), serialization.NoEncryption()
    )
    path = tmp_path / "p256"
    path.write_bytes(pem)
    path.chmod(0o600)
    assert key_code(keys.load_private_key, path) == "FORMAT"


def test_an_unknown_form_is_refused_and_nothing_written(tmp_path):
    with pytest.raises(KeyRefused, match="pem or openssh"):
        keys.save_private_key(tmp_path / "key", keys.generate(), form="putty")
    assert os.listdir(tmp_path) == []


# Run in a fresh interpreter in which bcrypt cannot be imported, whatever is installed.
WITHOUT_BCRYPT = """
import sys
sys.modules["bcrypt"] = None
from attest import keys
from attest.errors import KeyRefused
keys.save_private_key("plain", keys.generate(), form="openssh")
keys.load_private_key("plain")
for call in (
    lambda: keys.save_private_key("new", keys.generate(), "secret", form="openssh"),
    lambda: keys.load_private_key("locked", "secret"),
):
    try:
        call()
    except KeyRefused as error:
        print(error)
"""


def test_an_encrypted_openssh_key_without_bcrypt_says_what_to_install(tmp_path):
    keys.save_private_key(tmp_path / "locked", keys.generate(), "secret", form="openssh")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BCRYPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 2 and all(line.startswith("BCRYPT: ") and "'dptrain[openssh]'" in line for line in said)
    assert sorted(os.listdir(tmp_path)) == ["locked", "plain"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed (package openssh-client)")
def test_openssh_reads_our_keys_and_we_read_its_keys(tmp_path):
    def keygen(*arguments):
        done = subprocess.run(["ssh-keygen", *map(str, arguments)], capture_output=True, check=True, stdin=subprocess.DEVNULL)
        return done.stdout

    for passphrase in ("", "correct horse"):
        ours, theirs = tmp_path / f"ours{len(passphrase)}", tmp_path / f"theirs{len(passphrase)}"
        key = keys.generate()
        keys.save_private_key(ours, key, passphrase or None, form="openssh")
        (tmp_path / "ours.pub").write_bytes(keygen("-y", "-P", passphrase, "-f", ours))
        assert keys.load_openssh_public_key(tmp_path / "ours.pub") == keys.public_bytes(key)
        keygen("-q", "-t", "ed25519", "-N", passphrase, "-C", "a comment of Alice's", "-f", theirs)
        loaded = keys.load_private_key(theirs, passphrase or None)
        assert keys.load_openssh_public_key(f"{theirs}.pub") == keys.public_bytes(loaded)


def test_openssh_public_key_refusals(tmp_path):
    path = tmp_path / "id.pub"
    raw = keys.public_bytes(keys.generate())
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20"
    good = b"ssh-ed25519 " + base64.b64encode(blob + raw)
    path.write_bytes(good + b" alice@host\n")
    assert keys.load_openssh_public_key(path) == raw
    assert "keygen NAME --from" in refusal(keys.load_public_key, path).sentence
    weak = b"ssh-ed25519 " + base64.b64encode(blob + bytes(32))
    for text in (b"", b"ssh-ed25519", b"ssh-ed25519 AAAA", good[:-8], b"ssh-rsa " + good[12:], b"dptrain-key-v1 a b"):
        path.write_bytes(text)
        assert key_code(keys.load_openssh_public_key, path) == "FORMAT"
    path.write_bytes(weak)
    assert key_code(keys.load_openssh_public_key, path) == "KEY_WEAK"
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    path.write_bytes(public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
    assert "Ed25519" in refusal(keys.load_openssh_public_key, path).sentence


def test_public_key_file_round_trip(tmp_path):
    raw = keys.public_bytes(keys.generate())
    keys.save_public_key(tmp_path / "a.pub", raw, "alice")
    assert keys.load_public_key(tmp_path / "a.pub") == raw
    assert keys.load_named_public_key(tmp_path / "a.pub") == ("alice", raw)
    assert (tmp_path / "a.pub").read_text().count("\n") == 1
    assert keys.key_id(raw) == keys.key_id(bytes(raw)) and len(keys.key_id(raw)) == 8


def test_public_key_file_refusals(tmp_path):
    raw = keys.public_bytes(keys.generate())
    good = tmp_path / "good.pub"
    keys.save_public_key(good, raw, "alice")
    text = good.read_text()
    path = tmp_path / "bad.pub"
    variants = [
        text.replace("v1", "v2"),
        text + text,
        text.replace("alice", "Alice"),
        text.replace(" ", "  ", 1),
        text.strip() + "\r\n",
        text.replace("=", ""),
        "",
        "ssh-ed25519 AAAA alice\n",
    ]
    last = text.strip()[-2]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    variants.append(text.strip()[:-2] + alphabet[alphabet.index(last) ^ 1] + "=\n")
    for variant in variants:
        path.write_text(variant)
        assert key_code(keys.load_public_key, path) == "FORMAT"
    path.write_text(f"dptrain-key-v1 eve {'A' * 43}=\n")
    assert key_code(keys.load_public_key, path) == "KEY_WEAK"
    with pytest.raises(FileRefused):
        keys.load_public_key(tmp_path / "absent.pub")
    assert key_code(keys.save_public_key, tmp_path / "x", raw, "Not An Id") == "RANGE"
    assert key_code(keys.save_public_key, tmp_path / "x", bytes(32), "eve") == "KEY_WEAK"
