"""Whom a policy names to cosign its ledgers: auditors, who vouch for meaning, and witnesses, who vouch for history.

An auditor has audited the export under the checkpoint. A witness has seen that the tree extends every tree of that log which it
cosigned before, and nothing else (C2SP tlog-witness). Of each kind the policy says how many must have cosigned what readers
rely on.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from attest.checks import check_int
from attest.documents.kinds import Kind, Told, quoted
from attest.errors import KeyRefused, PolicyRefused, Refused
from attest.vkeys import SIGNATURE_COSIGNATURE_V1, VerifierKey, parse_verifier_key

_NAME = re.compile("[A-Za-z0-9._/:~-]{1,128}")

_FIELDS = {"auditor": "auditors", "witness": "witnesses"}

MAX_COSIGNERS = 32
"""Most auditors and witnesses of one policy together: every implementation of C2SP tlog-policy takes as many witnesses."""


@dataclass(frozen=True)
class CosignerKey(Kind):
    """A verifier key of somebody who cosigns, `auditor` or `witness`."""

    kind: str
    cddl: str = "vkey"

    def check(self, value: Any, told: Told, error: Refused) -> None:
        _key(self.kind, value)

    def write(self, value: Any) -> str:
        return quoted(value)


AUDITOR: Final = CosignerKey("auditor")
WITNESS: Final = CosignerKey("witness")


def check_cosigners(
    auditors: tuple[str, ...], auditor_quorum: int | None, witnesses: tuple[str, ...], witness_quorum: int | None
) -> None:  # fmt: skip
    """Refuses a quorum that counts one key twice or is never reached.

    Guarantee: no key stands twice among auditors and witnesses together, so nobody is both, and every quorum that is named can
    be reached by different keys.

    Args: as the fields of a policy, each checked by itself.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """
    names: dict[bytes, str] = {}
    for kind, vkeys, quorum in (("auditor", auditors, auditor_quorum), ("witness", witnesses, witness_quorum)):
        field = _FIELDS[kind]
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
    if len(names) > MAX_COSIGNERS:
        raise PolicyRefused("RANGE", f"[ledger] names {len(names)} auditors and witnesses, expected at most {MAX_COSIGNERS}")


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
