"""What a model checkpoint remembers of the ledger."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PinRecord:
    """Where the ledger stood when the checkpoint was taken, and the last step in it; root and digest in hex.

    ``isolation`` is how statement A stood then (`dptrain.sandbox.isolation.Isolation.told`).
    """

    step: int
    origin: str
    size: int
    root: str
    header_digest: str
    attempt: int
    isolation: str
