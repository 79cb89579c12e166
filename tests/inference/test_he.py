"""An adapter under encryption: what it answers, what it refuses before it reads, and what a server never holds."""

import copy
import gc
import json
import pickle
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrain.inference.he import insecure, scheme, wire
from dptrain.inference.he.adapter import Adapter
from dptrain.inference.he.client import HEKeys
from dptrain.inference.he.scheme import SCALE, EncryptionRefused, context, sealapi
from dptrain.inference.he.server import AdapterServer

INSTALLED = all(find_spec(name) for name in ("tenseal", "zstandard"))
pytestmark = pytest.mark.skipif(not INSTALLED, reason="pip install 'dptrain[he]'")
if INSTALLED:
    import zstandard

HEADER = struct.Struct("<HBBBBHQ")
HEAD = 25  # bytes before the keys in a bundle
ENVELOPE = 36


def adapter_of(m: int, n: int, r: int, scaling: float = 1.0, seed: int = 0) -> Adapter:
    rng = np.random.default_rng(seed)
    return Adapter(rng.normal(size=(r, n)) / n**0.5, rng.normal(size=(m, r)) / r**0.5, scaling)


def state_of(n: int, norm: float = 177.5, seed: int = 1) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=n)
    return values * (norm / np.linalg.norm(values))


@pytest.fixture(scope="module")
def keys() -> HEKeys:
    return HEKeys.generate(64)


@pytest.fixture(scope="module")
def adapter() -> Adapter:
    return adapter_of(64, 48, 8)


@pytest.fixture(scope="module")
def server(keys: HEKeys) -> AdapterServer:
    made = AdapterServer()
    made.register_keys("s", keys.public)
    return made


def code_of(act: Any) -> str:
    with pytest.raises(EncryptionRefused) as refused:
        act()
    assert len(refused.value.sentence) < 500  # what came is not repeated
    return refused.value.code


def sealed(raw: bytes, compression: int = 0) -> bytes:
    """Returns an object of SEAL around unpacked members."""
    body = zstandard.ZstdCompressor().compress(raw) if compression == 2 else raw
    return HEADER.pack(0xA15E, 16, *wire._version(), compression, 0, 16 + len(body)) + body


def members(data: bytes) -> bytes:
    """Returns the unpacked members of an object of SEAL."""
    return zstandard.ZstdDecompressor().stream_reader(data[16:]).read(50_000_000)


# --- what it answers ---


@pytest.mark.parametrize(
    ("m", "n", "r", "scaling"), [(64, 48, 8, 1.0), (48, 64, 3, -2.0), (7, 5, 1, 0.25), (64, 64, 64, 8 / 64**0.5)]
)
def test_delta_is_the_product_within_1e_5(keys: HEKeys, server: AdapterServer, m: int, n: int, r: int, scaling: float) -> None:
    made, h = adapter_of(m, n, r, scaling), state_of(n)
    delta = keys.decrypt(server.apply("s", made, keys.encrypt(h)))
    assert delta.shape == (m,) and np.abs(delta - scaling * made.B @ (made.A @ h)).max() < 1e-5


def test_delta_at_the_size_of_the_target_is_within_1e_6_and_one_set_of_keys_serves_every_rank() -> None:
    wide, server = HEKeys.generate(), AdapterServer()
    server.register_keys("s", wide.public)
    assert len(wide.public) < wire.MOST_KEYS
    for m, n, r in ((1536, 1536, 32), (2048, 2048, 1), (100, 2048, 64)):
        made, h = adapter_of(m, n, r, 0.1), state_of(n)
        sent = wide.encrypt(h)
        answer = server.apply("s", made, sent)
        assert np.abs(wide.decrypt(answer) - 0.1 * made.B @ (made.A @ h)).max() < 1e-6
        assert len(sent) < 335_000 and len(answer) < 135_000


def test_the_error_does_not_hang_on_how_a_pair_shares_its_product(keys: HEKeys, server: AdapterServer) -> None:
    even, h = adapter_of(64, 48, 8), state_of(48)
    for factor in (1e-6, 1e6):
        made = Adapter(even.A * factor, even.B / factor, 1.0)
        assert np.abs(keys.decrypt(server.apply("s", made, keys.encrypt(h))) - even.B @ (even.A @ h)).max() < 1e-6


