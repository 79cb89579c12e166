"""The pages "Add an accountant" and "Add a noise family" run as they stand; without the provider no figure is believed."""

import os
import re
import site
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from attest.errors import PolicyRefused
from attest.policy import MechanismRule, Policy
from attest.policy.rules import ACCOUNTANTS as NAMES
from attest.schema.words import ENTRY_POINTS, NOT_INSTALLED
from dptrain.cli.ledger.show import audit_text
from ledger import accountants
from ledger.accountants import table
from ledger.audit import VERDICTS, verify_export
from ledger.audit.findings import exit_code, word_of
from ledger.errors import AccountantError, LeafRefused
from ledger.leaves import Header
from ledger.log import Ledger
from ledger.report import write_report
from tests.worlds.ledgers import SIGNER, START, Driver, descriptor, header_spec, signed_policy

PAGES = Path(__file__).resolve().parents[1] / "docs" / "extending"
ACCOUNTANT, FAMILY, VARIANT = "example.zcdp", "example.geometric", "example.summed"


def page(name: str) -> str:
    """The Python of a page, block after block."""
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", (PAGES / name).read_text(encoding="utf-8"), re.M | re.S))


def install(name: str) -> None:
    text = page(name)
    assert text.count("register_") >= 1
    module = type(sys)(f"page_{name.removesuffix('.md')}")
    sys.modules[module.__name__] = module  # where dataclasses look for their module
    exec(compile(text, name, "exec"), module.__dict__)


def uninstall() -> None:
    for rows in (table._ACCOUNTANTS, table._COSTS, NAMES.provided, MechanismRule.PARAMETERS.provided):
        for word in (ACCOUNTANT, FAMILY, VARIANT):
            rows.pop(word, None)
    if "dptrain.noise.mechanism" in sys.modules:
        for word in (FAMILY, VARIANT):
            sys.modules["dptrain.noise.mechanism"]._MAKERS.pop(word, None)
    accountants.core.cached.cache_clear()


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    uninstall()


