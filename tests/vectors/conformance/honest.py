"""Exports in which nothing is wrong: one for each thing that a run may do, as small as it comes."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.descriptor import PUBLIC_BOUNDS
from attest.keys import public_bytes
from attest.policy import MechanismRule, NoisePhase, SamplingRule
from attest.schedule.stack import NO_TOWER, Stack, StackTensor, Tower
from attest.schedule.turns import Order
from attest.withdrawal import CLASS_NOT_GRANTED, EXPIRED, KEY_REVOKED
from ledger import layout
from ledger.log import Ledger
from ledger.note import Cosigner, NoteSigner, cosign, merge_notes
from tests.vectors.conformance.written import Files, read
from tests.worlds.attested_ledgers import (
    AttestedDriver,
    attestation,
    attested_admission,
    attested_header,
    attested_policy,
    put_registry,
    registry_bytes,
    spec_of,
)
from tests.worlds.ledgers import OWNER_KEY, SIGNER, START, signed_policy
from tests.worlds.registries import RegistryBytes, continued, load
from tests.worlds.retained_ledgers import ANNA, BEN, CLEO, crowded_and_pruned, hashes_gone, vouched_and_older, vouched_for

NOW = START + 86400
"""What the reader's clock says in every vector: a day after the first leaf."""

WANDA = Cosigner("witness.example/wanda", Ed25519PrivateKey.from_private_bytes(b"\x36" * 32))
SUCCESSOR = NoteSigner(SIGNER.name, Ed25519PrivateKey.from_private_bytes(b"\x37" * 32))

Life = Callable[[AttestedDriver], None]