def test_the_longest_state_and_the_largest_gain_do_not_wrap_around(keys: HEKeys, server: AdapterServer) -> None:
    a = np.zeros((1, 48))
    a[0, 0] = 1.0
    made = Adapter(a, np.full((64, 1), scheme.GAIN), 1.0)
    h = np.zeros(48)
    h[0] = scheme.NORM
    delta = keys.decrypt(server.apply("s", made, keys.encrypt(h)))
    assert np.allclose(delta, scheme.NORM * scheme.GAIN, rtol=1e-8)


def test_states_come_as_lists_numpy_and_torch_and_are_left_as_they_were(
    keys: HEKeys, server: AdapterServer, adapter: Adapter
) -> None:
    torch = pytest.importorskip("torch")
    h = state_of(48).astype(np.float32)
    before = h.copy()
    expected = adapter.B @ (adapter.A @ h)
    for state in (h, h.tolist(), torch.from_numpy(h), torch.from_numpy(h.astype(np.float64)).requires_grad_()):
        assert np.abs(keys.decrypt(server.apply("s", adapter, keys.encrypt(state))) - expected).max() < 1e-5
    assert (h == before).all()


def test_two_encryptions_of_one_state_differ_in_every_part(keys: HEKeys) -> None:
    h = state_of(48)
    one, two = (np.frombuffer(members(keys.encrypt(h)[ENVELOPE:])[97:], np.uint64) for _ in range(2))
    assert len(one) == 2 * 3 * 8192 and (one != two).mean() > 0.99


def test_the_answer_hides_the_state_and_the_delta_from_other_keys(
    keys: HEKeys, server: AdapterServer, adapter: Adapter
) -> None:
    """Under the name of other keys it is refused; by force it reads as nothing near."""
    others = HEKeys.generate(64)
    answer = server.apply("s", adapter, keys.encrypt(state_of(48)))
    assert code_of(lambda: others.decrypt(answer)) == "WRONG_KEYS"
    forced = others.decrypt(answer[:16] + others._name + answer[32:])
    assert np.abs(forced - keys.decrypt(answer)).max() > 1e3


# --- the server ---


def test_a_bundle_with_a_secret_key_is_refused_and_not_read(keys: HEKeys) -> None:
    import tenseal

    full = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    generator = sealapi().KeyGenerator(context())
    secret = scheme.saved(generator.secret_key())
    server = AdapterServer()
    for bundle in (full.serialize(save_secret_key=True), keys.public[:HEAD] + secret):
        assert code_of(lambda bundle=bundle: server.register_keys("t", bundle)) == "SECRET_IN_BUNDLE"
    public = full.serialize(save_secret_key=False, save_galois_keys=False, save_relin_keys=False)
    assert code_of(lambda: server.register_keys("t", public)) == "NOT_A_BUNDLE"
    assert code_of(lambda: server.register_keys("t", keys.public + secret)) == "MALFORMED_KEYS"  # nothing may follow
    assert code_of(lambda: server.apply("t", adapter_of(8, 8, 2), b"")) == "NO_KEYS"


def test_the_bundle_has_no_byte_of_the_secret_key() -> None:
    """A key of a rotation holds the secret under encryption; its coefficients in clear are in no part of the bundle."""
    seal = sealapi()
    generator = seal.KeyGenerator(context())
    galois = seal.GaloisKeys()
    generator.create_galois_keys([scheme.element(steps) for steps in scheme.rotations(64)], galois)
    bundle = wire.pack_keys(galois, 64)
    secret = members(scheme.saved(generator.secret_key()))
    inside = members(bundle[HEAD:])
    runs = [secret[place : place + 24] for place in range(1000, len(secret) - 24, 40_000)]
    assert len(runs) > 5 and not any(run in inside for run in runs)
    assert any(run in members(scheme.saved(generator.secret_key())) for run in runs)


