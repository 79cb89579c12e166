"""The run file: model, data, optimizer and machine. Everything the guarantee rests on is in the signed policy instead.

A run file can make training fail, be slow or learn nothing; it cannot make it less private, because it has no key for a
bound, a rate, a noise multiplier, a depth or a number of steps. Relative paths start at the directory of the file.
"""

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from dptrain.errors import ConfigError
from ledger.errors import LedgerError
from ledger.storage.place import Place

if TYPE_CHECKING:
    from dptrain.engine.options import Metrics

Location = typing.NewType("Location", str)
"""Where a ledger lies: a path, or the URL of a database."""

POLICY_KEYS = frozenset(
    {
        "accountant", "adjacency", "class", "clip", "clip_norm", "delta", "depth", "disclosure", "epoch_steps", "epochs",
        "epsilon", "exactness", "floors", "gate", "max_epsilon_total", "max_examples", "max_grad_norm", "noise",
        "noise_multiplier", "normalizer", "redo_steps", "sampling_rate", "steps", "window_steps",
    }
)  # fmt: skip
"""Keys of a policy, and words for them; a run file that has one is refused with a sentence that says where it belongs."""


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """Says of any classifier where it lies, what it predicts and what of it is trained.

    Attributes:
        path: directory of a local model, instead of a name.
        labels: names of the classes to predict; label n of an example is the n-th of them.
        freeze: patterns of parameter names that are not trained.
        layers: name of the layer stack, if it is not found by structure.
    """

    path: Path | None = None
    labels: tuple[str, ...]
    freeze: tuple[str, ...] = ()
    layers: str | None = None

    def __post_init__(self) -> None:
        good = len(self.labels) >= 2 and len(set(self.labels)) == len(self.labels)
        _check("model.labels", list(self.labels), good, "two or more different names")


@dataclass(frozen=True, kw_only=True)
class TextModel(Classifier):
    """A sequence classifier.

    Attributes:
        name: ``minilm`` for the encoder that the ``minilm`` extra packages, or a hub id.
        max_length: tokens per example; shorter texts are padded and longer ones cut to exactly this length.
        evaluation_length: the same for public validation examples, whose length costs no training time; default
            ``max_length``.
        pooling: ``model`` for the classification head of the architecture, ``mean`` for a linear one on the mean of the token
            vectors, which fits encoders that were trained for sentence vectors.
        dropout: dropout of the encoder; private training does better without.
    """

    name: str = "minilm"
    labels: tuple[str, ...] = ("negative", "positive")
    max_length: int = 128
    evaluation_length: int | None = None
    pooling: Literal["model", "mean"] = "model"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("max_length", "evaluation_length"):
            tokens = getattr(self, key)
            _check(f"model.{key}", tokens, tokens is None or 2 <= tokens <= 65536, "2 to 65536 tokens")
        _check("model.dropout", self.dropout, 0.0 <= self.dropout < 1.0, "0 up to but not including 1")


@dataclass(frozen=True, kw_only=True)
class ImageModel(Classifier):
    """A vision transformer, pretrained by ``name`` or ``path``, or without either a fresh ViT of these sizes.

    Attributes:
        name: hub id of a pretrained image classifier.
        image_size: height and width in pixels.
        patch_size: pixels per side of a patch; divides ``image_size``.
        channels: 1 for grey pictures, 3 for colour.
        pixel_max: the pixel value that is mapped to 1.0.
        hidden_size: width of the transformer.
        hidden_layers: number of its layers.
        attention_heads: heads per layer; divides ``hidden_size``.
    """

    name: str | None = None
    image_size: int = 8
    patch_size: int = 2
    channels: int = 1
    pixel_max: float = 255.0
    hidden_size: int = 64
    hidden_layers: int = 4
    attention_heads: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("image_size", "patch_size", "channels", "hidden_size", "hidden_layers", "attention_heads"):
            _check(f"model.{key}", getattr(self, key), getattr(self, key) >= 1, "1 or more")
        _check("model.pixel_max", self.pixel_max, self.pixel_max > 0.0, "more than 0")
        for key, whole in (("patch_size", "image_size"), ("attention_heads", "hidden_size")):
            part = getattr(self, key)
            _check(f"model.{key}", part, getattr(self, whole) % part == 0, f"a divisor of model.{whole}")