@dataclass(frozen=True)
class Pins:
    """What a reader brings: all of it by another way than the export.

    Attributes:
        log: verifier keys of the ledger.
        owner: raw public key of the corpus owner.
        now: the reader's clock, POSIX seconds.
        minimum_size: least number of leaves; None where the reader knows of none.
        require_quorum: whether cosignatures of auditors and witnesses are a condition.
    """

    log: tuple[str, ...] = (SIGNER.vkey,)
    owner: bytes = field(default_factory=lambda: public_bytes(OWNER_KEY))
    now: int = NOW
    minimum_size: int | None = 1
    require_quorum: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns them as a vector has them."""
        told = {"log": list(self.log), "owner": self.owner.hex(), "now": self.now}
        return told | {"minimum_size": self.minimum_size, "require_quorum": self.require_quorum}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> "Pins":
        """Reads them."""
        return cls(tuple(told["log"]), bytes.fromhex(told["owner"]), told["now"], told["minimum_size"], told["require_quorum"])


@dataclass(frozen=True)
class Run:
    """How an honest export comes about.

    Attributes:
        title: what is special about it.
        life: what happens behind the header.
        policy: changes of the policy.
        header: changes of the header.
        pins: what its reader brings.
        verdict: what an audit says.
        beside: whether attestations and registry are in the export.
        cosigners: who cosigns the checkpoint.
        registry: what of the registry is in the export; by default all that there was when the run began.
        signer: the ledger's key.
        start: what the clock says at the header.
        earlier: the honest exports that its reader gives besides, by name.
        withdrawals: the signed withdrawals that its reader gives besides, by file.
        of: the honest export whose files these are, where only what the reader brings is another.
        like: the honest export as whose change a vector tells this one.
    """

    title: str
    life: Life
    policy: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    pins: Pins = field(default_factory=Pins)
    verdict: str = "FULL"
    beside: tuple[bool, bool] = (True, True)
    cosigners: tuple[Cosigner, ...] = ()
    registry: RegistryBytes | None = None
    signer: NoteSigner = SIGNER
    start: int = START
    earlier: tuple[str, ...] = ()
    withdrawals: Files = field(default_factory=dict)
    of: str = ""
    like: str = ""

    def files(self) -> Files:
        """Runs it, and returns its export."""
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder)
            spec = attested_header(attested_policy(**self.policy), **self.header)
            with Ledger.create(base / "ledger.db", spec, self.signer, now=self.start) as ledger:
                self.life(AttestedDriver(ledger, now=self.start))
                return self._exported(ledger, base)

    def _exported(self, ledger: Ledger, base: Path) -> Files:
        attested, known = self.beside
        registry = put_registry(base, self.registry) if known else None
        files = read(ledger.export(base / "export", registry=registry, attestations=attested))
        note, last = files[layout.CHECKPOINT], ledger.state.last_time
        keys = [SIGNER.vkey, *(who.vkey for who in self.cosigners)]
        signed = [cosign(note, who, [SIGNER.vkey], time=last + 60) for who in self.cosigners]
        return files | {layout.CHECKPOINT: merge_notes(note, signed, keys) if signed else note}


@dataclass(frozen=True)
class PrunedRun(Run):
    """A run of twenty contributions most of whom left, of which leaves were pruned."""

    grow: Callable[..., AttestedDriver] = crowded_and_pruned

    def files(self) -> Files:
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder)
            (base / "beside").mkdir()
            driver = self.grow(base / "ledger.db", base / "beside", people=20, attested=True, **self.policy)
            with driver.ledger as ledger:
                return self._exported(ledger, base)


def four(driver: AttestedDriver) -> None:
    """Admits two contributions of each class, under their presets."""
    classes = ("open", "open", "sensitive", "sensitive")
    for n, name in enumerate(classes, start=1):
        driver.admit(attested_admission(n, name))


def weakly(driver: AttestedDriver) -> None:
    """Contributions of classes that ask for little noise."""
    driver.admit(attested_admission(1, sigma_micro=200_000), attested_admission(2, sigma_micro=200_000))
    driver.admit(attested_admission(3, "sensitive", sigma_micro=250_000))
    driver.steps(2)
    ended(driver)


def ended(driver: AttestedDriver) -> None:
    """Closes an epoch and the run."""
    driver.epoch()
    driver.ledger.finish(now=driver.tick())


def plain(driver: AttestedDriver) -> None:
    """Two windows, an epoch, the close."""
    four(driver)
    driver.steps(2)
    ended(driver)


def with_others(driver: AttestedDriver) -> None:
    """Somebody leaves between two epochs, somebody comes; one who never was in the run is withdrawn too."""
    driver.whole_run()


def expired(driver: AttestedDriver) -> None:
    """The attestation of somebody ends, and a leaf says so before the next charge."""
    short = attestation(9, not_after=START + 50)
    four(driver)
    driver.admit(spec_of(short))
    driver.steps(1)
    driver.now = START + 50
    driver.ledger.withdraw(short.opened().digest(), EXPIRED, short.digest(), now=driver.now)
    driver.now = START + 60
    driver.steps(1)
    ended(driver)


def resumed(driver: AttestedDriver) -> None:
    """A window that never settled, and two resumes: one from a pin, one from the beginning of the second window."""
    four(driver)
    driver.steps(1)
    pin = driver.ledger.pin()
    driver.charge(4)
    driver.ledger.resume(4, pin, now=driver.tick())
    driver.admit(attested_admission(5))
    driver.steps(1)
    driver.ledger.resume(4, pin, now=driver.tick(), threads=2)
    driver.steps(1)
    ended(driver)


def capped(driver: AttestedDriver) -> None:
    """Contributions that signed how often they may be drawn."""
    driver.admit(attested_admission(1, max_occurrences=1), attested_admission(2, max_occurrences=3))
    driver.admit(attested_admission(3, "sensitive", max_occurrences=2))
    driver.steps(2)
    driver.ledger.resume(8, driver.ledger.pin(), now=driver.tick())
    driver.steps(1)
    ended(driver)


def stricter(driver: AttestedDriver) -> None:
    """Contributions that signed less clip norm or more noise than their class asks for."""
    driver.admit(attested_admission(1), attested_admission(2, sigma_micro=1_700_000))
    driver.admit(attested_admission(3, "sensitive", clip_micro=250_000, sigma_micro=4_000_000))
    driver.admit(attested_admission(4, "sensitive", clip_micro=333_333, sigma_micro=3_000_001))
    driver.steps(2)
    ended(driver)


def limited(driver: AttestedDriver) -> None:
    """Somebody signed a limit of epsilon over all runs."""
    driver.admit(attested_admission(1, max_epsilon_micro=50_000_000, max_delta_pico=1_000_000), attested_admission(2))
    driver.steps(1)
    ended(driver)


def often_drawn(driver: AttestedDriver) -> None:
    """Eight windows; some signed that they take part in one step at most, or in three, over two attempts."""
    driver.admit(attested_admission(1, max_occurrences=1), attested_admission(2, max_occurrences=3), attested_admission(4))
    driver.steps(6)
    driver.ledger.resume(24, driver.ledger.pin(), now=driver.tick())
    driver.admit(attested_admission(6, max_occurrences=1))
    driver.steps(2)
    ended(driver)


def stricter_in_phases(driver: AttestedDriver) -> None:
    """Contributions whose multiplier is what they signed in one phase, and what the schedule gives in another."""
    driver.admit(attested_admission(1), attested_admission(2, sigma_micro=1_500_000))
    driver.admit(attested_admission(3, "sensitive", clip_micro=333_333, sigma_micro=5_000_000))
    driver.steps(2)
    driver.admit(attested_admission(4, "sensitive", clip_micro=499_999, sigma_micro=3_500_000))
    driver.steps(1)
    ended(driver)


def three_windows(driver: AttestedDriver) -> None:
    """Three windows of four steps."""
    four(driver)
    driver.steps(3)
    ended(driver)


def with_bounds(driver: AttestedDriver) -> None:
    """Admits two contributions of each class, of which two signed bounds of their own."""
    driver.admit(attested_admission(1), attested_admission(2, sigma_micro=1_700_000))
    driver.admit(attested_admission(3, "sensitive", clip_micro=250_000), attested_admission(4, "sensitive"))


def drawing(
    draws: Callable[[AttestedDriver, int], list[int]], windows: int = 2, people: Callable[[AttestedDriver], None] = four
) -> Life:
    """Returns a life in which every step says who was drawn."""

    def life(driver: AttestedDriver) -> None:
        people(driver)
        for _ in range(windows):
            opened = driver.charge(4)
            for step in range(opened.first_step, opened.first_step + 4):
                driver.ledger.draw(step, draws(driver, step), now=driver.tick())
            driver.ledger.settle(opened, 4, now=driver.tick())
        ended(driver)

    return life


SOME_DRAWS = [[0, 1], [], [2], [0, 1, 2, 3], [3], [1], [0, 2], [0]]


def some(_: AttestedDriver, step: int) -> list[int]:
    """Draws that nothing prescribes."""
    return SOME_DRAWS[step - 1]


def due(driver: AttestedDriver, step: int) -> list[int]:
    """Those whose turn it is."""
    header, run = driver.ledger.header, driver.ledger.state
    everybody = list(run.contributions.values())
    turns = Order(header.policy, header.run_id, [one.class_index for one in everybody]).due(step)
    return [number for number in turns if everybody[number].active]


def turns_and_a_withdrawal(driver: AttestedDriver) -> None:
    """Contribution 1 leaves behind the first window; the turns of the others stay what they are."""
    four(driver)
    for window in range(3):
        if window == 1:
            driver.withdraw(1)
        opened = driver.charge(4)
        for step in range(opened.first_step, opened.first_step + 4):
            driver.ledger.draw(step, due(driver, step), now=driver.tick())
        driver.ledger.settle(opened, 4, now=driver.tick())
    ended(driver)


def turns_not_told(driver: AttestedDriver) -> None:
    """A window is charged, and the attempt ends before its first draw."""
    four(driver)
    driver.charge(2)
    driver.ledger.resume(0, None, now=driver.tick())
    for _ in range(3):
        opened = driver.charge(4)
        for step in range(opened.first_step, opened.first_step + 4):
            driver.ledger.draw(step, due(driver, step), now=driver.tick())
        driver.ledger.settle(opened, 4, now=driver.tick())
    ended(driver)


def key_changed(driver: AttestedDriver) -> None:
    """The ledger passes to another key in the middle of the run."""
    four(driver)
    driver.steps(1)
    driver.ledger.rotate_key(SUCCESSOR, now=driver.tick())
    driver.steps(1)
    ended(driver)


def clock_set(driver: AttestedDriver) -> None:
    """The clock was ahead by an hour, and is set back."""
    four(driver)
    driver.now += 3600
    driver.steps(1)
    driver.ledger.set_clock("the clock of node 3 was ahead", now=START + 100)
    driver.now = START + 100
    driver.steps(1)
    ended(driver)


ALICE_REVOKED = continued(registry_bytes(), OWNER_KEY, lambda log: log.revoke("alice", at=START + 6, now=START + 6))
"""The registry in which alice's key was revoked since the run began; she signed contributions 2 and 4."""


