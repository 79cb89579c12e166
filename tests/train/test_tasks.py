"""Tasks: fixed shapes, one loss per example, accuracy, and messages that do not repeat private content."""

import traceback
from pathlib import Path

import pytest
import torch

from dptrain.errors import ConfigError
from dptrain.tasks import image_classification, text_classification
from dptrain.tasks.classification import evaluate, labels_of, make_optimizer, make_scheduler, read_examples
from dptrain.tasks.runconfig import ImageModel, OptimizerConfig, TextModel
from dptrain.tasks.text_classification import MeanPoolingClassifier

IMAGE = ImageModel(labels=("0", "1"), hidden_size=16, hidden_layers=2, attention_heads=2, pixel_max=16)


def picture(value: int, label: int) -> dict:
    return {"pixels": [[value] * 8] * 8, "label": label}


def tiny_text_model(directory: Path) -> Path:
    """A saved BERT with a word-level tokenizer, as small as they come."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "good", "bad", "film"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(directory)
    BertModel(
        BertConfig(vocab_size=5, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    ).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("pooling", ["model", "mean"])
def test_every_text_has_the_same_shape_whatever_its_length(tmp_path: Path, pooling: str) -> None:
    config = TextModel(path=tiny_text_model(tmp_path), max_length=6, pooling=pooling)
    model, collate = text_classification.build(config)
    short, long = {"text": "good", "label": 1}, {"text": "bad film " * 20, "label": "negative"}
    alone, together = collate([short]), collate([short, long])
    assert {name: value.shape[1:] for name, value in alone.items()} == {n: v.shape[1:] for n, v in together.items()}
    assert together["labels"].tolist() == [1, 0]
    losses = text_classification.per_example_loss(model, together)
    assert losses.shape == (2,)
    assert torch.allclose(losses[:1], text_classification.per_example_loss(model, alone), atol=1e-6)


def test_mean_pooling_ignores_padding_and_survives_saving(tmp_path: Path) -> None:
    config = TextModel(path=tiny_text_model(tmp_path / "encoder"), max_length=6, pooling="mean")
    model, collate = text_classification.build(config)
    assert isinstance(model, MeanPoolingClassifier)
    torch.nn.init.normal_(model.classifier.weight)
    model.eval()
    rows = collate([{"text": "good film", "label": 1}])
    longer = text_classification.TextCollate(collate.tokenizer, config.labels, 9)([{"text": "good film", "label": 1}])
    logits = model(rows["input_ids"], rows["attention_mask"]).logits
    assert torch.allclose(logits, model(longer["input_ids"], longer["attention_mask"]).logits, atol=1e-5)
    model.save_pretrained(tmp_path / "saved")
    again = MeanPoolingClassifier.from_pretrained(tmp_path / "saved").eval()
    assert torch.allclose(logits, again(rows["input_ids"], rows["attention_mask"]).logits)
    with pytest.raises(ConfigError, match="MODEL"):
        MeanPoolingClassifier.from_pretrained(tmp_path / "encoder")


def test_pictures_become_one_loss_each() -> None:
    model, collate = image_classification.build(IMAGE)
    rows = collate([picture(0, 0), picture(16, 1)])
    assert rows["pixel_values"].shape == (2, 1, 8, 8)
    assert (rows["pixel_values"].min(), rows["pixel_values"].max()) == (-1.0, 1.0)
    assert image_classification.per_example_loss(model, rows).shape == (2,)


@pytest.mark.parametrize(
    "example",
    [
        {"label": 0},
        {"pixels": "secret", "label": 0},
        {"pixels": [[1, 2], [3]], "label": 0},
        {"pixels": [[7] * 4] * 4, "label": 0},
        {**picture(1, 0), "label": 5},
        {**picture(1, 0), "label": "secret"},
        {**picture(1, 0), "label": True},
        "secret",
    ],
)
def test_an_unusable_picture_is_refused_without_repeating_it(example: object) -> None:
    _, collate = image_classification.build(IMAGE)
    with pytest.raises(ConfigError, match="EXAMPLE") as caught:
        collate([example])
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_an_unusable_text_is_refused_without_repeating_it(tmp_path: Path) -> None:
    _, collate = text_classification.build(TextModel(path=tiny_text_model(tmp_path)))
    for example in ({"label": 0}, {"text": 3, "label": 0}, "secret", {"text": "secret", "label": 9}):
        with pytest.raises(ConfigError, match="EXAMPLE") as caught:
            collate([example])
        assert "secret" not in str(caught.value)


def test_labels_may_be_numbers_or_names() -> None:
    assert labels_of([{"label": 1}, {"label": "no"}], ("no", "yes")).tolist() == [1, 0]


def test_accuracy_counts_right_answers_and_leaves_the_mode_of_the_model() -> None:
    model, collate = image_classification.build(IMAGE)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))
    assert evaluate(model, collate, [picture(0, 0), picture(3, 1), picture(5, 1)]) == pytest.approx(2 / 3)
    assert model.training


def test_a_model_that_cannot_be_found_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no directory"):
        text_classification.build(TextModel(path=tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="cannot load"):
        text_classification.build(TextModel(path=tmp_path / "empty"))
    with pytest.raises(ConfigError, match="cannot load"):
        image_classification.build(ImageModel(labels=("a", "b"), path=tmp_path / "empty"))


def test_freezing_names_parameters_and_refuses_patterns_that_match_none(tmp_path: Path) -> None:
    encoder = tiny_text_model(tmp_path)
    model, _ = text_classification.build(TextModel(path=encoder, pooling="mean", freeze=("*embeddings*",)))
    assert not any(p.requires_grad for name, p in model.named_parameters() if "embeddings" in name)
    with pytest.raises(ConfigError, match="matches no parameter"):
        text_classification.build(TextModel(path=encoder, freeze=("*embedings*",)))


def test_the_head_has_a_learning_rate_of_its_own() -> None:
    model, _ = image_classification.build(IMAGE)
    config = OptimizerConfig(learning_rate=0.1, head_learning_rate=0.5, learning_rate_without_privacy=0.3)
    body, head = make_optimizer(model, config).param_groups
    assert (body["lr"], head["lr"]) == (0.1, 0.5)
    assert {id(p) for p in model.classifier.parameters()} <= {id(p) for p in head["params"]}
    assert sum(len(group["params"]) for group in (body, head)) == len(list(model.parameters()))
    assert [group["lr"] for group in make_optimizer(model, config, private=False).param_groups] == [0.3, 0.3]


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("constant", [0.5, 1, 1, 1]), ("linear", [0.5, 0.75, 0.5, 0.25]), ("cosine", [0.5, 0.853553, 0.5, 0.146447])],
)
def test_schedules_follow_the_number_of_the_step(schedule: str, rates: list[float]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make_scheduler(optimizer, OptimizerConfig(schedule=schedule, warmup_steps=2), steps=4)
    found = []
    for _ in range(4):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert found == pytest.approx(rates, abs=1e-5)


@pytest.mark.parametrize("content", ["", "\n\n", "not json\n", "[1]\n"])
def test_unusable_validation_examples_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "validation.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match="VALIDATION"):
        read_examples(path)


def test_missing_validation_examples_are_refused_and_none_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="VALIDATION"):
        read_examples(tmp_path / "missing.jsonl")
    assert read_examples(None) == []
