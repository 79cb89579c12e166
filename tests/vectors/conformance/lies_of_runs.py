"""Lies over several runs, and about what was withdrawn; and all lies by name.

Of several runs the liar has the keys of all ledgers, and chooses which exports it cites. Its reader chooses which are given.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ledger.leaves import Charge, Withdraw
from ledger.leaves.header import SPENT
from ledger.merkle import root
from ledger.note import NoteSigner
from tests.vectors.conformance import (
    lies,
    lies_of_consent,
    lies_of_files,
    lies_of_geometry,
    lies_of_groups,
    lies_of_noise,
    lies_of_reads,
    lies_of_texts,
    retained,
)
from tests.vectors.conformance.honest import Pins, ended, four
from tests.vectors.conformance.lies import Lie
from tests.vectors.conformance.lying import cut_back, flipped, header_says, on_leaves, say
from tests.vectors.conformance.replaced import another, cited
from tests.vectors.conformance.retained import after_the_end
from tests.vectors.conformance.several import PASSED, PEOPLE, RUNS, SECOND, THIRD, carrying, files_of, going_on
from tests.vectors.conformance.withdrawing import ALICE, BOB, ENDING, descriptor_of, signed
from tests.vectors.conformance.written import Files, Pieces
from tests.worlds.attested_ledgers import AttestedDriver, attested_admission
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START


def cut(name: str, size: int) -> Callable[[Files], Files]:
    """Returns the files of a run that cites fewer leaves of an open one."""

    def make(_: Files) -> Files:
        return cited(name, size=size, root=root(Pieces.of(files_of("open")).bodies[:size]))({})

    return make


def closed_since(_: Files) -> Files:
    """Returns the files of the run `open` once it was closed."""

    def life(driver: AttestedDriver) -> None:
        four(driver)
        driver.steps(2)
        ended(driver)

    return replace(RUNS["open"], life=life).files()


def forgotten(_: Files) -> Files:
    """Returns the files of a run that cites the run `open` as closed, though another one says that its key was lost."""
    bodies = Pieces.of(closed_since({})).bodies
    return cited("third run, one lost", size=len(bodies), root=root(bodies), reason=SPENT)({})


def uncounted(driver: AttestedDriver) -> None:
    """Three of those who took part before, as if nobody had."""
    driver.admit(attested_admission(1), attested_admission(2), attested_admission(3, "sensitive"))
    driver.steps(1)
    ended(driver)


def same_noise(driver: AttestedDriver) -> None:
    """A window whose noise stream is that of the first window of the run `poisson`."""
    first = next(leaf for leaf in Pieces.of(files_of("poisson")).leaves if isinstance(leaf, Charge))
    driver.admit(attested_admission(6), attested_admission(8))
    window = driver.ledger.charge(1, 4, now=driver.tick(), noise_stream=first.noise_stream)
    driver.ledger.settle(window, 4, now=driver.tick())
    ended(driver)


def stays_in(driver: AttestedDriver, registry: Any) -> None:
    """Contribution 2, which was withdrawn before, takes part."""
    driver.admit(carrying(registry, 1), carrying(registry, 2), carrying(registry, 5))
    driver.steps(1)
    ended(driver)


def other_limit(driver: AttestedDriver, registry: Any) -> None:
    """The contribution with a limit over runs is admitted as if it had signed another one."""
    signed_limit = {"max_epsilon_micro": 50_000_000, "max_delta_pico": 1_000_000}
    spec = carrying(registry, 1, **signed_limit)
    driver.admit(replace(spec, max_epsilon_micro=60_000_000, attestation=None))
    driver.steps(1)
    ended(driver)


def other_terms(driver: AttestedDriver, registry: Any) -> None:
    """A contribution that took part before stands with another noise multiplier."""
    driver.admit(replace(carrying(registry, 1), sigma_micro=2_000_000, attestation=None))
    driver.steps(1)
    ended(driver)


def signed_anew(driver: AttestedDriver, registry: Any) -> None:
    """A content that took part before stands under another descriptor with the same commitment."""
    driver.admit(carrying(registry, 1, max_occurrences=9), carrying(registry, 6))
    driver.steps(1)
    ended(driver)


OF_ITSELF: Final = NoteSigner(SIGNER.name, SECOND.private_key)
"""The key of a later run under the name of the first."""

UNSIGNED: Final = (False, True)
"""An export without attestations, of a liar who writes what nobody signed."""

OF_RUNS: Final[dict[str, Lie]] = {
    "nothing carried": Lie(
        "contributions that took part before are said to have spent nothing",
        "later run",
        another("later run", later=going_on(*PEOPLE, less=10**9)),
        "CARRIED",
    ),
    "too little carried": Lie(
        "contributions are said to have spent 4e-6 less before than they did",
        "later run",
        another("later run", later=going_on(*PEOPLE, less=4)),
        "CARRIED",
    ),
    "too little carried of two runs": Lie(
        "a run counts two, and what both took together is said to be 4e-6 less",
        "third run",
        another("third run", later=going_on(*PEOPLE, less=4)),
        "CARRIED",
    ),
    "too little carried of two accountants": Lie(
        "a run counts two of different accountants, and says 4e-6 less",
        "third run, two accountants",
        another("third run, two accountants", later=going_on(*PEOPLE, less=4)),
        "CARRIED",
    ),
    "too little carried of public draws": Lie(
        "what public draws took is said to be 4e-6 less",
        "public draws counted",
        another("public draws counted", later=going_on(*PEOPLE, less=4)),
        "CARRIED",
    ),
    "too little carried of a lost run": Lie(
        "of a run whose key was lost less is counted than its whole plan, for one who is new",
        "lost run counted",
        another("lost run counted", later=going_on((5, "open"), less=4)),
        "CARRIED",
    ),
    "a lost run cited before it charged": Lie(
        "the key of an earlier run is said to have been lost before anybody was admitted; its export is longer",
        "lost run counted",
        cut("lost run counted", 1),
        "EARLIER_COMPROMISED",
    ),
    "a lost key forgotten": Lie(
        "a run counts what a closed one spent, whose key was lost before as another run that it counts says",
        "third run, one lost",
        forgotten,
        "EARLIER_COMPROMISED",
        earlier=(("open", closed_since), "lost run counted"),
    ),
    "an open run counted": Lie(
        "an earlier run is counted before it was closed",
        "lost run counted",
        cited("lost run counted", reason="spent"),
        "EARLIER_OPEN",
    ),
    "another history counted": Lie(
        "an earlier run is cited with another root than its export has",
        "later run",
        cited("later run", root=bytes(32)),
        "EARLIER_FORKED",
    ),
    "another history given": Lie(
        "the export of an earlier run is of another history than was cited",
        "later run",
        dict,
        "EARLIER_FORKED",
        earlier=("withdrawal",),
    ),
    "two histories given": Lie(
        "two histories of an earlier run are given, of which one is cited",
        "later run",
        dict,
        "EARLIER_FORKED",
        earlier=("poisson", "withdrawal"),
    ),
    "another history beside": Lie(
        "another history of the run itself is given",
        "poisson",
        dict,
        "EARLIER_FORKED",
        earlier=("withdrawal",),
    ),
    "more leaves cited than given": Lie(
        "the export of an earlier run is shorter than it was cited",
        "later run",
        dict,
        "EARLIER_BEHIND",
        earlier=(("poisson", on_leaves(cut_back(11))),),
    ),
    "cited under another name": Lie(
        "an earlier run is cited under another name and key",
        "lost run counted",
        cited("lost run counted", origin="other.example/run", log_vkey=NoteSigner("other.example/run", THIRD.private_key).vkey),
        "EARLIER_NAME",
    ),
    "an earlier run cited twice": Lie(
        "a header cites one ledger twice", "later run", on_leaves(header_says(21, lambda rows: rows * 2)), "PREVIOUS"
    ),
    "a lost key used on": Lie(
        "a header cites a ledger whose key is lost, and has that key itself",
        "lost run counted",
        on_leaves(header_says(21, lambda rows: [[*rows[0][:4], OF_ITSELF.vkey, rows[0][5]]])),
        "PREVIOUS",
    ),
    "an earlier run not given": Lie(
        "a run counts two, and the export of one is not given", "third run", dict, "EARLIER_MISSING", earlier=("later run",)
    ),
    "an earlier run left out": Lie(
        "a run of those who took part before counts nothing",
        "later run",
        another("later run", counts=(), later=lambda driver, _: uncounted(driver)),
        "EARLIER_LEFT_OUT",
    ),
    "an earlier run counted by another alone": Lie(
        "a run counts one, and not what that one counted",
        "third run",
        another("third run", counts=("later run",)),
        "EARLIER_UNCITED",
    ),
    "an earlier run that is wrong": Lie(
        "a signature of a contributor in an earlier run is another",
        "later run",
        dict,
        "EARLIER",
        earlier=(("poisson", flipped("attestations/signed/", -70)),),
    ),
    "an earlier run of a made up key": Lie(
        "the earlier run that is counted was signed by a key that the reader does not know",
        "later run",
        dict,
        "EARLIER",
        Pins(log=(SECOND.vkey, THIRD.vkey)),
    ),
    "dated before what it counts": Lie(
        "a run is dated an hour and a minute before the last leaf of a run that it counts",
        "runs apart",
        another("runs apart", start=START + 2000),
        "EARLIER_TIME",
    ),
    "noise of an earlier run": Lie(
        "a run that shares nobody with another one uses its noise again",
        "later run",
        another("later run", counts=(), later=lambda driver, _: same_noise(driver)),
        "NOISE_REUSED",
    ),
    "withdrawn before, and drawn": Lie(
        "who withdrew from an earlier run is in the pool",
        "withdrawn before",
        another("withdrawn before", later=stays_in),
        "EARLIER_WITHDRAWN",
    ),
    "withdrawn behind the cited leaves": Lie(
        "who withdrew after the close of an earlier run, and before this one began, is in the pool",
        "later run",
        dict,
        "EARLIER_WITHDRAWN",
        earlier=(("poisson", on_leaves(after_the_end(descriptor_of(1), 1, "contributor", bytes(32)))),),
    ),
    "another limit": Lie(
        "a contribution stands with another limit over runs than before",
        "limit over runs",
        another("limit over runs", later=other_limit, beside=UNSIGNED),
        "LIMIT",
    ),
    "other terms": Lie(
        "a contribution stands with another noise multiplier than before",
        "later run",
        another("later run", later=other_terms, beside=UNSIGNED),
        "EARLIER_TERMS",
    ),
    "content under another descriptor": Lie(
        "a content that took part before stands under another descriptor, and carries nothing",
        "later run",
        another("later run", later=signed_anew),
        "EARLIER_ANCHOR",
    ),
    "a limit over runs passed": Lie(
        "with a second run as it is planned somebody could pass a limit over both",
        "small limit kept",
        another("small limit kept", later=going_on((2, "open"), **PASSED)),
        "BUDGET",
    ),
    "a limit of an earlier policy passed": Lie(
        "with a longer run somebody could pass the limit that an earlier policy states for its class",
        "class limit counted",
        another("class limit counted", policy={"steps": 120}),
        "BUDGET",
    ),
    "an expiry in an earlier run that was a withdrawal": Lie(
        "what expired in an earlier run was withdrawn before, as its reader knows",
        "expiry counted",
        dict,
        "EARLIER",
        withdrawals={"bob.cose": signed(ENDING.opened().digest(), BOB, "bob", time=START + 20)[0]},
    ),
}
"""Lies over several runs."""


def evidence(**fields: Any) -> Callable[[Files], Files]:
    """Returns what lets the first WITHDRAW leaf say something else."""
    return on_leaves(say(Withdraw, **fields))


def cites(made: tuple[bytes, bytes]) -> dict[str, Any]:
    """Returns a leaf that cites a signed withdrawal of its reader, in the place of alice's."""
    data, digest = made
    return {"change": evidence(evidence_hash=digest), "withdrawals": {"alice.cose": data}}


