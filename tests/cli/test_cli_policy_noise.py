"""`dptrain policy noise`: strategies at equal epsilon are those of the library; the one that is taken stands in the policy."""

import hashlib
import json
import math

import numpy as np
import pytest

from attest.errors import PolicyRefused
from attest.policy import Policy
from attest.policy.mechanism import Bands, Buffers, MechanismRule
from dptrain.planning.changes import noise_of, with_noise
from ledger import accountants
from ledger.accountants.correlated import BandedInverse, Participation, Toeplitz, identity, rule_of, sensitivity, strategy_of

pytest.importorskip("torch")
pytest.importorskip("scipy")

from dptrain.noise.correlated import blt, choice, dense, toeplitz

STEPS, DELTA = 64, 1e-6
TURNS = {"often": Participation(8, fixed=True), "seldom": Participation(16, fixed=True)}

RULES = """# the rules of the letters
corpus = "letters"   # signed for this corpus alone
delta = 1e-6
steps = 64
normalizer = 4
DISCLOSURE
[noise]              # how much, and when
family = "gaussian"  # the law
injection = "scheduled"

[[class]]
name = "often"
clip_norm = 0.5
noise_multiplier = 1.2
sampling_rate = 0.125
depth = { from = 0.0, to = 1.0 }

[[class]]
name = "seldom"
clip_norm = 0.5
noise_multiplier = 2.0
sampling_rate = 0.0625
depth = { from = 0.5, to = 1.0 }
"""
SECRET = RULES.replace("DISCLOSURE", "")
PUBLIC = RULES.replace("DISCLOSURE", 'disclosure = "occurrences_public"\nsampling = { order = "cyclic" }')
INVERSE = MechanismRule("banded_inverse", Bands(bands=4, coefficients=(1048576, -524288, -131072, -65536)))
BUFFERED = MechanismRule("buffered_toeplitz", Buffers(decays=(3,), scales=(5,)))


def noise(shell, text: str, *options: str, code: int = 0) -> dict:
    shell.write("policy.toml", text)
    return shell.json("policy", "noise", "policy.toml", *options, code=code)


def refused(shell, text: str, *options: str) -> dict:
    found = noise(shell, text, *options, code=1)["error"]
    assert (shell.directory / "policy.toml").read_text() == text
    return found


def named(answer: dict) -> dict[tuple, dict]:
    return {(item["family"], item["bands"] or item["buffers"], item["draws"]): item for item in answer["strategies"]}


@pytest.mark.one_in(99)
@pytest.mark.parametrize("objective", ["mean", "max"])
def test_every_strategy_has_the_figures_of_the_library_in_every_class(shell, objective):
    found = named(noise(shell, SECRET, "--target-epsilon", "3", "--target-epsilon", "seldom=2", "--objective", objective))
    best = {
        **{("banded_toeplitz", b): Toeplitz(tuple(toeplitz.optimal_coefficients(STEPS, b, objective))) for b in (2, 8, 16, 64)},
        **{("banded_inverse", p): BandedInverse(tuple(toeplitz.banded_inverse_square_root(STEPS, p))) for p in (2, 4, 16, 64)},
        ("buffered_toeplitz", 1): blt.optimize(STEPS, 1, objective, TURNS["often"]),
        ("gaussian", None): identity(),
    }
    if objective == "mean":
        best["dense", None] = dense.optimize(STEPS, 8)
    kept = {"banded_toeplitz": -1, "banded_inverse": -1, "buffered_toeplitz": 0, "gaussian": 0, "dense": 0}
    for name, epsilon, rate in (("often", 3.0, 0.125), ("seldom", 2.0, 0.0625)):
        secret = choice.amplified(identity(), STEPS, epsilon, DELTA, 1, rate, objective)
        plain = choice.at_epsilon(identity(), STEPS, epsilon, DELTA, TURNS[name], objective)
        least = min(secret.rmse, plain.rmse)
        row = found["gaussian", None, "secret"]["classes"][name]
        assert row == {"noise_multiplier": secret.noise_multiplier, "sensitivity": None, "rmse": pytest.approx(secret.rmse)} | {
            "step_rmse": pytest.approx(secret.step),
            "ratio": pytest.approx(secret.rmse / least)
        }
        for (family, size), strategy in best.items():
            arm = choice.at_epsilon(strategy, STEPS, epsilon, DELTA, TURNS[name], objective)
            row = found[family, size, "turns"]
            assert row["kept"] == (size or 0) + kept[family]
            assert row["classes"][name] == {
                "noise_multiplier": pytest.approx(arm.noise_multiplier, rel=1e-9),
                "sensitivity": pytest.approx(arm.sensitivity, rel=1e-9),
                "rmse": pytest.approx(arm.rmse, rel=1e-9),
                "step_rmse": pytest.approx(arm.step, rel=1e-9),
                "ratio": pytest.approx(arm.rmse / least, rel=1e-9),
            }


