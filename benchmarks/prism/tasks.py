"""The tasks on which arms are compared with real models: where their data is, how an example becomes a row, what is measured.

A task that has files below the data folder is read from these; another one by its name from a hub. A model is a folder or a
hub name; without one, a small pretrained model that is at hand: MiniLM-L6 with LoRA on its last layers for texts, a model of
260,000 parameters that knows children's stories for completions, a vision transformer of the demo for digits.
"""

import copy
import csv
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.prism.harness import Loss, Rows
from dptrain.integrations.losses import losses_of
from recipes import prepare
from recipes.language import stories, texts

Record = Mapping[str, Any]
HEADS = ("classifier", "score")


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        title: for tables. labels: of a classification, or none for completions.
        hub: names of the data set and its configuration. validation: its split.
        row: makes ``{"text", "label"}`` or ``{"prompt", "completion"}`` of a record of the hub.
        read: reads contributions and public examples from the data folder; None where no files are known.
        contributions, choosing, reporting: how many examples at the most; half of ``choosing`` is public. length: tokens of
            a row.
        rank, targets: of LoRA. layers: how many of the last layers have it, None for all; of the model at hand.
        steps, draws: of a run; draws are of a step, on average. bf16: products of passes in bfloat16, under autocast.
    """

    title: str
    labels: tuple[str, ...] = ()
    hub: tuple[str, ...] = ()
    validation: str = "validation"
    row: Callable[[Record], Record] = dict
    read: Callable[[Path], prepare.Corpus] | None = None
    contributions: int = 12_000
    choosing: int = 2_000
    reporting: int = 2_000
    length: int = 128
    rank: int = 8
    targets: tuple[str, ...] = ("query", "value")
    layers: int | None = None
    steps: int = 40
    draws: int = 128
    bf16: bool = False


@dataclass(frozen=True)
class Ready:
    """A task with its model: ``model()`` is a fresh copy, with LoRA pairs that `harness.start` has yet to fill.

    Attributes:
        rows: contributions. public: examples that set the unit of the clip norm, and a head that is then frozen. choosing,
            reporting: public examples too. loss: of each row. measure: what is reported, higher is better.
        sample: writes to a public prompt, or None.
    """

    name: str
    model: Callable[[], nn.Module]
    rows: Rows
    public: Rows
    choosing: Rows
    reporting: Rows
    loss: Loss
    measure: Callable[[nn.Module, Rows], torch.Tensor]
    sample: Callable[[nn.Module], str] | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)


def _pair(first: str, second: str = "") -> Callable[[Record], Record]:
    """Makes a text of one or two columns of GLUE."""
    return lambda row: {"text": "\n".join(row[name] for name in (first, second) if name), "label": round(row["label"])}


def _completion(prompt: str, completion: str) -> Callable[[Record], Record]:
    """Makes a prompt and its completion of two templates."""
    return lambda row: {"prompt": prompt.format(**row) + "\n", "completion": completion.format(**row)}


def _phrases(data: Path) -> prepare.Corpus:
    """Reads SST-2: phrases of ten words or more are contributions or public, sentences of the validation file report."""
    found = prepare.sst2(data, 14_000)
    return prepare.Corpus(found.records[2_000:], [*found.records[:2_000], *found.validation])


def _mawps(data: Path) -> prepare.Corpus:
    def part(name: str) -> list[Record]:
        with open(data / "svamp" / f"mawps_fold0_{name}.csv", encoding="utf-8", newline="") as stream:
            return [_numbered(row) for row in csv.DictReader(stream)]

    return prepare.Corpus(part("train"), part("dev"))


def _numbered(row: Record) -> Record:
    numbers = [f"{float(number):g}" for number in row["Numbers"].split()]

    def filled(text: str) -> str:
        return re.sub(r"number(\d+)", lambda found: numbers[int(found.group(1))], text)

    return {"prompt": filled(row["Question"]) + "\n", "completion": f"{filled(row['Equation'])} = {row['Answer']}"}


def _svamp(data: Path) -> prepare.Corpus:
    rows = [_SVAMP(row) for row in json.loads((data / "svamp" / "SVAMP.json").read_text(encoding="utf-8"))]
    return prepare.Corpus(rows[:700], rows[700:])


_SVAMP = _completion("{Body} {Question}", "{Equation} = {Answer}")
_NO, _THREE = ("no", "yes"), ("entailment", "neutral", "contradiction")
_TEXT: Mapping[str, Any] = {
    "targets": ("q_proj", "v_proj"), "contributions": 6_000, "choosing": 200, "reporting": 200, "steps": 20, "draws": 64,
}  # fmt: skip


def _glue(title: str, name: str, labels: tuple[str, ...], *columns: str, **options: Any) -> Task:
    return Task(title, labels, ("nyu-mll/glue", name), row=_pair(*columns), **options)


TASKS: dict[str, Task] = {
    "cola": _glue("CoLA", "cola", _NO, "sentence"),
    "sst2": _glue(
        "SST-2", "sst2", ("negative", "positive"), "sentence", read=_phrases, length=20, layers=1,
        targets=("query", "value", "dense"), steps=30, draws=128, bf16=True,
    ),
    "mrpc": _glue("MRPC", "mrpc", _NO, "sentence1", "sentence2"),
    "stsb": _glue("STS-B, whole scores", "stsb", tuple("012345"), "sentence1", "sentence2"),
    "qqp": _glue("QQP", "qqp", _NO, "question1", "question2"),
    "mnli": _glue("MNLI", "mnli", _THREE, "premise", "hypothesis", validation="validation_matched"),
    "qnli": _glue("QNLI", "qnli", _NO, "question", "sentence"),
    "rte": _glue("RTE", "rte", _NO, "sentence1", "sentence2"),
    "gsm8k": Task(
        "GSM8K", (), ("openai/gsm8k", "main"), "test", _completion("{question}", "{answer}"),
        lambda data: prepare.gsm8k(data, validation=400), length=256, **_TEXT,
    ),
    "svamp": Task("SVAMP", (), ("ChilleD/SVAMP",), "test", _SVAMP, _svamp, length=144, **_TEXT),
    "mawps": Task(
        "MAWPS", (), ("MU-NLPC/Calc-mawps",), "validation", _completion("{question}", "{result}"), _mawps, length=128, **_TEXT
    ),
    "aqua": Task(
        "AQuA", (), ("deepmind/aqua_rat", "raw"), "test", _completion("{question} {options}", "{rationale} {correct}"), **_TEXT
    ),
    "e2e": Task(
        "E2E NLG", (), ("GEM/e2e_nlg",), "validation", _completion("{meaning_representation}", "{target}"),
        lambda data: prepare.e2e(data, validation=400), length=128, **_TEXT,
    ),
    "digits": Task(
        "written digits", tuple("0123456789"), read=lambda data: prepare.Corpus(*_written()), contributions=1_000, choosing=360,
        reporting=360, rank=4, targets=("q_proj", "v_proj", "fc1", "fc2"), steps=60, draws=128,
    ),
}  # fmt: skip
TWELVE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "gsm8k", "svamp", "mawps", "aqua")
"""The tasks of the published comparison; the others are long texts and a small one."""


def _written() -> tuple[Sequence[Record], Sequence[Record]]:
    from dptrain.demo.public import digits

    found = digits(validation=720)
    return found.contributed, found.validation


def corpus_of(task: Task, data: Path) -> prepare.Corpus:
    """Reads a task's examples from files where there are some, else from the hub."""
    if task.read is not None:
        return task.read(data)
    from datasets import load_dataset

    found = load_dataset(*task.hub)
    public = [task.row(row) for row in found[task.validation]]
    return prepare.Corpus([task.row(row) for row in found["train"]], public)


