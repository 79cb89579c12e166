"""The world of the language demo: what a server needs of it, made in a few steps."""

from pathlib import Path

import pytest

pytest.importorskip("peft")

from safetensors import safe_open
from transformers import AutoTokenizer

from dptrain.demo.language import TIERS, World
from dptrain.demo.topics import BEGINNINGS, LONGEST, PRIVATE, TOPICS, public_texts, share, texts, tokenizer
from ledger.release import Rights, check_release, choose_artifact
from ledger.release.files import digested


def tensors(path: Path) -> dict[str, list[int]]:
    """Names and shapes."""
    with safe_open(path, "numpy") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118


def test_each_adapter_is_one_pair_of_the_head_and_nothing_else(served_world: World) -> None:
    vocabulary = len(tokenizer())
    for tier in TIERS:
        found = tensors(served_world.release / tier.name / "adapter_model.safetensors")
        assert found == {
            "base_model.model.lm_head.lora_A.weight": [4, 64],
            "base_model.model.lm_head.lora_B.weight": [vocabulary, 4],
        }
    assert not list(served_world.release.glob("*.safetensors")), "the base lies outside of the release"


def test_the_release_is_whole_and_tied_and_every_tensor_of_the_base_is_one_that_the_run_had_frozen(served_world: World) -> None:
    report = check_release(served_world.release, served_world.ledger_key.read_text().split())
    assert (report.verdict, report.findings) == ("FULL", ())
    assert report.weights is not None and report.weights.status == "TIED"
    assert report.manifest is not None and report.manifest.weights is not None
    frozen = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): record.sha256
        for record in report.manifest.weights.records
        if not record.trained
        for name in record.names
    }
    found = digested(served_world.base, "model.safetensors")
    assert found.tensors is not None and len(found.tensors) == 21
    assert {tensor.name: tensor.sha256 for tensor in found.tensors} == frozen


def test_whoever_may_hear_all_classes_gets_an_adapter_and_everybody_else_the_base(served_world: World) -> None:
    report = check_release(served_world.release, served_world.ledger_key.read_text().split())
    for name in served_world.classes:
        wanted = [f"adapter:{name}", "base"]
        assert choose_artifact(report, Rights(dict(served_world.classes)), wanted) == f"adapter:{name}"
        least = dict(served_world.classes) | {name: served_world.classes[name] / 2}
        assert choose_artifact(report, Rights(least), wanted) == "base"


def test_no_file_of_the_release_says_where_it_was_made(served_world: World) -> None:
    where = str(served_world.directory).encode()
    files = [path for path in served_world.release.rglob("*") if path.is_file()]
    assert len(files) > 10 and not [path.name for path in files if where in path.read_bytes()]


def test_the_saved_tokenizer_knows_every_word_and_gives_texts_back(served_world: World) -> None:
    words = AutoTokenizer.from_pretrained(served_world.base)
    for topic in TOPICS.values():
        for line in texts(topic, 50, seed=7):
            ids = words(line)["input_ids"]
            assert words.unk_token_id not in ids and len(ids) < LONGEST
            assert words.decode(ids, skip_special_tokens=True) == line


def test_a_text_is_of_one_topic_and_its_beginning_of_none() -> None:
    for name, topic in PRIVATE.items():
        found = texts(topic, 40, seed=3)
        assert found == texts(topic, 40, seed=3) and len(set(found)) == 40
        assert share(found, topic) == 1.0
        assert all(share(found, other) == 0.0 for key, other in TOPICS.items() if key != name)
        assert all(line.startswith(BEGINNINGS) for line in found)
    assert all(0 < share(public_texts(3000, seed=0), topic) < 0.02 for topic in PRIVATE.values())