def test_bands_go_past_the_periods_and_the_best_has_the_least_of_the_largest_ratios(shell):
    answer = noise(shell, SECRET, "--target-epsilon", "3")
    banded = [item for item in answer["strategies"] if item["family"] == "banded_toeplitz"]
    assert [item["bands"] for item in banded if item["draws"] == "turns"] == [2, 4, 8, 16, 32, 64]
    secret = [item for item in banded if item["draws"] == "secret"]
    assert [(item["bands"], item["groups"]) for item in secret] == [(2, 2), (4, 4), (8, 8)]  # no group has more than a period
    for item in secret:
        arm = choice.amplified(
            Toeplitz(tuple(toeplitz.optimal_coefficients(64, item["bands"]))), 64, 3.0, 1e-6, item["groups"], item["groups"] / 8
        )
        found = item["classes"]["often"]
        assert (found["noise_multiplier"], found["rmse"]) == pytest.approx((arm.noise_multiplier, arm.rmse), rel=1e-9)
    for item in answer["strategies"]:
        assert item["worst_ratio"] == max(row["ratio"] for row in item["classes"].values())
    ratios = [item["worst_ratio"] for item in answer["strategies"]]
    assert ratios[answer["best"]] == min(ratios)
    turns = noise(shell, PUBLIC, "--target-epsilon", "3")
    assert [item["worst_ratio"] for item in turns["strategies"]] == ratios
    possible = [item for item in turns["strategies"] if item["draws"] == "turns"]
    assert turns["strategies"][turns["best_here"]] == min(possible, key=lambda item: item["worst_ratio"])
    assert turns["targets"]["often"] | {"epsilon": 0} == {
        "epsilon": 0, "preset_multiplier": 1.2, "sampling_rate": 0.125, "period": 8, "occurrences": 8
    }  # fmt: skip


