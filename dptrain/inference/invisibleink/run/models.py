"""Loads a causal language model for a run, and names what was loaded by a digest."""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import torch

from dptrain.errors import ConfigError

DTYPES: Final = ("float32", "bfloat16", "float16")


def load(source: str, *, dtype: str = "float32", device: str | None = None) -> tuple[Any, Any, dict[str, Any]]:
    """Loads model and tokenizer.

    Args:
        source: a folder that ``save_pretrained`` wrote, or a name of the hub; code that comes with it is never run.
        device: None for a GPU where there is one.

    Returns:
        Model, tokenizer, and what run.json says of them: name, digest of tensors and tokenizer, and type.

    Raises:
        ConfigError: code MODEL, it cannot be loaded; DTYPE, DEVICE.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if dtype not in DTYPES:
        raise ConfigError("DTYPE", f"a type is one of {', '.join(DTYPES)}, got {dtype!r:.40}")
    local = Path(source).is_dir()
    if not local and (source.startswith((".", "/", "~")) or source.count("/") > 1):
        raise ConfigError("MODEL", f"{source!r} is no folder, and no name of the hub; give a folder that save_pretrained wrote")
    settings: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    try:
        where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        tokenizer = AutoTokenizer.from_pretrained(source, **settings)
        model, found = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True, **settings
        )
    except (OSError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise ConfigError("MODEL", f"{source!r} cannot be loaded: {_first_line(error):.300}") from error
    if missing := sorted(name for kind in ("missing_keys", "mismatched_keys") for name in map(str, found[kind])):
        lacks = ", ".join(missing[:3])
        raise ConfigError("MODEL", f"{source!r} lacks {lacks}, which its settings ask for; give it with its language head")
    try:
        model = model.to(where).eval()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError("DEVICE", f"the model does not go to {where}: {_first_line(error):.200}") from error
    return model, tokenizer, {"name": source, "sha256": digest_of(model, tokenizer), "dtype": dtype}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


_BESIDE: Final = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "_attn_implementation", "architectures")
"""Settings of a model that say nothing of what it computes."""


def digest_of(model: Any, tokenizer: Any) -> str:
    """Returns SHA-256, in hex, of a model's tensors and settings and of its tokenizer: what a text follows from."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        hashed.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        hashed.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy() if tensor.ndim else tensor.cpu().numpy())
    config = {key: str(value) for key, value in model.config.to_dict().items() if key not in _BESIDE}
    fast = getattr(tokenizer, "is_fast", False)
    words = tokenizer.backend_tokenizer.to_str() if fast else sorted(tokenizer.get_vocab().items())
    ends = str(model.generation_config.eos_token_id)
    hashed.update(json.dumps([config, words, str(getattr(tokenizer, "chat_template", None)), ends], sort_keys=True).encode())
    return hashed.hexdigest()
