"""`dptrain serve` before it serves: the log and its key, tokens that are kept nowhere, and combinations that make no sense."""

import hashlib
import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from attest.keys import load_private_key
from dptrain.errors import ConfigError
from dptrain.serve.access import PREFIX, Access, add_token
from dptrain.serve.config import ServeConfig
from ledger.budget import Unit
from ledger.budget.log import BudgetLog
from ledger.release import Rights
from tests.worlds.commands import run_command
from tests.worlds.servers import running, table

FILE = """
tokens = "tokens.toml"
[server]
name = "gate.example"
[gate]
release = "release"
keys = ["ledger.pub"]
[classes.released]
artifacts = ["adapter:pub"]
mode = "released"
[release]
epsilon = 4.0
[budget]
log = "budget.db"
key = "budget.key"
caps.user = { epsilon = 20.0, delta = 1e-5 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(FILE)
    return path


def run(*words: object, code: int = 0) -> Any:
    found = run_command(["serve", *words])
    assert found.exit_code == code, found.output
    return found


def test_init_makes_the_log_and_a_key_that_its_owner_alone_reads(file: Path) -> None:
    told = json.loads(run(file, "--init", "--json").stdout)
    with BudgetLog.open(file.parent / "budget.db") as log:
        assert (told["origin"], told["key"]) == (log.header.origin, log.header.log_vkey)
        assert log.header.origin == "gate.example/budget"
        (cap,) = log.header.caps
        assert (cap.unit, cap.epsilon_micro, cap.delta_pico) == ("user", 20_000_000, 10_000_000)
        assert log.header.thresholds == (50, 80, 100) and log.balance(Unit("user", "anna")).spent == 0
    assert stat.S_IMODE((file.parent / "budget.key").stat().st_mode) == 0o600
    load_private_key(file.parent / "budget.key")


def test_init_writes_over_no_log(file: Path) -> None:
    run(file, "--init")
    with BudgetLog.open(file.parent / "budget.db") as log:
        log.reserve(Unit("user", "anna"), "gaussian", 3, rho_nano=7)
    assert "EXISTS" in run(file, "--init", code=1).output
    with BudgetLog.open(file.parent / "budget.db") as log:
        assert log.balance(Unit("user", "anna")).spent == 21


def test_a_token_is_shown_once_and_kept_nowhere(file: Path) -> None:
    told = json.loads(run(file, "--add-token", "anna", "--allow", "pub=4", "--allow", "open", "--json").stdout)
    tokens = file.parent / "tokens.toml"
    text = tokens.read_text()
    assert told["token"].startswith(PREFIX) and len(told["token"]) >= 40
    assert told["token"] not in text and told["token"][len(PREFIX) :] not in text
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
    (row,) = tomllib.loads(text)["token"]
    assert row["sha256"] == hashlib.sha256(told["token"].encode()).hexdigest()
    client = Access.load(tokens).client(f"Bearer {told['token']}")
    assert (client.name, client.role, client.unit) == ("anna", "client", Unit("user", "anna"))
    assert client.rights is not None and dict(client.rights.classes) == {"pub": 4.0, "open": None}
    for path in file.parent.iterdir():
        assert told["token"].encode() not in path.read_bytes()


def test_tokens_are_added_beside_each_other_and_each_is_another(file: Path) -> None:
    made = [run(file, "--add-token", name).stdout.strip().splitlines()[-1] for name in ("anna", "bob", "anna")]
    made.append(run(file, "--add-token", "op", "--operator").stdout.strip().splitlines()[-1])
    access = Access.load(file.parent / "tokens.toml")
    assert [access.client(f"Bearer {each}").name for each in made] == ["anna", "bob", "anna", "op"]
    assert [each.role for each in access.clients] == ["client"] * 3 + ["operator"] and len(set(made)) == 4
    assert access.client(f"Bearer {made[0]}").rights is None


NO_NAMES = ["Anna", "", "a b", "ä", "a" * 65, 'a"\nrole = "operator', 'a"\n[[token]]\nx = "', "a\\", "a'"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_name_that_is_none_gets_no_token_and_writes_nothing(file: Path, name: str) -> None:
    run(file, "--add-token", "anna")
    before = (file.parent / "tokens.toml").read_bytes()
    with pytest.raises(ConfigError, match="TOKENS"):
        add_token(file.parent / "tokens.toml", name)
    assert (file.parent / "tokens.toml").read_bytes() == before


def test_a_name_or_a_class_cannot_write_an_entry_of_its_own(tmp_path: Path) -> None:
    """A name may come from somebody who wants more than a client may."""
    forged = hashlib.sha256(b"mine").hexdigest()
    entry = f'[[token]]\nsha256 = "{forged}"\nclient = "op"\nrole = "operator"\n'
    for name in (f'a"\nrole = "client"\nunit = "user"\n{entry}[[token]]\nsha256 = "{"0" * 64}"\nclient = "b',
                 f'a"\n{entry}#'):  # fmt: skip
        with pytest.raises(ConfigError):
            add_token(tmp_path / "tokens.toml", name)
    with pytest.raises(Exception):  # noqa: B017 - refused as rights, or as an entry
        add_token(tmp_path / "tokens.toml", "anna", rights=Rights({f'pub" = 1\n{entry}#': 1.0}))
    assert not (tmp_path / "tokens.toml").exists() or forged not in (tmp_path / "tokens.toml").read_text()


GOOD = f'[[token]]\nsha256 = "{"0" * 64}"\nclient = "a"\n'
BROKEN = {
    "twice": GOOD + GOOD, "role": GOOD + 'role = "root"\n', "key": GOOD + "admin = true\n", "toml": "[[token",
    "digest": GOOD.replace("0" * 64, "abc"), "name": GOOD.replace('"a"', '"A B"'), "unit": GOOD + 'unit = "session"\n',
    "rights": GOOD + "[token.rights]\nclasses = 5\n", "plain": '[[token]]\ntoken = "dpt_x"\nclient = "a"\n',
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_of_tokens_lets_nobody_in(tmp_path: Path, how: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(BROKEN[how])
    with pytest.raises(ConfigError, match="TOKENS"):
        Access.load(path)


def test_a_missing_file_of_tokens_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TOKENS.*--add-token"):
        Access.load(tmp_path / "tokens.toml")


@pytest.mark.parametrize(
    "words",
    ["--operator", "--allow pub=4", "--init --he", "--init --add-token anna", "--he --add-token anna",
     "--init --he --add-token a", "--port 70000", "--port -1"],
)  # fmt: skip
def test_options_that_do_not_go_together_are_wrong_use_and_do_nothing(file: Path, words: str) -> None:
    run(file, *words.split(), code=2)
    assert {path.name for path in file.parent.iterdir()} == {"serve.toml"}


@pytest.mark.parametrize("allow", ["pub=four", "pub=-1", "pub=nan", "=4"])
def test_rights_that_are_none_are_refused_with_what_is_expected(file: Path, allow: str) -> None:
    run(file, "--add-token", "anna", "--allow", allow, code=1)
    assert not (file.parent / "tokens.toml").exists()


def test_what_cannot_be_served_is_said_in_one_line_and_as_json(file: Path) -> None:
    run(file.parent / "other.toml", code=2)
    told = json.loads(run(file, "--json", code=1).stdout)
    assert "TOKENS" in json.dumps(told)
    run(file, "--add-token", "anna", "--allow", "pub=4")
    assert "Traceback" not in run(file, code=1).output  # there is no release
    assert "SERVE_VALUE" in run(file, "--he", code=1).output
    file.write_text(FILE + "unlimited = true\n")
    assert "budget.unlimited" in run(file, "--init", code=1).output


def test_a_server_without_a_budget_has_no_log_to_make(file: Path) -> None:
    file.write_text(FILE.partition("[classes")[0] + '[classes.plain]\nartifacts = ["base"]\n')
    assert "SERVE_KEY" in run(file, "--init", code=1).output


def test_a_token_that_is_gone_and_rights_that_were_revoked_answer_nothing_once_the_file_was_read_again(tmp_path: Path) -> None:
    with running(tmp_path) as world:
        gate: Any = world.service.gate
        rows = world.config.tokens.read_text().split("[[token]]\n")
        world.config.tokens.write_text("[[token]]\n".join(row for row in rows if 'client = "bob"' not in row))
        assert world.complete("plain", "bob").status_code == 200  # until then it holds
        changed = ServeConfig.of(table(gate={"revoked": ["ab" * 16]}), tmp_path)
        world.service.reload(changed)
        assert gate.revoked == [b"\xab" * 16]
        assert world.complete("plain", "bob").status_code == 401 and world.complete("plain").status_code == 200
        world.config.tokens.write_text("no table")
        with pytest.raises(ConfigError, match="TOKENS"):
            world.service.reload(changed)
        assert world.complete("plain").status_code == 200