def test_targets_are_what_the_presets_give_under_the_policy_as_it_is_written(shell):
    secret = noise(shell, SECRET, "--family", "banded_inverse", "--bands", "4")["targets"]
    assert secret["often"]["epsilon"] == accountants.epsilon(1.2, 0.125, STEPS, DELTA)
    public = noise(shell, PUBLIC, "--family", "banded_inverse", "--bands", "4")["targets"]
    assert public["seldom"]["epsilon"] == accountants.epsilon_occurrences(4 / 2.0**2, DELTA, "pld", family="gaussian")
    written = noise(shell, with_noise(PUBLIC, INVERSE), "--family", "banded_toeplitz", "--bands", "8")["targets"]
    moved = sensitivity(strategy_of(INVERSE, STEPS), STEPS, TURNS["often"]).value
    moved /= math.sqrt(strategy_of(INVERSE, STEPS).norms_squared(STEPS).max())
    assert written["often"]["epsilon"] == pytest.approx(accountants.epsilon(1.2 / moved, 1.0, 1, DELTA), rel=1e-6)
    assert written["often"]["epsilon"] > public["often"]["epsilon"] * 1.001


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_costs_are_those_of_the_coefficients_that_are_signed(shell, accountant):
    text = PUBLIC.replace("steps = 64", f'steps = 64\naccountant = "{accountant}"')
    answer = noise(shell, text, "--family", "banded_toeplitz", "--bands", "12", "--target-epsilon", "3")
    rule = rule_of(Toeplitz(tuple(toeplitz.optimal_coefficients(STEPS, 12))))
    assert rule.digest is None and answer["noise"]["family"] == "banded_toeplitz"
    assert answer["noise"]["parameters"] == {
        "bands": 12,
        "coefficients": list(rule.parameters.coefficients),
        "normalized": False,
    }
    signed = strategy_of(rule, STEPS)
    for row in answer["costs"]:
        arm = choice.at_epsilon(signed, STEPS, 3.0, DELTA, TURNS[row["class"]], accountant=accountant)
        assert (row["noise_multiplier"], row["rmse"]) == (arm.noise_multiplier, arm.rmse)
        assert row["sensitivity"] == arm.sensitivity
        alone = accountants.epsilon(row["preset_multiplier"] / arm.sensitivity, 1.0, 1, DELTA, accountant)
        assert row["epsilon"] == pytest.approx(alone, rel=1e-5)
    assert answer["costs"][0]["sensitivity"] > math.sqrt(8) * 1.01  # 12 bands, and turns 8 steps apart
    assert answer["costs"][1]["sensitivity"] == pytest.approx(2.0)


def test_momentum_is_summed_up_with_its_weights(shell):
    options = ("--target-epsilon", "3", "--momentum", "0.9")
    answer = noise(shell, PUBLIC, *options)
    found = named(answer)
    workload = toeplitz.momentum(STEPS, 0.9)
    plain = choice.at_epsilon(identity(), STEPS, 3.0, DELTA, TURNS["often"], "mean", workload)
    assert found["gaussian", None, "turns"]["classes"]["often"]["rmse"] == pytest.approx(plain.rmse)
    secret = choice.amplified(identity(), STEPS, 3.0, DELTA, 1, 0.125, workload=workload)
    assert found["gaussian", None, "secret"]["classes"]["often"]["rmse"] == pytest.approx(secret.rmse)
    other = Toeplitz(tuple(toeplitz.optimal_coefficients(STEPS, 8)))
    without = choice.at_epsilon(other, STEPS, 3.0, DELTA, TURNS["often"], "mean", workload)
    assert found["banded_toeplitz", 8, "turns"]["classes"]["often"]["rmse"] < 0.99 * without.rmse
    assert any("momentum" in sentence for sentence in answer["left_out"])


def test_what_was_left_out_is_said(shell):
    answer = noise(shell, SECRET.replace("steps = 64", "steps = 200"), "--target-epsilon", "3")
    assert "dense" not in {item["family"] for item in answer["strategies"]}
    assert [sentence.partition(" ")[0] for sentence in answer["left_out"]] == ["buffered_toeplitz", "dense"]
    buffers = [item for item in answer["strategies"] if item["family"] == "buffered_toeplitz"]
    assert f"buffered_toeplitz of {len(buffers) + 1} or more" in answer["left_out"][0]


WRITTEN = PUBLIC.replace(
    'family = "gaussian"  # the law\n',
    'family = "banded_inverse"  # the law\nparameters = { bands = 4, coefficients = [1048576, -524288, -131072, -65536] }\n',
)


