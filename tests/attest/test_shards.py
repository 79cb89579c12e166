"""Shards of a corpus that processes judge one by one: joined they are the corpus, merged their verdicts are one judgement."""

import hashlib
import multiprocessing
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, sign1
from attest.attestation import read_sequence
from attest.corpus import Extent, Shard, ShardNumber, open_corpus, sign_corpus
from attest.errors import CorpusRefused, ReasonCode, VerdictsRefused
from attest.gate import forms, judge_shard, merge_shards, run_gate, verdicts
from attest.gate.reading import MAC_SIZE, TAG_SIZE, Context, KeptReading
from attest.gate.verdicts import ENTRY_SIZE
from attest.keys import public_bytes, verifier, verify_signature
from attest.policy import sign_policy, verify_policy
from attest.registry import Revoke
from tests.worlds.gate import NOW

KEY, OTHER_KEY, LEDGER_KEY = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (50, 51, 52))


def sign_again(world, policy):
    payload, message = sign_policy(policy, world.owner, owner="owner", registry_root=world.registry.root())
    return verify_policy(payload, message, public_bytes(world.owner))


@pytest.fixture
def signed(world):
    return sign_again(world, replace(world.policy, contributor_cap=40))


@pytest.fixture
def checks(monkeypatch):
    """The signatures that were verified, one entry each."""
    found: list[bytes] = []

    def counted(raw):
        return lambda *given: (found.append(given[0]), verifier(raw)(*given))

    monkeypatch.setattr(sign1, "verify_signature", lambda *given: (found.append(given[1]), verify_signature(*given))[1])
    monkeypatch.setattr(forms, "verifier", counted)
    return found


def lines(name, count):
    return "".join(f'{{"text": "{name} {number}"}}\n' for number in range(count))


