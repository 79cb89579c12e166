"""CBOR form of a policy: maps with unsigned keys, exact fractions as pairs `[numerator, denominator]`."""

from fractions import Fraction
from typing import Any

from attest import cbor
from attest.errors import CborError, PolicyRefused
from attest.policy.depth import DepthRule
from attest.policy.noise import NoisePhase
from attest.policy.rules import ClassRule, Policy
from attest.policy.sampling import POISSON
from attest.signed_file import MAX_PAYLOAD

SCHEMA = "dptrain.policy/1"

_POLICY_FIELDS = {
    1: "schema",
    2: "corpus",
    3: "delta",
    4: "accountant",
    5: "adjacency",
    6: "disclosure",
    7: "exactness",
    8: "steps",
    9: "redo_steps",
    10: "window_steps",
    11: "epoch_steps",
    12: "normalizer",
    13: "noise_family",
    14: "noise_injection",
    15: "min_clip_norm_micro",
    16: "min_noise_multiplier_micro",
    17: "max_window",
    18: "contributor_cap",
    19: "max_examples",
    20: "retention_epochs",
    21: "registry_root",
    22: "classes",
}
_POLICY_OPTIONAL = {
    23: "noise_microbatches",
    24: "noise_phases",
    25: "noise_budgets",
    26: "sampling_order",
    27: "auditors",
    28: "auditor_quorum",
    30: "retention_hash_epochs",
    31: "isolation_required",
    32: "witnesses",
    33: "witness_quorum",
}
_CLASS_FIELDS = {
    1: "name",
    2: "clip_norm_micro",
    3: "noise_multiplier_micro",
    4: "sampling_rate",
    5: "depth",
    6: "max_window",
}
_CLASS_OPTIONAL = {7: "public", 8: "max_epsilon_total_micro"}
_DEPTH_FIELDS = {
    1: "band",
    2: "layers",
    3: "patterns",
    4: "adapter",
    5: "embeddings",
    6: "head",
    7: "heads",
    8: "experts",
}


def encode_policy(policy: Policy) -> bytes:
    """Encode a policy; every field is present, None is null. Labels above 22 and, in a class, 7 are left
    out where not stated, so that a policy without them has the bytes that it always had.
    """
    plain = {key: getattr(policy, name) for key, name in _POLICY_FIELDS.items() if name != "schema"}
    stated = {key: getattr(policy, name) for key, name in _POLICY_OPTIONAL.items()}
    plain |= {key: value for key, value in stated.items() if value not in (None, (), POISSON, 0)}
    if policy.noise_phases:
        plain[24] = [[phase.first_step, phase.scale_micro] for phase in policy.noise_phases]
    if policy.noise_budgets is not None:
        plain[25] = list(policy.noise_budgets)
    for key in (27, 32):
        if key in plain:
            plain[key] = list(stated[key])
    plain[1] = SCHEMA
    plain[3] = _pair(policy.delta)
    plain[22] = [_encode_class(rule) for rule in policy.classes]
    return cbor.encode(plain)


def decode_policy(data: bytes) -> Policy:
    """Decode a policy.

    Guarantee: an accepted byte string is exactly `encode_policy` of the result.

    Raises:
        PolicyRefused: With the code of the strict decoder, or SCHEMA, TYPE, RANGE.
    """
    try:
        value = cbor.decode(data, max_size=MAX_PAYLOAD)
    except CborError as error:
        raise PolicyRefused(error.code, f"policy is not strict CBOR: {error.sentence}") from error
    fields = _named(value, _POLICY_FIELDS, _POLICY_OPTIONAL, "policy")
    if fields.pop("schema") != SCHEMA:
        raise PolicyRefused("SCHEMA", f"policy schema is not {SCHEMA!r}; it was written by another version")
    fields["delta"] = _fraction(fields["delta"], "delta")
    if type(fields["classes"]) is not list:
        raise PolicyRefused("TYPE", "classes is not an array")
    fields["classes"] = tuple(_decode_class(item) for item in fields["classes"])
    if "noise_phases" in fields:
        fields["noise_phases"] = _decode_phases(fields["noise_phases"])
    if "noise_budgets" in fields:
        fields["noise_budgets"] = _tuple(fields["noise_budgets"], "noise budgets")
    for name in ("auditors", "witnesses"):
        if name in fields:
            fields[name] = _tuple(fields[name], name)
    policy = Policy(**fields)
    if encode_policy(policy) != data:
        raise PolicyRefused("CBOR_NONCANONICAL", "policy does not encode to the bytes received")
    return policy


