"""`dptrain ledger trace`: one contribution in several exports, and what it spent in all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attest.schema.plain import utc, visible
from dptrain.cli.attest.attested import AttestationsOption, RecordOption
from dptrain.cli.inputs import MemberRecords
from dptrain.cli.ledger.contributions import anchor_text, trace_as_json, trace_text
from dptrain.cli.ledger.place import Now
from dptrain.cli.ledger.proofs import OwnersKey, VerifierKeys, trusted
from dptrain.cli.ledger.show import COLOURS
from dptrain.cli.ledger.wanted import Asked, ContributorKey, ContributorRegistry, Nonce, by_name, check_keys, is_anchor
from dptrain.cli.options import argument, folder_argument, option
from dptrain.cli.output import counted, counting, spent, styled
from dptrain.cli.results import Shown, Told, pick

if TYPE_CHECKING:
    # Loaded where they are used, as in `dptrain.cli.ledger.commands`: help and completion need none of them.
    from ledger.proofs.tracing import TracedOver, TracedRun

CONDITION = "if no run was chosen by looking at what another one released"


def trace(
    contribution: Annotated[
        str,
        argument(
            "The content, with its attestation beside it or --nonce; an anchor file; or a descriptor hash.",
            metavar="CONTRIBUTION",
        ),
    ],
    exports: Annotated[list[Path], folder_argument("EXPORT", "Directories that export wrote.")],
    key: VerifierKeys,
    owner_key: OwnersKey = None,
    attestations: AttestationsOption = None,
    record: RecordOption = None,
    nonce: Nonce = None,
    content: Annotated[
        str | None, option("Hold this content, a file or its SHA-256, against the anchor.", metavar="HASH")
    ] = None,
    pub: ContributorKey = None,
    registry: ContributorRegistry = None,
    members: MemberRecords = None,
    now: Now = None,
) -> Told:
    """Say what became of one contribution in several runs: where it was, what it spent, and which releases it may be in.

    Every export is audited first; if one FAILED, nothing is said. Beside every figure stands the verdict that it rests on.
    What it spent over all runs is composed from these exports alone, and what no export can show is listed at the end. That a
    run did not admit it is an answer; that none did is an error, and exit code 1.

    When one contribution was, or may have been, in several runs over a corpus: what it spent in each and in all together,
    before and after it was withdrawn, and which releases it may have influenced. For a single ledger, `ledger show` will do.
    It does not hold the runs against each other as `ledger verify --earlier` does.

    Example: `dptrain ledger trace scan.png export-1/ export-2/ --key ledger-1.pub --key ledger-2.pub`
    """
    check_keys(is_anchor(contribution), pub, registry)
    from ledger.proofs.membership import read_admitted
    from ledger.proofs.tracing import open_exports, trace_over

    owner, vkeys = trusted(key, owner_key)
    said: dict[str, Any] = {"nonce": nonce, "content": content, "pub": pub, "registry": registry}
    said |= {"attestations": attestations, "record": record}
    # What is wrong with the question is told before minutes of audit; only a registry needs the runs that it is of.
    asked = None if registry is not None else by_name(contribution, (), **said)
    with counting(f"auditing {len(exports)} exports"):
        opened = open_exports(exports, vkeys, owner_key=owner, now=now)
    if asked is None:
        asked = by_name(contribution, [item.run.header for item in opened], **said)
    found = trace_over(opened, asked.wanted, asked.signers, [read_admitted(path) for path in members or []])
    return Told(_as_json(found, asked), _text(found, asked))


def _headline(item: "TracedRun") -> str:
    from ledger.audit.findings import headline

    return headline(item.opened.report.verdict, item.opened.report.qualifiers)


def _as_json(found: "TracedOver", asked: Asked) -> dict[str, Any]:
    gone, rests_on = found.withdrawal, pick(found, "verdict")
    limits = [
        {**pick(use.limit, "by"), "whose": use.limit.whose or None, "epsilon": use.limit.pair[0], "delta": use.limit.pair[1]}
        | pick(use, "used planned held")
        | rests_on
        for use in found.limits
    ]
    composed = {"runs": len(found.composed), **pick(found, "epsilon delta"), "condition": CONDITION}
    withdrawal = None
    if gone is not None:
        withdrawal = pick(gone.leaf, "seq time reason") | pick(gone, "origin steps_after", epsilon_by_then="epsilon")
        withdrawal |= {"epsilon_in_all": found.epsilon, **rests_on}
    return {
        **pick(asked.wanted, "content descriptor_hash"),
        "anchor": asked.anchor,
        **pick(found, "verdict qualifiers descriptors unseen"),
        "runs": [_run_as_json(item) for item in found.runs],
        "composed": composed | rests_on,
        "limits": limits,
        "withdrawal": withdrawal,
        "not_given": [pick(before, "origin size") for before in found.not_given],
    }


def _run_as_json(item: "TracedRun") -> dict[str, Any]:
    header, report = item.run.header, item.opened.report
    told = {"export": str(item.opened.given.path), "corpus": header.policy.corpus} | pick(header, "origin run_id")
    found = None if item.trace is None else trace_as_json(item.trace, item.run)
    return told | pick(item.run, "size", finished="closed") | pick(report, "verdict qualifiers") | {"found": found}


def _text(found: "TracedOver", asked: Asked) -> Iterator[Shown]:
    from ledger.audit.findings import VERDICTS, WHERE_BEYOND, headline

    yield from anchor_text(asked, pruned=any(item.trace.pruned for item in found.runs if item.trace is not None))
    for item in found.runs:
        verdict = item.opened.report.verdict
        where = f"  {item.origin}, {visible(str(item.opened.given.path))}"
        yield styled(f"bold {COLOURS.get(verdict, 'red')}", _headline(item), where)
        if item.lost:
            yield "another run says that its key was lost here: over all runs it counts with its whole plan"
        if item.trace is None:
            stayed = f"not named in this run; {counted(item.unnamed, 'contribution')} that stayed in it have no names any more"
            yield f"{stayed if item.unnamed else 'not admitted in this run'}\n"
            continue
        yield from trace_text(item.trace, item.run, _headline(item))
        yield ""
    beside = f"[{headline(found.verdict, found.qualifiers)}]"
    runs = counted(len(found.composed), "run")
    if found.epsilon is None:
        yield f"over {runs}: no bound, since its class is public in one of them {beside}"
    else:
        yield f"over {runs}: epsilon {spent(found.epsilon)} at delta {found.delta:g}, {CONDITION} {beside}"
    for use in found.limits:
        how = "however each was chosen" if use.held else f"but one began without room, so that this holds only {CONDITION}"
        used = f"these runs use {spent(use.used)} of it, and {spent(use.planned)} as planned"
        yield f"limit: {use.limit}; {used}, {how} {beside}"
    if (gone := found.withdrawal) is not None:
        after = counted(gone.steps_after, "step")
        yield (
            f"withdrawn in {gone.origin}, leaf {gone.leaf.seq}, {utc(gone.leaf.time)}: epsilon {spent(gone.epsilon)} was spent "
            f"by then, {after} charged to it in other runs after that {beside}"
        )
    if len(found.descriptors) > 1:
        yield f"{len(found.descriptors)} descriptors have this content: it was signed again with the same nonce"
    if found.verdict != "FULL":
        yield f"{found.verdict}: {VERDICTS[found.verdict].sentence}; {VERDICTS[found.verdict].remedy}"
    yield "what none of these exports can show:"
    for sentence in found.unseen:
        yield f"  {sentence}"
    yield WHERE_BEYOND