def test_the_policy_has_the_strategy_and_every_other_byte_as_it_was(shell):
    family = ("--family", "banded_inverse", "--bands", "4")
    answer = noise(shell, PUBLIC, *family)
    assert not answer["written"] and (shell.directory / "policy.toml").read_text() == PUBLIC
    assert answer["noise"]["toml"] == (
        '[noise]\nfamily = "banded_inverse"\nparameters = { bands = 4, coefficients = [1048576, -524288, -131072, -65536] }\n'
    )
    assert noise(shell, PUBLIC, *family, "--write")["written"]
    assert (shell.directory / "policy.toml").read_text() == WRITTEN
    assert noise_of(WRITTEN) == INVERSE
    assert noise(shell, WRITTEN, *family, "--write")["written"]
    assert (shell.directory / "policy.toml").read_text() == WRITTEN
    noise(shell, WRITTEN, "--family", "buffered_toeplitz", "--buffers", "1", "--write")
    kept = (shell.directory / "policy.toml").read_text()
    assert with_noise(kept, INVERSE) == WRITTEN and with_noise(kept, MechanismRule()) == PUBLIC
    rule = rule_of(blt.optimize(STEPS, 1, "mean", TURNS["often"]))
    assert noise_of(kept) == rule


def test_ends_of_lines_stay_in_a_file_and_public_classes_need_nothing(shell):
    open_class = '[[class]]\nname = "open"\npublic = true\nsampling_rate = 0.3\ndepth = { from = 0.0, to = 1.0 }\n'
    path, family = shell.directory / "policy.toml", ("--family", "banded_inverse", "--bands", "4")
    path.write_bytes((PUBLIC.replace("cyclic", "poisson") + open_class).replace("\n", "\r\n").encode())
    answer = shell.json("policy", "noise", "policy.toml", *family, "--write")
    assert [row["class"] for row in answer["costs"]] == list(answer["targets"]) == ["often", "seldom"]
    assert path.read_bytes() == (WRITTEN.replace("cyclic", "poisson") + open_class).replace("\n", "\r\n").encode()


def test_the_best_is_written_where_turns_are_public_and_independent_noise_is_kept_where_draws_are_secret(shell):
    answer = noise(shell, PUBLIC, "--best", "--write", "--target-epsilon", "3")
    best = answer["strategies"][answer["best_here"]]
    written = noise_of((shell.directory / "policy.toml").read_text())
    assert written.name == best["family"] == answer["noise"]["family"] != "gaussian"
    assert [row["rmse"] for row in answer["costs"]] == pytest.approx(
        [row["rmse"] for row in best["classes"].values()], rel=1e-4
    )
    once = SECRET.replace("steps = 64", "steps = 1")
    error = refused(shell, once, "--best", "--write", "--target-epsilon", "3")
    assert error["code"] == "STRATEGY" and "independent noise is best" in error["sentence"]