def registered_later() -> bytes:
    """Returns the root of that registry."""
    return load(ALICE_REVOKED, OWNER_KEY).root()


def key_revoked(driver: AttestedDriver) -> None:
    """The run takes a later state of the registry in, and goes by it: contributions whose key it revokes leave."""
    four(driver)
    driver.steps(1)
    driver.now = START + 10
    later = registered_later()
    driver.ledger.take_registry(later, now=driver.tick())
    for n, name in ((2, "open"), (4, "sensitive")):
        driver.ledger.withdraw(attested_admission(n, name).descriptor_hash, KEY_REVOKED, later, now=driver.tick())
    driver.steps(1)
    ended(driver)


ALICE_WITHOUT_SENSITIVE = continued(
    registry_bytes(), OWNER_KEY, lambda log: log.grant("alice", classes=("open",), cap=None, now=START + 6)
)
"""The registry in which alice may attest the class open alone since the run began."""

ALICE_REVOKED_BACK = continued(registry_bytes(), OWNER_KEY, lambda log: log.revoke("alice", at=START + 6, now=START + 600))
"""The registry that says ten minutes later that alice's key was revoked."""

ALICE_REVOKED_TWICE = continued(
    registry_bytes(),
    OWNER_KEY,
    lambda log: log.revoke("alice", at=START + 9000, now=START + 6),
    lambda log: log.revoke("alice", at=START + 6, now=START + 600),
)
"""The registry that says in time that alice's key will be revoked, and later that it was."""


