"""Counts for Prometheus: what the server does, and nothing that hangs on what was asked.

Guarantee: no label and no value names a session, a client or a user, and none is a statistic of states or texts: how often a
state was clipped, or how long a prompt was, is nowhere counted. Labels are routes, reasons, generation classes and kinds of
units, all of them public.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

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

    def text(self) -> bytes:
        """Returns all numbers in the text format of Prometheus."""
        return generate_latest(self.registry)
