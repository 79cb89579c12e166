"""One exception tree for the ledger: every error carries a machine-readable code and a sentence for a person."""


class LedgerError(Exception):
    """Base of all ledger errors.

    Attributes:
        code: short upper-case reason, stable across releases.
        sentence: what was found, what was expected, and what to do about it.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(code, sentence)
        self.code = code
        self.sentence = sentence

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"


class LedgerCorrupt(LedgerError):
    """The stored bytes contradict the tree, the head, or a signed checkpoint.

    Attributes:
        seq: the first leaf known to be wrong, or None when no single leaf can be named.
    """

    def __init__(self, code: str, sentence: str, *, seq: int | None = None) -> None:
        super().__init__(code, sentence)
        self.seq = seq


class LedgerForked(LedgerError):
    """Two different histories claim one size: the same key has, or would have, signed both."""


class LedgerBehind(LedgerError):
    """The ledger is shorter than a size already pinned: its tail was lost, or it was rolled back."""


class LedgerWrongRun(LedgerError):
    """The ledger belongs to another run, another owner, or another signing key than expected."""


class LedgerClosed(LedgerError):
    """The ledger, or this handle on it, takes no more leaves."""


class LedgerBusy(LedgerError):
    """Another writer holds the ledger, or has appended to it since this one last looked."""


class LedgerReplaced(LedgerError):
    """The database that a writer has open is no longer the one under the ledger's name, or something else wrote into it."""


class PinRefused(LedgerError):
    """A file beside the ledger is not the one that the ledger's key signed, or not of this ledger."""


class StorageFailed(LedgerError):
    """The disk refused a write (full, read-only, I/O error). The transaction was rolled back whole."""


class StoreUnfit(LedgerError):
    """A store does not keep the promise of `ledger.storage.store`; only `ledger.storage.checking` raises it."""


class ProofError(LedgerError, ValueError):
    """A Merkle proof does not hold, or is malformed."""


class NoteError(LedgerError, ValueError):
    """A signed note, a verifier key or a checkpoint text is malformed or not signed by a pinned key."""


class TrustError(LedgerError, ValueError):
    """A trust policy is malformed, or a checkpoint lacks signatures that it asks for."""


class CosignRefused(LedgerError):
    """An auditor may not cosign this checkpoint: its audit FAILED, or the auditor's memory says otherwise."""


class WitnessRefused(LedgerError):
    """A witness did not cosign a checkpoint, or what it answered is no cosignature.

    Attributes:
        size: the size that it says it cosigned before, None where it says none.
    """

    def __init__(self, code: str, sentence: str, *, size: int | None = None) -> None:
        super().__init__(code, sentence)
        self.size = size


class RetentionRefused(LedgerError):
    """Nothing may be pruned now: the policy, the auditors or the horizon do not let it."""


class ExportRefused(LedgerError):
    """This ledger may not be exported, or not to this place."""


class AnchorRefused(LedgerError):
    """A content anchor, or another name of a contribution, contradicts the ledger that it is held against."""


class ReleaseRefused(LedgerError):
    """Weights may not be released, or what was released is not what its manifest says."""


class RightsRefused(LedgerError):
    """What a query may be answered from is not stated, not signed by who may grant it, or not granted to who asks."""


class ExportChanged(LedgerError):
    """A file of an export is no longer what it was when it was authenticated: somebody writes it."""


class AccountantError(LedgerError, ValueError):
    """An accountant was asked for a number it cannot give.

    Attributes:
        nearest: the nearest value that can be reached, where there is one: the smallest epsilon, the smallest delta, the
            longest horizon.
    """

    def __init__(self, code: str, sentence: str, *, nearest: float | None = None) -> None:
        super().__init__(code, sentence)
        self.nearest = nearest


class LeafRefused(LedgerError, ValueError):
    """A leaf is malformed, or its meaning contradicts the leaves before it.

    Attributes:
        seq: the position of the leaf, or None when it has none yet.
    """

    def __init__(self, code: str, sentence: str, *, seq: int | None = None) -> None:
        super().__init__(code, sentence)
        self.seq = seq


class HorizonExceeded(LeafRefused):
    """A charge would pass the number of steps that the signed policy allows."""


class BudgetExhausted(LedgerError):
    """A request would take a unit above the cap of its budget; nothing may be computed for it.

    Attributes:
        unit: kind of the unit whose budget it is: that of the request, or the one above its session.
        spent: what the unit has spent, open reservations included, in 1e-9 of rho.
        cap: its cap, likewise.
        asked: what the request would cost, likewise.
        account: how the unit stands in leaves; None where several would not pay.
    """

    def __init__(
        self, code: str, sentence: str, *, unit: str, spent: int, cap: int, asked: int, account: bytes | None = None
    ) -> None:
        super().__init__(code, sentence)
        self.unit, self.spent, self.cap, self.asked, self.account = unit, spent, cap, asked, account


class BudgetExceeded(LedgerError):
    """A run could spend more of a contribution than it signed for all runs together.

    Attributes:
        nearest: the largest number of steps that would stay within the limit; 0 for none.
    """

    def __init__(self, code: str, sentence: str, *, nearest: int) -> None:
        super().__init__(code, sentence)
        self.nearest = nearest