def ready(name: str, data: Path, model: str | None = None, *, targets: Sequence[str] = (), device: str = "cpu") -> Ready:
    """Reads a task's data and model, and makes rows of the examples.

    Args:
        model: a folder or a hub name; None for the small one at hand. targets: modules to adapt, in the place of the task's.
    """
    task = TASKS[name]
    corpus = corpus_of(task, data)
    records, public = prepare.some(corpus.records, task.contributions), corpus.validation
    reporting = public[task.choosing : task.choosing + task.reporting]
    half = task.choosing // 2
    parts = (records, public[:half], public[half : task.choosing], reporting)
    kind = _completions if not task.labels else _digits if name == "digits" else _tail if model is None else _classifier
    made = kind(task, name, model, targets or task.targets, parts, data)
    fresh, loss, measure = made.model, made.loss, made.measure
    if task.bf16:
        loss, measure = (_in_half(function, device) for function in (loss, measure))

    def on_device() -> nn.Module:
        return fresh().to(device)

    sizes = {"contributions": len(records), "steps": task.steps, "draws": task.draws, "rank": task.rank}
    return Ready(
        name, on_device, made.rows, made.public, made.choosing, made.reporting, loss, measure, made.sample,
        {"model": str(model or made.name), **sizes},
    )  # fmt: skip


