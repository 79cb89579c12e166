"""Released files against the weights that a run committed to: what counts as the run's, what does not, and who may say so."""

import hashlib
import time
from dataclasses import replace

import pytest
from release_models import WEIGHTS, model, records, run_to_the_end, safetensors, weights_of_epoch

from attest import cbor
from ledger.errors import LeafRefused, LedgerCorrupt, ReleaseRefused, StorageFailed
from ledger.leaves.weights import WeightRecord, model_digest, read_records, write_records
from ledger.log import Ledger
from ledger.release import MANIFEST, Commitment, Rights, check_release, choose_artifact, release, tie
from ledger.release.create import describe, statements
from ledger.release.files import Digested, Tensor, digested, listed
from ledger.release.manifest import sign_manifest
from ledger.replay.influence import artifacts
from tests.worlds.ledgers import SIGNER, START, header_spec

KEYS = [SIGNER.vkey]


def record(*names: str, value: str = "", adapter: str | None = None, trained: bool = True, dtype: str = "F32") -> WeightRecord:
    return WeightRecord(names, adapter, trained, dtype, (2, 2), hashlib.sha256((value or names[0]).encode()).digest())


def file(path: str = "model.safetensors", **tensors: str) -> Digested:
    """A file of these tensors: name (dots as double underscores) to what `record` takes for its value."""

    def tensor(name: str, value: str) -> Tensor:
        return Tensor(name.replace("__", "."), "F32", (2, 2), hashlib.sha256(value.encode()).digest())

    found = sorted(map(tensor, tensors, tensors.values()), key=lambda item: item.name)
    return Digested(path, 1, bytes(32), tuple(found), "tensors")


def against(files: list[Digested], *found: WeightRecord):
    return tie(Commitment(1, 9, 4, tuple(sorted(found, key=lambda item: item.names))), files)


def test_the_digest_commits_to_every_field_of_every_tensor_and_to_no_order():
    base = [record("a", "b", adapter="x"), record("c", trained=False)]
    assert model_digest(base) == model_digest(base[::-1]) == model_digest(read_records(write_records(base)))
    others = [
        [replace(base[0], **change), base[1]]
        for change in (
            {"names": ("a",)}, {"names": ("b", "a")}, {"adapter": None}, {"trained": False}, {"dtype": "BF16"}, {"shape": (4,)},
            {"sha256": bytes(32)}, {"sources": ("b",)},
        )
    ]  # fmt: skip
    digests = {model_digest(other) for other in [base, *others, base[:1], base[1:], [*base, record("d")]]}
    assert len(digests) == len(others) + 4


def row(*, names=("a",), adapter=None, trained=True, shape=(2,), sources=()) -> list:
    return [list(names), adapter, trained, "F32", list(shape), bytes(32), list(sources)]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80", cbor.encode({}), cbor.encode([row()[:6]]), cbor.encode([row(names=["b"]), row()]),
        cbor.encode([row()] * 2), cbor.encode([row(names=[])]), cbor.encode([row(names=["a", "a"])]),
        cbor.encode([row(names=[1])]), cbor.encode([row(adapter=1)]), cbor.encode([row(trained=1)]),
        cbor.encode([row(shape=[-1])]),
        cbor.encode([row(sources=[1])]),
    ],
)  # fmt: skip
def test_what_are_no_records_of_a_model_is_refused(data):
    with pytest.raises(LeafRefused):
        read_records(data)


def test_tensors_are_tied_converted_changed_or_foreign_each_by_itself():
    run = (record("a"), record("b"), record("c", dtype="BF16"), record("frozen", trained=False), record("d"))
    told = against([file(a="a", b="other", c="c", frozen="frozen", e="e")], *run)
    (found,) = told.files
    assert (found.tied, found.changed, found.converted, found.foreign) == (("a", "frozen"), ("b",), ("c",), ("e",))
    assert (told.status, told.trained, told.present, told.untrained, told.left_out) == ("UNTIED", 4, 2, 1, ("b", "d"))
    assert against([file(a="a", c="c")], *run).status == "CONVERTED"
    part = against([file(a="a", frozen="frozen")], *run)
    assert (part.status, part.left_out) == ("PART", ("b", "c", "d"))
    assert against([file(a="a", b="b", d="d")], run[0], run[1], run[4]).status == "TIED"
    assert tie(None, [file(a="a")]).status == "UNRECORDED"