OF_WITHDRAWALS: Final[dict[str, Lie]] = {
    "a withdrawal entered as an expiry": Lie(
        "who signed a withdrawal before its attestation ended is said to have expired",
        "expiry",
        dict,
        "WITHDRAWAL_REASON",
        withdrawals={"bob.cose": signed(ENDING.opened().digest(), BOB, "bob", time=START + 20)[0]},
    ),
    "a withdrawal for another reason": Lie(
        "a leaf gives another reason than its contributor signed",
        "withdrawals shown",
        evidence(reason="error"),
        "WITHDRAWAL_REASON",
    ),
    "a withdrawal for another reason, signed besides": Lie(
        "a leaf cites what nobody has, and its contributor signed another reason before",
        "withdrawals shown",
        evidence(reason="error", evidence_hash=bytes(32)),
        "WITHDRAWAL_REASON",
    ),
    "a withdrawal of another": Lie(
        "a leaf cites the signed withdrawal of another contribution",
        "withdrawals shown",
        **cites(signed(descriptor_of(4, "sensitive"), ALICE, "alice")),
        code="WITHDRAWAL_EVIDENCE",
    ),
    "a withdrawal from another corpus cited": Lie(
        "a leaf cites a withdrawal from another corpus",
        "withdrawals shown",
        **cites(signed(descriptor_of(2), ALICE, "alice", corpus="letters")),
        code="WITHDRAWAL_EVIDENCE",
    ),
    "a withdrawal in the owner's name": Lie(
        "a leaf cites a withdrawal that somebody else signed as the owner",
        "withdrawals shown",
        **cites(signed(descriptor_of(2), OTHER_KEY, "owner")),
        code="WITHDRAWAL_EVIDENCE",
    ),
    "a withdrawal with a bad signature": Lie(
        "a leaf cites a withdrawal under alice's key that she did not sign",
        "withdrawals shown",
        **cites(signed(descriptor_of(2), ALICE, "alice", flip=True)),
        code="WITHDRAWAL_EVIDENCE",
    ),
}
"""Lies about what was withdrawn, found by whoever has what was signed."""

LIES: Final[dict[str, Lie]] = (
    lies.LIES
    | retained.LIES
    | OF_RUNS
    | OF_WITHDRAWALS
    | lies_of_noise.LIES
    | lies_of_files.LIES
    | lies_of_groups.LIES
    | lies_of_geometry.LIES
    | lies_of_reads.LIES
    | lies_of_consent.LIES
    | lies_of_texts.LIES
)
"""All lies by name."""
