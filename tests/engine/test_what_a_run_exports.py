"""A run keeps what contributors signed and remembers its registry, and its export takes both along by itself."""

import json

import pytest

pytest.importorskip("torch")

from attest.attestation import CommonTerms, Framing
from attest.corpus import open_corpus
from attest.registry import RegistryLog
from dptrain.record.registry_watch import registry_of_run
from ledger import layout, tiles
from ledger.errors import ExportRefused
from ledger.leaves import Admit, decode_leaf
from ledger.leaves.attestations import unpack
from ledger.log.examining import check_attestations
from ledger.storage.place import Place
from tests.worlds.trainer import Trainer
from tests.worlds.training import make_world


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a step, stopped and resumed for the rest, and its export."""
    world = make_world(tmp_path_factory.mktemp("exporting"), per_class=2, steps=4, rate="1")
    first = Trainer(world)
    first.one(next(iter(first.steps)))
    first.private.save()
    first.close()
    trainer = Trainer(world, resume=True)
    trainer.run()
    trainer.private.export(world.root / "export")
    yield world, trainer
    trainer.close()


def test_every_attestation_of_the_corpus_is_made_again_from_the_export_of_a_run(trained):
    world, trainer = trained
    ledger, export = trainer.private.opened.recorder.ledger, world.root / "export"
    with ledger.rows() as rows:
        leaves = {row.seq: decode_leaf(row.body) for row in rows if row.kind == Admit.KIND}
    names = {str(path.relative_to(export)) for path in export.rglob("*") if path.is_file()}
    count = layout.count_terms(names)
    terms = tiles.split_bundle((export / layout.terms_path(0, count)).read_bytes(), count)
    entries = tiles.split_bundle((export / layout.signed_path(0, ledger.size)).read_bytes(), ledger.size)
    made = set()
    for seq, leaf in leaves.items():
        number, signature = unpack(entries[seq])
        again = Framing(CommonTerms.from_cbor(terms[number])).attestation(leaf.anchor, signature)
        made.add((again.descriptor, again.sign1))
    signed = {(item.attestation.descriptor, item.attestation.sign1) for item in open_corpus(world.corpus)}
    assert made == signed and len(made) == 6 > count


def test_a_resumed_run_adds_nothing_to_what_is_kept(trained):
    _, trainer = trained
    with trainer.private.opened.recorder.ledger._file.store.snapshot() as snapshot:
        found = check_attestations(snapshot)
    assert (found.findings, found.fitting, found.missing) == ((), 6, 0)


def test_the_registry_of_a_run_is_remembered_beside_its_ledger_and_goes_into_its_export(trained):
    world, _ = trained
    place = Place.of(world.ledger)
    assert registry_of_run(place) == world.root / "registry.cbor"
    assert (world.root / "export" / "registry").read_bytes() == (world.root / "registry.cbor").read_bytes()
    (row,) = json.loads(place.side(".registry").read_text()).values()
    assert row["path"] == str(world.root / "registry.cbor")


def test_a_registry_that_was_cut_back_while_training_stops_the_export_and_not_the_run(trained):
    world, trainer = trained
    path = world.root / "registry.cbor"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    try:
        with pytest.raises(ExportRefused, match="REGISTRY"):
            trainer.private.export(world.root / "cut")
    finally:
        path.write_bytes(whole)
    assert not (world.root / "cut").exists()
    log = RegistryLog(path, world.owner_key)
    log.grant("contributor-internal", classes=["internal"], cap=None, now=world.now)
    later = trainer.private.export(world.root / "later")
    assert (later / "registry").read_bytes() == path.read_bytes() != whole


def test_nobody_remembers_the_registry_of_a_ledger_whose_memory_or_registry_is_gone(trained, tmp_path):
    world, _ = trained
    place = Place.of(world.ledger)
    memory = place.side(".registry").read_text()
    assert registry_of_run(Place.of(tmp_path / "ledger.db")) is None
    other = Place.of(tmp_path / "ledger.db")
    other.side(".registry").write_text(memory.replace("registry.cbor", "gone.cbor"))
    assert registry_of_run(other) is None
    rows = json.loads(memory)
    for row in rows.values():
        del row["path"]
    other.side(".registry").write_text(json.dumps(rows))
    assert registry_of_run(other) is None