def test_a_tensor_of_another_shape_is_changed_and_never_converted():
    one = replace(record("a"), shape=(4,), dtype="BF16")
    assert against([file(a="a")], one).files[0].changed == ("a",)


@pytest.mark.parametrize(
    "path",
    [
        "pytorch_model.bin",
        "x/adapter.PT",
        "model.gguf",
        "weights.tar.gz",
        "weights",
        "a.dat",
        "MODEL.SAFETENSORS",
        "x.json.enc",
    ],
)
def test_a_file_that_may_hold_weights_unread_keeps_a_release_from_being_tied(path):
    told = against([file(a="a"), Digested(path, 1, bytes(32), None, "text")], record("a"))
    assert (told.status, told.opaque) == ("UNTIED", (path,))


@pytest.mark.parametrize(
    "path", ["config.json", "README.md", "LICENSE", ".gitattributes", "tokenizer.model", "a/chat_template.jinja"]
)
def test_files_that_come_beside_weights_leave_a_release_tied(path):
    beside = [Digested(path, 1, bytes(32), None, form) for form in ("text", "pieces", "template", "picture")]
    assert all(against([file(a="a"), one], record("a")).status == "TIED" for one in beside)
    for form in ("pickle", "archive", "weights", "unknown"):
        told = against([file(a="a"), Digested(path, 1, bytes(32), None, form)], record("a"))
        assert (told.status, told.opaque) == ("UNTIED", (path,)), form


@pytest.mark.parametrize(
    "files", [[], [Digested("config.json", 1, bytes(32), None, "text")], [file()], [file("a.safetensors"), file()]]
)
def test_files_without_any_tensor_are_not_tied(files):
    told = against(files, record("a"))
    assert told.status == "UNTIED" and told.left_out == ("a",)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("shape", ["many files", "one file", "many of one name", "deep names"])
@pytest.mark.slow
def test_no_manifest_makes_a_check_take_more_than_its_share_of_time(shape):
    """Each took from half a minute to minutes, or hundreds of megabytes."""
    names = [f"q.{number}.lora_A.weight" for number in range(3000)]
    adapters = [f"lab-{number}" for number in range(64)]
    if shape == "many files":
        run = [
            record(f"{name}.{number}", name, adapter=adapter) for number, adapter in enumerate(adapters) for name in names[:50]
        ]
        files = [file(f"{number}.safetensors", weight="x") for number in range(2000)]
    elif shape == "one file":
        run = [record(f"m{number}.{name}", adapter=adapters[number % 64]) for number, name in enumerate(names)]
        files = [file(**dict.fromkeys(names, "x"))]
    elif shape == "many of one name":
        run = [record(f"{number}", "w", adapter=f"a{number}") for number in range(5000)]
        files = [file(f"{number}.safetensors", w="x") for number in range(500)]
    else:
        run = [record("." * 1000 + str(number)) for number in range(200)]
        files = [file(**{"." * 900 + "0": "x"})]
    began = time.process_time()
    assert against(files, *run).status == "UNTIED"
    assert time.process_time() - began < 10


@pytest.mark.parametrize("name", ["", "a" * 1025])
def test_a_name_that_no_tensor_has_is_refused(name):
    with pytest.raises(LeafRefused):
        WeightRecord(("a", name), None, True, "F32", (2, 2), bytes(32))


def test_two_tensors_that_traded_places_are_both_changed():
    told = against([file(layers__0__w="layers.1.w", layers__1__w="layers.0.w")], record("layers.0.w"), record("layers.1.w"))
    assert told.files[0].changed == ("layers.0.w", "layers.1.w")


def test_tied_tensors_are_found_under_every_name_and_count_once():
    run = (record("head.weight", "embed.weight"), record("b"))
    assert against([file(embed__weight="head.weight", b="b")], *run).status == "TIED"
    both = against([file(embed__weight="head.weight", head__weight="head.weight", b="b")], *run)
    assert (both.status, both.present, both.trained) == ("TIED", 2, 2)
    one_other = against([file(embed__weight="head.weight", head__weight="other", b="b")], *run)
    assert (one_other.status, one_other.files[0].changed) == ("UNTIED", ("head.weight",))


