"""The leaves of the ledger: one frozen dataclass per kind, and the strict CBOR they are hashed as.

Every leaf begins with its own sequence number, so that an inclusion proof cannot move a record in time. No leaf names a
contributor or carries a contributor's free text. Unless the policy makes occurrences public, none says who was drawn in which
step: the amplification by sampling that the accountant counts on assumes that the draw stays secret.
"""

from ledger.leaves.codec import (
    MAX_LEAF_SIZE,
    Leaf,
    coefficient_leaves,
    decode_leaf,
    encode_leaf,
    peek_kind,
    read_header,
    spend_leaves,
)
from ledger.leaves.header import HELD, AccountantInfo, Header, HeaderBlock, Previous, Profile
from ledger.leaves.records import (
    Admit,
    Charge,
    ChargeClass,
    Clock,
    Close,
    Coefficients,
    Draw,
    Epoch,
    EpochClass,
    Key,
    Registry,
    Release,
    Resume,
    Settle,
    Spend,
    SpendFacts,
    SpendKey,
    SpendRow,
    Summary,
    SummaryClass,
    SummaryKind,
    Withdraw,
)
from ledger.leaves.spec import HeaderSpec

__all__ = [
    "HELD", "MAX_LEAF_SIZE", "AccountantInfo", "Admit", "Charge", "ChargeClass", "Clock", "Close", "Coefficients", "Draw",
    "Epoch", "EpochClass", "Header", "HeaderBlock", "HeaderSpec", "Key", "Leaf", "Previous", "Profile", "Registry", "Release",
    "Resume", "Settle", "Spend", "SpendFacts", "SpendKey", "SpendRow", "Summary", "SummaryClass", "SummaryKind", "Withdraw",
    "coefficient_leaves", "decode_leaf", "encode_leaf", "peek_kind", "read_header", "spend_leaves",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
