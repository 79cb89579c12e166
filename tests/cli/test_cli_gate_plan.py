"""`dptrain gate` and `dptrain plan`: judged and counted as training would, before anything is spent."""

from dataclasses import replace
from fractions import Fraction

import pytest

from attest.policy import Policy
from dptrain.planning.plan import TAIL, bound_plan, class_blocks, draw_range, make_plan
from ledger.accountants import gaussian


def test_the_gate_admits_what_was_signed_for_this_corpus(shell, corpus):
    corpus()
    answer = shell.json("gate", "policy.cose", "corpus")
    assert answer["admitted"] == {"sensitive": 5} and answer["refused"] == {}
    assert "5 admitted, 0 refused" in shell.run("gate", "policy.cose", "corpus").stdout


def test_refusals_are_counted_by_reason_and_listed_and_exit_with_1(shell, corpus):
    corpus()
    shell.write("corpus/stray.txt", "nobody signed this")
    shell.write("corpus/notes.jsonl", '{"text": "changed"}\n' + "".join(f'{{"text": "note {i}"}}\n' for i in range(1, 5)))
    answer = shell.json("gate", "policy.cose", "corpus", code=1)
    assert answer["admitted"] == {"sensitive": 4}
    assert answer["refused"] == {"CONTENT_MISMATCH": 1, "UNATTESTED": 1}
    assert {item["source"] for item in answer["refusals"]} == {"notes.jsonl", "stray.txt"}
    shown = shell.run("gate", "policy.cose", "corpus", code=1).stdout
    assert "refused CONTENT_MISMATCH: 1. The content is not what was signed." in shown


@pytest.mark.parametrize(
    ("bounds", "code"),
    [
        (("--corpus", "other", "--clip-norm", "0.5", "--noise-multiplier", "1.2"), "AUDIENCE"),
        (("--corpus", "clinic-notes-2026", "--clip-norm", "0.500001", "--noise-multiplier", "1.2"), "CLIP_ABOVE_CLASS"),
        (("--corpus", "clinic-notes-2026", "--clip-norm", "0.5", "--noise-multiplier", "1.199999"), "NOISE_BELOW_CLASS"),
        (("--policy", "policy.toml", "--days", "10000"), "WINDOW"),
    ],
)
def test_bounds_softer_than_the_class_and_foreign_audiences_are_refused(shell, corpus, bounds, code):
    corpus(*bounds)
    assert shell.json("gate", "policy.cose", "corpus", code=1)["refused"] == {code: 5}


def test_the_gate_asks_for_the_registry_that_the_policy_names_or_a_later_state_of_it(shell, corpus):
    corpus()
    shell.run("registry", "add", "registry.cbor", "--pub", "owner.pub", "--class", "public")
    assert shell.json("gate", "policy.cose", "corpus")["admitted"] == {"sensitive": 5}
    (shell.directory / "registry.cbor").unlink()
    shell.run("registry", "add", "registry.cbor", "--pub", "alice.pub", "--class", "sensitive")
    assert shell.json("gate", "policy.cose", "corpus", code=1)["error"]["code"] == "REGISTRY_ROOT"


def test_the_gate_takes_no_unsigned_policy(shell, corpus):
    assert shell.json("gate", "policy.toml", "corpus", code=1)["error"]["code"] == "UNSIGNED"


def test_signatures_that_a_gate_verified_are_spared_by_the_next_gate_and_by_a_plan(shell, corpus):
    """The ledger is still to come: its key is made, the reading lies beside it, and says nothing to anybody else."""
    corpus()
    before = set(shell.directory.iterdir())
    first = shell.json("gate", "policy.cose", "corpus", "--for", "run.db")
    reading = {"path": "run.db.reading", "spared": 0, "told": None}
    assert first["kept_reading"] == reading and first["admitted"] == {"sensitive": 5}
    made = {path.name: path.stat().st_mode & 0o777 for path in set(shell.directory.iterdir()) - before}
    assert made == {"run.key": 0o600, "run.db.reading": 0o600, ".corpus.registry": 0o644}
    assert shell.json("gate", "policy.cose", "corpus", "--for", "run.db")["kept_reading"] == reading | {"spared": 5}
    assert shell.json("plan", "policy.cose", "corpus", "--for", "run.db")["kept_reading"] == reading | {"spared": 5}
    shown = shell.run("gate", "policy.cose", "corpus", "--for", "run.db").stdout
    assert "5 signatures had been verified before, as kept in run.db.reading" in shown
    assert "kept_reading" not in shell.json("gate", "policy.cose", "corpus", "--for", "run.db", "--no-kept-reading")
    assert "kept_reading" not in shell.json("gate", "policy.cose", "corpus")


