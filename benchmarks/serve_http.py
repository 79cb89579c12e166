"""Measures a whole server over a real release: what gate and budget add to a request, what 32 streams lose by them, and a soak.

The release, its gate and the budget log are those of `dptrain demo --serve`, made small; requests come over HTTP from another
process. For throughput the model behind the gate is a random Llama of 20 M parameters, or stories260K, in place of the demo's:
gate and budget do not look at it. Three ways are measured in turns, in one run: *open*, neither gate nor budget; *paid*, both,
and no noise; *released*, both and a released state behind every token.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch
import uvicorn

from dptrain.demo.language import make_world
from dptrain.serve.access import add_token
from dptrain.serve.adapters import LastAdapter
from dptrain.serve.app import make_app
from dptrain.serve.config import ServeConfig
from dptrain.serve.decoding import Served
from dptrain.serve.paying import create_log
from dptrain.serve.service import Service
from ledger.release import Rights

STREAMS = 32
TOKENS = 32
WAYS = ("open", "paid", "released")


def small_llama() -> Any:
    """Returns a random Llama of 20 M parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192, hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
            num_key_value_heads=6, max_position_embeddings=512,
        )
    )  # fmt: skip


@contextmanager
def server(folder: Path, model: str, data: Path | None) -> Iterator[tuple[Service, str, str]]:
    """Runs a server in a thread over the demo's release; yields it, its address and a client's token."""
    if not (folder / "world").exists():
        make_world(folder / "world", quick=True)
    table = {
        "server": {"name": "bench.example", "port": 0, "streams": STREAMS, "waiting": STREAMS, "request_seconds": 3000.0},
        "gate": {"release": "world/model", "base": "world/base", "keys": ["world/ledger.pub"]},
        "classes": {
            "paid": {"artifacts": ["adapter:harbour"], "mode": "released"},
            "open": {"artifacts": ["adapter:harbour"]},
            "released": {"artifacts": ["adapter:harbour"], "mode": "released"},
        },
        "tokens": "tokens.toml",
        "budget": {"log": "budget.db", "key": "budget.key", "caps": {"user": {"epsilon": 40_000.0, "delta": 1e-5}}},
        "release": {"sigma": 4.8448, "delta": 1e-5},
        "limits": {"requests_per_minute": 10**7, "streams_per_client": 2 * STREAMS},
    }
    config = ServeConfig.of(table, folder)
    if not (folder / "budget.db").exists():
        create_log(config).close()
    rights = Rights(dict.fromkeys(("harbour", "orchard", "workshop")), told=True)
    token = add_token(config.tokens, f"load-{time.time_ns()}", rights=rights)
    service = Service(config)
    if model != "demo":
        _exchange(service, model, data)
    running = uvicorn.Server(uvicorn.Config(make_app(service), port=0, log_level="error", access_log=False, lifespan="off"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    try:
        yield service, f"http://127.0.0.1:{port}", token
    finally:
        running.should_exit = True
        thread.join()
        service.close()


def _exchange(service: Service, model: str, data: Path | None) -> None:
    """Puts another model behind the gate, with an adapter of its head of rank 16."""
    known = service.artifacts.model("base")
    if model == "20M":
        made = small_llama()
    else:
        from transformers import AutoModelForCausalLM

        assert data is not None
        made = AutoModelForCausalLM.from_pretrained(data / "stories260K" / "hf")
    served = replace(Served.of(made, known.tokenizer), stops=frozenset())
    rng = np.random.default_rng(0)
    width, words = made.config.hidden_size, made.config.vocab_size
    for name in list(service.artifacts._models):
        service.artifacts._models[name] = served
    for name in list(service.artifacts._last):
        A, B = rng.normal(size=(16, width)), rng.normal(size=(words, 16)) * 1e-3
        service.artifacts._last[name] = LastAdapter(name, A, B, 1.0)


@contextmanager
def way(service: Service, name: str) -> Iterator[None]:
    """Makes the server answer in one of the ways while the context is open."""
    if name == "released":
        yield
    elif name == "paid":
        import dptrain.serve.service as module

        class Silent(module._Reading):
            def __call__(self, state: torch.Tensor) -> torch.Tensor:
                return torch.zeros(())

            def end(self) -> None:
                self.answer._made = self.answer.worth.releases

        with mock.patch.object(module, "_Reading", Silent):
            yield
    else:
        fixed: dict[str, Any] = {}

        def admit(model: str, rights: Any, *, holder: str | None = None) -> Any:
            if model not in fixed:
                fixed[model] = kept(model, rights, holder=holder)
            return fixed[model]

        kept = service.gate.admit
        with mock.patch.object(type(service.gate), "admit", staticmethod(admit)):
            yield


def load(address: str, token: str, model: str, streams: int, rounds: int, tokens: int) -> tuple[float, int]:
    """Asks in so many streams at once, each for so many answers one after another; returns seconds and tokens that came."""
    import httpx

    async def one(client: httpx.AsyncClient) -> int:
        came = 0
        for _ in range(rounds):
            body = {"model": model, "prompt": "the boat", "max_tokens": tokens, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                assert answer.status_code == 200, await answer.aread()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {") and '"usage"' in line:
                        came += json.loads(line[6:])["usage"]["completion_tokens"]
        return came

    async def all_of_them() -> tuple[float, int]:
        limits = httpx.Limits(max_connections=streams + 4, max_keepalive_connections=streams + 4)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=address, headers=headers, timeout=3000, limits=limits) as client:
            start = time.perf_counter()
            came = await asyncio.gather(*(one(client) for _ in range(streams)))
            return time.perf_counter() - start, sum(came)

    return asyncio.run(all_of_them())


def _loaded(*asked: Any) -> tuple[float, int]:
    """Runs `load` in another process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: tuple[float, int] = pool.apply(load, asked)
    return found


def latency(folder: Path, requests: int) -> dict[str, Any]:
    """Times gate and budget of one request after another: from its body to its durable reservation, inside the server."""
    with server(folder, "demo", None) as (service, address, token):
        took: list[float] = []
        with mock.patch.object(service.metrics.before, "observe", took.append):
            _loaded(address, token, "released", 1, requests, 4)
    took = took[10:]
    return {"requests": len(took), "p50_ms": 1e3 * median(took), "p99_ms": 1e3 * sorted(took)[int(0.99 * len(took))]}


def streams(folder: Path, model: str, data: Path | None, rounds: int, repeats: int) -> dict[str, Any]:
    """Counts tokens a second at 32 streams, the three ways in turns."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    with server(folder, model, data) as (service, address, token):
        _loaded(address, token, "open", STREAMS, 1, 4)
        for _ in range(repeats):
            for name in WAYS:
                with way(service, name):
                    seconds, came = _loaded(address, token, name, STREAMS, rounds, TOKENS)
                found[name].append(came / seconds)
    rates = {name: median(each) for name, each in found.items()}
    pairs = {name: median(a / b for a, b in zip(found[name], found["open"], strict=True)) for name in WAYS[1:]}
    return {"model": model, "tokens_per_second": rates, "of_open": pairs, "repeats": repeats}


def soak(folder: Path, model: str, data: Path | None, minutes: float) -> dict[str, Any]:
    """Runs 32 streams for so long, and samples the memory of the server once a round."""
    sizes: list[tuple[float, int]] = []
    came, start = 0, time.monotonic()
    with server(folder, model, data) as (service, address, token):
        while time.monotonic() - start < 60 * minutes:
            came += _loaded(address, token, "released", STREAMS, 4, TOKENS)[1]
            sizes.append((time.monotonic() - start, _resident()))
        left = {"running": service.scheduler.running, "open": len(service.till.log.state.open) if service.till else 0}
    warm = [size for when, size in sizes if when > 60 * minutes * 0.2]
    half = len(warm) // 2
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    first, second = median(warm[:half]) / 2**20, median(warm[half:]) / 2**20
    told = {"minutes": minutes, "tokens": came, "rounds": len(sizes), "left": left}
    return told | {"peak_mib": peak, "first_half_mib": first, "second_half_mib": second}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what was measured as JSON, one object a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["latency", "streams"], help="latency, streams, soak; default: first two")
    parser.add_argument("--directory", type=Path, required=True, help="where release and budget lie: the disk to be measured")
    parser.add_argument("--data", type=Path, help="holds stories260K/")
    parser.add_argument("--models", nargs="*", default=["20M"], help="20M, stories260K, demo")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10.0)
    asked = parser.parse_args(arguments)
    asked.directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for part in asked.parts:
        if part == "latency":
            print(json.dumps({"latency": latency(asked.directory, asked.requests)}), flush=True)
        for model in asked.models if part == "streams" else ():
            print(json.dumps({"streams": streams(asked.directory, model, asked.data, asked.rounds, asked.repeats)}), flush=True)
        for model in asked.models if part == "soak" else ():
            print(json.dumps({"soak": soak(asked.directory, model, asked.data, asked.minutes)}), flush=True)


if __name__ == "__main__":
    main()
