"""Fuzz targets of what people are shown: words and tables of `attest show`, `ledger show`, `verify-proof` and the HTML report.

An input fills documents of a right form with any integers and any text. Beside what every target holds: nothing comes out of a
printer, and what it prints can be encoded and has no character that moves, hides or reorders others.
"""

import contextlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import ContributionDescriptor
from attest.errors import AttestError
from dptrain.cli.attest import show as attest_show
from dptrain.cli.attest.verify import Verifier
from dptrain.cli.ledger import proofs as ledger_proofs
from dptrain.cli.ledger import show as ledger_show
from dptrain.cli.results import print_text
from fuzz.exports import LEAVES
from fuzz.invariants import Target, require
from ledger.audit import AuditReport, EpochRow, Finding, Signer, WithdrawalCount, WithdrawalRow, verify_export
from ledger.audit.findings import ClockRow, IgnoredLine, KindRow, SummaryRow
from ledger.errors import LedgerError
from ledger.leaves import decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.note import Checkpoint, Signature
from ledger.report import write_report
from ledger.views.geometry import GeometryFacts, RankRow
from ledger.views.summary import ReleasedPart, ReleaseRow
from tests.attacks.scene import descriptor, opening
from tests.worlds.gate import ALICE, NOW
from tests.worlds.ledgers import SIGNER, START, Driver, header_spec

_WHOLE = (0, 1, -1, 253402300799, 253402300800, 10**12, 2**62, 2**63 - 1, 2**64, -(2**63), 10**30, 1_750_000_000)
_CHARS = "a\x00\x07\x1b[31m\n\r\t\x9b\x85\u202e\u2066\u200b\u2028\ud800\udfff\U000e0041<&'é字"


