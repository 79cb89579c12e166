"""Row E4 of the attack list, what TIED may be said of: files beside the weights, parts, prefixes and indices."""

import gzip
import hashlib
import io
import json
import pickle
import random
import struct
import tarfile
import time
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from ledger.errors import ReleaseRefused
from ledger.leaves.weights import WeightRecord
from ledger.release import MANIFEST, Rights, Tie, check_release, choose_artifact, release, tie
from ledger.release.contents import FORMS, HARMLESS, Looker, is_pickle
from ledger.release.create import describe
from ledger.release.files import digested, listed
from ledger.release.manifest import sign_manifest
from ledger.release.tied import Commitment
from tests.ledger.release_models import WEIGHTS, model, run_to_the_end, safetensors
from tests.worlds.ledgers import SIGNER

KEYS = [SIGNER.vkey]
NAMES = list(WEIGHTS)


class Runs:
    """What unpickling this would do."""

    def __reduce__(self):
        return print, ("the loader ran this",)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    driver = run_to_the_end(tmp_path_factory.mktemp("tied") / "ledger.db")
    with driver.ledger:
        yield driver


@pytest.fixture
def directory(tmp_path) -> Path:
    return model(tmp_path / "model")


def tied(run, directory: Path) -> Tie:
    """What a release of the directory would say, without a leaf about it."""
    files = tuple(digested(directory, path) for path in listed(directory))
    return tie(describe(run.ledger, files, now=run.now).weights, files)


