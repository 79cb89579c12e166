"""`policy.toml`, the file that a person writes: decimals are read exactly, unknown keys refused with a suggestion."""

import difflib
import re
import tomllib
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from attest.descriptor import PUBLIC_CLIP_MICRO, PUBLIC_NOISE_MICRO
from attest.errors import PolicyRefused, ValueRefused
from attest.micro import to_fraction, to_micro
from attest.policy.depth import DepthRule
from attest.policy.noise import NoisePhase
from attest.policy.rules import ClassRule, Policy

_MAX_TEXT = 1 << 20
_ONE_OVER = re.compile(r"1/[1-9][0-9]{0,18}")
_DAY = 86400

_REQUIRED = ("corpus", "delta", "steps", "normalizer", "class")
_TOP = (
    *_REQUIRED,
    "accountant",
    "adjacency",
    "disclosure",
    "exactness",
    "redo_steps",
    "window_steps",
    "epoch_steps",
    "retention_epochs",
    "retention_hash_epochs",
    "noise",
    "sampling",
    "floors",
    "gate",
    "ledger",
    "isolation",
)
_TABLES = ("noise", "sampling", "floors", "gate", "ledger", "isolation")
_PLAIN = tuple(name for name in _TOP if name not in ("delta", "class", *_TABLES))
_NOISE = ("family", "injection", "microbatches", "phase", "budgets")
_PHASE = ("from_step", "scale")
_BUDGETS = ("embeddings", "layers", "head")
_SAMPLING = ("order",)
_FLOORS = ("clip_norm", "noise_multiplier")
_GATE = ("max_window_days", "contributor_cap", "max_examples")
_LEDGER = ("auditors", "auditor_quorum", "witnesses", "witness_quorum")
_ISOLATION = ("required",)
_BOUNDS = ("clip_norm", "noise_multiplier")
_CLASS_REQUIRED = ("name", *_BOUNDS, "sampling_rate", "depth")
_CLASS = (*_CLASS_REQUIRED, "max_window_days", "public", "max_epsilon_total")
_DEPTH = ("from", "to", "layers", "set", "adapter", "embeddings", "head", "heads", "experts")

_PLACES = {
    "above the first table": (*_PLAIN, "delta"),
    "into [noise]": _NOISE,
    "into [sampling]": _SAMPLING,
    "into [floors]": _FLOORS,
    "into [gate]": _GATE,
    "into [ledger]": _LEDGER,
    "into [isolation]": _ISOLATION,
    "into [[class]]": _CLASS,
}
"""Where a key belongs that stands in another table: which lines a table takes in is TOML's commonest surprise."""


def parse_policy(text: str) -> Policy:
    """Read `policy.toml`.

    Decimals become exact fractions or fixed-point integers; no float is formed. Bounds take at most six decimals.

    Raises:
        PolicyRefused: Code TOML for text that is no TOML, KEY for an unknown or missing key, TYPE or RANGE for a value.
    """
    if type(text) is not str:
        raise PolicyRefused("TYPE", f"policy is {type(text).__name__}, expected text")
    if len(text) > _MAX_TEXT:
        raise PolicyRefused("SIZE", f"policy text has {len(text)} characters, expected at most {_MAX_TEXT}")
    try:
        table = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise PolicyRefused("TOML", f"policy is not valid TOML: {error}") from error
    _check_keys(table, _TOP, _REQUIRED, "policy")
    fields: dict[str, Any] = {name: table[name] for name in _PLAIN if name in table}
    fields["delta"] = _exact(table["delta"], "delta")
    noise = _subtable(table, "noise", _NOISE)
    fields.update({f"noise_{name}": noise[name] for name in _NOISE[:3] if name in noise})
    if "phase" in noise:
        fields["noise_phases"] = _parse_phases(noise["phase"])
    if "budgets" in noise:
        fields["noise_budgets"] = _parse_budgets(noise["budgets"])
    fields.update({f"sampling_{name}": value for name, value in _subtable(table, "sampling", _SAMPLING).items()})
    floors = _subtable(table, "floors", _FLOORS)
    fields.update({f"min_{name}_micro": _micro(floors[name], f"floors.{name}") for name in floors})
    gate = _subtable(table, "gate", _GATE)
    fields.update(_window(gate, "gate"))
    fields.update({name: gate[name] for name in _GATE[1:] if name in gate})
    fields.update(_parse_ledger(_subtable(table, "ledger", _LEDGER)))
    fields.update({f"isolation_{name}": value for name, value in _subtable(table, "isolation", _ISOLATION).items()})
    for name in ("redo_steps", "epoch_steps"):
        if name in fields and type(fields[name]) is int and fields[name] < 0:
            raise PolicyRefused("RANGE", f"{name} is {fields[name]}, expected a count; leave it out for the default")
    classes = table["class"]
    if type(classes) is not list:
        raise PolicyRefused("TYPE", "class is not an array of tables; write [[class]] with double brackets")
    fields["classes"] = tuple(_parse_class(item) for item in classes)
    return Policy(**fields)