def test_a_kept_reading_that_does_not_count_is_told_in_one_line_and_made_anew(shell, corpus):
    corpus()
    shell.run("gate", "policy.cose", "corpus", "--for", "run.db")
    path = shell.directory / "run.db.reading"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    shown = shell.run("gate", "policy.cose", "corpus", "--for", "run.db").stdout
    assert "does not count, since something changed it, or another key wrote it: all signatures were verified" in shown
    assert path.read_bytes() == data
    shell.run("registry", "add", "registry.cbor", "--pub", "owner.pub", "--class", "public")
    told = shell.json("plan", "policy.cose", "corpus", "--for", "run.db")["kept_reading"]
    assert told["spared"] == 0 and "made under another state of the registry" in told["told"]


def test_a_contribution_that_expired_since_is_refused_although_its_signature_was_kept(shell, corpus):
    corpus()
    shell.run("gate", "policy.cose", "corpus", "--for", "run.db")
    answer = shell.json("gate", "policy.cose", "corpus", "--for", "run.db", "--now", "+400d", code=1)
    assert answer["refused"] == {"EXPIRED": 5}


def test_a_ledger_that_is_not_there_is_still_refused_where_its_withdrawals_are_asked_for(shell, corpus):
    """A slip of the pen must not leave withdrawals out."""
    corpus()
    assert shell.json("gate", "policy.cose", "corpus", "--ledger", "run.db", code=2)["error"]["code"] == "USAGE"
    assert not (shell.directory / "run.key").exists()
    assert shell.json("gate", "policy.cose", "corpus", "--ledger", "policy.cose", "--for", "run.db", code=2)["error"]


def test_plan_gives_every_block_the_largest_sigma_c_of_its_classes(shell, corpus):
    answer = shell.json("plan", "policy.toml", "--layers", "4")
    std = {block["name"]: block["std"] for block in answer["blocks"]}
    assert std == {"embeddings": 0.4, "layer.0": 0.4, "layer.1": 0.4, "layer.2": 0.4, "layer.3": 0.6, "head": 0.6}
    assert answer["noise_energy_ratio"] == pytest.approx((4 * 0.4**2 + 2 * 0.6**2) / (6 * 0.6**2))
    assert [item["preset"]["effective_multiplier"] for item in answer["classes"]] == [1.2, 0.8]
    assert [item["expected_draws"] for item in answer["classes"]] == [2.0, 20.0]


def test_plan_accounts_own_bounds_of_the_admitted_contributions(shell, corpus):
    corpus("--corpus", "clinic-notes-2026", "--clip-norm", "0.25", "--noise-multiplier", "1.2")
    answer = shell.json("plan", "policy.cose", "corpus")
    (group,) = answer["signed_bounds"]["sensitive"]
    assert group["contributions"] == 5
    assert (group["effective_multiplier"], group["waste"]) == (2.4, 2.0)
    assert group["epsilon"] < answer["classes"][0]["preset"]["epsilon"] < group["epsilon"] * 10
    assert answer["expected_contributions_per_step"] == pytest.approx(0.5)
    assert "5 admitted, 0 refused" in shell.run("plan", "policy.cose", "corpus").stdout


def test_plan_counts_the_steps_that_may_be_done_again(shell, corpus):
    preset = shell.json("plan", "policy.toml")["classes"][0]["preset"]
    arguments = ["account", "--noise-multiplier", "1.2", "--sampling-rate", "0.1", "--delta", "1e-6", "--steps"]
    assert preset["epsilon"] == shell.json(*arguments, "20")["epsilon"]
    assert preset["epsilon_with_redo"] == shell.json(*arguments, "30")["epsilon"]


@pytest.mark.parametrize(
    ("depth", "blocks"),
    [
        ("{ from = 0.0, to = 0.5 }", ["embeddings", "layer.0", "layer.1", "layer.2", "layer.3", "layer.4"]),
        ("{ from = 0.7, to = 1.0 }", ["layer.7", "layer.8", "layer.9", "head"]),
        ("{ from = 0.75, to = 0.85, head = true }", ["layer.7", "layer.8", "head"]),
        ("{ from = 0.9, to = 1.0, head = false, embeddings = true }", ["embeddings", "layer.9"]),
        ("{ layers = [0, 9] }", ["layer.0", "layer.9"]),
        ("{ layers = [3], head = true }", ["layer.3", "head"]),
    ],
)
def test_depth_rules_cover_the_layers_that_the_documentation_says(shell, corpus, depth, blocks):
    policy = (shell.directory / "policy.toml").read_text()
    shell.write("other.toml", policy.replace("{ from = 0.75, to = 1.0 }", depth))
    assert shell.json("plan", "other.toml", "--layers", "10")["classes"][0]["blocks"] == blocks