def test_the_best_under_secret_draws_says_from_how_many_groups_and_what_to_set(shell):
    answer = noise(shell, SECRET, "--best", "--target-epsilon", "3")
    best = answer["strategies"][answer["best_here"]]
    assert best["draws"] == "secret" and answer["groups"] == best["groups"] == best["bands"]
    rates = [row["sampling_rate"] for row in answer["costs"]]
    assert rates == [0.125 * best["groups"], 0.0625 * best["groups"]]
    told = shell.run("policy", "noise", "policy.toml", "--best", "--target-epsilon", "3").output
    assert 'order = "cyclic_poisson"' in told and f"groups = {best['groups']}" in told
    one = noise(shell, SECRET, "--family", "banded_toeplitz", "--bands", "4", "--groups", "4", "--target-epsilon", "3")
    assert one["costs"][0]["epsilon"] == accountants.epsilon(1.2, 0.5, 16, 1e-6)
    error = refused(shell, SECRET, "--family", "banded_toeplitz", "--bands", "4", "--groups", "16")
    assert error["code"] == "STRATEGY" and "take 8 groups at most" in error["sentence"]
    assert refused(shell, SECRET, "--family", "banded_toeplitz", "--bands", "4", "--groups", "2")["code"] == "STRATEGY"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = 1\n", "a = 1\n\n[noise]\nNEW\n"),
        ("a = 1", "a = 1\n\n[noise]\nNEW\n"),
        ("[noise]\n[b]\nc = 1\n", "[noise]\nNEW\n[b]\nc = 1\n"),
        (
            "a = 1\r\n[noise] # x\r\n  family = 'laplace' # y\r\nz = 1\r\n",
            "a = 1\r\n[noise] # x\r\n  FAMILY # y\r\nREST\r\nz = 1\r\n",
        ),
        ('[noise]\nfamily = "dense"\ndigest = "00" # of May\n', "[noise]\nFAMILY\nREST\n# of May\n"),
        (
            '[noise]\nfamily = "buffered_toeplitz"\n[noise.parameters]\n# of May\ndecays = [3]\nscales = [5]\n\n[b]\nc = 1\n',
            "[noise]\nFAMILY\nREST\n# of May\n\n[b]\nc = 1\n",
        ),
        ('[noise]\nparameters = { decays = [3], scales = [5] } # }\nfamily = "x"\n', "[noise]\nREST # }\nFAMILY\n"),
        ('a = """\n[noise]\n"""\n', None),
        ('noise = { injection = "scheduled" }\n', None),
        ('noise.family = "gaussian"\n[b]\n', None),
        ('[noise]\nfamily = "buffered_toeplitz"\n[noise.parameters]\ndecays = [\n3]\nscales = [5]\n', None),
        ("[noise\n", None),
    ],
)
def test_only_what_says_the_noise_is_replaced_and_other_forms_are_refused(before, after):
    family, rest = 'family = "buffered_toeplitz"', "parameters = { decays = [3], scales = [5] }"
    if after is None:
        with pytest.raises(PolicyRefused) as caught:
            with_noise(before, BUFFERED)
        assert caught.value.code == "TOML"
        return
    end = "\r\n" if "\r\n" in before else "\n"
    wanted = after.replace("NEW", f"{family}{end}{rest}").replace("FAMILY", family).replace("REST", rest)
    assert with_noise(before, BUFFERED) == wanted


def test_why_no_run_may_begin_yet_is_said_and_a_policy_that_would_be_none_is_not_written(shell, monkeypatch):
    family = ("--family", "banded_inverse", "--bands", "4", "--write")

    def answer_with(code: str | None) -> None:
        def checked(asked):
            if code is not None and dict(asked)["noise.family"] == "banded_inverse":
                raise PolicyRefused(code, "not so")

        monkeypatch.setattr("attest.policy.rules.refuse_unbuilt", checked)

    answer_with("NOT_BUILT")
    assert noise(shell, PUBLIC, *family)["refused"] == "NOT_BUILT: not so"
    assert noise(shell, WRITTEN, *family)["refused"] == "NOT_BUILT: not so"
    answer_with(None)
    assert noise(shell, PUBLIC, *family)["refused"] is None
    assert Policy.from_toml((shell.directory / "policy.toml").read_text()).mechanism == INVERSE
    assert noise(shell, WRITTEN, *family)["targets"]["often"]["epsilon"] > 10
    answer_with("RANGE")
    assert refused(shell, PUBLIC, *family)["code"] == "RANGE"


