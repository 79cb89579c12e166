"""`dptrain plan --measure`: a few steps through the engine's own parts; no corpus is read, no ledger is made."""

import sys

import pytest

from dptrain.errors import ConfigError

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
microbatch = 4
threads = 1
"""


@pytest.fixture
def run(shell, policy):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return shell.write("run.toml", RUN)


def test_time_memory_and_shares_are_measured_and_nothing_is_left_behind(shell, run):
    before = sorted(path.name for path in shell.directory.rglob("*"))
    answer = shell.json(
        "plan", "policy.toml", "--measure", "run.toml", "--contributions", "sensitive=50", "--contributions", "public=3"
    )
    assert sorted(path.name for path in shell.directory.rglob("*")) == before
    cost = answer["measured"]
    assert answer["layers"] == cost["layers"] == 4
    by_class = {item["name"]: item for item in cost["classes"]}
    assert by_class["sensitive"]["contributions_per_step"] == pytest.approx(5)
    assert (by_class["sensitive"]["layers"], by_class["public"]["layers"]) == (1, 4)
    assert by_class["sensitive"]["coordinates"] < by_class["public"]["coordinates"] == cost["trained"] == cost["parameters"]
    for item in cost["classes"]:
        assert item["seconds_per_step"] == pytest.approx(item["contributions_per_step"] * item["seconds_per_contribution"])
        assert item["seconds_per_contribution"] > 0
        assert item["share"] == pytest.approx(item["seconds_per_step"] / cost["seconds_per_step"])
    whole = cost["fixed_seconds"] + sum(item["seconds_per_step"] for item in cost["classes"])
    assert cost["seconds_per_step"] == pytest.approx(whole)
    assert cost["seconds_per_run"] == pytest.approx(20 * whole)
    assert cost["fixed_seconds"] > 0 and cost["peak_bytes"] > 1 << 24 and not cost["assumed"]
    assert by_class["sensitive"]["effective_multiplier"] == answer["classes"][0]["preset"]["effective_multiplier"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "extra",
    [
        "",
        'exactness = "certified"\n',
        "[[noise.phase]]\nfrom_step = 1\nscale = 2\n[noise.budgets]\nembeddings = 1\nlayers = 1\nhead = 2\n",
    ],
)
def test_what_nobody_said_is_assumed_and_told(shell, run, extra):
    text = (shell.directory / "policy.toml").read_text()
    shell.write("policy.toml", text.replace("[[class]]", f"{extra}[[class]]", 1))
    shown = shell.run("plan", "policy.toml", "--measure", "run.toml", "--layers", "12").stdout
    assert "4 per step are assumed, the normalizer" in shown
    assert "the model has 4 layers, and the plan above counts 12" in shown
    assert "no ledger opened, nothing charged" in shown
    assert not (shell.directory / "ledger.db").exists()


def test_a_public_class_is_measured_too(shell, run):
    text = (shell.directory / "policy.toml").read_text()
    shell.write("policy.toml", text.replace("clip_norm = 0.5\nnoise_multiplier = 0.8\n", "public = true\n"))
    cost = shell.json("plan", "policy.toml", "--measure", "run.toml")["measured"]
    by_class = {item["name"]: item for item in cost["classes"]}
    assert by_class["public"]["effective_multiplier"] is None and by_class["public"]["seconds_per_contribution"] > 0


def test_what_training_would_refuse_is_refused_before_it_is_timed(shell, run):
    text = (shell.directory / "policy.toml").read_text()
    shell.write("policy.toml", text.replace("{ from = 0.75, to = 1.0 }", '{ set = ["nothing.*"] }'))
    assert shell.json("plan", "policy.toml", "--measure", "run.toml", code=1)["error"]["code"] == "PATTERN_MATCHES_NOTHING"
    shell.write("run.toml", RUN.replace("microbatch = 4", "microbach = 4"))
    assert shell.json("plan", "policy.toml", "--measure", "run.toml", code=1)["error"]["code"] == "RUN_KEY"


def test_without_torch_it_says_what_to_install(shell, policy, monkeypatch):
    shell.write("run.toml", RUN)

    def missing(module):
        raise ConfigError("TRAIN_EXTRA_MISSING", "install it")

    monkeypatch.setattr("dptrain.cli.inputs.load_training", missing)
    assert shell.json("plan", "policy.toml", "--measure", "run.toml", code=1)["error"]["code"] == "TRAIN_EXTRA_MISSING"


def test_a_plan_without_it_imports_neither_torch_nor_the_model_libraries(shell, policy):
    import subprocess
    from pathlib import Path

    script = (
        "import sys; from dptrain.cli.app import app\n"
        "try: app(['plan', 'policy.toml'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib', 'sqlalchemy') if name in sys.modules])"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, cwd=shell.directory, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_noise_that_the_device_does_not_draw_is_refused_as_open_refuses_it(shell, run, policy):
    """A family by its name, and before the model is made."""
    laplace = 'exactness = "certified"\naccountant = "pld"\nnoise = { family = "laplace" }\n[[class]]'
    shell.write("policy.toml", policy.read_text().replace("[[class]]", laplace, 1))
    run.write_text(RUN + 'noise_generator = "device"\n')
    error = shell.json("plan", "policy.toml", "--measure", "run.toml", "--contributions", "sensitive=50", code=1)["error"]
    assert error["code"] == "NOISE_GENERATOR" and "family 'laplace'" in error["sentence"]
