"""The table of what several processes train: every row is a setting, with the same result on two as on one, or refused by name.

python -m tests.distributed.table_rows    writes the table into docs/ranks.md
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from dptrain.planning.changes import noise_lines
from ledger.accountants.correlated import Banded, Dense, rule_of
from tests.distributed import table_models as models
from tests.distributed import table_runs as runs
from tests.distributed.table_runs import Subject, Told
from tests.worlds.training import CLASSES, World, make_world

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "ranks.md"
HEADING, NEXT = "## What two processes train\n", "## When a process ends\n"
END: Final = "<!-- end of what is made -->"

CERTIFIED, FAST = LEVELS = ("certified", "fast")

BERT: Final = partial(models.family, "bert")
ADAMW: Final = partial(torch.optim.AdamW, lr=1e-2)
SGD: Final = partial(torch.optim.SGD, lr=0.1, momentum=0.9)

TOLERANCE: Final = 1e-5
"""At `fast`: how far two runs may end from each other, in the Euclidean norm, as a part of the way that parameters went. The
largest that was seen is 1.1e-6, of a model of sound."""


@dataclass(frozen=True)
class Row:
    """One setting at one level of exactness.

    Attributes:
        group: heading in the table. name: of the setting. level: exactness of its run.
        subject: makes the model. policy: text before the classes. classes: of the policy. world: of `make_world`.
        beside: what is laid beside the world. opening, preparing: of `open` and `prepare`. optimizer: of parameters.
        way: how the run goes. change: what a user does to the model. wrap: in which wrapper it is. around: in which its forward
            runs. under: in which the whole run goes. loss: of `PrivateTraining.loss`; None for a plain one. clip: of
            `clip_blocks_`. scheduled: whether a scheduler sets learning rates. accelerated: whether accelerate prepares all.
            own: whether `PrivateTraining.own` opens it.
        fixed: whether keys are those of tests, so that runs can be compared bit by bit.
        rounding: whether floats are added in the order of ranks at `certified` too.
        refused: code of the refusal, and a phrase of it that says what to do.
        quick: number of the launch, of those that run with every change; 0 for the others.
    """

    group: str
    name: str
    level: str = CERTIFIED
    subject: Callable[[], Subject] = BERT
    policy: str = ""
    classes: str = CLASSES
    world: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    beside: Callable[[World], None] | None = None
    opening: Mapping[str, Any] = field(default_factory=dict)
    preparing: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Callable[[Any], torch.optim.Optimizer] = ADAMW
    way: Callable[["Row", Path, int], Told] = runs.to_the_end
    change: Callable[[nn.Module], object] | None = None
    wrap: Callable[[nn.Module], nn.Module] | None = None
    around: Callable[[], AbstractContextManager[Any]] | None = None
    under: tuple[Callable[[], AbstractContextManager[Any]], ...] = ()
    loss: Mapping[str, Any] | None = None
    clip: float | None = None
    scheduled: bool = False
    accelerated: bool = False
    own: bool = False
    fixed: bool = True
    rounding: bool = False
    refused: tuple[str, str] | None = None
    quick: int = 0

    @property
    def key(self) -> str:
        return f"{self.group}: {self.name}, {self.level}"

    def make(self, root: Path) -> None:
        """Writes the world of the row."""
        given = {"per_class": 4, "steps": 3, "rate": "0.6"} | dict(self.world() if callable(self.world) else self.world)
        text = f'exactness = "{self.level}"\n{self.policy}'
        world = make_world(root, classes=self.classes, policy_extra=text, **given)
        if self.beside is not None:
            self.beside(world)


def at(level: str, group: str, name: str, **options: Any) -> Row:
    """A row; at `fast` under SGD, which makes no more of a difference than it is."""
    plain = {"optimizer": SGD} if level == FAST else {}
    return Row(group, name, level, **(plain | options))


def both(group: str, name: str, *, quick: tuple[int, int] = (0, 0), **options: Any) -> tuple[Row, Row]:
    """A row at either level. ``quick``: as for `Row`, of each."""
    first, second = (at(level, group, name, quick=turn, **options) for level, turn in zip(LEVELS, quick, strict=True))
    return first, second


certified, fast = partial(at, CERTIFIED), partial(at, FAST)

TWO = """
[[class]]
name = "clinic"
clip_norm = 0.5
noise_multiplier = 1.5
sampling_rate = {q}
depth = {{ FIRST }}
[[class]]
name = "lab"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ SECOND }}
"""


def two(first: str, second: str = "from = 0.0, to = 1.0") -> str:
    """Two classes of these depths."""
    return TWO.replace("FIRST", first).replace("SECOND", second)


def noise(family: str, accountant: str, *more: str) -> str:
    return "\n".join((f'accountant = "{accountant}"', "[noise]", f'family = "{family}"', *more, ""))


BOUNDS = "clip_norm = 1.0\nnoise_multiplier = 1.0"
PUBLIC = two("from = 0.67, to = 1.0").replace(f'"lab"\n{BOUNDS}', '"lab"\npublic = true')
LENGTHS = two("from = 0.0, to = 1.0").replace("to = 1.0 }}", "to = 1.0 }}\npublic_lengths = [2, 4, 8]", 1)
TOWERS = two('set = ["vision_model.*", "visual_projection.*"]', 'set = ["text_*"]')
NAMES = two('set = ["*.layer.0.*", "*.layer.2.*"]', 'set = ["bert.embeddings.*", "classifier.*"]')
ADAPTERS = two('adapter = "clinic-a"', 'adapter = "lab-b"')
PREFIXES = two('adapter = "default"', 'adapter = "default", head = true')
HEADS = two("from = 0.0, to = 1.0, heads = [0, 1]", "from = 0.34, to = 1.0, heads = [2]")
EXPERTS = two("from = 0.0, to = 1.0, experts = [0, 3]")
EVERYTHING = two("from = 0.0, to = 1.0")

OCCURRENCES = 'disclosure = "occurrences_public"\n'
SPLIT = 'injection = "per_microbatch"\nmicrobatches = 5'
PHASES = "[[noise.phase]]\nfrom_step = 2\nscale = 2\n[[noise.phase]]\nfrom_step = 3\nscale = 1.5\n"
BUDGETS = "[noise.budgets]\nembeddings = 0.3\nlayers = 1.0\nhead = 2.0\n"
EXAMPLES: Final[dict[str, Any]] = {"policy": "[gate]\nmax_examples = 5\n", "world": {"record": models.several}}
SPREAD: Final[dict[str, Any]] = EXAMPLES | {"opening": {"microbatch_rows": 2}}
TURNS: Final[dict[str, Any]] = {"world": {"rate": '"1/2"'}}
CYCLIC = f'{OCCURRENCES}sampling = {{ order = "cyclic" }}\n'
ONE = 1 << 20
CORRELATED: Final = {
    "banded_toeplitz": f"{{ bands = 3, coefficients = [{ONE}, 524288, 393216] }}",
    "banded_inverse": f"{{ bands = 3, coefficients = [{ONE}, -524288, -131072] }}",
    "buffered_toeplitz": f"{{ decays = [{1 << 39}], scales = [{1 << 38}] }}",
}
"""Parameters of noise that is correlated between steps, by its family."""
COMPILED: Final[dict[str, Any]] = {"loss": {"compiled": True}, "under": (models.as_traced,)}

FAMILIES = ("bert", "gpt2_tied", "gpt2_untied", "llama", "vit", "bert_lora", "gpt2_lora")
KINDS = {
    "text encoder": "BERT", "language model": "GPT-2", "state space or linear attention": "Mamba",
    "encoder and decoder": "T5", "other heads": "BERT, questions", "vision": "ViT",
    "segmentation, depth, detection": "DPT depth", "sound": "wav2vec 2.0 CTC, without masking and layer drop",
    "several kinds of input": "CLIP, text and picture", "time series and tables": "PatchTSMixer forecast",
    "torch itself": "nn.LSTM, two layers with dropout", "adapters of peft": "LoRA with dropout over Llama",
}  # fmt: skip
"""One of every kind of `tests.zoo`, but for mixtures of experts."""


def _kind(kind: str, name: str) -> dict[str, Any]:
    return {"name": kind, "subject": partial(models.zoo, name), "world": partial(models.zoo_world, name)}


PROFILE, FAMILY, KIND, NOISE, DRAWS, BUDGET, LOOP, DATA, LOSS, WRAP = (
    "depth profiles", "families of models", "kinds of models", "noise", "draws", "budgets", "in the loop", "contributions",
    "losses", "models and wrappers",
)  # fmt: skip


def _profiles() -> Iterator[Row]:
    yield from both(PROFILE, "contiguous band", quick=(0, 1))
    yield from both(PROFILE, "layers by number", classes=two("layers = [0, 2]", "layers = [1], head = true"))
    yield from both(PROFILE, "set of names", classes=NAMES)
    yield from both(PROFILE, "towers", subject=partial(models.profiled, "two_towers"), classes=TOWERS, quick=(2, 0))
    yield from both(PROFILE, "adapter", subject=partial(models.profiled, "two_adapters"), classes=ADAPTERS)
    yield from both(PROFILE, **(_kind("prefix tuning", "Prefix tuning over BERT") | {"classes": PREFIXES}))
    yield from both(PROFILE, "heads", subject=partial(models.masked, "biased_llama"), classes=HEADS, quick=(2, 0))
    experts = {"subject": partial(models.masked, "mixture"), "classes": EXPERTS}
    yield fast(PROFILE, "experts", **experts)
    yield certified(PROFILE, "experts", refused=("EXPERTS_CERTIFIED", 'exactness = "fast"'), **experts)


def _models() -> Iterator[Row]:
    for name in FAMILIES:
        yield from both(FAMILY, name, subject=partial(models.family, name))
    for kind, name in KINDS.items():
        yield from both(KIND, **_kind(kind, name))
    mixture = _kind("mixture of experts", "Mixtral")
    yield fast(KIND, **mixture)
    yield certified(KIND, refused=("EXPERTS_CERTIFIED", 'exactness = "fast"'), **mixture)


def _noise() -> Iterator[Row]:
    yield from both(NOISE, "gaussian", policy=noise("gaussian", "pld"))
    yield certified(NOISE, "laplace", policy=noise("laplace", "pld"))
    yield certified(NOISE, "discrete_gaussian", policy=noise("discrete_gaussian", "rdp"))
    yield certified(NOISE, "skellam", policy=noise("skellam", "rdp"))
    yield certified(NOISE, "skellam, per_microbatch", policy=noise("skellam", "rdp", SPLIT), quick=2)
    for family, accountant in (("laplace", "pld"), ("discrete_gaussian", "rdp"), ("skellam", "rdp")):
        yield fast(NOISE, family, policy=noise(family, accountant), refused=("NOT_IN_THIS_BUILD", "'certified'"))
    yield from both(NOISE, "per_microbatch", policy=f"[noise]\n{SPLIT}\n")
    per_sample = OCCURRENCES + 'noise = { injection = "per_sample" }'
    yield fast(NOISE, "per_sample", policy=per_sample, quick=2)
    yield certified(NOISE, "per_sample", policy=per_sample, refused=("NOT_IN_THIS_BUILD", "scheduled"))
    yield from both(NOISE, "phases", policy=PHASES)
    for family, parameters in CORRELATED.items():
        words = f'{CYCLIC}noise = {{ family = "{family}", parameters = {parameters} }}\n'
        told = {"way": runs.with_a_break, "world": {"rate": '"1/2"', "steps": 4}}
        yield from both(NOISE, f"{family}, with resume", policy=words, **told)
    for rule in (rule_of(Banded([[1.0, 0.5 + 0.1 * j] for j in range(4)])), rule_of(Dense(np.tril(np.full((4, 4), 0.5))))):
        words = f"{CYCLIC}noise = {{ {', '.join(noise_lines(rule))} }}\n"
        told = {"way": runs.with_a_break, "world": {"rate": '"1/2"', "steps": 4, "coefficients": rule.coefficients}}
        yield from both(NOISE, f"{rule.name}, with resume", policy=words, **told)
    secret = 'disclosure = "secret_draws"\nsampling = { order = "cyclic_poisson", parameters = { groups = 3 } }\n'
    words = f'{secret}noise = {{ family = "banded_toeplitz", parameters = {CORRELATED["banded_toeplitz"]} }}\n'
    told = {"way": runs.with_a_break, "world": {"steps": 4, "rate": "0.9"}}
    yield from both(NOISE, "banded_toeplitz, cyclic_poisson, with resume", policy=words, **told)
    yield fast(NOISE, "not by address", under=(models.unaddressed,), refused=("NOISE_RANKS", "addressed = True"))


def _draws() -> Iterator[Row]:
    yield from both(DRAWS, "secret_poisson")
    yield from both(DRAWS, "occurrences_public", policy=OCCURRENCES)
    for order in ("cyclic", "shuffled"):
        yield from both(DRAWS, order, policy=f'{OCCURRENCES}[sampling]\norder = "{order}"\n', **TURNS)
    yield from both(DRAWS, "nobody drawn", world={"rate": "0.02", "steps": 6})
    yield from both(DRAWS, "fewer drawn than processes", world={"rate": "0.1", "steps": 6})
    yield from both(DRAWS, "more drawn than expected", under=(models.few_expected,))


def _budgets() -> Iterator[Row]:
    yield from both(BUDGET, "shares of blocks", policy=BUDGETS, quick=(0, 2))
    capped = {"template_extra": {"max_occurrences": 3}, "rate": "0.9"}
    yield from both(BUDGET, "max_occurrences, with resume", world=capped, way=runs.with_a_break, quick=(2, 0))
    limit = CLASSES + "max_epsilon_total = "
    yield from both(BUDGET, "max_epsilon_total over two runs", classes=f"{limit}100\n", way=runs.twice, fixed=False)
    out = ("BUDGET", "leave the contribution out")
    yield fast(BUDGET, "max_epsilon_total that a run could pass", classes=f"{limit}1\n", refused=out)
    yield from both(BUDGET, "withdrawal", way=runs.withdrawn, world={"steps": 6}, beside=models.withdrawals)


def _loop() -> Iterator[Row]:
    yield from both(LOOP, "gradient checkpointing", change=models.checkpointed, quick=(2, 0))
    without = ("REENTRANT_CHECKPOINT", "use_reentrant=False")
    yield fast(LOOP, "gradient checkpointing that is reentrant", change=models.REENTRANT, refused=without)
    yield from both(LOOP, "forward hooks", change=models.hooked, wrap=models.in_hooked_wrapper)
    yield from both(LOOP, "autocast to bfloat16", around=models.in_half, quick=(0, 2))
    yield from both(LOOP, "dropout", subject=models.dropping)
    yield from both(LOOP, "states=[scheduler], with resume", scheduled=True, way=runs.with_a_break)
    yield from both(LOOP, "scheduler prepared by accelerate", accelerated=True, scheduled=True, quick=(0, 2))
    alike = ("RANKS_DIFFER", "number of the step alone")
    yield fast(LOOP, "learning rate by the losses of a process", way=runs.apart, refused=alike)
    yield from both(LOOP, "metrics", preparing={"metrics": "metrics.jsonl"}, way=runs.measured, policy=OCCURRENCES)
    yield from both(LOOP, "clip_blocks_", clip=0.5, quick=(2, 0))
    yield from both(LOOP, "save, epsilon, evaluation in the first process alone", way=runs.led)
    yield from both(LOOP, "dry_run", preparing={"dry_run": True}, way=runs.rehearsed)
    yield from both(LOOP, "export", way=runs.exported, fixed=False, quick=(0, 2))
    yield fast(LOOP, "own", own=True, fixed=False)


def _data() -> Iterator[Row]:
    yield from both(DATA, "public class", classes=PUBLIC, rounding=True, quick=(1, 0))
    many = {"per_class": 12, "rate": "1"}
    yield from both(DATA, "public class, float64", classes=PUBLIC, change=nn.Module.double, world=many, rounding=True)
    yield from both(DATA, "several examples", **EXAMPLES)
    yield from both(DATA, "several examples, spread over microbatches", **SPREAD, quick=(0, 2))
    yield from both(DATA, "several examples, decoded by workers", **(EXAMPLES | {"opening": {"workers": 1}}), quick=(2, 0))
    yield from both(DATA, "public lengths", subject=models.reader, classes=LENGTHS, world=models.lengthy, quick=(2, 0))


def _losses() -> Iterator[Row]:
    yield from both(LOSS, "that raise for one contribution", subject=models.raising, loss={}, world={"rate": "1"})
    yield from both(LOSS, "compiled", **COMPILED, quick=(0, 1))
    yield from both(LOSS, "compiled, spread", **(SPREAD | COMPILED))
    yield from both(LOSS, "compiled, beside a public class", classes=PUBLIC, rounding=True, **COMPILED)
    yield from both(LOSS, "compiled to machine code", subject=models.small, classes=EVERYTHING, loss={"compiled": True})


def _wrappers() -> Iterator[Row]:
    yield from both(WRAP, "accelerate", accelerated=True)
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": True, "broadcast_buffers": False}
    yield from both(WRAP, "options of DistributedDataParallel", wrap=partial(models.in_wrapper, **options))
    for dtype in (torch.bfloat16, torch.float64):
        yield from both(WRAP, f"{dtype} weights".removeprefix("torch."), change=partial(nn.Module.to, dtype=dtype))
    yield from both(WRAP, "weights of two types", subject=models.of_two_types, classes=EVERYTHING)
    yield fast(WRAP, "no wrapper", wrap=models.bare, refused=("NOT_WRAPPED", "accelerator.prepare(model, optimizer)"))
    yield fast(WRAP, "DataParallel", wrap=nn.DataParallel, refused=("WRAPPER", "use DistributedDataParallel"))
    static = partial(models.in_wrapper, static_graph=True)
    yield fast(WRAP, "static_graph=True", wrap=static, refused=("STATIC_GRAPH", "leave it out"))
    for name, wrap in (("around", models.compiled_wrapper), ("in the place of", models.wrapper_compiled_in_place)):
        yield fast(WRAP, f"torch.compile {name} the wrapper", wrap=wrap, refused=("COMPILED_MODEL", "the module itself"))
    sharded = ("OPTIMIZER_SHARDED", "use the optimizer inside it")
    yield fast(WRAP, "ZeroRedundancyOptimizer", optimizer=models.sharded_optimizer, refused=sharded)


ROWS: Final = (
    *_profiles(), *_models(), *_noise(), *_draws(), *_budgets(), *_loop(), *_data(), *_losses(), *_wrappers()
)  # fmt: skip
BY_KEY: Final = {row.key: row for row in ROWS}


def with_fault(row: Row, fault: str) -> Row:
    """The row in which a fault was built in."""
    return replace(row, name=f"{row.name} with the fault {fault}", under=(models.FAULTS[fault],), quick=0)


FAULTY: Final = {
    fault: with_fault(BY_KEY[key], fault)
    for fault, key in (
        ("losing", "depth profiles: contiguous band, fast"),
        ("noise_by_rank", "depth profiles: contiguous band, fast"),
        ("scheduled_by_processes", "in the loop: scheduler prepared by accelerate, fast"),
    )
}
"""Rows that must not pass, by the fault."""


def table() -> str:
    """The table of the page: a line per group, with what runs at both levels, at one alone, and what is refused."""
    lines = ["| | at either level | at one | refused by name |", "|---|---|---|---|"]
    for group in dict.fromkeys(row.group for row in ROWS):
        own = [row for row in ROWS if row.group == group]
        levels: dict[str, list[str]] = {row.name: [] for row in own}
        for row in own:
            levels[row.name] += [] if row.refused else [row.level]
        either = "; ".join(name for name, found in levels.items() if len(found) == 2)
        one = "; ".join(f"{name} (`{found[0]}`)" for name, found in levels.items() if len(found) == 1)
        refused = "; ".join(
            f"{row.name}{f' at `{row.level}`' if levels[row.name] else ''} ({row.refused[0]})" for row in own if row.refused
        )
        lines.append(f"| {group} | {either} | {one} | {refused} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Returns the page with the table of these rows."""
    before, _, rest = text.partition(HEADING)
    section, _, after = rest.partition(NEXT)
    told, _, made = section.partition("| |")
    return before + HEADING + told + table() + "\n" + made[made.index(END) :] + NEXT + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
