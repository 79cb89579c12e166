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
from attest.attestation import Attestation
from attest.corpus.records import SUFFIX
from attest.descriptor import TRAIN, ContributionDescriptor
from attest.errors import AttestError, CborError
from attest.fixed_point import from_micro, from_pico
from attest.gate import Gate
from attest.schema.plain import day, visible
from dptrain.cli.attest.verify import Check, Signed, Verifier
from dptrain.cli.attest.words import commitments, identity, own_noise_of, paragraphs
from dptrain.cli.inputs import read_attestations, read_policy, read_registry
from dptrain.cli.options import argument, file_option, moment, option, wrong_if
from dptrain.cli.output import console, number, styled, table
from dptrain.cli.results import Result, Shown, Told, pick, plain
from dptrain.progress import attestations_of, progress_bar


def _not_the_data(path: Path | None) -> Path | None:
    """Refuse data, or a folder, in place of a file of attestations."""
    beside = None if path is None else path.with_name(path.name + SUFFIX)
    wrong_if(beside is not None and beside.is_file(), f"{path} is data; its attestations are in {beside}")
    wrong_if(path is not None and path.is_dir(), f"{path} is a folder; give one {SUFFIX} file")
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
    found = next(islice(read_attestations(path), record - 1, None), None)
    if found is None:
        count = sum(1 for _ in read_attestations(path))
        raise typer.BadParameter(f"{path} holds {count:,} attestations, there is no number {record}")
    return found


def _explained(attestation: Attestation, record: int, verifier: Verifier) -> Told:
    """Returns one attestation in words."""
    checks, policy = verifier.checks(attestation), verifier.policy
    words = paragraphs(attestation, verifier.now, policy, verifier.policy_signed)
    own = None if policy is None else own_noise_of(attestation.read(), policy)
    noise = None if own is None else pick(own, "multiplier variance", expected_occurrences="expected")
    data = {"record": record, **_as_json(attestation), "own_noise": noise, "words": words, "checks": plain(checks)}
    failed = any(check.outcome == "failed" for check in checks)
    return Told(data, _words_text(words, identity(attestation), checks), exit_code=failed)


@dataclass
class Listed(Result):
    """The attestations of a file, counted, and the first rows. What broke off the reading is raised behind what was read."""

    verifier: Verifier
    path: Path
    count: int = 0
    corpora: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    contributors: Counter[str] = field(default_factory=Counter)
    purposes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    rows: list[tuple[int, Attestation, Check | None]] = field(default_factory=list)
    broken: AttestError | None = None

    def add(self, attestation: Attestation, limit: int) -> None:
        """Counts one more, and keeps it as a row where there are fewer than so many."""
        self.count += 1
        try:
            signed = attestation.read()
            sign1.parse(attestation.sign1)
            failure = None if self.verifier.idle else self.verifier.failure(attestation)
        except AttestError as error:
            failure = Check.failed("form", error)
        else:
            self.corpora[signed.corpus] += 1
            self.classes[signed.admissibility_class] += 1
            self.contributors[_who(signed)] += 1
            self.purposes[" and ".join(signed.purposes or (TRAIN,))] += 1
        if failure is not None:
            self.failures[failure.code or "FAILED"] += 1
        if len(self.rows) < limit:
            self.rows.append((self.count, attestation, failure))

    @property
    def good(self) -> int:
        """Returns how many did not fail."""
        return self.count - self.failures.total()

    @property
    def exit_code(self) -> int:
        if self.broken is not None:
            raise self.broken
        return bool(self.failures)

    def as_json(self) -> dict[str, Any]:
        names = ("corpora", "classes", "contributors", "purposes", "failures")
        counts = {name: dict(getattr(self, name).most_common()) for name in names}
        return counts | {
            "count": self.count,
            "verified": None if self.verifier.idle else self.good,
            "descriptors": [
                {"record": index, **_as_json(attestation), "failure": plain(failure)}
                for index, attestation, failure in self.rows
            ],
        }

    def text(self) -> Iterable[Shown]:
        if self.count == 1 and not self.failures:
            return _explained(self.rows[0][1], 1, self.verifier).text()
        return self._table()

    def _table(self) -> Iterator[Shown]:
        columns, idle = ["#", "contributor", "class", "clip norm", "noise", "until", "descriptor"], self.verifier.idle
        rows = table(*columns, *([] if idle else ["verified"]))
        for column in rows.columns[1:3]:
            column.justify = "left"
        for index, attestation, failure in self.rows:
            outcome = [] if idle else ["✗ " + (failure.code or "") if failure else "✓"]
            rows.add_row(str(index), *_cells(attestation), *outcome)
        if self.rows:
            yield rows
        if self.count > len(self.rows):
            yield f"... and {self.count - len(self.rows):,} more (--limit)"
        listed = {"corpus": self.corpora, "class": self.classes, "contributor": self.contributors, "may": self.purposes}
        for what, counts in listed.items():
            more = f", and {len(counts) - 10:,} more" if len(counts) > 10 else ""
            yield f"{what}: {', '.join(f'{name} {count:,}' for name, count in counts.most_common(10)) or 'none'}{more}"
        for code, count in self.failures.most_common():
            yield styled("red", "  failed", f" {code}: {count:,}")
        said = "NOT verified here; --pub, --registry, or --policy with a signed policy and its registry, verifies"
        if not idle:
            what = "signatures and terms" if self.verifier.policy_signed and self.verifier.registry else "signatures"
            said = f"{what} of {self.good:,} verified, {self.failures.total():,} failed; content is not looked at here"
        yield f"{self.count:,} attestations, {said}"
        if self.count:
            yield f"one of them in words: dptrain attest show {visible(str(self.path))} --record 1"


