"""`dptrain attest show`: what attestations say, in words for one and as a table for many, and what of it was verified."""

import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from attest import keys, sign1
from attest.attestation import Attestation, read_sequence
from attest.corpus.records import SUFFIX
from attest.descriptor import ContributionDescriptor, SignedDescriptor
from attest.errors import AttestError, CborError
from attest.fixed_point import from_micro, from_pico
from attest.gate import Gate
from attest.schema.plain import day, visible
from dptrain.cli.attest.verify import Verifier
from dptrain.cli.attest.words import Check, commitments, identity, own_noise_of, paragraphs
from dptrain.cli.inputs import read_policy, read_registry
from dptrain.cli.options import argument, file_option, option
from dptrain.cli.output import console, moment, number, styled, table
from dptrain.cli.results import Result, Shown, Told, pick, plain
from dptrain.progress import progress_bar


def _not_the_data(path: Path | None) -> Path | None:
    """Refuse data, or a folder, in place of a file of attestations."""
    beside = None if path is None else path.with_name(path.name + SUFFIX)
    if beside is not None and beside.is_file():
        raise typer.BadParameter(f"{path} is data; its attestations are in {beside}")
    if path is not None and path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; give one {SUFFIX} file")
    return path


AttestationFile = Annotated[
    Path,
    argument("Attestations, as sign wrote them.", metavar="DATA.attest", exists=True, callback=_not_the_data, dir_okay=True),
]

_VERIFY = "Verify"
_WIDEST = 100
_MARKS = {"passed": ("green", "✓"), "failed": ("bold red", "✗"), "unchecked": ("dim", "–")}


def show(
    attestations: AttestationFile,
    record: Annotated[int | None, option("Number of one contribution, from 1, to be explained in words.", min=1)] = None,
    limit: Annotated[int, option("Attestations that are listed; all are counted.", min=1)] = 20,
    pub: Annotated[Path | None, file_option("PUB", "Verify under this public key.", rich_help_panel=_VERIFY)] = None,
    policy: Annotated[
        Path | None, file_option("POLICY", "Explain and verify under this policy.", rich_help_panel=_VERIFY)
    ] = None,
    registry: Annotated[
        Path | None,
        file_option(
            "REGISTRY", "Verify under this registry; default: registry.cbor beside a signed policy.", rich_help_panel=_VERIFY
        ),
    ] = None,
    owner_key: Annotated[
        Path | None,
        file_option(
            "PUB", "The corpus owner's public key; default: owner.pub beside policy or registry.", rich_help_panel=_VERIFY
        ),
    ] = None,
    at: Annotated[int | None, moment("Moment at which they must be valid; default: now.", rich_help_panel=_VERIFY)] = None,
) -> Result:
    """Show what attestations say: a table, or one of them in plain words.

    Nothing is verified unless --pub, --registry or --policy says against what; what was not verified is marked.

    Example: `dptrain attest show notes.jsonl.attest --record 3 --policy policy.cose`
    """
    verifier = _verifier(pub, policy, registry, owner_key, int(time.time()) if at is None else at)
    if record is not None:
        return _explained(_nth(attestations, record), record, verifier)
    return _listed(attestations, limit, verifier)


def _verifier(pub: Path | None, policy: Path | None, registry: Path | None, owner_key: Path | None, now: int) -> Verifier:
    rules, signed = (None, None) if policy is None else read_policy(policy, owner_key)
    known = None
    if registry is not None:
        # The owner's key lies beside the policy, if there is one; otherwise beside the registry.
        known = read_registry(policy or registry, registry, owner_key)
    elif signed is not None and policy is not None and policy.with_name("registry.cbor").is_file():
        known = read_registry(policy, None, owner_key)
    if signed is not None and rules is not None and known is not None and not known.names_missing:
        # Refuses a registry that does not extend the one that the policy names, as the gate does.
        Gate(rules, known, workers=1)
    return Verifier(
        now=now,
        pub=None if pub is None else keys.load_named_public_key(pub),
        registry=known,
        policy=rules,
        policy_signed=signed is not None,
    )


def _nth(path: Path, record: int) -> Attestation:
    with path.open("rb") as stream:
        found = next(islice(read_sequence(stream), record - 1, None), None)
    if found is None:
        with path.open("rb") as stream:
            count = sum(1 for _ in read_sequence(stream))
        raise typer.BadParameter(f"{path} holds {count:,} attestations, there is no number {record}")
    return found