@pytest.fixture
def corpus(world, tmp_path):
    """Data of every shape: long and short JSONL, blank lines, copies, a folder, a file, what is unattested, orphaned or broken.

    Alice signs more than her cap of 40, so what is refused depends on the order over all files.
    """
    root = tmp_path / "corpus"
    (root / "deep").mkdir(parents=True)
    (root / "folder").mkdir()
    files = {
        "a.jsonl": lines("a", 13) + "\n \n" + lines("more", 9),
        "b.jsonl": lines("a", 3) + lines("b", 2),  # repeats records of the first file
        "deep/c.jsonl": lines("c", 7),
        "e.jsonl": lines("e", 5),
        "f.jsonl": lines("f", 6),
        "g.txt": "one file, one contribution",
        "z.jsonl": lines("z", 15),
    }
    for name, text in files.items():
        (root / name).write_text(text)
        sign_corpus(root / name, None, world.alice, world.template)
    for number in range(4):
        (root / "folder" / f"{number}.txt").write_text(f"file {number}")
    sign_corpus(root / "folder", None, world.alice, world.template)
    (root / "unattested.txt").write_text("nobody signed this")
    with (root / "deep/c.jsonl").open("a") as stream:
        stream.write(lines("behind all attestations", 2))
    (root / "e.jsonl").write_text(lines("e", 2))  # orphans
    broken = (root / "f.jsonl.attest").read_bytes()
    (root / "f.jsonl.attest").write_bytes(broken[: len(broken) // 2] + b"\xff" * 7)
    with (root / "z.jsonl.attest").open("rb") as stream:
        claims = list(read_sequence(stream))
    forged = replace(claims[4], sign1=claims[4].sign1[:-1] + bytes([claims[4].sign1[-1] ^ 1]))
    claims[4:6] = [forged, claims[3]]  # a bad signature, and one that is of another content
    (root / "z.jsonl.attest").write_bytes(b"".join(claim.to_cbor() for claim in claims))
    return open_corpus(root)


def of(corpus, number, shards):
    return Shard(corpus, ShardNumber(number, shards), Extent.of(corpus))


class Cluster:
    """Judges shards and merges them, as processes with one key and one time would."""

    def __init__(self, world, signed, corpus, folder):
        self.world, self.signed, self.corpus, self.folder = world, signed, corpus, folder

    def judge(self, number, shards, *, path=None, key=KEY, signed=None, registry=None, now=NOW):
        path = path or self.folder / f"{number}-of-{shards}.verdicts"
        registry = registry or self.world.registry
        judge_shard(
            self.corpus, signed or self.signed, registry, ShardNumber(number, shards), path, key, now=now, workers=1
        )
        return path

    def all(self, shards):
        return [self.judge(number, shards) for number in range(1, shards + 1)]

    def merge(self, paths, *, key=KEY, signed=None, registry=None, now=None, **options):
        return merge_shards(
            self.corpus, signed or self.signed, registry or self.world.registry, paths, key, now=now, workers=1, **options
        )

    def whole(self, **options):
        return run_gate(self.corpus, self.signed.policy, self.world.registry, now=NOW, workers=1, **options)

    def refusal(self, paths, **options):
        """The code of the refusal, and its sentence."""
        with pytest.raises(VerdictsRefused) as refused:
            self.merge(paths, **options)
        return refused.value.code, refused.value.sentence


@pytest.fixture
def cluster(world, signed, corpus, tmp_path):
    return Cluster(world, signed, corpus, tmp_path)


def same(one, other):
    assert list(one.admitted) == list(other.admitted)
    for mine, its in zip(one.admitted, other.admitted, strict=True):
        assert mine.admission.descriptor == its.admission.descriptor and mine.admission.signature == its.admission.signature
    assert one.refused == other.refused and (one.now, one.registry_root) == (other.now, other.registry_root)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("shards", [1, 2, 3, 7, 40, 1000])
def test_shards_one_after_the_other_are_the_corpus(corpus, shards):
    def plain(items):
        return [(*item[:3], item.problem and (item.problem.code, item.problem.sentence)) for item in items]

    joined = [item for number in range(1, shards + 1) for item in of(corpus, number, shards)]
    assert plain(joined) == plain(corpus)


def test_random_files_are_cut_without_loss_or_repetition(world, tmp_path):
    draw = random.Random(7)
    for trial in range(12):
        root = tmp_path / str(trial)
        root.mkdir()
        for name in range(draw.randint(1, 3)):
            data = root / f"{name}.jsonl"
            data.write_text("".join(draw.choice(["\n", " \r\n", f'{{"n": {draw.random()}}}\n']) for _ in range(25)) + "end")
            sign_corpus(data, None, world.alice, world.template)
            claims = data.with_name(data.name + ".attest")
            cut = draw.choice([0, 1, 200, 900, None])
            claims.write_bytes(claims.read_bytes()[: None if cut is None else -cut or None] + draw.choice([b"", b"\x00"]))
        corpus = open_corpus(root)
        for shards in (2, 5, 31):
            joined = [item for number in range(1, shards + 1) for item in of(corpus, number, shards)]
            assert [item[:3] for item in joined] == [item[:3] for item in corpus]


@pytest.mark.parametrize("long", [0, 3, 8])
def test_a_record_that_is_too_long_is_told_by_one_shard(world, tmp_path, monkeypatch, long):
    data = tmp_path / "one" / "a.jsonl"
    data.parent.mkdir()
    data.write_text("".join(f"{{{number * 'x' if number != long else 99 * 'x'}}}\n" for number in range(9)))
    sign_corpus(data, None, world.alice, world.template)
    monkeypatch.setattr("attest.corpus.records.MAX_RECORD", 50)
    corpus = open_corpus(data.parent)
    for shards in (1, 2, 3, 50):
        joined = [item for number in range(1, shards + 1) for item in of(corpus, number, shards)]
        assert [item[:3] for item in joined] == [item[:3] for item in corpus]
        assert [item.problem.code for item in joined if item.problem is not None] == ["SIZE"]


def test_a_shard_hashes_its_own_records_alone(corpus, monkeypatch):
    sizes = []
    real = hashlib.sha256
    root = corpus.root.parent / "one"
    root.mkdir()
    (root / "a.jsonl").write_bytes((corpus.root / "a.jsonl").read_bytes())
    (root / "a.jsonl.attest").write_bytes((corpus.root / "a.jsonl.attest").read_bytes())
    monkeypatch.setattr("attest.corpus.records.hashlib.sha256", lambda data=b"": (sizes.append(data), real(data))[1])
    found = list(of(open_corpus(root), 2, 4))
    monkeypatch.undo()
    assert 3 < len(found) < 9 and len([data for data in sizes if data.startswith(b"{")]) == len(found)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("shards", [1, 2, 5, 30])
def test_merged_verdicts_give_the_report_of_one_process(cluster, shards):
    whole = cluster.whole()
    codes = {refused.refusal.code for refused in whole.refused}
    assert len(whole.admitted) == 40 and codes >= {
        ReasonCode.DUPLICATE_CONTENT, ReasonCode.CONTRIBUTOR_CAP, ReasonCode.SIG_BAD, ReasonCode.CONTENT_MISMATCH,
        ReasonCode.UNATTESTED, ReasonCode.CONTENT_MISSING,
    }  # fmt: skip
    paths = cluster.all(shards)
    same(cluster.merge(paths), whole)
    same(cluster.merge(reversed(paths)), whole)


def test_repetitions_and_caps_over_shards_are_decided_by_the_merge(cluster, world):
    alone = [
        run_gate(of(cluster.corpus, number, 9), cluster.signed.policy, world.registry, now=NOW, workers=1)
        for number in range(1, 10)
    ]
    assert sum(len(report.admitted) for report in alone) > 40
    assert not any(one.refusal.code == ReasonCode.CONTRIBUTOR_CAP for report in alone for one in report.refused)
    assert len(cluster.merge(cluster.all(9)).admitted) == 40


def test_a_withdrawal_is_refused_at_the_merge(cluster):
    first = cluster.whole().admitted[0].admission.descriptor_hash
    paths = cluster.all(3)
    found, whole = (run(withdrawn={first}) for run in (lambda **more: cluster.merge(paths, **more), cluster.whole))
    same(found, whole)
    assert ReasonCode.WITHDRAWN in {one.refusal.code for one in found.refused}


def test_the_merge_verifies_no_signature_that_a_shard_verified(cluster, checks):
    paths = cluster.all(4)
    verified = set(checks)
    checks.clear()
    signatures = {one.admission.signature for one in cluster.merge(paths).admitted}
    assert len(signatures) == 40 and signatures <= verified and not signatures & set(checks)
    # What did not pass is judged again, and what has no content: a bad signature, one of another content, three orphans.
    assert len(set(checks)) == 5


def test_a_verdict_spares_a_signature_and_admits_nothing_by_itself(cluster, world):
    """Whoever has the key says that everything passed: contents, bounds, times and caps are judged all the same."""
    paths = cluster.all(2)
    for path in paths:
        data = path.read_bytes()
        _, at = cbor.decode_prefix(data, 0)
        body = bytearray(data[at:-MAC_SIZE])
        body[TAG_SIZE::ENTRY_SIZE] = b"\x01" * (len(body) // ENTRY_SIZE)
        made = data[:at] + body
        path.write_bytes(made + verdicts.VerdictKey(KEY).mac(made))
    found, whole = cluster.merge(paths), cluster.whole()
    assert [one.refusal.code for one in found.refused] != [one.refusal.code for one in whole.refused]
    codes = {one.refusal.code for one in whole.refused} - {one.refusal.code for one in found.refused}
    assert codes == {ReasonCode.SIG_BAD}


def test_a_file_of_another_setting_is_refused_by_what_differs(cluster, world, monkeypatch):
    paths = cluster.all(2)
    other = sign_again(world, replace(cluster.signed.policy, delta=Fraction(1, 10**7)))
    later = world.changed(lambda log: log.append([Revoke("bob", public_bytes(world.bob), NOW - 10)], now=NOW - 10))
    assert cluster.refusal(paths, signed=other)[0] == "POLICY"
    assert cluster.refusal(paths, registry=later)[0] == "REGISTRY_ROOT"
    assert cluster.refusal(paths, now=NOW + 1)[0] == "TIME"
    assert cluster.refusal([paths[0], cluster.judge(2, 2, now=NOW + 1)])[0] == "TIME"
    paths = cluster.all(2)
    assert cluster.refusal([paths[0], cluster.judge(2, 3)])[0] == "SHARDS"
    monkeypatch.setattr(verdicts, "build_of", lambda: "0.0.0")
    assert cluster.refusal(paths)[0] == "BUILD"


def test_missing_and_doubled_shards_are_refused_by_name(cluster, tmp_path):
    paths = cluster.all(4)
    assert cluster.refusal([]) == ("MISSING", "no verdict file is given; judge every shard and give the files of all")
    code, told = cluster.refusal([paths[0], paths[2]])
    assert code == "MISSING" and "of 4 shards there is no verdict file of 2, 4;" in told
    copy = tmp_path / "copy"
    copy.write_bytes(paths[1].read_bytes())
    code, told = cluster.refusal([*paths, copy])
    assert code == "DOUBLED" and f"{paths[1]} and {copy} are both of shard 2/4" in told
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert cluster.refusal([*paths[:3], tmp_path / "gone"])[0] == "FILE"


def test_a_file_that_is_cut_off_or_changed_in_any_byte_is_refused_by_name(cluster):
    paths = cluster.all(2)
    data = paths[1].read_bytes()
    for size in range(1, len(data), 7):
        paths[1].write_bytes(data[:size])
        code, told = cluster.refusal(paths)
        assert code in ("TRUNCATED", "FORMAT") and str(paths[1]) in told
    for at in range(0, len(data), 5):
        paths[1].write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        code, told = cluster.refusal(paths)
        assert code in ("TRUNCATED", "FORMAT", "KEY") and str(paths[1]) in told
    paths[1].write_bytes(data + b"\x00")
    assert cluster.refusal(paths)[0] == "KEY"


def test_a_file_of_another_key_is_refused(cluster):
    paths = cluster.all(2)
    assert cluster.refusal(paths, key=OTHER_KEY)[0] == "KEY"
    assert cluster.refusal([paths[0], cluster.judge(2, 2, key=OTHER_KEY)])[0] == "KEY"


def test_a_verdict_key_that_serves_for_anything_else_is_refused(cluster, world, tmp_path):
    """A contributor, revoked or not, could have their own forgery passed; the keys of owner and ledger must not lie about."""
    paths, context = cluster.all(1), Context.of(cluster.signed, world.registry)
    revoked = world.changed(lambda log: log.append([Revoke("bob", public_bytes(world.bob), NOW - 10)], now=NOW - 10))
    for key, registry, whose in (
        (world.alice, world.registry, "a contributor's"), (world.bob, revoked, "a contributor's"),
        (world.owner, revoked, "owner's"),
    ):  # fmt: skip
        code, told = cluster.refusal(paths, key=key, registry=registry)
        assert code == "KEY" and whose in told
        with pytest.raises(VerdictsRefused) as refused:
            cluster.judge(1, 1, path=tmp_path / "made", key=key, registry=registry)
        assert refused.value.code == "KEY" and whose in refused.value.sentence and not (tmp_path / "made").exists()
    code, told = cluster.refusal(paths, remember=KeptReading(tmp_path / "reading", KEY, context))
    assert code == "KEY" and "the ledger's" in told
    assert cluster.merge(paths, remember=KeptReading(tmp_path / "reading", LEDGER_KEY, context)).admitted


def test_shards_under_a_wrong_number_are_refused(cluster):
    """Whoever carries the files around and has no key cannot let one stand for another."""
    paths = cluster.all(3)
    first, second = (path.read_bytes() for path in paths[:2])
    paths[0].write_bytes(second)
    assert cluster.refusal(paths)[0] == "DOUBLED"
    paths[1].write_bytes(first)
    same(cluster.merge(paths), cluster.whole())  # The name of a file says nothing: each holds its number.


def test_a_file_that_is_replaced_during_the_merge_is_not_believed(cluster, monkeypatch):
    paths, asked = cluster.all(2), []
    real = verdicts._read

    def replaced(path, key):
        asked.append(path)
        if len(asked) == 4:
            path.write_bytes(paths[0].read_bytes())
        return real(path, key)

    monkeypatch.setattr(verdicts, "_read", replaced)
    assert cluster.refusal(paths)[0] == "SHARDS"


def changed_content(root):
    data = root / "z.jsonl"
    data.write_text(data.read_text().replace("z 9", "y 9"))


def swapped_attestations(root):
    data = root / "a.jsonl.attest"
    with data.open("rb") as stream:
        claims = list(read_sequence(stream))
    claims[1], claims[2] = claims[2], claims[1]
    data.write_bytes(b"".join(claim.to_cbor() for claim in claims))


@pytest.mark.parametrize("change", [changed_content, swapped_attestations])
def test_a_corpus_that_changed_under_equal_sizes_is_refused_with_the_shard(cluster, corpus, change):
    paths = cluster.all(3)
    change(corpus.root)
    code, told = cluster.refusal(paths)
    assert code == "CORPUS" and "shard " in told and "/3, at its attestation " in told


@pytest.mark.parametrize("name", ["a.jsonl", "new.txt", "g.txt"])
def test_a_corpus_of_other_files_or_sizes_is_refused_before_it_is_read(cluster, corpus, name, monkeypatch):
    paths = cluster.all(3)
    with (corpus.root / name).open("a") as stream:
        stream.write("more")
    monkeypatch.setattr(verdicts, "run_gate", None)
    assert cluster.refusal(paths)[0] == "CORPUS"


def test_a_merge_that_meets_less_than_the_shards_judged_is_refused(cluster, corpus, world, monkeypatch):
    paths = cluster.all(2)
    merged = verdicts.MergedReading(paths, cluster.signed, world.registry, Extent.of(corpus), KEY)
    run_gate(list(corpus)[:-3], cluster.signed.policy, world.registry, now=NOW, workers=1, remember=merged)
    with pytest.raises(VerdictsRefused) as refused:
        merged.finish()
    assert refused.value.code == "CORPUS"


def test_a_corpus_that_changes_while_a_shard_is_read_leaves_no_verdicts(cluster, corpus, monkeypatch):
    items = iter(of(corpus, 1, 2))
    next(items)
    (corpus.root / "b.jsonl.attest").write_bytes(b"")
    with pytest.raises(CorpusRefused) as refused:
        list(items)
    assert refused.value.code == "CORPUS_CHANGED"


def test_the_merge_feeds_the_reading_that_is_kept_beside_a_ledger(cluster, world, tmp_path, checks):
    """A run that opens then verifies no signature again, and judges everything else itself."""
    path, context = tmp_path / "ledger.db.reading", Context.of(cluster.signed, world.registry)
    kept = KeptReading(path, LEDGER_KEY, context)
    cluster.merge(cluster.all(3), remember=kept)
    kept.keep()
    assert kept.told == "" and kept.spared == 0
    again = KeptReading(path, LEDGER_KEY, context)
    checks.clear()
    same(cluster.whole(remember=again), cluster.whole())
    assert again.told == "" and again.spared > 40 and again.checked == 0


def test_no_shard_outside_the_range_can_be_named():
    for text in ("", "1", "0/3", "4/3", "-1/3", "1/0", "a/b", "1/70000", "١/٣", "1/3/3", " 1/3"):
        with pytest.raises(CorpusRefused) as refused:
            ShardNumber.parse(text)
        assert refused.value.code == "SHARD"
    assert ShardNumber.parse("2/3") == (2, 3) and str(ShardNumber(2, 3)) == "2/3"


def _judge(root, world_parts, number, path):
    signed, registry = world_parts
    judge_shard(open_corpus(root), signed, registry, ShardNumber(number, 3), path, KEY, now=NOW, workers=1)


def test_processes_of_their_own_judge_shards_that_merge(cluster, corpus, world, tmp_path):
    fresh = multiprocessing.get_context("fork")
    paths = [tmp_path / f"{number}" for number in (1, 2, 3)]
    parts = (cluster.signed, world.registry)
    processes = [fresh.Process(target=_judge, args=(corpus.root, parts, n, paths[n - 1])) for n in (1, 2, 3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    same(cluster.merge(paths), cluster.whole())
