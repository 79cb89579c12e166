"""A training run under every accountant, audited here and where neither torch nor opacus can be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ledger import accountants
from ledger.accountants import ACCOUNTANTS
from ledger.audit import verify_export
from tests.worlds.trainer import Trainer
from tests.worlds.training import make_world

ROOT = Path(__file__).resolve().parents[2]

AUDIT_WITHOUT_TORCH = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "opacus"):
            raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)

sys.meta_path.insert(0, Without())
from ledger.audit import verify_export
report = verify_export(sys.argv[1], sys.argv[2:])
print(report.verdict, report.findings, [note for note in report.notes if "recorded with" in note])
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "accountant", [name if name in ("pld", "rdp") else pytest.param(name, marks=pytest.mark.slow) for name in ACCOUNTANTS]
)
def test_a_run_verifies_under_every_accountant(tmp_path, accountant):
    extra = f'accountant = "{accountant}"\n[[noise.phase]]\nfrom_step = 3\nscale = 1.5'
    world = make_world(tmp_path, per_class=3, steps=4, rate="0.3", policy_extra=extra, now=None)
    trainer = Trainer(world)
    trainer.run()
    ledger = trainer.private.recorder.ledger
    assert ledger.header.accountant.name == accountant
    if accountant == "prv":
        assert ledger.header.accountant.library == "opacus"
    trainer.private.export(world.root / "export")
    trainer.close()
    key = (world.root / "ledger.pub").read_text().split()
    report = verify_export(world.root / "export", key)
    assert (report.verdict, report.findings) == ("FULL", ())
    assert all(c.epsilon > 0 for c in report.classes)
    arguments = [sys.executable, "-c", AUDIT_WITHOUT_TORCH, str(world.root / "export"), *key]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("FULL ()"), done.stdout + done.stderr
    assert ("recorded with prv opacus" in done.stdout) == (accountant == "prv")


def test_every_accountant_has_a_figure_of_its_own():
    figures = {name: accountants.epsilon(1.0, 0.3, 4, 1e-6, name) for name in ACCOUNTANTS}
    assert len(set(figures.values())) == 4
