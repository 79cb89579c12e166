"""Reads a training script without running it: constructs that a private run refuses or does otherwise, by line.

Names are followed through imports of the file itself. What a script builds from text, takes from a configuration file or
imports from modules beside it is not seen, and neither is what its model does: `dptrain.checks.model` tells that.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dptrain.checks.verdict import CheckedScript, Effect, Finding, NotChecked
from dptrain.integrations.coupled import CAUSES

REFUSED, WEAKENED, CHANGED = Effect

UNSEEN = (
    "the script was read and not run: modules beside it, configuration files, names made from text and the model itself are "
    "not seen; for the model there is `dptrain check MODEL`"
)

_Row = tuple[Effect, str, str, str]
"""Effect, code, sentence, repair."""

_BATCH_NORM: _Row = (
    REFUSED, "BATCH_NORM", "batch normalisation lets every contribution into the gradient of every other",
    "model = dptrain.fix(model)  # GroupNorm in its place; before the optimizer is made",
)  # fmt: skip
_REPLICAS = "model = DistributedDataParallel(model)  # before private.prepare(model, ...); one process a device, by torchrun"
_SUMMED: _Row = (REFUSED, "WRAPPER", "the wrapper sums gradients before they are clipped", _REPLICAS)
_OTHER_ENGINE: _Row = (
    REFUSED, "ENGINE", "DeepSpeed, Megatron-LM and FSDP of version 1 reduce, shard or scale gradients before they are clipped",
    _REPLICAS,
)  # fmt: skip
_SPLIT: _Row = (
    REFUSED, "ENGINE", "one contribution lies on several ranks, none of which knows the norm of its gradient", _REPLICAS,
)  # fmt: skip
_LATE: _Row = (
    REFUSED, "NOT_WRAPPED", "the wrapper of several processes comes before prepare(); behind it, it averages raw gradients",
    "model, optimizer = accelerator.prepare(model, optimizer)  # and then private.prepare(model, optimizer, ...)",
)  # fmt: skip
_STATIC: _Row = (
    REFUSED, "STATIC_GRAPH", "for a static graph torch reduces gradients on its own", "static_graph=False",
)  # fmt: skip
_SCALER: _Row = (
    REFUSED, "LOSS_SCALER", "a loss scaler skips steps and shares scales by looking at private gradients",
    'bfloat16: mixed_precision="bf16", bf16=True, or torch.autocast(dtype=torch.bfloat16)',
)  # fmt: skip
_COMPILED: _Row = (
    REFUSED, "COMPILED_MODEL", "what a compiled graph keeps of the routing hooks is not checked",
    "loss = private.loss(per_example_loss, compiled=True)",
)  # fmt: skip
_IN_BATCH: _Row = (
    REFUSED, "CROSS_SAMPLE_GRADIENT", "the loss compares the examples of a batch, so that one moves the gradients of others",
    "a loss of its own example alone: negatives from the record itself, a pair by itself",
)  # fmt: skip
_PADDED: _Row = (
    REFUSED, "PADDING", "padding to the longest of a batch lets one contribution shape the rows of others",
    'one length for all: padding="max_length", max_length=N, truncation=True; PrivateTrainer(max_length=N)',
)  # fmt: skip
_ENGINE: _Row = (
    REFUSED, "OPACUS", "Opacus and a private run cannot both clip and add noise",
    'private = PrivateTraining.own(dataset, target_epsilon=E, epochs=N, batch_size=B, directory="run"); '
    "model, optimizer, steps = private.prepare(model, optimizer, collate)",
)  # fmt: skip
_PRECISION: _Row = (
    REFUSED, "MATMUL_PRECISION", "float32 products at less than full precision make clip norms wrong by more than the margin",
    'torch.set_float32_matmul_precision("highest")',
)  # fmt: skip
_SPECTRAL: _Row = (
    REFUSED, "SPECTRAL_NORM", "the power iteration changes in every forward, and later contributions read it",
    "model = dptrain.fix(model)",
)  # fmt: skip
_SEARCHED: _Row = (
    REFUSED, "SEARCH", "every trial trains on the same contributions, and what is found follows from all of them",
    "search on public data, or one run per trial with earlier=, all of which count",
)  # fmt: skip
_CLIPPED: _Row = (
    WEAKENED, "ISOLATION", "one norm over all gradients lets a contribution move blocks that its class may not touch",
    "private.clip_blocks_(max_norm)",
)  # fmt: skip
_CLIPPED_EACH: _Row = (CHANGED, "ISOLATION", "clips what is released, entry by entry", "private.clip_blocks_(max_norm)")
_EVALUATED: _Row = (
    WEAKENED, "EVALUATION", "a metric on data of contributions carries no noise, and neither does a choice made by it",
    "public data that nobody contributed",
)  # fmt: skip
_LOGGED: _Row = (
    WEAKENED, "LOGGED", "the loss of private rows leaves the run without noise",
    "print(private.epsilon()); log losses on public data",
)  # fmt: skip
_STEERED: _Row = (
    WEAKENED, "LOGGED", "a schedule that follows the loss of private rows tells of them without noise",
    "a schedule that counts steps, or one that follows a loss on public data",
)  # fmt: skip
_TABLE_WRITTEN: _Row = (
    REFUSED, "EMBEDDING_OPTIONS", "with max_norm a forward writes the table that later contributions read", "max_norm=None",
)  # fmt: skip
_LOADER: _Row = (
    CHANGED, "STEPS_IN_ORDER", "a run draws its own batches: each contribution with a fixed probability, not in turns",
    "for step in steps: ...  # and collate_fn goes to private.prepare(model, optimizer, collate)",
)  # fmt: skip
_MICROBATCHED: _Row = (
    CHANGED, "MICROBATCHES", "a logical step sums over microbatches by itself",
    "for rows in step: ...  # PrivateTraining.own(..., microbatches=Microbatches(N))",
)  # fmt: skip

CALLS: Mapping[str, _Row] = {
    **{f"torch.nn.BatchNorm{n}d": _BATCH_NORM for n in (1, 2, 3)},
    **{f"torch.nn.LazyBatchNorm{n}d": _BATCH_NORM for n in (1, 2, 3)},
    "torch.nn.SyncBatchNorm": _BATCH_NORM,
    "torch.optim.LBFGS": (
        REFUSED, "CLOSURE_OPTIMIZER", "LBFGS evaluates gradients inside step()",
        "torch.optim.AdamW(model.parameters(), lr=...)",
    ),
    "torch.optim.SparseAdam": (
        REFUSED, "SPARSE_OPTIMIZER", "SparseAdam takes sparse gradients only, and noise is in every coordinate",
        "torch.optim.Adam(model.parameters(), lr=...)",
    ),
    "torch.distributed.optim.ZeroRedundancyOptimizer": (
        REFUSED, "OPTIMIZER_SHARDED", "each rank keeps a part of the optimizer's state, which no checkpoint of one rank holds",
        "torch.optim.AdamW(model.parameters(), lr=...)  # or fully_shard(model), which shards its state too",
    ),
    "torch.nn.utils.clip_grad_norm_": _CLIPPED,
    "torch.nn.utils.clip_grad_value_": _CLIPPED_EACH,
    "torch.nn.utils.spectral_norm": _SPECTRAL,
    "torch.nn.utils.parametrizations.spectral_norm": _SPECTRAL,
    **dict.fromkeys(("torch.cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.GradScaler"), _SCALER),
    "torch.compile": _COMPILED,
    **dict.fromkeys(("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"), _SUMMED),
    "torch.distributed.fsdp.FullyShardedDataParallel": _SUMMED,
    "torch.utils.data.distributed.DistributedSampler": _LOADER,
    "torch.utils.data.DistributedSampler": _LOADER,
    **dict.fromkeys(
        ("deepspeed.initialize", "accelerate.DeepSpeedPlugin", "accelerate.utils.DeepSpeedPlugin",
         "accelerate.utils.MegatronLMPlugin"), _OTHER_ENGINE,
    ),
    **dict.fromkeys(
        ("torch.distributed.tensor.parallel.parallelize_module", "torch.distributed.pipelining.pipeline",
         "torch.distributed.pipelining.PipelineStage", "accelerate.prepare_pippy", "accelerate.inference.prepare_pippy"),
        _SPLIT,
    ),
    "transformers.DataCollatorWithPadding": _PADDED,
    "transformers.DataCollatorForSeq2Seq": _PADDED,
    "torch.nn.utils.rnn.pad_sequence": _PADDED,
    "opacus.PrivacyEngine": (
        CHANGED, "OPACUS", "a run does what the engine does", "from dptrain import PrivateTraining",
    ),
    "opacus.GradSampleModule": _ENGINE,
    "opacus.optimizers.DPOptimizer": _ENGINE,
    "opacus.data_loader.DPDataLoader": (
        CHANGED, "OPACUS", "a run draws its own batches", "for step in steps:  # each step is drawn as the policy says",
    ),
    "opacus.utils.batch_memory_manager.BatchMemoryManager": _MICROBATCHED,
    "opacus.validators.ModuleValidator.fix": (
        CHANGED, "OPACUS", "replaces modules for Opacus", "model = dptrain.fix(model)",
    ),
    "opacus.validators.ModuleValidator.validate": (
        CHANGED, "OPACUS", "says what Opacus takes", "print(dptrain.check(model))",
    ),
    "opacus.grad_sample.register_grad_sampler": (
        CHANGED, "OPACUS", "is a gradient rule of Opacus", "@dptrain.gradient_rule(Module)",
    ),
    **dict.fromkeys(
        ("sentence_transformers.losses.MultipleNegativesRankingLoss", "pytorch_metric_learning.losses.NTXentLoss",
         "pytorch_metric_learning.losses.SupConLoss", "open_clip.ClipLoss"), _IN_BATCH,
    ),
}  # fmt: skip
"""Calls by their full names."""

METHODS: Mapping[str, _Row] = {
    "clip_grad_norm_": _CLIPPED,
    "clip_grad_value_": _CLIPPED_EACH,
    "make_private": _ENGINE,
    "make_private_with_epsilon": _ENGINE,
    "get_epsilon": (CHANGED, "OPACUS", "is the epsilon of Opacus' accountant", "private.epsilon()"),
    "hyperparameter_search": _SEARCHED,
    "register_post_accumulate_grad_hook": (
        REFUSED, "GRADIENT_HOOK", "the hook acts on raw gradients and not on what is released",
        "change p.grad in place between the last microbatch and optimizer.step()",
    ),
    "accumulate": _MICROBATCHED,
    "evaluate": _EVALUATED,
}  # fmt: skip
"""Calls of a method of anything, where its full name is not known."""

WRAPPERS = frozenset(
    ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel",
     "torch.distributed.fsdp.fully_shard", "torch.distributed._composable.fsdp.fully_shard")
)  # fmt: skip
"""What a run takes around a model, put there before `prepare`."""

_OF_BATCH_NORM = (
    "resnet", "resnext", "wide_resnet", "densenet", "mobilenet", "efficientnet", "googlenet", "inception", "shufflenet",
    "mnasnet", "regnet", "vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn",
)  # fmt: skip
"""Beginnings of names of torchvision's models that normalise over the batch."""