def test_a_file_of_a_part_is_read_from_there_and_all_of_it_from_one_place():
    run = (
        record("encoder.0.w"),
        record("encoder.1.w"),
        record("decoder.0.w"),
        record("decoder.1.w"),
        record("classifier.weight"),
    )
    encoder = file("encoder.safetensors", **{"0__w": "encoder.0.w", "1__w": "encoder.1.w"})
    told = against([encoder], *run)
    assert (told.status, told.files[0].view.add) == ("PART", "encoder.")
    assert told.left_out == ("classifier.weight", "decoder.0.w", "decoder.1.w")
    head = against([file(weight="classifier.weight")], *run)
    assert (head.status, head.files[0].view.add) == ("PART", "classifier.")
    decoder = file("decoder.safetensors", **{"0__w": "decoder.0.w", "1__w": "decoder.1.w"})
    assert against([encoder, decoder, file("head.safetensors", weight="classifier.weight")], *run).status == "TIED"
    mixed = against([file(**{"0__w": "encoder.0.w", "1__w": "decoder.1.w"})], *run)
    assert mixed.status == "UNTIED" and len(mixed.files[0].tied) == len(mixed.files[0].changed) == 1


def test_a_file_of_a_whole_around_the_model_is_read_without_what_its_names_have_too_much():
    told = against([file(_orig_mod__a__w="a.w", _orig_mod__b__w="b.w")], record("a.w"), record("b.w"))
    assert (told.status, told.files[0].view.drop) == ("TIED", "_orig_mod.")
    assert against([file(_orig_mod__a__w="a.w", b__w="b.w")], record("a.w"), record("b.w")).status == "UNTIED"


def test_a_converted_part_is_found_by_its_names_alone():
    run = (record("m.a.w", dtype="BF16"), record("m.b.w", dtype="BF16"))
    told = against([file(a__w="m.a.w", b__w="m.b.w")], *run)
    assert (told.status, told.files[0].view.add) == ("CONVERTED", "m.")


def test_adapters_whose_files_have_the_same_names_are_told_apart_by_what_is_in_them():
    def adapter(name: str) -> tuple[WeightRecord, ...]:
        return tuple(record(f"q.{side}.{name}.w", f"q.{side}.w", adapter=name, value=f"{side} of {name}") for side in "AB")

    run = (*adapter("one"), *adapter("two"), record("q.w", trained=False))
    good = [file(f"{name}/adapter.safetensors", q__A__w=f"A of {name}", q__B__w=f"B of {name}") for name in ("one", "two")]
    told = against(good, *run)
    assert (told.status, [item.view.adapter for item in told.files], told.present) == ("TIED", ["one", "two"], 4)
    mixed = against([file(q__A__w="A of one", q__B__w="B of two")], *run)
    assert mixed.status == "UNTIED" and len(mixed.files[0].changed) == 1
    assert against(good[1:], *run).left_out == ("q.A.one.w", "q.B.one.w")


def test_one_of_many_adapters_is_found_by_what_is_in_its_file_and_a_converted_one_by_its_folder():
    names = [f"lab-{number:02}" for number in range(40)]
    run = tuple(record(f"q.A.{name}.w", "q.A.w", adapter=name) for name in names)
    told = against([file("any.safetensors", q__A__w="q.A.lab-33.w")], *run)
    assert (told.status, told.files[0].view.adapter, told.adapters) == ("PART", "lab-33", ("lab-33",))
    assert told.serves("adapter:lab-33") and not any(map(told.serves, ("adapter:lab-34", "full", "base", "lab-33")))
    converted = tuple(replace(item, dtype="BF16") for item in run)
    told = against([file("lab-37/any.safetensors", q__A__w="")], *converted)
    assert (told.status, told.files[0].view.adapter) == ("CONVERTED", "lab-37")


def test_shards_are_one_model_and_a_tensor_in_two_of_them_must_be_the_runs_in_both():
    run = (record("a"), record("b"))
    shards = [file("model-00001-of-00002.safetensors", a="a"), file("model-00002-of-00002.safetensors", b="b")]
    told = against(shards, *run)
    assert (told.status, told.present, told.left_out) == ("TIED", 2, ())
    assert against([*shards, file("more.safetensors", a="other")], *run).status == "UNTIED"