def zipped(*names: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            archive.writestr(name, b"weights")
    return data.getvalue()


def tarred() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    return data.getvalue()


PICKLES = {protocol: pickle.dumps([Runs(), 1.5, "x"], protocol) for protocol in range(6)}
CALL = b"cbuiltins\nprint\n(S'the loader ran this'\ntR."
READ_BY_UNPICKLERS = (
    b"I0x10\n0", b"L0x10L\n0", b"I1_0\n0", b"I 0o7 \n0", b"L-0B1\n0", b"I00\n0", b"F1_0.5e+1_0\n0", b"F-Inf\n0",
    "S'\u00e9'\n0".encode(), b'S"a\\xff"\n0', b"V\\u0041\n0", b"(0", b"(1", b"(NN1", b"N200", b"I1\n.", b"(dp0\n.L5L\n.",
    b"K.0", b"Jabcd0", b"U\x20" + b"a" * 32 + b"0", b"I5\0and more\n0", b"F1.5\0and more\n0",
)  # fmt: skip
"""What CPython's unpicklers take, in C or in Python, though `pickletools` refuses some of it; it leaves the stack as it was."""
FRAMED = b"\x95" + struct.pack("<Q", 9) + b"\x8c\x01a." + b"0junk"
"""A pickle that ends inside its frame: what reads pickles behind one another goes on behind the frame, or behind the STOP."""
PARTS = (
    *READ_BY_UNPICKLERS, *b"().012NR]abdelostu}", b"cx\ny\n", b"ix\ny\n", b"Pz\n", b"Q", b"Vk\n", b"I1\n", b"p5\n", b"g5\n",
    b"q\t", b"h\t", b"\x81", b"\x85", b"\x86", b"\x87", b"\x88", b"\x8c\x01x", b"\x8f", b"\x90", b"\x91", b"\x92", b"\x93",
    b"\x94", b"!", b"ix\n",
)  # fmt: skip
"""Opcodes, of which the tests put together what some unpickler may read."""

PIECE = b"\x0a\x03\x0a\x01a"  # ModelProto field 1: a piece "a" without a score

HIDDEN = [
    *((f"tokenizer.model of protocol {protocol}", "tokenizer.model", data, "pickle") for protocol, data in PICKLES.items()),
    *((f"weights.txt of protocol {protocol}", "weights.txt", data, "pickle") for protocol, data in PICKLES.items()),
    ("data alone, as text", "weights.txt", pickle.dumps([0.5] * 9, 0), "pickle"),
    ("a text pickle longer than is looked at", "weights.txt", pickle.dumps([0.5] * 30_000, 0), "pickle"),
    ("an import, and junk behind it", "README.md", pickle.dumps(Runs(), 0) + b"\nplain words\n", "pickle"),
    ("one long line of a text pickle", "notes.txt", b"S'" + b"a" * 70_000 + b"'\n.", "pickle"),
    *((f"an import behind {before!r}", "weights.txt", before + CALL, "pickle") for before in READ_BY_UNPICKLERS),
    *((f"a call that breaks off, {behind!r}", "a.txt", CALL[:-1] + behind, "pickle") for behind in (b"", b"!", b"I.\n.")),
    ("an import that is put into", "a.txt", b"csys\npath\nV/tmp\na", "pickle"),
    ("an instance of an import", "a.txt", b"(S'ls'\nios\nsystem\n", "pickle"),
    ("an instance with a byte too many at the end", "a.txt", b"(S'ls'\nios\nsystem!", "pickle"),
    ("an import by a name in other letters", "a.txt", "cмодуль\nx\n.".encode(), "pickle"),
    ("what the loader keeps", "a.txt", b"Pstorage\n(tR", "pickle"),
    ("a call behind the frame of another pickle", "a.txt", FRAMED + CALL, "pickle"),
    ("data alone, and junk behind it", "a.txt", pickle.dumps([0.5] * 9, 0) + b"!", "pickle"),
    ("binary opcodes in a picture", "logo.gif", b"GIF87a..." + PICKLES[4][2:], "pickle"),
    ("text opcodes in a picture", "logo.gif", b"GIF87a...I0x10\n0" + CALL, "pickle"),
    ("signature", "x.safetensors.sig", PICKLES[4], "pickle"),
    ("torch.save", "tokenizer.model", zipped("archive/data.pkl", "archive/data/0"), "archive"),
    ("torch.save behind a picture", "logo.png", b"\x89PNG\r\n\x1a\n" + bytes(99) + zipped("data.pkl"), "archive"),
    ("torch.save behind a sentencepiece model", "a.model", PIECE + zipped("data.pkl"), "archive"),
    ("joblib, compressed", "scaler.txt", zlib.compress(PICKLES[3]), "archive"),
    ("gzip", "vocab.txt", gzip.compress(b"x" * 99), "archive"),
    ("tar", "notes.txt", tarred(), "archive"),
    ("GGUF", "tokenizer.model", b"GGUF" + bytes(200), "weights"),
    ("HDF5", "a.csv", b"\x89HDF\r\n\x1a\n" + bytes(200), "weights"),
    ("NumPy", "a.tsv", b"\x93NUMPY" + bytes(200), "weights"),
    ("TFLite", "a.spm", b"\x1c\0\0\0TFL3" + bytes(200), "weights"),
    ("bare floats", "merges.txt", struct.pack("<64f", *range(64)), "unknown"),
    ("text with control characters", "a.txt", b"a\0b", "unknown"),
    ("UTF-16", "a.txt", "words".encode("utf-16"), "unknown"),
    ("a protobuf that is no tokenizer", "tokenizer.model", b"\x3a\x05hello", "unknown"),
    ("floats behind the last piece", "tokenizer.model", PIECE + bytes(64), "unknown"),
    ("shared library", "a.txt", b"\x7fELF" + bytes(99), "code"),
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "data", "form"), [row[1:] for row in HIDDEN], ids=[row[0] for row in HIDDEN])
def test_E4_weights_and_code_under_the_name_of_a_companion_keep_a_release_from_being_tied_or_are_named(
    run, directory, name, data, form
):
    (directory / name).write_bytes(data)
    found = tied(run, directory)
    assert digested(directory, name).form == form
    if form != "code":
        assert (found.status, found.opaque) == ("UNTIED", (name,))
    assert (found.code == (name,)) == (form in ("pickle", "archive", "code"))


class Thing:
    """Takes whatever an unpickler does with it, and remembers that something was done."""

    acted = False

    def act(self, *_: object) -> "Thing":
        Thing.acted = True
        return self

    __call__ = __setitem__ = __setstate__ = append = extend = add = act