@pytest.mark.parametrize(
    ("place", "value"), [(18, b"\x00\x10"), (20, b"\x28"), (23, b"\x28"), (24, b"\x1e"), (16, b"\x41\x00"), (16, b"\x00\x10")]
)
def test_keys_of_other_parameters_are_refused_by_what_they_say(keys: HEKeys, place: int, value: bytes) -> None:
    bundle = keys.public[:place] + value + keys.public[place + len(value) :]
    assert code_of(lambda: AdapterServer().register_keys("s", bundle)) == "WRONG_PARAMETERS"


def test_keys_of_other_parameters_are_refused_by_what_they_are(keys: HEKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle says the right ones; its keys are of primes of 50 and 30 bits."""
    seal = sealapi()
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(8192)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(8192, [50, 30, 30, 50]))
    other = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    galois = seal.GaloisKeys()
    seal.KeyGenerator(other).create_galois_keys([scheme.element(steps) for steps in scheme.rotations(64)], galois)
    read = []
    monkeypatch.setattr(wire, "loaded", lambda *given: read.append(given))
    assert code_of(lambda: AdapterServer().register_keys("s", wire.pack_keys(galois, 64))) == "MALFORMED_KEYS"
    fewer = seal.GaloisKeys()
    seal.KeyGenerator(context()).create_galois_keys([scheme.element(1)], fewer)
    assert code_of(lambda: AdapterServer().register_keys("s", wire.pack_keys(fewer, 64))) == "MALFORMED_KEYS"
    assert not read  # SEAL saw none of it


def test_what_is_too_long_is_refused_before_it_is_parsed(
    keys: HEKeys, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = AdapterServer()
    server.register_keys("s", keys.public)
    sent = keys.encrypt(state_of(48))

    def parsed(*given: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(wire, "_checked", parsed)
    monkeypatch.setattr(wire, "loaded", parsed)
    assert code_of(lambda: server.register_keys("t", keys.public + bytes(wire.MOST_KEYS))) == "KEYS_TOO_LONG"
    assert code_of(lambda: server.apply("s", adapter, sent + bytes(wire.MOST_STATE))) == "TOO_LONG"
    with pytest.raises(AssertionError, match="parsed"):  # the ones that are not too long get there
        server.apply("s", adapter, sent)


def test_what_unpacks_to_more_than_it_may_is_refused_without_unpacking_it(
    keys: HEKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside, and within: a gigabyte of zeros in 100 kB, and a list of keys whose first key is itself compressed."""
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    assert len(bomb) < 200_000
    seen = []
    inflated = wire._inflated
    monkeypatch.setattr(wire, "_inflated", lambda *given: seen.append(inflated(*given)) or seen[-1])
    packed = HEADER.pack(0xA15E, 16, *wire._version(), 2, 0, 16 + len(bomb)) + bomb
    assert code_of(lambda: AdapterServer().register_keys("s", keys.public[:HEAD] + packed)) == "MALFORMED_KEYS"
    assert len(seen) == 1 and len(seen[0]) < wire.MOST_KEYS
    monkeypatch.setattr(wire, "loaded", lambda *given: pytest.fail("SEAL would have unpacked it"))
    raw = members(keys.public[HEAD:])
    first = raw.index(HEADER.pack(0xA15E, 16, *wire._version(), 0, 0, 524_401))
    nested = raw[:first] + HEADER.pack(0xA15E, 16, *wire._version(), 2, 0, 524_401) + raw[first + 16 :]
    for compression in (0, 2):
        bundle = keys.public[:HEAD] + sealed(nested, compression)
        assert code_of(lambda bundle=bundle: AdapterServer().register_keys("s", bundle)) == "MALFORMED_KEYS"


def test_a_bundle_is_taken_whether_it_is_compressed_or_not(keys: HEKeys) -> None:
    raw = members(keys.public[HEAD:])
    AdapterServer().register_keys("s", keys.public[:HEAD] + sealed(raw, 0))
    AdapterServer().register_keys("s", keys.public[:HEAD] + sealed(raw, 2))
    wrong = bytearray(raw)
    at = raw.index(HEADER.pack(0xA15E, 16, *wire._version(), 0, 0, 524_401)) + 16 + 97
    wrong[at : at + 8] = b"\xff" * 8  # a coefficient at or above its prime; also SEAL's mark of a seed in its place
    assert code_of(lambda: AdapterServer().register_keys("s", keys.public[:HEAD] + sealed(bytes(wrong)))) == "MALFORMED_KEYS"


@pytest.mark.parametrize(
    "make",
    [
        lambda h: h,
        lambda h: h.tolist(),
        lambda h: bytearray(h.tobytes()),
        lambda h: h.tobytes(),
        lambda h: h.astype(np.float32).tobytes(),
        lambda h: h.astype(np.float16).tobytes(),
        lambda h: json.dumps({"state": h.tolist()}).encode(),
        lambda h: json.dumps(h.tolist()).encode(),
    ],
    ids=["numpy", "list", "bytearray", "float64", "float32", "float16", "json", "json list"],
)
def test_a_state_in_clear_is_refused(server: AdapterServer, adapter: Adapter, make: Any) -> None:
    assert code_of(lambda: server.apply("s", adapter, make(state_of(48)))) == "STATE_IN_CLEAR"


def test_a_ciphertext_that_anybody_reads_is_a_state_in_clear(keys: HEKeys, server: AdapterServer, adapter: Adapter) -> None:
    """(m, 0) decrypts to m under every key."""
    sent = keys.encrypt(state_of(48))
    raw = members(sent[ENVELOPE:])
    half = 97 + 3 * 8192 * 8
    clear = raw[:half] + bytes(len(raw) - half)
    for compression in (0, 2):
        body = sent[:ENVELOPE] + sealed(clear, compression)
        assert code_of(lambda body=body: server.apply("s", adapter, body)) == "STATE_IN_CLEAR"
    assert server.apply("s", adapter, sent[:ENVELOPE] + sealed(raw))


def test_malformed_states_are_refused_and_nothing_of_another_kind_comes_out(
    keys: HEKeys, server: AdapterServer, adapter: Adapter
) -> None:
    sent = keys.encrypt(state_of(48))
    answer = server.apply("s", adapter, sent)
    for code, data in {
        "NOT_A_CIPHERTEXT": [b"", b"hello, server", sent[:20], answer, bytes(range(256)) * 3, keys.public[:1000]],
        "MALFORMED_CIPHERTEXT": [
            sent[:ENVELOPE], sent[:-1], sent + b"\0", sent[:ENVELOPE] + answer[ENVELOPE:],
            sent[:100] + b"\xff" * 50 + sent[150:], sent[:ENVELOPE] + sealed(bytes(100)), sent[:ENVELOPE] + sealed(b"", 1),
        ],
        "WRONG_KEYS": [sent[:16] + bytes(16) + sent[32:], sent[:34] + struct.pack("<H", 128) + sent[36:]],
        "WRONG_LENGTH": [sent[:32] + struct.pack("<H", 47) + sent[34:], sent[:32] + struct.pack("<H", 65) + sent[34:]],
    }.items():  # fmt: skip
        for each in data:
            assert code_of(lambda each=each: server.apply("s", adapter, each)) == code


def test_an_object_that_is_too_long_or_short_by_a_byte_does_not_come_to_seal(
    keys: HEKeys, server: AdapterServer, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = keys.encrypt(state_of(48))
    raw, bundle = members(sent[ENVELOPE:]), members(keys.public[HEAD:])
    monkeypatch.setattr(wire, "loaded", lambda *given: pytest.fail("SEAL was asked"))
    for compression in (0, 2):
        for wrong in (raw + b"\0", raw[:-1]):
            body = sent[:ENVELOPE] + sealed(wrong, compression)
            assert code_of(lambda body=body: server.apply("s", adapter, body)) == "MALFORMED_CIPHERTEXT"
        for wrong in (bundle + b"\0", bundle[:-1]):
            body = keys.public[:HEAD] + sealed(wrong, compression)
            assert code_of(lambda body=body: server.register_keys("t", body)) == "MALFORMED_KEYS"


def test_keys_that_would_make_an_answer_readable_to_anybody_give_none(keys: HEKeys, adapter: Adapter) -> None:
    """Keys whose coefficients are all zero are in form; a product by them has a second polynomial of zero."""
    server, empty = AdapterServer(), bytearray(members(keys.public[HEAD:]))
    mark, place = HEADER.pack(0xA15E, 16, *wire._version(), 0, 0, 524_401), 0
    while (place := empty.find(mark, place)) >= 0:
        start = place + 16 + 97
        empty[start : start + 2 * 4 * 8192 * 8] = bytes(2 * 4 * 8192 * 8)
        place = start
    bundle = keys.public[:HEAD] + sealed(bytes(empty), 2)
    server.register_keys("s", bundle)
    sent = keys.encrypt(state_of(48))
    renamed = sent[:16] + wire.key_name(bundle) + sent[32:]
    assert code_of(lambda: server.apply("s", adapter, renamed)) == "NO_ANSWER"


def test_bytes_changed_at_random_are_refused_or_answered_and_never_break_the_server(
    keys: HEKeys, server: AdapterServer, adapter: Adapter
) -> None:
    """There is no integrity: a changed coefficient is another ciphertext. All else is refused by a typed error."""
    rng, sent = np.random.default_rng(3), keys.encrypt(state_of(48))
    raw = sent[:ENVELOPE] + sealed(members(sent[ENVELOPE:]))
    refused = 0
    for base in (sent, raw):
        for place in [*rng.integers(0, 160, 40), *rng.integers(0, len(base), 10)]:
            changed = bytearray(base)
            changed[place] ^= 1 << rng.integers(0, 8)
            try:
                server.apply("s", adapter, bytes(changed))
            except EncryptionRefused:
                refused += 1
    assert refused > 50


def test_a_scale_or_a_level_that_is_not_a_fresh_one_is_refused(keys: HEKeys, server: AdapterServer, adapter: Adapter) -> None:
    raw = members(keys.encrypt(state_of(48))[ENVELOPE:])
    head = keys.encrypt(state_of(48))[:ENVELOPE]
    scale = raw.index(struct.pack("<d", SCALE))
    for wrong in (2.0**30, float("nan"), 0.0):
        changed = raw[:scale] + struct.pack("<d", wrong) + raw[scale + 8 :]
        assert code_of(lambda changed=changed: server.apply("s", adapter, head + sealed(changed))) == "MALFORMED_CIPHERTEXT"
    lower = sealapi().Ciphertext()
    sealapi().Evaluator(context()).mod_switch_to_next(wire.unpack_vector(wire.STATE, head + sealed(raw)).vector, lower)
    assert code_of(lambda: server.apply("s", adapter, head + scheme.saved(lower))) == "MALFORMED_CIPHERTEXT"


def test_sessions_keep_their_keys_until_they_are_forgotten(keys: HEKeys, adapter: Adapter) -> None:
    server = AdapterServer(sessions=2)
    server.register_keys("a", keys.public)
    assert code_of(lambda: server.register_keys("a", keys.public)) == "SESSION_TAKEN"
    server.register_keys("b", keys.public)
    assert code_of(lambda: server.register_keys("c", keys.public)) == "SESSIONS_FULL"
    server.forget("a")
    assert code_of(lambda: server.apply("a", adapter, keys.encrypt(state_of(48)))) == "NO_KEYS"
    server.register_keys("c", keys.public)
    assert code_of(lambda: server.apply("c", adapter_of(65, 48, 8), keys.encrypt(state_of(48)))) == "WRONG_WIDTH"


def test_an_adapter_is_encoded_once_for_a_width_and_let_go_with_its_owner(
    keys: HEKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, made = AdapterServer(), adapter_of(64, 48, 8)
    server.register_keys("s", keys.public)
    server.prepare(made)
    monkeypatch.setattr(server, "_plaintexts", lambda *given: pytest.fail("encoded again"))
    server.apply("s", made, keys.encrypt(state_of(48)))
    assert len(server._encoded) == 1
    del made
    gc.collect()
    assert len(server._encoded) == 0


@pytest.mark.filterwarnings("ignore::dptrain.inference.he.insecure.InsecureWarning")
def test_the_real_client_and_server_refuse_the_bytes_of_the_stand_in(
    keys: HEKeys, server: AdapterServer, adapter: Adapter
) -> None:
    false = insecure.InsecureKeys.generate()
    assert code_of(lambda: server.register_keys("i", false.public)) == "NOT_A_BUNDLE"
    assert code_of(lambda: server.apply("s", adapter, false.encrypt(state_of(48)))) in ("NOT_A_CIPHERTEXT", "STATE_IN_CLEAR")
    assert code_of(lambda: keys.decrypt(false.encrypt(state_of(48)))) in ("NOT_A_CIPHERTEXT", "STATE_IN_CLEAR")


# --- the client ---


def test_states_that_would_not_come_out_right_are_refused(keys: HEKeys) -> None:
    for code, state in {
        "WRONG_LENGTH": [np.zeros(65), np.zeros((2, 8)), np.zeros(0), 1.0],
        "NOT_FINITE": [[float("nan")], [1e308, 1e308], [float("inf")]],
        "TOO_LARGE": [[2e4]],
    }.items():
        for each in state:
            assert code_of(lambda each=each: keys.encrypt(each)) == code
    assert code_of(lambda: HEKeys.generate(100)) == "WRONG_WIDTH"


def test_the_secret_key_is_not_pickled_copied_or_shown_and_goes_when_the_keys_close(keys: HEKeys) -> None:
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        assert code_of(lambda act=act: act(keys)) == "SECRET_STAYS"
    assert repr(keys) == "HEKeys(width=64, open)"
    with HEKeys.generate(64) as gone:
        sent = gone.encrypt(state_of(48))
    assert code_of(lambda: gone.encrypt(state_of(48))) == code_of(lambda: gone.decrypt(sent)) == "CLOSED"
    holders = [each for each in vars(gone).values() if type(each).__name__ in ("SecretKey", "Encryptor", "Decryptor")]
    assert not holders and repr(gone) == "HEKeys(width=64, closed)"


# --- the server cannot read ---

CHILD = """
import gc, sys
from pathlib import Path
from dptrain.inference.he.adapter import Adapter
from dptrain.inference.he.server import AdapterServer
import numpy as np
folder = Path(sys.argv[1])
factors = np.load(folder / "adapter.npz")
adapter, server = Adapter(factors["A"], factors["B"], 1.0), AdapterServer()
server.register_keys("s", (folder / "keys").read_bytes())
sent = (folder / "state").read_bytes()
(folder / "answer").write_bytes(server.apply("s", adapter, sent))
gc.collect()
found = {type(each).__name__ for each in gc.get_objects()} | {type(each).__name__ for each in vars(server).values()}
assert not found & {"SecretKey", "Decryptor", "KeyGenerator", "HEKeys", "Encryptor"}, found
assert "dptrain.inference.he.client" not in sys.modules and "torch" not in sys.modules
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="reads the memory of a process through /proc")
def test_the_process_of_the_server_holds_no_secret_key_and_no_byte_of_the_state(keys: HEKeys, tmp_path: Path) -> None:
    """Its whole memory is searched after it answered. That the search finds what is there, the encrypted state shows."""
    made, h = adapter_of(64, 48, 8), state_of(48, seed=77)
    sent = keys.encrypt(h)
    np.savez(tmp_path / "adapter.npz", A=made.A, B=made.B)
    (tmp_path / "keys").write_bytes(keys.public)
    (tmp_path / "state").write_bytes(sent)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        try:
            memory = memory_of(child.pid)
        except PermissionError:
            pytest.skip("this system does not let a process read its child")
    finally:
        child.communicate()
    assert child.returncode == 0
    delta = keys.decrypt((tmp_path / "answer").read_bytes())
    assert np.abs(delta - made.B @ (made.A @ h)).max() < 1e-5
    assert sent[5000:5100] in memory and made.A[0, :4].tobytes() in memory
    for values in (h, delta, made.A @ h):
        for kind in (np.float64, np.float32):
            cast = values.astype(kind)
            length = 16 // cast.itemsize
            assert not any(cast[place : place + length].tobytes() in memory for place in (0, len(cast) - length))


def memory_of(process: int) -> bytes:
    """Returns all memory of a process that can be read and written."""
    found = []
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            start, end = (int(each, 16) for each in span.split("-"))
            memory.seek(start)
            try:
                found.append(memory.read(end - start))
            except OSError:  # pages of the kernel
                continue
    return b"".join(found)