@pytest.fixture
def finished(path):
    driver = run_to_the_end(path)
    with driver.ledger:
        yield driver


def saved(directory, tensors) -> None:
    (directory / "model.safetensors").write_bytes(safetensors(tensors))


@pytest.mark.one_in(99)
@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_release_finds_the_epoch_whose_weights_it_has_and_says_so_under_signature(finished, tmp_path, number):
    directory = model(tmp_path / "model")
    saved(directory, weights_of_epoch(number))
    made = release(finished.ledger, directory, now=finished.tick())
    report = check_release(directory, KEYS)
    assert (report.verdict, report.weights.status) == ("TOLD", "TIED") and made.weights == report.weights
    at = report.weights.commitment
    epoch = finished.ledger.state.epochs[number - 1]
    assert (at.number, at.step, at.seq) == (number, 8 * number, epoch.seq)
    assert model_digest(at.records) == epoch.model_digest
    assert any(
        f"epoch {number} (step {8 * number}, leaf {epoch.seq}): 2 of its 2" in said for said in report.manifest.statements
    )


def test_weights_that_were_changed_before_the_release_are_released_as_what_they_are(finished, tmp_path):
    directory = model(tmp_path / "model")
    name = "layers.2.weight"
    saved(directory, {**WEIGHTS, name: ("BF16", [4], bytes(8))})
    release(finished.ledger, directory, now=finished.tick())
    report = check_release(directory, KEYS)
    assert (report.verdict, report.weights.status, report.weights.files[0].changed) == ("TOLD", "UNTIED", (name,))
    assert any("NOT tied" in said and name in said for said in report.manifest.statements)


def test_weights_saved_in_another_type_are_told_to_be_converted(finished, tmp_path):
    directory = model(tmp_path / "model")
    saved(directory, {**WEIGHTS, "layers.0.weight": ("F16", [2, 3], bytes(12))})
    release(finished.ledger, directory, now=finished.tick())
    report = check_release(directory, KEYS)
    assert (report.verdict, report.weights.status) == ("TOLD", "CONVERTED")
    assert any("not tied to it" in said and "layers.0.weight" in said for said in report.manifest.statements)


def test_without_the_records_nothing_is_said_of_the_weights_and_nobody_is_served(finished, path, tmp_path):
    (path.parent / f"{path.name}.weights").rename(tmp_path / "away")
    release(finished.ledger, model(tmp_path / "model"), now=finished.tick())
    report = check_release(tmp_path / "model", KEYS)
    assert (report.verdict, report.weights.status, report.manifest.weights) == ("TOLD", "UNRECORDED", None)
    with pytest.raises(ReleaseRefused, match="NOT_TIED"):
        choose_artifact(report, Rights({"open": None, "sensitive": None}, told=True), ["full"])


@pytest.mark.parametrize("change", [lambda data: data[:-1] + b"\0", lambda data: data[:-1], lambda data: b""])
def test_records_that_are_not_what_the_leaf_commits_to_are_refused_and_leave_no_leaf(finished, path, tmp_path, change):
    last = finished.ledger.state.epochs[-1].model_digest
    kept = path.parent / f"{path.name}.weights" / f"{last.hex()}.cbor"
    kept.write_bytes(change(kept.read_bytes()))
    size = finished.ledger.size
    with pytest.raises(LedgerCorrupt, match="WEIGHTS"):
        release(finished.ledger, model(tmp_path / "model"), now=finished.tick())
    assert finished.ledger.size == size and not (tmp_path / "model" / MANIFEST).exists()


def test_no_epoch_is_closed_whose_records_are_not_on_disk(path, monkeypatch):
    def full(target, data):
        raise OSError(28, "No space left on device")

    with Ledger.create(path, header_spec(), SIGNER, now=START) as ledger:
        monkeypatch.setattr("ledger.storage.beside.atomic_write", full)
        with pytest.raises(StorageFailed, match="No space left"):
            ledger.keep_weights([record("a")])
        monkeypatch.undo()
        digest = ledger.keep_weights([record("a")])
        assert ledger.keep_weights([record("a")]) == digest, "an epoch that is closed again after a crash finds its file there"
        assert ledger.weights_of(digest) == (record("a"),) and ledger.weights_of(bytes(32)) is None


