"""A model's directory, and ledgers to release it from, for the tests of releases."""

import hashlib
import json
from pathlib import Path

from ledger.leaves import HeaderSpec
from ledger.leaves.weights import WeightRecord
from ledger.log import Ledger
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]], *, metadata: bool = True) -> bytes:
    """A safetensors file, written by the format's own words: dtype, shape and bytes by name."""
    header: dict = {"__metadata__": {"format": "pt"}} if metadata else {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


WEIGHTS = {"layers.0.weight": ("F32", [2, 3], bytes(range(24))), "layers.2.weight": ("BF16", [4], b"\x01\x02" * 4)}


Tensors = dict[str, tuple[str, list[int], bytes]]


def records(tensors: Tensors, untrained: frozenset[str] = frozenset()) -> tuple[WeightRecord, ...]:
    """What a run that has these tensors commits to."""
    return tuple(
        WeightRecord((name,), None, name not in untrained, dtype, tuple(shape), hashlib.sha256(content).digest())
        for name, (dtype, shape, content) in tensors.items()
    )


def model(directory: Path) -> Path:
    """A small model as save_pretrained lays one out, with a folder in it."""
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(safetensors(WEIGHTS))
    (directory / "config.json").write_text('{"layers": 3}\n')
    (directory / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    return directory


def run_to_the_end(path: Path, spec: HeaderSpec | None = None) -> Driver:
    """A ledger whose run went to its signed end: 40 steps, five contributions of two classes, one of them withdrawn.

    Its epochs end with other weights each, the last one with those of `model`.
    """
    driver = Driver(Ledger.create(path, spec or header_spec(), SIGNER, now=START))
    driver.admit(admission(1), admission(2), admission(3, "sensitive"))
    driver.admit(admission(4, "sensitive", clip_micro=250_000, sigma_micro=4_000_000))
    driver.steps(2)
    _epoch(driver, 1)
    driver.withdraw(2)
    driver.withdraw(99)
    driver.admit(admission(5))
    for number in range(2, 6):
        driver.steps(2)
        _epoch(driver, number)
    driver.ledger.finish(now=driver.tick())
    return driver


def weights_of_epoch(number: int) -> Tensors:
    """The tensors with which an epoch of `run_to_the_end` ends: those of the last, with one byte that tells the epoch."""
    name, (dtype, shape, content) = next(iter(WEIGHTS.items()))
    return {**WEIGHTS, name: (dtype, shape, content[:-1] + bytes([content[-1] + 5 - number]))}


def _epoch(driver: Driver, number: int) -> None:
    driver.digest = driver.ledger.keep_weights(records(weights_of_epoch(number)))
    driver.epoch()