@pytest.mark.parametrize(
    ("change", "options", "code", "says"),
    [
        (("steps = 64", "steps = 600"), ("--family", "dense"), "STRATEGY", "512 steps at most"),
        (("steps = 64", "steps = 65"), ("--family", "dense", "--objective", "max"), "STRATEGY", "64 steps at most"),
        (("steps = 64", "steps = 100001"), (), "STRATEGY", "100,000 at most"),
        (("steps = 64", "steps = 20001"), ("--momentum", "0.9"), "STRATEGY", "20,000 at most with momentum"),
        (("steps = 64", "steps = 100000"), ("--family", "banded_toeplitz", "--bands", "168"), "STRATEGY", "take 167 at most"),
        (("", ""), ("--family", "banded_toeplitz", "--bands", "65"), "STRATEGY", "1 to 64 bands"),
        (("", ""), ("--family", "banded_inverse", "--bands", "65"), "STRATEGY", "2 to 64 bands"),
        (("", ""), ("--objective", "median"), "STRATEGY", "mean or max"),
        (('family = "gaussian"', 'family = "laplace"'), (), "STRATEGY", "'laplace'"),
        (('injection = "scheduled"', 'injection = "per_microbatch"\nmicrobatches = 2'), (), "STRATEGY", "noise.injection"),
        (("[[class]]", "[[noise.phase]]\nfrom_step = 9\nscale = 2\n[[class]]"), (), "STRATEGY", "noise.phase"),
        (('family = "gaussian"', 'family = "gumbel"'), (), "RANGE", "'gumbel'"),
        (("0.125", "0.3"), (), "RANGE", '"1/4" and "1/3"'),
        (("", ""), ("--target-epsilon", "none=3"), "CLASS_UNKNOWN", "often"),
    ],
)
def test_what_has_no_answer_is_refused_with_what_would_do(shell, change, options, code, says):
    error = refused(shell, SECRET.replace(*change, 1), *options)
    assert error["code"] == code and says in error["sentence"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--family", "dense", "--bands", "4"), "dense has no size"),
        (("--family", "banded"), "brought by --matrix"),
        (("--inverse",), "what the file of --matrix holds"),
        (("--matrix", "policy.toml", "--best"), "leave out --best"),
        (("--family", "gaussian"), "there is no strategy 'gaussian'"),
        (("--family", "banded_toeplitz"), "give --bands B"),
        (("--family", "banded_inverse", "--bands", "4", "--buffers", "2"), "leave out --buffers"),
        (("--family", "buffered_toeplitz", "--bands", "4"), "give --buffers M"),
        (("--bands", "4"), "name it, or leave them out"),
        (("--best", "--family", "banded_inverse", "--bands", "4"), "leave out --family"),
        (("--write",), "--write needs the noise"),
        (("--family", "banded_inverse", "--bands", "4", "--plot", "a.svg"), "--plot draws the comparison"),
    ],
)
def test_options_that_say_no_one_strategy_are_wrong_use(shell, options, says):
    error = noise(shell, SECRET, *options, code=2)["error"]
    assert error["code"] == "USAGE" and says in error["sentence"]


def test_a_dense_strategy_is_written_with_its_coefficients_beside_the_policy_and_signed_with_them(shell, corpus):
    answer = noise(shell, PUBLIC, "--family", "dense", "--write", "--target-epsilon", "3")
    text, file = ((shell.directory / name) for name in ("policy.toml", "policy.coefficients"))
    rule = noise_of(text.read_text())
    assert rule.name == "dense" and rule.digest == hashlib.sha256(file.read_bytes()).digest()
    signed = strategy_of(rule.with_coefficients(file.read_bytes()), STEPS)
    for row in answer["costs"]:
        assert row["rmse"] == choice.at_epsilon(signed, STEPS, 3.0, DELTA, TURNS[row["class"]]).rmse
    found = shell.json("policy", "check", "policy.toml")
    assert found["supported"]
    (shell.directory / "other").mkdir()
    shell.json("policy", "sign", "policy.toml", "--out", "other/policy.cose")
    assert (shell.directory / "other" / "policy.coefficients").read_bytes() == file.read_bytes()
    told = shell.json("policy", "sign", "policy.toml", "--out", "other/policy.cose", code=2)["error"]["sentence"]
    assert "exists" in told
    kept = file.read_bytes()
    file.write_bytes(kept[:-4] + kept[:4])
    error = shell.json("policy", "check", "policy.toml", code=1)["error"]
    assert error["code"] == "COEFFICIENTS" and "policy.coefficients" in error["sentence"]
    file.unlink()
    error = shell.json("policy", "sign", "policy.toml", "--out", "third.cose", code=1)["error"]
    assert error["code"] == "COEFFICIENTS" and "so that you sign what you have" in error["sentence"]
    assert not (shell.directory / "third.cose").exists()
    error = shell.json("policy", "check", "policy.toml", code=1)["error"]
    assert error["code"] == "COEFFICIENTS" and "put it beside the policy" in error["sentence"]


