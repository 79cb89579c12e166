"""Finds the model to check, rows that its forward takes, and a loss for each of them.

Rows are made up from the configuration of a model of transformers, or from the first layer of any other. Their values are those
that the probes of a run make up; only names, types and sizes are found here.
"""

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dptrain.checks.verdict import NotChecked
from dptrain.data.items import items_of
from dptrain.data.microbatch import Microbatch
from dptrain.errors import ConfigError, without_text
from dptrain.integrations.losses import base_of, losses_of, of_examples
from dptrain.routing.synthetic_rows import ProbeRows

LENGTH = 16
"""Tokens of a row that is made up, at most."""

SOUND, FRAMES = 3_200, 64
"""Samples of a sound, and frames of a spectrogram, where the configuration does not say."""

SIDES = (32, 64, 224, 28)
"""Sides of pictures that are tried in this order."""

LABELS = "labels"

Rows = Mapping[str, torch.Tensor]
Loss = Callable[[nn.Module, Microbatch], torch.Tensor]

_HOW = (
    "give rows of your own (--rows FILE.jsonl, a line for each row with what the model takes by name), or say their types and "
    "sizes (--inputs NAME=TYPE:SIZES, as pixel_values=float32:3,32,32; in Python rows={name: tensor})"
)


# ------------------------------------------------------------------------------------------------------------- the model


def load(place: str) -> nn.Module:
    """Makes the model that lies in a folder of transformers, or that a callable returns.

    Args:
        place: a folder with ``config.json``; ``package.module:name`` or ``file.py:name``, a module or a callable that needs
            no arguments and returns one. Code that a folder brings along is not run.

    Raises:
        NotChecked: code SUBJECT, there is no model; says what there is.
    """
    if Path(place).is_dir():
        return _of_folder(Path(place))
    found = attribute(place)
    try:
        model = found() if callable(found) and not isinstance(found, nn.Module) else found
    except Exception as error:
        raise NotChecked("SUBJECT", f"{place} raises {without_text(error)}: {error}; name one that needs nothing") from error
    if not isinstance(model, nn.Module):
        raise NotChecked("SUBJECT", f"{place} gives a {type(model).__name__}, expected a torch.nn.Module or a callable for one")
    return model


def attribute(place: str) -> Any:
    """Imports what ``package.module:name`` or ``file.py:name`` names.

    Raises:
        NotChecked: code SUBJECT, it cannot be imported, or has no such name.
    """
    source, _, name = place.rpartition(":")
    if not source:
        expected = "expected a folder with config.json, module:callable or file.py:callable"
        raise NotChecked("SUBJECT", f"{place!r} is no folder and names no callable, {expected}")
    try:
        module: Any = _of_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
        for part in name.split("."):
            module = getattr(module, part)
    except Exception as error:
        raise NotChecked("SUBJECT", f"{place} is not there ({without_text(error)}: {error}); name what is") from error
    return module


def _of_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _of_folder(folder: Path) -> nn.Module:
    """Makes the model of a folder in training mode: with its weights, or with random ones where there are none."""
    import transformers

    if not (folder / "config.json").is_file():
        raise NotChecked("SUBJECT", f"{folder} holds no config.json, expected a folder of transformers, or module:callable")
    weights = any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "pytorch_model*.bin"))
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        name = next(iter(getattr(config, "architectures", None) or ()), "")
        kind = getattr(transformers, name, None)
        if name and kind is None:
            raise ValueError(f"transformers has no class {name}; name a callable that makes it")
        if weights:
            options = {"local_files_only": True, "trust_remote_code": False}
            return (kind or transformers.AutoModel).from_pretrained(folder, **options).train()
        return (kind(config) if kind else transformers.AutoModel.from_config(config)).train()
    except Exception as error:
        raise NotChecked("SUBJECT", f"no model can be made of {folder} ({type(error).__name__}: {error})") from error


# -------------------------------------------------------------------------------------------------------------- the rows