def found(_: object, module: str, name: str) -> Thing:
    if not module or not name or any(map(str.isspace, module + name)):
        raise ImportError(module)
    return Thing()


def acted(kind: type, data: bytes) -> bool:
    """Whether an unpickler did something with what it had obtained, or returned it."""
    Thing.acted = False
    obtain = {"find_class": found, "persistent_load": lambda *_: Thing()}
    unpickler = type("Unpickler", (kind,), obtain)(io.BytesIO(data), encoding="latin1")
    try:
        while not Thing.acted:
            Thing.acted = isinstance(unpickler.load(), Thing)
    except Exception:
        return Thing.acted
    return True


@pytest.mark.parametrize("kind", [pickle.Unpickler, pickle._Unpickler])
def test_E4_whatever_an_unpickler_does_with_an_object_that_it_obtained_is_a_pickle(kind):
    """Opcodes at random, with the unpicklers of this interpreter to say what they are."""
    chance, count = random.Random(f"pickles for {kind.__name__}"), 0
    parts = [bytes([part]) if isinstance(part, int) else part for part in PARTS]
    for _ in range(10_000):
        data = chance.choice((b"", b"cx\ny\n", b"cx\ny\n(")) + b"".join(chance.choices(parts, k=chance.randrange(2, 12)))
        if acted(kind, data):
            assert is_pickle(data, len(data)), data
            count += 1
    assert count > 30


@pytest.mark.parametrize("kind", [pickle.Unpickler, pickle._Unpickler])
def test_loaders_go_on_behind_a_frame(kind):
    """So a walk that goes on behind the STOP alone looks at other bytes than they do."""
    stream, obtain = io.BytesIO(FRAMED + CALL), {"find_class": found}
    assert kind(stream).load() == "a" and stream.tell() == len(FRAMED)
    Thing.acted = False
    type("Unpickler", (kind,), obtain)(stream).load()
    assert Thing.acted