def _in_half(function: Loss, device: str) -> Loss:
    def under(model: nn.Module, rows: Rows) -> torch.Tensor:
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            return function(model, rows).float()

    return under


def adapted(model: nn.Module, task: Task, targets: Sequence[str], *, head: bool = False) -> nn.Module:
    """Adds LoRA to the modules of these names, and frees the head where that is new."""
    from peft import LoraConfig, inject_adapter_in_model

    model.requires_grad_(False)
    lora = LoraConfig(r=task.rank, lora_alpha=task.rank, target_modules=list(targets), bias="none")
    model = inject_adapter_in_model(lora, model)
    for name in HEADS if head else ():
        if isinstance(found := getattr(model, name, None), nn.Linear):
            found.requires_grad_(True)
    return model.eval()


def _entropies(model: nn.Module, rows: Rows) -> torch.Tensor:
    given = {key: value for key, value in rows.items() if key != "labels"}
    return nn.functional.cross_entropy(model(**given).logits.float(), rows["labels"], reduction="none")


@torch.no_grad()
def _hits(model: nn.Module, rows: Rows) -> torch.Tensor:
    given = {key: value for key, value in rows.items() if key != "labels"}
    return (model(**given).logits.argmax(-1) == rows["labels"]).float()


def _fit_head(model: nn.Module, public: Rows, steps: int = 100) -> None:
    """Trains the classifier on public examples, by Adam on all of them."""
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    seen: list[torch.Tensor] = []
    hook = model.classifier.register_forward_hook(lambda module, given, out: seen.append(given[0].detach()))
    with torch.no_grad():
        _entropies(model, public)
    hook.remove()
    optimizer = torch.optim.Adam(model.classifier.parameters(), lr=1e-2, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model.classifier(seen[0]), public["labels"]).backward()
        optimizer.step()


class Tail(nn.Module):
    """The last layers of a BERT encoder with its mean-pooling classifier, on the states that the frozen layers below gave."""

    def __init__(self, whole: nn.Module, layers: int) -> None:
        super().__init__()
        self.layers, self.classifier = whole.encoder.encoder.layer[-layers:], whole.classifier

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> Any:
        from transformers.modeling_outputs import SequenceClassifierOutput

        states = states.float()
        shut = (1.0 - mask[:, None, None, :].to(states.dtype)) * torch.finfo(states.dtype).min
        for layer in self.layers:
            states = layer(states, shut.expand(-1, 1, states.shape[1], -1))
        weights = mask[:, :, None].to(states.dtype)
        return SequenceClassifierOutput(logits=self.classifier((states * weights).sum(1) / weights.sum(1)))


