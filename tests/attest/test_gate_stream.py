"""The gate as a stream: every processor, any number of contributions, signatures verified once."""

import hashlib
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from attest import processes
from attest.attestation import Attestation
from attest.corpus import Item, Locator, open_corpus, sign_corpus
from attest.errors import AdmissionRefused, GateFailed, RegistryRefused
from attest.gate import Gate, decide, run_gate
from attest.gate import gate as gate_module
from attest.gate.admission import Admitted, Refused, Seen
from attest.gate.reading import Verified
from attest.gate.workers import Work, Workers
from attest.processes import available_processors
from tests.worlds.gate import NOW


@pytest.fixture(scope="module")
def many(world):
    """A corpus in memory that meets every kind of item, most of it admissible."""
    items = []
    bobs = replace(world.descriptor, contributor="bob", admissibility_class="open")
    for number in range(700):
        content_hash = hashlib.sha256(number.to_bytes(4, "big")).digest()
        locator = Locator("data.jsonl", number, 1)
        attestation = world.variant(content_hash=content_hash, nonce=content_hash[:16])
        match number % 70:
            case 3:
                attestation = world.sign(replace(bobs, content_hash=content_hash), world.bob)
            case 5:
                attestation = replace(attestation, sign1=attestation.sign1[:-1] + bytes([attestation.sign1[-1] ^ 1]))
            case 7:
                attestation = items[0].attestation
                content_hash = items[0].content_hash
            case 9:
                attestation = world.variant(content_hash=items[1].content_hash)
                content_hash = items[1].content_hash
            case 11:
                content_hash = bytes(32)
            case 13:
                attestation = None
            case 15:
                locator = content_hash = None
            case 17:
                attestation = world.variant(clip_norm_micro=1_000_001, content_hash=content_hash)
            case 19:
                attestation = Attestation(b"x" * 16385, b"y")
            case 21:
                attestation = world.sign(replace(bobs, content_hash=content_hash))
            case 23:
                attestation = replace(attestation, descriptor=attestation.descriptor[:-1])
        problem = AdmissionRefused("UNATTESTED", "could not be read") if number % 70 == 25 else None
        items.append(Item(locator, content_hash, None if problem else attestation, problem))
    return items


def one_by_one(world, items, seen):
    """The corpus by `decide` alone, as its documentation says."""
    for item in items:
        if item.problem is not None:
            yield Refused(gate_module.refusal_of(item.problem), item.locator)
            continue
        content_hash = item.content_hash if item.locator is not None else None
        outcome = decide(
            item.attestation, content_hash, policy=world.policy, registry=world.registry, now=NOW, seen=seen
        )
        if isinstance(outcome, gate_module.Admission):
            seen.note(outcome, NOW)
            yield Admitted(outcome, item.locator)
        else:
            yield Refused(outcome, item.locator)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_stream_admits_and_refuses_what_decide_does(world, many, workers, monkeypatch):
    monkeypatch.setattr(gate_module, "PARALLEL_FROM", 30)
    monkeypatch.setattr(gate_module, "BATCH", 20)
    expected = list(one_by_one(world, many, Seen()))
    assert len({outcome.refusal.code for outcome in expected if isinstance(outcome, Refused)}) >= 9
    gate = Gate(world.policy, world.registry, workers=workers)
    assert list(gate.judge(iter(many), now=NOW)) == expected
    bad_clock = list(gate.judge(many, now=-1))
    assert {str(outcome.refusal.code) for outcome in bad_clock if outcome.refusal} == {"CLOCK", "UNATTESTED"}


def test_workers_do_the_examining(world, many, monkeypatch):
    monkeypatch.setattr(gate_module, "PARALLEL_FROM", 0)
    taken = []
    original = Workers.take

    def take(self, work):
        while not any(worker.ready for worker in self._workers):
            self.pump(None)
        taken.append(len(work.questions))
        return original(self, work)

    monkeypatch.setattr(Workers, "take", take)
    report = run_gate(many, world.policy, world.registry, now=NOW, workers=2)
    assert report.admitted == run_gate(many, world.policy, world.registry, now=NOW, workers=1).admitted
    assert sum(taken) == sum(i.attestation is not None and i.attestation.within_limits for i in many)


