"""`dptrain policy`, `gate` and `plan`: the rules, who is admitted under them, and what they will cost."""

import json
import struct
from pathlib import Path

from ledger.note import Cosigner
from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import POLICY, clinic, key_of, trained

_RICH = """
retention_epochs = 2
retention_hash_epochs = 4
[noise.budgets]
embeddings = 0.5
layers = 1.0
head = 2.0
[[noise.phase]]
from_step = 1
scale = 2.0
[[noise.phase]]
from_step = 6
scale = 1.0
[floors]
clip_norm = 0.1
noise_multiplier = 0.5
[gate]
max_window_days = 365
contributor_cap = 100
max_examples = 2
[isolation]
required = true
[ledger]
auditors = ["{auditor}"]
auditor_quorum = 1
[[class]]
name = "open"
public = true
sampling_rate = 0.5
depth = { layers = [0, 1] }
max_window_days = 30
[[class]]
"""


def _later(directory: Path) -> None:
    (directory / "later.toml").write_text(POLICY.replace("[[class]]", '[noise]\nfamily = "gumbel"\n[[class]]', 1))
    (directory / "typo.toml").write_text(POLICY.replace("clip_norm", "clip_nrom", 1))


def _richer(directory: Path) -> None:
    """Writes a policy with every kind of rule that is built, and one in which contributions take turns."""
    auditor = Cosigner("auditor.example/anna", key_of("anna")).vkey
    rich = POLICY.replace("[[class]]\n", _RICH.replace("{auditor}", auditor), 1)
    (directory / "rich.toml").write_text(rich.replace("sampling_rate = 0.1", "sampling_rate = 0.1\nmax_epsilon_total = 50", 1))
    orders = POLICY.replace("[[class]]", '[sampling]\norder = "shuffled"\n[[class]]', 1)
    (directory / "orders.toml").write_text(f'disclosure = "occurrences_public"\nexactness = "certified"\n{orders}')


POLICIES = Scenario(
    "policy",
    clinic,
    [
        Case("init", "policy init mine.toml --corpus letters"),
        Case("init: the file exists", "policy init mine.toml", code=2),
        Case("init: no such directory", "policy init nowhere/policy.toml", code=1),
        Case("check", "policy check policy.toml"),
        Case(
            "check: numbers given by hand",
            "policy check policy.toml --contributions sensitive=40 --layers 6 --seconds-per-step 2",
        ),
        Case("check: over a corpus", "policy check policy.cose --corpus corpus --layers 6 --owner-key owner.pub"),
        Case("check: strict", "policy check policy.toml --strict", code=1),
        Case("check: a word that is not built", "policy check later.toml", code=1, before=_later),
        Case("check: a key that nobody knows", "policy check typo.toml", code=1),
        Case("check: a class that the policy lacks", "policy check policy.toml --contributions secret=4", code=1),
        Case("check: no number", "policy check policy.toml --contributions sensitive", code=2),
        Case("check: every kind of rule", "policy check rich.toml", before=_richer),
        Case("check: turns in an order", "policy check orders.toml"),
        Case("noise: of a family", "policy noise orders.toml --family banded_inverse --bands 4"),
        Case(
            "noise: of a family, at a target", "policy noise orders.toml --family banded_inverse --bands 4 --target-epsilon 3"
        ),
        Case("noise: more steps than a search takes", "policy noise orders.toml --family dense", code=1),
        Case("noise: a family that is not searched for", "policy noise orders.toml --family banded", code=2),
        Case("noise: nothing to write", "policy noise orders.toml --write", code=2),
        Case("noise: a word that is not known", "policy noise later.toml --best", code=1),
        Case("sign: every kind of rule", "policy sign rich.toml --key owner.key --registry registry.cbor"),
        Case("show: every kind of rule", "policy show rich.cose"),
        Case("sign: turns in an order", "policy sign orders.toml --key owner.key --registry registry.cbor"),
        Case("show: turns in an order", "policy show orders.cose"),
        Case("sign", "policy sign mine.toml --key owner.key --registry registry.cbor"),
        Case("sign: the file exists", "policy sign mine.toml --key owner.key --registry registry.cbor", code=2),
        Case("sign: a registry of another owner", "policy sign mine.toml --key alice.key --out other.cose", code=1),
        Case("show", "policy show policy.cose"),
        Case("show: what init and sign made", "policy show mine.cose --owner-key owner.pub"),
        Case("show: not signed", "policy show policy.toml", code=1),
        Case("show: another owner", "policy show policy.cose --owner-key alice.pub", code=1),
        Case("show: no such file", "policy show nowhere.cose", code=2),
    ],
)


def _stray(directory: Path) -> None:
    notes = directory / "corpus" / "notes.jsonl"
    notes.write_text(notes.read_text().replace("note 2", "note two"))
    (directory / "corpus" / "stray.txt").write_text("nobody signed this\n")


_NOTES = "corpus/notes.jsonl.attest"