_KEYWORDS: Mapping[tuple[str, object], _Row] = {
    ("fp16", True): _SCALER,
    ("mixed_precision", "fp16"): _SCALER,
    ("mixed_precision", "fp8"): _SCALER,
    ("torch_compile", True): _COMPILED,
    **dict.fromkeys((("static_graph", True), ("ddp_static_graph", True)), _STATIC),
    ("tp_plan", "auto"): _SPLIT,
    ("packing", True): (
        REFUSED, "PACKING", "packing puts several contributions into one row, which no bound on one of them holds for",
        "packing=False",
    ),
    ("padding_free", True): (
        REFUSED, "PACKING", "padding_free puts several contributions into one row, which no bound on one of them holds for",
        "padding_free=False",
    ),
    ("auto_find_batch_size", True): (
        REFUSED, "RETRIES", "the training would run again from its start, and steps that are charged stay charged",
        "per_device_train_batch_size=N",
    ),
    ("padding", True): _PADDED,
    ("padding", "longest"): _PADDED,
    ("track_running_stats", True): (
        REFUSED, "RUNNING_STATISTICS", "running statistics are written by one contribution and read by others",
        "track_running_stats=False",
    ),
    ("sparse", True): (REFUSED, "EMBEDDING_OPTIONS", "sparse gradients forbid dense noise", "sparse=False"),
    ("scale_grad_by_freq", True): (
        REFUSED, "EMBEDDING_OPTIONS", "scales a gradient by how often the batch has a word", "scale_grad_by_freq=False",
    ),
}  # fmt: skip
"""Arguments that are refused with this value, whatever is called with them."""