def _explained(attestation: Attestation, record: int, verifier: Verifier) -> Told:
    """Returns one attestation in words."""
    checks = verifier.checks(attestation)
    words = paragraphs(attestation, verifier.now, verifier.policy, verifier.policy_signed)
    data = {"record": record, **_as_json(attestation), "own_noise": _own_noise(attestation, verifier)}
    failed = any(check.outcome == "failed" for check in checks)
    return Told(
        data | {"words": words, "checks": plain(checks)}, _words_text(words, identity(attestation), checks), code=failed
    )


def _own_noise(attestation: Attestation, verifier: Verifier) -> dict[str, float] | None:
    """Tells what its own bounds would need under the policy given; None without one, or where there is no such figure."""
    found = None if verifier.policy is None else own_noise_of(attestation.read(), verifier.policy)
    if found is None:
        return None
    return {"expected_occurrences": found.expected, "multiplier": found.multiplier, "variance": found.variance}


@dataclass(slots=True)
class _Tally:
    """Keeps what a pass over a file leaves behind: counts, and the first rows."""

    count: int = 0
    corpora: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    contributors: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    rows: list[tuple[int, Attestation, Check | None]] = field(default_factory=list)
    broken: AttestError | None = None


def _listed(path: Path, limit: int, verifier: Verifier) -> Result:
    """Returns counts and the first rows; of a sole attestation what it says."""
    with path.open("rb") as stream, progress_bar("reading", lambda: _estimated_count(path)) as progress:
        tally = _Tally()
        for attestation in _until_broken(read_sequence(stream), tally):
            tally.count += 1
            failure = _count_one(attestation, verifier, tally)
            if len(tally.rows) < limit:
                tally.rows.append((tally.count, attestation, failure))
            if progress is not None:
                progress(tally.count)
    if tally.broken is not None:
        tally.broken = _located(tally.broken, tally.count + 1, path)
        if not tally.count:
            raise tally.broken
    return Listed(tally, verifier, path)


@dataclass(frozen=True)
class Listed(Result):
    """The attestations of a file, counted. What broke off the reading is raised behind what was read."""

    tally: _Tally
    verifier: Verifier
    path: Path

    @property
    def exit_code(self) -> int:
        if self.tally.broken is not None:
            raise self.tally.broken
        return bool(self.tally.failures)

    def as_json(self) -> dict[str, Any]:
        return _tally_as_json(self.tally, self.verifier)

    def text(self) -> Iterable[Shown]:
        if self.tally.count == 1 and not self.tally.failures:
            return _explained(self.tally.rows[0][1], 1, self.verifier).text()
        return _table_text(self.tally, self.verifier, self.path)


def _until_broken(sequence: Iterator[Attestation], tally: _Tally) -> Iterator[Attestation]:
    """Yields attestations up to a malformed item, which is remembered: what follows it cannot be found."""
    try:
        yield from sequence
    except AttestError as error:
        tally.broken = error


def _located(error: AttestError, item: int, path: Path) -> AttestError:
    if item == 1:
        return CborError(error.code, f"{path} is not a file of attestations, or damaged from its beginning: {error.sentence}")
    return CborError(error.code, f"item {item} of {path} is damaged, and nothing after it can be read: {error.sentence}")


def _count_one(attestation: Attestation, verifier: Verifier, tally: _Tally) -> Check | None:
    try:
        signed = attestation.read()
        sign1.parse(attestation.sign1)
        failure = None if verifier.idle else verifier.failure(attestation)
    except AttestError as error:
        failure = Check("form", "failed", error.sentence, str(error.code))
    else:
        tally.corpora[signed.corpus] += 1
        tally.classes[signed.admissibility_class] += 1
        tally.contributors[_who(signed)] += 1
    if failure is not None:
        tally.failures[failure.code or "FAILED"] += 1
    return failure


def _estimated_count(path: Path) -> int:
    """Estimates how many attestations a file holds; they are nearly equally long when one command signed them."""
    try:
        with path.open("rb") as stream:
            first = next(read_sequence(stream), None)
    except AttestError:
        return 0
    return 0 if first is None else max(1, round(path.stat().st_size / len(first.to_cbor())))


def _words_text(words: list[str], names: list[tuple[str, str]], checks: list[Check]) -> Iterator[Shown]:
    width = min(_WIDEST, console().width)
    for paragraph in words:
        yield textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False) + "\n"
    for name, value in names:
        yield f"  {name:<16} {value}"
    yield ""
    for check in checks:
        style, mark = _MARKS[check.outcome]
        word = {"passed": "verified", "failed": f"FAILED {check.code}", "unchecked": "NOT verified"}[check.outcome]
        head = f"  {mark} {check.what} {word}"
        text = textwrap.fill(f"{head}: {check.sentence}", width, subsequent_indent="      ", break_on_hyphens=False)
        yield styled(style, head, text[len(head) :])