def test_a_lost_worker_fails_the_gate(world, many, monkeypatch):
    monkeypatch.setattr(gate_module, "PARALLEL_FROM", 0)
    monkeypatch.setattr(gate_module, "BATCH", 4)
    started = []
    original = Workers.__init__
    monkeypatch.setattr(Workers, "__init__", lambda self, *a, **b: (original(self, *a, **b), started.append(self))[0])

    def killing():
        for number, item in enumerate(many):
            if number == 300:
                (workers,) = started
                while not all(worker.ready for worker in workers._workers):
                    workers.pump(None)
                workers._workers[0]._process.send_signal(signal.SIGKILL)
                workers._workers[0]._process.wait()
            yield item

    with pytest.raises(GateFailed, match=r"WORKER.*worker of the gate ended"):
        list(Gate(world.policy, world.registry, workers=2).judge(killing(), now=NOW))
    assert all(worker._process.poll() is not None for worker in started[0]._workers) or not started[0]._workers


def test_workers_end_with_the_stream_even_if_it_is_left_early(world, many, monkeypatch):
    monkeypatch.setattr(gate_module, "PARALLEL_FROM", 0)
    monkeypatch.setattr(gate_module, "BATCH", 4)
    started = []
    original = processes.subprocess.Popen

    def popen(*args, **options):
        started.append(original(*args, **options))
        return started[-1]

    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    stream = Gate(world.policy, world.registry, workers=2).judge(many, now=NOW)
    for _ in range(50):
        next(stream)
    stream.close()
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_a_worker_that_cannot_start_is_an_error(world, many, monkeypatch):
    monkeypatch.setattr(gate_module, "PARALLEL_FROM", 0)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(GateFailed, match=r"WORKER.*cannot start"):
        list(Gate(world.policy, world.registry, workers=2).judge(many, now=NOW))
    monkeypatch.setattr(gate_module, "available_processors", lambda: 2)
    alone = list(Gate(world.policy, world.registry).judge(many, now=NOW))
    assert sum(isinstance(outcome, Admitted) for outcome in alone) > 500


def test_workers_answer_whatever_threads_the_caller_has(world):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with Workers(1, world.policy, world.registry, NOW) as workers:
            attestation = world.sign()
            work = Work([(attestation.descriptor, attestation.sign1, attestation.opening, None)])
            while not workers.take(work):
                workers.pump(None)
            while work.answer is None:
                workers.pump(None)
        assert [str(refusal.code) for refusal in work.answer] == ["CONTENT_MISSING"]
    finally:
        stop.set()
        thread.join()


def test_the_number_of_workers_is_checked(world):
    for bad in (0, -1, 1.0, True):
        with pytest.raises(GateFailed, match="RANGE"):
            Gate(world.policy, world.registry, workers=bad)
    assert available_processors() >= 1


def test_another_registry_than_the_signed_one_is_refused(world):
    with pytest.raises(RegistryRefused, match="REGISTRY_ROOT"):
        Gate(replace(world.policy, registry_root=bytes(32)), world.registry)
    with pytest.raises(RegistryRefused, match="REGISTRY_ROOT"):
        Gate(replace(world.policy, registry_root=None), world.registry)


