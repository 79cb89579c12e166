"""Tells of a server: numbers for Prometheus, budgets, and what an answer says of its artifact.

Guarantee: no label and no value of a metric names a session, a client or a user. Of answers that release states none hangs on
what was asked: neither how often a state was clipped, nor how long a text was or took. Of other answers, all of a class
together, tokens and times tell how long they were; and the time to a reservation has in it that a prompt is split into tokens.
Of texts from references there are counts of texts, of tokens that were drawn and of refusals, and no time.
Labels are routes, reasons, generation classes, generations and kinds of units, all of them public.
"""

from collections.abc import Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from dptrain.serve.access import Client
from dptrain.serve.paying import Releases, Till
from ledger.budget import Unit
from ledger.budget.leaves import CONTRIBUTION
from ledger.budget.rho import NANO, epsilon_of_rho
from ledger.serving import Admission

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """Holds the numbers of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = {"registry": self.registry, "namespace": "dptrain"}
        self.requests = Counter("requests", "Requests that were answered, by route and status.", ["route", "status"], **made)
        self.refusals = Counter("refusals", "Requests that were refused, by reason.", ["reason"], **made)
        self.tokens = Counter("tokens", "Tokens computed, by generation class.", ["model"], **made)
        self.releases = Counter("releases", "States released, by generation class.", ["model"], **made)
        self.texts = Counter("generated_texts", "Texts from references that were begun, by generation.", ["generation"], **made)
        self.drawn = Counter("generated_tokens", "Tokens of such texts that were drawn, by generation.", ["generation"], **made)
        self.no_texts = Counter(
            "generation_refusals", "Requests for such texts that were refused, by generation.", ["generation"], **made
        )
        self.before = Histogram(
            "gate_and_budget_seconds", "Time from a request's body to its reservation.", buckets=_SECONDS, **made
        )
        self.first = Histogram("first_token_seconds", "Time from a request to its first token.", buckets=_SECONDS, **made)
        self.whole = Histogram("answer_seconds", "Time from a request to the end of its answer.", buckets=_SECONDS, **made)
        self.encrypted = Histogram("he_seconds", "Time of an adapter's product under encryption.", buckets=_SECONDS, **made)
        self.running = Gauge("streams_running", "Answers that are computed.", **made)
        self.waiting = Gauge("streams_waiting", "Answers that wait for a place.", **made)
        self.spent = Gauge("rho_spent_total", "Rho reserved and not freed over all units of a kind.", ["kind"], **made)
        self.cap = Gauge("rho_cap", "Rho that each unit of a kind may spend.", ["kind"], **made)

    def refused(self, code: str) -> None:
        """Counts a refusal. ``code``: one of the program's own, never something that was sent."""
        self.refusals.labels(code).inc()

    def refused_texts(self, generation: str) -> int:
        """Returns how often a text of a generation was refused."""
        samples = [sample for metric in self.no_texts.collect() for sample in metric.samples]
        found = [each.value for each in samples if each.name.endswith("_total") and each.labels["generation"] == generation]
        return int(sum(found))

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """Returns how often requests were refused, by reason, the most frequent first."""
        samples = [sample for metric in self.refusals.collect() for sample in metric.samples]
        found = [(each.labels["reason"], int(each.value)) for each in samples if each.name.endswith("_total")]
        return sorted(found, key=lambda item: -item[1])

    def add_up(self, till: Till) -> None:
        """Takes from the log what all units of a kind spent, and what each may."""
        for cap in till.log.header.caps:
            accounts = list(till.log.state.accounts.values())
            self.spent.labels(cap.unit).set(sum(each.spent for each in accounts if each.unit == cap.unit) / NANO)
            self.cap.labels(cap.unit).set(cap.rho_nano / NANO)

    def text(self) -> bytes:
        """Returns all numbers in the text format of Prometheus."""
        return generate_latest(self.registry)


_SHOWN: Final = 50
"""Units of a kind that are shown, those that spent most first."""


def unit_told(till: Till, releases: Releases | None, unit: Unit) -> dict[str, Any]:
    """Returns what a unit has spent, what it may, and the largest epsilon that one more answer may have.

    Epsilons of answers do not add up, so the last is no difference of the others. Raises what the budget log raises.
    """
    found = till.balance(unit)
    largest = None if releases is None or found.cap is None else releases.largest(found.cap - found.spent)
    told = {"unit": f"{unit.kind}:{unit.name}", "spent_nano_rho": found.spent, "cap_nano_rho": found.cap}
    return {**told, **_caps(till, unit.kind, found.spent), "largest_answer": largest}


def accounts_told(till: Till, clients: Sequence[Client]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the kinds of units, and the units of each that spent most; the log knows those of ``clients`` alone by name."""
    log = till.log
    known = {log.account(client.unit): client.name for client in clients if client.role == "client"}
    kinds, units = [], []
    for cap in log.header.caps:
        found = {key: each for key, each in list(log.state.accounts.items()) if each.unit == cap.unit}
        refused = sum(0 in each.told for each in found.values())
        spent = sum(each.spent for each in found.values())
        kinds.append({"kind": cap.unit, "units": len(found), "spent": spent, "refused": refused, **_caps(till, cap.unit, 0)})
        if cap.unit == CONTRIBUTION:  # of a single reference nothing is shown
            continue
        for key, each in sorted(found.items(), key=lambda item: -item[1].spent)[:_SHOWN]:
            name = known.get(key, f"{key.hex()[:16]}…")
            told = {"name": name, "kind": cap.unit, "share": each.spent / cap.rho_nano, "refused": 0 in each.told}
            units.append({**told, **_caps(till, cap.unit, each.spent)})
    return kinds, units


def _caps(till: Till, kind: str, spent: int) -> dict[str, Any]:
    cap = next((each for each in till.log.header.caps if each.unit == kind), None)
    if cap is None:
        return {"epsilon_spent": None, "epsilon_cap": None, "delta": None}
    delta = cap.delta_pico / 10**12
    return {"epsilon_spent": epsilon_of_rho(spent / NANO, delta), "epsilon_cap": cap.epsilon_micro / 10**6, "delta": delta}


def admission_told(admission: Admission, mode: str) -> dict[str, Any]:
    """Returns what an answer says of the artifact that gave it."""
    return {
        "mode": mode,
        "artifact": admission.artifact,
        "influenced_by": {
            each.name: None if each.epsilon_micro is None else each.epsilon_micro / 10**6 for each in admission.certificate
        },
        "training_delta": admission.posture.delta,
        "verdict": admission.posture.verdict,
        "ledger_size": admission.ledger_size,
    }
