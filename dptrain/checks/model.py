"""Checks a model by the start of a real run: own keys, policy and ledger in a folder that is thrown away, and rows of nobody.

There is no list of refusals here. Whatever `PrivateTraining.prepare`, the probes and a first step refuse, the check refuses, by
the same code and sentence. What a refusal advises is then tried on a copy, and the run is started again.
"""

import copy
import io
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attest.errors import AttestError
from dptrain.checks.script import read
from dptrain.checks.subject import Loss, Rows, filled, load, loss_of, made_up_rows, told
from dptrain.checks.verdict import Checked, CheckedModel, Effect, Finding, NotChecked, quoted
from dptrain.data.items import decode_item, encode_item
from dptrain.engine import PrivateTraining
from dptrain.engine.one_owner import owners_policy
from dptrain.engine.start import ContentBranch, Unprobed
from dptrain.errors import DptrainError, UnsupportedModule, without_text
from dptrain.routing import FallbackNotice, fix
from dptrain.routing.couplings import Repaired, couplings
from dptrain.sandbox.isolation import IsolationNotice
from ledger.errors import LedgerError

ROUNDS = 12
"""Repairs that are tried one after the other, at most."""

CONTRIBUTIONS, BATCH = 24, 16
"""Contributions of the run that is thrown away, and how many a step draws: a full microbatch of a run by default."""

_TOLD = (FallbackNotice, ContentBranch, Unprobed, IsolationNotice)
"""Notices of a run that say something about a model."""

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

_UNDER = {"depth": ("from = 0.0", "from = 0.5"), "certified": ("[floors]", 'exactness = "certified"\n\n[floors]')}
"""Words of a policy that ask more of a model, and what they change in the one of `PrivateTraining.own`."""

_FIX = "model = dptrain.fix(model)"
_NO_CACHE = 'for part in model.modules(): vars(part).get("config", model.config).use_cache = False'


@dataclass(frozen=True)
class _Tried:
    """Holds the outcome of one start: the refusal, if there was one, and the notices."""

    refusal: DptrainError | AttestError | LedgerError | None
    notices: tuple[Warning, ...]


def check(
    subject: nn.Module | str | Path,
    rows: Mapping[str, torch.Tensor] | None = None,
    *,
    loss: Loss | None = None,
    optimizer: Optimizer = torch.optim.AdamW,
    layers: str | list[str] | None = None,
) -> Checked:
    """Tells what a private run would refuse of a model or a script, with repairs, before there is a policy, a ledger or data.

    A model goes through `PrivateTraining.own`, ``prepare``, the probes of the start and one step, in a folder that is thrown
    away. Nothing is charged, and the model stays as it is: all of it happens to a copy. A script is read and not run.

    Args:
        subject: a module; a folder of transformers, ``module:name`` or ``file.py:name`` for one; or a ``.py`` script.
        rows: what the model takes, by name, each of shape (B, ...) with two rows or more; the probes run on them. Of tensors
            on the device ``meta`` types and sizes alone count, and the run makes values up. Default: these are found too.
        loss: ``(model, rows) -> losses`` of shape (B,), as `PrivateTraining.loss` takes it. Default: that of
            `PrivateTrainer` where there is one, else one that stands in.
        optimizer: a class of ``torch.optim``, or a function of parameters. layers: as `PrivateTraining.prepare`.

    Returns:
        The verdict; ``print`` shows it, and ``accepted`` is true where a run would take the subject as it is.

    Raises:
        NotChecked: code SUBJECT or ROWS, there is no model, or no rows that it takes.
    """
    if not isinstance(subject, nn.Module) and str(subject).endswith(".py"):
        return read(Path(subject))
    model = load(str(subject)) if not isinstance(subject, nn.Module) else subject
    start = _Starts(model, rows, loss=loss, optimizer=optimizer, layers=layers, own=model is not subject)
    return start.verdict(str(subject) if model is not subject else type(model).__name__, type(model).__name__)