def a_run(base: Path) -> tuple[Path, float]:
    with Ledger.create(base / "ledger.db", header_spec(signed_policy(accountant=ACCOUNTANT)), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        return ledger.export(base / "export"), ledger.epsilon(descriptor(1))


def test_the_page_of_accountants_runs_and_its_accountant_keeps_a_ledger(tmp_path: Path) -> None:
    install("accountant.md")
    export, spent = a_run(tmp_path)
    assert spent == accountants.epsilon(1.0, 0.02, 16, 1e-6, ACCOUNTANT) > accountants.epsilon(1.0, 0.02, 16, 1e-6)
    report = verify_export(export, [SIGNER.vkey])
    assert report.verdict == "TOLD" and report.accountant == "example.zcdp (example-zcdp 1.0)"
    (note,) = (note for note in report.notes if f"accountant '{ACCOUNTANT}' is no part of dptrain" in note)
    assert "example-zcdp 1.0" in note
    assert accountants.epsilon(1.0, 0.02, 16, 1e-6, ACCOUNTANT, replace=True) >= spent


def test_an_auditor_without_the_accountant_refuses_and_names_it(tmp_path: Path) -> None:
    install("accountant.md")
    export, _ = a_run(tmp_path)
    uninstall()
    found = refusal_of(export)
    assert NOT_INSTALLED in found and f"unknown accountant '{ACCOUNTANT}': install what provides it" in found
    with pytest.raises(AccountantError, match=f"unknown accountant '{ACCOUNTANT}': install") as refused:
        accountants.epsilon(1.0, 0.02, 16, 1e-6, ACCOUNTANT)
    assert refused.value.code == NOT_INSTALLED
    with pytest.raises(AccountantError, match=f"unknown noise family '{FAMILY}': install") as refused:
        accountants.epsilon(1.0, 0.02, 16, 1e-6, family=FAMILY)
    assert refused.value.code == NOT_INSTALLED


def test_without_the_package_nothing_is_said_against_a_ledger_and_it_is_named(tmp_path: Path) -> None:
    install("accountant.md")
    export, _ = a_run(tmp_path)
    uninstall()
    report = verify_export(export, [SIGNER.vkey])
    (found,) = report.findings
    assert (report.verdict, found.code) == ("FAILED", NOT_INSTALLED)
    assert found.sentence.endswith("; the header names example-zcdp 1.0")
    said = word_of(report.verdict, [found.code])
    assert said.code == exit_code(report.verdict) == 1 and "for or against the ledger" in said.sentence
    assert word_of("FAILED", [found.code, "LEAF"]) is VERDICTS["FAILED"] is word_of("FAILED", [])
    text = " ".join(map(str, audit_text(report)))
    assert said.remedy in text and VERDICTS["FAILED"].remedy not in text
    page = write_report(export, tmp_path / "page.html", report=report).read_text()
    assert said.sentence in page and VERDICTS["FAILED"].sentence not in page


def test_a_ledger_says_which_package_it_lacks_and_not_that_its_bytes_are_wrong(tmp_path: Path) -> None:
    install("accountant.md")
    a_run(tmp_path)
    other = type(table.ACCOUNTANTS[ACCOUNTANT])
    uninstall()
    for code in (NOT_INSTALLED, table.ACCOUNTANT_VERSION):
        for signer in (SIGNER, None):
            with pytest.raises(LeafRefused) as refused:
                Ledger.open(tmp_path / "ledger.db", signer)
            assert refused.value.code == code
        if code == NOT_INSTALLED:
            newer = {"describe": lambda self: ("example-zcdp", "1.1", other().describe()[2])}
            accountants.register_accountant(type("Newer", (other,), newer)())
    assert "expected example-zcdp 1.1 conversion" in refused.value.sentence and "\\" not in refused.value.sentence
    assert refused.value.sentence.endswith("install example-zcdp 1.0, or a version of it whose `recorders` names that one")


def test_another_package_under_the_name_is_not_believed(tmp_path: Path) -> None:
    install("accountant.md")
    export, _ = a_run(tmp_path)
    other = type(table.ACCOUNTANTS[ACCOUNTANT])
    uninstall()
    accountants.register_accountant(type("Other", (other,), {"describe": lambda self: ("other-zcdp", "1.0", "cheaper")})())
    found = refusal_of(export)
    assert "ACCOUNTANT_VERSION" in found and "other-zcdp" in found


def test_a_figure_below_that_of_the_package_is_named(tmp_path: Path) -> None:
    """The writer's package gave less than the one that the auditor has, under equal names and versions."""
    install("accountant.md")
    sound = type(table.ACCOUNTANTS[ACCOUNTANT])
    uninstall()
    lesser = type("Lesser", (sound,), {"_convert": lambda self, loss, delta: 0.5 * sound._convert(self, loss, delta)})
    accountants.register_accountant(lesser())
    export, _ = a_run(tmp_path)
    uninstall()
    accountants.register_accountant(sound())
    report = verify_export(export, [SIGNER.vkey])
    assert report.verdict == "FAILED" and any(finding.code == "SPEND_EPSILON" for finding in report.findings)


def refusal_of(export: Path) -> str:
    """What an audit says of an export that it refuses: its findings, or its error."""
    try:
        report = verify_export(export, [SIGNER.vkey])
    except LeafRefused as error:
        return f"{error.code}: {error.sentence}"
    assert report.verdict == "FAILED"
    return " ".join(f"{finding.code}: {finding.sentence}" for finding in report.findings)


def test_a_policy_that_names_what_is_not_installed_is_refused_wherever_it_is_read() -> None:
    install("accountant.md")
    policy = signed_policy(accountant=ACCOUNTANT).policy
    data, text = policy.to_cbor(), policy.to_toml()
    assert Policy.from_cbor(data) == policy and f'accountant = "{ACCOUNTANT}"' in text
    uninstall()
    for read, given in ((Policy.from_cbor, data), (Policy.from_toml, text)):
        with pytest.raises(PolicyRefused, match=f"unknown accountant '{ACCOUNTANT}': install what provides it") as refused:
            read(given)
        assert refused.value.code == NOT_INSTALLED
    with pytest.raises(PolicyRefused) as refused:
        MechanismRule(FAMILY)
    assert refused.value.code == NOT_INSTALLED and FAMILY in refused.value.sentence
    with pytest.raises(PolicyRefused) as refused:
        MechanismRule("cauchy")
    assert refused.value.code == "RANGE", "without a dot it is a word of the format, or none"


def test_rows_that_would_pass_as_those_of_dptrain_are_refused() -> None:
    install("accountant.md")
    sound = type(table.ACCOUNTANTS[ACCOUNTANT])
    with pytest.raises(ValueError, match="registered already"):
        accountants.register_accountant(sound())
    uninstall()
    with pytest.raises(ValueError, match="expected its own"):
        accountants.register_accountant(type("As", (sound,), {"describe": lambda self: ("dptrain", "pld-2", "")})())
    with pytest.raises(ValueError, match=r"provider\.word"):
        accountants.register_accountant(type("Plain", (sound,), {"name": "zcdp"})())
    with pytest.raises(ValueError, match="registered already"):
        accountants.register_accountant(type("Pld", (sound,), {"name": "pld"})())
    free = {"name": "example.free", "own": ("pld",), "describe": lambda self, name: ("own", "1", "")}
    with pytest.raises(ValueError, match="expected its own"):
        accountants.register_cost(type("Free", (table.Cost,), free)())
    assert "zcdp" not in NAMES and "example.free" not in table.TABLE


def test_rows_that_lack_something_are_refused_with_what_to_add() -> None:
    install("accountant.md")
    sound = type(table.ACCOUNTANTS[ACCOUNTANT])
    uninstall()
    for method in ("sampled", "counted", "describe"):
        lacking = type("Lacking", (sound,), {method: getattr(table.Accountant, method)})
        with pytest.raises(ValueError, match=f"lacks `{method}`"):
            accountants.register_accountant(lacking())
    named = {"name": "example.lacking", "noise": "noise", "describe": lambda self, name: ("example-lacking", "1", "")}
    formula = {"epsilon": lambda self, participation, delta, accountant, *, replace=False: 1.0}
    for given, expected in (
        (named, "no accountant accounts for .*set `own` and override `epsilon`"),
        (named | {"own": ("pld",)}, "override `epsilon`"),
        (named | formula | {"own": ("pld",), "describe": table.Cost.describe}, "expected its own: override `describe`"),
        (named | formula | {"law": "gaussian", "describe": table.Cost.describe}, "expected its own: override `describe`"),
        ({"name": "example.lacking", "law": "gaussian"}, "lacks `noise`"),
    ):
        with pytest.raises(ValueError, match=expected):
            accountants.register_cost(type("Lacking", (table.Cost,), given)())
    assert "example.lacking" not in table.TABLE


def test_a_policy_says_whose_code_computes_its_figures() -> None:
    install("accountant.md")
    from dptrain.cli.advice import Case, consequences
    from dptrain.planning.plan import make_plan

    for accountant, expected in ((ACCOUNTANT, 1), ("pld", 0)):
        policy = signed_policy(accountant=accountant).policy
        found = [item for item in consequences(Case(policy, make_plan(policy, 12))) if item.code == "PROVIDED"]
        assert len(found) == expected
        assert all("example-zcdp 1.0" in item.sentence and "not amplified" in item.sentence for item in found)


def provider(folder: Path, module: str, code: str, word: str = ACCOUNTANT) -> None:
    """A package in a folder, with an entry point under a word."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{word} = {module}\n")
    (folder / f"{module}.py").write_text(code)


def test_an_installed_package_is_loaded_by_the_name_that_a_document_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider(tmp_path, "example_zcdp", page("accountant.md"))
    monkeypatch.delitem(sys.modules, "example_zcdp", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    assert accountants.epsilon(1.0, 0.02, 16, 1e-6, ACCOUNTANT) > 0
    assert "pld" in NAMES and "no_word" not in NAMES and "example.other" not in NAMES


def test_a_document_loads_nothing_that_was_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's folder, in which the reader works, names a module of its own under a word that a document says."""
    provider(tmp_path, "stranger", "import os\nos.environ['LOADED_BY_A_DOCUMENT'] = '1'\n", "stranger.word")
    monkeypatch.delenv("LOADED_BY_A_DOCUMENT", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyRefused) as refused:
        MechanismRule("stranger.word")
    assert refused.value.code == NOT_INSTALLED and "stranger" not in sys.modules
    assert "LOADED_BY_A_DOCUMENT" not in os.environ


def test_a_document_loads_no_namesake_of_what_was_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is installed, and the stranger's folder, which comes first on the path, has one of that name."""
    installed, folder = tmp_path / "site-packages", tmp_path / "folder"
    provider(installed, "namesake_dp", "raise SystemExit('the installed one')\n", "namesake.word")
    code = "import os\nos.environ['LOADED_BY_A_DOCUMENT'] = '1'\n"
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(installed)])
    monkeypatch.syspath_prepend(installed)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv("LOADED_BY_A_DOCUMENT", raising=False)
    (folder / "namesake_dp").mkdir(parents=True)  # a package, then a module, then a part of a namespace
    for place in ("namesake_dp/__init__.py", "namesake_dp.py"):
        (folder / place).write_text(code)
        with pytest.raises(PolicyRefused, match=r"namesake_dp was not installed where .*start in another folder") as refused:
            MechanismRule("namesake.word")
        assert refused.value.code == NOT_INSTALLED and "namesake_dp" not in sys.modules
        assert "LOADED_BY_A_DOCUMENT" not in os.environ
        (folder / place).unlink()
    (installed / "namesake_dp.py").unlink()
    with pytest.raises(PolicyRefused, match=r"namesake_dp was not installed where "):
        MechanismRule("namesake.word")


