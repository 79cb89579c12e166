"""A model's directory, and ledgers to release it from, for the tests of releases."""

import json
from pathlib import Path

from ledger_runs import SIGNER, START, Driver, admission, header_spec

from ledger.leaves import HeaderSpec
from ledger.log import Ledger


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


def model(directory: Path) -> Path:
    """A small model as save_pretrained lays one out, with a folder in it."""
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(safetensors(WEIGHTS))
    (directory / "config.json").write_text('{"layers": 3}\n')
    (directory / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    return directory


def run_to_the_end(path: Path, spec: HeaderSpec | None = None) -> Driver:
    """A ledger whose run went to its signed end: 40 steps, five contributions of two classes, one of them withdrawn."""
    driver = Driver(Ledger.create(path, spec or header_spec(), SIGNER, now=START))
    driver.admit(admission(1), admission(2), admission(3, "sensitive"))
    driver.admit(admission(4, "sensitive", clip_micro=250_000, sigma_micro=4_000_000))
    driver.steps(2)
    driver.epoch()
    driver.withdraw(2)
    driver.withdraw(99)
    driver.admit(admission(5))
    for _ in range(4):
        driver.steps(2)
        driver.epoch()
    driver.ledger.finish(now=driver.tick())
    return driver
