"""`dptrain ledger show` and `trace`: what a ledger says, and what became of one contribution in one run or in several."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from attest.fixed_point import MICRO, PICO
from attest.schema.plain import utc, visible
from dptrain.cli.attest.anchor import AttestationsOption, RecordOption
from dptrain.cli.attest.words import noise_for
from dptrain.cli.inputs import MemberRecords, read_attestations
from dptrain.cli.ledger.place import LedgerOrExport, Now, OwnersKey, StateDirectory, VerifierKeys, place_of, trusted
from dptrain.cli.ledger.show import budget_text, shown_parties, summary, summary_text, verdict_line
from dptrain.cli.ledger.wanted import Asked, ContributorKey, ContributorRegistry, Given, Nonce, is_anchor
from dptrain.cli.options import argument, file_option, folder_argument, option, wrong_if
from dptrain.cli.output import counted, counting, number, spent, styled, table_of
from dptrain.cli.results import Shown, Told, pick
from ledger.audit.findings import VERDICTS, WHERE_BEYOND, headline
from ledger.audit.verify import open_export
from ledger.budget.audit import holds_budget, verify_budget
from ledger.errors import ExportRefused
from ledger.log import Ledger
from ledger.proofs.membership import read_admitted
from ledger.proofs.tracing import TracedOver, TracedRun, open_exports, trace_over
from ledger.replay import Replay
from ledger.views import trace as views

CONDITION = "if no run was chosen by looking at what another one released"


def show(
    ledger: LedgerOrExport,
    key: Annotated[list[str] | None, option("For an export: public key of the ledger; repeat.", metavar="PUB")] = None,
    owner_key: OwnersKey = None,
    content: Annotated[
        str | None,
        option(
            "Find the contribution with this content: its SHA-256 in hex, or a file. With an anchor, held against it.",
            metavar="HASH",
        ),
    ] = None,
    nonce: Nonce = None,
    anchor: Annotated[
        Path | None, file_option("ANCHOR", "Find the contribution of this record, as attest anchor wrote it.")
    ] = None,
    pub: ContributorKey = None,
    registry: ContributorRegistry = None,
    withdrawn: Annotated[
        bool, option("What holds of each withdrawn contribution, and of all of them together.", "--withdrawn")
    ] = False,
    header: Annotated[
        bool, option("Who signs: owner, ledger and auditors, and of an export with a registry the contributors.", "--header")
    ] = False,
    attestation: Annotated[
        list[Path] | None,
        file_option("DATA.attest", "For an export of a budget log: what was charged to what you signed here. Repeat."),
    ] = None,
    now: Now = None,
    state: StateDirectory = None,
) -> Told:
    """Show what the ledger says: steps charged, what every class has spent, releases; or of one contribution.

    Takes the ledger, or an export and the ledger's public key: an export is audited first, and asked nothing if it FAILED.
    With --content and --nonce, or with --anchor: where that content was admitted, the windows in whose pool it was, the blocks
    that it could touch, what it has spent, and which releases it may have influenced. With --withdrawn: the statement for
    everybody who withdrew. With --header: whose keys sign. Of an export of a budget log: what its units spent, and with
    --attestation each text that was charged to a contribution of yours, by which mechanism, and the most that it may spend.

    Example: `dptrain ledger show ledger.db`
    """
    if anchor is None and (content is None) != (nonce is None):
        raise typer.BadParameter("--content and --nonce go together: without the nonce nobody finds a contribution")
    wrong_if(nonce is not None and content is None, "--nonce goes with --content: by itself it says nothing")
    if withdrawn and (content is not None or anchor is not None):
        raise typer.BadParameter("give --content, --anchor or --withdrawn, not two of them")
    if Path(ledger).is_dir() and holds_budget(ledger):
        asked = content or nonce or anchor or pub or registry or withdrawn or header or state
        wrong_if(bool(asked), "this is an export of a budget: it takes --key, --attestation and --now")
        return _budget(Path(ledger), key, attestation, owner_key, now)
    wrong_if(bool(attestation), "--attestation is for an export of a budget; give --content with --nonce, or --anchor")
    given = Given(content, nonce, pub, registry)
    given.require_keys(anchored=anchor is not None)
    if header and (withdrawn or content is not None or anchor is not None):
        raise typer.BadParameter("give --header, --content, --anchor or --withdrawn, not several")
    with _reading(ledger, state, key, owner_key, now) as (run, root, bodies):
        if anchor is not None:
            return _contribution(run, bodies, given.by_anchor(anchor, [run.header]))
        if content is not None:
            return _contribution(run, bodies, given.by_content(content))
        if withdrawn:
            return _withdrawn(run)
        if header:
            return shown_parties(run, ledger)
        data = summary(run, root)
    return Told(data, summary_text(data))


def _budget(
    export: Path, key: list[str] | None, attestations: list[Path] | None, owner_key: Path | None, now: int | None
) -> Told:
    """Returns what a budget log says, and what was charged to these contributions; refused if the audit of the export fails."""
    if not key:
        raise typer.BadParameter(f"'{export}' is an export: give the log's public key with --key")
    digests = [hashlib.sha256(one.descriptor).digest() for path in attestations or [] for one in read_attestations(path)]
    owner, vkeys = trusted(key, owner_key)
    with counting(f"auditing {export}"):
        found = verify_budget(export, vkeys, owner_key=owner, now=now, contributions=digests)
    if found.verdict == "FAILED":
        first = found.findings[0]
        raise ExportRefused("FAILED", f"the audit found {first.code} at {first.where}: {first.sentence}; it is asked nothing")
    return Told(found.to_json(), budget_text(found))


@contextmanager
def _reading(
    ledger: str, state: Path | None, key: list[str] | None, owner_key: Path | None, now: int | None
) -> Iterator[tuple[Replay, bytes, Iterable[bytes | None]]]:
    """Yields the run in a ledger or a verified export, its root, and its leaves."""
    if Path(ledger).is_dir():
        if not key or state is not None:
            raise typer.BadParameter(f"'{ledger}' is an export: give the ledger's public key with --key, and no --state")
        owner, vkeys = trusted(key, owner_key)
        with counting(f"auditing {ledger}"):
            opened = open_export(ledger, vkeys, owner_key=owner, now=now)
        yield opened.run, bytes.fromhex(opened.report.root_hex or ""), opened.given.leaves
        return
    if key or owner_key or now is not None:
        raise typer.BadParameter("--key, --owner-key and --now are for exports; a ledger is checked by 'dptrain ledger fsck'")
    with Ledger.open(place_of(ledger, state), read_only=True) as log:
        pruned = log.pruned()
        with log.rows() as rows:
            yield log.state, log.root, ((row.body for row in rows) if pruned is None else pruned.entries(rows))


def _contribution(run: Replay, bodies: Iterable[bytes | None], asked: Asked) -> Told:
    """Returns what became of a contribution in a run, whose anchor must name the key that signed it."""
    found = views.trace(run, bodies, asked.wanted)
    if asked.signers is not None:
        found.require_signer(asked.signers(run.header))
    told = _traced(found, run)
    return Told(told | {"anchor": asked.anchor}, [*_anchor_text(asked, pruned=found.pruned), *_traced_text(told)])


def _anchor_text(asked: Asked, *, pruned: bool) -> Iterator[Shown]:
    """Yields who signed the anchor, if one led here; with a pruned ADMIT leaf the id of the contributor's key is gone too."""
    if (told := asked.anchor) is None:
        return
    about = "the content given is the one it is of" if told["content_compared"] else "which content it is of was not looked at"
    yield f"anchor of {utc(told['time'])}, signed by {told['contributor']}, key {told['key_id']}: {about}"
    if pruned:
        yield "its ADMIT leaf was pruned, and names no key any more: that the signer is its contributor is not shown"


