"""`dptrain policy check`: facts with true numbers, likely mistakes with settings that really mend them."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest

from attest.keys import generate, public_bytes
from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, VerifierKey, parse_verifier_key
from attest.policy import Policy
from attest.schema.rounding import at_most
from dptrain.cli.advice import Case, Consequence, CorpusSize, consequences
from dptrain.cli.advice.findings import multiplier_for, power_of_ten_below, rounded
from dptrain.planning.plan import make_plan
from ledger import accountants
from ledger.views.attacker import detection_limit

NOW = 1_800_000_000
SOUND = """
corpus = "clinic-notes-2026"
delta = 1e-6
steps = 1000
normalizer = 64
redo_steps = 100
[floors]
clip_norm = 0.01
[gate]
contributor_cap = 500
[[class]]
name = "sensitive"
clip_norm = 0.5
noise_multiplier = 1.2
sampling_rate = 0.01
depth = { from = 0.75, to = 1.0 }
[[class]]
name = "public"
clip_norm = 0.5
noise_multiplier = 0.8
sampling_rate = 0.02
depth = { from = 0.0, to = 1.0 }
"""
SIZE = {"sensitive": 2000, "public": 2000}


def check(*changes: tuple[str, str], size: dict[str, int] | CorpusSize | None = None, **known) -> list[Consequence]:
    """The findings for the sound policy with some lines changed."""
    text = SOUND
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    rules = Policy.from_toml(text)
    counted = CorpusSize("given", SIZE if size is None else size) if not isinstance(size, CorpusSize) else size
    return list(consequences(Case(rules, make_plan(rules, 12), counted, now=NOW, **known)))


def warned(found: list[Consequence]) -> dict[tuple[str, str | None], dict[str, str]]:
    """Warnings by code and class, each with its changes."""
    return {
        (item.code, item.class_name): {change.setting: change.value for change in item.changes}
        for item in found
        if item.level == "warning"
    }


def sentence(found: list[Consequence], code: str, class_name: str | None = None) -> str:
    """The sentence of one finding."""
    (item,) = [item for item in found if (item.code, item.class_name) == (code, class_name)]
    return item.sentence


def test_a_sound_policy_has_no_warning():
    assert warned(check()) == {}


def test_epsilon_is_said_for_one_contribution_under_both_adjacencies():
    found = check()
    own = accountants.epsilon(1.2, 0.01, 1000, 1e-6)
    other = accountants.epsilon(1.2, 0.01, 1000, 1e-6, replace=True)
    text = sentence(found, "EPSILON", "sensitive")
    assert "for one contribution at the class's presets" in text
    assert f"({at_most(own)}, 1e-06)-indistinguishable from those with the contribution empty" in text
    assert f"({at_most(other)}, 1e-06)-indistinguishable from those with any other content" in text
    assert "not of a person" in sentence(found, "UNIT")


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.5, 10.0, float("inf")])
def test_no_test_of_randomized_response_beats_the_detection_limit(epsilon):
    # Randomized response meets (epsilon, 0) with equality: its one informative test has these two error rates.
    truth = 1.0 if math.isinf(epsilon) else math.exp(epsilon) / (1 + math.exp(epsilon))
    assert detection_limit(epsilon, 0.0, 1 - truth) >= truth - 1e-12
    assert detection_limit(epsilon, 1e-6, 0.05) <= 1.0
    assert detection_limit(0.0, 0.0, 0.05) == pytest.approx(0.05)


def test_signal_and_batch_follow_from_the_size():
    found = check()
    assert "a step draws 20 of the class" in sentence(found, "REACH", "sensitive")
    # 20 contributions of norm 0.5 against noise 0.6; sqrt(1000) times that over the run.
    assert "would have length 10, beside noise of standard deviation 0.6" in sentence(found, "SIGNAL", "sensitive")
    assert "16.67 to 1 at best, 527 to 1 over all 1,000 steps" in sentence(found, "SIGNAL", "sensitive")
    assert "a step draws 60 of 4,000 contributions" in sentence(found, "BATCH")


LITERAL = ("steps = 1000", 'steps = 1000\ndisclosure = "occurrences_public"\nnoise.injection = "per_sample"')


def test_with_noise_per_sample_the_signal_stands_beside_the_noise_of_those_drawn():
    found = check(LITERAL)
    # 20 drawn of class sensitive bring (1.2 * 0.5)^2 each, 40 of class public (0.8 * 0.5)^2.
    alone, shared = math.sqrt(40 * 0.4**2), math.sqrt(20 * 0.6**2 + 40 * 0.4**2)
    text = sentence(found, "SIGNAL", "sensitive")
    assert f"length 10, beside noise of standard deviation {shared:.4g} in every direction (that of" in text
    assert f"{10 / shared:.4g} to 1 at best" in text
    assert f"{alone:.4g} to {shared:.4g} in every direction" in sentence(found, "SIGNAL", "public")
    assert "NOISE" not in {item.code for item in found}
    partly = check(LITERAL, size={"public": 2000})
    assert {item.class_name for item in partly if item.code == "SIGNAL"} == set(), (
        "their noise is unknown where they share blocks"
    )
    assert ("WASTE", "public") not in warned(check(LITERAL, ("clip_norm = 0.5", "clip_norm = 5.0")))


def test_with_noise_per_sample_a_faint_class_is_told_how_many_would_do():
    changes = LITERAL, ("steps = 1000", "steps = 20"), ("noise_multiplier = 1.2", "noise_multiplier = 5")
    size = {"sensitive": 100, "public": 2000}
    found = check(*changes, size=size)
    text = sentence(found, "SIGNAL_FAINT", "sensitive")
    noise = math.sqrt(1 * 2.5**2 + 40 * 0.4**2)
    assert f"would be {0.5 / noise * math.sqrt(20):.4g} times the noise" in text
    enough = int(text.split("About ")[1].split(" contributions")[0].replace(",", ""))
    assert ("SIGNAL_FAINT", "sensitive") not in warned(check(*changes, size=size | {"sensitive": enough}))
    assert ("SIGNAL_FAINT", "sensitive") in warned(check(*changes, size=size | {"sensitive": enough - 1}))


def test_with_noise_per_sample_noise_dominates_by_who_is_drawn():
    assert not any(code == "NOISE_DOMINATED" for code, _ in warned(check(LITERAL)))
    rare = LITERAL, ("noise_multiplier = 1.2", "noise_multiplier = 3.0")
    found = check(*rare)
    # 20 * 1.5^2 against 40 * 0.4^2 of variance: 2.65 times; beside it stand its own.
    text = sentence(found, "NOISE_DOMINATED", "public")
    assert f"in 4 of its 14 blocks the noise of a step is on average up to {math.sqrt(1 + 45 / 6.4):.4g} times" in text
    clip = warned(found)["NOISE_DOMINATED", "public"]["clip_norm of class sensitive"]
    assert 20 * (3 * float(clip)) ** 2 == pytest.approx(6.4, rel=0.01)
    assert ("NOISE_DOMINATED", "public") not in warned(check(*rare, ("clip_norm = 0.5", f"clip_norm = {clip}")))
    few = check(*rare, size={"sensitive": 100, "public": 2000})
    assert ("NOISE_DOMINATED", "public") not in warned(few), "one drawn per step brings little"


def test_with_noise_per_sample_who_is_not_drawn_brings_none():
    found = check(LITERAL, size={"sensitive": 0, "public": 2000})
    assert "its noise is added" not in sentence(found, "CLASS_UNUSED", "sensitive")
    assert "carry its noise" not in sentence(check(LITERAL, size={"sensitive": 20, "public": 2000}), "CLASS_RARE", "sensitive")
    assert "its noise is added" in sentence(check(size={"sensitive": 0, "public": 2000}), "CLASS_UNUSED", "sensitive")
    same = check(LITERAL, ("from = 0.75", "from = 0.0"))
    assert "the noise that everybody drawn brings" in sentence(same, "DEPTH_SAME")


def test_without_sizes_nothing_is_made_up_and_the_gap_is_named():
    rules = Policy.from_toml(SOUND)
    found = list(consequences(Case(rules, make_plan(rules, 12))))
    assert "sensitive, public" in sentence(found, "SIZE_UNKNOWN")
    assert not {"BATCH", "SIGNAL"} & {item.code for item in found}
    partly = check(size={"sensitive": 5})
    assert "contributions of public is" in sentence(partly, "SIZE_UNKNOWN")
    assert {code for code, _ in warned(partly)} == {"CLASS_RARE", "SIGNAL_FAINT"}


@pytest.mark.slow
def test_a_weak_epsilon_comes_with_a_multiplier_that_mends_it():
    found = check(
        ("noise_multiplier = 0.8", "noise_multiplier = 0.4"),
        ("clip_norm = 0.5\nnoise_multiplier = 1.2", "clip_norm = 0.1\nnoise_multiplier = 1.2"),
    )
    change = warned(found)["EPSILON_WEAK", "public"]
    proposed = float(change["noise_multiplier of class public"])
    assert 7.2 <= accountants.epsilon(proposed, 0.02, 1000, 1e-6) <= 8
    mended = check(("noise_multiplier = 0.8", f"noise_multiplier = {proposed}"))
    assert ("EPSILON_WEAK", "public") not in warned(mended)


def test_a_hopeless_epsilon_is_bounded_without_sampling_and_mended_all_the_same():
    text = SOUND.replace("noise_multiplier = 0.8", "noise_multiplier = 0.2").replace(
        "clip_norm = 0.5\nnoise_multiplier = 1.2", "clip_norm = 0.05\nnoise_multiplier = 1.2"
    )
    rules = Policy.from_toml(text)
    hasty = make_plan(rules, 12, hasty=True)
    assert hasty.classes[1].preset.epsilon == accountants.epsilon(0.2, 1.0, 1000, 1e-6)
    assert hasty.classes[0].preset.epsilon == accountants.epsilon(
        hasty.classes[0].preset.effective_multiplier, 0.01, 1000, 1e-6
    )
    found = consequences(Case(rules, hasty))
    (change,) = [item.changes for item in found if item.code == "EPSILON_WEAK"]
    assert 7.2 <= accountants.epsilon(float(change[0].value), 0.02, 1000, 1e-6) <= 8


def test_redone_steps_that_make_epsilon_weak():
    found = check(("redo_steps = 100", "redo_steps = 3000"))
    assert warned(found) == {("REDO_WEAK", "public"): {"redo_steps": "100"}}
    assert warned(check(("redo_steps = 100", "redo_steps = 100"))) == {}


@pytest.mark.slow
def test_full_participation_is_compared_with_sampling_at_the_same_epsilon():
    found = check(
        ("sampling_rate = 0.02", "sampling_rate = 1"),
        ("steps = 1000", "steps = 50"),
        ("redo_steps = 100", "redo_steps = 5"),
        size={"sensitive": 2000, "public": 60},
    )
    change = warned(found)["NO_AMPLIFICATION", "public"]
    assert change["sampling_rate of class public"] == "0.1"
    full = accountants.epsilon(0.8, 1.0, 50, 1e-6)
    assert accountants.epsilon(float(change["noise_multiplier of class public"]), 0.1, 50, 1e-6) <= full


def test_waste_proposes_the_clip_norm_that_uses_the_noise():
    changes = (
        ("clip_norm = 0.5\nnoise_multiplier = 0.8", "clip_norm = 0.1\nnoise_multiplier = 0.8"),
        ("from = 0.0", "from = 0.8"),
    )
    change = warned(check(*changes))["WASTE", "public"]
    clip = change["clip_norm of class public"]
    mended = check(
        ("clip_norm = 0.5\nnoise_multiplier = 0.8", f"clip_norm = {clip}\nnoise_multiplier = 0.8"), ("from = 0.0", "from = 0.8")
    )
    assert ("WASTE", "public") not in warned(mended)


def test_a_strict_class_that_drowns_a_loose_one_in_shared_blocks_is_named():
    found = check(("clip_norm = 0.5\nnoise_multiplier = 1.2", "clip_norm = 2\nnoise_multiplier = 1.2"))
    assert "because class sensitive" in sentence(found, "NOISE_DOMINATED", "public")
    assert "in 4 of its 14 blocks" in sentence(found, "NOISE_DOMINATED", "public")
    clip = warned(found)["NOISE_DOMINATED", "public"]["clip_norm of class sensitive"]
    assert float(clip) * 1.2 == pytest.approx(0.5 * 0.8, rel=0.01)


def test_draws_too_often_or_too_seldom():
    often = warned(
        check(
            ("sampling_rate = 0.02", "sampling_rate = 0.5"),
            ("noise_multiplier = 0.8", "noise_multiplier = 20"),
            ("normalizer = 64", "normalizer = 1000"),
            ("clip_norm = 0.5\nnoise_multiplier = 1.2", "clip_norm = 9\nnoise_multiplier = 1.2"),
        )
    )
    assert often["SEEN_OFTEN", "public"] == {"sampling_rate of class public": "0.1"}
    seldom = check(("sampling_rate = 0.02", "sampling_rate = 0.0005"), ("normalizer = 64", "normalizer = 20"))
    assert warned(seldom)["SEEN_SELDOM", "public"] == {"steps": "2000"}
    assert "61 of 100 are never drawn" in sentence(seldom, "SEEN_SELDOM", "public")


def test_a_rare_class_gets_a_rate_of_one_draw_per_step_at_no_larger_epsilon():
    found = check(size={"sensitive": 30, "public": 2000})
    change = warned(found)["CLASS_RARE", "sensitive"]
    rate, multiplier = change["sampling_rate of class sensitive"], change["noise_multiplier of class sensitive"]
    assert float(rate) * 30 >= 1
    assert accountants.epsilon(float(multiplier), float(rate), 1000, 1e-6) <= accountants.epsilon(1.2, 0.01, 1000, 1e-6)
    assert "74 of 100 steps draw none" in sentence(found, "CLASS_RARE", "sensitive")


def test_a_signal_below_the_noise_of_the_whole_run():
    found = check(
        ("steps = 1000", "steps = 100"),
        ("sampling_rate = 0.01\n", "sampling_rate = 0.02\n"),
        ("redo_steps = 100", "redo_steps = 10"),
        size={"sensitive": 10, "public": 2000},
    )
    assert ("SIGNAL_FAINT", "sensitive") in warned(found)
    assert "About 18 contributions" in sentence(found, "SIGNAL_FAINT", "sensitive")


def test_classes_that_nobody_uses_or_may_use():
    assert ("CLASS_UNUSED", "public") in warned(
        check(size=CorpusSize("attested", {"sensitive": 3000}, {"alice": 300, "bob": 2700}))
    )
    found = check(granted=frozenset({"sensitive", "publik"}), enrolled=40)
    assert ("CLASS_UNGRANTED", "public") in warned(found)
    assert "is public meant?" in sentence(found, "GRANT_UNKNOWN")


@pytest.mark.parametrize(
    ("delta", "total", "proposed"), [("1e-3", 2000, "1e-6"), ("1e-6", 2_000_000, "1e-8"), ("2e-6", 4000, "1e-6")]
)
def test_delta_against_the_number_of_contributions(delta, total, proposed):
    found = check(
        ("delta = 1e-6", f"delta = {delta}"),
        ("normalizer = 64", f"normalizer = {total // 67}"),
        size={"sensitive": total // 2, "public": total // 2},
    )
    assert warned(found)["DELTA_LARGE", None] == {"delta": proposed}
    if delta == "1e-3":
        assert "publishes one contribution whole would pass" in sentence(found, "DELTA_LARGE")


@pytest.mark.parametrize(("normalizer", "word"), [(1000, "17 times too small"), (2, "30 times too large")])
def test_a_normalizer_far_from_the_batch(normalizer, word):
    found = check(("normalizer = 64", f"normalizer = {normalizer}"))
    assert warned(found) == {("NORMALIZER_OFF", None): {"normalizer": "60"}}
    assert word.split()[1:] == sentence(found, "NORMALIZER_OFF").split("come out ")[1].split(" for a")[0].split()[1:]


def test_the_same_depth_for_all_buys_nothing_and_the_saving_is_computed():
    found = check(("{ from = 0.75, to = 1.0 }", "{ from = 0.0, to = 1.0 }"))
    assert warned(found) == {("DEPTH_SAME", None): {"depth of class sensitive": "{ from = 0.75, to = 1.0 }"}}
    rules = Policy.from_toml(SOUND)
    assert f"noise energy falls to {make_plan(rules, 12).noise_energy_ratio:.0%}" in sentence(found, "DEPTH_SAME")


def test_validity_shorter_than_training():
    assert warned(check(("[gate]", "[gate]\nmax_window_days = 1"))) == {
        ("WINDOW_SHORT", None): {"max_window_days in [gate]": "31"}
    }
    own = check(("sampling_rate = 0.01\n", "sampling_rate = 0.01\nmax_window_days = 1\n"))
    assert warned(own) == {("WINDOW_SHORT", "sensitive"): {"max_window_days of class sensitive": "31"}}
    assert warned(check(("[gate]", "[gate]\nmax_window_days = 20"), seconds_per_step=3600.0)) != {}


def test_a_floor_that_forbids_stricter_clip_norms():
    found = warned(check(("clip_norm = 0.01", "clip_norm = 0.3")))
    assert found == {("FLOOR_TIGHT", None): {"clip_norm in [floors]": "0.05"}}


def test_one_charge_for_the_whole_run():
    assert warned(check(("steps = 1000", "steps = 1000\nwindow_steps = 1000"))) == {
        ("WINDOW_STEPS", None): {"window_steps": "16"}
    }


AUDITORS = [
    str(VerifierKey(f"auditor.example/{index}", SIGNATURE_COSIGNATURE_V1, public_bytes(generate().public_key())))
    for index in range(3)
]


@pytest.mark.parametrize("quorum", [1, 2])
def test_auditors_who_could_cosign_two_histories_without_noticing(quorum):
    found = check(("[gate]", f"[ledger]\nauditors = {json.dumps(AUDITORS)}\nauditor_quorum = {quorum}\n[gate]"))
    split = {("QUORUM_SPLIT", None): {"auditor_quorum in [ledger]": "2"}}
    assert warned(found) == (split if quorum == 1 else {})
    assert f"{quorum} of 3 auditors must cosign" in sentence(found, "CHECKPOINT")
    assert "names no auditor" in sentence(check(), "CHECKPOINT")


def auditing(count: int, quorum: int) -> tuple[str, str]:
    return "[gate]", f"[ledger]\nauditors = {json.dumps(AUDITORS[:count])}\nauditor_quorum = {quorum}\n[gate]"


def test_without_auditors_nothing_is_watched_and_nothing_may_go():
    assert "names no auditor" in sentence(check(), "CHECKPOINT") and "can ever be deleted" in sentence(check(), "CHECKPOINT")
    keep = ("steps = 1000", "steps = 1000\nretention_epochs = 2")
    assert "can ever be deleted" not in sentence(check(keep), "CHECKPOINT"), "the warning says so"


def test_an_auditor_without_whom_nothing_goes_on_is_told():
    keep = ("steps = 1000", "steps = 1000\nretention_epochs = 2")
    codes = {"QUORUM_ONE", "QUORUM_ALL"}
    assert "nobody else is bound to see" in sentence(check(auditing(1, 1)), "QUORUM_ONE")
    assert "nothing is deleted" not in sentence(check(auditing(1, 1)), "QUORUM_ONE")
    assert "nothing is deleted any more" in sentence(check(keep, auditing(1, 1)), "QUORUM_ONE")
    assert "all 3 auditors must cosign" in sentence(check(auditing(3, 3)), "QUORUM_ALL")
    for found in (check(), check(auditing(3, 2))):
        assert not codes & {item.code for item in found}
    assert warned(check(auditing(1, 1))) == warned(check(auditing(3, 3))) == {}


@pytest.mark.parametrize(("kept", "epoch_steps", "change"), [(10, 100, "5"), (3, 400, "1"), (9, 100, None), (1, 1000, "")])
def test_a_horizon_that_no_epoch_passes_is_warned_of(kept, epoch_steps, change):
    lines = ("steps = 1000", f"steps = 1000\nepoch_steps = {epoch_steps}\nretention_epochs = {kept}")
    expected = {("RETENTION_IDLE", None): {"retention_epochs": change} if change else {}}
    assert warned(check(lines, auditing(3, 2))) == ({} if change is None else expected)


def test_an_auditor_with_the_key_of_somebody_whom_it_is_to_watch_is_warned_of():
    key = parse_verifier_key(AUDITORS[1]).public_key
    parties = {key: "the corpus owner clinic", bytes(32): "the contributor alice"}
    found = check(auditing(3, 2), parties=parties)
    assert warned(found) == {("AUDITOR_PARTY", None): {}}
    assert "auditor.example/1 has the key of the corpus owner clinic" in sentence(found, "AUDITOR_PARTY")
    assert warned(check(auditing(1, 1), parties=parties)) == {}


def test_the_command_knows_whose_keys_the_registry_holds(shell, corpus):
    corpus()
    vkey = shell.json("ledger", "auditor-key", "owner.pub", "--name", "auditor.example/self")["key"]
    text = (shell.directory / "policy.toml").read_text()
    named = f'[ledger]\nauditors = ["{vkey}"]\nauditor_quorum = 1\n'
    (shell.directory / "own.toml").write_text(text.replace("[[class]]", f"{named}[[class]]", 1))
    found = {item["code"]: item["sentence"] for item in shell.json("policy", "check", "own.toml")["consequences"]}
    assert "auditor.example/self has the key of the corpus owner" in found["AUDITOR_PARTY"]


def test_retention_is_told_and_nobody_to_vouch_for_it_is_warned_of():
    keep = ("steps = 1000", "steps = 1000\nretention_epochs = 2")
    assert warned(check(keep)) == {("RETENTION_UNVOUCHED", None): {}}
    named = check(keep, ("[gate]", f"[ledger]\nauditors = {json.dumps(AUDITORS)}\nauditor_quorum = 2\n[gate]"))
    assert warned(named) == {} and "the last 2" in sentence(named, "RETENTION")


def test_what_a_counted_corpus_shows():
    size = CorpusSize(
        "attested",
        SIZE,
        {"alice": 3000, "bob": 1000},
        unknown={"sensitiv": 7},
        too_soft={"public": 9},
        other_corpus=11,
        refused={"UNATTESTED": 13},
        most_examples=4,
        first_expiry=NOW + 3600,
    )
    found = check(size=size)
    assert warned(found) == {
        ("BOUNDS_REFUSED", "public"): {},
        ("CLASS_UNKNOWN", None): {},
        ("REFUSED", None): {},
        ("OTHER_CORPUS", None): {},
        ("CAP_EXCEEDED", None): {"contributor_cap in [gate]": "3000"},
        ("EXAMPLES", None): {"max_examples in [gate]": "4"},
        ("EXPIRES_EARLY", None): {},
    }
    assert "is sensitive meant?" in sentence(found, "CLASS_UNKNOWN")
    loose = check(
        ("contributor_cap = 500", "contributor_cap = 100000"),
        size=CorpusSize("attested", SIZE, {"alice": 3000, **{f"c{index}": 100 for index in range(10)}}),
    )
    assert warned(loose) == {("CAP_LOOSE", None): {"contributor_cap in [gate]": "3000"}}
    assert warned(check(enrolled=3, granted=frozenset(SIZE))) == {("CAP_LOW", None): {"contributor_cap in [gate]": "1334"}}


def test_a_multiplier_proposed_never_exceeds_its_target():
    rules = replace(Policy.from_toml(SOUND), steps=200)
    for target in (0.5, 3.0, 9.0):
        text, epsilon = multiplier_for(target, 0.05, rules, 1.0)
        assert epsilon == accountants.epsilon(float(text), 0.05, 200, 1e-6) <= target
        assert epsilon > 0.8 * target


def test_values_are_written_as_toml_reads_them():
    assert rounded(0.1, 2, up=True) == "0.1"
    assert rounded(0.123, 2, up=True) == "0.13"
    assert rounded(0.129, 2, up=False) == "0.12"
    assert rounded(Fraction(1, 3), 2, up=True) == "0.34"
    assert rounded(1234.0, 2, up=False) == "1200"
    assert power_of_ten_below(Fraction(1, 4000)) == "1e-4"
    assert power_of_ten_below(Fraction(1, 10**6)) == "1e-6"


# The command itself ----------------------------------------------------------------------------------------------------


def test_contributions_are_given_by_class_and_a_wrong_name_or_number_is_said(shell):
    shell.write("policy.toml", SOUND)
    answer = shell.json("policy", "check", "policy.toml", "--contributions", "sensitive=2000", "--contributions", "public=2000")
    assert answer["contributions"] == {"basis": "given", "classes": SIZE} and answer["warnings"] == 0
    assert "N" in shell.run("policy", "check", "policy.toml", "--contributions", "sensitive", code=2).stderr
    assert (
        shell.json("policy", "check", "policy.toml", "--contributions", "secret=1", code=1)["error"]["code"] == "CLASS_UNKNOWN"
    )


def test_a_floor_above_a_preset_is_refused_with_both_numbers(shell):
    shell.write("policy.toml", SOUND.replace("clip_norm = 0.01", "clip_norm = 0.75"))
    said = shell.json("policy", "check", "policy.toml", code=1)["error"]["sentence"]
    assert "clip_norm of class sensitive is 0.5, below 0.75 in [floors]" in said


def test_strict_turns_warnings_into_exit_code_1(shell):
    shell.write("policy.toml", SOUND)
    shell.run("policy", "check", "policy.toml", "--strict")
    warned_of = ("policy", "check", "policy.toml", "--contributions", "sensitive=3", "--contributions", "public=2000")
    shell.run(*warned_of)
    answer = shell.json(*warned_of, "--strict", code=1)
    item = next(item for item in answer["consequences"] if item["code"] == "CLASS_RARE")
    assert item["class"] == "sensitive" and item["changes"][0]["setting"] == "sampling_rate of class sensitive"
    shown = shell.run(*warned_of).stdout
    assert "  ! a step draws 0.03 of its 3 contributions" in shown
    assert "    → sampling_rate of class sensitive = 0.34" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_corpus_is_counted_before_the_policy_is_signed_and_judged_after(shell, corpus):
    corpus()
    draft = shell.json("policy", "check", "policy.toml", "--corpus", "corpus")
    assert draft["contributions"] == {"basis": "attested", "classes": {"sensitive": 5}}
    stricter = (shell.directory / "policy.toml").read_text().replace("noise_multiplier = 1.2", "noise_multiplier = 1.3")
    shell.write("stricter.toml", stricter)
    codes = [item["code"] for item in shell.json("policy", "check", "stricter.toml", "--corpus", "corpus")["consequences"]]
    assert "BOUNDS_REFUSED" in codes and "CLASS_UNUSED" in codes
    shell.write("corpus/stray.txt", "unsigned")
    signed = shell.json("policy", "check", "policy.cose", "--corpus", "corpus")
    assert signed["contributions"] == {"basis": "admitted", "classes": {"sensitive": 5}}
    refused = next(item for item in signed["consequences"] if item["code"] == "REFUSED")
    assert "UNATTESTED 1" in refused["sentence"]