def _table_text(tally: _Tally, verifier: Verifier, path: Path) -> Iterator[Shown]:
    columns = ["#", "contributor", "class", "clip norm", "noise", "until", "descriptor"]
    rows = table(*columns) if verifier.idle else table(*columns, "verified")
    for column in rows.columns[1:3]:
        column.justify = "left"
    for index, attestation, failure in tally.rows:
        outcome = [] if verifier.idle else ["✗ " + (failure.code or "") if failure else "✓"]
        rows.add_row(str(index), *_cells(attestation), *outcome)
    if tally.rows:
        yield rows
    if tally.count > len(tally.rows):
        yield f"... and {tally.count - len(tally.rows):,} more (--limit)"
    for what, counts in (("corpus", tally.corpora), ("class", tally.classes), ("contributor", tally.contributors)):
        yield f"{what}: " + (", ".join(_most(counts)) or "none")
    for code, count in tally.failures.most_common():
        yield styled("red", "  failed", f" {code}: {count:,}")
    yield f"{tally.count:,} attestations, {_said(tally, verifier)}"
    if tally.count:
        yield f"one of them in words: dptrain attest show {visible(str(path))} --record 1"


def _said(tally: _Tally, verifier: Verifier) -> str:
    if verifier.idle:
        return "NOT verified here; --pub, --registry, or --policy with a signed policy and its registry, verifies"
    what = "signatures"
    if verifier.policy_signed and verifier.registry is not None:
        what = "signatures and terms"
    good = tally.count - tally.failures.total()
    return f"{what} of {good:,} verified, {tally.failures.total():,} failed; content is not looked at here"


def _cells(attestation: Attestation) -> list[str]:
    try:
        signed = attestation.read()
    except AttestError:
        return ["(unreadable)", *5 * [""]]
    return [
        _who(signed),
        signed.admissibility_class,
        "public" if signed.public else number(signed.bounds.clip_norm, 6),
        "public" if signed.public else number(signed.bounds.noise_multiplier, 6),
        day(signed.not_after),
        signed.digest().hex()[:8],
    ]


def _who(signed: ContributionDescriptor | SignedDescriptor) -> str:
    """Returns the contributor, or where that is not opened the beginning of the commitment to it."""
    return signed.contributor if isinstance(signed, ContributionDescriptor) else f"({signed.issuer[:8]})"


def _most(counts: Counter[str], limit: int = 10) -> list[str]:
    shown = [f"{name} {count:,}" for name, count in counts.most_common(limit)]
    return [*shown, f"and {len(counts) - limit:,} more"] if len(counts) > limit else shown


def _tally_as_json(tally: _Tally, verifier: Verifier) -> dict[str, Any]:
    return {
        "count": tally.count,
        "corpora": dict(tally.corpora.most_common()),
        "classes": dict(tally.classes.most_common()),
        "contributors": dict(tally.contributors.most_common()),
        "verified": None if verifier.idle else tally.count - tally.failures.total(),
        "failures": dict(tally.failures.most_common()),
        "descriptors": [
            {"record": index, **_as_json(attestation), "failure": plain(failure)} for index, attestation, failure in tally.rows
        ],
    }


def _as_json(attestation: Attestation) -> dict[str, Any]:
    try:
        descriptor = attestation.read()
        key_id = sign1.parse(attestation.sign1).key_id.hex()
    except AttestError:
        return {}
    opened = isinstance(descriptor, ContributionDescriptor)
    own = "contributor data_class content_hash nonce principal"
    told = pick(descriptor, own) if opened else dict.fromkeys(own.split())
    told |= pick(descriptor, "corpus") | pick(descriptor.bounds, "clip_norm noise_multiplier")
    told |= pick(descriptor, "not_before not_after max_occurrences max_examples")
    epsilon, delta = descriptor.max_epsilon_micro, descriptor.max_delta_pico
    return told | {
        "descriptor_hash": descriptor.digest().hex(),
        "key_id": key_id,
        "class": descriptor.admissibility_class,
        "max_epsilon": None if epsilon is None else from_micro(epsilon),
        "max_delta": None if delta is None else float(from_pico(delta)),
        "opened": opened,
        "committed": {what.replace(" ", "_"): value.hex() for what, value in commitments(descriptor).items()},
    }