def test_plan_refuses_a_layer_that_the_stack_does_not_have(shell, corpus):
    policy = (shell.directory / "policy.toml").read_text()
    shell.write("other.toml", policy.replace("{ from = 0.75, to = 1.0 }", "{ layers = [12] }"))
    assert shell.json("plan", "other.toml", "--layers", "12", code=1)["error"]["code"] == "LAYERS"


def test_plan_says_that_name_patterns_need_a_model(shell, corpus):
    policy = (shell.directory / "policy.toml").read_text()
    shell.write("other.toml", policy.replace("{ from = 0.75, to = 1.0 }", '{ set = ["vision.*"] }'))
    answer = shell.json("plan", "other.toml")
    assert answer["lower_bounds"] and answer["classes"][0]["blocks"] == ["set vision.*"]
    assert "until a model is seen" in shell.run("plan", "other.toml").stdout


MASKED = {"from = 0.75, to = 1.0": "from = 0.75, to = 1.0, heads = [0, 1, 3], experts = [2]"}


def masked(shell) -> None:
    text = (shell.directory / "policy.toml").read_text()
    for old, new in MASKED.items():
        assert old in text
        text = text.replace(old, new, 1)
    shell.write("policy.toml", text)


def test_plan_counts_what_masks_divide_as_blocks_of_their_own(shell, corpus):
    """The class without a mask alone may touch what heads share, so it cannot count on the other's noise there."""
    corpus()
    masked(shell)
    answer = shell.json("plan", "policy.toml", "--layers", "4")
    blocks = {block["name"]: (block["std"], block["classes"]) for block in answer["blocks"] if "layer.3" in block["name"]}
    both = ["sensitive", "public"]
    assert blocks == {
        "layer.3": (0.6, both),
        "layer.3 heads 0-1+3": (0.6, both),
        "layer.3 attention": (0.4, ["public"]),
        "layer.3 experts 2": (0.6, both),
        "layer.3 router": (0.4, ["public"]),
    }
    shown = shell.run("plan", "policy.toml", "--layers", "4").stdout
    assert "layer.3 heads 0-1+3" in shown and "multipliers are lower bounds" in shown


def test_check_says_which_heads_a_class_may_touch(shell, corpus):
    corpus()
    masked(shell)
    shown = " ".join(shell.run("policy", "check", "policy.toml", "--layers", "4").stdout.split())
    assert "there only heads 0-1+3 and experts 2 where it has such" in shown
    answer = shell.json("plan", "policy.toml", "--layers", "4")
    assert answer["classes"][0]["preset"]["effective_multiplier"] == 1.2


def test_show_gives_masks_back_as_they_were_signed(shell, corpus):
    corpus()
    masked(shell)
    shell.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor", "--out", "masked.cose")
    assert "heads = [0, 1, 3], experts = [2]" in shell.run("policy", "show", "masked.cose").stdout
    depth = shell.json("policy", "show", "masked.cose")["policy"]["classes"][0]["depth"]
    assert depth == {"from": 0.75, "to": 1.0, "heads": [0, 1, 3], "experts": [2]}


PHASED = "[[noise.phase]]\nfrom_step = 1\nscale = 2\n[[noise.phase]]\nfrom_step = 6\nscale = 1\n"


def in_policy(shell, text: str) -> None:
    policy = (shell.directory / "policy.toml").read_text()
    shell.write("policy.toml", policy.replace("[[class]]", f"{text}[[class]]", 1))


def test_every_phase_counts_at_its_own_noise_and_redone_steps_at_the_least(shell, policy):
    in_policy(shell, PHASED)
    answer = shell.json("plan", "policy.toml", "--layers", "4")
    assert [(item["first_step"], item["steps"], item["scale"]) for item in answer["phases"]] == [(1, 5, 2.0), (6, 15, 1.0)]
    preset = answer["classes"][0]["preset"]
    assert preset["multipliers"] == [2.4, 1.2] and preset["effective_multiplier"] == 1.2
    for figure, last in (("epsilon", 15), ("epsilon_with_redo", 25)):
        run = ("--phase", "2.4,0.1,5", "--phase", f"1.2,0.1,{last}", "--delta", "1e-6")
        assert preset[figure] == shell.json("account", *run)["epsilon"]
    assert "x2 from step 1, x1 from step 6" in shell.run("plan", "policy.toml").stdout


