"""Short texts and pairs of texts, and a tokenizer whose tokens are letters."""

from typing import Any

TEXTS = [{"text": "hello w" + "o" * k} for k in range(12)]
COMPLETIONS = [{"prompt": "say ", "completion": "hello w" + "o" * k} for k in range(12)]
PAIRS = [{"prompt": "say ", "chosen": "hello w" + "o" * k, "rejected": "no " + "n" * k} for k in range(12)]


def tokenizer() -> Any:
    """Makes a tokenizer of letters, with the special tokens that TRL needs."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    words = special | {letter: 4 + place for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz ")}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)