@pytest.mark.parametrize("name", ["own.npy", "own.csv", "inverse.txt"])
def test_a_matrix_of_ones_own_is_signed_as_the_strategy_that_it_is(shell, name):
    matrix = np.eye(STEPS) + np.diag(np.full(STEPS - 1, 0.5), -1) - np.diag(np.linspace(0.1, 0.3, STEPS - 2), -2)
    path = shell.directory / name
    if name == "own.npy":
        np.save(path, matrix)
    else:
        written = np.linalg.inv(matrix) if name == "inverse.txt" else matrix
        np.savetxt(path, written, delimiter="," if name == "own.csv" else " ")
    options = ("--inverse",) if name == "inverse.txt" else ()
    answer = noise(shell, PUBLIC, "--matrix", str(path), *options, "--write")
    rule = noise_of((shell.directory / "policy.toml").read_text())
    found = strategy_of(rule.with_coefficients((shell.directory / "policy.coefficients").read_bytes()), STEPS)
    assert rule.name == answer["noise"]["family"] == "banded"
    assert np.abs(found.matrix(STEPS) - matrix).max() < 2.0**-20
    assert answer["costs"][0]["sensitivity"] > math.sqrt(8) * 0.9


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (np.eye(5), "5 steps, and the policy has 64"),
        (np.ones((STEPS, STEPS)), "lower triangular"),
        (np.eye(STEPS), "is diagonal"),
        (None, "cannot read a matrix"),
    ],
)
def test_what_is_no_matrix_of_a_strategy_is_refused(shell, matrix, says):
    path = shell.directory / "own.npy"
    path.write_bytes(b"1 2\n3\n") if matrix is None else np.save(path, matrix)
    error = refused(shell, PUBLIC, "--matrix", "own.npy")
    assert error["code"] == "STRATEGY" and says in error["sentence"]


def test_without_torch_is_said_what_to_install(shell, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("dptrain.cli.inputs.importlib.import_module", missing)
    assert refused(shell, SECRET)["code"] == "TRAIN_EXTRA_MISSING"


def test_a_signed_policy_is_compared_and_not_written_to(shell, corpus):
    options = ("policy", "noise", "policy.cose", "--family", "banded_inverse", "--bands", "4")
    assert shell.json(*options)["steps"] == 20
    assert "not a .toml file" in shell.json(*options, "--write", code=2)["error"]["sentence"]


def test_a_person_reads_every_strategy_in_every_class_and_the_lines_to_write(shell):
    shell.write("policy.toml", PUBLIC)
    words = ("policy", "noise", "policy.toml", "--target-epsilon", "3", "--best", "--plot", "noise.html")
    told = shell.run(*words).stdout
    answer = noise(shell, PUBLIC, "--target-epsilon", "3", "--best")
    best = answer["strategies"][answer["best_here"]]
    assert told.count("independent, secret Poisson draws  ") == 3
    assert "class seldom: epsilon 3; one turn in 16 steps, 4 in all; its preset multiplier is 2" in told
    assert f"with {best['worst_ratio']:.3f} of the noise" in told
    assert answer["noise"]["toml"] in told
    page = (shell.directory / "noise.html").read_text()
    assert page.count("<caption>Class ") == 2 and page.count("<td>banded_toeplitz, 8 bands</td>") == 2
    for series in ("independent, public turns", "banded_toeplitz", "buffered_toeplitz"):
        assert f">{series}</text>" in page
    assert (
        json.loads(json.dumps(answer)) == answer and np.isfinite([item["worst_ratio"] for item in answer["strategies"]]).all()
    )