class TestRemembering:
    """A22, A23: a verified signature is remembered; nothing else is."""

    @pytest.fixture
    def gate(self, world, many):
        gate = Gate(world.policy, world.registry, workers=1, remember=Verified())
        self.first = list(gate.judge(many, now=NOW))
        return gate

    def test_the_second_reading_verifies_nothing(self, world, many, gate, monkeypatch):
        calls = []
        monkeypatch.setattr(
            gate_module.Examiner,
            "examine",
            lambda self, *parts, verified=False, original=gate_module.Examiner.examine: (
                calls.append(verified),
                original(self, *parts, verified=verified),
            )[1],
        )
        assert list(gate.judge(many, now=NOW)) == self.first
        good = sum(isinstance(outcome, Admitted) for outcome in self.first)
        assert calls.count(True) >= good > 500

    def test_an_opening_that_was_swapped_since_is_found_at_every_reading(self, many, gate):
        good = next(item for item, outcome in zip(many, self.first, strict=True) if isinstance(outcome, Admitted))
        for opening in (b"", good.attestation.opening[:-1], many[2].attestation.opening):
            swapped = good._replace(attestation=replace(good.attestation, opening=opening))
            (outcome,) = gate.judge([swapped], now=NOW)
            assert str(outcome.refusal.code) in ("OPENING", "CBOR")

    def test_expiry_is_checked_at_every_reading(self, world, many, gate):
        later = list(gate.judge(many, now=world.descriptor.not_after))
        assert not any(isinstance(outcome, Admitted) for outcome in later)
        assert sum(outcome.refusal.code == "EXPIRED" for outcome in later) > 500

    def test_withdrawals_are_checked_at_every_reading(self, many, gate):
        gone = next(outcome.admission for outcome in self.first if isinstance(outcome, Admitted))
        again = list(gate.judge(many, now=NOW, withdrawn={gone.descriptor_hash}))
        assert [str(outcome.refusal.code) for outcome in again[:1]] == ["WITHDRAWN"]

    def test_the_key_is_the_whole_message_and_content(self, world, many, gate):
        good = many[1]
        for bit in range(0, 8 * len(good.attestation.sign1), 7):
            flipped = bytearray(good.attestation.sign1)
            flipped[bit // 8] ^= 1 << bit % 8
            forged = good._replace(attestation=replace(good.attestation, sign1=bytes(flipped)))
            (outcome,) = gate.judge([forged], now=NOW)
            assert isinstance(outcome, Refused)
        for other in (good._replace(content_hash=bytes(32)), good._replace(locator=None)):
            (outcome,) = gate.judge([other], now=NOW)
            assert isinstance(outcome, Refused)
        resigned = good._replace(attestation=replace(good.attestation, sign1=many[2].attestation.sign1))
        (outcome,) = gate.judge([resigned], now=NOW)
        assert isinstance(outcome, Refused)
        (outcome,) = gate.judge([good], now=NOW)
        assert isinstance(outcome, Admitted)

    def test_refusals_are_not_remembered(self, world, gate, many):
        assert len(gate._verified) < sum(isinstance(outcome, Admitted) for outcome in self.first) + 50
        forged = many[5]
        for _ in range(2):
            (outcome,) = gate.judge([forged], now=NOW)
            assert str(outcome.refusal.code) == "SIG_BAD"


def test_every_attestation_of_a_folder_is_handed_out_once(world, tmp_path):
    photos = tmp_path / "photos"
    (photos / "a").mkdir(parents=True)
    for name, content in (("a/1", b"same"), ("a/2", b"same"), ("a.txt", b"x"), ("b", b"y"), ("c", b"z")):
        (photos / name).write_bytes(content)
    sign_corpus(photos, None, world.alice, world.template)
    items = list(open_corpus(photos))
    assert [item.locator.source for item in items] == [f"photos/{n}" for n in ("a.txt", "a/1", "a/2", "b", "c")]
    assert len({item.attestation.digest() for item in items}) == 5
    (photos / "b").write_bytes(b"changed")
    (photos / "c").unlink()
    items = {(item.locator.source if item.locator else None): item for item in open_corpus(photos)}
    assert set(items) == {"photos/a.txt", "photos/a/1", "photos/a/2", "photos/b", None}
    codes = run_gate(open_corpus(photos), world.policy, world.registry, now=NOW).counts()
    assert codes["refused"] == {"CONTENT_MISMATCH": 1, "CONTENT_MISSING": 1, "DUPLICATE_CONTENT": 1}
    with Path(f"{photos}.attest").open("ab") as stream:
        stream.write(b"\x82\x41")
    assert [i.problem.code for i in open_corpus(photos) if i.problem] == ["CBOR"]


def test_a_fingerprint_finds_near_copies(world, tmp_path):
    data = tmp_path / "notes.jsonl"
    data.write_bytes(b'{"text": "A b"}\n{"text": "a  B"}\n{"text": "c"}\n{"text": "d"}\n')
    sign_corpus(data, None, world.alice, world.template)
    corpus = open_corpus(data)

    def normalized(item):
        text = corpus.read(item.locator).lower().replace(b" ", b"")
        return None if b'"c"' in text else text

    plain = Gate(world.policy, world.registry)
    assert sum(isinstance(outcome, Admitted) for outcome in plain.judge(corpus, now=NOW)) == 4
    outcomes = list(Gate(world.policy, world.registry, fingerprint=normalized).judge(corpus, now=NOW))
    assert [isinstance(outcome, Admitted) for outcome in outcomes] == [True, False, True, True]
    assert str(outcomes[1].refusal.code) == "DUPLICATE_CONTENT"