MODELS: Final[Mapping[str, type]] = {"text_classification": TextModel, "image_classification": ImageModel}
"""Classes that ``[model]`` is read into, by the task that `dptrain train` runs."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the policy, the corpus and public data lie.

    Attributes:
        policy: the signed policy.
        corpus: attested contributions.
        validation: PUBLIC examples for the accuracy, one JSON object a line; None to skip it.
        owner_key: public key of the corpus owner; default ``owner.pub`` beside the policy.
        registry: contributor registry; default ``registry.cbor`` beside the policy.
    """

    policy: Path
    corpus: Path
    validation: Path | None = None
    owner_key: Path | None = None
    registry: Path | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Says how released gradients move the model: post-processing, so it costs no privacy.

    Attributes:
        name: ``adamw`` or ``sgd`` (with momentum 0.9).
        learning_rate: peak learning rate.
        head_learning_rate: peak learning rate of everything above the layer stack; default the same.
        name_without_privacy: optimizer of the comparison run without privacy, or ``same``. What suits noised gradients
            need not suit others, and a comparison is honest only if either side is trained as suits it.
        learning_rate_without_privacy: peak learning rate of the comparison run; default ``learning_rate``.
        weight_decay: decoupled weight decay.
        schedule: ``constant``, ``linear`` (to zero) or ``cosine`` (to zero), over the steps of the policy.
        warmup_steps: steps over which the learning rate rises.
    """

    name: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 1e-3
    head_learning_rate: float | None = None
    name_without_privacy: Literal["same", "adamw", "sgd"] = "same"
    learning_rate_without_privacy: float | None = None
    weight_decay: float = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        for key in ("learning_rate", "head_learning_rate", "learning_rate_without_privacy"):
            rate = getattr(self, key)
            _check(f"optimizer.{key}", rate, rate is None or 0.0 < rate < 100.0, "a positive number")
        _check("optimizer.weight_decay", self.weight_decay, 0.0 <= self.weight_decay < 1.0, "0 up to but not including 1")
        _check("optimizer.warmup_steps", self.warmup_steps, self.warmup_steps >= 0, "0 or more")


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """The ledger and outputs of the run, and how the machine is used.

    Attributes:
        ledger: SQLite file of the run's ledger, or a ``postgresql://USER@HOST/DATABASE`` URL without a password, which libpq
            takes from ``~/.pgpass`` or ``PGPASSWORD``.
        ledger_state: directory for what a ledger on a server keeps on this machine: the signer's record and key, incoming
            withdrawals, checkpoints. Needed for a URL and for nothing else.
        output: directory for the model and the export.
        ledger_key: private key that signs the ledger; default ``<ledger>.key``, made on first use.
        origin: name of the log; default ``<corpus>/<ledger name>``.
        earlier: ledgers of earlier runs over the corpus, closed, or directories of their exports, whose expenditure counts
            here; and budget logs by which its contributions make texts, likewise, which count with all that their rules allow.
        earlier_keys: files with the verifier keys (``.pub``) under which these exports are audited; not from their exporter.
        replaces: a ledger whose key was lost to others, which this one continues under another origin.
        microbatch: contributions per forward pass.
        microbatch_rows: examples per forward pass, at most; a contribution with more is spread over several and still clipped
            once. None for no limit.
        workers: processes that decode and collate while the step runs, for data that takes long to decode; 0 for none.
        prefetch: microbatches that each worker holds.
        compile: compile forward and backward pass of a microbatch into one graph; needs a C++ compiler. The same result up to
            rounding, sooner; each kind of microbatch costs some seconds to a minute when it first comes, little in later runs.
        products: ``fastest`` or ``torch``: on whose kernels float32 products compute (`dptrain.Microbatches`).
        mixed_precision: ``no`` or ``bf16``.
        device: ``auto`` or ``cpu``.
        noise_generator: ``host`` draws noise on the processor (AES-256), ``device`` where the gradients are (ChaCha20). Both
            are cryptographic and of one law, and the ledger's header names the second; their numbers differ.
        threads: threads of torch on the processor, in each process; None leaves the choice to torch or to what launched them.
        checkpoint_every: steps between model checkpoints; 0 for none.
        metrics: file for the public numbers of the run, one JSON object a step; None for none (`dptrain.Metrics`).
        metrics_every: steps between two lines of it.
        seed: seed of the new weights of the head. Noise and draws never come from a seed.
    """

    ledger: Location = Location("ledger.db")
    ledger_state: Path | None = None
    output: Path = Path("output")
    ledger_key: Path | None = None
    origin: str | None = None
    earlier: tuple[Location, ...] = ()
    earlier_keys: tuple[Path, ...] = ()
    replaces: Location | None = None
    microbatch: int = 16
    microbatch_rows: int | None = None
    workers: int = 0
    prefetch: int = 2
    compile: bool = False
    products: Literal["fastest", "torch"] = "fastest"
    mixed_precision: Literal["no", "bf16"] = "no"
    device: Literal["auto", "cpu"] = "auto"
    noise_generator: Literal["host", "device"] = "host"
    threads: int | None = None
    checkpoint_every: int = 0
    metrics: Path | None = None
    metrics_every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        _check("run.microbatch", self.microbatch, self.microbatch >= 1, "1 contribution or more")
        _check_ledger(self.ledger, self.ledger_state)
        rows = self.microbatch_rows
        _check("run.microbatch_rows", rows, rows is None or rows >= 1, "1 example or more")
        _check("run.workers", self.workers, self.workers >= 0, "0 or more processes")
        _check("run.prefetch", self.prefetch, self.prefetch >= 1, "1 microbatch or more")
        _check("run.checkpoint_every", self.checkpoint_every, self.checkpoint_every >= 0, "0 or more steps")
        _check("run.metrics_every", self.metrics_every, self.metrics_every >= 1, "1 step or more")
        _check("run.threads", self.threads, self.threads is None or self.threads >= 1, "1 or more")
        _check("run.seed", self.seed, 0 <= self.seed < 2**63, "0 to 2^63 - 1")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run file, checked.

    Guarantee: no value of a run file changes which bounds, rates, noise, depths or steps apply; those are read from the
    signed policy alone.

    Attributes:
        task: one of `MODELS`, which `dptrain train` runs, or what a program of your own calls its task.
        model: what the table ``[model]`` says, as the task reads it. data, optimizer, run: the other tables.
    """

    task: str
    model: Any
    data: DataConfig
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: MachineConfig = field(default_factory=MachineConfig)

    @classmethod
    def load(cls, path: str | Path, *, models: Mapping[str, type] = MODELS) -> Self:
        """Reads a run file.

        Args:
            path: the file. models: by task, the frozen dataclass that ``[model]`` is read into; a program of your own names
                its own. Fields are strings, numbers, booleans, paths, tuples of strings, or literals.

        Raises:
            ConfigError: unreadable, not TOML, an unknown or missing key, or a value that cannot be used.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError("RUN_FILE", f"cannot read the run file {str(path)!r}: {reason}") from error
        return cls.from_toml(text, base=path.parent, models=models)

    @classmethod
    def from_toml(cls, text: str, base: Path = Path(), models: Mapping[str, type] = MODELS) -> Self:
        """Reads the text of a run file; relative paths start at ``base``, and ``models`` are as for :meth:`load`.

        Raises:
            ConfigError: as :meth:`load`.
        """
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError("RUN_FILE", f"the run file is not TOML: {error}") from error
        tables: dict[str, type] = {"data": DataConfig, "optimizer": OptimizerConfig, "run": MachineConfig}
        task = table.get("task", "(none)")
        if not isinstance(task, str) or task not in models:
            raise ConfigError("RUN_VALUE", f"task is {task!r}, expected {' or '.join(map(repr, models))}")
        tables["model"] = models[task]
        for key in table.keys() - tables.keys() - {"task"}:
            raise _unknown(key, "", {"task", *tables}, tables)
        missing = {"data"} - table.keys()
        if missing:
            raise ConfigError("RUN_KEY", "the run file has no table [data]; it says where policy and corpus lie")
        return cls(task=task, **{name: _read(kind, table.get(name, {}), name, base, tables) for name, kind in tables.items()})

    def opening(self, *, resume: bool = False, clock_jump_ok: bool = False, kept_reading: bool = True) -> dict[str, Any]:
        """Returns keyword arguments of ``PrivateTraining.open``: what the run file decides, and how the run is started.

        Args:
            resume: continue an interrupted run. clock_jump_ok: the clock is right though it ran far ahead since the last leaf.
            kept_reading: spare signatures that verified before.
        """
        # Here and not above: plans read run files too, on the base install without torch.
        from dptrain.engine.options import Clock, Earlier, Microbatches, NoiseSource, RunLedger

        run = self.run
        return {
            "policy": self.data.policy,
            "corpus": self.data.corpus,
            "owner_key": self.data.owner_key,
            "registry": self.data.registry,
            "ledger": RunLedger(run.ledger, run.ledger_state, run.ledger_key, run.origin, keep_reading=kept_reading),
            "earlier": Earlier(run.earlier, run.replaces, run.earlier_keys),
            "microbatches": Microbatches(run.microbatch, run.microbatch_rows, run.products, run.workers, run.prefetch),
            "noise": NoiseSource(run.noise_generator),
            "clock": Clock(jump_ok=clock_jump_ok),
            "resume": resume,
        }

    def metrics(self) -> "Metrics | None":
        """Returns where the public numbers of the run go."""
        from dptrain.engine.options import Metrics

        return None if self.run.metrics is None else Metrics(self.run.metrics, every=self.run.metrics_every)

    def require_free_output(self) -> None:
        """Refuses an output directory that holds an export already, before a long run and not after it.

        Raises:
            ConfigError: there is one.
        """
        export = self.run.output / "export"
        if export.exists():
            raise ConfigError("OUTPUT", f"{export} exists already; set run.output to another directory, or move it away")


def _check_ledger(ledger: str, state: Path | None) -> None:
    place = _place(ledger, state)
    if place.beside is None:
        raise ConfigError("RUN_KEY", "run.ledger is on a server; set run.ledger_state, a directory for the signer's own record")
    if place.has_password:
        raise ConfigError("RUN_VALUE", "run.ledger holds a password, and run files are shared; use ~/.pgpass or PGPASSWORD")


def _place(ledger: str, state: Path | None) -> Place:
    try:
        return Place.of(ledger, state)
    except LedgerError as error:
        raise ConfigError("RUN_VALUE", f"run.ledger: {error.sentence}") from error


def _read(kind: type, table: Any, name: str, base: Path, tables: dict[str, type]) -> Any:
    if not isinstance(table, dict):
        raise ConfigError("RUN_VALUE", f"{name} is {table!r}, expected a table [{name}]")
    hints = typing.get_type_hints(kind)
    for key in table.keys() - hints.keys():
        raise _unknown(key, f"{name}.", hints.keys(), tables)
    required = [
        item.name for item in dataclasses.fields(kind)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    for key in required:
        if key not in table:
            raise ConfigError("RUN_KEY", f"the run file does not set {name}.{key}, which has no default")
    return kind(**{key: _convert(hints[key], value, f"{name}.{key}", base) for key, value in table.items()})


def _convert(hint: Any, value: Any, where: str, base: Path) -> Any:
    """A TOML value as the type of a field; numbers are never read from strings, nor booleans as numbers."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(option for option in typing.get_args(hint) if option is not types.NoneType)
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        _check(where, value, value in choices, " or ".join(map(repr, choices)))
        return value
    if hint is Location:
        _check(where, value, isinstance(value, str) and value != "" and "\x00" not in value, "a path or a URL")
        place = _place(value, None)
        return Location(value if place.file is None else place.from_directory(base))
    if hint is Path:
        _check(where, value, isinstance(value, str) and value != "" and "\x00" not in value, "a path")
        return base / value
    if hint in (tuple[Location, ...], tuple[Path, ...]):
        kind = typing.get_args(hint)[0]
        _check(where, value, isinstance(value, list), f"a list of {'ledgers' if kind is Location else 'paths'}")
        return tuple(_convert(kind, item, where, base) for item in value)
    if typing.get_origin(hint) is tuple:
        _check(where, value, isinstance(value, list) and all(isinstance(item, str) for item in value), "a list of strings")
        return tuple(value)
    if hint is float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        _check(where, value, good, "a finite number")
        return float(value)
    _check(where, value, type(value) is hint, {int: "a whole number", str: "a string", bool: "true or false"}[hint])
    return value


def _unknown(key: str, prefix: str, known: Any, tables: dict[str, type]) -> ConfigError:
    where = f"{prefix}{key}"
    if key in POLICY_KEYS:
        return ConfigError(
            "RUN_KEY",
            f"{where} is not for a run file: the guarantee rests on it, so it stands in the policy that the owner signs",
        )
    elsewhere = [name for name, kind in tables.items() if key in typing.get_type_hints(kind)]
    if elsewhere:
        return ConfigError("RUN_KEY", f"unknown key {where}; {key} belongs in the table [{elsewhere[0]}]")
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return ConfigError("RUN_KEY", f"unknown key {where}; the nearest known key is {prefix}{near[0]}")


def _check(where: str, value: Any, good: bool, expected: str) -> None:
    if not good:
        raise ConfigError("RUN_VALUE", f"{where} is {value!r}, expected {expected}")