def _withdrawn(run: Replay) -> Told:
    """Returns the statement about all withdrawn contributions."""
    made = views.withdrawal_statement(run)
    text = [] if made.rows else ["nothing was withdrawn"]
    for row in made.rows:
        about = "" if row.class_name is None else f"  class {row.class_name}, {counted(row.steps, 'charged step')}"
        text.append(styled("bold", row.descriptor_hash.hex(), f"  leaf {row.seq}{about}"))
        text += [f"  {sentence}" for sentence in row.sentences]
    if made.members > 1 or made.hidden:
        text.append(made.sentence)
    names = {"class": "class_name", "epsilon_planned": "planned"}
    rows = [pick(row, "descriptor_hash seq steps epsilon sentences", **names) for row in made.rows]
    together = pick(made, "epsilon sentence", contributions="members")
    return Told({"delta": run.header.delta, "withdrawn": rows, "together": together}, text)


def _traced(found: views.Trace, run: Replay) -> dict[str, Any]:
    """Returns what became of a contribution in a run, as JSON."""
    admit, withdraw = found.admit, found.withdraw
    own = noise_for(run.header.policy, admit.class_name, admit)
    return pick(admit, "descriptor_hash seq", **{"class": "class_name"}) | {
        "time": None if found.pruned else admit.time,
        **pick(admit.bounds, "clip_norm noise_multiplier"),
        "max_occurrences": admit.max_occurrences or None,
        "max_epsilon": admit.max_epsilon_micro / MICRO or None,
        "max_delta": admit.max_delta_pico / PICO or None,
        **pick(found, "pruned blocks steps occurrences epsilon carried"),
        "withdrawn": None if withdraw is None else pick(withdraw, "seq time reason"),
        "windows": [
            pick(window, "window seq time attempt first_step last_step") | {"variance": variance}
            for window, variance in zip(found.windows, found.variances, strict=True)
        ],
        "delta": run.header.delta,
        "releases": [pick(row, "seq time step manifest_digest parts") for row in found.releases],
        "own_noise": None if own is None else pick(own, "multiplier variance", expected_occurrences="expected"),
    }