def _listed(path: Path, limit: int, verifier: Verifier) -> Listed:
    """Counts the attestations of a file up to a malformed item: what follows that cannot be found."""
    found = Listed(verifier, path)
    with progress_bar("reading", lambda: attestations_of(path)) as progress:
        try:
            for attestation in read_attestations(path):
                found.add(attestation, limit)
                if progress is not None:
                    progress(found.count)
        except AttestError as error:
            what = f"{path} is not a file of attestations, or damaged from its beginning"
            if found.count:
                what = f"item {found.count + 1} of {path} is damaged, and nothing after it can be read"
            found.broken = CborError(error.code, f"{what}: {error.sentence}")
    if found.broken is not None and not found.count:
        raise found.broken
    return found


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


def _who(signed: Signed) -> str:
    """Returns the contributor, or where that is not opened the beginning of the commitment to it."""
    return signed.contributor if isinstance(signed, ContributionDescriptor) else f"({signed.issuer[:8]})"


def _as_json(attestation: Attestation) -> dict[str, Any]:
    try:
        descriptor = attestation.read()
        key_id = sign1.parse(attestation.sign1).key_id.hex()
    except AttestError:
        return {}
    opened = isinstance(descriptor, ContributionDescriptor)
    own = "contributor data_class content_hash nonce principal"
    told = pick(descriptor, own) if opened else dict.fromkeys(own.split())
    told |= pick(descriptor.bounds, "clip_norm noise_multiplier")
    purposes = list(descriptor.purposes or (TRAIN,))
    names = "corpus not_before not_after max_occurrences max_examples public_length"
    epsilon, delta = descriptor.max_epsilon_micro, descriptor.max_delta_pico
    return (
        told
        | pick(descriptor, names, **{"class": "admissibility_class"})
        | {
            "descriptor_hash": descriptor.digest().hex(),
            "key_id": key_id,
            "purposes": purposes,
            "max_epsilon": None if epsilon is None else from_micro(epsilon),
            "max_delta": None if delta is None else float(from_pico(delta)),
            "opened": opened,
            "committed": {what.replace(" ", "_"): value.hex() for what, value in commitments(descriptor).items()},
        }
    )
