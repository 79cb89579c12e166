"""`dptrain plan --processes`: memory and communication of a rank, from known sizes, figures, or a run that is timed."""

import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from dptrain.cli.complete import models
from dptrain.planning.per_rank import Ranks, per_rank
from dptrain.planning.scaling import ASSUMED, MODELS, TOKENS, ranks_of, seconds

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
RUN = """
task = "image_classification"
[model]
labels = ["a", "b", "c"]
image_size = 4
hidden_size = 8
hidden_layers = 4
attention_heads = 2
[data]
policy = "policy.toml"
corpus = "there-is-none"
[optimizer]
name = "sgd"
[run]
ledger = "ledger.db"
output = "out"
microbatch = 2
threads = 1
device = "cpu"
"""


def test_figures_of_a_known_model_are_those_of_the_formulas(shell, policy):
    answer = shell.json("plan", "policy.toml", "--processes", "8", "--model", "llama-1b", "--contributions", "sensitive=1000")
    ranks = ranks_of(MODELS["llama-1b"], 100, 8, sharded=False)
    assert answer["layers"] == MODELS["llama-1b"].layers == ranks.layers
    found = answer["ranks"]
    assert {**found, **asdict(ranks)} == found
    assert {**found, **asdict(per_rank(ranks))}["peak_bytes"] == found["peak_bytes"] and not found["complete"]
    step = seconds(MODELS["llama-1b"], ranks, ASSUMED, TOKENS)
    assert found["step_h100"] == asdict(step) | {"seconds": step.seconds, "ratio": step.ratio, "tokens": TOKENS}
    assert found["inputs_h100"]["utilisation"] == ASSUMED.utilisation
    assert (found["contributions_each"], found["microbatches"]) == (13, 4)


def test_what_is_printed_has_the_formula_of_every_part_and_the_values_of_its_letters(shell, policy):
    words = ("plan", "policy.toml", "--processes", "4", "--parameters", "8B", "--trained", "42M", "--microbatch", "2")
    for sharded in (False, True):
        ranks = Ranks(
            processes=4, parameters=8 * 10**9, trained=42 * 10**6, contributions=4, microbatch=2, layers=12, sharded=sharded,
            public=False,
        )  # fmt: skip
        shown = shell.run(*words, *(["--sharded"] if sharded else [])).stdout
        assert f"predicted for each of 4 ranks under {'FSDP2' if sharded else 'DDP'}" in shown
        found = per_rank(ranks)
        for one in (*found.memory, *found.sent):
            assert re.search(rf"{re.escape(one.name)} +{one.when} +[\d.]+ [GM]iB +{re.escape(one.formula)}\s", shown), one
            assert all(f"{letter} = {value:,}" in shown for letter, value in one.inputs.items())
        assert "without activations" in shown and "predicted step" not in shown


def test_what_a_policy_says_of_sums_is_counted(shell, policy):
    text = policy.read_text()
    words = ("--processes", "2", "--parameters", "1000")
    plain = shell.json("plan", "policy.toml", *words)["ranks"]
    shell.write("exact.toml", 'exactness = "certified"\n' + text)
    exact = shell.json("plan", "exact.toml", *words)["ranks"]
    assert (plain["sent_bytes"], exact["sent_bytes"]) == (4000, 6000) and exact["certified"]
    shell.write("public.toml", text.replace("clip_norm = 0.5\nnoise_multiplier = 0.8\n", "public = true\n"))
    public = shell.json("plan", "public.toml", *words)["ranks"]
    assert public["public"] and public["sent_bytes"] == 6000


def test_a_run_that_is_timed_gives_sizes_and_activations(shell, policy):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    shell.write("run.toml", RUN)
    answer = shell.json("plan", "policy.toml", "--processes", "4", "--measure", "run.toml")
    cost, found = answer["measured"], answer["ranks"]
    assert (found["parameters"], found["trained"], found["microbatch"]) == (cost["parameters"], cost["trained"], 2)
    assert found["state_bytes"] == 4 and found["complete"] and found["layers"] == cost["layers"] == 4
    rest = next(one for one in found["memory"] if one["name"] == "activations and libraries")
    assert rest["bytes"] == cost["peak_bytes"] - (4 + 4 + 8) * cost["parameters"] and rest["when"] == "always"
    assert "peak_bytes" in found and "step_h100" not in found
    assert "without activations" not in shell.run("plan", "policy.toml", "--processes", "4", "--measure", "run.toml").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--processes", "0", "--parameters", "124M"), "0 is not in the range x>=1"),
        (("--processes", "8"), "has none"),
        (("--processes", "8", "--model", "llama-1b", "--parameters", "1B"), "has --model and --parameters"),
        (("--model", "llama-1b"), "--model needs --processes N"),
        (("--sharded",), "--sharded needs --processes N"),
        (("--processes", "8", "--model", "llama-1b", "--trained", "1M"), "--trained goes with --parameters"),
        (("--processes", "8", "--model", "gpt5"), "no sizes are known of 'gpt5'"),
        (("--processes", "8", "--parameters", "many"), "'many' is not a number of things"),
        (("--processes", "8", "--parameters", "0.5"), "'0.5' is not a number of things"),
    ],
)
def test_wrong_use_is_answered_by_what_to_give(shell, policy, words, said):
    result = shell.run("plan", "policy.toml", *words, code=2)
    assert said in " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.stderr).split())


def test_sizes_that_no_run_has_are_refused_with_a_code(shell, policy):
    words = ("plan", "policy.toml", "--processes", "8", "--parameters", "10", "--trained", "11")
    assert shell.json(*words, code=1)["error"]["code"] == "SIZES"
    empty = ("plan", "policy.toml", "--processes", "8", "--parameters", "10", "--contributions", "sensitive=0")
    assert shell.json(*empty, code=1)["error"]["code"] == "SIZES"


def test_numbers_may_be_written_short(shell, policy):
    for text in ("124000000", "124_000_000", "124M", "0.124B"):
        found = shell.json("plan", "policy.toml", "--processes", "2", "--parameters", text)["ranks"]
        assert found["parameters"] == 124_000_000


def test_models_complete_by_name():
    assert dict(models("llama-8b")).keys() == {"llama-8b", "llama-8b-lora"}
    assert "8,030,261,248 parameters" in dict(models(""))["llama-8b"]


def test_the_page_shows_what_the_command_prints(shell):
    shell.run("policy", "init", "policy.toml")
    shown = shell.run("plan", "policy.toml", "--processes", "8", "--model", "llama-1b").stdout
    lines = [line.rstrip() for line in shown[shown.index("predicted for each") :].splitlines() if line.strip()]
    block = re.search(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None and [line for line in block[1].splitlines() if line != "..."] == lines


def test_a_rank_is_predicted_without_torch(shell, policy):
    import subprocess

    script = (
        "import sys; from dptrain.cli.app import app\n"
        "try: app(['plan', 'policy.toml', '--processes', '8', '--model', 'llama-8b', '--sharded'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'sqlalchemy') if name in sys.modules])"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, cwd=shell.directory, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]" and "FSDP2" in done.stdout, done.stderr
