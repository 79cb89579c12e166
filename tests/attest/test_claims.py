"""Attestations of a folder find their files, whatever their bytes look like and whatever happens to the file meanwhile."""

import hashlib
import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from attest.corpus import open_corpus, sign_corpus
from attest.corpus.corpus import Claims
from attest.corpus.digests import DigestTable
from attest.errors import CborError, GateFailed
from attest.gate import run_gate
from tests.worlds.gate import NOW


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.bin").write_bytes(b"photo %d" % number)
    return folder


@pytest.mark.parametrize(
    "bounds",
    [
        {"clip_norm_micro": 0x075820},
        {"noise_multiplier_micro": 0x07582000},
        {"clip_norm_micro": 0x075820, "noise_multiplier_micro": 0x075820075820},
        {"noise_multiplier_micro": 0x07582007},
    ],
)
def test_bounds_that_look_like_a_content_hash_do_not_hide_it(world, photos, bounds):
    sign_corpus(photos, None, world.alice, replace(world.template, **bounds))
    (photos / "0.bin").unlink()
    report = run_gate(open_corpus(photos), world.policy, world.registry, now=NOW)
    assert report.counts() == {"admitted": {"sensitive": 5}, "refused": {"CONTENT_MISSING": 1}}


def test_a_content_hash_that_looks_like_one_inside_is_found(world):
    digest = b"ab\x07\x58\x20" + bytes(27)
    attestation = world.variant(content_hash=digest)
    assert Claims(io.BytesIO(attestation.to_cbor())).take(digest) == attestation


@pytest.mark.parametrize("left", [0, 10, 500, 1000])
def test_a_file_that_shrinks_while_it_is_read_refuses_one_by_one(world, photos, left, monkeypatch):
    sign_corpus(photos, None, world.alice, world.template)
    beside = Path(f"{photos}.attest")
    size = beside.stat().st_size // 6
    original = Claims.__init__

    def cutting(self, stream):
        original(self, stream)
        os.truncate(beside, left)

    monkeypatch.setattr(Claims, "__init__", cutting)
    report = run_gate(open_corpus(photos), world.policy, world.registry, now=NOW)
    assert len(report.admitted) == left // size
    assert len(report.admitted) + len(report.refused) >= 6
    assert {str(outcome.refusal.code) for outcome in report.refused} == {"CBOR"}


def test_a_file_that_changes_while_it_is_read_admits_nothing_else(world, photos, monkeypatch):
    sign_corpus(photos, None, world.alice, world.template)
    beside = Path(f"{photos}.attest")
    size = beside.stat().st_size // 6
    original = Claims.__init__

    def swapping(self, stream):
        original(self, stream)
        data = beside.read_bytes()
        with beside.open("r+b") as out:
            out.write(data[size : 2 * size] + data[:size])

    monkeypatch.setattr(Claims, "__init__", swapping)
    report = run_gate(open_corpus(photos), world.policy, world.registry, now=NOW)
    assert report.counts() == {"admitted": {"sensitive": 4}, "refused": {"CONTENT_MISMATCH": 2}}
    for outcome in report.admitted:
        content = (photos.parent / outcome.locator.source).read_bytes()
        assert outcome.admission.descriptor.content_hash == hashlib.sha256(content).digest()


def test_a_failure_of_the_table_is_none_of_the_file(world, photos, monkeypatch):
    sign_corpus(photos, None, world.alice, world.template)

    def fails(self, key):
        raise GateFailed("STORAGE", "full")

    monkeypatch.setattr(DigestTable, "get", fails)
    with pytest.raises(GateFailed, match="STORAGE"):
        list(open_corpus(photos))


def test_a_thousand_claims_of_one_content_are_handed_out_in_order(world):
    attestations = [replace(world.variant(max_occurrences=n), sign1=b"s") for n in range(1000)]
    stock = Claims(io.BytesIO(b"".join(item.to_cbor() for item in attestations)))
    digest = world.descriptor.content_hash
    assert [stock.take(digest) for _ in range(700)] == attestations[:700]
    assert stock.take(bytes(32)) is None
    assert list(stock.rest()) == attestations[700:]


def test_a_malformed_end_is_told_once_and_last(world):
    attestation = world.sign()
    stock = Claims(io.BytesIO(attestation.to_cbor() * 2 + b"\x82\x41"))
    assert stock.take(world.descriptor.content_hash) == attestation
    one, error = stock.rest()
    assert one == attestation and isinstance(error, CborError)


@pytest.fixture
def deep(photos):
    """A folder within, nested until its path is longer than the system takes; removed step by step, as it must be."""
    names, at = [], os.open(photos, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("1" * 200, dir_fd=at)
        names.append(at)
        at = os.open("1" * 200, os.O_RDONLY, dir_fd=at)
    with open("leaf", "wb", opener=lambda path, flags: os.open(path, flags, dir_fd=at)) as out:
        out.write(b"leaf")
    yield photos
    os.unlink("leaf", dir_fd=at)
    os.close(at)
    for parent in reversed(names):
        os.rmdir("1" * 200, dir_fd=parent)
        os.close(parent)


def test_a_folder_that_cannot_be_listed_hides_no_other_file(world, photos, deep):
    moved = photos.parent / "moved"
    (photos / ("1" * 200)).rename(moved)
    sign_corpus(photos, None, world.alice, world.template)
    moved.rename(photos / ("1" * 200))
    report = run_gate(open_corpus(photos), world.policy, world.registry, now=NOW)
    assert report.counts() == {"admitted": {"sensitive": 6}, "refused": {"CONTENT_MISSING": 1}}


def test_a_folder_that_vanishes_while_it_is_read_is_told_and_its_attestations_too(world, photos, monkeypatch):
    sign_corpus(photos, None, world.alice, world.template)
    original = Claims.__init__

    def vanishing(self, stream):
        original(self, stream)
        photos.rename(photos.with_name("gone"))

    monkeypatch.setattr(Claims, "__init__", vanishing)
    report = run_gate(open_corpus(photos), world.policy, world.registry, now=NOW)
    assert report.counts() == {"admitted": {}, "refused": {"CONTENT_MISSING": 7}}
    assert sum("cannot list" in outcome.refusal.sentence for outcome in report.refused) == 1
