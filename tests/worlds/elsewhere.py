"""Clients of a server of the tests that run its base model themselves, and what the adapter is to give them."""

import json
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from dptrain.inference.remote import Client
from tests.worlds.servers import Running, model_folders


def client(world: Running, name: str = "anna") -> Client:
    """Returns the package's own client, over the server of a test."""
    made = Client("http://testserver", world.tokens[name])
    made._http = world.http  # type: ignore[assignment]
    made._http.headers = {**world.headers(name)}  # type: ignore[assignment]
    return made


def base() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folders()[0]
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def adapted(prompt: str, tokens: int) -> str:
    from peft import PeftModel

    model, tokenizer = base()
    made: Any = PeftModel.from_pretrained(model, model_folders()[1] / "pub").eval()
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    found = made.generate(input_ids=ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return tokenizer.decode(found[0], skip_special_tokens=True)[len(tokenizer.decode(ids[0], skip_special_tokens=True)) :]


def pair() -> tuple[np.ndarray, np.ndarray, float]:
    """Returns A, B and the scaling as they lie in the release."""
    folder = model_folders()[1] / "pub"
    found = load_file(folder / "adapter_model.safetensors")
    A = next(value for key, value in found.items() if "lora_A" in key)
    B = next(value for key, value in found.items() if "lora_B" in key)
    config = json.loads((folder / "adapter_config.json").read_text())
    return A.astype("f8"), B.astype("f8"), config["lora_alpha"] / config["r"]
