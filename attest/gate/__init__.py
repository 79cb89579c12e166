"""The admission gate: admits a contribution, or refuses it with a reason code.

* `gate`: the gate itself, which takes contributions in the order of the corpus.
* `checks`: the rules, of one contribution by itself and against what went before.
* `admission`: what the gate answers, and what it keeps of admissions.
* `forms`: the fast path for attestations that resemble one that passed.
* `reading`: attestations that verified in an earlier reading. `workers`: processes that check beside this one.
* `verdicts`: shards that are judged by processes of their own, on any machine, and their merge.
"""

from attest.errors import ReasonCode
from attest.gate.admission import Admission, Admitted, GateReport, Refusal, Refused, Seen
from attest.gate.checks import Examiner, refusal_of
from attest.gate.gate import Gate, decide, run_gate
from attest.gate.verdicts import judge_shard, merge_shards

__all__ = [
    "Admission", "Admitted", "Examiner", "Gate", "GateReport", "ReasonCode", "Refusal", "Refused", "Seen", "decide",
    "judge_shard", "merge_shards", "refusal_of", "run_gate",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
