"""Whom a policy names to cosign its ledgers: auditors, who vouch for meaning, and witnesses, who vouch for history.

An auditor has audited the export under the checkpoint. A witness has seen that the tree extends every tree of that log which it
cosigned before, and nothing else (C2SP tlog-witness). Of each kind the policy says how many must have cosigned what readers
rely on.
"""

import re
from typing import TYPE_CHECKING, Any

from attest.checks import check_int
from attest.errors import KeyRefused, PolicyRefused
from attest.vkeys import SIGNATURE_COSIGNATURE_V1, VerifierKey, parse_verifier_key

if TYPE_CHECKING:
    from attest.policy.rules import Policy

_NAME = re.compile("[A-Za-z0-9._/:~-]{1,128}")

_FIELDS = {"auditor": "auditors", "witness": "witnesses"}

MAX_COSIGNERS = 32
"""Most auditors and witnesses of one policy together: every implementation of C2SP tlog-policy takes as many witnesses."""


def check_cosigners(policy: "Policy") -> None:
    """Refuses auditors or witnesses that cannot cosign, and a quorum that counts one of them twice or is never reached.

    Guarantee: no key stands twice among auditors and witnesses together, so nobody is both, and every quorum that is named can
    be reached by different keys.

    Raises:
        PolicyRefused: Code TYPE, RANGE, or that of a verifier key.
    """
    names: dict[bytes, str] = {}
    for kind, vkeys, quorum in (
        ("auditor", policy.auditors, policy.auditor_quorum),
        ("witness", policy.witnesses, policy.witness_quorum),
    ):
        _check(kind, vkeys, quorum, names)
    if len(names) > MAX_COSIGNERS:
        raise PolicyRefused("RANGE", f"[ledger] names {len(names)} auditors and witnesses, expected at most {MAX_COSIGNERS}")


def _check(kind: str, vkeys: Any, quorum: Any, names: dict[bytes, str]) -> None:
    """Checks the cosigners of one kind; adds public key and name of each to ``names``."""
    field = _FIELDS[kind]
    if type(vkeys) is not tuple or len(vkeys) > MAX_COSIGNERS:
        found = len(vkeys) if type(vkeys) is tuple else type(vkeys).__name__
        raise PolicyRefused("TYPE", f"ledger.{field} are {found}, expected a tuple of at most {MAX_COSIGNERS} verifier keys")
    if not vkeys and quorum is not None:
        raise PolicyRefused("RANGE", f"ledger.{kind}_quorum goes with ledger.{field}; name them, or leave it out")
    for vkey in vkeys:
        key = _key(kind, vkey)
        if key.public_key in names:
            sentence = f"{names[key.public_key]} and the {kind} {key.name} have one key, and count once"
            raise PolicyRefused("RANGE", f"{sentence}; a key is named once, as an auditor's or as a witness's")
        names[key.public_key] = f"the {kind} {key.name}"
    if vkeys:
        check_int(quorum, f"ledger.{kind}_quorum", 1, len(vkeys), error=PolicyRefused)


def _key(kind: str, vkey: Any) -> VerifierKey:
    """Reads the verifier key of a cosigner."""
    try:
        key = parse_verifier_key(vkey)
    except KeyRefused as error:
        raise PolicyRefused(error.code, f"ledger.{_FIELDS[kind]}: {error.sentence}") from error
    if key.kind != SIGNATURE_COSIGNATURE_V1:
        raise PolicyRefused(
            "RANGE", f"the key of the {kind} {key.name} signs as a log; 'dptrain ledger auditor-key' prints the one to name"
        )
    if not _NAME.fullmatch(key.name):
        raise PolicyRefused(
            "RANGE", f"the {kind} is named {ascii(key.name)[:80]}, expected 1 to 128 of A-Z a-z 0-9 . _ / : ~ and -"
        )
    return key
