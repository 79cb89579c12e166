"""The report for people: one self-contained page about an audited export, without scripts or network."""

from ledger.report.page import write_report

__all__ = ["write_report"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
