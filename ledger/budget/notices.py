"""Brings notices to the privacy officer: what they say, and a webhook for `BudgetLog.deliver`."""

import http.client
import json
import urllib.parse
from collections.abc import Callable
from typing import Any, Final

from attest.schema.plain import utc
from ledger.budget.leaves import CONTRIBUTION, Header, Notice
from ledger.errors import LedgerError

TIMEOUT_SECONDS: Final = 10
"""Longest wait for the officer's server."""

_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def told(header: Header, notice: Notice) -> dict[str, Any]:
    """Returns a notice as JSON. `unit` is the hash that stands in leaves; whoever knows a name makes it with
    `BudgetLog.account`. The cap is null of a contribution under rules of generation: it is that of its rule."""
    cap = None if notice.unit == CONTRIBUTION and header.generation else header.cap(notice.unit) or 0
    event = f"{notice.percent} % of its budget are spent" if notice.percent else "a request was refused for the first time"
    return {
        "log": header.origin,
        "leaf": notice.seq,
        "time": utc(notice.time),
        "kind": notice.unit,
        "unit": notice.account.hex(),
        "event": f"threshold-{notice.percent}" if notice.percent else "exhausted",
        "spent_nano_rho": notice.spent_nano,
        "cap_nano_rho": cap,
        "sentence": f"{notice.unit} {notice.account.hex()[:16]}: {event}",
    }


def webhook(header: Header, url: str, *, timeout: float = TIMEOUT_SECONDS) -> Callable[[Notice], None]:
    """Returns what posts a notice to a server of the privacy officer as JSON.

    The header ``Idempotency-Key`` names log and leaf, and stays the same when a notice is posted again. Redirects are not
    followed.

    Args:
        url: https, or http on this machine alone. timeout: in seconds.

    Raises:
        LedgerError: code URL. What it returns raises code WEBHOOK unless the server answers with a status of 200 to 299.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("https", "http") or not host or (parts.scheme == "http" and host not in _LOCAL):
        raise LedgerError("URL", f"{parts.scheme}://{host} is no place for notices; give an https URL, or http on this machine")
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))

    def send(notice: Notice) -> None:
        key = f"{header.log_id.hex()}-{notice.seq}"
        connection = make(host, parts.port, timeout=timeout)
        try:
            body = json.dumps(told(header, notice)).encode()
            connection.request("POST", path, body, {"Content-Type": "application/json", "Idempotency-Key": key})
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise LedgerError("WEBHOOK", f"{host} took no notice: {error}; it is kept, and sent again") from error
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise LedgerError("WEBHOOK", f"{host} answered {status} to a notice; it is kept, and sent again")

    return send
