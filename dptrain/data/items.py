"""Items of a data set as contents of contributions: one item, or all items of one person, encoded as one line of JSON.

Dicts, lists, numbers, strings and nothing are as JSON has them. An array or tensor is ``{"array": type, "shape": [...],
"base64": "..."}``, bytes are ``{"bytes": base64}``, and a tuple is ``{"tuple": [...]}``. What is signed is the line.
"""

import base64
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from dptrain.errors import ConfigError

Encode = Callable[[Any], bytes]
"""An item of a data set to the bytes that are signed, without a newline."""

TABLES = (".jsonl", ".csv", ".parquet")
"""Files that are read as data sets."""

_MARKS = ("array", "bytes", "tuple")
_PLAIN = frozenset({bool, int, float, str, type(None)})
_LINE = json.JSONEncoder(ensure_ascii=False, allow_nan=True, separators=(",", ":"))


def items_of(dataset: Any) -> Iterable[Any]:
    """Returns the items of a data set.

    Args:
        dataset: a path to a file of `TABLES`; or whatever has a length and items by number, as lists, torch's map-style
            data sets and those of the library datasets have.

    Raises:
        ConfigError: code DATASET, something else.
    """
    if isinstance(dataset, str | Path):
        return _read(Path(dataset))
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not isinstance(dataset, Mapping):
        return (dataset[number] for number in range(len(dataset)))
    raise ConfigError(
        "DATASET",
        f"the data set is a {type(dataset).__name__}, expected a list, a data set with items by number, or the path of a file "
        f"({', '.join(TABLES)}); make a list of it",
    )


def encode_item(item: Any) -> bytes:
    """Encodes an item as one line of JSON; `decode_item` gives it back, tensors as arrays.

    Raises:
        ConfigError: code ENCODE, the item holds something that JSON and this module have no form for; it does not repeat it.
    """
    return _LINE.encode(_plain(item)).encode()


def decode_item(content: bytes) -> list[Any]:
    """Decodes the one example of a content that `encode_item` made."""
    return [_item(json.loads(content))]


def encode_items(items: Sequence[Any]) -> bytes:
    """Encodes the items of one contribution as one line of JSON; `decode_items` gives them back.

    Raises:
        ConfigError: code ENCODE, as `encode_item`.
    """
    return b"[" + b",".join(map(encode_item, items)) + b"]"


def decode_items(content: bytes) -> list[Any]:
    """Decodes the examples of a content that `encode_items` made."""
    return list(map(_item, json.loads(content)))


@dataclass(frozen=True)
class Content:
    """One contribution to be: the bytes that are signed, the number of its examples, and the tokens of the longest of them."""

    line: bytes
    examples: int = 1
    tokens: int | None = None


def contents_of(
    dataset: Any,
    *,
    encode: Callable[[Any], bytes] | None = None,
    by: str | Callable[[Any], Any] | None = None,
    length_of: Callable[[Any], int] | None = None,
) -> Iterator[Content]:
    """Yields the contributions that a data set amounts to, in the order of their first items.

    Args:
        dataset: as `items_of` has it.
        encode: an item to bytes; where items are grouped, the list of them. Default: `encode_item`, `encode_items`.
        by: items with equal keys are one contribution: the name of a column, or a function from an item to its key.
        length_of: an item to the number of its tokens.

    Raises:
        ConfigError: code DATASET or ENCODE.
    """
    if by is None:
        groups: Iterable[list[Any]] = ([item] for item in items_of(dataset))
    else:
        found: dict[Any, list[Any]] = {}
        for number, item in enumerate(items_of(dataset), start=1):
            try:
                found.setdefault(by(item) if callable(by) else item[by], []).append(item)
            except (KeyError, TypeError, IndexError):
                raise ConfigError(
                    "DATASET", f"item {number} has no {by!r} to group it by, expected one in every item; mend the items, or by="
                ) from None
        groups = found.values()
    for items in groups:
        line = (encode or encode_item)(items[0]) if by is None else (encode or encode_items)(items)
        yield Content(line, len(items), None if length_of is None else max(map(length_of, items)))


