"""The demo of a service, from contributions to an exported budget, in a few steps and with real processes."""

import contextlib
import io
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("peft")

from dptrain.demo.language import World
from dptrain.demo.server import DemoServer
from dptrain.demo.serving import ALL, ASKED, NONE, ONE, held, main
from dptrain.errors import ConfigError
from ledger.budget.audit import verify_budget
from ledger.budget.rho import epsilon_of_rho
from ledger.release import Rights


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict]]:
    directory = tmp_path_factory.mktemp("served") / "demo"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["--quick", "--json", "--dir", str(directory)]) == 0
    yield directory, json.loads(printed.getvalue())


@pytest.mark.slow
def test_rights_alone_say_what_answers_a_client(told: tuple[Path, dict]) -> None:
    _, result = told
    found = {(row["client"], row["model"]): row for row in result["rights"]}
    own = found[ALL, ASKED]
    assert own["artifact"] == f"adapter:{ASKED}" and own["influenced_by"][ASKED] <= 8.0
    assert found[ONE, ASKED]["artifact"] == ("base" if set(own["influenced_by"]) - {ASKED} else own["artifact"])
    assert (found[NONE, ASKED]["artifact"], found[NONE, ASKED]["influenced_by"]) == ("base", {})
    refused = found[NONE, f"private-{ASKED}"]
    assert (refused["status"], refused["refusal"]["type"], refused["artifact"]) == (403, "rights_refused", None)


@pytest.mark.slow
def test_the_budget_pays_for_answers_up_to_its_cap_and_a_restart_resets_nothing(told: tuple[Path, dict]) -> None:
    _, result = told
    private, again = result["private"], result["restarted"]
    spent = [row["epsilon_spent"] for row in private["answers"]]
    assert spent == sorted(spent) and len(spent) > 1 and spent[0] > 0 and spent[-1] <= 10.0
    charges = [row["nano_rho"] for row in private["answers"]]
    assert sum(charges) == private["balance"]["spent_nano_rho"] <= private["balance"]["cap_nano_rho"]
    assert sum(charges) + charges[-1] > private["balance"]["cap_nano_rho"], "one more would have passed the cap"
    assert spent[-1] == pytest.approx(epsilon_of_rho(sum(charges) / 1e9, 1e-5))
    assert private["refusal"]["code"] == again["refusal"]["code"] == "EXHAUSTED"
    assert private["refusal"]["asked"] == charges[-1]
    assert (again["status"], again["balance"], again["ended"]) == (403, private["balance"], 0)


@pytest.mark.slow
def test_the_exported_budget_verifies_and_holds_what_was_answered(told: tuple[Path, dict]) -> None:
    directory, result = told
    assert result["budget"]["tampered"]["verdict"] == "FAILED"
    report = verify_budget(directory / "budget-export", (directory / "budget.pub").read_text().split())
    assert (report.verdict, report.findings) == ("FULL", ())
    assert report.reserves == len(result["private"]["answers"]) and report.open == 0
    assert report.reserved_nano - report.freed_nano == result["private"]["balance"]["spent_nano_rho"]


@pytest.mark.slow
def test_the_run_and_the_release_verify_and_everything_lies_where_it_is_said_to(told: tuple[Path, dict]) -> None:
    _, result = told
    assert result["verdict"] == result["release"]["verdict"] == "FULL" and result["release"]["weights"] == "TIED"
    assert len(result["gate"]["refused"]) == 9 and set(result["gate"]["admitted"].values()) == {24}
    assert all(Path(path).exists() for path in result["files"].values())


@pytest.mark.slow
def test_tokens_are_for_their_owner_and_no_file_of_the_server_has_them(told: tuple[Path, dict]) -> None:
    directory, _ = told
    for client in (ALL, ONE, NONE):
        path = directory / f"{client}.token"
        assert path.stat().st_mode & 0o077 == 0
        token = path.read_bytes().strip()
        assert len(token) > 40
        assert not [name for name in ("tokens.toml", "server.log", "serve.toml") if token in (directory / name).read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["rights"][2].update(artifact=f"adapter:{ASKED}"),
        lambda found: found["rights"][3].update(status=200),
        lambda found: found["private"].update(status=200),
        lambda found: found["restarted"].update(status=200),
        lambda found: found["restarted"]["balance"].update(spent_nano_rho=0),
        lambda found: found["restarted"].update(ended=1),
        lambda found: found["budget"].update(verdict="FAILED"),
        lambda found: found["budget"]["tampered"].update(verdict="FULL"),
        lambda found: found["release"].update(weights="NOT_TIED"),
    ],
)
def test_the_demo_fails_where_one_promise_was_not_held(told: tuple[Path, dict], change) -> None:
    _, result = told
    found = json.loads(json.dumps(result))
    assert held(found)
    change(found)
    assert not held(found)


def test_a_server_that_does_not_start_says_why_and_leaves_no_process(served_world: World, tmp_path: Path) -> None:
    """The key of another ledger: the gate does not open."""
    for name in ("model", "base", "keys"):
        (tmp_path / name).symlink_to(served_world.directory / name)
    (tmp_path / "ledger.pub").write_text(served_world.ledger_key.read_text()[::-1])
    with DemoServer(World(tmp_path, served_world.classes), {"anna": Rights({})}) as server:
        with pytest.raises(ConfigError, match="did not become ready") as caught:
            server.start()
        assert caught.value.code == "SERVER" and server._process is None
        assert (tmp_path / "server.log").stat().st_size > 0


def test_the_file_of_the_server_has_a_plain_and_a_private_class_for_each_class(served_world: World, tmp_path: Path) -> None:
    DemoServer(World(tmp_path, served_world.classes), {"anna": Rights({})})
    table = tomllib.loads((tmp_path / "serve.toml").read_text())
    modes = {name: row.get("mode", "plain") for name, row in table["classes"].items()}
    private = {f"private-{name}" for name in served_world.classes}
    assert modes == dict.fromkeys(served_world.classes, "plain") | dict.fromkeys(private, "released")
    assert (tmp_path / "budget.db").is_file()


def test_without_the_extra_the_demo_says_what_to_install_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("dptrain.serve.program", "dptrain.serve.app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["--quick", "--dir", str(tmp_path / "demo")]) == 1
    said = capsys.readouterr().err
    assert "EXTRA: fastapi is missing" in said and "pip install 'dptrain[serve]'" in said
    assert not (tmp_path / "demo").exists()