@pytest.mark.parametrize("before", READ_BY_UNPICKLERS)
def test_what_the_tests_take_for_read_by_unpicklers_is(before):
    assert acted(pickle.Unpickler, before + CALL) or acted(pickle._Unpickler, before + CALL)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("README.md", b"# A model\n\nTrained. See the card.\n"),
        ("LICENSE", b"Copyright 2026\n\nGranted...\n"),
        ("vocab.txt", "a\nb\nцз\n##c\n.\n".encode()),
        ("merges.txt", b"#version: 0.2\nt h\na n\n"),
        ("a.txt", b""),
        ("a.txt", b"N.\n\n and so on"),
        ("a.txt", b"K9. Dogs\n"),
        ("README.md", b"(i) first of all\nsecond\n.\n"),
        ("README.md", b"The first words, which are many" * 9_000),
        ("vocab.txt", b"cos\nsystem\nof\nthe\n"),
        ("a.txt", b"I0xfor\n" + CALL),
        ("a.txt", b"S'open\n" + CALL),
        ("a.txt", b"F1.5.5\n" + CALL),
        ("a.txt", b"0" + CALL),
        ("a.txt", b"(NR" + CALL),
        ("a.txt", b"X    " + CALL),
        ("a.txt", "\ufeffwith a mark\r\n".encode()),
        ("tokenizer.model", PIECE + b"\x0a\x0a\x0a\x01b\x15\0\0\x80\x3f\x18\x02" + b"\x12\x02\x08\x01"),
        ("logo.png", b"\x89PNG\r\n\x1a\n" + bytes(99)),
        ("tokenizer.json", json.dumps({"vocab": {'"auto_map": ': 1, "b": '"auto_map":', "c": "auto_map"}}).encode()),
    ],
)
def test_plain_companions_are_no_code_and_leave_a_release_tied(run, directory, name, data):
    (directory / name).write_bytes(data)
    found = tied(run, directory)
    assert (found.status, found.opaque, found.code) == ("TIED", (), ())


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("modeling.py", "import os\n", "code"),
        ("run.txt", "#!/bin/sh\nrm -r .\n", "code"),
        ("config.json", '{"auto_map": {"AutoModel": "modeling.Model"}}', "code"),
        ("config.json", '{"a": [{"\\u0061uto_map": null}]}', "code"),
        ("config.json", '{"vision": {"trust_remote_code" : true}}', "code"),
        ("adapter_config.json", '{"auto_mapping": {"parent_library": "os"}}', "code"),
        ("modules.json", '[{"type": "sentence_transformers.models.Pooling"}]', "code"),
        ("hyperparams.yaml", "model: !apply:os.system [id]\n", "code"),
        ("config.json", '{"attn_implementation": "owner/kernel"}', "code"),
        ("tokenizer_config.json", '{"chat_template": "{{ messages }}"}', "templates"),
        ("chat_template.jinja", "{{ messages }}", "templates"),
    ],
)
def test_E4_settings_and_code_that_were_changed_and_signed_along_are_named_under_signature(
    tmp_path, directory, name, data, what
):
    """The weights are the run's; what a loader makes of them with such files is not, and nobody is served unasked."""
    (directory / name).write_text(data)
    driver = run_to_the_end(tmp_path / "ledger.db")
    with driver.ledger:
        release(driver.ledger, directory, now=driver.tick())
    report = check_release(directory, KEYS)
    assert (report.verdict, report.weights.status, getattr(report.weights, what)) == ("TOLD", "TIED", (name,))
    assert ("CODE_BESIDE" in report.qualifiers) == (what == "code")
    letter = {"code": "C (code beside the weights)", "templates": "C (templates)"}[what]
    assert any(said.startswith(letter) and name in said for said in report.manifest.statements)
    rights = {"classes": {"open": None, "sensitive": None}, "told": True}
    if what == "code":
        with pytest.raises(ReleaseRefused, match="CODE"):
            choose_artifact(report, Rights(**rights), ["full"])
    assert choose_artifact(report, Rights(**rights, code=True), ["full"]) == "full"


def form_of(name: str, text: str) -> tuple[str, tuple[str, ...]]:
    looker = Looker(name)
    looker.take(text.encode())
    return looker.form()


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("hyperparams.yaml", "model:\n  _target_: os.system\n  command: id\n", "_target_"),
        ("a.yaml", '"\\x5ftarget_": os.system', "_target_"),
        ("a.yaml", '"\\u005Ftarget\\U0000005f": os.system', "_target_"),
        ("a.yaml", '"_tar\\\n    get_": os.system', "_target_"),
        ("a.yml", "x: !!python/object/apply:os.system [id]\n", "!"),
        ("a.yml", "!apply:os.system [id]\n", "!"),
        ("a.yml", "x: [!new:os.system]\n", "!"),
        ("a.yml", "{a: 1,b:!name:os.system }\n", "!"),
        ("a.yml", "x: !<tag:yaml.org,2002:python/name:os.system> \n", "!"),
        ("a.yml", "%TAG !! tag:yaml.org,2002:python/\n---\nx: !!int ''\n", "!"),
        ("a.yml", "x: !!str/../python/name:os.system\n", "!"),
        ("a.yml", "\ufeff!x y\n", "!"),
        ("a.yaml", "target: ldm.models.Other\n", "target"),
        ("a.yaml", "class_path: os.system\n", "class_path"),
        ("a.toml", "[model]\n_target_ = 'os.system'\n", "_target_"),
        ("a.toml", '"\\u0061uto_map" = 1\n', "auto_map"),
        ("a.ini", "[model]\nAUTO_MAP = a.B\n", "auto_map"),
        ("a.cfg", "[model]\ntrust_remote_code = yes\n", "trust_remote_code"),
        ("a.yaml", "attn_implementation: owner/kernel\n", "attn_implementation"),
        ("a.yaml", "attn_implementation:\n  owner/kernel\n", "attn_implementation"),
        ("a.yaml", "{_attn_implementation: *x}\n", "_attn_implementation"),
        ("a.toml", "experts_implementation = 'owner/kernel'\n", "experts_implementation"),
        ("config.json", '{"attn_implementation": "owner/kernel"}', "attn_implementation"),
        ("config.json", '{"a": {"_attn_implementation" : "paged|owner\\u002fkernel@main:f"}}', "_attn_implementation"),
        ("config.json", '{"\\u0061ttn_implementation": "sdpa", "attn_implementation": "a\\/b"}', "attn_implementation"),
        ("config.json", '{"attn_implementation": {"text": "owner/kernel"}}', "attn_implementation"),
        ("config.json", '{"kernel_config": {"RMSNorm": "owner/kernel:RMSNorm"}}', "kernel_config"),
    ],
)
def test_E4_settings_that_name_code_are_named_in_whatever_format_a_loader_reads(name, text, named):
    assert form_of(name, text) == ("names-code", (named,))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "a: !!str 1\nb: [!!float 1, !!seq []]\nc: hello! world\nd: a != b\ne: \"!x\"\nf: ! x\n"),
        ("a.yaml", "target: 0.5\ntarget_modules: [q_proj]\nsteps: 1\n"),
        ("a.yaml", "attn_implementation: sdpa  # not a/b\n"),
        ("a.yaml", "{attn_implementation: 'paged|eager'}\n"),
        ("a.toml", "attn_implementation = \"flash_attention_2\"\npath = \"C:\\\\Users\"\n"),
        ("a.ini", "[a]\nb = 100%!\n"),
        ("config.json", '{"attn_implementation": "flash_attention_2", "_attn_implementation": null, "conv_kernel": [10, 3]}'),
        ("vocab.json", '{"attn_implementation": 17, "owner/kernel": 18}'),
        ("README.md", "trust_remote_code=True is not needed\n"),
    ],
)
def test_settings_that_name_no_code_are_text(name, text):
    assert form_of(name, text) == ("text", ())


