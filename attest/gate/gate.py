"""Runs the admission gate: admits a contribution, or refuses it with a reason code.

`attest.gate.checks` judges every contribution by itself; what was admitted before is looked up here, in corpus order. `decide`
is the pure decision about one contribution. A `Gate` streams a corpus of any size through all processors.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from typing import NamedTuple

from attest.attestation import Attestation
from attest.corpus import Item
from attest.descriptor import BUILT, GENERATE, TRAIN
from attest.errors import GateFailed, ReasonCode, RegistryRefused
from attest.gate.admission import Admission, Admitted, AdmittedRows, GateReport, Passed, Refusal, Refused, Seen
from attest.gate.checks import Examiner, Share, clock_refusal, examine, refusal_of, refused_for_history
from attest.gate.reading import Verified
from attest.gate.workers import Question, Work, Workers
from attest.policy import Policy
from attest.processes import available_processors
from attest.registry import Registry

__all__ = ["Admission", "Admitted", "Gate", "GateReport", "ReasonCode", "Refusal", "Refused", "Seen", "decide", "run_gate"]


BATCH = 256
"""Contributions that are sent to a worker at once."""

BATCH_BYTES = 1 << 20
"""Bytes of attestations that are sent to a worker at once."""

AHEAD = 6
"""Batches for each worker that may be read before the first of them is answered, so that one slow worker costs no memory."""

PARALLEL_FROM = 2048
"""Signatures to verify from which on workers are started; fewer are verified sooner than a worker starts."""


def decide(
    attestation: Attestation | None,
    content_hash: bytes | None,
    *,
    policy: Policy,
    registry: Registry,
    now: int,
    seen: Seen,
    purpose: str = TRAIN,
) -> Admission | Refusal:
    """Judges one contribution; changes nothing.

    Guarantee: an `Admission` means what `attest.gate.checks.examine` guarantees, and that the descriptor was neither admitted
    before nor withdrawn; to training, that the content was not admitted before either. To generation equal contents are not
    compared: what one contribution says decides nothing about another. Every error on the way refuses; nothing depends on an
    assertion.

    Args:
        content_hash: SHA-256 of the content, computed by the caller from the bytes that will be used.
        purpose: What the contribution is to be used for, `attest.descriptor.TRAIN` or `attest.descriptor.GENERATE`.

    Raises:
        RegistryRefused: Code NAMES if the names beside the registry are missing.
        GateFailed: Code PURPOSE if nobody serves the purpose.
    """
    _require_built(purpose)
    registry.require_names()
    clock = clock_refusal(now, seen, registry)
    if clock is not None or attestation is None:
        return clock or _UNATTESTED
    outcome = examine(attestation, content_hash, policy=policy, registry=registry, now=now, purpose=purpose)
    if isinstance(outcome, Refusal):
        return outcome
    if content_hash is None:
        return _CONTENT_MISSING
    share = Share.of(outcome.contributor, policy, registry)
    refusal = refused_for_history(outcome, seen.find(_once(outcome, content_hash, purpose)), share, seen)
    return refusal or Admission(attestation, outcome, share.holder)


def run_gate(
    corpus: Iterable[Item],
    policy: Policy,
    registry: Registry,
    *,
    now: int,
    withdrawn: Set[bytes] = frozenset(),
    progress: Callable[[int], None] | None = None,
    seen: Seen | None = None,
    workers: int | None = None,
    remember: Verified | None = None,
    purpose: str = TRAIN,
) -> GateReport:
    """Judges a whole corpus and keeps every outcome; `Gate.judge` streams them. `registry, workers, remember, purpose`: as for
    `Gate`, which raises the same errors."""
    gate = Gate(policy, registry, workers=workers, seen=seen, remember=remember, purpose=purpose)
    admitted = AdmittedRows()
    refused: list[Refused] = []
    for outcome in gate.judge(corpus, now=now, withdrawn=withdrawn, progress=progress):
        if isinstance(outcome, Admitted):
            admitted.append(outcome)
        else:
            refused.append(outcome)
    return GateReport(admitted, refused, now, registry.root())


class Gate:
    """Judges corpora of any size for one purpose, under one policy and one registry.

    Attestations that verified can be remembered (`attest.gate.reading`), so that a corpus is read again without verifying their
    signatures again. Whatever depends on time, on what was withdrawn or on what was admitted before is checked each time.

    Args:
        registry: The registry that the policy names, or a later state of the same log.
        workers: Processes that verify, 1 for this process alone; None for one per processor, as far as the system allows.
        seen: What earlier batches admitted, for one more batch of the same epoch.
        remember: What verified before for this purpose, and takes in what verifies now; None to remember nothing.
        fingerprint: What is the same for contents that count as one, for instance a digest of the normalized text, or None for
            a content that is like no other. The content hash finds exact copies only; this hook finds the near ones. Whether a
            contribution is admitted then hangs on what another one says, which no epsilon covers; training never judges with
            it, and generation refuses it.
        purpose: What the contributions are to be used for, `attest.descriptor.TRAIN` or `attest.descriptor.GENERATE`.

    Raises:
        RegistryRefused: Code REGISTRY_ROOT if the registry does not extend the one that the policy names, NAMES if the names
            beside it are missing.
        GateFailed: Code PURPOSE if nobody serves the purpose, `remember` is of another, or a fingerprint is to be compared for
            generation; RANGE for the number of workers.
    """

    def __init__(
        self,
        policy: Policy,
        registry: Registry,
        *,
        workers: int | None = None,
        seen: Seen | None = None,
        remember: Verified | None = None,
        fingerprint: Callable[[Item], bytes | None] | None = None,
        purpose: str = TRAIN,
    ) -> None:
        _require_built(purpose)
        if fingerprint is not None and purpose == GENERATE:
            sentence = "a fingerprint compares contents, and each contribution is a reference whatever another says"
            raise GateFailed("PURPOSE", f"{sentence}; judge for generation without one")
        if remember is not None and remember.purpose != purpose:
            sentence = f"what is remembered passed to {remember.purpose}, asked for is {purpose}; remember each use by itself"
            raise GateFailed("PURPOSE", sentence)
        registry.require_names()
        root = registry.root()
        if policy.registry_root is None or not registry.extends(policy.registry_root):
            named = "none" if policy.registry_root is None else policy.registry_root.hex()
            raise RegistryRefused(
                "REGISTRY_ROOT",
                f"registry has the root {root.hex()} and does not extend {named}, which the policy names; give the registry"
                " that the policy was signed for, or a later state of it",
            )
        if workers is not None and (type(workers) is not int or workers < 1):
            raise GateFailed("RANGE", f"workers is {workers!r}, expected at least 1")
        self.registry_root = root
        self._policy = policy
        self._registry = registry
        self._workers = available_processors() if workers is None else workers
        self._insisted = workers is not None
        self._seen = seen
        self._fingerprint = fingerprint
        self._purpose = purpose
        self._verified = remember

    def judge(
        self,
        corpus: Iterable[Item],
        *,
        now: int,
        withdrawn: Set[bytes] = frozenset(),
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[Admitted | Refused]:
        """Judges every contribution, in corpus order, without holding more of the corpus than some batches of attestations.

        What grows is small: about 100 bytes for each name in the directory that is being read, the registry and the withdrawals
        given, and for each worker up to `AHEAD` batches, which are `BATCH_BYTES` at most if attestations are made as large as
        they can be.

        Where two attestations claim the same content, the first in corpus order is admitted to training, and each to
        generation, where it pays for itself. Each reading is an epoch of its own, unless the gate was given `seen`.

        Raises:
            GateFailed: Code WORKER if a process was lost, STORAGE if the temporary file of what was seen fails.
        """
        seen = Seen() if self._seen is None else self._seen
        seen.withdrawn = seen.withdrawn | withdrawn
        if self._verified is not None:
            self._verified.begin(self.registry_root)
        shares: dict[str, Share] = {}
        judged = 0
        for batch in self._examined(corpus, now, clock_refusal(now, seen, self._registry)):
            for item, outcome in zip(batch.items, batch.outcomes, strict=True):
                yield self._conclude(item, outcome, seen, now, shares)
            judged += len(batch.items)
            if progress is not None:
                progress(judged)

    def _conclude(
        self, item: Item, outcome: Passed | Refusal | None, seen: Seen, now: int, shares: dict[str, "Share"]
    ) -> Admitted | Refused:
        """Returns the outcome of one contribution, given what was admitted before it."""
        locator, content_hash, attestation = item.locator, item.content_hash, item.attestation
        if isinstance(outcome, Refusal):
            return Refused(outcome, locator)
        if outcome is None or locator is None or content_hash is None or attestation is None:
            return Refused(_CONTENT_MISSING, locator)
        name = outcome.contributor
        share = shares.get(name)
        if share is None:
            share = shares[name] = Share.of(name, self._policy, self._registry)
        fresh = outcome.descriptor_hash not in seen.withdrawn and seen.count(share.holder) < share.cap
        hook, once = self._fingerprint, _once(outcome, content_hash, self._purpose)
        plain = fresh and hook is None
        earlier = seen.claim(once, outcome.descriptor_hash) if plain else seen.find(once)
        if fresh and earlier is None and hook is not None:
            # The content is claimed last: a contribution that is refused claims nothing.
            likeness = hook(item)
            earlier = None if likeness is None else seen.claim(b"fingerprint " + likeness, outcome.descriptor_hash)
            if earlier is None:
                seen.claim(once, outcome.descriptor_hash)
        if not fresh or earlier is not None:
            refusal = refused_for_history(outcome, earlier, share, seen)
            if refusal is not None:
                return Refused(refusal, locator)
        seen.count_one(share.holder, now)
        return Admitted(Admission(attestation, outcome, share.holder), locator)

    def _examined(self, corpus: Iterable[Item], now: int, clock: Refusal | None) -> Iterator["_Batch"]:
        """Yields batches with what examination found, in corpus order."""
        examiner = Examiner(self._policy, self._registry, now, purpose=self._purpose)
        waiting: deque[_Batch] = deque()
        count, processes = 0, self._workers
        workers: Workers | None = None
        with contextlib.ExitStack() as stack:
            for items in _batches(corpus):
                batch = self._prepared(items, examiner, clock)
                waiting.append(batch)
                count += len(batch.questions)
                if not batch.questions:
                    batch.answer = []
                elif processes > 1 and count > PARALLEL_FROM:
                    workers, processes = self._started(stack, processes, now), 0
                if batch.answer is None and (workers is None or not workers.take(batch)):
                    # Until the first worker has started, this process examines.
                    batch.answer = [examiner.examine(*question) for question in batch.questions]
                while waiting and waiting[0].answer is not None:
                    yield self._completed(waiting.popleft())
                while workers is not None and len(waiting) > AHEAD * self._workers and waiting[0].answer is None:
                    workers.pump(None)
            while waiting:
                if waiting[0].answer is None and workers is not None:
                    workers.pump(None)
                else:
                    yield self._completed(waiting.popleft())

    def _started(self, stack: contextlib.ExitStack, processes: int, now: int) -> Workers | None:
        """Returns workers; None where the system allows none and nobody insisted on a number of them."""
        try:
            pool = Workers(
                processes, self._policy, self._registry, now, purpose=self._purpose, spare=not self._insisted
            )
            return stack.enter_context(pool)
        except GateFailed:
            if self._insisted:
                raise
            return None

    def _prepared(self, items: list[Item], examiner: Examiner, clock: Refusal | None) -> "_Batch":
        """Returns a batch with what can be said without a signature, and questions for the rest."""
        outcomes: list[Passed | Refusal | None] = []
        questions: list[Question] = []
        tags: list[_Tag | None] = []
        for item in items:
            tag: _Tag | None = None
            attestation = item.attestation
            outcome: Passed | Refusal | None = None
            if item.problem is not None:
                outcome = refusal_of(item.problem)
            elif clock is not None or attestation is None:
                outcome = clock or _UNATTESTED
            else:
                content_hash = None if item.locator is None else item.content_hash
                question = (attestation.descriptor, attestation.sign1, attestation.opening, content_hash)
                fits = attestation.within_limits
                if self._verified is not None and fits and content_hash is not None:
                    value = self._verified.tag(attestation, content_hash)
                    tag = _Tag(value, self._verified.holds(value))
                known = tag is not None and tag.known
                if known or not fits:
                    outcome = examiner.examine(*question, verified=known)
                else:
                    questions.append(question)
            outcomes.append(outcome)
            tags.append(tag)
        return _Batch(items, outcomes, questions, tags)

    def _completed(self, batch: "_Batch") -> "_Batch":
        """Returns a batch with the answers in their places."""
        answers = iter(batch.answer or ())
        for index, outcome in enumerate(batch.outcomes):
            if outcome is None:
                outcome = batch.outcomes[index] = next(answers, None)
            tag = batch.tags[index]
            if self._verified is not None and tag is not None and isinstance(outcome, Passed):
                self._verified.add(*tag)
        return batch


class _Tag(NamedTuple):
    """The tag of an attestation with its content, and whether it was known at the start."""

    value: bytes
    known: bool


class _Batch(Work):
    """Holds some contributions on their way through the gate."""

    __slots__ = ("items", "outcomes", "tags")

    def __init__(
        self, items: list[Item], outcomes: list[Passed | Refusal | None], questions: list[Question], tags: list[_Tag | None]
    ) -> None:
        super().__init__(questions)
        self.items = items
        self.outcomes = outcomes
        self.tags = tags


_UNATTESTED = Refusal(
    ReasonCode.UNATTESTED, "no attestation beside the content; its contributor makes one with 'dptrain attest sign'"
)
_CONTENT_MISSING = Refusal(
    ReasonCode.CONTENT_MISSING, "no content for the attestation; put the data back or drop the attestation"
)


def _once(passed: Passed, content_hash: bytes, purpose: str) -> bytes:
    """Returns what is admitted once: to training a content, to generation a signed descriptor."""
    return passed.descriptor_hash if purpose == GENERATE else content_hash


def _require_built(purpose: str) -> None:
    """Raises GateFailed for a purpose that nobody serves: code PURPOSE."""
    if purpose not in BUILT:
        raise GateFailed("PURPOSE", f"purpose is {ascii(purpose)[:60]}, expected {' or '.join(BUILT)}")


def _batches(corpus: Iterable[Item]) -> Iterator[list[Item]]:
    items: list[Item] = []
    size = 0
    for item in corpus:
        items.append(item)
        if item.attestation is not None:
            size += len(item.attestation.descriptor) + len(item.attestation.sign1) + len(item.attestation.opening)
        if len(items) == BATCH or size > BATCH_BYTES:
            yield items
            items, size = [], 0
    if items:
        yield items
