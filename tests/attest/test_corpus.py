"""A corpus on disk: what is signed is what is read, whatever stands beside it."""

import hashlib
import os
from dataclasses import replace

import pytest

from attest import cbor
from attest.attestation import Attestation, read_sequence
from attest.corpus import Corpus, Locator, open_corpus, sign_content, sign_corpus
from attest.errors import CborError, CorpusRefused

LINES = [b'{"n": 1}', b'{"n": 2}\r', b'  {"n": 3}', '{"n": "ü"}'.encode()]
JSONL = b"\n".join([LINES[0], b"", LINES[1], b" \t\r", LINES[2], LINES[3]])


def claimed(item):
    return item.attestation.opened().content_hash


def digest(content):
    return hashlib.sha256(content).digest()


def refused(call, *arguments):
    with pytest.raises(CorpusRefused) as caught:
        call(*arguments)
    return caught.value.code


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "corpus" / "photos" / "deep").mkdir(parents=True)
    corpus = tmp_path / "corpus"
    (corpus / "notes.jsonl").write_bytes(JSONL)
    (corpus / "one.txt").write_bytes(b"a single contribution\n")
    for name, content in (("b.png", b"b"), ("a.png", b"a"), ("deep/c.png", b"c")):
        (corpus / "photos" / name).write_bytes(content)
    return corpus


def sign_all(world, corpus):
    return [
        sign_corpus(corpus / name, None, world.alice, world.template) for name in ("notes.jsonl", "one.txt", "photos")
    ]


def test_a_signed_corpus_pairs_every_content_with_its_attestation(world, folder):
    assert sign_all(world, folder) == [4, 1, 3]
    corpus = open_corpus(folder)
    items = list(corpus)
    assert [item.locator.source for item in items] == ["notes.jsonl"] * 4 + ["one.txt"] + [
        "photos/a.png",
        "photos/b.png",
        "photos/deep/c.png",
    ]
    contents = [*LINES, b"a single contribution\n", b"a", b"b", b"c"]
    for item, content in zip(items, contents, strict=True):
        assert item.problem is None
        assert item.content_hash == claimed(item) == digest(content)
        assert corpus.read(item.locator) == content


def test_jsonl_contributions_are_exact_lines_and_blank_lines_are_none(world, folder):
    sign_all(world, folder)
    items = list(open_corpus(folder / "notes.jsonl"))
    assert [open_corpus(folder).read(item.locator) for item in items] == LINES


def test_single_data_paths(world, folder):
    sign_all(world, folder)
    assert len(list(open_corpus(folder / "one.txt"))) == 1
    assert len(list(open_corpus(folder / "photos"))) == 3
    assert refused(open_corpus, folder / "notes.jsonl.attest") == "RANGE"
    assert refused(open_corpus, folder / "absent") == "CONTENT_MISSING"
    (folder / "link.txt").symlink_to(folder / "one.txt")
    assert refused(open_corpus, folder / "link.txt") == "RANGE"


def test_an_inserted_line_shifts_every_later_pair_into_a_mismatch(world, folder):
    sign_all(world, folder)
    (folder / "notes.jsonl").write_bytes(b"{}\n" + JSONL)
    items = list(open_corpus(folder / "notes.jsonl"))
    assert len(items) == 5
    assert all(item.content_hash != claimed(item) for item in items[:4])
    assert items[4].attestation is None and items[4].content_hash == digest(LINES[3])


def test_a_missing_line_leaves_an_attestation_without_content(world, folder):
    sign_all(world, folder)
    (folder / "notes.jsonl").write_bytes(LINES[0] + b"\n")
    items = list(open_corpus(folder / "notes.jsonl"))
    assert [item.locator is None for item in items] == [False, True, True, True]
    assert all(item.attestation is not None and item.content_hash is None for item in items[1:])


def test_missing_data_leaves_all_attestations_without_content(world, folder):
    sign_all(world, folder)
    (folder / "one.txt").unlink()
    (item,) = [item for item in open_corpus(folder) if item.locator is None]
    assert item.attestation is not None


def test_data_without_attestations_is_one_unattested_item(folder):
    items = list(open_corpus(folder))
    assert [item.locator.source for item in items] == [
        "notes.jsonl",
        "one.txt",
        "photos/a.png",
        "photos/b.png",
        "photos/deep/c.png",
    ]
    assert all(item.attestation is None and item.content_hash is None for item in items)


