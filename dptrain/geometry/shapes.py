"""Reads the shapes of LoRA pairs, and how long their factors are: from text, or from an adapter that peft saved.

Nothing here needs torch, and the base model is not loaded. `A` is peft's ``lora_B.weight``, of m rows; `B` is the transpose of
``lora_A.weight``, of n rows.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dptrain.errors import ConfigError

FILE: Final = "adapter_model.safetensors"
"""Names the file to which ``save_pretrained`` of peft writes the factors."""

_MOST_HEADER = 100 << 20
_MOST_SIDE = 1 << 32
_TEXT = re.compile(r"([1-9][0-9]*)x([1-9][0-9]*)(?:x([1-9][0-9]*))?")
_FACTOR = re.compile(r"(.*)\.lora_([AB])(?:\.[^.]+)?\.weight")
_APART = ("lora_magnitude_vector", "lora_embedding_")

_TYPES: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Types of factors, as numpy reads them; of bfloat16 the upper half of a float32."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Pairs of one shape.

    Attributes:
        m, n: Rows of A and of B, outputs and inputs of the layer. count: How many pairs.
        rank: Columns of both factors now; None where only shapes are known.
        A_sq, B_sq: Squared Frobenius norms of the factors now, of each of the pairs; None where only shapes are known.
        std: Noise of a coordinate of a release, tau = s / b; None where it is not known.
    """

    m: int
    n: int
    count: int = 1
    rank: int | None = None
    A_sq: float | None = None
    B_sq: float | None = None
    std: float | None = None


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Returns shapes from text such as ``4096x4096x64,14336x4096x32``: outputs, inputs, and how many.

    Raises:
        ConfigError: Code SHAPES, the text is of another form.
    """
    found = []
    for one in text.split(","):
        match = _TEXT.fullmatch(one.strip())
        m, n, count = (int(number) for number in match.groups("1")) if match and len(one) < 64 else (0, 0, 0)
        if not 0 < max(m, n, count) <= _MOST_SIDE:
            told = f"{one.strip()!a:.60} is no shape of a layer"
            raise ConfigError("SHAPES", f"{told}; expected MxN or MxNxCOUNT, outputs first, such as 4096x4096x64,14336x4096x32")
        found.append(Shape(m, n, count))
    return tuple(found)


def read_adapter(folder: Path) -> tuple[tuple[Shape, ...], int]:
    """Returns the pairs of an adapter that peft saved, in the order of their names, and how many tensors are left out.

    Left out are factors of tables and convolutions, and those beside a magnitude (DoRA): noise on them has other closed forms.

    Args:
        folder: What ``save_pretrained`` wrote.

    Raises:
        ConfigError: Code ADAPTER, there is no file of an adapter, it is of another form, or has no pair.
    """
    path = folder / FILE
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if 0 < length <= _MOST_HEADER else None
        if not isinstance(header, dict):
            raise ValueError("it has no header")
        factors, apart = _factors(header)
        data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length) if factors else np.empty(0, np.uint8)
        norms = {name: _squared(data, header[name]) for name in factors}
    except OSError as error:
        told = f"cannot read {path}: {error.strerror}; give the folder that save_pretrained of peft wrote"
        raise ConfigError("ADAPTER", told) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        told = f"{path} is no file of an adapter ({error!s:.100}); give the folder that save_pretrained of peft wrote"
        raise ConfigError("ADAPTER", told) from error
    found = []
    pairs: dict[str, dict[str, str]] = {}
    for name, (outer, side) in factors.items():
        pairs.setdefault(outer, {})[side] = name
    for outer, own in sorted(pairs.items()):
        sizes = [header[own[side]]["shape"] for side in ("B", "A") if side in own]
        if outer in apart or len(sizes) < 2 or any(len(size) != 2 for size in sizes) or sizes[0][1] != sizes[1][0]:
            continue
        (m, rank), (_, n) = sizes
        found.append(Shape(m, n, 1, rank, norms[own["B"]], norms[own["A"]]))
    if not found:
        raise ConfigError("ADAPTER", f"{path} has no LoRA pair of linear layers; give the folder of a LoRA adapter")
    named = [name for name in header if ".lora_" in name and not name.endswith(".bias")]
    return tuple(found), len(named) - 2 * len(found)


def _factors(header: Mapping[str, Any]) -> tuple[dict[str, tuple[str, str]], set[str]]:
    """Returns what every factor is, path and side, by its name; and the paths beside which no pair is one."""
    factors = {name: (match[1], match[2]) for name in header if (match := _FACTOR.fullmatch(name))}
    return factors, {name.partition(f".{word}")[0] for name in header for word in _APART if f".{word}" in name}


def _squared(data: Any, entry: Mapping[str, Any]) -> float:
    """Returns the squared Frobenius norm of a tensor of a file. Raises ValueError: It is not whole, or no finite numbers."""
    kind = _TYPES.get(entry["dtype"])
    if kind is None:
        raise ValueError(f"factors of {entry['dtype']}, expected {', '.join(_TYPES)}")
    start, end = entry["data_offsets"]
    shape = entry["shape"]
    whole = all(type(size) is int and 0 < size <= _MOST_SIDE for size in shape)
    if not whole or not 0 <= start <= end <= len(data) or end - start != math.prod(shape) * np.dtype(kind).itemsize:
        raise ValueError("a tensor does not lie whole in it")
    values = np.frombuffer(data[start:end].tobytes(), dtype=kind)
    if kind == "<u2":
        values = (values.astype("<u4") << 16).view("<f4")
    wide = values.astype(np.float64)
    found = float(np.dot(wide, wide))
    if not math.isfinite(found):
        raise ValueError("a factor is not finite")
    return found