def test_an_editable_provider_is_loaded_from_where_its_installer_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed, checkout = tmp_path / "site-packages", tmp_path / "my checkout"
    provider(installed, "editable_zcdp", "")
    checkout.mkdir()
    (installed / "editable_zcdp.py").rename(checkout / "editable_zcdp.py")
    (checkout / "editable_zcdp.py").write_text(page("accountant.md"))
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(installed)])
    monkeypatch.syspath_prepend(checkout)
    monkeypatch.delitem(sys.modules, "editable_zcdp", raising=False)
    assert ACCOUNTANT not in NAMES
    told = f'{{"url": "{checkout.as_uri()}", "dir_info": {{"editable": true}}}}'
    (installed / "editable_zcdp-1.0.dist-info" / "direct_url.json").write_text(told)
    assert ACCOUNTANT in NAMES and accountants.epsilon(1.0, 0.02, 16, 1e-6, ACCOUNTANT) > 0


def test_a_provider_that_fails_when_it_is_loaded_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider(tmp_path, "broken", "import what_is_not_there\n", "broken.word")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    with pytest.raises(PolicyRefused, match=r"broken\.word.*what_is_not_there") as refused:
        MechanismRule("broken.word")
    assert refused.value.code == NOT_INSTALLED


def test_the_cost_of_the_page_of_families_needs_no_torch() -> None:
    cost = page("noise.md").split("from dataclasses import dataclass")[0]
    block = f"import sys; sys.modules['torch'] = None\n{cost}\nassert 'dptrain' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", block], check=True, timeout=120)


