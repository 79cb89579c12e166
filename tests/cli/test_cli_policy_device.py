"""`dptrain policy check --device`: where a machine draws the noise of every family, and how fast, measured there."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from attest.policy import Policy  # noqa: E402
from dptrain.engine import refusals  # noqa: E402
from dptrain.errors import ConfigError  # noqa: E402
from dptrain.noise import device, speed  # noqa: E402
from dptrain.noise.mechanism import MECHANISMS  # noqa: E402
from dptrain.noise.speed import device_of, survey  # noqa: E402
from ledger.accountants.integers import SKELLAM_BITS  # noqa: E402
from ledger.accountants.table import TABLE  # noqa: E402
from tests.noise.test_device_families import BUILTIN, EXTRA, IN_FILE, STEPS, TURNS  # noqa: E402

CPU = torch.device("cpu")


def policy_of(family: str) -> Policy:
    rate = '"1/4"' if TURNS in EXTRA[family] else "0.5"
    text = (
        f'corpus = "c"\ndelta = 1e-5\nsteps = {STEPS}\nnormalizer = 4\n{EXTRA[family]}[[class]]\nname = "a"\nclip_norm = 1.0\n'
        f"noise_multiplier = 1.0\nsampling_rate = {rate}\ndepth = {{ from = 0.0, to = 1.0 }}\n"
    )
    rules = Policy.from_toml(text)
    if family in IN_FILE:
        object.__setattr__(rules, "mechanism", IN_FILE[family])
    return rules


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases of a few thousand coordinates."""
    monkeypatch.setattr(speed, "COORDINATES", 1 << 12)
    monkeypatch.setattr(speed, "_FEW", 1 << 8)
    monkeypatch.setattr(device, "_passed", set())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", BUILTIN)
def test_what_it_says_of_the_policys_own_family_is_what_open_does(family: str, few: None) -> None:
    rules = policy_of(family)
    rows = {(row.family, row.generator): row for row in survey(rules, CPU).draws}
    assert set(rows) == {(name, generator) for name in TABLE for generator in ("host", "device")}
    for generator in ("host", "device"):
        row = rows[family, generator]
        try:
            refusals.refuse_generator(generator, rules, None)
            code, sentence = "", ""
        except ConfigError as error:
            code, sentence = error.code, error.sentence
        assert row.of_policy and (row.drawn, row.code, row.sentence) == (not code, code, sentence)
        assert (row.nanoseconds is not None) is row.drawn
    assert [name for (name, _), row in rows.items() if row.of_policy] == [family, family]


