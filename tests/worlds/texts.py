"""A server of texts from private references: a task of few words, references that no text may show, and who has spent what."""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attest import keys, signed_file
from attest.attestation import Attestation
from attest.descriptor import GENERATE, TRAIN
from dptrain.inference.invisibleink import Plan
from tests.worlds.gate import OWNER, registry_bytes
from tests.worlds.generating import attested, signed
from tests.worlds.listening import until
from tests.worlds.registries import put
from tests.worlds.servers import Running, running

TASK = """
public = "the {kind} of"
private = "[[the crew sees {reference} . ]]the {kind} of"
labels = ["kind"]
reference_tokens = 6
"""
WORDS = ["boat", "orchard"]
TOKENS, BATCH = 6, 2
PLAN = Plan.for_epsilon(3.0, delta=1e-5, batch=BATCH, tokens=TOKENS, k=20)
COST = TOKENS * PLAN.nano_rho
"""Of a text, for each of its references."""

REFERENCES = ["gull rope mast", "storm calm", "", "salt salt salt fish net", "apple pear plum", "root", "dusk", "bee tree leaf"]

GENERATION: dict[str, Any] = {
    "task": "tale.toml", "artifact": "adapter:pub", "references": "references.jsonl", "salt": "salt", "delta": 1e-5,
    "epsilon": 3.0, "batch": BATCH, "tokens": TOKENS, "top_k": 20, "labels": {"kind": WORDS},
}  # fmt: skip
BUDGET: dict[str, Any] = {"user": {"epsilon": 20.0, "delta": 1e-5}, "contribution": {"epsilon": 3.0, "delta": 1e-5}}
"""Each reference pays for one text."""

RICH: dict[str, Any] = {**BUDGET, "contribution": {"epsilon": 400.0, "delta": 1e-5}}


def write(folder: Path, references: list[str] | None = None) -> None:
    """Writes task and references where there are none."""
    rows = [{"id": f"note-{n}", "text": text} for n, text in enumerate(REFERENCES if references is None else references)]
    for name, text in (("tale.toml", TASK), ("references.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))):
        if not (folder / name).exists():
            (folder / name).write_text(text)


def changes(caps: dict[str, Any] = BUDGET, generation: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Returns what such a server has in its file."""
    given = {**GENERATION, **(generation or {})}
    told = {"tales": {name: value for name, value in given.items() if value is not None}}
    return {"generations": told, "budget": {"caps": caps, **more.pop("budget", {})}, **more}


@contextmanager
def telling(folder: Path, caps: dict[str, Any] = BUDGET, *, wait: bool = True, **more: Any) -> Iterator[Running]:
    """Runs the server, and waits until its rows were tested."""
    if not (folder / "tale.toml").exists():
        write(folder)
    with running(folder, **changes(caps, **more)) as world:
        if wait:
            until(lambda: not world.service.generations.problems(), 60)  # type: ignore[union-attr]
            world.calls.clear()
        yield world


def tell(world: Running, client: str = "anna", **asked: Any) -> Any:
    """Asks for a text."""
    return world.post("/v1/dp/generations", {"generation": "tales", "labels": {"kind": "boat"}, **asked}, client)


def offered(world: Running) -> Any:
    return world.service.generations.all["tales"]  # type: ignore[union-attr]


def batches(world: Running) -> list[Any]:
    """Returns the batches in the order in which they are taken."""
    return [batch for found in offered(world).pool._batches.values() for batch in found]


def spent(world: Running) -> list[int]:
    """Returns what the references of each batch have spent, in tokens; -1 while they are not alike."""
    log = world.service.till.log  # type: ignore[union-attr]
    log.refresh()
    found = []
    for batch in batches(world):
        amounts = {log.state.spent(log.account(one.unit)) for one in batch}
        assert all(amount % PLAN.nano_rho == 0 for amount in amounts)
        found.append(amounts.pop() // PLAN.nano_rho if len(amounts) == 1 else -1)
    return found


RULE = {"references": BATCH, "clip_norm_micro": 500_000, "tokens": TOKENS, "top_k": 20, "max_rho_nano": 2 * TOKENS * 31_250_100}
"""Numbers of a class that contributors signed: two texts of a contribution, and nothing more."""

ATTESTED: dict[str, Any] = {
    **dict.fromkeys(("references", "epsilon", "batch", "tokens", "top_k")),
    "attested": {
        "policy": "policy.cose", "owner_key": "owner.pub", "registry": "registry.cbor", "class": "sensitive",
        "corpus": ["corpus"],
    },
}  # fmt: skip
"""A generation in whose place contributors signed the numbers."""

NOTES = ["gull rope mast", "storm calm", "salt net", "root"]


def write_attested(folder: Path, texts: list[str] | None = None, **rule: Any) -> None:
    """Writes task, policy, registry and a corpus of contributions, of which one was signed for training alone."""
    (folder / "tale.toml").write_text(TASK)
    policy = signed(**{**RULE, **rule})
    signed_file.write(folder / "policy.cose", policy.payload, policy.sign1)
    keys.save_public_key(folder / "owner.pub", keys.public_bytes(OWNER), "owner")
    put(folder / "registry.cbor", registry_bytes())
    (folder / "corpus").mkdir(exist_ok=True)
    found = NOTES if texts is None else texts
    for number, text in enumerate(found):
        sign(folder, number, text)
    sign(folder, len(found), "dusk dawn", purposes=(TRAIN,))


def sign(
    folder: Path, number: int, text: str, *, purposes: tuple[str, ...] = (GENERATE,), longer: int = 0, **terms: Any
) -> Attestation:
    """Writes a contribution, and what Alice signs of it, which is returned."""
    now = int(time.time())
    told = {"content_hash": hashlib.sha256(text.encode()).digest(), "not_before": now - 1000, "not_after": now + 86400 + longer}
    path = folder / "corpus" / f"{number}.txt"
    path.write_text(text)
    made = attested(number, purposes=purposes, **told, **terms)
    path.with_name(f"{path.name}.attest").write_bytes(made.to_cbor())
    return made