Parts = tuple[Sequence[Record], Sequence[Record], Sequence[Record], Sequence[Record]]
"""Contributions, public examples, those to choose with and those to report on."""


def _tail(task: Task, name: str, model: str | None, targets: Sequence[str], parts: Parts, data: Path) -> Ready:
    from dptrain.tasks import text_classification
    from dptrain.tasks.runconfig import TextModel

    whole, collate = text_classification.build(TextModel(labels=task.labels, max_length=task.length, pooling="mean"))
    whole.eval()
    whole.encoder.set_attn_implementation("eager")  # on a CPU the fused one is slow backward in half precision
    layers = task.layers or len(whole.encoder.encoder.layer)
    below = copy.deepcopy(whole.encoder)
    below.encoder.layer = below.encoder.layer[: len(below.encoder.layer) - layers]

    @torch.no_grad()
    def rows_of(records: Sequence[Record]) -> Rows:
        found: dict[str, list[torch.Tensor]] = {"states": [], "mask": [], "labels": []}
        for begin in range(0, len(records), 256):
            rows = collate(records[begin : begin + 256])
            states = below(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).last_hidden_state
            for key, value in (("states", states.half()), ("mask", rows["attention_mask"]), ("labels", rows["labels"])):
                found[key].append(value)
        return {key: torch.cat(values) for key, values in found.items()}

    fresh = Tail(whole, layers)
    rows = [rows_of(part) for part in parts]
    _fit_head(fresh, rows[1])
    return Ready("MiniLM-L6", lambda: adapted(copy.deepcopy(fresh), task, targets), *rows, _entropies, _hits)


def _classifier(task: Task, name: str, model: str | None, targets: Sequence[str], parts: Parts, data: Path) -> Ready:
    from dptrain.tasks import text_classification
    from dptrain.tasks.runconfig import TextModel

    named = {"path": Path(str(model))} if Path(str(model)).is_dir() else {"name": str(model)}
    whole, collate = text_classification.build(TextModel(labels=task.labels, max_length=task.length, **named))
    rows = [dict(collate(part)) for part in parts]
    whole = whole.float()
    return Ready(str(model), lambda: adapted(copy.deepcopy(whole), task, targets, head=True), *rows, _entropies, _hits)


def _digits(task: Task, name: str, model: str | None, targets: Sequence[str], parts: Parts, data: Path) -> Ready:
    from dataclasses import replace

    from dptrain.demo.public import SIZES, public_model
    from dptrain.tasks import image_classification

    with tempfile.TemporaryDirectory() as folder:
        path = Path(model) if model is not None else public_model(Path(folder) / "model")
        whole, collate = image_classification.build(replace(SIZES, path=path))
    rows = [dict(collate(part)) for part in parts]
    return Ready("demo ViT", lambda: adapted(copy.deepcopy(whole), task, targets), *rows, _entropies, _hits)


def _completions(task: Task, name: str, model: str | None, targets: Sequence[str], parts: Parts, data: Path) -> Ready:
    with tempfile.TemporaryDirectory() as folder:
        if model is None:
            stories.make(data / "stories260K", Path(folder))
        source = folder if model is None else model
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(source)
        whole = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    collate = texts.Rows(tokenizer, task.length)
    rows = [collate([dict(record) for record in part]) for part in parts]

    def loss(model: nn.Module, rows: Rows) -> torch.Tensor:
        outputs = model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"])
        return losses_of(model, outputs, rows["labels"])

    def fresh() -> nn.Module:
        return adapted(copy.deepcopy(whole), task, targets)

    def sample(model: nn.Module) -> str:
        return texts.written(model, collate, parts[3][0]["prompt"])

    return Ready("stories260K", fresh, *rows, loss, lambda model, rows: -loss(model, rows), sample)