def test_with_budgets_a_class_is_promised_what_it_asks_for_whatever_the_model(shell, policy):
    """Where blocks are of other sizes another optimum gives a class less than that of equal ones, and never less than sigma."""
    budgets = "[noise.budgets]\nembeddings = 0.2\nlayers = 1\nhead = 2\n"
    without = shell.json("plan", "policy.toml", "--layers", "4")
    in_policy(shell, budgets)
    answer = shell.json("plan", "policy.toml", "--layers", "4")
    assert [item["preset"]["effective_multiplier"] for item in answer["classes"]] == [1.2, 0.8]
    assert {block["name"]: block["share"] for block in answer["blocks"]}["embeddings"] == 200_000
    assert answer["noise_energy_of_max_rule"] < 1 and answer["noise_energy_gap"] < 1e-6
    assert answer["lower_bounds"] and not without["lower_bounds"]
    assert "weight in clips" in shell.run("plan", "policy.toml").stdout


def test_caps_that_contributions_signed_are_accounted(shell, corpus):
    corpus("--policy", "policy.cose", "--owner-key", "owner.pub", "--max-occurrences", "1")
    (group,) = shell.json("plan", "policy.cose", "corpus")["signed_bounds"]["sensitive"]
    run = ("--noise-multiplier", "1.2", "--sampling-rate", "0.1", "--steps", "20", "--delta", "1e-6")
    account = shell.json("account", *run, "--max-occurrences", "1")
    assert group["max_occurrences"] == 1
    assert (group["epsilon"], group["epsilon_replace"]) == (account["epsilon_capped"], account["epsilon_replace"])
    assert "1 draws" in shell.run("plan", "policy.cose", "corpus").stdout


def test_a_cap_bounds_epsilon_by_that_of_so_many_draws(policy):
    """Lemma 2: drawn in every one of 20 steps, at most 5 times."""
    rules = Policy.from_toml(policy.read_text())
    rule, blocks = rules.classes[1], class_blocks(make_plan(rules, 4), "public")
    capped = bound_plan(rules, rule, rule.bounds._replace(max_occurrences=5), blocks)
    assert capped.epsilon == pytest.approx(gaussian.epsilon_of_mu(5**0.5 / 0.8, 1e-6))
    assert capped.epsilon_with_redo == pytest.approx(gaussian.epsilon_of_mu(30**0.5 / 0.8, 1e-6))


def test_a_plan_counts_more_noise_than_an_accountant_reads_as_the_most_that_it_reads(policy):
    """As a run under it does: the noise that one class needs may be beyond any scale for another."""
    rules = Policy.from_toml(policy.read_text())
    loud = replace(rules.classes[0], depth=rules.classes[1].depth, clip_norm_micro=10**15, noise_multiplier_micro=10**13)
    found = make_plan(replace(rules, classes=(loud, rules.classes[1])), 4).classes[1].preset
    assert found.effective_multiplier > 1e12 and found.epsilon == 0.0


@pytest.mark.parametrize("steps", [1, 7, 100, 5000, 10**6])
@pytest.mark.parametrize("rate", ["0.000001", "0.01", "0.3", "0.999", "1"])
def test_the_range_of_draws_is_binomial(steps, rate):
    """Against scipy: neither end can be moved inwards without losing more than a fortieth of all contributions."""
    stats = pytest.importorskip("scipy.stats")
    found, law = draw_range(steps, Fraction(rate)), stats.binom(steps, float(rate))
    assert law.cdf(found.low - 1) <= TAIL * (1 + 1e-9) and law.sf(found.high) <= TAIL * (1 + 1e-9)
    assert law.cdf(found.low) > TAIL * (1 - 1e-9)
    assert found.high == 0 or law.sf(found.high - 1) > TAIL * (1 - 1e-9)


def test_the_range_of_very_many_draws_is_within_one_of_the_binomial():
    stats = pytest.importorskip("scipy.stats")
    found, law = draw_range(10**9, Fraction(1, 10)), stats.binom(10**9, 0.1)
    assert abs(found.low - law.ppf(TAIL)) <= 1 and abs(found.high - law.ppf(1 - TAIL)) <= 1
