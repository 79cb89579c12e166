"""Make a local model of 260,000 parameters that the recipes for language models train where no hub can be reached.

    python -m recipes.language.stories --data DATA --out runs/stories260K

DATA holds stories260K/: the weights as transformers reads them in hf/, and the tokenizer of llama2.c in tok512.bin. The folder
has both as `from_pretrained` takes them. The model knows children's stories and nothing else.
"""

import argparse
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from dptrain.errors import ConfigError
from dptrain.programs import guarded

SPACE = "\u2581"
"""Stands for a space at the beginning of a piece, as SentencePiece has it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="holds stories260K/")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    make(arguments.data / "stories260K", arguments.out)
    print(f"wrote {arguments.out}: a model and its tokenizer")
    return 0


def make(source: Path, out: Path) -> None:
    """Writes model and tokenizer into one folder.

    Raises:
        ConfigError: code MODEL, the files are not there.
    """
    if not (source / "hf" / "model.safetensors").is_file() or not (source / "tok512.bin").is_file():
        raise ConfigError("MODEL", f"{source} holds no hf/model.safetensors and tok512.bin; name the folder above it by --data")
    out.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(source / "hf" / name, out / name)
    tokenizer_of(source / "tok512.bin").save_pretrained(out)


def tokenizer_of(path: Path) -> PreTrainedTokenizerFast:
    """Reads a tokenizer of llama2.c: byte pairs, with bytes for letters that it does not know."""
    pieces = [piece.replace("\n<s>\n", "<s>").replace("\n</s>\n", "</s>").replace(" ", SPACE) for piece in _pieces(path)]
    ids = {piece: number for number, piece in enumerate(pieces)}
    merges = [  # in the order of the numbers, which is that of the scores
        (piece[:cut], piece[cut:])
        for piece in pieces[259:]
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    made = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    made.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", ids["<s>"])])
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def _pieces(path: Path) -> Iterator[str]:
    """Yields the pieces in the order of their numbers; each has a score, a length and bytes."""
    data, place = path.read_bytes(), 4
    while place < len(data):
        _, length = struct.unpack_from("<fi", data, place)
        place += 8 + length
        yield data[place - length : place].decode()


if __name__ == "__main__":
    raise SystemExit(guarded(main))