def test_folder_pairs_by_content_first_and_leftovers_by_position(world, folder):
    sign_all(world, folder)
    photos = folder / "photos"
    (photos / "a.png").rename(photos / "z.png")
    items = {item.locator.source: item for item in open_corpus(photos)}
    assert claimed(items["photos/z.png"]) == digest(b"a") == items["photos/z.png"].content_hash
    (photos / "b.png").write_bytes(b"changed")
    items = {item.locator.source: item for item in open_corpus(photos)}
    assert claimed(items["photos/b.png"]) == digest(b"b") != items["photos/b.png"].content_hash
    assert claimed(items["photos/z.png"]) == items["photos/z.png"].content_hash


def test_symbolic_links_are_never_followed(world, folder, tmp_path):
    sign_all(world, folder)
    (tmp_path / "outside.txt").write_bytes(b"secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.txt").write_bytes(b"secret")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "linked").symlink_to(tmp_path / "outside")
    (folder / "photos" / "d.png").symlink_to(tmp_path / "outside.txt")
    (folder / "photos" / "loop").symlink_to(folder)
    items = list(open_corpus(folder))
    links = [item for item in items if item.problem is not None]
    assert sorted(item.locator.source for item in links) == ["link.txt", "linked"]
    assert {item.problem.code for item in links} == {"UNATTESTED"}
    assert all(item.content_hash != digest(b"secret") for item in items)
    for source in ("link.txt", "linked/x.txt", "photos/d.png"):
        assert refused(open_corpus(folder).read, Locator(source, 0, 6)) == "CONTENT_MISSING"
    (folder / "one.txt.attest").rename(tmp_path / "moved.attest")
    (folder / "one.txt.attest").symlink_to(tmp_path / "moved.attest")
    assert [i.attestation for i in open_corpus(folder) if i.locator and i.locator.source == "one.txt"] == [None]


def test_a_locator_does_not_reach_a_file_that_stands_outside(folder, tmp_path):
    (tmp_path / "outside.txt").write_bytes(b"secret")
    for source in ("../outside.txt", "photos/../../outside.txt", str(tmp_path / "outside.txt")):
        assert refused(open_corpus(folder).read, Locator(source, 0, 6)) == "CONTENT_MISSING"


@pytest.mark.parametrize(
    "source", ["../outside.txt", "/etc/hostname", "photos/../../x", "", ".", "photos", "a\x00b", "//x"]
)
def test_locators_do_not_leave_the_corpus(folder, source):
    assert refused(open_corpus(folder).read, Locator(source, 0, 1)) == "CONTENT_MISSING"


def test_read_refuses_what_is_not_there(folder):
    corpus = open_corpus(folder)
    for offset, length in ((0, 10**6), (10**6, 1), (-1, 1), (0, -1)):
        assert refused(corpus.read, Locator("one.txt", offset, length)) == "CONTENT_MISSING"


def test_named_pipes_are_no_data(world, folder):
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "photos" / "pipe")
    sign_all(world, folder)
    items = {item.locator.source: item for item in open_corpus(folder)}
    assert items["pipe"].attestation is None and "photos/pipe" not in items
    assert refused(open_corpus(folder).read, Locator("pipe", 0, 1)) == "CONTENT_MISSING"
    assert refused(sign_corpus, folder / "pipe", None, world.alice, world.template) == "CONTENT_MISSING"


def test_dot_names_are_never_data(world, folder):
    for path in (folder / ".hidden", folder / "photos" / ".DS_Store"):
        path.write_bytes(b"x")
    assert sign_all(world, folder) == [4, 1, 3]
    assert len(list(open_corpus(folder))) == 8


def test_deep_directories_end_in_a_refusal(folder):
    path = folder / "d"
    for _ in range(60):
        path = path / "d"
    path.mkdir(parents=True)
    (path / "x").write_bytes(b"x")
    problems = [item.problem for item in open_corpus(folder) if item.problem is not None]
    assert len(problems) == 1 and "too deeply" in problems[0].sentence