def forged(finished, tmp_path, **changes):
    """A release whose operator signs and logs another manifest: only what was committed to in training stands against it."""
    directory = model(tmp_path / "model")
    files = tuple(digested(directory, path) for path in listed(directory))
    manifest = replace(describe(finished.ledger, files, now=finished.tick()), **changes)
    data = sign_manifest(manifest, SIGNER)
    finished.ledger.record_release(hashlib.sha256(data).digest(), manifest.artifacts_digest, manifest.step, now=finished.now)
    (directory / MANIFEST).write_bytes(data)
    return check_release(directory, KEYS, export=finished.ledger.export(tmp_path / "export"))


def said(finished, commitment, files):
    header, run = finished.ledger.header, finished.ledger.state
    told = str(header.policy.delta), tie(commitment, files), run.isolation
    return statements(artifacts(header, final=True), *told, step=run.position, horizon=False)


def test_an_operator_cannot_release_weights_that_were_not_committed_to(finished, tmp_path):
    """Other weights, records of them, the sentence that they are tied, a valid signature and a leaf in the ledger."""
    other = {**WEIGHTS, "layers.0.weight": ("F32", [2, 3], bytes(24))}
    directory = model(tmp_path / "other")
    saved(directory, other)
    files = tuple(digested(directory, path) for path in listed(directory))
    real = describe(finished.ledger, files, now=finished.tick()).weights
    lie = replace(real, records=records(other))
    assert tie(lie, files).status == "TIED"
    report = forged(finished, tmp_path, weights=lie, files=files, statements=said(finished, lie, files))
    assert "WEIGHTS" in {finding.code for finding in report.findings} and report.verdict == "FAILED"


@pytest.mark.one_in(7)
@pytest.mark.parametrize("change", [{"number": 4}, {"number": 9}, {"seq": 3}, {"step": 39}])
def test_an_operator_cannot_move_weights_to_another_epoch(finished, tmp_path, change):
    directory = model(tmp_path / "scratch")
    files = tuple(digested(directory, path) for path in listed(directory))
    real = describe(finished.ledger, files, now=finished.tick()).weights
    lie = replace(real, **change)
    report = forged(finished, tmp_path, weights=lie, statements=said(finished, lie, files))
    assert {finding.code for finding in report.findings} == {"WEIGHTS"}


def test_an_operator_cannot_claim_a_tie_that_the_files_do_not_bear_out(finished, tmp_path):
    directory = model(tmp_path / "scratch")
    tied = tuple(digested(directory, path) for path in listed(directory))
    real = describe(finished.ledger, tied, now=finished.tick()).weights
    saved(directory, {**WEIGHTS, "layers.0.weight": ("F32", [2, 3], bytes(24))})
    others = tuple(digested(directory, path) for path in listed(directory))
    report = forged(finished, tmp_path, weights=real, files=others, statements=said(finished, real, tied))
    assert "RECORD" in {finding.code for finding in report.findings}


def test_a_manifest_that_was_signed_and_never_logged_is_found_whatever_its_export_shows(finished, tmp_path):
    """A release that is kept from everybody who reads the ledger: nothing is wrong with it but that it is secret."""
    directory = model(tmp_path / "model")
    files = tuple(digested(directory, path) for path in listed(directory))
    manifest = describe(finished.ledger, files, now=finished.tick())
    (directory / MANIFEST).write_bytes(sign_manifest(manifest, SIGNER))
    finished.ledger.export(directory / "export")
    report = check_release(directory, KEYS)
    assert [(item.code, item.where) for item in report.findings] == [("UNRECORDED", "export")]
    finished.withdraw(1)
    later = check_release(directory, KEYS, export=finished.ledger.export(tmp_path / "later"))
    assert {finding.code for finding in later.findings} == {"RELEASE"}
    (directory / "export").rename(tmp_path / "gone")
    alone = check_release(directory, KEYS)
    assert alone.verdict == "SIGNED" and any("nothing shows" in note for note in alone.notes)
