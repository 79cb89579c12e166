"""Lies about who was drawn, where a ledger says it for everybody to read: what attestations decide, and what nobody signs.

The liar has the log's key. Bounds, caps and contributions that nobody signed are found. Who was drawn at random, and whether a
step without a record was run, is the trainer's word: such lies are never FULL without DRAWS_TOLD behind it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest

from attest.keys import public_bytes
from attest.policy import SamplingRule
from attest.schedule.turns import Order
from attest.withdrawal import EXPIRED, KEY_REVOKED
from ledger.audit import AuditReport, verify_export
from tests.ledger.told_runs import Told
from tests.worlds.attested_ledgers import AttestedDriver, attestation, attested_policy, registry, registry_bytes
from tests.worlds.ledgers import OWNER_KEY, SIGNER, signed_policy

PUBLIC = {"disclosure": "occurrences_public"}
LITERAL = PUBLIC | {"noise_injection": "per_sample"}
LENGTHS = (2, 2)
STEPS = 4

Draws = Callable[[AttestedDriver, int], Iterable[int]]


def audit(export: Path, **options) -> AuditReport:
    """As an auditor who pinned the owner's key and knows the size."""
    return verify_export(export, [SIGNER.vkey], owner_key=public_bytes(OWNER_KEY), minimum_size=1, **options)


def everybody(driver: AttestedDriver, step: int) -> Iterable[int]:
    """Everybody who is active and within its cap."""
    return within_caps(driver, range(len(driver.ledger.state.register.by_number)))


def within_caps(driver: AttestedDriver, numbers: Iterable[int]) -> list[int]:
    everyone = driver.ledger.state.register.by_number
    caps = {n: everyone[n].terms.bounds.max_occurrences for n in numbers}
    return [n for n, cap in caps.items() if everyone[n].active and not 0 < cap <= everyone[n].occurrences]


def due(driver: AttestedDriver, step: int) -> list[int]:
    """Whose turn it is, of those who are active and within their caps."""
    header, everyone = driver.ledger.header, driver.ledger.state.register.by_number
    return within_caps(driver, Order(header.policy, header.run_id, [found.class_index for found in everyone]).due(step))


def window(driver: AttestedDriver, draws: Draws, count: int = 2) -> None:
    """A window whose steps are all drawn."""
    opened = driver.charge(count)
    for step in range(opened.first_step, opened.first_step + count):
        driver.ledger.draw(step, tuple(draws(driver, step)), now=driver.tick())
    driver.ledger.settle(opened, count, now=driver.tick())


def finish(driver: AttestedDriver) -> None:
    driver.epoch()
    driver.ledger.finish(now=driver.tick())


@dataclass
class Drawn(Told):
    """A run whose occurrences are public; by default everybody takes part in four steps.

    Attributes:
        draws: who takes part in a step.
    """

    draws: Draws = everybody

    @classmethod
    def at_random(cls, **policy: object) -> "Drawn":
        """Returns an honest run of four contributions under Poisson draws."""
        told = cls(registry=bytes(registry_bytes()))
        told.header = {"policy": attested_policy(**{"steps": STEPS, "redo_steps": 4, "window_steps": 2, **PUBLIC, **policy})}
        told.header["caps_enforced"] = True
        for n, name in ((1, "open"), (2, "open"), (3, "sensitive"), (4, "sensitive")):
            told.add(attestation(n, name))

        def life(driver: AttestedDriver) -> None:
            window(driver, told.draws)
            window(driver, told.draws)
            finish(driver)

        told.life = life
        return told

    @classmethod
    def in_turns(cls) -> "Drawn":
        """Returns an honest run of four contributions who take turns, everybody twice."""
        rules = zip(signed_policy().policy.classes, LENGTHS, strict=True)
        classes = tuple(replace(rule, sampling_rate=Fraction(1, length)) for rule, length in rules)
        told = cls.at_random(sampling=SamplingRule("cyclic"), classes=classes)
        told.draws = due
        return told


def invented_multiplier_60_in_every_draw(told: Drawn) -> None:
    """Nobody signed it: under per-sample noise its 60 hides everybody else."""
    told.add(attestation(9, "open", noise_multiplier_micro=60_000_000))
    told.shown[-1] = None


def multiplier_60_where_1_was_signed(told: Drawn) -> None:
    told.say(0, sigma_micro=60_000_000)


def invented_contribution_in_every_draw(told: Drawn) -> None:
    told.add(attestation(9, "open"), attestation_hash=bytes(32))


def invented_cap(told: Drawn) -> None:
    """Its turn comes once: who was drawn twice has half the epsilon that the record tells."""
    told.say(0, max_occurrences=1)


def cap_raised(told: Drawn) -> None:
    """One occurrence was signed, two are taken."""
    told.put(0, attestation(1, max_occurrences=1), max_occurrences=2)


def another_left_out(told: Drawn) -> None:
    told.draws = lambda driver, step: due(driver, step)[1:]


def _ended_by(told: Drawn, reason: str, evidence: bytes) -> None:
    def life(driver: AttestedDriver) -> None:
        window(driver, told.draws)
        driver.ledger.withdraw(told.specs[0].descriptor_hash, reason, evidence, now=driver.tick())
        window(driver, told.draws)
        finish(driver)

    told.life = life


def turns_ended_as_expired(told: Drawn) -> None:
    _ended_by(told, EXPIRED, told.specs[0].attestation_hash)


