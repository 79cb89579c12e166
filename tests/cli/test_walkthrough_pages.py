"""Every command that README and the pages for all who take part show is run as it is printed.

Each page has a world in which its commands make sense. Commands that ask a person are typed to on a terminal; one that needs
torch is named here with the test that runs it. What the pages print is not compared; the walkthrough's is (`test_walkthrough`).
"""

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from terminals import on_terminal

from attest.corpus.signing import SigningTemplate
from attest.keys import public_bytes, save_private_key, save_public_key
from attest.registry.log import SUFFIX, RegistryMemory
from dptrain.tasks.runconfig import DataConfig, ImageModel, MachineConfig, OptimizerConfig, TextModel
from ledger.log import Ledger
from tests.ledger.tlog_witness import Witness
from tests.worlds.attested_ledgers import put_registry, registry
from tests.worlds.commands import record
from tests.worlds.ledgers import LOG_KEY, OWNER_KEY, SIGNER, START, Driver
from tests.worlds.retained_ledgers import grown
from tests.worlds.ssh_agents import needs_openssh, openssh_agent, ssh_add

ROOT = Path(__file__).resolve().parents[2]
LONG_AGO = 1_700_000_000
Hook = Callable[[], None]


def commands(page: str) -> list[str]:
    """The commands of a page's `sh` blocks, continued lines joined."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def run_page(
    shell, page: str, *, before: dict[str, Hook], instead: dict[str, Hook], words: dict[str, Callable[[], str]]
) -> None:
    """Run all commands of a page in order.

    Args:
        shell: Where.
        page: The page.
        before: What others do before the command that begins so.
        instead: What is done in place of a command that begins so.
        words: Replacements of words that differ from world to world, computed when they are met.
    """
    hooks = {**before, **instead}
    for line in commands(page):
        for start in [start for start in hooks if line.startswith(start)]:
            hooks.pop(start)()
        if any(line.startswith(start) for start in instead):
            continue
        told = shlex.split(line, comments=True)
        for word in words:
            told = [words[word]() if item == word else item for item in told]
        if told[0] == "dptrain":
            shell.run(*told[1:])
        else:
            subprocess.run(told, check=True, cwd=shell.directory)
    assert not hooks, f"{page} has no command that begins with {', '.join(hooks)} any more"


# Auditors --------------------------------------------------------------------------------------------------------------


def auditors_key(shell, name: str) -> str:
    return shell.run("ledger", "auditor-key", f"{name}.pub", "--name", f"auditor.example/{name}").stdout.strip()


def fork(directory: Path, **policy) -> None:
    """Another history of the same ledger, of the same size, in `fork/`."""
    (directory / "fork").mkdir()
    grown(directory / "fork" / "ledger.db", start=START + 1, attested=True, **policy).ledger.close()
    save_private_key(directory / "fork" / "ledger.key", LOG_KEY)


def grow(directory: Path) -> None:
    """One more epoch, by the run itself."""
    with Ledger.open(directory / "ledger.db", SIGNER) as ledger:
        driver = Driver(ledger, now=ledger.state.last_time, streams=500)
        ledger.resume(ledger.state.position, ledger.pin(), now=driver.tick())
        driver.steps(1)
        driver.epoch()


def test_the_page_for_auditors(shell):
    here = shell.directory
    witness = Witness("witness.example/w1", {SIGNER.name: SIGNER.verifier.public_key})
    save_private_key(here / "ledger.key", LOG_KEY)
    shell.write("ledger.pub", f"{SIGNER.vkey}\n")
    save_public_key(here / "owner.pub", public_bytes(OWNER_KEY), "owner")

    def cosign(export: str, who: str, note: str, *options: str, code: int = 0) -> None:
        name = ("--name", f"auditor.example/{who}", "--log-key", "ledger.pub")
        shell.run("ledger", "cosign", export, note, "--key", f"{who}.key", *name, *options, code=code)

    def begin() -> None:
        shell.run("attest", "keygen", "ben")
        vkeys = [auditors_key(shell, name) for name in ("anna", "ben")]
        shell.write("auditors.pub", "".join(f"{vkey}\n" for vkey in vkeys))
        policy = {"auditors": tuple(vkeys), "auditor_quorum": 2, "witnesses": (witness.vkey,), "witness_quorum": 1}
        grown(here / "ledger.db", attested=True, **policy).ledger.close()
        fork(here, **policy)
        RegistryMemory(here / f"ledger.db{SUFFIX}", "the ledger").keep(registry(), put_registry(here))
        shell.run("ledger", "export", "ledger.db", "export")
        cosign("export", "ben", "ben.note", "--first")

    def witnessed() -> None:
        shell.run("ledger", "witness-request", "export", "first.body")
        assert witness.answer(Path("first.body").read_bytes())[0] == 200

    def posted() -> None:
        Path("w1.answer").write_bytes(witness.curl(Path("w1.body").read_bytes()))

    def show_a_fork() -> None:
        shell.run("ledger", "export", "fork/ledger.db", "forked")
        cosign("forked", "anna", "forked.note", code=1)

    run_page(
        shell,
        "docs/auditors.md",
        before={
            "dptrain ledger cosign export anna.note": begin,
            "dptrain ledger verify-proof anna.cosigned": show_a_fork,
            "dptrain ledger witness-request": witnessed,
            "dptrain ledger retain ledger.db": lambda: shell.run("ledger", "export", "ledger.db", "witnessed"),
            "dptrain ledger merge ledger.db anna-2": lambda: cosign("export-2", "ben", "ben-2.note", "--summary"),
            "dptrain ledger retain ledger.db --prune": lambda: grow(here),
        },
        # Needs contributors who signed: `test_withdrawals_are_held_against_what_was_signed` in test_cli_ledger.py.
        instead={"dptrain ledger verify export --key ledger.pub --withdrawals": lambda: None, "curl -i": posted},
        words={
            "120": lambda: str(witness.latest[SIGNER.name][0]),
            "anna.cosigned/0d1f.evidence": lambda: str(next(Path("anna.cosigned").glob("*.evidence"))),
            "5c832fa4b55e121d8439746d0caced9ed70a64c6abf22a21c48bf019b54206cb": lambda: one_who_stays(here).hex(),
        },
    )
    shell.run("ledger", "export", "ledger.db", "export-3")
    told = shell.json("ledger", "verify", "export-3", "--key", "ledger.pub")
    assert told["verdict"] == "SUMMARISED" and "PRUNED" in told["qualifiers"]
    assert witness.name in Path("witnessed/checkpoint").read_text(), "what the witness answered is in later exports"


# Contributors ----------------------------------------------------------------------------------------------------------


def test_the_page_for_contributors(shell, corpus):
    corpus()
    record(shell)
    shell.run("ledger", "export", "ledger.db", "export")
    shutil.copy("corpus/notes.jsonl.attest", "letters.attest")
    (shell.directory / "withdrawals").mkdir()
    run_page(shell, "docs/contributors.md", before={}, instead={}, words={})


def one_who_stays(directory: Path) -> bytes:
    with Ledger.open(directory / "ledger.db", read_only=True) as log:
        return next(iter(log.state.contributions))


# Operators ---------------------------------------------------------------------------------------------------------------


def test_the_page_for_operators(shell):
    here = shell.directory
    grown(here / "ledger.db", start=LONG_AGO, registry_root=registry().root()).ledger.close()
    put_registry(here)
    save_private_key(here / "ledger.key", LOG_KEY)
    shell.write("ledger.pub", f"{SIGNER.vkey}\n")
    save_public_key(here / "owner.pub", public_bytes(OWNER_KEY), "owner")
    shell.write("model/model.bin", "weights")

    def run_ahead() -> None:
        with Ledger.open(here / "ledger.db", SIGNER) as log:
            log.withdraw(bytes(32), "contributor", bytes(32), now=int(time.time()) + 250 * 86400)

    run_page(
        shell,
        "docs/operating.md",
        before={"dptrain ledger set-clock": run_ahead},
        instead={"dptrain train run.toml": lambda: None},  # tests/attacks/test_attacks_on_training.py says it in Python
        words={},
    )
    assert shell.json("ledger", "fsck", "backup.db")["verdict"] == "OK"
    assert len(shell.json("ledger", "show", "ledger.db")["clock_sets"]) == 1


def test_the_page_for_operators_knows_every_key_of_a_run_file():
    text = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    parts = (TextModel, ImageModel, DataConfig, OptimizerConfig, MachineConfig)
    assert [field.name for part in parts for field in fields(part) if f"`{field.name}`" not in text] == []


# Contributors ------------------------------------------------------------------------------------------------------------


def test_the_page_on_what_became_of_a_content(shell, corpus):
    """Two runs over six contributions, the scan of the page among them."""
    corpus()
    shell.write("corpus/scan.json", '{"text": "a scan"}')
    policy = ("--policy", "policy.cose", "--owner-key", "owner.pub")
    shell.run("attest", "sign", "corpus/scan.json", "--key", "alice.key", "--class", "sensitive", *policy)
    for run, export in (("ledger", "export"), ("second", "export-2")):
        record(shell, ledger=f"{run}.db", run=run)
        shell.run("ledger", "export", f"{run}.db", export)
    for name in ("scan.json", "scan.json.attest"):
        shutil.copy(f"corpus/{name}", name)
    shown = shell.json("attest", "show", "scan.json.attest", "--record", "1")
    words = {
        "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a": lambda: shown["nonce"],
        "5c832fa4b55e121d8439746d0caced9ed70a64c6abf22a21c48bf019b54206cb": lambda: shown["descriptor_hash"],
    }
    run_page(shell, "docs/tracing.md", before={}, instead={}, words=words)


def test_the_keys_of_a_trace_in_json_are_those_on_its_page(shell, corpus):
    page = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
    corpus()
    record(shell)
    shell.run("ledger", "export", "ledger.db", "export")
    shell.run("attest", "anchor", "corpus/notes.jsonl", "--record", "1", "--key", "alice.key", "--out", "one.anchor")
    asked = ("ledger", "trace", "one.anchor", "export", "--key", "ledger.pub", "--pub", "alice.pub")
    table = page.split("### As JSON", 1)[1].split("\n## ", 1)[0]
    found = shell.json(*asked)
    (run,) = found["runs"]
    parts = (found, found["anchor"], run, run["found"], run["found"]["windows"][0], found["composed"])
    assert [key for part in parts for key in part if not re.search(rf"`{key}(\[\])?`", table)] == []


# Planning, and the commands of README ------------------------------------------------------------------------------------


@pytest.fixture
def clinic(shell) -> None:
    """A corpus of six notes under the policy that `policy init` writes, signed and admitted."""
    shell.run("attest", "keygen", "owner")
    shell.run("attest", "keygen", "dora")
    shell.run("policy", "init", "policy.toml", "--corpus", "clinic-notes-2026")
    shell.run("registry", "init", "registry.cbor")
    shell.run("registry", "add", "registry.cbor", "--pub", "dora.pub", "--class", "sensitive")
    shell.run("policy", "sign", "policy.toml")
    shell.write("notes.jsonl", "".join(f'{{"text": "note {index}"}}\n' for index in range(6)))
    (shell.directory / "corpus").mkdir()
    shutil.copy("notes.jsonl", "corpus")
    shell.run("attest", "sign", "corpus/notes.jsonl", "--key", "dora.key", "--class", "sensitive", "--policy", "policy.cose")


NEEDS_TORCH = "dptrain plan policy.cose corpus --measure"
"""Run by `test_cli_plan_measure`."""


@pytest.mark.slow
def test_the_page_for_planners(shell, clinic):
    (shell.directory / "policy.toml").unlink()
    run_page(shell, "docs/planning.md", before={}, instead={}, words={})
    assert (shell.directory / "epsilon.html").read_text().startswith("<!DOCTYPE html>")


def test_the_commands_of_readme(shell, clinic):
    def ledger_in(folder: Path) -> None:
        grown(folder / "ledger.db", start=LONG_AGO).ledger.close()
        save_private_key(folder / "ledger.key", LOG_KEY)
        (folder / "ledger.pub").write_text(f"{SIGNER.vkey}\n")

    def own_data() -> None:
        shell.write("data.jsonl", "".join(f'{{"text": "note {n}", "label": "{n % 2}"}}\n' for n in range(20)))

    def train_alone() -> None:
        run = shell.directory / "run"
        for name in ("ledger.key", "registry.cbor", "registry.names"):
            (run / name).unlink()
        ledger_in(run)
        (run / "keys" / "owner.pub").unlink()
        save_public_key(run / "keys" / "owner.pub", public_bytes(OWNER_KEY), "owner")
        shell.run("ledger", "export", "run/ledger.db", "run/export")

    def train() -> None:
        ledger_in(shell.directory)
        (shell.directory / "owner.pub").unlink()
        save_public_key(shell.directory / "owner.pub", public_bytes(OWNER_KEY), "owner")
        shell.run("ledger", "export", "ledger.db", "export")

    made = dict.fromkeys(("make demo", "make test", "pip install", NEEDS_TORCH), lambda: None)
    made |= {"python run/train.py": train_alone}
    hooks = {"dptrain quickstart": own_data, "dptrain ledger verify export/": train}
    run_page(shell, "README.md", before=hooks, instead=made, words={})


# Keys ------------------------------------------------------------------------------------------------------------------


@needs_openssh
@pytest.mark.slow
def test_the_page_for_keepers_of_keys(shell, clinic, monkeypatch):
    again = ("attest", "keygen", "alice", "--format", "openssh", "--passphrase")
    answers = [("new key:", "correct horse"), ("Once more:", "correct horse")]

    def typed(*arguments: str) -> Hook:
        def type_it() -> None:
            code, shown = on_terminal(shell.directory, arguments, answers)
            assert code == 0, shown

        return type_it

    def begin_anew() -> None:
        for path in shell.directory.glob("alice.*"):
            path.unlink()
        typed(*again)()

    with openssh_agent() as socket:

        def load() -> None:
            shell.write("secret", "correct horse\n")
            shutil.copy("alice.key", "plain.key")
            subprocess.run(["ssh-keygen", "-q", "-p", "-P", "correct horse", "-N", "", "-f", "plain.key"], check=True)
            ssh_add(socket, "plain.key")
            monkeypatch.setenv("SSH_AUTH_SOCK", socket)

        def made_elsewhere() -> None:
            (shell.directory / ".ssh").mkdir()
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ".ssh/id_ed25519"], check=True)
            for path in shell.directory.glob("alice.*"):
                path.unlink()

        run_page(
            shell,
            "docs/keys.md",
            before={"dptrain attest keygen alice --from ~/": made_elsewhere},
            instead={
                "dptrain attest keygen bob --passphrase": typed("attest", "keygen", "bob", "--passphrase"),
                "dptrain attest keygen alice --from alice.key": typed(*again, "--from", "alice.key", "--dir", "agent"),
                "dptrain attest keygen alice --format openssh": begin_anew,
                "eval $(ssh-agent) && ssh-add alice.key": load,
            },
            words={"~/.ssh/id_ed25519.pub": lambda: ".ssh/id_ed25519.pub"},
        )


def test_the_python_that_signs_with_openssl(shell, clinic):
    page = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    shell.run("attest", "keygen", "alice")
    now = int(time.time())
    bounds = {"clip_norm_micro": 500_000, "noise_multiplier_micro": 1_200_000}
    said = {"contributor": "alice", "data_class": "text", "admissibility_class": "sensitive", "corpus": "clinic-notes-2026"}
    template = SigningTemplate(**said, **bounds, not_before=now, not_after=now + 86400)
    names: dict = {"template": template}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/keys.md", "exec"), names)
    assert shell.json("attest", "verify", "notes.jsonl", "--pub", "alice.pub")["verified"] == 6