@pytest.mark.parametrize("family", BUILTIN)
def test_what_is_measured_is_releases_of_the_mechanism_that_a_run_under_the_policy_has(
    family: str, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a run, each step once, where steps share noise; of as many coordinates as are told."""
    seen = []

    class Listening:
        def __init__(self, inner) -> None:
            self.inner = inner

        def __getattr__(self, name: str):
            return getattr(self.inner, name)

        def release(self, total, state, step):
            before = total.clone()
            released = self.inner.release(total, state, step)
            assert released is total and not torch.equal(before, total), "noise was added"
            seen.append((type(self.inner).__name__, step.number, total.numel()))
            return released

    made = speed.mechanism_of
    monkeypatch.setattr(speed, "mechanism_of", lambda name, source: Listening(made(name, source)))
    rules = policy_of(family)
    row = next(row for row in survey(rules, CPU).draws if row.of_policy and row.generator == "host")
    own = type(made(family, speed.Source(bytes(16), 0, bytes(32), SKELLAM_BITS, rule=rules.mechanism, steps=STEPS))).__name__
    numbers = [number for kind, number, _ in seen if kind == own]
    sizes = {size for kind, _, size in seen if kind == own}
    assert row.drawn and row.coordinates == max(sizes) and min(sizes) == 1 << 8
    if TURNS in EXTRA[family]:
        assert numbers == list(range(7, 12)), "steps behind half of the run"


@pytest.mark.gpu
def test_on_cuda_noise_of_both_generators_is_measured_on_sums_that_lie_there() -> None:
    found = survey(policy_of("gaussian"), device_of("cuda"))
    rows = {row.generator: row for row in found.draws if row.of_policy}
    assert found.device == "cuda:0" and found.model and found.refusal is None
    assert all(row.drawn and row.coordinates and row.nanoseconds > 0 for row in rows.values())


def test_a_device_that_fails_its_test_is_told_with_the_reason_and_draws_nothing(few: None, monkeypatch) -> None:
    monkeypatch.setattr(device, "_wrong", lambda where: "its float64 sin is off")
    found = survey(policy_of("gaussian"), CPU)
    assert found.refusal is not None and found.refusal.code == "NOISE_DEVICE"
    rows = {row.generator: row for row in found.draws if row.of_policy}
    assert not rows["device"].drawn and rows["device"].code == "NOISE_DEVICE" and "sin is off" in rows["device"].sentence
    assert rows["host"].drawn and rows["host"].nanoseconds > 0
    assert found.as_json()["check"]["passed"] is False


def test_a_family_that_nothing_draws_here_is_named(few: None, monkeypatch) -> None:
    from dptrain.noise import mechanism

    monkeypatch.setattr(mechanism, "_MAKERS", {"gaussian": MECHANISMS["gaussian"]})
    monkeypatch.setattr(mechanism, "MECHANISMS", mechanism._MAKERS)
    monkeypatch.setattr(speed, "MECHANISMS", mechanism._MAKERS)
    rows = [row for row in survey(policy_of("laplace"), CPU).draws if row.of_policy]
    assert [(row.drawn, row.code) for row in rows] == [(False, "NOISE_FAMILY")] * 2


def test_a_release_that_takes_long_is_measured_on_fewer_coordinates(few: None, monkeypatch) -> None:
    monkeypatch.setattr(speed, "LONG", 0.0)
    rows = [row for row in survey(policy_of("gaussian"), CPU).draws if row.nanoseconds is not None]
    assert {row.coordinates for row in rows} == {1 << 8}


def test_strategies_that_the_policy_does_not_sign_are_drawn_and_not_measured(few: None) -> None:
    rows = {(row.family, row.generator): row for row in survey(policy_of("gaussian"), CPU).draws}
    assert rows["dense", "host"].drawn and not rows["dense", "host"].code
    assert "parameters that a policy signs" in rows["dense", "host"].sentence
    assert "nanoseconds" not in rows["dense", "host"].as_json() and "seconds_per_million" in rows["laplace", "host"].as_json()


@pytest.mark.parametrize("name", ["meta", "nonsense", "cuda:77", ""])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        device_of(name)
    assert refused.value.code == "DEVICE" and "take cpu or auto" in refused.value.sentence
    assert device_of("auto").type in ("cpu", "cuda", "mps") and device_of("cpu") == CPU


def test_the_command_shows_every_family_and_what_a_run_on_the_device_would_refuse(shell, policy, few: None) -> None:
    answer = shell.json("policy", "check", "policy.toml", "--device", "cpu")["noise"]
    rows = {(row["family"], row["generator"]): row for row in answer["draws"]}
    assert answer["device"] == "cpu" and answer["check"] == {"passed": True, "code": None, "sentence": None}
    assert rows["gaussian", "host"]["of_policy"] and rows["gaussian", "device"]["drawn"]
    own = rows["gaussian", "host"]
    assert own["seconds_per_million"] == pytest.approx(own["nanoseconds"] * 1e-9 * 1e6)
    text = shell.run("policy", "check", "policy.toml", "--device", "cpu").output
    assert "gaussian (of the policy)" in text and "passes the test" in text
    assert text.count(" refused") == sum(not row["drawn"] for row in answer["draws"]) >= len(BUILTIN) - 1
    shell.write("laplace.toml", policy.read_text().replace("[[class]]", EXTRA["laplace"] + "[[class]]", 1))
    assert "! device: NOISE_GENERATOR:" in shell.run("policy", "check", "laplace.toml", "--device", "cpu").output
    assert shell.json("policy", "check", "policy.toml", "--device", "meta", code=1)["error"]["code"] == "DEVICE"
    assert "noise" not in shell.json("policy", "check", "policy.toml")


def test_without_a_device_the_command_imports_no_torch(shell, policy) -> None:
    """A device that is not there is refused at once, but by torch."""
    program = (
        "import sys\nfrom dptrain.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert bool(end.code) is ('--device' in sys.argv), end.code\n"
        "assert ('torch' in sys.modules) is ('--device' in sys.argv)\n"
    )
    for extra in ([], ["--device", "meta"]):
        command = [sys.executable, "-c", program, "policy", "check", "policy.toml", *extra]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
