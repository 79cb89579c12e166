"""Verify attestations: `attest verify` all of a corpus under one key, and one against a key, a registry and a policy.

The checks are the gate's own: `attest.sign1.verify` for signatures, `attest.gate.decide` where a signed policy and a
registry are at hand. What was not looked at is said, one line each.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from attest import keys, sign1
from attest.attestation import Attestation
from attest.corpus import Item, open_corpus
from attest.descriptor import BUILT, TRAIN, ContributionDescriptor, SignedDescriptor
from attest.errors import AttestError, CorpusRefused, KeyRefused
from attest.gate import Admission, Seen, decide
from attest.policy import Policy
from attest.registry import Contributor, KeyRecord, Registry
from attest.schema.plain import utc, visible
from dptrain.cli.options import argument, file_option, moment, option
from dptrain.cli.output import styled
from dptrain.cli.registry.show import shown
from dptrain.cli.results import Shown, Told
from dptrain.progress import contributions_in, progress_bar

Signed = ContributionDescriptor | SignedDescriptor
SignedT = TypeVar("SignedT", bound=Signed)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that may be verified about an attestation, and how that went.

    Attributes:
        what: What was looked at.
        outcome: `passed`, `failed`, or `unchecked`.
        sentence: What was found, or what it would take.
        code: Reason code of a failure.
    """

    what: str
    outcome: Literal["passed", "failed", "unchecked"]
    sentence: str
    code: str | None = None

    @classmethod
    def failed(cls, what: str, error: AttestError) -> "Check":
        """Returns a check that ended in an error."""
        return cls(what, "failed", error.sentence, str(error.code))