def count_tokens(item: Any) -> int:
    """Counts the ``input_ids`` of an item.

    Raises:
        ConfigError: code DATASET, it has none.
    """
    try:
        return len(item["input_ids"])
    except (KeyError, TypeError, IndexError):
        raise ConfigError(
            "DATASET", "an item has no input_ids to count, expected token ids; say how long items are: length_of=function"
        ) from None


def pack_examples(sequences: Iterable[Sequence[int]], length: int, separator: int) -> list[dict[str, list[int]]]:
    """Packs token sequences of one contribution into rows without padding between them.

    The sequences stand one after the other, each with a separator behind it, cut into rows of at most ``length`` tokens. Call
    it in ``decode``, on the texts of one contribution alone: a row that held two contributions would be bounded for neither.

    Returns:
        Rows ``{"input_ids": [...]}``, one at least; all but the last have ``length`` tokens.
    """
    tokens = [token for sequence in sequences for token in (*sequence, separator)]
    return [{"input_ids": tokens[start : start + length]} for start in range(0, max(len(tokens), 1), length)]


def collate_items(examples: list[Any]) -> dict[str, Any]:
    """Collates items as torch does by default, into a mapping: pairs become ``inputs`` and ``labels``.

    Texts stay lists of strings; a model that takes tokens needs a collate of its own.
    """
    found = default_collate(examples)
    if isinstance(found, Mapping):
        return dict(found)
    parts = list(found) if isinstance(found, list | tuple) else [found]
    names = ["inputs", "labels"] if len(parts) <= 2 else [f"part{number}" for number in range(len(parts))]
    return dict(zip(names, parts, strict=False))


def _plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        data = np.ascontiguousarray(value)
        data = data.astype(data.dtype.newbyteorder("<"), copy=False)
        return {"array": data.dtype.str, "shape": list(value.shape), "base64": base64.b64encode(data.tobytes()).decode()}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {"tuple": [_plain(part) for part in value]}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping) and all(type(key) is str for key in value) and not any(key in value for key in _MARKS):
        return {key: _plain(part) for key, part in value.items()}
    if type(value).__module__.startswith("PIL."):
        return _plain(np.asarray(value))
    raise ConfigError(
        "ENCODE",
        f"an item holds a {type(value).__name__}, expected numbers, strings, arrays, and lists, tuples and dicts of them (with "
        f"strings for keys, none of them {', '.join(_MARKS)}); give encode=, a function from an item to bytes",
    )


def _item(value: Any) -> Any:
    if isinstance(value, list):
        return [_item(part) for part in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        data = np.frombuffer(base64.b64decode(value["base64"]), np.dtype(value["array"]))
        return data.reshape(value["shape"]).copy()
    if "bytes" in value:
        return base64.b64decode(value["bytes"])
    if "tuple" in value:
        return tuple(_item(part) for part in value["tuple"])
    return {key: _item(part) for key, part in value.items()}


def _read(path: Path) -> Iterator[Any]:
    """Yields the rows of a file as dicts."""
    if not path.is_file() or path.suffix not in TABLES:
        expected = f"expected a file that ends in {', '.join(TABLES)}"
        raise ConfigError("DATASET", f"{path} is {'a file' if path.is_file() else 'no file'}, {expected}")
    if path.suffix == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise ConfigError("DATASET", f"reading {path} needs pyarrow; pip install pyarrow, or save it as .jsonl") from error
        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
        return
    with path.open(encoding="utf-8", newline="" if path.suffix == ".csv" else None) as lines:
        if path.suffix == ".csv":
            yield from ({key: _number(text) for key, text in row.items()} for row in csv.DictReader(lines))
            return
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ConfigError("DATASET", f"line {number} of {path} is not JSON; one record a line is expected") from error


def _number(text: Any) -> Any:
    """Returns a cell of a table as a number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except (ValueError, TypeError):
            continue
    return text