def _parse_phases(tables: Any) -> tuple[NoisePhase, ...]:
    if type(tables) is not list or not tables:
        raise PolicyRefused(
            "TYPE", "noise.phase is not an array of tables; write [[noise.phase]] with double brackets, or leave it out"
        )
    phases = []
    for table in tables:
        if type(table) is not dict:
            raise PolicyRefused("TYPE", "noise.phase is not a table; write [[noise.phase]] followed by its keys")
        _check_keys(table, _PHASE, _PHASE, "[[noise.phase]]")
        step = table["from_step"]
        phases.append(NoisePhase(step, _micro(table["scale"], f"scale of the noise phase from step {ascii(step)[:40]}")))
    return tuple(phases)


def _parse_budgets(table: Any) -> tuple[int, ...]:
    if type(table) is not dict:
        raise PolicyRefused("TYPE", "noise.budgets is not a table; write [noise.budgets] followed by its keys")
    _check_keys(table, _BUDGETS, _BUDGETS, "[noise.budgets]")
    return tuple(_micro(table[name], f"noise.budgets.{name}") for name in _BUDGETS)


def _parse_ledger(table: dict[str, Any]) -> dict[str, Any]:
    fields = dict(table)
    for name, quorum in (_LEDGER[:2], _LEDGER[2:]):
        if (name in table) != (quorum in table):
            raise PolicyRefused("KEY", f"[ledger] takes {name}, their verifier keys, with {quorum}, how many; give both")
        if name in table:
            fields[name] = _list(table[name], f"ledger.{name}")
    return fields


def _parse_class(table: Any) -> ClassRule:
    if type(table) is not dict:
        raise PolicyRefused("TYPE", "class is not a table; write [[class]] followed by its keys")
    public = table.get("public", False)
    required = [name for name in _CLASS_REQUIRED if name not in _BOUNDS or public is not True]
    _check_keys(table, _CLASS, required, "[[class]]")
    where = f"class {ascii(table['name'])[:80]}"
    if public is True and any(name in table for name in _BOUNDS):
        raise PolicyRefused(
            "KEY",
            f"{where} is public and gives {' and '.join(name for name in _BOUNDS if name in table)}; a public class is neither"
            " clipped nor noised: leave the bounds out, or leave out public",
        )
    bounds = (
        (PUBLIC_CLIP_MICRO, PUBLIC_NOISE_MICRO)
        if public is True
        else (
            _micro(table["clip_norm"], f"clip_norm of {where}"),
            _micro(table["noise_multiplier"], f"noise_multiplier of {where}"),
        )
    )
    return ClassRule(
        name=table["name"],
        clip_norm_micro=bounds[0],
        noise_multiplier_micro=bounds[1],
        public=public,
        sampling_rate=_rate(table["sampling_rate"], f"sampling_rate of {where}"),
        depth=_parse_depth(table["depth"], where),
        max_epsilon_total_micro=(
            _micro(table["max_epsilon_total"], f"max_epsilon_total of {where}") if "max_epsilon_total" in table else None
        ),
        **_window(table, where),
    )