_NOT_HERE = (
    Check("content", "unchecked", "whether the data is what was signed; dptrain attest verify DATA checks that"),
    Check("uniqueness", "unchecked", "whether it was used, copied or withdrawn before; dptrain gate and training check that"),
)


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies attestations against whatever there is: a key, a registry, a policy.

    Attributes:
        now: Moment at which everything must be valid.
        pub: Name and raw bytes of a public key.
        registry: Verified registry of contributors.
        policy: The rules; from a file that the owner signed if `policy_signed`.
    """

    now: int
    pub: tuple[str, bytes] | None = None
    registry: Registry | None = None
    policy: Policy | None = None
    policy_signed: bool = False

    @property
    def idle(self) -> bool:
        """Tells whether there is nothing to verify a signature against; a policy alone explains, it verifies nothing."""
        return self.pub is None and self.registry is None

    def checks(self, attestation: Attestation) -> list[Check]:
        """Returns every check that can be made, and one line for each that cannot."""
        signed = attestation.read()
        holder, record = self._record(attestation, signed)
        found = [self._signature(attestation, signed, holder, record)]
        if holder is not None and record is not None:
            key = f"key {record.key_id.hex()}"
            held = f"{key} signed a statement for this registry, which holds it"
            word = f"whether {shown(holder.name)} holds {key}: the registry has no statement by it, only the owner's word"
            found.append(Check("possession", *(("passed", held) if record.proved else ("unchecked", word))))
        return [*found, self._gate(attestation, signed), *_NOT_HERE]

    def failure(self, attestation: Attestation) -> Check | None:
        """Returns the first check that fails; None if what was asked for holds."""
        return next((check for check in self.checks(attestation) if check.outcome == "failed"), None)

    def _named(self, signed: Signed) -> str | None:
        """Returns the contributor, where both attestation and registry say it by name."""
        by_name = self.registry is not None and not self.registry.names_missing
        return signed.contributor if by_name and isinstance(signed, ContributionDescriptor) else None

    def _record(self, attestation: Attestation, signed: Signed) -> tuple[Contributor, KeyRecord] | tuple[None, None]:
        """Finds the key that the attestation names, and its holder: the contributor, or anybody where that is not opened."""
        known = () if self.registry is None else self.registry.contributors
        kid, named = sign1.parse(attestation.sign1).key_id, self._named(signed)
        found = ((one, key) for one in known if named in (None, one.name) for key in one.keys if key.key_id == kid)
        return next(found, (None, None))

    def _signature(
        self, attestation: Attestation, signed: Signed, holder: Contributor | None, record: KeyRecord | None
    ) -> Check:
        """Checks the signature under the key given, or under the one that the registry has."""
        if self.idle:
            return Check("signature", "unchecked", "whether the key named here made it; give --pub, or --registry")
        kid = sign1.parse(attestation.sign1).key_id.hex()
        try:
            if self.pub is not None:
                _made_with(attestation, lambda _: signed, *self.pub)
                return Check("signature", "passed", f"made with the key of {self.pub[0]} that was given")
            if holder is None or record is None:
                named = self._named(signed)
                raise KeyRefused("KEY_UNKNOWN", f"the registry has no key {kid}{'' if named is None else f' of {named}'}")
            _made_with(attestation, lambda _: signed, None, record.raw)
            if not record.valid(self.now):
                code = "KEY_REVOKED" if record.revoked(self.now) else "KEY_NOT_VALID"
                raise KeyRefused(code, f"made with key {kid}, which is revoked or not valid now")
        except AttestError as error:
            return Check.failed("signature", error)
        return Check("signature", "passed", f"made with key {kid}, which the registry has for {shown(holder.name)}")

    def _gate(self, attestation: Attestation, signed: Signed) -> Check:
        if self.policy is None:
            return Check("admission", "unchecked", "whether the corpus may use it; give --policy with the signed policy")
        if self.registry is None or not self.policy_signed:
            return Check("admission", "unchecked", "the gate needs a signed policy with its registry (--policy, --registry)")
        if self.registry.names_missing:
            return Check("admission", "unchecked", self.registry.names_missing)
        if isinstance(signed, SignedDescriptor):
            return Check("admission", "unchecked", "the gate needs the opening, which lies beside the data")
        known = {"policy": self.policy, "registry": self.registry, "now": self.now, "seen": Seen()}
        asked = [word for word in BUILT if signed.allows(word)]
        found = {word: decide(attestation, signed.content_hash, **known, purpose=word) for word in asked}
        refused = [(word, outcome) for word, outcome in found.items() if not isinstance(outcome, Admission)]
        if len(refused) < len(found):
            admitted = " and ".join(word for word, outcome in found.items() if isinstance(outcome, Admission))
            not_for = "".join(f"; not to {word}: {outcome.sentence}" for word, outcome in refused)
            told = f"the gate would admit it now to {admitted}, if content and uniqueness hold{not_for}"
            return Check("admission", "passed", told)
        outcome = refused[-1][1]
        return Check("admission", "failed", outcome.sentence, str(outcome.code))


def _made_with(attestation: Attestation, read: Callable[[Attestation], SignedT], name: str | None, raw: bytes) -> SignedT:
    """Verifies that a key signed an attestation, reads it, and holds its contributor, if the name is known, against both."""
    headers = sign1.verify(attestation.sign1, attestation.descriptor, raw)
    signed = read(attestation)
    if name is not None and isinstance(signed, ContributionDescriptor) and name != signed.contributor:
        raise CorpusRefused("HEADER", f"the key is {name}'s, the attestation is of {signed.contributor}")
    if headers.issuer != signed.issuer:
        what = f"the commitment {signed.issuer} to the contributor"
        raise CorpusRefused("HEADER", f"the signature names the issuer {headers.issuer}, not {what}")
    return signed


def verify(
    data: Annotated[Path, argument("Data with DATA.attest beside it.", metavar="DATA", exists=True)],
    pub: Annotated[Path, file_option("PUB", "The signer's key.")],
    at: Annotated[int | None, moment("Moment at which they must be valid; default: now.")] = None,
    limit: Annotated[int, option("Failures that are listed; all are counted.", min=0)] = 20,
) -> Told:
    """Check signature, content and validity of every contribution against one public key.

    The gate checks more: registry, class, bounds, audience, duplicates.

    After signing or copying: are data and attestations still what was signed, under this one key, now? It does not know the
    corpus; `dptrain gate` judges as training does.

    Example: `dptrain attest verify notes.jsonl --pub alice.pub`
    """
    name, raw = keys.load_named_public_key(pub)
    now = int(time.time()) if at is None else at
    good, codes, purposes, listed = 0, Counter[str](), Counter[str](), []
    with progress_bar("verifying", lambda: contributions_in(data)) as progress:
        for count, item in enumerate(open_corpus(data), start=1):
            try:
                signed = _check_item(item, name, raw, now)
                purposes[" and ".join(signed.purposes or (TRAIN,))] += 1
                good += 1
            except AttestError as error:
                codes[str(error.code)] += 1
                if len(listed) < limit:
                    at = item.locator
                    where = f"{visible(at.source)}, byte {at.offset}" if at else "attestation without content"
                    listed.append({"where": where, "code": str(error.code), "sentence": error.sentence})
            if progress is not None:
                progress(count)
    failed = codes.total()
    told: dict[str, Any] = {"verified": good, "failed": failed, "codes": dict(codes.most_common())}
    told |= {"purposes": dict(purposes.most_common()), "failures": listed}
    return Told(told, _text(told, name), exit_code=bool(failed or not good))


def _check_item(item: Item, name: str, raw: bytes, now: int) -> ContributionDescriptor:
    """Checks one contribution under the key `raw` of `name`, and returns what was signed. Raises AttestError: with the code of
    what is wrong."""
    if item.problem is not None:
        raise item.problem
    if item.attestation is None:
        raise CorpusRefused("UNATTESTED", "there is no attestation for this content; sign it with 'dptrain attest sign'")
    if item.locator is None:
        raise CorpusRefused("CONTENT_MISSING", "there is no content for this attestation; put the data back, or drop it")
    signed = _made_with(item.attestation, Attestation.opened, name, raw)
    if signed.content_hash != item.content_hash:
        raise CorpusRefused("CONTENT_MISMATCH", "the content is not what was signed; restore it or sign it anew")
    if not signed.not_before <= now < signed.not_after:
        code = "EXPIRED" if now >= signed.not_after else "NOT_YET_VALID"
        raise CorpusRefused(code, f"valid from {utc(signed.not_before)} until {utc(signed.not_after)}; sign it anew")
    return signed


def _text(told: dict[str, Any], name: str) -> Iterator[Shown]:
    good, failed, codes, purposes, listed = told.values()
    for failure in listed:
        yield styled("red", failure["code"], f" {failure['where']}: {failure['sentence']}")
    if failed > len(listed):
        yield f"... and {failed - len(listed):,} more, not listed (--limit)"
    if len(codes) > 1:
        yield ", ".join(f"{code} {count:,}" for code, count in codes.items())
    yield f"{good:,} verified, {failed:,} failed, signer {name}"
    if purposes:
        yield f"signed to {', to '.join(f'{words}: {count:,}' for words, count in purposes.items())}"
    if not good and not failed:
        yield "there was nothing to verify: no data, or no attestations beside it"
    elif not failed:
        yield "not checked here: registry, class, bounds and corpus; dptrain gate does that"