_SPLITS = frozenset(("tp_size", "cp_size", "sp_size"))
"""Sizes of `accelerate.ParallelismConfig` over which one contribution is split."""

_LOSSES = frozenset(
    ("CrossEntropyLoss", "NLLLoss", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss",
     "KLDivLoss", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
     "binary_cross_entropy_with_logits", "kl_div")
)  # fmt: skip
"""Losses of torch that average over the batch where nobody says otherwise."""

_TOLD_TO = frozenset(
    ("print", "log", "log_metrics", "add_scalar", "log_metric", "set_postfix", "info", "debug", "warning", "report")
)
"""Functions and methods that show or keep what they are given."""

_PRIVATE_TRAINERS = {
    "SFTTrainer": "PrivateSFTTrainer",
    "DPOTrainer": "PrivateDPOTrainer",
    "RewardTrainer": "PrivateRewardTrainer",
}


def read(path: Path) -> CheckedScript:
    """Reads a script, and says of each line that a private run would refuse, weaken or do otherwise what to write instead.

    Args:
        path: a file of Python; it is parsed, and nothing of it is run or imported.

    Raises:
        NotChecked: code SUBJECT, it cannot be read as Python.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError) as error:
        told = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise NotChecked("SUBJECT", f"{path} cannot be read as Python ({told}); give a script") from error
    reader = _Reader(path.name, tree)
    reader.visit(tree)
    found = dict.fromkeys(sorted(reader.found, key=lambda item: item[0]))
    return CheckedScript(str(path), tuple(finding for _, finding in found), (UNSEEN,), reader.private)


class _Reader(ast.NodeVisitor):
    """Walks over a program, follows names through its imports, and collects findings by line."""

    def __init__(self, name: str, tree: ast.AST) -> None:
        self.found: list[tuple[int, Finding]] = []
        self._name = name
        self._names: dict[str, str] = {}
        self._runs: set[str] = set()
        self._prepared: int | None = None
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    top = one.name.partition(".")[0]
                    self._names[one.asname or top] = one.name if one.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for one in node.names:
                    self._names[one.asname or one.name] = f"{node.module}.{one.name}"
        opened = ("PrivateTraining.own", "PrivateTraining.open", "PrivateTraining.one_owner")
        for target, call in _bound(tree):
            if self._full(call.func).endswith(opened):
                self._runs.add(target)
        prepared = (one.lineno for one in ast.walk(tree) if isinstance(one, ast.Call) and self._prepares(one))
        self._prepared = min(prepared, default=None)
        own_trainer = any(name.startswith("dptrain.integrations.") for name in self._names.values())
        self.private = bool(self._runs) or own_trainer
        lengths = (one for one in ast.walk(tree) if isinstance(one, ast.keyword) and one.arg == "max_length")
        self._one_length = own_trainer and any(lengths)  # the trainer pads before the collator does
        loops = [one for one in ast.walk(tree) if isinstance(one, ast.For)]
        self._trained_on = {name for loop in loops if _trains(loop) and (name := _loaded(loop.iter))} - {"range", "steps"}

    def visit_Call(self, node: ast.Call) -> None:
        full = self._full(node.func)
        last = full.rpartition(".")[2]
        self._by_name(node, full, last)
        self._by_arguments(node, full, last)
        if last == "backward":
            self._backward(node)
        elif last in _TOLD_TO and any(_names_a_loss(part) for part in (*node.args, *(word.value for word in node.keywords))):
            self._add(node, _LOGGED)
        elif last == "step" and any(_names_a_loss(part) for part in node.args):
            self._add(node, _STEERED)
        elif last == "DataLoader" and not self.private:
            self._add(node, _LOADER)
        elif _EVALUATES.search(last) and any(isinstance(one, ast.Name) and one.id in self._trained_on for one in node.args):
            self._add(node, _EVALUATED)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        if _loaded(node.iter) in self._trained_on and not _trains(node):
            self._add(node, _EVALUATED)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            self._trainer(base, self._full(base))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if self._full(target).endswith(".allow_tf32") and _value(node.value) is True:
                self._add(node, _PRECISION)
        self.generic_visit(node)

    # ------------------------------------------------------------------------------------------------------ what is called

    def _by_name(self, node: ast.Call, full: str, last: str) -> None:
        row = CALLS.get(_known(full)) or (METHODS.get(last) if isinstance(node.func, ast.Attribute) else None)
        if full.startswith("torchvision.models.") and last.startswith(_OF_BATCH_NORM):
            row = _BATCH_NORM
        if (row is _EVALUATED and self.private) or (row is _PADDED and self._one_length):
            row = None  # a private Trainer refuses data to evaluate on by their contents
        if row is not None:
            self._add(node, row)
        self._trainer(node.func, full)
        if last == "set_float32_matmul_precision" and node.args and _value(node.args[0]) != "highest":
            self._add(node, _PRECISION)
        if full in WRAPPERS and self._prepared is not None and node.lineno > self._prepared:
            self._add(node, _LATE)
        if last == "FullyShardedDataParallelPlugin" and _value(_keyword(node, "fsdp_version")) != 2:
            self._add(node, _OTHER_ENGINE)
        if last == "ParallelismConfig" and any(word.arg in _SPLITS and _value(word.value) != 1 for word in node.keywords):
            self._add(node, _SPLIT)
        if last == "autocast" and "float16" in self._dtype(node).split("."):
            self._add(node, _SCALER)
        if last == "register_hook" and "param" in ast.unparse(node.func).lower():
            self._add(node, METHODS["register_post_accumulate_grad_hook"])

    def _by_arguments(self, node: ast.Call, full: str, last: str) -> None:
        for word in node.keywords:
            value = _value(word.value)
            row = _KEYWORDS.get((word.arg or "", value)) if isinstance(value, bool | str) else None
            if row is _PADDED and self._one_length:
                row = None
            if row is not None and (word.arg != "sparse" or last in ("Embedding", "EmbeddingBag")):
                self._add(word.value, row)
            elif _other_engine(word.arg, word.value):
                self._add(word.value, _OTHER_ENGINE)
            elif word.arg == "max_norm" and last in ("Embedding", "EmbeddingBag") and value is not None:
                self._add(word.value, _TABLE_WRITTEN)
            elif word.arg == "gradient_accumulation_steps" and isinstance(value, int) and value > 1:
                self._add(word.value, _MICROBATCHED)
        if last in _LOSSES and full.startswith(("torch.", "F.")) and _value(_keyword(node, "reduction")) != "none":
            self._add(node, (
                REFUSED, "LOSS_SHAPE", f"{last} averages over the batch, and a run takes one loss per example",
                f'{last}(..., reduction="none")',
            ))  # fmt: skip
        train, evaluated = _keyword(node, "train_dataset"), _keyword(node, "eval_dataset")
        if train is not None and evaluated is not None and ast.dump(train) == ast.dump(evaluated):
            self._add(evaluated, (
                REFUSED, "EVALUATION", "the data to evaluate on are those of the run",
                "eval_dataset=public  # nobody's contribution",
            ))  # fmt: skip

    def _trainer(self, node: ast.expr, full: str) -> None:
        """Takes note of a Trainer of transformers or TRL, called or inherited from."""
        home, _, name = full.rpartition(".")
        if home.startswith("trl") and name in CAUSES:
            self._add(node, (REFUSED, "COUPLED_TRAINER", f"{name} has no private form: {CAUSES[name]}", "PrivateSFTTrainer, "
                             "PrivateRewardTrainer, or PrivateDPOTrainer on pairs that were sampled before"))  # fmt: skip
        elif home.startswith("trl") and name in _PRIVATE_TRAINERS:
            other = _PRIVATE_TRAINERS[name]
            self._add(node, (REFUSED, "OUTSIDE_BACKWARD", f"{name} runs its own backward pass over a whole batch",
                             f"from dptrain.integrations.trl import {other}; {other}(..., target_epsilon=E)"))  # fmt: skip
        elif home.partition(".")[0] in ("lightning", "pytorch_lightning") and name == "Trainer":
            self._add(node, (REFUSED, "OUTSIDE_BACKWARD", f"{name} runs its own backward pass over a whole batch",
                             "for step in steps: ...  # a loop of your own, or PrivateTrainer"))  # fmt: skip
        elif full in ("transformers.Trainer", "transformers.Seq2SeqTrainer", "transformers.trainer.Trainer"):
            repair = "from dptrain.integrations.transformers import PrivateTrainer; "
            repair += "PrivateTrainer(..., target_epsilon=E, max_length=N)"
            self._add(node, (REFUSED, "OUTSIDE_BACKWARD", f"{name} runs its own backward pass over a whole batch", repair))

    def _prepares(self, node: ast.Call) -> bool:
        """Tells whether a call binds a model to a private run."""
        owner = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "prepare" else None
        return isinstance(owner, ast.Name) and owner.id in self._runs

    def _backward(self, node: ast.Call) -> None:
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        of_a_run = isinstance(owner, ast.Name) and owner.id in self._runs
        takes_rows = len(node.args) == 2 and any(name.startswith("dptrain") for name in self._names.values())
        if owner is None or of_a_run or takes_rows:
            return
        how = "private.backward(losses, rows)  # losses of shape (B,), one per example: no mean(), no sum()"
        self._add(node, (REFUSED, "OUTSIDE_BACKWARD", "a backward pass of its own fills p.grad with raw gradients", how))

    # ------------------------------------------------------------------------------------------------------------- names

    def _full(self, node: ast.AST) -> str:
        """Returns the dotted name of an expression, with imports followed; of calls in between only what comes after."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            before = self._full(node.value)
            return f"{before}.{node.attr}" if before else node.attr
        return ""

    def _dtype(self, node: ast.Call) -> str:
        given = _keyword(node, "dtype")
        return "" if given is None else self._full(given)

    def _add(self, node: ast.expr | ast.stmt, row: _Row) -> None:
        effect, code, sentence, repair = row
        self.found.append((node.lineno, Finding(effect, code, f"{self._name}:{node.lineno}", sentence, repair)))


