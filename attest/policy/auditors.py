"""Whom a policy names as auditors of its ledgers, and how many of them must have cosigned what readers rely on."""

import re
from typing import TYPE_CHECKING

from attest.checks import check_int
from attest.errors import KeyRefused, PolicyRefused
from attest.vkeys import SIGNATURE_COSIGNATURE_V1, parse_verifier_key

if TYPE_CHECKING:
    from attest.policy.rules import Policy

_NAME = re.compile("[A-Za-z0-9._/:~-]{1,128}")

MAX_AUDITORS = 32
"""Most auditors of one policy: as many witnesses as every implementation of C2SP tlog-policy takes."""


def check_auditors(policy: "Policy") -> None:
    """Refuse auditors that cannot cosign, or a quorum that counts one of them twice or is never reached.

    Raises:
        PolicyRefused: Code TYPE, RANGE, or that of a verifier key.
    """
    auditors = policy.auditors
    if type(auditors) is not tuple or len(auditors) > MAX_AUDITORS:
        found = len(auditors) if type(auditors) is tuple else type(auditors).__name__
        raise PolicyRefused("TYPE", f"ledger.auditors are {found}, expected a tuple of at most {MAX_AUDITORS} verifier keys")
    if not auditors and policy.auditor_quorum is not None:
        raise PolicyRefused("RANGE", "ledger.auditor_quorum goes with ledger.auditors; name them, or leave it out")
    names: dict[bytes, str] = {}
    for vkey in auditors:
        try:
            key = parse_verifier_key(vkey)
        except KeyRefused as error:
            raise PolicyRefused(error.code, f"an auditor: {error.sentence}") from error
        if key.kind != SIGNATURE_COSIGNATURE_V1:
            raise PolicyRefused(
                "RANGE",
                f"the key of the auditor {key.name} signs as a log; 'dptrain ledger auditor-key' prints the one to name",
            )
        if not _NAME.fullmatch(key.name):
            raise PolicyRefused(
                "RANGE", f"an auditor is named {ascii(key.name)[:80]}, expected 1 to 128 of A-Z a-z 0-9 . _ / : ~ and -"
            )
        if key.public_key in names:
            raise PolicyRefused("RANGE", f"the auditors {names[key.public_key]} and {key.name} have one key, and count once")
        names[key.public_key] = key.name
    if auditors:
        check_int(policy.auditor_quorum, "ledger.auditor_quorum", 1, len(auditors), error=PolicyRefused)
