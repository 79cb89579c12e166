"""Blocks a second time, plain and slow, along docs/formats ("Blocks"): from the arrays of a header, without `attest`.

Every parameter is split into atoms, the coordinates of one entry of its division; each atom asks every class by itself.
"""

import re
from fractions import Fraction
from math import ceil, floor
from typing import Any

KINDS = ("heads", "experts")
INFINITY = 1 << 40


def names_of(stack: list[Any]) -> tuple[list[list[str]], list[list[str]]]:
    """The names of layers, tower by tower, and of parameters."""
    words, towers, _, _, parameters = stack
    last: list[str] = []

    def read(code: list[int]) -> str:
        nonlocal last
        last = last[: code[0]] + [words[word] for word in code[1:]]
        return ".".join(last)

    layers = [[read(code) for code in tower[2]] for tower in towers]
    return layers, [[read(code) for code in row[1:]] for row in parameters]


def places_of(names: list[str], form: list[Any], towers: list[Any], layers: list[list[str]]) -> list[tuple[str, int]]:
    found = set()
    for name in names:
        hits = [
            (place, towers[tower][0])
            for tower, own in enumerate(layers)
            for place, layer in enumerate(own)
            if not layer or name.startswith(layer + ".")
        ]
        if hits:
            place, tower_name = min(hits, key=lambda hit: hit[0])
            found.add((tower_name, place))
    for tower, position in form[3]:
        found.add(("" if tower < 0 else towers[tower][0], INFINITY if position == -2 else position))
    return sorted(found)


def matches(pattern: str, name: str) -> bool:
    """Whole, with ``*``, ``?`` and brackets."""
    made, at = "", 0
    while at < len(pattern):
        sign = pattern[at]
        end = pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] == "!")) if sign == "[" else -1
        if sign == "*":
            made += ".*"
        elif sign == "?":
            made += "."
        elif end > 0:
            inner = pattern[at + 1 : end]
            made += "[^" + re.escape(inner[1:]).replace(r"\-", "-") + "]" if inner[0] == "!" else f"[{inner}]"
            at = end
        else:
            made += re.escape(sign)
        at += 1
    return re.fullmatch(made, name, re.DOTALL) is not None


def permitted(depth: dict[int, Any], names: list[str], places: list[Any], adapter: Any, count: dict[str, int]) -> bool:
    if 4 in depth:
        return adapter == depth[4]
    if 3 in depth:
        return all(any(matches(pattern, name) for pattern in depth[3]) for name in names)
    low, high = (Fraction(*pair) for pair in depth[1]) if 1 in depth else (None, None)
    for tower, position in places:
        if position == -1:
            good = depth.get(5, low == 0)
        elif position == INFINITY:
            good = depth.get(6, high == 1)
        elif 1 in depth:
            good = floor(low * count[tower]) <= position < ceil(high * count[tower])
        else:
            good = position in depth[2]
        if not good:
            return False
    return True


def blocks(stack: list[Any], classes: list[dict[str, Any]]) -> list[list[Any]]:
    """The blocks of a stack under classes ``{"name", "public", "depth"}``, whose depth is the map of a policy.

    Returns:
        Rows `[name, coordinates, classes]`.
    """
    _, towers, divisions, forms, parameters = stack
    layers, names = names_of(stack)
    count = {tower[0]: len(own) for tower, own in zip(towers, layers, strict=True)}
    bound = {rule["depth"][4] for rule in classes if 4 in rule["depth"]}
    trained: dict[tuple[Any, ...], int] = {}
    frozen: dict[tuple[Any, ...], int] = {}
    for row, own_names in zip(parameters, names, strict=True):
        coordinates, is_trained, adapter, _, own_divisions = form = forms[row[0]]
        places = places_of(own_names, form, towers, layers)
        positions = sorted({position for _, position in places})
        if not is_trained:
            key = (positions, places, " (untrained)")
            frozen[freeze(key)] = frozen.get(freeze(key), 0) + coordinates
            continue
        open_to = [rule for rule in classes if permitted(rule["depth"], own_names, places, adapter, count)]
        for size, who, label in pieces(coordinates, [divisions[place] for place in own_divisions], open_to):
            if who:
                key = (positions, places, adapter if adapter in bound else "", label, who)
                trained[freeze(key)] = trained.get(freeze(key), 0) + size
            else:
                key = (positions, places, " (frozen)")
                frozen[freeze(key)] = frozen.get(freeze(key), 0) + size
    private = {rule["name"] for rule in classes if not rule["public"]}
    found: list[list[Any]] = []
    times: dict[str, int] = {}
    for (_, places, adapter, label, who), size in sorted(trained.items()):
        name = spelled(places) + (f" adapter {adapter}" if adapter else "")
        if label[0]:
            name += f" {label[0]}" + (f" {runs(label[1])}" if label[1] else "")
        times[name] = times.get(name, 0) + 1
        name += f"#{times[name]}" if times[name] > 1 else ""
        found.append([name + ("" if private & set(who) else " (public)"), size, list(who)])
    return found + [[spelled(places) + why, size, []] for (_, places, why), size in sorted(frozen.items())]


