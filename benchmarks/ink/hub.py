"""Runs the published settings on models of the hub, with the product itself: its tasks, plan, batches, rows and draws.

    python -m benchmarks.ink.run --model tinyllama --data tab --references echr_train.json --out tab.json

`settings.toml` has models and numbers. ``--weights FOLDER`` takes a model from a folder in place of the hub's name. A run is
made smaller by ``--texts``, ``--batch``, ``--tokens`` and ``--epsilons``. References are batched within public labels by a
fresh salt, and draws are the product's, by the entropy of the system: each text is private as the plan says. Held-out texts are
records that are in no batch, in equal number. Nothing is billed to a log, and several epsilons on one file add up;
``dptrain generate`` is for use. The figures are private statistics: they are computed from held-out records.
"""

import argparse
import json
import secrets
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.__main__ import versions
from benchmarks.ink import entities, metrics
from benchmarks.ink.loaders import LOADERS, WITHHELD, Record
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink import InvisibleInk, Plan, Task, batches_by_label, fresh_salt

SETTINGS: Final = Path(__file__).with_name("settings.toml")


@dataclass(frozen=True)
class Setting:
    """Holds what the page publishes for one model and data set.

    Attributes:
        hub: name of the model. batch: sizes B. tokens: T. texts: how many are written.
    """

    hub: str
    dtype: str
    batch: tuple[int, ...]
    tokens: int
    texts: int
    tau: float
    k: int
    delta: float
    epsilons: tuple[float, ...]
    encoder: str
    scorer: str


def names() -> dict[str, list[str]]:
    """Returns the data sets that each model has settings for."""
    table = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    return {model: sorted(table["data"].get(model, {})) for model in table["model"]}


def setting(model: str, data: str) -> Setting:
    """Returns the published setting.

    Raises:
        ConfigError: code SETTING, there is none.
    """
    known = names()
    if data not in known.get(model, ()):
        listed = "; ".join(f"{name}: {', '.join(sets)}" for name, sets in known.items())
        raise ConfigError("SETTING", f"no setting of model {model!r:.40} on {data!r:.40}; there are {listed}")
    table = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    shared = {name: table[name] for name in ("delta", "epsilons", "encoder", "scorer")}
    found = table["model"][model] | table["data"][model][data] | shared
    return Setting(**found | {name: tuple(found[name]) for name in ("batch", "epsilons")})


class Counted:
    """Grants all tokens and counts them: a study has no log."""

    def __init__(self) -> None:
        self.computed = 0

    def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> Any:
        return type("Receipt", (), {"releases": releases})()

    def settle(self, receipt: Any, computed: int) -> None:
        self.computed += computed


def divided(records: Sequence[Record], batch: int, texts: int) -> tuple[list[tuple[Record, ...]], list[Record]]:
    """Returns batches within labels, and as many held-out records as there are texts.

    Raises:
        ConfigError: code REFERENCES, there are too few records.
    """
    by_id = {one.id: one for one in records}
    labels = {one.id: json.dumps(one.labels, sort_keys=True) for one in records}
    found = [each for group in batches_by_label(labels, batch, salt=fresh_salt()).values() for each in group]
    secrets.SystemRandom().shuffle(found)
    chosen = [tuple(by_id[name] for name in each) for each in found[:texts]]
    taken = {one.id for each in chosen for one in each}
    rest = [one for one in records if one.id not in taken and one.text]
    secrets.SystemRandom().shuffle(rest)
    if len(chosen) < texts or len(rest) < texts:
        sentence = f"{len(records)} records make {len(chosen)} batches of {batch}, and {len(rest)} are left"
        raise ConfigError("REFERENCES", f"{sentence}; expected {texts} of both: ask for fewer texts, or a smaller B")
    return chosen, rest[:texts]


def written(
    model: Any, tokenizer: Any, task: Task, plan: Plan, groups: Sequence[Sequence[Record]], *, null: bool
) -> dict[str, Any]:
    """Returns the texts of one arm, with what they took; ``null`` gives it no reference, so that it writes public texts."""
    ink, meter, start = InvisibleInk(model, tokenizer, task, plan), Counted(), time.perf_counter()
    texts = [
        ink.generate(
            [None if null else one.text for one in group][: plan.batch], meter, labels=dict(group[0].labels) or None
        ).text
        for group in groups
    ]
    return {"texts": texts, "tokens": meter.computed / len(groups), "clock": round(time.perf_counter() - start, 2)}