def grant_lost(driver: AttestedDriver) -> None:
    """The run takes in that alice may attest one class less: what she attested in it leaves."""
    four(driver)
    driver.steps(1)
    driver.now = START + 10
    later = load(ALICE_WITHOUT_SENSITIVE, OWNER_KEY).root()
    driver.ledger.take_registry(later, now=driver.tick())
    gone = attested_admission(4, "sensitive").descriptor_hash
    driver.ledger.withdraw(gone, CLASS_NOT_GRANTED, later, now=driver.tick())
    driver.steps(1)
    ended(driver)


def key_revoked_unseen(driver: AttestedDriver) -> None:
    """The registry revokes a key, and no leaf says that the run had it."""
    four(driver)
    driver.steps(1)
    driver.now = START + 10
    driver.steps(1)
    ended(driver)


def everybody_gone(place: Path, directory: Path, **changes: Any) -> AttestedDriver:
    """A closed run of which all ADMIT leaves are gone, those of who stayed too."""
    driver = vouched_and_older(place, directory, **changes)
    driver.ledger.finish(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.ledger.prune(who_stays=True)
    return driver


def member_withdrawn(place: Path, directory: Path, **changes: Any) -> AttestedDriver:
    """One came after the last summary and keeps its leaf; one is withdrawn whose leaf is gone, and one who never was."""
    driver = vouched_and_older(place, directory, **changes)
    driver.admit(attested_admission(50))
    driver.steps(1)
    driver.epoch()
    driver.ledger.finish(now=driver.tick())
    vouched_for(driver, ANNA, BEN)
    driver.ledger.prune(who_stays=True)
    driver.withdraw(1)
    driver.withdraw(99)
    return driver


def public_class(driver: AttestedDriver) -> None:
    """A class of which nothing is promised beside a private one."""
    driver.admit(attested_admission(1, clip_micro=PUBLIC_BOUNDS.clip_micro, sigma_micro=PUBLIC_BOUNDS.sigma_micro))
    driver.admit(attested_admission(3, "sensitive"), attested_admission(4, "sensitive"))
    driver.steps(2)
    ended(driver)


def still_open(driver: AttestedDriver) -> None:
    """A window was charged and has not settled; nothing is closed."""
    four(driver)
    driver.steps(1)
    driver.charge(4)


def released(driver: AttestedDriver) -> None:
    """Weights leave the run after the last window, and another is charged."""
    four(driver)
    driver.steps(2)
    driver.ledger.record_release(bytes([1]) * 32, bytes([2]) * 32, 8, now=driver.tick())
    driver.charge(4)


def many_leaves(driver: AttestedDriver) -> None:
    """More than 256 leaves: 260 withdrawals of contributions that never were in the run."""
    four(driver)
    strangers = [(n.to_bytes(32, "big"), "error", bytes(32)) for n in range(260)]
    driver.ledger.withdraw_all(strangers, now=driver.tick())
    driver.steps(2)
    ended(driver)


def rules(*changes: dict[str, Any]) -> dict[str, Any]:
    """Returns changes of the policy that change its two classes."""
    return {"classes": tuple(replace(rule, **own) for rule, own in zip(signed_policy().policy.classes, changes, strict=True))}


def _public_classes() -> tuple[Any, ...]:
    classes = signed_policy().policy.classes
    bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    return replace(classes[0], public=True, **bounds), classes[1]


def ordered(order: str, **fields: object) -> dict[str, Any]:
    """Returns changes of the policy that make it sign an order: turns every four steps, and every three."""
    turns = rules({"sampling_rate": Fraction(1, 4)}, {"sampling_rate": Fraction(1, 3)})
    told = turns | {"disclosure": "occurrences_public", "sampling": SamplingRule(order), "steps": 12, "redo_steps": 3}
    return {**told, "epoch_steps": 12, **fields}


AUDITED: dict[str, Any] = {"auditors": (ANNA.vkey, BEN.vkey, CLEO.vkey), "auditor_quorum": 2}
WITNESSED: dict[str, Any] = {"witnesses": (WANDA.vkey,), "witness_quorum": 1}
PHASES = (NoisePhase(1, 2_000_000), NoisePhase(5, 1_250_000), NoisePhase(9, 1_000_000))
QUORUM = Pins(require_quorum=True)

RUNS: dict[str, Run] = {
    "poisson": Run("two windows of secret Poisson draws, two classes, four contributions", plain),
    "withdrawal": Run("somebody leaves after the first epoch, somebody comes, one withdrawal names nobody", with_others),
    "expiry": Run("an attestation ends, and its contribution leaves before the next charge", expired),
    "resumed": Run("a window that never settled, and two resumes from one pin, one on other threads", resumed),
    "stricter bounds": Run("contributions that signed less clip norm or more noise than their class", stricter),
    "caps": Run("caps on occurrences that the sampler keeps, over two attempts", capped, header={"caps_enforced": True}),
    "caps not kept": Run("caps on occurrences that the header does not promise to keep: they change no epsilon", capped),
    "caps that bind": Run(
        "caps at a sampling rate of one half, where they make epsilon smaller",
        often_drawn,
        rules({"sampling_rate": Fraction(1, 2)}, {}),
        {"caps_enforced": True},
    ),
    "limit": Run("a limit of epsilon over all runs", limited),
    "phases": Run("noise in three phases", three_windows, {"noise_phases": PHASES}),
    "phases and stricter bounds": Run("bounds of their own in three phases", stricter_in_phases, {"noise_phases": PHASES}),
    "one layer": Run(
        "a model that is one layer, of the empty name",
        plain,
        header={
            "stack": Stack(
                (Tower(NO_TOWER, "", ("",)),),
                tuple(
                    StackTensor((name,), size, ((NO_TOWER, 0),), None, (), True) for name, size in (("bias", 4), ("weight", 40))
                ),
            )
        },
    ),
    "everybody in every step": Run(
        "sampling rates of 1 and of 9/10", plain, rules({"sampling_rate": Fraction(1)}, {"sampling_rate": Fraction(9, 10)})
    ),
    "little noise": Run(
        "noise multipliers of 0.2 and 0.25",
        weakly,
        rules({"noise_multiplier_micro": 200_000}, {"noise_multiplier_micro": 250_000}),
    ),
    "certified": Run("the level certified", plain, {"exactness": "certified"}),
    "discrete gaussian": Run(
        "discrete Gaussian noise",
        plain,
        {"mechanism": MechanismRule("discrete_gaussian"), "exactness": "certified", "accountant": "rdp"},
    ),
    "skellam": Run(
        "Skellam noise", plain, {"mechanism": MechanismRule("skellam"), "exactness": "certified", "accountant": "rdp"}
    ),
    "budgets": Run(
        "clip norms divided among embeddings, layers and head", plain, {"noise_budgets": (1_000_000, 2_000_000, 500_000)}
    ),
    "public class": Run("a public class beside a private one", public_class, {"classes": _public_classes()}),
    "public draws": Run("draws that the ledger tells, without an order", drawing(some), {"disclosure": "occurrences_public"}),
    "noise per sample": Run(
        "every drawn contribution brings its own noise",
        drawing(some),
        {"disclosure": "occurrences_public", "noise_injection": "per_sample"},
    ),
    "cyclic order": Run("turns in a cyclic order", drawing(due, 3), ordered("cyclic")),
    "shuffled order": Run("turns in a shuffled order", drawing(due, 3), ordered("shuffled")),
    "order and an unsettled window": Run(
        "turns in a cyclic order, and a window of whose steps nothing says who was drawn",
        turns_not_told,
        ordered("cyclic"),
    ),
    "order and withdrawal": Run(
        "turns in a shuffled order, of which one is given up", turns_and_a_withdrawal, ordered("shuffled")
    ),
    "noise per sample and stricter bounds": Run(
        "contributions of bounds of their own bring their own noise",
        drawing(some, people=with_bounds),
        {"disclosure": "occurrences_public", "noise_injection": "per_sample"},
    ),
    "rdp": Run("the accountant rdp", plain, {"accountant": "rdp"}),
    "moments": Run("the accountant moments", plain, {"accountant": "moments"}),
    "key changed": Run("the ledger passes to another key; the first one is pinned", key_changed),
    "key changed, new pinned": Run(
        "the second key is pinned", key_changed, pins=Pins(log=(SUCCESSOR.vkey,)), of="key changed"
    ),
    "registry changed": Run(
        "the run takes in that a key was revoked, and takes out what it signed", key_revoked, registry=ALICE_REVOKED
    ),
    "registry unseen": Run("the registry revokes a key, and no leaf says so", key_revoked_unseen, registry=ALICE_REVOKED),
    "grant lost": Run(
        "the run takes in that a class is not granted any more, and takes out what was attested in it",
        grant_lost,
        registry=ALICE_WITHOUT_SENSITIVE,
    ),
    "registry unseen, dated back": Run(
        "a later entry dates a revocation back to before a charge: nobody had it then",
        key_revoked_unseen,
        registry=ALICE_REVOKED_BACK,
        like="registry unseen",
    ),
    "registry unseen, twice": Run(
        "a revocation entered in time is for later, and one entered later is dated back: nobody had it then",
        key_revoked_unseen,
        registry=ALICE_REVOKED_TWICE,
        like="registry unseen",
    ),
    "clock set back": Run("a CLOCK leaf takes an hour back", clock_set),
    "open": Run("a run that goes on: the last window is charged and not settled", still_open),
    "release": Run("weights left the run, which goes on", released, like="open"),
    "two bundles": Run("more than 256 leaves, so that one tile is full", many_leaves),
    "auditors": Run("two of three auditors have cosigned", plain, AUDITED, pins=QUORUM, cosigners=(ANNA, BEN)),
    "auditors and witness": Run(
        "two of three auditors and a witness have cosigned",
        plain,
        AUDITED | WITNESSED,
        pins=QUORUM,
        cosigners=(ANNA, CLEO, WANDA),
    ),
    "one auditor": Run(
        "one of three auditors has cosigned, and nobody asks for two", plain, AUDITED, cosigners=(ANNA,), like="auditors"
    ),
    "no attestations": Run(
        "bounds without what contributors signed", plain, beside=(False, True), verdict="TOLD", like="poisson"
    ),
    "no registry": Run("attestations without the registry", plain, beside=(True, False), verdict="TOLD", like="poisson"),
    "size unknown": Run("the reader knows no least size", plain, pins=Pins(minimum_size=None), of="poisson"),
    "pruned": PrunedRun("ADMIT leaves of who left are gone", plain, verdict="SUMMARISED"),
    "hashes gone": PrunedRun("their hashes too", plain, {"retention_hash_epochs": 1}, verdict="SUMMARISED", grow=hashes_gone),
    "everybody gone": PrunedRun(
        "a closed run of which every ADMIT leaf is gone, and auditors vouch that each said what was signed",
        plain,
        verdict="SUMMARISED",
        grow=everybody_gone,
    ),
    "a member withdrawn": PrunedRun(
        "ADMIT leaves of who stayed are gone, and one of them is withdrawn by its member record",
        plain,
        verdict="SUMMARISED",
        grow=member_withdrawn,
    ),
}
"""Honest exports by name."""