def _parse_depth(table: Any, where: str) -> DepthRule:
    if type(table) is not dict:
        raise PolicyRefused("TYPE", f"depth of {where} is not a table such as {{ from = 0.75, to = 1.0 }}")
    _check_keys(table, _DEPTH, (), f"depth of {where}")
    band = None
    if "from" in table or "to" in table:
        if not ("from" in table and "to" in table):
            raise PolicyRefused("KEY", f"depth of {where} has only one of from and to; give both")
        band = (_exact(table["from"], f"depth.from of {where}"), _exact(table["to"], f"depth.to of {where}"))
    return DepthRule(
        band=band,
        layers=_list(table.get("layers"), f"depth.layers of {where}"),
        patterns=_list(table.get("set"), f"depth.set of {where}"),
        adapter=table.get("adapter"),
        embeddings=table.get("embeddings"),
        head=table.get("head"),
        heads=_list(table.get("heads"), f"depth.heads of {where}"),
        experts=_list(table.get("experts"), f"depth.experts of {where}"),
    )


def _check_keys(table: dict[str, Any], known: Iterable[str], required: Iterable[str], where: str) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            elsewhere = [place for place, keys in _PLACES.items() if key in keys]
            if elsewhere:
                there = " or ".join(elsewhere)
                raise PolicyRefused("KEY", f"{where} has the key {key!r}, which belongs {there}; move it there")
            near = difflib.get_close_matches(key[:80], names, n=1, cutoff=0.0)
            raise PolicyRefused("KEY", f"{where} has the unknown key {ascii(key)[:80]}; the nearest known key is {near[0]!r}")
    missing = [name for name in required if name not in table]
    if missing:
        raise PolicyRefused("KEY", f"{where} lacks {', '.join(missing)}")


def _subtable(table: dict[str, Any], name: str, known: Iterable[str]) -> dict[str, Any]:
    value = table.get(name, {})
    if type(value) is not dict:
        raise PolicyRefused("TYPE", f"{name} is not a table; write [{name}] followed by its keys")
    _check_keys(value, known, (), f"[{name}]")
    return value


def _list(value: Any, what: str) -> tuple[Any, ...] | None:
    if value is None:
        return None
    if type(value) is not list:
        raise PolicyRefused("TYPE", f"{what} is {type(value).__name__}, expected a list in brackets")
    return tuple(value)


def _window(table: dict[str, Any], where: str) -> dict[str, int]:
    if "max_window_days" not in table:
        return {}
    days = table["max_window_days"]
    if type(days) is not int:
        raise PolicyRefused("TYPE", f"max_window_days of {where} is {type(days).__name__}, expected whole days")
    return {"max_window": days * _DAY}


def _exact(value: Any, what: str) -> Fraction:
    try:
        return to_fraction(_number(value, what))
    except ValueRefused as error:
        raise PolicyRefused(error.code, f"{what}: {error.sentence}") from error


def _rate(value: Any, what: str) -> Fraction:
    """A probability: a number, or in quotes one over a whole number, which need not be a decimal."""
    if type(value) is not str:
        return _exact(value, what)
    if not _ONE_OVER.fullmatch(value):
        raise PolicyRefused("TYPE", f'{what} is {ascii(value)[:60]}, expected a number, or one over a whole number: "1/30"')
    return Fraction(value)


def _micro(value: Any, what: str) -> int:
    try:
        return to_micro(_number(value, what), rounding="exact")
    except ValueRefused as error:
        raise PolicyRefused(error.code, f"{what}: {error.sentence}") from error


def _number(value: Any, what: str) -> int | Decimal:
    if type(value) is not int and type(value) is not Decimal:
        raise PolicyRefused("TYPE", f"{what} is {type(value).__name__}, expected a number without quotes")
    return value
