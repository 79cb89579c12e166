"""Auditing a run together with the earlier runs that it says it counted."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ledger import layout
from ledger.accountants import MICRO
from ledger.audit.files import Export, Leaves
from ledger.audit.findings import AuditReport, Finding
from ledger.audit.verify import MAX_FINDINGS, verify_export
from ledger.errors import ExportChanged, LeafRefused
from ledger.leaves import Admit, Header, Previous, decode_leaf
from ledger.leaves.previous import COMPROMISED
from ledger.note import peek_checkpoint
from ledger.replay import Replay
from ledger.rules.spent import Earlier, SpentRegistry, account_of, left_out

CARRIED_TOLERANCE_MICRO = 2
"""What a run says was spent before is the recomputed value less at most this, in 1e-6: machines differ in last bits."""

Fault = Callable[[str, str, str], None]


def earlier_run(path: str | Path, keys: Sequence[str], *, owner_key: bytes | None = None) -> Earlier:
    """Verifies an export and returns it as an earlier run, at its whole size.

    Raises:
        LeafRefused: code EARLIER, the audit is not FULL; the sentence says why.
        ExportChanged: the export was written to meanwhile.
    """
    report = verify_export(path, keys, owner_key=owner_key)
    if report.verdict != "FULL":
        why = f"{report.findings[0].where}: {report.findings[0].sentence}" if report.findings else "summarised"
        raise LeafRefused("EARLIER", f"the earlier run {path} is {report.verdict}: {why}")
    leaves, digest = _leaves(Path(path))
    _require_same(report, leaves, path)
    run = _replay(leaves, leaves.size)
    header = run.header
    cited = Previous(header.origin, leaves.size, leaves.root_at(leaves.size), digest, run.keys.current, "spent")
    return Earlier(cited, run)


def verify_with_earlier(
    path: str | Path,
    keys: Sequence[str],
    earlier: Sequence[str | Path],
    *,
    owner_key: bytes | None = None,
    require_quorum: bool = False,
) -> AuditReport:
    """Audits an export as `verify_export` does, and what it says of earlier runs against their exports.

    Guarantee:
        FULL means besides: every cited earlier run was given, is FULL itself, is no shorter than cited and has the cited root
        at that size, under the cited name and key; whatever one of them counted is cited too; a compromised one is no longer
        than cited, and in none was a step charged or drawn after it was counted; no noise stream of one was used in another;
        no admission says less than what its contribution had spent in them together, nor has anybody spent more than the limit
        it signed for all runs.

    Args:
        path: the directory of the export.
        keys: verifier keys of this ledger and of the earlier ones.
        earlier: directories of the exports of earlier runs.
        owner_key: raw public key of the corpus owner, for all of them.
        require_quorum: as for `verify_export`, for the run itself.
    """
    report = verify_export(path, keys, owner_key=owner_key, require_quorum=require_quorum)
    if report.verdict == "FAILED":
        return report
    if report.verdict != "FULL":
        sentence = "leaves were pruned, and totals over runs cannot be recomputed; give an export from before, or no --earlier"
        return replace(report, verdict="FAILED", findings=(Finding("PRUNED", str(path), sentence),))
    findings: list[Finding] = []
    runs: list[Earlier] = []

    def fault(code: str, where: str, sentence: str) -> None:
        findings.append(Finding(code, where, sentence))

    try:
        leaves, _ = _leaves(Path(path))
        _require_same(report, leaves, path)
        header = _header(leaves)
        runs = _cited_runs(header, [(Path(item), *_leaves(Path(item))) for item in earlier], keys, owner_key, fault)
        for origin, missing in left_out(runs):
            sentence = f"{origin} counted {missing.origin}, which this run does not cite: what was spent there counts nowhere"
            fault("EARLIER_UNCITED", "seq 0", sentence)
        if not findings:
            run = _replay(leaves, leaves.size)
            _judge_streams([*(item.run for item in runs), run], fault)
            _judge_carried(leaves, run, SpentRegistry(runs), fault)
    except (LeafRefused, ExportChanged) as error:
        fault(error.code, str(path), error.sentence)
    except Exception as error:  # an input that breaks the auditor must not pass the audit
        fault("INTERNAL", str(path), f"the audit of earlier runs broke off: {type(error).__name__}: {error}")
    counted = tuple(map(_counted, runs))
    if not findings:
        return replace(report, notes=(*report.notes, *counted))
    return replace(report, verdict="FAILED", findings=tuple(findings[:MAX_FINDINGS]))


def _counted(earlier: Earlier) -> str:
    cited = earlier.cited
    told = f"counted with {cited.origin}, verified over its {cited.size} cited leaves"
    if earlier.run.closed or cited.reason == COMPROMISED:
        return told
    return f"{told}, where it was not closed: what was charged to it since shows in a later export of it alone"


def _cited_runs(
    header: Header,
    given: list[tuple[Path, Leaves, bytes]],
    keys: Sequence[str],
    owner_key: bytes | None,
    fault: Fault,
) -> list[Earlier]:
    """The cited runs, each verified and replayed to the size at which it is cited."""
    found: list[Earlier] = []
    for cited in header.previous:
        match = next(((path, leaves) for path, leaves, digest in given if digest == cited.header_digest), None)
        if match is None:
            fault("EARLIER_MISSING", "seq 0", f"the run cites {cited.origin}, {cited.size} leaves, whose export was not given")
            continue
        path, leaves = match
        report = verify_export(path, keys, owner_key=owner_key)
        if report.verdict != "FULL":
            why = report.findings[0].sentence if report.findings else "it is not whole"
            fault("EARLIER", str(path), f"the earlier run {cited.origin} is {report.verdict}: {why}")
            continue
        _require_same(report, leaves, path)
        if leaves.size < cited.size:
            fault(
                "EARLIER_BEHIND", str(path), f"{cited.size} leaves of {cited.origin} were cited, {leaves.size} are here"
            )
        elif leaves.root_at(cited.size) != cited.root:
            fault("EARLIER_FORKED", str(path), f"the first {cited.size} leaves of {cited.origin} are not those that were cited")
        elif cited.reason == COMPROMISED and leaves.size > cited.size:
            sentence = f"{cited.origin} ended at {cited.size} leaves, when its key was lost; {leaves.size} are shown"
            fault("EARLIER_COMPROMISED", str(path), sentence)
        else:
            run = _replay(leaves, cited.size)
            _judge_cited(Earlier(cited, run), _replay(leaves, leaves.size), str(path), fault)
            found.append(Earlier(cited, run))
    return found


def _judge_cited(earlier: Earlier, whole: Replay, path: str, fault: Fault) -> None:
    """Holds a citation against the run as it was then, and as it is by now."""
    cited, run = earlier.cited, earlier.run
    named = (run.header.origin, run.keys.at(cited.size))
    if (cited.origin, cited.log_vkey) != named:
        sentence = f"it is {named[0]!r}, signed by {named[1]} at {cited.size}, and cited as {cited.origin!r}, {cited.log_vkey}"
        fault("EARLIER_NAME", path, sentence)
    later, drawn = whole.charged - run.charged, _occurrences(whole) - _occurrences(run)
    if later or drawn:
        counted = f"{later} steps were charged to {cited.origin}" if later else f"{drawn} draws were made in {cited.origin}"
        fault("EARLIER_GREW", path, f"{counted} after it was counted, and count nowhere")


def _occurrences(run: Replay) -> int:
    return sum(contribution.occurrences for contribution in run.register.by_number)


def _judge_streams(runs: Sequence[Replay], fault: Fault) -> None:
    """Refuses a noise stream that two runs share; each run by itself was judged as it was verified."""
    seen: set[bytes] = set()
    for run in runs:
        own = {window.noise_stream for window in run.windows}
        if shared := seen & own:
            told = f"{len(shared)} noise streams of {run.header.origin} were used in an earlier run too"
            fault("NOISE_REUSED", "seq 0", f"{told}, {min(shared).hex()} among them: the noise of two releases would cancel")
        seen |= own


def _judge_carried(leaves: Leaves, run: Replay, registry: SpentRegistry, fault: Fault) -> None:
    for seq, data in enumerate(leaves):
        leaf = decode_leaf(data)
        if not isinstance(leaf, Admit):
            continue
        account = account_of(run, run.contributions[leaf.descriptor_hash])
        if account is None:
            continue
        name, before = leaf.descriptor_hash.hex(), registry.carried(leaf.descriptor_hash)
        if leaf.carried_micro + CARRIED_TOLERANCE_MICRO < before.epsilon * MICRO:
            spent = before.epsilon * MICRO
            fault("CARRIED", f"seq {seq}", f"{name} had spent {spent:.3f} (1e-6) before, the leaf says {leaf.carried_micro}")
        reached = registry.with_run(leaf.descriptor_hash, account).epsilon * MICRO
        if leaf.max_epsilon_micro and reached > leaf.max_epsilon_micro + CARRIED_TOLERANCE_MICRO:
            sentence = f"{name} has spent {reached:.3f} (1e-6) over all runs, it signed {leaf.max_epsilon_micro} at most"
            fault("BUDGET", f"seq {seq}", sentence)


def _leaves(path: Path) -> tuple[Leaves, bytes]:
    """The leaves of an export under the root that it claims, and the digest of its header; not who signed it."""
    faults: list[str] = []
    export = Export(path, lambda code, where, sentence: faults.append(f"{where}: {sentence}"))
    data = export.read(layout.CHECKPOINT) if export.scan() else None
    leaves = None if data is None else export.leaves(peek_checkpoint(data))
    if leaves is None:
        raise LeafRefused("EARLIER", f"{path} is no whole export: {faults[0] if faults else 'it has no checkpoint'}")
    return leaves, hashlib.sha256(next(iter(leaves))).digest()


def _require_same(report: AuditReport, leaves: Leaves, path: str | Path) -> None:
    """Refuses leaves that are not those of which the audit said that they are signed: others may write there."""
    if (report.size, report.root_hex) != (leaves.size, leaves.root_at(leaves.size).hex()):
        raise ExportChanged("CHANGED", f"{path} changed while it was audited; audit a copy that nobody writes")


def _header(leaves: Leaves) -> Header:
    header = decode_leaf(next(iter(leaves)))
    if not isinstance(header, Header):
        raise LeafRefused("HEADER", "the first leaf is not a header", seq=0)
    return header


def _replay(leaves: Leaves, size: int) -> Replay:
    """A run as its first leaves tell it; it was verified before, so recorded epsilons are not computed again."""
    run = Replay(_header(leaves), leaves.root_at, recompute=False)
    for data in islice(leaves, 1, size):
        run.apply(decode_leaf(data))
    return run