def saved(directory: Path, tensors, name: str = "model.safetensors") -> None:
    (directory / name).write_bytes(safetensors(tensors))


def test_E4_one_tensor_of_two_is_a_part_and_serves_nobody_who_asks_for_the_whole(tmp_path, directory):
    saved(directory, {NAMES[0]: WEIGHTS[NAMES[0]]})
    driver = run_to_the_end(tmp_path / "ledger.db")
    with driver.ledger:
        release(driver.ledger, directory, now=driver.tick())
    report = check_release(directory, KEYS)
    assert (report.weights.status, report.weights.left_out) == ("PART", (NAMES[1],))
    assert "WEIGHTS_NOT_TIED" in report.qualifiers
    assert any(said.startswith("W (weights in part)") and NAMES[1] in said for said in report.manifest.statements)
    with pytest.raises(ReleaseRefused, match="NOT_TIED"):
        choose_artifact(report, Rights({"open": None, "sensitive": None}, told=True), ["full", "base"])


@pytest.mark.parametrize("path", ["docs/notes.safetensors", "notes.safetensors", "checkpoint-1/model.safetensors"])
@pytest.mark.parametrize("rest", [NAMES[1:], NAMES])
def test_E4_half_a_model_beside_the_rest_of_it_is_a_part_and_serves_nobody(run, directory, path, rest):
    """A loader takes one of the two files, and begins with random weights for what that lacks."""
    (directory / path).parent.mkdir(exist_ok=True)
    saved(directory, {NAMES[0]: WEIGHTS[NAMES[0]]})
    saved(directory, {name: WEIGHTS[name] for name in rest}, path)
    found = tied(run, directory)
    assert found.status == "PART" and NAMES[1] in found.left_out and found.present < 2
    assert found.aside == ((path,) if "/" in path else ()) and not found.serves("full")


