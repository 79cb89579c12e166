"""A policy as the text that a person writes: what `dptrain policy show` prints, and `dptrain policy check` takes again."""

from decimal import Context, Decimal
from fractions import Fraction

from attest.policy import ClassRule, DepthRule, Policy
from attest.policy.sampling import POISSON

_DAY = 86400
_EXACT = Context(prec=60)


def as_toml(policy: Policy) -> str:
    """Every field of a policy, defaults included; read again it is the same policy but for the registry root.

    What no `policy.toml` can say (a validity that is not whole days, a fraction without finite decimals) is written as near
    as can be, with a remark.
    """
    top = {
        "corpus": _text(policy.corpus),
        "delta": _decimal(policy.delta),
        "steps": str(policy.steps),
        "normalizer": str(policy.normalizer),
        "accountant": _text(policy.accountant),
        "adjacency": _text(policy.adjacency),
        "disclosure": _text(policy.disclosure),
        "exactness": _text(policy.exactness),
        "redo_steps": str(policy.redo_steps),
        "window_steps": str(policy.window_steps),
        "epoch_steps": str(policy.epoch_steps),
        "retention_epochs": str(policy.retention_epochs),
    }
    if policy.retention_hash_epochs:
        top["retention_hash_epochs"] = str(policy.retention_hash_epochs)
    noise = {"family": _text(policy.noise_family), "injection": _text(policy.noise_injection)}
    if policy.noise_microbatches is not None:
        noise["microbatches"] = str(policy.noise_microbatches)
    phases = [{"from_step": str(phase.first_step), "scale": _micro(phase.scale_micro)} for phase in policy.noise_phases]
    floors = {
        "clip_norm": _micro(policy.min_clip_norm_micro),
        "noise_multiplier": _micro(policy.min_noise_multiplier_micro),
    }
    gate = {
        "max_window_days": _days(policy.max_window),
        "contributor_cap": str(policy.contributor_cap),
        "max_examples": str(policy.max_examples),
    }
    tables = [_table("", top), _table("[noise]", noise), *(_table("[[noise.phase]]", phase) for phase in phases)]
    if policy.noise_budgets is not None:
        weights = zip(("embeddings", "layers", "head"), map(_micro, policy.noise_budgets), strict=True)
        tables.append(_table("[noise.budgets]", dict(weights)))
    if policy.sampling_order != POISSON:
        tables.append(_table("[sampling]", {"order": _text(policy.sampling_order)}))
    tables += [_table("[floors]", floors), _table("[gate]", gate)]
    ledger: dict[str, str] = {}
    for kind, vkeys, quorum in (
        ("auditors", policy.auditors, {"auditor_quorum": str(policy.auditor_quorum)}),
        ("witnesses", policy.witnesses, {"witness_quorum": str(policy.witness_quorum)}),
    ):
        if vkeys:
            ledger |= {kind: f"[{', '.join(map(_text, vkeys))}]", **quorum}
    if ledger:
        tables.append(_table("[ledger]", ledger))
    if policy.isolation_required:
        tables.append(_table("[isolation]", {"required": "true"}))
    return "\n".join([*tables, *(_table("[[class]]", _class(rule)) for rule in policy.classes)])


def _class(rule: ClassRule) -> dict[str, str]:
    fields = {
        "name": _text(rule.name),
        **_bounds(rule),
        "sampling_rate": _rate(rule.sampling_rate),
        "depth": _depth(rule.depth),
    }
    if rule.max_window is not None:
        fields["max_window_days"] = _days(rule.max_window)
    if rule.max_epsilon_total_micro is not None:
        fields["max_epsilon_total"] = _micro(rule.max_epsilon_total_micro)
    return fields


def _bounds(rule: ClassRule) -> dict[str, str]:
    if rule.public:
        return {"public": "true"}
    return {"clip_norm": _micro(rule.clip_norm_micro), "noise_multiplier": _micro(rule.noise_multiplier_micro)}


def _depth(depth: DepthRule) -> str:
    parts: list[str] = []
    if depth.band is not None:
        parts += [f"from = {_decimal(depth.band[0])}", f"to = {_decimal(depth.band[1])}"]
    elif depth.layers is not None:
        parts.append(f"layers = [{', '.join(map(str, depth.layers))}]")
    elif depth.patterns is not None:
        parts.append(f"set = [{', '.join(map(_text, depth.patterns))}]")
    else:
        parts.append(f"adapter = {_text(depth.adapter or '')}")
    for name, value in (("embeddings", depth.embeddings), ("head", depth.head)):
        if value is not None:
            parts.append(f"{name} = {str(value).lower()}")
    for name, numbers in (("heads", depth.heads), ("experts", depth.experts)):
        if numbers is not None:
            parts.append(f"{name} = [{', '.join(map(str, numbers))}]")
    return "{ " + ", ".join(parts) + " }"


def _table(head: str, fields: dict[str, str]) -> str:
    lines = [head] if head else []
    return "\n".join([*lines, *(f"{name} = {value}" for name, value in fields.items())]) + "\n"


def _text(value: str) -> str:
    # Identifiers, names and patterns hold neither quotes nor backslashes.
    return f'"{value}"'


def _micro(value: int) -> str:
    return _plain(Decimal(value).scaleb(-6))


def _decimal(value: Fraction) -> str:
    written = _EXACT.divide(Decimal(value.numerator), Decimal(value.denominator))
    remark = "" if Fraction(written) == value else f"  # exactly {value}"
    return _plain(written) + remark


def _rate(value: Fraction) -> str:
    decimals = (value * 10**18).denominator == 1
    return _decimal(value) if decimals or value.numerator != 1 else f'"{value}"'


def _plain(value: Decimal) -> str:
    short = value.normalize(_EXACT)
    small = short != 0 and short.adjusted() < -4
    # TOML wants digits on both sides of a point.
    return f"{short:e}".replace("E", "e") if small else f"{short:f}"


def _days(seconds: int) -> str:
    days, rest = divmod(seconds, _DAY)
    return str(days) + (f"  # exactly {seconds} seconds" if rest else "")