class _Starts:
    """Starts of a throwaway run with one model, before and after repairs."""

    def __init__(
        self, model: nn.Module, rows: Rows | None, *, loss: Loss | None, optimizer: Optimizer, layers: Any, own: bool
    ) -> None:
        self._model = model if own else _copied(model)
        rows = made_up_rows(self._model) if rows is None else rows
        self._given = not any(value.is_meta for value in rows.values())
        self._loss, self._what = loss, "yours"
        if self._loss is None:
            self._loss, rows, self._what = loss_of(self._model, rows)
        self._rows: Rows = filled(rows)
        self._optimizer = optimizer
        self._layers = layers
        self._count = len(next(iter(self._rows.values())))

    def verdict(self, place: str, kind: str) -> CheckedModel:
        """Starts the run, tries what its refusals advise, and starts it again, until it begins or nothing helps."""
        model = self._model
        whole, trained = (sum(p.numel() for p in model.parameters() if p.requires_grad or not only) for only in (False, True))
        found: list[Finding] = []
        for _ in range(ROUNDS):
            tried = self._start(model)
            if tried.refusal is None:
                break
            if tried.refusal.code == "NO_LAYER_STACK" and self._layers is None:
                self._layers = [""]  # the model itself is one layer
                found += _findings(model, tried.refusal, [], 'private.prepare(model, optimizer, collate, layers=[""])')
                continue
            known = list(couplings(model))
            repaired, repair = self._repaired(model, tried.refusal, known)
            found += _findings(model, tried.refusal, known, repair)
            if repaired is None:
                break
            model = repaired
        begins = tried.refusal is None
        return CheckedModel(
            subject=place if place == kind else f"{place} ({kind})",
            findings=tuple(found),
            notes=tuple(_notes(tried.notices, made_up=not self._given)),
            parameters=whole,
            trained=trained,
            left=sum(p.numel() for p in model.parameters() if p.requires_grad) if begins else None,
            rows=told(self._rows),
            made_up=not self._given,
            loss=self._what,
            under={word: self._refused_under(model, *change) for word, change in _UNDER.items()} if begins else {},
        )

    def _start(self, model: nn.Module) -> _Tried:
        """Takes a model through the start of a run and one step."""
        notices: list[Warning] = []
        with _thrown_away(notices) as folder, torch.random.fork_rng(devices=[]):
            private = None
            try:
                private = PrivateTraining.own(
                    range(CONTRIBUTIONS), batch_size=BATCH, epochs=2, directory=folder / "run", progress=False
                )
                optimizer = self._made(model)
                bound, optimizer, steps = private.prepare(model, optimizer, self._collate, **self._settings(), dry_run=True)
                assert self._loss is not None
                loss = private.loss(self._loss)
                for step in islice(steps, 1):
                    for rows in step:
                        private.backward(loss(bound, rows), rows)
                    optimizer.step()
                steps.finish()
            except (DptrainError, AttestError, LedgerError) as error:
                return _Tried(error, tuple(notices))
            except Exception as error:
                told = f"the model or the loss raises on these rows ({without_text(error)}: {error})"
                raise NotChecked("ROWS", f"{told}; give other rows or a loss") from error
            finally:
                if private is not None:
                    private.close()
        return _Tried(None, tuple(notices))

    def _refused_under(self, model: nn.Module, old: str, new: str) -> str | None:
        """Returns the code by which `prepare` refuses a model under another policy; None where it takes it."""
        text = owners_policy(
            CONTRIBUTIONS, target_epsilon=8.0, epochs=2, batch_size=BATCH, delta=None, clip_norm=1.0, corpus="check"
        )
        lines = [encode_item(number) for number in range(CONTRIBUTIONS)]
        with _thrown_away([]) as folder, torch.random.fork_rng(devices=[]):
            private = None
            try:
                private = PrivateTraining.one_owner(folder / "run", text.replace(old, new), {"own": lines}, progress=False)
                settings = {**self._settings(), "decode": decode_item}
                private.prepare(model, self._made(model), self._collate, **settings, dry_run=True)
            except (DptrainError, AttestError, LedgerError) as error:
                return str(error.code)
            finally:
                if private is not None:
                    private.close()
        return None

    def _made(self, model: nn.Module) -> torch.optim.Optimizer:
        return self._optimizer([p for p in model.parameters() if p.requires_grad])

    def _settings(self) -> dict[str, Any]:
        """Returns arguments of `prepare`; a contribution is the number of its row."""
        probe = [encode_item(CONTRIBUTIONS + place) for place in range(min(self._count, BATCH))] if self._given else None
        return {"layers": self._layers, "probe": probe}

    def _collate(self, numbers: list[int]) -> dict[str, torch.Tensor]:
        places = torch.tensor(numbers) % self._count
        return {key: value[places] for key, value in self._rows.items()}

    @staticmethod
    def _repaired(model: nn.Module, refusal: Any, known: Sequence[tuple[str, str]]) -> tuple[nn.Module | None, str]:
        """Does what a refusal advises, where it says so: `fix`, no cache, or what it names frozen as long as half is left."""
        if (refusal.code, refusal.sentence) in known:
            with warnings.catch_warnings(record=True) as noticed:
                warnings.simplefilter("always")
                fixed = fix(model)
            return (fixed, _FIX) if any(item.category is Repaired for item in noticed) else (None, "")
        if not isinstance(refusal, UnsupportedModule) or "freeze" not in refusal.sentence.lower():
            return None, ""
        config = getattr(model, "config", None)
        if "use_cache=False" in refusal.sentence and getattr(config, "use_cache", None):
            for part in model.modules():
                vars(part).get("config", config).use_cache = False
            return model, _NO_CACHE
        parameters = dict(model.named_parameters())
        for name in _named(model, refusal.sentence):
            one = name in parameters
            tensors = [parameters[name]] if one else list(model.get_submodule(name).parameters())
            moved = sum(tensor.numel() for tensor in tensors if tensor.requires_grad)
            if not 0 < 2 * moved <= sum(p.numel() for p in parameters.values() if p.requires_grad):
                continue
            for tensor in tensors:
                tensor.requires_grad_(False)
            return model, f"model.{'get_parameter' if one else 'get_submodule'}({name!r}).requires_grad_(False)"
        return None, ""


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        told = f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error})"
        raise NotChecked("SUBJECT", f"{told}; name a callable that makes it, as module:callable") from error