def rows_of_file(path: Path) -> dict[str, torch.Tensor]:
    """Reads rows that the user gives: a record a line, every value a number or nested lists of numbers of one size.

    Raises:
        NotChecked: code ROWS, they cannot be put into one tensor by name.
    """
    try:
        records = list(items_of(path))
        keys = records[0].keys() if records else ()
        rows = {key: torch.tensor([record[key] for record in records]) for key in keys}
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"{type(error).__name__}: {error}"
        raise NotChecked("ROWS", f"{path} has no rows of one size ({told}); write numbers by name, padded alike") from error
    if len(next(iter(rows.values()), ())) < 2:
        raise NotChecked("ROWS", f"{path} has {len(records)} rows, expected two or more, better eight")
    return rows


def rows_of_shapes(texts: Iterable[str]) -> dict[str, torch.Tensor]:
    """Makes rows without values of ``NAME=TYPE:SIZES``, as ``x=float32:3,32,32`` or ``labels=int64``.

    Raises:
        NotChecked: code ROWS, a text is none.
    """
    found = {}
    for text in texts:
        name, _, kind = text.partition("=")
        word, _, sizes = kind.partition(":")
        dtype = getattr(torch, word, None)
        if not name or not isinstance(dtype, torch.dtype) or not all(size.isdigit() for size in sizes.split(",") if sizes):
            expected = "expected NAME=TYPE:SIZES, as x=float32:3,32,32 or labels=int64"
            raise NotChecked("ROWS", f"{text!r} says no type and sizes, {expected}")
        found[name] = _empty(*(int(size) for size in sizes.split(",") if sizes), dtype=dtype)
    return found


def made_up_rows(model: nn.Module) -> dict[str, torch.Tensor]:
    """Finds rows that the forward of a model takes, by their names, types and sizes.

    Raises:
        NotChecked: code ROWS, nothing that was tried fits.
    """
    why: Exception | None = None
    for rows in _of_config(model) if hasattr(base_of(model), "config") else _of_first_layer(model):
        try:
            outputs_of(model, rows)
            return rows
        except Exception as error:  # whatever a model says of what it cannot take
            why = why or error
    told = "" if why is None else f" ({without_text(why)}: {str(why).splitlines()[0][:160] if str(why) else ''})"
    raise NotChecked("ROWS", f"no rows could be made up that {type(model).__name__} takes{told}; {_HOW}")


def called(model: nn.Module, rows: Mapping[str, Any]) -> Any:
    """Calls a model with everything but the labels, by name where its forward has these names."""
    inputs = {key: value for key, value in rows.items() if key != LABELS}
    names = inspect.signature(base_of(model).forward).parameters.values()
    known = {one.name for one in names if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in names)
    return model(**inputs) if takes_any or inputs.keys() <= known else model(*inputs.values())


def outputs_of(model: nn.Module, rows: Rows) -> Any:
    """Runs a model once on two rows, or on made-up values where they have none, without gradients and in eval mode."""
    two: Mapping[str, Any] = {key: value[:2] for key, value in rows.items()}
    if any(value.is_meta for value in rows.values()):
        like = ProbeRows([Microbatch(dict(two), 2, 1, torch.ones(2), (b"0", b"1"))], torch.device("cpu"))
        two = like.microbatch(range(2), [b"0", b"1"]).inputs
    with _still(model):
        return called(model, two)


def filled(rows: Rows) -> dict[str, torch.Tensor]:
    """Puts zeros where rows have no values, so that they can be collated."""
    return {key: torch.zeros_like(value, device="cpu") if value.is_meta else value for key, value in rows.items()}


@contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            model.eval()
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _empty(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Makes two rows that have a type and sizes, and no values."""
    return torch.empty((2, *sizes), dtype=dtype, device="meta")


def _of_config(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Yields rows for a model of transformers: its main input, and what goes with it."""
    base = base_of(model)
    config = base.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    sees = getattr(config, "vision_config", None) or config
    taken = inspect.signature(base.forward).parameters
    main = str(getattr(base, "main_input_name", "input_ids"))
    positions = _number(text, "max_position_embeddings", "n_positions", default=LENGTH + 2)
    tokens = _empty(max(2, min(LENGTH, positions - 2)), dtype=torch.int64)
    side = getattr(sees, "image_size", None)
    sides = [side] if side else SIDES
    bins = _number(config, "num_mel_bins", "feature_size", "input_feat_per_channel", "num_mel_features", default=80)
    long = _number(config, "max_source_positions", default=0) * 2
    known: dict[str, list[tuple[int, ...]]] = {
        "pixel_values": [(_number(sees, "num_channels", default=3), *_pair(one)) for one in sides],
        "input_values": [(SOUND,), (_number(config, "max_length", default=1), bins)],
        "input_features": [(bins, long), (FRAMES, bins), (bins, FRAMES)] if long else [(FRAMES, bins), (bins, FRAMES)],
    }
    both = sees is not config and "pixel_values" in taken
    seen = main if main in known else "pixel_values" if both else ""
    first: dict[str, torch.Tensor] = {}
    if "input_ids" in taken and (not seen or both):
        first["input_ids"] = tokens
        if "attention_mask" in taken:
            first["attention_mask"] = torch.ones_like(tokens)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in taken:
        first["decoder_input_ids"] = tokens
    if not seen:
        yield first
    for sizes in known.get(seen, ()):
        yield {**first, seen: _empty(*sizes)}


def _of_first_layer(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Yields rows for a module that takes one tensor, by the first of its layers that says what it wants."""
    needed = [one for one in inspect.signature(model.forward).parameters.values() if one.default is one.empty]
    if len(needed) != 1 or needed[0].kind is needed[0].VAR_KEYWORD:
        return
    for layer in model.modules():
        width = _number(layer, "in_features", "input_size", "in_channels", "num_features", "num_channels", default=0)
        sizes: list[tuple[int, ...]]
        dtype = torch.float32
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            sizes, dtype = [(LENGTH,)], torch.int64
        elif isinstance(layer, nn.Linear):
            sizes = [(width,), (LENGTH, width), *_squares(width)]
        elif isinstance(layer, nn.RNNBase):
            sizes = [(LENGTH, width)]
        elif isinstance(layer, nn.Conv1d | nn.BatchNorm1d):
            sizes = [(width, 2 * LENGTH), (width,)]
        elif isinstance(layer, nn.Conv2d | nn.BatchNorm2d):
            sizes = [(width, side, side) for side in SIDES]
        elif isinstance(layer, nn.Conv3d):
            sizes = [(width, LENGTH, LENGTH, LENGTH)]
        elif isinstance(layer, nn.LayerNorm):
            sizes = [tuple(layer.normalized_shape), (LENGTH, *layer.normalized_shape)]
        elif isinstance(layer, nn.TransformerEncoderLayer | nn.MultiheadAttention):
            sizes = [(LENGTH, _number(getattr(layer, "self_attn", layer), "embed_dim", default=1))]
        else:
            continue
        yield from ({needed[0].name: _empty(*each, dtype=dtype)} for each in sizes)
        return


def _squares(width: int) -> Iterator[tuple[int, ...]]:
    """Yields the sizes of pictures that a linear layer of this width takes flat."""
    for channels in (1, 3):
        side = math.isqrt(width // channels)
        if side * side * channels == width:
            yield (channels, side, side)


def _number(value: Any, *names: str, default: int) -> int:
    found = (getattr(value, name, None) for name in names)
    return next((int(each) for each in found if isinstance(each, int) and each > 0), default)


def _pair(side: Any) -> tuple[int, int]:
    found = tuple(side.values()) if isinstance(side, dict) else tuple(side) if isinstance(side, list | tuple) else (side, side)
    return int(found[0]), int(found[-1])


def told(rows: Rows) -> dict[str, str]:
    """Says of each input what one row of it is, as `rows_of_shapes` reads it."""
    kinds = {key: str(value.dtype).removeprefix("torch.") for key, value in rows.items()}
    return {key: ":".join([kinds[key], *([",".join(map(str, rows[key].shape[1:]))] * (rows[key].dim() > 1))]) for key in rows}


# -------------------------------------------------------------------------------------------------------------- the loss


def loss_of(model: nn.Module, rows: Rows) -> tuple[Loss, dict[str, torch.Tensor], str]:
    """Finds a loss per example: that of the Trainers for a model of transformers, else one that stands in.

    Returns:
        The loss, the rows with labels for it, and what it is in words.

    Raises:
        NotChecked: code ROWS, the model raises on these rows, or returns nothing with a row per example.
    """
    try:
        outputs = outputs_of(model, rows)
    except Exception as error:
        told = f"{without_text(error)}: {str(error).splitlines()[0][:160] if str(error) else ''}"
        raise NotChecked("ROWS", f"{type(model).__name__} raises on these rows ({told}); {_HOW}") from error
    count = len(next(iter(rows.values())))
    for labels in [rows[LABELS]] if LABELS in rows else _labels(outputs, rows, count):
        for kind, word in ((losses_of, "the loss per example of PrivateTrainer"), (_classified, "cross entropy")):
            try:
                found = kind(model, outputs, torch.zeros_like(labels[:2], device="cpu"))
            except Exception:  # labels of another form are tried next
                continue
            if found.shape == (2,) and bool(torch.isfinite(found).all()):
                return _with_labels(kind), {**rows, LABELS: labels}, word
        if not hasattr(base_of(model), "config"):
            break
    if not list(_leaves(outputs)):
        told = f"{type(model).__name__} returns no tensor of numbers with a row per example"
        raise NotChecked("ROWS", f"{told}; give a loss (--loss file.py:name, in Python loss=), a function (model, rows)")
    return _stand_in, dict(rows), "a stand-in: squared distance of the outputs from fixed numbers"


def _labels(outputs: Any, rows: Rows, count: int) -> Iterator[torch.Tensor]:
    """Yields labels to try: a class, one per token, one number per output."""
    yield torch.zeros(count, dtype=torch.int64)
    tokens = rows.get("decoder_input_ids", rows.get("input_ids"))
    if tokens is not None:
        yield torch.zeros_like(tokens, device="cpu")
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
    if isinstance(logits, torch.Tensor) and logits.dim() == 2:
        yield torch.zeros((count, logits.shape[1]))


def _classified(model: nn.Module, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Returns losses of a module that returns logits alone, shape (B, K)."""
    if not isinstance(outputs, torch.Tensor) or outputs.dim() != 2 or outputs.shape[1] < 2:
        raise TypeError("not logits of classes")
    return of_examples(outputs.float(), labels, None)


def _with_labels(kind: Callable[..., torch.Tensor]) -> Loss:
    def loss(model: nn.Module, rows: Microbatch) -> torch.Tensor:
        return kind(model, called(model, rows), rows[LABELS])

    return loss


def _stand_in(model: nn.Module, rows: Microbatch) -> torch.Tensor:
    """Returns squared distances, shape (B,), so that every output counts and none is at its minimum."""
    losses: Any = 0.0
    for output in _leaves(called(model, rows)):
        wanted = torch.randn(output.shape[1:], generator=torch.Generator().manual_seed(output.dim())).to(output.device)
        losses = losses + (output.float() - wanted).square().reshape(len(output), -1).mean(1)
    return losses


def _leaves(outputs: Any) -> Iterator[torch.Tensor]:
    """Yields the outputs with a row per example: the logits alone where there are some."""
    if isinstance(outputs, torch.Tensor):
        if outputs.is_floating_point() and outputs.dim() > 1:
            yield outputs
    elif isinstance(outputs, Mapping) and isinstance(outputs.get("logits"), torch.Tensor):
        yield outputs["logits"]
    elif isinstance(outputs, Mapping | tuple | list):
        for part in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from _leaves(part)