def test_a_malformed_attestation_ends_its_file_and_nothing_else(world, folder):
    sign_all(world, folder)
    path = folder / "notes.jsonl.attest"
    with path.open("rb") as stream:
        parts = [item.to_cbor() for item in read_sequence(stream)]
    path.write_bytes(parts[0] + b"\xff" + b"".join(parts[1:]))
    items = list(open_corpus(folder))
    assert [item.problem and item.problem.code for item in items[:4]] == [None, "CBOR", None, None]
    assert [item.attestation is None for item in items[:4]] == [False, True, True, True]
    assert all(item.content_hash == claimed(item) for item in items[4:])
    path.write_bytes(parts[0] + b"\xff" * 3)
    (folder / "notes.jsonl").write_bytes(LINES[0])
    items = list(open_corpus(folder / "notes.jsonl"))
    assert [item.problem and item.problem.code for item in items] == [None, "CBOR"] and items[1].locator is None


def test_sequences_are_read_in_bounded_memory(world):
    class Endless:
        """A stream that announces one item of 2^32 bytes and never ends."""

        def __init__(self):
            self.given = 0

        def read(self, size):
            self.given += size
            return b"\x5a\xff\xff\xff\xff" + b"x" * (size - 5) if self.given == size else b"x" * size

    stream = Endless()
    with pytest.raises(CborError) as caught:
        list(read_sequence(stream))
    assert caught.value.code == "SIZE" and stream.given <= 1 << 21


def test_sequences_across_chunk_borders(world, tmp_path):
    item = sign_content(bytes(32), world.alice, world.template)
    count = (3 << 20) // len(item.to_cbor())
    (tmp_path / "x").write_bytes(item.to_cbor() * count)
    with (tmp_path / "x").open("rb") as stream:
        assert sum(found == item for found in read_sequence(stream)) == count


@pytest.mark.parametrize(
    "value",
    [1, [], [b"x"], [b"x", b"y"], 4 * [b"x"], [b"x", b"y", "z"], {1: b"x", 2: b"y", 3: b"z"}, [b"x", b"y", None]],
    ids=repr,
)
def test_sequence_items_are_three_byte_strings(value, tmp_path):
    (tmp_path / "x").write_bytes(cbor.encode(value))
    with (tmp_path / "x").open("rb") as stream, pytest.raises(CborError):
        list(read_sequence(stream))


def test_an_oversized_attestation_is_refused_by_itself(world, tmp_path):
    large = Attestation(b"x" * 16385, b"y" * 10)
    (tmp_path / "x").write_bytes(large.to_cbor() + world.sign().to_cbor())
    with (tmp_path / "x").open("rb") as stream:
        first, second = read_sequence(stream)
    assert not first.within_limits and second.within_limits


def test_attestation_digest_binds_the_signature_too(world):
    first, second = world.sign(), world.sign()
    assert first == second and first.digest() == second.digest()
    assert replace(first, sign1=b"x").digest() != first.digest()
    assert replace(first, opening=b"").digest() == first.digest(), "who holds an export computes it too"
    for parts in (("x", b"y"), (b"x", None), (b"x", b"y", None)):
        with pytest.raises(CborError):
            Attestation(*parts)


def test_signing_reports_progress_and_writes_all_or_nothing(world, folder):
    seen = []
    sign_corpus(folder / "notes.jsonl", folder / "out.attest", world.alice, world.template, seen.append)
    assert seen == [1, 2, 3, 4]
    before = (folder / "out.attest").read_bytes()

    def stop(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sign_corpus(folder / "notes.jsonl", folder / "out.attest", world.alice, world.template, stop)
    assert (folder / "out.attest").read_bytes() == before
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]


def test_signing_nothing_is_refused(world, folder):
    (folder / "empty.jsonl").write_bytes(b"\n \n")
    (folder / "void").mkdir()
    for name in ("empty.jsonl", "void", "absent"):
        assert refused(sign_corpus, folder / name, None, world.alice, world.template) == "CONTENT_MISSING"
        assert not (folder / f"{name}.attest").exists()


def test_the_current_directory_can_be_signed_and_opened(world, folder, monkeypatch):
    monkeypatch.chdir(folder / "photos")
    assert sign_corpus(".", None, world.alice, world.template) == 3
    assert (folder / "photos.attest").exists()
    assert all(item.content_hash == claimed(item) for item in open_corpus("."))


def test_a_template_is_checked_before_anything_is_signed(world):
    with pytest.raises(ValueError):
        replace(world.template, clip_norm_micro=0)
    with pytest.raises(ValueError):
        replace(world.template, contributor="Alice")


def test_iteration_can_be_repeated_and_is_stable(world, folder):
    sign_all(world, folder)
    corpus = Corpus(folder)
    assert list(corpus) == list(corpus)