@contextmanager
def _thrown_away(notices: list[Warning]) -> Iterator[Path]:
    """A folder for a run that nobody keeps; what the run says goes into a list, and nothing to a screen."""
    with tempfile.TemporaryDirectory(prefix="dptrain-check-") as folder, warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        with redirect_stderr(io.StringIO()):
            try:
                yield Path(folder)
            finally:
                notices += [item.message for item in noticed if isinstance(item.message, _TOLD)]


def _named(model: nn.Module, sentence: str) -> list[str]:
    """Returns modules and tensors of a model that a sentence of a run names, by quotes or as ``name (Class)``."""
    names = dict(model.named_modules()) | dict(model.named_parameters())
    found = re.findall(r"'([^']+)'|([\w.]+) \((\w+)\)", sentence)
    named = [quote or (name if type(names.get(name)).__name__ == kind else "") for quote, name, kind in found]
    return [name for name in dict.fromkeys(named) if name and name in names]


def _findings(model: nn.Module, refusal: Any, known: Sequence[tuple[str, str]], repair: str) -> list[Finding]:
    """Returns the refusal of a run; of couplings that show without running the model, all that would come after it too."""
    found: dict[str, list[str]] = {refusal.code: [refusal.sentence]}
    for code, sentence in known if (refusal.code, refusal.sentence) in known else ():
        found.setdefault(code, []).append(sentence)
    return [
        Finding(Effect.REFUSED, code, ", ".join(quoted(_places(model, sentences))), sentences[0], repair)
        for code, sentences in found.items()
    ]


def _places(model: nn.Module, sentences: list[str]) -> list[str]:
    return list(dict.fromkeys(name for sentence in sentences for name in _named(model, sentence)[:1]))


def _notes(notices: tuple[Warning, ...], *, made_up: bool) -> Iterator[str]:
    """Yields what a run says of the model, slower classes together, and what no check has seen."""
    told = [re.search(r"\((\w+)\)", str(one)) for one in notices if isinstance(one, FallbackNotice)]
    slow = sorted({match[1] for match in told if match})
    if slow:
        yield f"slower, as they run once more for every microbatch: {', '.join(slow)}"
    yield from dict.fromkeys(str(one) for one in notices if not isinstance(one, FallbackNotice))
    if made_up:
        yield "not seen: your rows, your loss and your loop; rows were made up from types and sizes"