def test_the_files_of_the_page_of_families_are_a_package_that_needs_no_torch(tmp_path: Path) -> None:
    text = (PAGES / "noise.md").read_text(encoding="utf-8")
    cost, _, noise, _ = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    guard = next(block for block in re.findall(r"^```py\n(.*?)^```", text, re.M | re.S) if "find_spec" in block)
    provider(tmp_path, "example_geometric", f"{cost}\n{guard}", FAMILY)
    (tmp_path / "example_geometric_noise.py").write_text(noise)
    (pyproject,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    named = tomllib.loads(pyproject)
    assert named["project"]["entry-points"] == {ENTRY_POINTS: {FAMILY: "example_geometric"}}
    assert all((tmp_path / f"{module}.py").is_file() for module in named["tool"]["setuptools"]["py-modules"])
    for torch in (True, False) if find_spec("torch") else (False,):
        block = f"""
            import site, sys
            sys.path.append({str(tmp_path)!r})
            site.getsitepackages = lambda: [{str(tmp_path)!r}]
            if not {torch}:
                sys.modules["torch"] = None
            from attest.policy import MechanismRule
            from ledger.accountants import TABLE
            MechanismRule({FAMILY!r})
            assert {FAMILY!r} in TABLE and ("example_geometric_noise" in sys.modules) is {torch}
            if {torch}:
                from dptrain.noise import MECHANISMS
                assert {FAMILY!r} in MECHANISMS
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(block)], check=True, timeout=120)


RUNS = {
    FAMILY: ('exactness = "certified"', "geometric noise", "none", "example-geometric"),
    VARIANT: ("", "the sum of four integer Gaussian draws added", "poisson", "dptrain"),
}


@pytest.mark.one_in(99)
@pytest.mark.parametrize("family", RUNS)
def test_a_run_under_a_family_of_the_page_trains_and_is_audited_with_its_provider_alone(family: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    install("noise.md")
    from tests.worlds.trainer import Trainer
    from tests.worlds.training import make_world

    setting, noted, amplification, library = RUNS[family]
    extra = f'{setting}\n\n[noise]\nfamily = "{family}"\n'
    world = make_world(tmp_path, per_class=3, steps=4, rate="0.7", policy_extra=extra)
    trainer = Trainer(world)
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.run()
    assert any(not torch.equal(value, before[key]) for key, value in trainer.model.state_dict().items())
    header: Header = trainer.private.opened.recorder.ledger.header
    assert header.accountant.library == library and noted in header.exactness_note
    assert header.amplification == amplification
    for slot in trainer.private.prepared.pool.slots:
        spent, z = trainer.private.opened.recorder.ledger.epsilon(slot.descriptor_hash), slot.resolution.multiplier
        expected = 4 / z if family == FAMILY else accountants.epsilon(z, 0.7, 4, header.delta)
        assert spent == pytest.approx(expected, rel=1e-12)
    trainer.private.export(world.root / "export")
    trainer.close()
    keys = (world.root / "ledger.pub").read_text().split()
    report = verify_export(world.root / "export", keys)
    assert report.verdict == "FULL" and any(f"noise family '{family}' is no part of dptrain" in note for note in report.notes)
    uninstall()
    (found,) = verify_export(world.root / "export", keys).findings
    assert found.code == NOT_INSTALLED and f"noise.family '{family}'" in found.sentence
    assert ("the header names" in found.sentence) is (library not in table.OWN_LIBRARIES)


def test_the_noise_of_the_page_has_its_law() -> None:
    """2^20 draws: P[k = 0] = (1 - t) / (1 + t) with t = exp(-2^-b), and E|k| = 2 t / (1 - t^2); six standard errors.

    Of the sum of four Gaussian draws second and fourth moment, likewise."""
    pytest.importorskip("torch")
    import numpy as np

    install("noise.md")
    from dptrain.noise import Source, mechanism_of

    noise = mechanism_of(FAMILY, Source(bytes(16), 0, bytes(range(32)), bits=2))
    drawn = np.concatenate([noise.integers(1, lane, 0, 1 << 15) for lane in range(32)])
    t, n = np.exp(-0.25), len(drawn)
    zero, mean, square = (1 - t) / (1 + t), 2 * t / (1 - t * t), 2 * t / (1 - t) ** 2
    assert abs((drawn == 0).mean() - zero) < 6 * np.sqrt(zero * (1 - zero) / n)
    assert abs(np.abs(drawn).mean() - mean) < 6 * np.sqrt((square - mean**2) / n)
    assert abs(drawn.mean()) < 6 * np.sqrt(square / n)
    summed = mechanism_of(VARIANT, Source(bytes(16), 0, bytes(range(32)), bits=32))
    drawn = np.concatenate([summed.noise(1, lane, 0, 1 << 15, 1) for lane in range(32)]) * 2.0**-32
    assert abs((drawn**2).mean() - 1) < 6 * np.sqrt(2 / n) and abs((drawn**4).mean() - 3) < 6 * np.sqrt(96 / n)


def test_noise_that_nothing_accounts_for_or_that_keeps_a_state_is_refused() -> None:
    torch = pytest.importorskip("torch")
    from dptrain.errors import UnsupportedPolicy
    from dptrain.noise import Independent, Source, mechanism_of, register_mechanism
    from dptrain.noise.mechanism import initial

    with pytest.raises(ValueError, match="has no cost"):
        register_mechanism("example.nothing")(lambda source: Independent())
    with pytest.raises(ValueError, match="has a mechanism already"):
        register_mechanism("gaussian")(lambda source: Independent())
    with pytest.raises(UnsupportedPolicy) as refused:
        mechanism_of("laplace", Source(bytes(16), 0, bytes(32), bits=20, generator="device"))
    assert refused.value.code == "NOISE_FAMILY"

    class Correlated(Independent):
        def init(self, shapes):
            return {"last": [torch.zeros(shape) for shape in shapes]}

        def state_dict(self, state):
            return {f"last.{place}": value for place, value in enumerate(state["last"])}

    with pytest.raises(UnsupportedPolicy) as refused:
        initial(Correlated(), [torch.Size([3])])
    assert refused.value.code == "NOISE_STATE"
    assert initial(Independent(), [torch.Size([3])]) is None


def test_noise_that_keeps_a_state_is_refused_before_a_window_is_charged_for_it(tmp_path, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    from dptrain.errors import UnsupportedPolicy
    from dptrain.noise.lattice import LatticeGaussian
    from tests.worlds.trainer import Trainer
    from tests.worlds.training import make_world

    monkeypatch.setattr(LatticeGaussian, "state_dict", lambda self, state: {"last": torch.zeros(1)})
    trainer = Trainer(make_world(tmp_path, steps=2, rate="1", per_class=1))
    with pytest.raises(UnsupportedPolicy) as refused:
        trainer.run()
    assert refused.value.code == "NOISE_STATE"
    assert trainer.private.opened.recorder.ledger.state.charged == 0
    trainer.close()


@pytest.mark.one_in(9)
@pytest.mark.parametrize("fault", ["a fresh tensor", "a view", "nothing", "as it was", "the second tensor alone"])
def test_a_sum_that_its_mechanism_did_not_write_or_return_reaches_no_gradient(tmp_path, monkeypatch, fault: str) -> None:
    """Noise in another tensor than the one that was handed over would be lost, and the raw sum go out."""
    pytest.importorskip("torch")
    from dptrain.errors import NotPrivateUse
    from dptrain.noise.lattice import LatticeGaussian
    from tests.worlds.trainer import Trainer
    from tests.worlds.training import make_world

    release = LatticeGaussian.release

    def wrong(self, clipped_sum, state, step):
        if fault == "a view":
            return release(self, clipped_sum, state, step).view(-1)
        if fault == "as it was":
            return clipped_sum
        if fault == "the second tensor alone" and step.lane != 1:
            return release(self, clipped_sum, state, step)
        fresh = release(self, clipped_sum.clone(), state, step)
        return None if fault == "nothing" else fresh

    monkeypatch.setattr(LatticeGaussian, "release", wrong)
    trainer = Trainer(make_world(tmp_path, steps=1, rate="1", per_class=1))
    with pytest.raises(NotPrivateUse, match="add the noise in place") as refused:
        trainer.run()
    assert refused.value.code == "NOISE_LOST"
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    trainer.close()


def test_noise_that_numpy_adds_in_place_is_seen_as_written() -> None:
    torch = pytest.importorskip("torch")
    from dptrain.noise.families import integer_noise
    from dptrain.noise.keystream import KeyStream
    from dptrain.noise.lattice import LatticeGaussian

    stream = KeyStream("noise", bytes(16), 0, bytes(32))
    for noise in (LatticeGaussian(stream), integer_noise("laplace", stream, 20)):
        for size in (5, 0):
            total = torch.zeros(size, dtype=torch.float64)
            before = total._version
            assert noise.release_(total, 1.0, 1.0, step=1, lane=size) is total and total._version > before