def _traced_text(told: dict[str, Any], verdict: str = "") -> Iterator[Shown]:
    """Yields what became of a contribution in a run, beside the verdict on its export; a ledger is audited by nobody."""
    when, since = ("", ", pruned since") if told["pruned"] else (f" {utc(told['time'])}", "")
    yield styled("bold", told["descriptor_hash"], f"  admitted{when}, leaf {told['seq']}{since}")
    yield f"class {told['class']}, clip norm {number(told['clip_norm'])}, noise {number(told['noise_multiplier'])}"
    if told["max_epsilon"]:
        limit = f"epsilon {number(told['max_epsilon'], 6)} at delta {told['max_delta'] or 0:g}"
        yield f"signed for at most {limit} over all runs"
    else:
        yield "signed no limit of epsilon over all runs"
    if (own := told["own_noise"]) is not None:
        yield (
            f"its own bounds would need noise of variance {number(own['variance'])} per step and coordinate (multiplier "
            f"{number(own['multiplier'])}, {number(own['expected_occurrences'])} draws expected), whatever its class is given"
        )
    if (gone := told["withdrawn"]) is not None:
        yield f"withdrawn {utc(gone['time'])}, leaf {gone['seq']}: {gone['reason']}"
    yield f"could touch: {', '.join(told['blocks'])}"
    drawn = "" if told["occurrences"] is None else f", drawn in {told['occurrences']}"
    yield f"in the pool of {counted(len(told['windows']), 'window')}, {counted(told['steps'], 'charged step')}{drawn}"
    yield table_of(
        told["windows"],
        {
            **{
                key.replace("_", " "): lambda row, key=key: str(row[key])
                for key in ("window", "attempt", "first_step", "last_step")
            },
            "variance": lambda row: number(row["variance"]),
            "charged": lambda row: utc(row["time"]),
        },
    )
    for row in told["releases"]:
        yield (
            f"may have influenced the release at leaf {row['seq']}, step {row['step']}: {', '.join(row['parts'])} "
            f"(release.cose has SHA-256 {row['manifest_digest']})"
        )
    carried = f", and {spent(told['carried'])} in earlier runs, as its admission says" if told["carried"] else ""
    beside = f" [{verdict}]" if verdict else ""
    yield f"spent: epsilon {spent(told['epsilon'])} at delta {told['delta']:g}{carried}{beside}"


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
    It does not hold the runs against each other as `ledger verify --earlier` does, and counts no budget of texts: of such an
    export ask `ledger show`.

    Example: `dptrain ledger trace scan.png export-1/ export-2/ --key ledger-1.pub --key ledger-2.pub`
    """
    for budget in filter(holds_budget, exports):
        wrong_if(True, f"{budget} is an export of a budget, which is no run: ask 'dptrain ledger show' with --attestation")
    given = Given(content, nonce, pub, registry, attestations, record)
    given.require_keys(anchored=is_anchor(contribution))
    owner, vkeys = trusted(key, owner_key)
    # What is wrong with the question is told before minutes of audit; only a registry needs the runs that it is of.
    asked = None if registry is not None else given.by_name(contribution, ())
    with counting(f"auditing {len(exports)} exports"):
        opened = open_exports(exports, vkeys, owner_key=owner, now=now)
    asked = asked or given.by_name(contribution, [item.run.header for item in opened])
    found = trace_over(opened, asked.wanted, asked.signers, [read_admitted(path) for path in members or []])
    runs = [_run(item) for item in found.runs]
    return Told(_in_all(found, asked, runs), _in_all_text(found, asked, runs))


def _run(item: TracedRun) -> dict[str, Any]:
    header, report = item.run.header, item.opened.report
    told = {"export": str(item.opened.given.path), "corpus": header.policy.corpus} | pick(header, "origin run_id")
    found = None if item.trace is None else _traced(item.trace, item.run)
    return told | pick(item.run, "size", finished="closed") | pick(report, "verdict qualifiers") | {"found": found}


def _in_all(found: TracedOver, asked: Asked, runs: list[dict[str, Any]]) -> dict[str, Any]:
    gone, rests_on = found.withdrawal, pick(found, "verdict")
    withdrawal = None
    if gone is not None:
        withdrawal = pick(gone.leaf, "seq time reason") | pick(gone, "origin steps_after", epsilon_by_then="epsilon")
        withdrawal |= {"epsilon_in_all": found.epsilon, **rests_on}
    return {
        **pick(asked.wanted, "content descriptor_hash"),
        "anchor": asked.anchor,
        **pick(found, "verdict qualifiers descriptors unseen"),
        "runs": runs,
        "composed": {"runs": len(found.composed), **pick(found, "epsilon delta"), "condition": CONDITION, **rests_on},
        "limits": [
            pick(use.limit, "by")
            | {"whose": use.limit.whose or None, "epsilon": use.limit.pair[0], "delta": use.limit.pair[1]}
            | pick(use, "used planned held")
            | rests_on
            for use in found.limits
        ],
        "withdrawal": withdrawal,
        "not_given": [pick(before, "origin size") for before in found.not_given],
    }


def _in_all_text(found: TracedOver, asked: Asked, runs: list[dict[str, Any]]) -> Iterator[Shown]:
    yield from _anchor_text(asked, pruned=any(told["found"] and told["found"]["pruned"] for told in runs))
    for item, told in zip(found.runs, runs, strict=True):
        yield verdict_line(told["verdict"], told["qualifiers"], f"{item.origin}, {visible(told['export'])}")
        if item.lost:
            yield "another run says that its key was lost here: over all runs it counts with its whole plan"
        if told["found"] is None:
            stayed = f"not named in this run; {counted(item.unnamed, 'contribution')} that stayed in it have no names any more"
            yield f"{stayed if item.unnamed else 'not admitted in this run'}\n"
            continue
        yield from _traced_text(told["found"], headline(told["verdict"], told["qualifiers"]))
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
