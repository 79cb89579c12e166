"""Changes settings of a policy: some to see what follows, `steps=4000, class.sensitive.noise_multiplier=1.2`; its noise in the
text that a person keeps."""

import difflib
import math
import re
import tomllib
from decimal import Decimal
from typing import Any

from attest.errors import PolicyRefused
from attest.policy import ClassRule, DepthRule, Policy
from attest.policy.mechanism import MechanismRule
from attest.schema import declarations
from attest.schema.groups import Parts
from attest.schema.kinds import Reading
from attest.schema.text import keys, places, read_table, write_inline
from dptrain.errors import ConfigError
from dptrain.planning.layout import span_of
from dptrain.planning.plan import Plan

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_OPENING, _CLOSING = "[{", "]}"

_NOISE = {"family": r"\"[^\"]*\"|'[^']*'", "parameters": r"\{[^{}#]*\}", "digest": r"\"[^\"]*\"|'[^']*'"}
"""Keys of [noise] that say which noise is added, with the values that are replaced on their line."""

_HEAD = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?")
_PARAMETER = re.compile(r"\s*[a-z]+\s*=\s*[^#\"']*")

_FIXED = ("ledger.", "isolation.")
"""Settings that change no figure of a plan begin so."""

_FOLLOWING = {"redo_steps": lambda steps: steps, "epoch_steps": lambda steps: max(1, steps // 10)}
"""Settings that a policy derives from its steps where it does not state them."""


def changed(policy: Policy, table: dict[str, Any], text: str) -> Policy:
    """Returns the policy with some of its settings replaced; nothing is written.

    Settings that stand at a default derived from `steps` follow it.

    Args:
        policy: The rules.
        table: The same as TOML gives it, numbers with a point as `Decimal`.
        text: Assignments, separated by commas: `key=value` as in policy.toml, tables by dots, a class by its name.

    Raises:
        ConfigError: Code WHAT_IF for text that is no list of assignments, WHAT_IF_KEY for an unknown key: says the nearest.
        PolicyRefused: The policy that would come of it is none.
    """
    known = _known(policy)
    for name, default in _FOLLOWING.items():
        if table.get(name) == default(policy.steps):
            del table[name]
    for assignment in _split(text):
        key, value = _assignment(assignment)
        path = _path(key)
        if ".".join(path) not in known:
            near = _nearest(".".join(path), known)
            raise ConfigError("WHAT_IF_KEY", f"a policy has no {key}; the nearest known key is {near}")
        target = table
        if path[0] == "class":
            target = next(item for item in table["class"] if item["name"] == path[1])
            path = path[2:]
        for step in path[:-1]:
            target = target.setdefault(step, {})
            if step == "depth":
                _make_room(target, path[-1])
        target[path[-1]] = value
    read: Policy = read_table(Policy, table, "policy", Reading(PolicyRefused, places(Policy)))
    return read


def _make_room(depth: dict[str, Any], key: str) -> None:
    """Drops what says in another form which blocks a class may touch."""
    forms = [item.kind.spread or (item.key,) for item in declarations(DepthRule) if item.name in DepthRule.FORMS]
    if any(key in form for form in forms):
        for other in [name for form in forms if key not in form for name in form]:
            depth.pop(other, None)


def settings() -> list[str]:
    """Returns the settings of a policy that may be changed, as policy.toml has them, but for those of its classes."""
    parts = [item for item in declarations(Policy) if isinstance(item.kind, Parts)]
    found = [key for key in keys(Policy) if key != "class" and not key.startswith(_FIXED)]
    return found + [f"{item.key}.{name}" for item in parts for name in item.kind.names]


def settings_of_classes() -> list[str]:
    """Returns the settings of a class that may be changed."""
    return [*(key for key in keys(ClassRule) if key != "name"), *(f"depth.{key}" for key in keys(DepthRule))]


def _known(policy: Policy) -> list[str]:
    return [*settings(), *(f"class.{rule.name}.{key}" for rule in policy.classes for key in settings_of_classes())]


def _nearest(path: str, known: list[str]) -> str:
    """Returns the known key that is likely meant: one that goes on like this one, or ends so, or looks most like it."""
    ends = sorted((key for key in known if key.endswith(f".{path}")), key=lambda key: not key.startswith("class."))
    likely = ends or [key for key in known if key.startswith(path)]
    if likely:
        return likely[0]
    found = difflib.get_close_matches(path, known, n=1, cutoff=0.75)
    if not found:
        tails = {key.rpartition(".")[2]: key for key in reversed(known)}
        found = [tails[tail] for tail in difflib.get_close_matches(path.rpartition(".")[2], tails, n=1, cutoff=0.6)]
    return (found or difflib.get_close_matches(path, known, n=1, cutoff=0.0))[0]


def _split(text: str) -> list[str]:
    """Returns the assignments, split at commas that stand in no brackets, braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        depth += (char in _OPENING) - (char in _CLOSING) if not quote else 0
        if char == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += char
    found = [part.strip() for part in parts]
    if not all("=" in part for part in found):
        raise ConfigError(
            "WHAT_IF", f"{text!r} is no list of assignments; write steps=4000, class.NAME.noise_multiplier=1.2, say"
        )
    return found


def _assignment(text: str) -> tuple[str, Any]:
    key, _, written = (part.strip() for part in text.partition("="))
    if _WORD.fullmatch(written) and written not in ("true", "false", "inf", "nan"):
        return key, written  # a word needs no quotes here, which a shell would take away
    try:
        return key, tomllib.loads(f"value = {written}", parse_float=Decimal)["value"]
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise ConfigError("WHAT_IF", f"{written!r} is no value of {key}; write it as in policy.toml") from error


def _path(key: str) -> tuple[str, ...]:
    """Returns the parts of a dotted key; names of classes may hold dots."""
    if key.startswith("class."):
        name, _, rest = key[6:].partition(".depth.")
        if rest:
            return ("class", name, "depth", rest)
        name, _, last = key[6:].rpartition(".")
        return ("class", name, last)
    return tuple(key.split("."))


def noise_lines(rule: MechanismRule) -> list[str]:
    """Returns the lines of [noise] that say which noise is added, as policy.toml has them."""
    return [f"{key} = {value}" for key, value in _noise_values(rule).items()]


def noise_of(text: str) -> MechanismRule:
    """Returns the noise that the text of a policy says, whether or not this version serves it.

    Args:
        text: One that was read as a policy, or refused for nothing but a word that is not built.
    """
    table = _loaded(text).get("noise", {})
    name, held, digest = table.get("family", MechanismRule().name), table.get("parameters", {}), table.get("digest")
    made = MechanismRule.PARAMETERS[name]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in held.items()}
    return MechanismRule(name, None if made is None else made(**values), None if digest is None else bytes.fromhex(digest))


def with_noise(text: str, rule: MechanismRule) -> str:
    """Returns the text of a policy with other noise, and nothing else changed: comments, blanks and ends of lines stay.

    Raises:
        PolicyRefused: Code TOML for text that is no TOML, or that says its noise in a form that is not replaced line by line.
    """
    wanted = _loaded(text)
    kept = {key: value for key, value in wanted.get("noise", {}).items() if key not in _NOISE}
    wanted["noise"] = kept | _loaded("\n".join(noise_lines(rule)))
    found = _replaced(text, _noise_values(rule))
    try:
        same = _loaded(found) == wanted
    except PolicyRefused:
        same = False
    if not same:
        expected = "a table [noise] with family, parameters and digest on a line each"
        told = f"the policy says its noise in another form than {expected}; write it so, or put in by hand"
        raise PolicyRefused("TOML", f"{told}: {'; '.join(noise_lines(rule))}")
    return found


def _noise_values(rule: MechanismRule) -> dict[str, str]:
    """Returns what stands behind the keys of [noise]."""
    found = {"family": f'"{rule.name}"'}
    if rule.parameters is not None:
        found["parameters"] = write_inline(rule.parameters)[0]
    if rule.digest is not None:
        found["digest"] = f'"{rule.digest.hex()}"'
    return found


def _replaced(text: str, values: dict[str, str]) -> str:
    """Returns text in which values stand behind their keys of [noise]: on the lines of these, or new ones behind the family.

    A line that goes leaves its comment. Text in a form that this does not know comes out as something else.
    """
    end = "\r\n" if "\r\n" in text else "\n"
    found: list[str] = []
    table, place, left = "", None, dict(values)
    for line in text.split("\n"):
        bare, rest = (line[:-1], "\r") if line.endswith("\r") else (line, "")
        head, comment, gone = _HEAD.fullmatch(bare), None, False
        if head is not None:
            table, comment, gone = re.sub(r"\s", "", head[1]), head[2], re.sub(r"\s", "", head[1]) == "noise.parameters"
        elif table == "noise":
            for key, value in _NOISE.items():
                match = re.fullmatch(rf"(\s*{key}\s*=\s*)(?:{value})(\s*(#.*)?)", bare)
                if match is not None:
                    comment, gone = match[3], key not in values
                    bare = bare if gone else f"{match[1]}{left.pop(key, '')}{match[2]}"
        elif table == "noise.parameters":
            gone = _PARAMETER.fullmatch(bare) is not None
        if not gone or comment:
            found.append((comment if gone and comment else bare) + rest)
        if table == "noise" and (head is not None or (not gone and bare.lstrip().startswith("family"))):
            place = len(found)
    lines = [f"{key} = {value}" for key, value in left.items()]
    if place is None:
        joined = "\n".join(found)
        return joined + end.join(["" if joined.endswith("\n") else end, "[noise]", *lines, ""])
    return "\n".join([*found[:place], *(line + end[:-1] for line in lines), *found[place:]])


def _loaded(text: str) -> dict[str, Any]:
    """Returns what TOML says, numbers with a point as `Decimal`. Raises PolicyRefused: code TOML."""
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise PolicyRefused("TOML", f"the policy is not TOML: {error}") from error


def figures(policy: Policy, plan: Plan) -> dict[tuple[str, str], float | str]:
    """Returns what a comparison compares, by section and name."""
    found: dict[tuple[str, str], float | str] = {
        ("", "steps"): policy.steps,
        ("", "steps that may be redone"): policy.redo_steps,
        ("", "delta"): float(policy.delta),
        ("", "accountant"): policy.accountant,
        ("", "disclosure"): policy.disclosure,
        ("", "noise"): f"{policy.mechanism.name}, {policy.noise_injection}",
        ("", "phases of noise"): len(plan.phases),
        ("", "normalizer"): policy.normalizer,
        ("", "noise energy of uniform"): plan.noise_energy_ratio,
    }
    for item in plan.classes:
        preset = item.preset
        own = {
            "clip norm": preset.clip_norm,
            "noise multiplier": preset.noise_multiplier,
            "sampling rate": item.sampling_rate,
            "blocks": span_of(item.blocks),
            "z": preset.effective_multiplier,
            "waste": preset.waste,
            "epsilon": preset.epsilon,
            "epsilon if content replaced": preset.epsilon_replace,
            "epsilon if all redone": preset.epsilon_with_redo,
            "draws of each": item.expected_draws,
        }
        found |= {(f"class {item.name}", name): value for name, value in own.items()}
    for public in plan.public:
        found[f"class {public.name}", "public, sampling rate"] = public.sampling_rate
        found[f"class {public.name}", "blocks"] = span_of(public.blocks)
    return found


def differences(policy: Policy, planned: Plan, other: Policy, plan: Plan) -> list[dict[str, Any]]:
    """Returns what differs between two plans, as JSON."""
    before, after = figures(policy, planned), figures(other, plan)
    return [
        {"class": key[0].removeprefix("class ") or None, "what": key[1], "before": before.get(key), "after": after.get(key)}
        for key in dict.fromkeys([*before, *after])
        if differs(before.get(key), after.get(key))
    ]


def differs(base: float | str | None, value: float | str | None) -> bool:
    """Tells whether two figures differ by more than the last bits of a product of noise and scale."""
    if isinstance(base, float) and isinstance(value, float):
        return not math.isclose(base, value, rel_tol=1e-12)
    return base != value