def freeze(value: Any) -> Any:
    return tuple(map(freeze, value)) if isinstance(value, (list, tuple)) else value


def own_mask(rule: dict[str, Any], kind: int) -> set[int] | None:
    found = rule["depth"].get(7 + kind)
    return None if found is None else set(found)


def pieces(coordinates: int, divisions: list[Any], open_to: list[dict[str, Any]]) -> list[tuple[int, list[str], Any]]:
    asked = [d for d in divisions if any(own_mask(rule, d[0]) is not None for rule in open_to)]
    if not asked:
        return [(coordinates, [rule["name"] for rule in open_to], ("", ()))]

    def has(rule: dict[str, Any], kind: int, owners: set[int] | None) -> bool:
        own = own_mask(rule, kind)
        return own is None or (owners is not None and owners <= own)

    shared = ("attention" if asked[0][0] == 0 else "router", ())
    if len(divisions) > 1:
        spans = [(d[0], set(range(min(e[0] for e in d[2]), max(e[1] for e in d[2]))) if d[2] else None) for d in asked]
        who = [rule["name"] for rule in open_to if all(has(rule, *span) for span in spans)]
        return [(coordinates, who, shared)]
    kind, count, entries = asked[0]
    if not entries:
        return [(coordinates, [rule["name"] for rule in open_to if has(rule, kind, None)], ("router", ()))]
    whole = sum(weight for _, _, weight in entries)
    atoms: dict[tuple[str, ...], list[Any]] = {}
    for first, stop, weight in entries:
        who = tuple(rule["name"] for rule in open_to if has(rule, kind, set(range(first, stop))))
        size, owners = atoms.get(who, [0, set()])
        atoms[who] = [size + Fraction(coordinates * weight, whole), owners | set(range(first, stop))]
    found = []
    for who, (size, owners) in atoms.items():
        alike = [o for o in range(count) if [rule["name"] for rule in open_to if has(rule, kind, {o})] == list(who)]
        label = (KINDS[kind], tuple(alike)) if owners <= set(alike) else shared
        assert size.denominator == 1
        found.append((int(size), list(who), label))
    return found


def spelled(places: Any) -> str:
    said = []
    for tower in dict.fromkeys(tower for tower, _ in places):
        own = [position for name, position in places if name == tower]
        inner = [position for position in own if 0 <= position < INFINITY]
        words = ["embeddings"] if -1 in own else []
        if len(inner) > 2 and inner == list(range(inner[0], inner[-1] + 1)):
            words.append(f"layer.{inner[0]}-{inner[-1]}")
        else:
            words += [f"layer.{position}" for position in inner]
        words += ["head"] if INFINITY in own else []
        said += [f"{tower}.{word}" if tower else word for word in words]
    return "+".join(said)


def runs(numbers: Any) -> str:
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    said = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found]
    return "+".join(said) if len(said) <= 12 else "+".join([*said[:10], f"... ({len(numbers)})"])