class Draws:
    """Values taken off an input; when it is used up, plain ones."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def small(self, below: int) -> int:
        """Returns a number below another."""
        return int.from_bytes(self._stream.read(1), "big") % below

    def whole(self) -> int:
        """Returns any integer: one of those at which printers break, or of eight bytes."""
        chosen = self.small(2 * len(_WHOLE))
        return _WHOLE[chosen] if chosen < len(_WHOLE) else int.from_bytes(self._stream.read(8), "big", signed=True)

    def text(self) -> str:
        """Returns a short text: characters that do something, and any others."""
        return "".join(self._char() for _ in range(self.small(24)))

    def _char(self) -> str:
        at = self.small(2 * len(_CHARS))
        return _CHARS[at] if at < len(_CHARS) else chr(int.from_bytes(self._stream.read(3), "big") % 0x110000)

    def share(self) -> float:
        """Returns a finite number that is not below 0."""
        return abs(self.whole()) % 10**6 / 997


def _shown(print_it: Callable[[], object], what: str) -> None:
    """Prints, and looks at every character."""
    screen = io.StringIO()
    with contextlib.redirect_stdout(screen):
        print_it()
    require_shown(screen.getvalue(), what)


def require_shown(printed: str, what: str) -> None:
    """Stops the fuzzer at a character that does something."""
    bad = [char for char in printed if not char.isprintable() and char != "\n"]
    require(not bad, f"{what} prints {''.join(bad[:5])!a}")
    printed.encode()


def run_attest_show(data: bytes) -> None:
    """`attest show` of one attestation, in words and as a table."""
    draws = Draws(data)
    times = sorted(abs(draws.whole()) % 253402300800 for _ in range(2))
    now, body = draws.whole(), draws.small(2)
    try:
        plain = replace(ContributionDescriptor.open(descriptor(), opening()), not_before=times[0], not_after=times[1])
        payload = plain.to_cbor() if body else data
        message = sign1.sign(payload, ALICE, contributor=plain.signed.issuer)
    except AttestError:
        return
    attestation, verifier = Attestation(payload, message, plain.opening()), Verifier(now=now)
    path = _SCRATCH / "x.attest"
    path.write_bytes(attestation.to_cbor())

    def show() -> None:
        with contextlib.suppress(AttestError):
            if draws.small(2):
                attest_show._listed(path, 5, verifier).print(as_json=False)
            else:
                attest_show._explained(attestation, 1, verifier).print(as_json=False)

    _shown(show, "attest show")


def _audited() -> AuditReport:
    """Makes the audit of a small run."""
    with tempfile.TemporaryDirectory() as folder:
        with Ledger.create(Path(folder) / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
            Driver(ledger).whole_run()
            export = ledger.export(Path(folder) / "export")
        return verify_export(export, [SIGNER.vkey])


REPORT = _audited()
_SCRATCH = Path(tempfile.mkdtemp(prefix="dptrain-fuzz-"))
(_SCRATCH / "checkpoint").write_bytes(b"")


def _filled(draws: Draws) -> AuditReport:
    """Makes the audit of a small run, with other words and times in it."""
    word, whole = draws.text, draws.whole
    first, *rest = REPORT.classes
    parts = (ReleasedPart(word(), (word(),), (draws.share(), None), (draws.share(), None)),)
    return replace(
        REPORT,
        verdict=("FULL", "SUMMARISED", "FAILED")[draws.small(3)],
        origin=word(),
        corpus=word(),
        owner=word(),
        isolation=word(),
        accountant=word(),
        root_hex=word(),
        size=whole(),
        now=whole(),
        last_time=whole(),
        charged=whole(),
        findings=(Finding(word(), word(), word()),),
        notes=(word(), word()),
        classes=(replace(first, name=word(), active=whole(), steps=whole()), *rest),
        epochs=tuple(
            EpochRow(row.number, row.step, row.charged, row.epsilons, whole(), whole(), row.active, row.withdrawn, word())
            for row in REPORT.epochs
        ),
        unprobed=(word(),),
        geometry=GeometryFacts(word(), whole(), (RankRow(whole(), whole()),), (), word()),
        signers=(Signer(word(), word(), whole(), draws.small(2) == 1, draws.small(2) == 1),),
        ignored=(IgnoredLine(word(), word(), draws.small(9), None),),
        clock_sets=(ClockRow(whole(), whole(), whole(), word()),),
        kinds=(KindRow(word(), whole(), whole(), whole()),),
        withdrawal_counts=(WithdrawalCount(word(), word(), whole()),),
        withdrawals=(WithdrawalRow(whole(), whole(), word(), word(), word(), whole(), draws.share()),),
        summaries=(SummaryRow(whole(), whole(), whole(), (word(),), draws.small(9), draws.small(9)),),
        release_count=whole(),
        releases=(ReleaseRow(whole(), whole(), whole(), whole(), word(), word(), word(), whole(), True, parts),),
    )


def run_audit_shown(data: bytes) -> None:
    """`ledger verify` and `ledger show` of a run with any words and times."""
    draws = Draws(data)
    report = _filled(draws)
    told = {
        **{name: draws.text() for name in ("origin", "run_id", "root", "corpus", "accountant", "adjacency", "isolation")},
        **{name: draws.whole() for name in ("size", "time", "charged_steps", "steps", "redo_steps", "step", "attempt")},
        **{"finished": True, "private": draws.small(2) == 1, "delta": draws.share()},
        "clock_sets": [{name: draws.whole() for name in ("leaf", "before", "time")}],
        "geometry": None if report.geometry is None else asdict(report.geometry),
        "classes": [asdict(row) for row in report.classes],
        "releases": [asdict(row) for row in report.releases],
    }
    _shown(lambda: print_text((*ledger_show.audit_text(report), *ledger_show.summary_text(told))), "ledger show")


def run_report(data: bytes) -> None:
    """Writes the HTML report of a run with any words and times."""
    page = _SCRATCH / "report.html"
    page.unlink(missing_ok=True)
    write_report(_SCRATCH, page, report=_filled(Draws(data)))
    require_shown(page.read_text(encoding="utf-8"), "the report")


def run_leaf_shown(data: bytes) -> None:
    """`verify-proof` of any leaf that can be read, under a checkpoint and cosignatures of any words and times."""
    draws = Draws(data[:200])
    kinds = list(LEAVES.values())
    try:
        leaf = decode_leaf(data[200:] or kinds[draws.small(len(kinds))])
    except LedgerError:
        return
    encode_leaf(leaf)
    key = replace(SIGNER.verifier, name=draws.text())
    checkpoint = Checkpoint(draws.text(), draws.whole(), bytes(32))
    signatures = (Signature(key, draws.whole()), Signature(key, draws.whole()))
    _shown(
        lambda: print_text(ledger_proofs.LeafShown(leaf, checkpoint, signatures).text()),
        "verify-proof",
    )


_SEEDS = [bytes(range(start, 256, 7)) * 4 for start in range(6)]
_LEAVES = [seed[:200].ljust(200, b"\x01") + leaf for seed in _SEEDS[:2] for leaf in LEAVES.values()]
_SECONDS = 0.5
"""What a screen or a page may take."""

PRINTER_TARGETS: dict[str, Target] = {
    "attest_show": Target(run_attest_show, [*_SEEDS, bytes([1, NOW % 256] * 30)], 400, _SECONDS),
    "ledger_show": Target(run_audit_shown, _SEEDS, 2000, _SECONDS),
    "verify_proof_shown": Target(run_leaf_shown, _LEAVES, seconds=_SECONDS),
    "report": Target(run_report, _SEEDS, 2000, _SECONDS),
}
"""The printers of what others wrote, by name."""