def _bound(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yields names with the call that they are bound to, by an assignment or a ``with``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            targets, value = [node.optional_vars], node.context_expr
        else:
            continue
        if isinstance(value, ast.Call):
            yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))


def _known(full: str) -> str:
    """Returns the name under which a thing stands in `CALLS`, where it is imported from deeper below or through an alias."""
    for begin, home in (("torch.nn.modules.batchnorm.", "torch.nn."), ("torch.nn.utils.clip_grad.", "torch.nn.utils."),
                        ("torch.optim.lbfgs.", "torch.optim."), ("opacus.privacy_engine.", "opacus."),
                        ("opacus.grad_sample.GradSampleModule", "opacus.GradSampleModule"),
                        ("opacus.grad_sample.grad_sample_module.", "opacus.")):  # fmt: skip
        if full.startswith(begin):
            return home + full.removeprefix(begin)
    return full


def _trains(loop: ast.For) -> bool:
    """Tells whether a loop runs a backward pass."""
    return any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in ast.walk(loop))


def _loaded(node: ast.expr) -> str:
    """Returns the name of what a loop reads, within ``enumerate`` or a progress bar too."""
    while isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    return node.id if isinstance(node, ast.Name) else ""


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((word.value for word in node.keywords if word.arg == name), None)


def _value(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _other_engine(name: str | None, node: ast.expr) -> bool:
    """Tells whether an argument chooses DeepSpeed, or FSDP of another version than 2."""
    if name == "fsdp_config":
        return _entry(node, "version", "fsdp_version") not in (None, 2)
    return name == "deepspeed" and _value(node) not in (None, False, "")


def _entry(node: ast.expr, *keys: str) -> object:
    """Returns what a dictionary that is written out has under one of these keys."""
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return next((_value(value) for key, value in pairs if _value(key) in keys), None)


def _names_a_loss(node: ast.AST) -> bool:
    """Tells whether an expression reads a variable or attribute that is called a loss, and not one of other data."""
    names = (one.id if isinstance(one, ast.Name) else one.attr for one in ast.walk(node) if isinstance(one, _NAMED))
    return any("loss" in name and not _ELSEWHERE.search(name) for name in names)


_NAMED = (ast.Name, ast.Attribute)
_ELSEWHERE = re.compile("val|eval|test|public")
_EVALUATES = re.compile("eval|valid|test|accuracy", re.IGNORECASE)