def test_E4_files_where_no_loader_looks_are_in_no_count_and_have_to_be_the_runs_all_the_same(run, directory):
    (directory / "docs").mkdir()
    saved(directory, {NAMES[0]: WEIGHTS[NAMES[0]]}, "docs/copy.safetensors")
    found = tied(run, directory)
    assert (found.status, found.present, found.aside) == ("TIED", 2, ("docs/copy.safetensors",))
    saved(directory, {NAMES[0]: ("F32", [2, 3], bytes(24))}, "docs/copy.safetensors")
    assert tied(run, directory).status == "UNTIED"
    (directory / "model.safetensors").unlink()
    saved(directory, WEIGHTS, "docs/copy.safetensors")
    found = tied(run, directory)
    assert (found.status, found.left_out, found.present) == ("PART", tuple(sorted(NAMES)), 0)


@pytest.mark.parametrize(
    ("files", "index", "status"),
    [
        (("model-a.safetensors", "model-b.safetensors"), "model", "TIED"),
        (("model-a.safetensors", "model-b.safetensors"), "other", "PART"),
        (("model.safetensors", "model-b.safetensors"), "model", "PART"),
        (("model.safetensors", "other-b.safetensors"), "other", "PART"),
        (("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), None, "TIED"),
        (("model-00001-of-00002.safetensors", "model-00002-of-00003.safetensors"), None, "PART"),
    ],
)
def test_E4_files_are_one_model_only_as_shards_of_one_set(run, directory, files, index, status):
    (directory / "model.safetensors").unlink()
    for file, name in zip(files, NAMES, strict=True):
        saved(directory, {name: WEIGHTS[name]}, file)
    if index is not None:
        data = json.dumps({"weight_map": dict(zip(NAMES, files, strict=True))})
        (directory / f"{index}.safetensors.index.json").write_text(data)
    assert tied(run, directory).status == status


def recorded(name: str, adapter: str | None = None, *others: str) -> WeightRecord:
    """The record of a trained tensor of two bytes, which are told by its name."""
    return WeightRecord((name, *others), adapter, True, "F32", (2,), hashlib.sha256(content(name)).digest())


def content(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:8]


def laid_out(base: Path, files: dict[str, dict[str, str]], *run: WeightRecord) -> Tie:
    """What is said of files of tensors, by name the record of which each has the bytes."""
    for path, tensors in files.items():
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        saved(base, {name: ("F32", [2], content(of)) for name, of in tensors.items()}, path)
    found = Commitment(1, 5, 4, tuple(sorted(run, key=lambda item: item.names)))
    return tie(found, [digested(base, path) for path in sorted(files)])


TWO = (recorded("text_encoder.w.weight"), recorded("unet.w.weight"))
LORAS = (recorded("q.lora.a.weight", "a", "q.lora.weight"), recorded("q.lora.b.weight", "b", "q.lora.weight"))


@pytest.mark.parametrize("place", ["{}/model.safetensors", "{}/any.safetensors", "{}.safetensors"])
def test_E4_modules_of_one_shape_are_tied_in_places_of_their_own_and_not_in_those_of_each_other(tmp_path, place):
    one, other = (record.names[0].partition(".")[0] for record in TWO)
    names = {module: {"w.weight": f"{module}.w.weight"} for module in (one, other)}
    own = {place.format(module): names[module] for module in names}
    assert laid_out(tmp_path / "own", own, *TWO).status == "TIED"
    traded = laid_out(tmp_path / "traded", {place.format(one): names[other], place.format(other): names[one]}, *TWO)
    assert traded.status == "UNTIED" and all(file.changed for file in traded.files)
    alone = laid_out(tmp_path / "alone", {place.format(one): names[other]}, *TWO)
    assert (alone.status, alone.present) == ("UNTIED", 0)


def test_E4_a_file_that_could_be_of_several_modules_is_of_none(tmp_path):
    """Whoever loads the other module from it gets the weights of this one."""
    found = laid_out(tmp_path, {"model.safetensors": {"w.weight": "unet.w.weight"}}, TWO[1], replace(TWO[0], trained=False))
    assert (found.status, found.aside, found.left_out) == ("PART", ("model.safetensors",), ("unet.w.weight",))


def test_E4_a_module_of_which_another_file_has_half_is_a_part(tmp_path):
    run = (recorded("unet.a.weight"), recorded("unet.b.weight"))
    half, rest = {"a.weight": "unet.a.weight"}, {"b.weight": "unet.b.weight"}
    found = laid_out(tmp_path, {"unet/model.safetensors": half, "unet/x.safetensors": rest}, *run)
    assert (found.status, found.left_out) == ("PART", ("unet.a.weight", "unet.b.weight"))
    found = laid_out(tmp_path / "in", {"model.safetensors": half, "unet/x.safetensors": half | rest}, *run)
    assert (found.status, found.left_out) == ("PART", ("unet.b.weight",))


@pytest.mark.parametrize("place", ["{}/adapter_model.safetensors", "adapters/{}/x.safetensors", "{}.safetensors"])
def test_E4_adapters_are_tied_in_places_of_their_own_and_serve_nobody_in_those_of_each_other(tmp_path, place):
    names = {adapter: {"q.lora.weight": f"q.lora.{adapter}.weight"} for adapter in "ab"}
    own = laid_out(tmp_path / "own", {place.format(name): names[name] for name in "ab"}, *LORAS)
    assert (own.status, own.adapters) == ("TIED", ("a", "b"))
    alone = laid_out(tmp_path / "alone", {place.format("a"): names["a"]}, *LORAS)
    assert (alone.status, alone.serves("adapter:a"), alone.serves("adapter:b")) == ("PART", True, False)
    for files in ({"a": "b", "b": "a"}, {"a": "b"}, {"a": "b", "b": "b"}):
        base = tmp_path / "-".join((*files, *files.values()))
        found = laid_out(base, {place.format(name): names[of] for name, of in files.items()}, *LORAS)
        assert found.status == "UNTIED" and not any(map(found.serves, ("adapter:a", "adapter:b", "full")))
    full = laid_out(tmp_path / "full", {place.format("a"): {"q.lora.b.weight": "q.lora.b.weight"}}, *LORAS)
    assert (full.status, full.adapters) == ("PART", ())


def test_E4_the_adapter_that_peft_saves_without_a_folder_is_no_other_one(tmp_path):
    run = (recorded("q.lora.default.weight", "default", "q.lora.weight"), LORAS[1])
    good = {"adapter_model.safetensors": {"q.lora.weight": "q.lora.default.weight"}}
    folder = {"b/adapter_model.safetensors": {"q.lora.weight": "q.lora.b.weight"}}
    assert laid_out(tmp_path / "good", good | folder, *run).status == "TIED"
    other = {"adapter_model.safetensors": {"q.lora.weight": "q.lora.b.weight"}}
    assert laid_out(tmp_path / "other", other | folder, *run).status == "UNTIED"


@pytest.mark.parametrize(
    ("rename", "status"),
    [
        (lambda name: f"nobody.knows.{name}", "UNTIED"),
        (lambda name: f"x{name}", "UNTIED"),
        (lambda name: f"hidden.{name}", "UNTIED"),
        (lambda name: f"module.{name}", "TIED"),
        (lambda name: f"_orig_mod.{name}", "TIED"),
        (lambda name: f"base_model.model.{name}", "TIED"),
        (lambda name: name.removeprefix("layers."), "TIED"),  # one module of the model, and all of it
    ],
)
def test_E4_a_prefix_that_no_loader_looks_behind_is_not_tied(run, directory, rename, status):
    """Such a file loads without an error, and the model keeps the random weights that it began with."""
    saved(directory, {rename(name): value for name, value in WEIGHTS.items()})
    assert tied(run, directory).status == status


def test_E4_a_tensor_that_is_found_only_inside_an_inner_module_is_not_tied(run, directory):
    saved(directory, {"weight": WEIGHTS[NAMES[0]]})
    found = tied(run, directory)
    assert (found.status, found.files[0].view.add) == ("UNTIED", "layers.0.")


SHARDS = {f"model-0000{n}-of-00002.safetensors": NAMES[n - 1] for n in (1, 2)}


@pytest.mark.parametrize(
    ("index", "status"),
    [
        ({"weight_map": {name: file for file, name in SHARDS.items()}}, "TIED"),
        ({"weight_map": {NAMES[0]: "../other.safetensors", NAMES[1]: list(SHARDS)[1]}}, "UNTIED"),
        ({"weight_map": dict.fromkeys(NAMES, "pytorch_model.bin")}, "UNTIED"),
        ({"weight_map": {NAMES[0]: next(iter(SHARDS))}}, "UNTIED"),
        ({"weight_map": {}}, "UNTIED"),
        ({"weight_map": [1]}, "UNTIED"),
        ([], "UNTIED"),
    ],
)
def test_E4_an_index_that_leads_a_loader_elsewhere_is_not_tied(run, directory, index, status):
    (directory / "model.safetensors").unlink()
    for file, name in SHARDS.items():
        saved(directory, {name: WEIGHTS[name]}, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert tied(run, directory).status == status


def test_E4_a_manifest_that_calls_a_pickle_text_is_refused_by_who_looks_at_the_file(tmp_path, directory):
    """The releaser signs the form; whoever checks finds it again from the bytes."""
    (directory / "weights.txt").write_bytes(PICKLES[4])
    files = [digested(directory, path) for path in listed(directory)]
    files = tuple(replace(file, form="text") if file.path == "weights.txt" else file for file in files)
    driver = run_to_the_end(tmp_path / "ledger.db")
    with driver.ledger:
        manifest = describe(driver.ledger, files, now=driver.tick())
        assert tie(manifest.weights, files).status == "TIED"
        data = sign_manifest(manifest, SIGNER)
        driver.ledger.record_release(hashlib.sha256(data).digest(), manifest.artifacts_digest, manifest.step, now=driver.now)
        (directory / MANIFEST).write_bytes(data)
        driver.ledger.export(directory / "export")
    report = check_release(directory, KEYS)
    assert [(item.code, item.where) for item in report.findings] == [("CHANGED_FILE", "weights.txt")]
    assert report.verdict == "FAILED" and "the manifest says text" in report.findings[0].sentence


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b'"' + b'\\"' * 2_000_000),
        ("a.json", b'"' + b'\\"' * 2_000_000 + b"\\"),
        ("a.json", b'"" ' * 1_500_000),
        ("a.json", b"[" * 4_000_000),
        ("a.index.json", b"[" * 4_000_000),
        ("a.model", b"\x12\x00" * 2_000_000),
        ("a.model", b"\x0a\x82\xea\x30" + b"\x18\x01" * 400_001),
        ("a.txt", b"(" * 4_000_000),
        ("a.txt", b"I" + b"9" * 4_000_000),
        ("a.txt", b"I" + b"9" * 4_000_000 + b"\n."),
        ("a.txt", b"F" + b"1_" * 2_000_000 + b"\n."),
        ("a.txt", b"S'" + b"'" * 4_000_000 + b"x\n."),
        ("a.txt", b"N0" * 2_000_000),
        ("a.txt", b"V\n0" * 1_000_000),
        ("a.txt", b"\x80"),
        ("a.yaml", b"!" * 4_000_000),
        ("a.yaml", b"\\x5f" * 1_000_000),
        ("a.yaml", b"\\\n" + b" " * 4_000_000),
        ("a.yaml", b"target" + b" " * 4_000_000),
        ("a.yaml", b"attn_implementation" * 200_000),
        ("a.toml", b"attn_implementation:" + b" " * 4_000_000 + b"x/"),
        ("a.json", b'"attn_implementation":' * 200_000),
    ],
)
def test_no_file_makes_a_look_at_it_take_more_than_its_share_of_time(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    began = time.process_time()
    assert digested(tmp_path, name).form in FORMS
    assert time.process_time() - began < 5


def test_every_form_has_its_words_and_weights_and_unknown_are_never_harmless():
    assert set(FORMS) > HARMLESS and not HARMLESS & {"tensors", "pickle", "archive", "weights", "unknown"}
