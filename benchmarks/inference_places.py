"""Measures what the published noise does where it is injected into a causal language model: norms, ratios, and NLL.

    python -m benchmarks.inference_places --model DIR --text FILE --out places.json

DIR is a model with its tokenizer as `from_pretrained` takes them, of any architecture; for stories260K `python -m
recipes.language.stories` makes one. The published page has a table of two places, with norms from before its clip. This one
has the embeddings, every layer, and what the head reads. It is an experiment, and no mode of a server: later layers read the
released states, and nothing is charged.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.__main__ import versions
from dptrain.blocks.stack import find_layer_names
from dptrain.inference import GaussianRelease
from dptrain.inference.preset import parameters_of


class Free:
    """Grants everything: a benchmark measures utility, and its text is public."""

    def __init__(self, releases: int) -> None:
        self.releases = releases

    def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> "Free":
        return self


def released(release: GaussianRelease, states: torch.Tensor) -> torch.Tensor:
    """Returns one release of every row; ``release`` has as many as there are rows."""
    paid = release.answer(Free(release.worth.releases))
    return torch.stack([paid.release(row).state for row in states])


def places(model: nn.Module, rows: torch.Tensor) -> list[dict[str, Any]]:
    """Returns one row of the table for every place, from the embeddings to what the head reads (``norm``).

    Args:
        model: a causal language model of transformers. rows: token ids, shape (sequences, length), of public text.

    Returns:
        ``median_norm``, that of the states in clear; ``noise_norm``, sigma times the root of d; both ratios; ``nll`` of the
        model with noise there and nowhere else, and ``nll_clear``, in nats a token.
    """
    preset = parameters_of({"preset": "published"})
    named: Any = model
    layers = [(f"layer {number}", model.get_submodule(name)) for number, name in enumerate(find_layer_names(model), 1)]
    found = []

    def nll() -> float:
        logits = named(rows).logits[:, :-1]
        return float(functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1)))

    clear = nll()
    for name, module in [("embeddings", named.get_input_embeddings()), *layers, ("norm", named.get_output_embeddings())]:
        seen: list[torch.Tensor] = []

        def noised(states: torch.Tensor, seen: list[torch.Tensor] = seen) -> torch.Tensor:
            seen.append(states)
            release = GaussianRelease.of(preset, tokens=states.shape[0] * states.shape[1])
            return released(release, states.reshape(-1, states.shape[-1])).view_as(states)

        with _injected(module, noised, before=name == "norm"):
            after = nll()
        norm = float(seen[0].norm(dim=-1).median())
        noise = preset.sigma * math.sqrt(seen[0].shape[-1])
        row = {
            "after": name, "median_norm": norm, "noise_norm": noise, "snr_before_clip": norm / noise,
            "snr_after_clip": min(norm, preset.clip) / noise, "nll": after, "nll_clear": clear,
        }  # fmt: skip
        print(row, flush=True)
        found.append(row)
    return found


@contextmanager
def _injected(module: nn.Module, noised: Any, *, before: bool) -> Iterator[None]:
    """Replaces what a module answers, or what it reads, while the block runs."""

    def inject(_: Any, given: Any, out: Any = None) -> Any:
        states = given if before else out
        return (noised(states[0]), *states[1:]) if isinstance(states, tuple) else noised(states)

    handle = module.register_forward_pre_hook(inject) if before else module.register_forward_hook(inject)
    try:
        yield
    finally:
        handle.remove()


def lines_of(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the table in Markdown."""
    columns = "noise after | median norm of states | norm of noise | signal / noise before the clip | after it"
    yield f"| {columns} | NLL, {rows[0]['nll_clear']:.2f} in clear |"
    yield "|---|---|---|---|---|---|"
    for one in rows:
        ratios = f"{one['snr_before_clip']:.3f} | {one['snr_after_clip']:.4f}"
        yield f"| {one['after']} | {one['median_norm']:.2f} | {one['noise_norm']:.1f} | {ratios} | {one['nll']:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="a causal model and its tokenizer")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="public text")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("inference_places.json"))
    options = parser.parse_args()

    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    began = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(options.model).eval().requires_grad_(False)
    wanted = options.sequences * options.length
    text = options.text.read_text(encoding="utf-8")[: 12 * wanted]
    ids = torch.tensor(AutoTokenizer.from_pretrained(options.model)(text)["input_ids"])[:wanted]
    if len(ids) < wanted:
        parser.error(f"{options.text} has {len(ids)} tokens, expected {wanted}; ask for fewer by --sequences or --length")
    with torch.no_grad():
        found = versions() | {"model": options.model.name, "places": places(model, ids.view(options.sequences, options.length))}
    found["seconds"] = time.perf_counter() - began
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(lines_of(found["places"])))


if __name__ == "__main__":
    main()