def turns_ended_by_an_invented_withdrawal(told: Drawn) -> None:
    _ended_by(told, "contributor", bytes(32))


def turns_ended_by_a_key_that_nobody_revoked(told: Drawn) -> None:
    _ended_by(told, KEY_REVOKED, registry().root())


def occurrence_left_out(told: Drawn) -> None:
    told.draws = lambda driver, step: (1, 2, 3)


def window_charged_and_never_drawn(told: Drawn) -> None:
    """Two steps were charged, the attempt is said to have ended before the first draw."""

    def life(driver: AttestedDriver) -> None:
        driver.charge(2)
        driver.ledger.resume(0, None, now=driver.tick())
        window(driver, told.draws)
        window(driver, told.draws)
        finish(driver)

    told.life = life


def colluding_multiplier_60(told: Drawn) -> None:
    """A contributor did sign 60, and is put into every draw: whether its noise was added nobody signs."""
    told.add(attestation(9, "open", noise_multiplier_micro=60_000_000))


def literal() -> Drawn:
    return Drawn.at_random(**LITERAL)


LIES: list[tuple[Callable[[], Drawn], Callable[[Drawn], None], str, str]] = [
    (literal, invented_multiplier_60_in_every_draw, "FAILED", "ATTESTATION_MISSING"),
    (literal, multiplier_60_where_1_was_signed, "FAILED", "QUOTED"),
    (Drawn.at_random, invented_contribution_in_every_draw, "FAILED", "ATTESTATION"),
    (Drawn.at_random, invented_cap, "FAILED", "QUOTED"),
    (Drawn.in_turns, invented_cap, "FAILED", "QUOTED"),
    (Drawn.in_turns, cap_raised, "FAILED", "QUOTED"),
    (Drawn.in_turns, turns_ended_as_expired, "FAILED", "NOT_EXPIRED"),
    (Drawn.in_turns, turns_ended_by_an_invented_withdrawal, "FULL", "WITHDRAWALS_TOLD"),
    (Drawn.in_turns, turns_ended_by_a_key_that_nobody_revoked, "FAILED", "NOT_BARRED"),
    (Drawn.in_turns, window_charged_and_never_drawn, "FULL", "DRAWS_TOLD"),
    (Drawn.at_random, window_charged_and_never_drawn, "FULL", "DRAWS_TOLD"),
    (Drawn.at_random, occurrence_left_out, "FULL", "DRAWS_TOLD"),
    (literal, colluding_multiplier_60, "FULL", "DRAWS_TOLD"),
]
"""An honest run, the lie, the verdict, and the code of the finding or the qualifier that weakens it."""


@pytest.mark.parametrize(("kind", "told"), [("random", ("DRAWS_TOLD",)), ("literal", ("DRAWS_TOLD",)), ("turns", ())])
def test_honest_public_draws_are_full_and_told_only_without_an_order(tmp_path, kind, told):
    run = {"random": Drawn.at_random, "literal": literal, "turns": Drawn.in_turns}[kind]()
    report = audit(run.export(tmp_path))
    assert (report.verdict, report.findings) == ("FULL", ())
    assert tuple(word for word in report.qualifiers if word.endswith("_TOLD")) in (told, (*told, "FROZEN_TOLD"))


NAMED = [f"{one.__name__}-{lie.__name__}" for one, lie, *_ in LIES]


@pytest.mark.parametrize(("honest", "lie", "verdict", "word"), LIES, ids=NAMED)
def test_a_lie_about_public_draws_is_found_or_told_to_be_somebodys_word(tmp_path, honest, lie, verdict, word):
    told = honest()
    lie(told)
    report = audit(told.export(tmp_path))
    assert report.verdict == verdict, report.findings
    assert word in ({item.code for item in report.findings} if verdict == "FAILED" else report.qualifiers)


def test_what_a_multiplier_of_60_hides_is_no_figure_of_a_verdict_that_stands(tmp_path):
    """The lie is worth something: everybody's epsilon would be a tenth; and it is found where what was signed is shown."""
    honest = audit(literal().export(tmp_path / "honest"))
    told = literal()
    multiplier_60_where_1_was_signed(told)
    export = told.export(tmp_path / "lie")
    lied = audit(export)
    assert lied.verdict == "FAILED"
    assert lied.classes[1].epsilon < honest.classes[1].epsilon / 5
    for name in ("attestations", "registry"):
        target = export / name
        target.rename(tmp_path / name)
    assert (report := audit(export)).verdict == "TOLD" and "DRAWS_TOLD" in report.qualifiers


def test_a_withdrawal_that_ended_turns_is_told_until_the_signed_one_is_shown(tmp_path):
    told = Drawn.in_turns()
    turns_ended_by_an_invented_withdrawal(told)
    export = told.export(tmp_path)
    (tmp_path / "withdrawals").mkdir()
    report = audit(export, withdrawals=tmp_path / "withdrawals")
    assert "WITHDRAWALS_TOLD" in report.qualifiers and any("not shown: leaves" in note for note in report.notes)


def test_steps_without_a_draw_are_counted_in_a_note(tmp_path):
    told = Drawn.in_turns()
    window_charged_and_never_drawn(told)
    assert any("2 charged steps have no DRAW leaf" in note for note in audit(told.export(tmp_path)).notes)