GATE = Scenario(
    "gate",
    trained,
    [
        Case("everything is admitted", "gate policy.cose corpus --workers 1"),
        Case("signatures are kept for a run", "gate policy.cose corpus --for next.db --workers 1"),
        Case("kept signatures are spared", "gate policy.cose corpus --for next.db --workers 1"),
        Case("beside a ledger", "gate policy.cose corpus --ledger ledger.db --workers 1 --no-kept-reading"),
        Case(
            "the owner takes a note back",
            f"attest withdraw {_NOTES} --key owner.key --record 3",
            keep={"file": "withdrawals.0.path"},
        ),
        Case("that is entered", "ledger withdraw ledger.db {file}"),
        Case(
            "what was withdrawn is refused", "gate policy.cose corpus --ledger ledger.db --workers 1 --no-kept-reading", code=1
        ),
        Case("everything has expired", "gate policy.cose corpus --now +400d --workers 1 --limit 1", code=1),
        Case(
            "a note was changed, and a file lies about",
            "gate policy.cose corpus --workers 1 --refusals refused.jsonl",
            code=1,
            before=_stray,
        ),
        Case("to generate, which nobody signed", "gate policy.cose corpus --purpose generate --workers 1 --limit 1", code=1),
        Case("to generate, for a run", "gate policy.cose corpus --purpose generate --for next.db", code=2),
        Case("an unsigned policy", "gate policy.toml corpus", code=1),
        Case("another owner", "gate policy.cose corpus --owner-key alice.pub", code=1),
        Case("a ledger that is none", "gate policy.cose corpus --ledger nowhere.db", code=2),
        Case("no corpus", "gate policy.cose", code=2),
    ],
)


def _norms(directory: Path) -> None:
    (directory / "norms.json").write_text('{"*": 0.3}\n')


def _adapter(directory: Path) -> None:
    """Writes a pair of 4 x 2 and 2 x 3, as peft saves it: zeros, and ones."""
    names = (("q.lora_B.weight", [4, 2], [0, 32]), ("q.lora_A.weight", [2, 3], [32, 56]))
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": place} for name, shape, place in names}
    text = json.dumps(header).encode()
    (directory / "lora").mkdir()
    data = len(text).to_bytes(8, "little") + text + bytes(32) + struct.pack("<6f", *[1.0] * 6)
    (directory / "lora" / "adapter_model.safetensors").write_bytes(data)


_PLAN = "plan policy.toml --layers 4"

PLAN = Scenario(
    "plan",
    clinic,
    [
        Case("of a policy alone", _PLAN),
        Case("over a corpus", "plan policy.cose corpus --owner-key owner.pub --registry registry.cbor"),
        Case("over a corpus, for a run", "plan policy.cose corpus --for next.db --now +1d"),
        Case(
            "signal against noise",
            f"{_PLAN} --gradient-norms norms.json --contributions sensitive=50 --contributions general=3",
            before=_norms,
        ),
        Case("for an epsilon", f"{_PLAN} --target-epsilon 6 --target-epsilon sensitive=2"),
        Case("the most steps for an epsilon", f"{_PLAN} --target-epsilon sensitive=2 --solve steps"),
        Case("the largest rate for an epsilon", f"{_PLAN} --target-epsilon sensitive=2 --solve rate"),
        Case("the normalizer", f"{_PLAN} --solve normalizer --contributions sensitive=50"),
        Case("what if", f"{_PLAN} --what-if steps=40 --what-if class.sensitive.noise_multiplier=2,normalizer=8"),
        Case("drawn", f"{_PLAN} --plot plan.svg"),
        Case("ranks of a known model", f"{_PLAN} --processes 8 --model llama-8b --contributions sensitive=50"),
        Case("ranks by figures, in shards", f"{_PLAN} --processes 64 --parameters 8B --trained 42M --sharded"),
        Case("ranks of a model with adapters", f"{_PLAN} --processes 8 --model llama-8b-lora"),
        Case("noise over rank, of shapes", f"{_PLAN} --shapes 64x32x3,16x64"),
        Case("noise over rank, of an adapter", f"{_PLAN} --adapter lora", before=_adapter),
        Case("shapes that are none", f"{_PLAN} --shapes 64by32", code=1),
        Case("an adapter and shapes", f"{_PLAN} --adapter lora --shapes 64x32", code=2),
        Case("more that train than there are", f"{_PLAN} --processes 8 --parameters 10 --trained 11", code=1),
        Case("ranks of no model", f"{_PLAN} --processes 8", code=2),
        Case("every kind of rule", "plan rich.toml --layers 4", before=_richer),
        Case("turns in an order", "plan orders.toml --layers 4"),
        Case("an epsilon that no number of steps has", f"{_PLAN} --target-epsilon sensitive=0.001 --solve steps", code=1),
        Case("a class that the policy lacks", f"{_PLAN} --target-epsilon secret=2", code=1),
        Case("a corpus under an unsigned policy", "plan policy.toml corpus", code=1),
        Case("a figure that exists", f"{_PLAN} --plot plan.svg", code=2),
        Case("an epsilon that is none", f"{_PLAN} --target-epsilon much", code=2),
    ],
)