def _decode_phases(value: Any) -> tuple[NoisePhase, ...]:
    pairs = [_tuple(item, "noise phase") for item in _tuple(value, "noise phases")]
    if any(len(pair) != 2 for pair in pairs):
        raise PolicyRefused("TYPE", "noise phase is not a pair of a step and a scale in 1e-6")
    return tuple(NoisePhase(*pair) for pair in pairs)


def _tuple(value: Any, what: str) -> tuple[Any, ...]:
    if type(value) is not list:
        raise PolicyRefused("TYPE", f"{what} is {type(value).__name__}, expected an array")
    return tuple(value)


def _encode_class(rule: ClassRule) -> dict[int, Any]:
    plain = {key: getattr(rule, name) for key, name in _CLASS_FIELDS.items()}
    plain |= {key: value for key, name in _CLASS_OPTIONAL.items() if (value := getattr(rule, name)) not in (None, False)}
    plain[4] = _pair(rule.sampling_rate)
    depth = {key: getattr(rule.depth, name) for key, name in _DEPTH_FIELDS.items()}
    if rule.depth.band is not None:
        depth[1] = [_pair(rule.depth.band[0]), _pair(rule.depth.band[1])]
    plain[5] = {key: value for key, value in depth.items() if value is not None}
    return plain


def _decode_class(value: Any) -> ClassRule:
    fields = _named(value, _CLASS_FIELDS, _CLASS_OPTIONAL, "class")
    fields["sampling_rate"] = _fraction(fields["sampling_rate"], "sampling_rate")
    fields["depth"] = _decode_depth(fields["depth"])
    return ClassRule(**fields)


def _decode_depth(value: Any) -> DepthRule:
    if type(value) is not dict or not set(value) <= set(_DEPTH_FIELDS):
        raise PolicyRefused("SCHEMA", "depth is not a map with the labels 1 to 8")
    fields = {_DEPTH_FIELDS[key]: item for key, item in value.items()}
    for name in ("band", "layers", "patterns", "heads", "experts"):
        if name in fields:
            if type(fields[name]) is not list:
                raise PolicyRefused("TYPE", f"depth {name} is not an array")
            fields[name] = tuple(fields[name])
    if "band" in fields:
        fields["band"] = tuple(_fraction(item, "depth band") for item in fields["band"])
    return DepthRule(**fields)


def _named(value: Any, names: dict[int, str], optional: dict[int, str], what: str) -> dict[str, Any]:
    if type(value) is not dict or not set(names) <= set(value) <= set(names) | set(optional):
        raise PolicyRefused(
            "SCHEMA", f"{what} is not a map with the labels 1 to {max(names)}, and perhaps {', '.join(map(str, optional))}"
        )
    return {name: value[key] for key, name in (names | optional).items() if key in value}


def _pair(value: Fraction) -> list[int]:
    return [value.numerator, value.denominator]


def _fraction(value: Any, what: str) -> Fraction:
    if type(value) is not list or [type(part) for part in value] != [int, int]:
        raise PolicyRefused("TYPE", f"{what} is not a pair of unsigned integers")
    numerator, denominator = value
    if numerator < 0 or denominator < 1:
        raise PolicyRefused("RANGE", f"{what} is {numerator}/{denominator}, expected a non-negative fraction")
    # A fraction that is not reduced encodes to other bytes than it came from, and decode_policy refuses those.
    return Fraction(numerator, denominator)
