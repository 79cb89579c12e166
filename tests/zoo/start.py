"""A family through the very start of a run, by the user's door: signed world, ``open``, ``prepare``, the loop of the README.

Nothing here looks inside the engine. What is seen is what a user sees: the run goes on, or it is refused with a code and a
sentence, or an error that is no refusal escapes.
"""

import json
import re
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attest.errors import AttestError
from dptrain import PrivateTraining
from dptrain.errors import DptrainError
from ledger.errors import LedgerError
from tests.worlds.training import CLASSES, make_world
from tests.zoo.family import Family, Layers

STEPS = 2
PER_CLASS = 8
RATE = "0.8"
"""Twenty-four contributions, each drawn with this probability: a step has two microbatches or one, of sixteen at most."""

EXACT, RAW = "exact", "RAW"
"""The start passed and two steps ran; an error without a code of ours came out."""

STACKS = frozenset({"NO_LAYER_STACK", "DEPTH_ORDER", "LAYERS_OF_SEVERAL_STACKS"})
"""Refusals whose advice is to pass ``layers=``."""

ASKS = "PROBE_NEEDED"
"""The refusal, or where the loop itself raises the notice, whose advice is to pass ``probe=``."""

PROBES = 8
"""Records given as ``probe=`` where they are asked for."""


@dataclass(frozen=True)
class Outcome:
    """What became of one start.

    Attributes:
        verdict: ``exact``, the code of a refusal, or ``RAW``. sentence: of the refusal, or the error as it escaped.
        stage: ``open``, ``prepare``, ``probes``, ``step 1``, ... layers: what was passed as ``layers=``; probe: whether
            ``probe=`` was needed. earlier: (layers, code) of what was refused before. slow: classes on the generic path.
            unprobed: trained tensors in whose gradient the probes saw nothing. notices: other warnings, by class.
            seconds: in all; probing: in the probes of the start; stepping: in the two steps after them.
    """

    verdict: str
    stage: str = ""
    sentence: str = ""
    layers: Layers = None
    probe: bool = False
    earlier: tuple[tuple[Layers, str], ...] = ()
    slow: tuple[str, ...] = ()
    unprobed: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    seconds: float = 0.0
    probing: float = 0.0
    stepping: float = 0.0


def records_of(family: Family):
    """Contributions of a corpus: of every four, one holds two examples."""

    def record(seed: int) -> Any:
        if seed % 4 == 1:
            return [family.record(2 * seed), family.record(2 * seed + 1)]
        return family.record(2 * seed)

    return record


def start(family: Family, variant: str) -> Outcome:
    """The outcome of a start, after whatever advice the refusals on the way gave."""
    began = time.perf_counter()
    earlier: list[tuple[Layers, str]] = []
    first: Outcome | None = None
    found = None
    with tempfile.TemporaryDirectory() as folder:
        for number, layers in enumerate(family.layers):
            found = _attempt(family, variant, Path(folder) / str(number), layers, probe=False)
            if found.verdict == ASKS:
                found = _attempt(family, variant, Path(folder) / f"{number}p", layers, probe=True)
            if found.verdict not in STACKS:
                break
            first = first or found
            earlier.append((layers, found.verdict))
    assert found is not None
    if found.verdict in STACKS and first is not None:
        found, earlier = first, earlier[1:]
    return replace(found, earlier=tuple(earlier), seconds=time.perf_counter() - began)


def _attempt(family: Family, variant: str, root: Path, layers: Layers, *, probe: bool) -> Outcome:
    classes = re.sub("from = [0-9.]+", "from = 0.0", CLASSES) if family.shallow else CLASSES
    extra = "[gate]\nmax_examples = 2\n"
    world = make_world(
        root, per_class=PER_CLASS, steps=STEPS, rate=RATE, classes=classes, record=records_of(family), policy_extra=extra
    )
    model = family.build(variant)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    records = [json.dumps(family.record(7_000 + i)).encode() for i in range(PROBES)] if probe else None
    stage, private = "open", None
    began = probed = 0.0
    made: dict[str, Any] = {"layers": layers, "probe": probe}
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        try:
            private = PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False)
            stage = "prepare"
            model, optimizer, steps = private.prepare(model, optimizer, family.collate, layers=layers, probe=records)
            stage, began = "probes", time.perf_counter()
            for step in steps:
                for rows in step:
                    if private.prepared.attempt is not None:
                        stage, probed = f"step {step.number}", probed or time.perf_counter()
                    private.backward(family.loss(model, rows), rows)
                optimizer.step()
                stage = f"step {step.number + 1}"
            probed = probed or time.perf_counter()
            unprobed = private.prepared.probe.unprobed
            made |= {"unprobed": unprobed, "probing": probed - began, "stepping": time.perf_counter() - probed}
            return Outcome(EXACT, **made, **_told(noticed))
        except (DptrainError, AttestError, LedgerError) as error:
            return Outcome(str(error.code), stage, getattr(error, "sentence", str(error)), **made, **_told(noticed))
        except Exception as error:
            text = str(error).splitlines()[0] if str(error) else ""
            said = f"{type(error).__name__}: {text}{_where(error)}"[:400]
            if private is not None:
                private.close()
                private = None
            asks = any(note.startswith(ASKS) for note in getattr(error, "__notes__", ()))
            return Outcome(ASKS if asks else RAW, stage, said, **made, **_told(noticed))
        finally:
            if private is not None:
                private.close()


def _where(error: BaseException) -> str:
    """The innermost room of ours that an error went through."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        if name.startswith("dptrain"):
            place = f" (in {name}.{trace.tb_frame.f_code.co_name})"
        trace = trace.tb_next
    return place


def _told(noticed: list[warnings.WarningMessage]) -> dict[str, tuple[str, ...]]:
    """Classes of modules that take the generic path, as the notices name them, and classes of all other notices of ours."""
    slow, others = set(), set()
    for item in noticed:
        if item.category.__name__ == "FallbackNotice":
            told = str(item.message).partition(" has no rule")[0]
            slow.add(told.rpartition("(")[2].rstrip(")"))
        elif item.category.__module__.startswith("dptrain"):
            others.add(item.category.__name__)
    return {"slow": tuple(sorted(slow)), "notices": tuple(sorted(others))}
