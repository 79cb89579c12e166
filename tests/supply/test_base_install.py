"""The base install has what contributors and auditors need, and what it has not is refused with the extra that brings it."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from attest.policy import MechanismRule
from attest.schema.words import NOT_INSTALLED
from ledger.log import Ledger
from tests.supply import base_install
from tests.worlds.ledgers import SIGNER, START, Driver, header_spec, signed_policy

LARGE = {"torch", "scipy", "sqlalchemy", "dp_accounting", "cbor2", "mpmath", "matplotlib", "psycopg", "opacus", "pandas"}
"""Names packages that tests have and the base install has not."""

RULES = {
    "pld": {"accountant": "pld"},
    "rdp": {"accountant": "rdp"},
    "moments": {"accountant": "moments"},
    "prv": {"accountant": "prv"},
    "discrete gaussian": {"mechanism": MechanismRule("discrete_gaussian"), "exactness": "certified", "accountant": "rdp"},
    "skellam": {"mechanism": MechanismRule("skellam"), "exactness": "certified", "accountant": "rdp"},
    "laplace": {"mechanism": MechanismRule("laplace"), "exactness": "certified", "delta": Fraction(1, 10**5)},
}


def a_run(base: Path, case: str) -> tuple[Path, Path]:
    """Returns the export of a run under these rules, and the key of its ledger."""
    with Ledger.create(base / "ledger.db", header_spec(signed_policy(**RULES[case])), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        export = ledger.export(base / "export")
    key = base / "ledger.pub"
    key.write_text(SIGNER.vkey + "\n", encoding="utf-8")
    return export, key


def test_nothing_large_is_in_the_base_install() -> None:
    inside, outside = base_install.modules(inside=True), base_install.modules(inside=False)
    assert "pydantic" not in base_install.closure()
    assert inside.isdisjoint(LARGE) and {"numpy", "cryptography", "typer", "jinja2"} <= inside
    assert {"torch", "scipy", "sqlalchemy", "dp_accounting", "cbor2"} <= outside
    blocked = base_install.run("import scipy")
    assert blocked.returncode == 1 and "No module named 'scipy'" in blocked.stderr


def test_every_module_that_needs_no_torch_or_database_imports_in_the_base_install() -> None:
    done = base_install.run(
        "import importlib, pkgutil\n"
        "for package in ('attest', 'ledger', 'dptrain.cli', 'dptrain.planning'):\n"
        "    found = importlib.import_module(package)\n"
        "    for module in pkgutil.walk_packages(found.__path__, package + '.'):\n"
        "        wanted = ('dptrain.planning.candidates', 'dptrain.planning.measure')\n"
        "        if 'storage.sql.' not in module.name and module.name not in wanted:\n"
        "            importlib.import_module(module.name)\n"
        "assert not {'scipy', 'sqlalchemy', 'torch'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr


def test_an_audit_by_every_accountant_of_gaussian_and_integer_noise_needs_the_base_install_alone(tmp_path: Path) -> None:
    exports = {}
    for case in RULES.keys() - {"laplace"}:
        (tmp_path / case).mkdir()
        exports[case] = str(a_run(tmp_path / case, case)[0])
    done = base_install.run(
        "from ledger.audit import verify_export\n"
        "key, *exports = sys.argv[1:]\n"
        "print(*(verify_export(export, [key]).verdict for export in exports))\n"
        "assert not {'scipy', 'sqlalchemy', 'torch', 'dp_accounting'} & set(sys.modules)\n",
        SIGNER.vkey,
        *exports.values(),
    )
    assert done.returncode == 0 and done.stdout.split() == ["TOLD"] * len(exports), done.stdout + done.stderr


def test_the_command_line_verifies_shows_and_reports_an_export_with_the_base_install(tmp_path: Path) -> None:
    export, key = a_run(tmp_path, "pld")
    page = tmp_path / "page.html"
    for words in (("verify", "--json"), ("show", "--json"), ("report", str(page))):
        done = base_install.dptrain("ledger", words[0], str(export), *words[1:], "--key", str(key))
        assert done.returncode == 0, done.stdout + done.stderr
        assert words[0] != "verify" or json.loads(done.stdout)["verdict"] == "TOLD"
    assert page.stat().st_size > 10_000


def test_laplace_noise_is_refused_with_the_extra_that_accounts_for_it_and_nothing_is_said_against_the_ledger(tmp_path) -> None:
    export, key = a_run(tmp_path, "laplace")
    audited = base_install.dptrain("ledger", "verify", str(export), "--key", str(key), "--json")
    told = json.loads(audited.stdout)
    assert (audited.returncode, told["verdict"]) == (1, "FAILED")
    (found,) = told["findings"]
    assert found["code"] == NOT_INSTALLED and "pip install 'dptrain[accounting]'" in found["sentence"]
    text = base_install.dptrain("ledger", "verify", str(export), "--key", str(key)).stdout
    assert "for or against the ledger" in " ".join(text.split())


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("account", "--noise-multiplier", "4", "--sampling-rate", "1", "--steps", "5", "--family", "laplace"), "accounting"),
        (("account", "--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "5", "--group-size", "3"), "accounting"),
        (("ledger", "show", "ledger.db"), "store"),
        (("ledger", "init", "postgresql://owner@db.example/run", "--writer", "trainer"), "postgres"),
    ],
)
def test_a_command_that_needs_an_extra_names_it(tmp_path: Path, words: tuple[str, ...], extra: str) -> None:
    if "ledger.db" in words:
        a_run(tmp_path, "pld")
    given = [str(tmp_path / word) if word == "ledger.db" else word for word in words]
    done = base_install.dptrain(*given, *(["--delta", "1e-5"] if words[0] == "account" else []))
    assert done.returncode == 1 and f"pip install 'dptrain[{extra}]'" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr


def test_without_sampling_several_draws_together_need_no_extra() -> None:
    done = base_install.run("from ledger.accountants import epsilon_group\nprint(epsilon_group(1.0, 1.0, 10, 3, 1e-5))\n")
    assert done.returncode == 0 and float(done.stdout) == pytest.approx(84.6358213752, rel=1e-9), done.stderr