def measured(found: dict[str, Any], held_out: Sequence[str], encoder: metrics.Encoder | None, scorer: Any) -> dict[str, Any]:
    """Returns the measures of an arm's texts beside held-out ones; MAUVE where there are 40."""
    texts = [text or "." for text in found.pop("texts")]
    row = dict(found)
    if scorer is not None:
        tokenizer, model = scorer
        begin = [[tokenizer.bos_token_id or tokenizer.eos_token_id]]
        ids = [[tokenizer(text)["input_ids"][:512] or begin[0] for text in each] for each in (texts, held_out)]
        row["perplexity_gap"] = metrics.gaps(*(metrics.perplexities(model, begin * len(each), each, 4) for each in ids))
    if encoder is not None and len(texts) >= 40:
        row["mauve"] = {str(key): value for key, value in metrics.mauve(encoder(held_out), encoder(texts)).items()}
    return row


def encoder_of(name: str) -> metrics.Encoder | None:
    """Returns the encoder of a name: of the hub, ``minilm``, or none."""
    if name in ("none", "minilm"):
        return None if name == "none" else metrics.minilm
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(name)
    return lambda texts: np.asarray(model.encode(list(texts)), dtype=float)


def main(given: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parser = argparse.ArgumentParser(prog="benchmarks.ink.run", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, choices=list(names()))
    parser.add_argument("--data", required=True, choices=list(LOADERS))
    parser.add_argument("--references", type=Path, required=True, metavar="FILE", help="as benchmarks.ink.loaders reads it")
    parser.add_argument("--weights", metavar="FOLDER", help="a model with its tokenizer, in place of the hub's name")
    parser.add_argument("--encoder", metavar="NAME", help="of MAUVE: a name of the hub, minilm, or none")
    parser.add_argument("--scorer", metavar="NAME", help="of perplexity: a name of the hub, a folder, or none")
    parser.add_argument("--tagger", action="store_true", help=f"count medical entities with {entities.MEDNER}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--texts", type=int)
    parser.add_argument("--epsilons", type=float, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("bench-ink-model.json"), metavar="JSON")
    options = parser.parse_args(given)
    known = setting(options.model, options.data)
    source = options.weights or known.hub
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, known.dtype)).to(options.device)
    scorer, name = None, options.scorer or known.scorer
    if name != "none":
        scorer = AutoTokenizer.from_pretrained(name), AutoModelForCausalLM.from_pretrained(name).eval()
    encoder = encoder_of(options.encoder or known.encoder)
    task, records = Task.shipped(options.data), list(LOADERS[options.data](options.references))
    texts, tokens, rows = options.texts or known.texts, options.tokens or known.tokens, []
    for B in options.batch or known.batch:
        groups, rest = divided(records, B, texts)
        held_out = [one.text for one in rest]
        for epsilon in (None, *(options.epsilons or known.epsilons)):
            how = {"delta": known.delta, "tokens": tokens, "tau": known.tau, "k": known.k}
            plan = Plan.for_epsilon(epsilon or 1.0, batch=B if epsilon else 1, **how)
            found = written(model, tokenizer, task, plan, groups, null=epsilon is None)
            said: dict[str, Any] = {"arm": "ink" if epsilon else "public", "epsilon": epsilon or 0.0, "B": B if epsilon else 0}
            if options.tagger:
                said["entities"] = entities.medical(found["texts"])
            if options.data not in WITHHELD:
                index = secrets.randbelow(texts)
                said["example"] = {"index": index, "text": found["texts"][index]}
            rows.append(said | {"clip": plan.clip if epsilon else 0.0} | measured(found, held_out, encoder, scorer))
            print(json.dumps({key: value for key, value in rows[-1].items() if key != "example"}), flush=True)
    result: Mapping[str, Any] = versions() | {
        "model": options.model, "weights": source, "data": options.data, "texts": texts, "T": tokens, "tau": known.tau,
        "k": known.k, "delta": known.delta, "encoder": options.encoder or known.encoder, "scorer": name, "rows": rows,
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0
