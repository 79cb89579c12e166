"""`dptrain gate --shard` and `--merge`: shards that processes judge, and the page that says how."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attest import cbor
from attest.corpus import open_corpus
from tests.attacks.test_cddl import valid

PAGE = Path(__file__).parents[2] / "docs" / "large.md"


@pytest.fixture
def shards(shell, corpus):
    """A corpus of two signed files with a repetition, a key for shards, and a folder for what they say."""
    corpus()
    shell.run("attest", "keygen", "shards")
    (shell.directory / "verdicts").mkdir()
    shell.write("corpus/other.jsonl", "".join(f'{{"text": "note {index}"}}\n' for index in range(3, 9)))
    signing = ("--key", "alice.key", "--class", "sensitive", "--policy", "policy.cose", "--owner-key", "owner.pub")
    shell.run("attest", "sign", "corpus/other.jsonl", *signing)
    return shell


def judge(shell, number, of, *more, now="+0d", code=0):
    options = ("--shard", f"{number}/{of}", "--verdicts", f"verdicts/{number}", "--verdict-key", "shards.key", "--now", now)
    return shell.json("gate", "policy.cose", "corpus", *options, *more, code=code)


MERGE = ("gate", "policy.cose", "corpus", "--merge", "verdicts", "--verdict-key", "shards.key")


def test_shards_merge_into_what_one_gate_says(shards):
    now = str(int(time.time()))
    found = [judge(shards, number, 3, now=now) for number in (1, 2, 3)]
    assert [one["shard"]["number"] for one in found] == [1, 2, 3] and sum(one["shard"]["attestations"] for one in found) == 11
    merged = shards.json(*MERGE, code=1)
    whole = shards.json("gate", "policy.cose", "corpus", "--now", now, code=1)
    assert merged.pop("merged") == {"shards": 3, "spared": 11, "checked": 0}
    assert merged == whole and whole["refused"] == {"DUPLICATE_CONTENT": 2} and whole["admitted"] == {"sensitive": 9}


def test_a_merge_for_a_ledger_keeps_the_reading_of_its_run(shards):
    now = str(int(time.time()))
    for number in (1, 2):
        judge(shards, number, 2, now=now)
    kept = shards.json(*MERGE, "--for", "ledger.db", code=1)["kept_reading"]
    assert kept["spared"] == 0 and kept["told"] is None
    again = shards.json("gate", "policy.cose", "corpus", "--for", "ledger.db", code=1)["kept_reading"]
    assert again["spared"] == 11 and again["told"] is None
    verdicts, reading = ((shards.directory / name).read_bytes() for name in ("verdicts/1", "ledger.db.reading"))
    for rule, data, size, count in (("verdicts", verdicts, 17, 6), ("kept-reading", reading, 16, 11)):
        head, at = cbor.decode_prefix(data, 0)
        assert len(data) == at + size * count + 32 and valid(rule, data[:at]) and not valid(rule, cbor.encode(head[:-1]))


def test_people_are_told_of_shard_and_merge(shards):
    options = ("--shard", "1/1", "--verdicts", "verdicts/1", "--verdict-key", "shards.key", "--now", "+0d")
    told = shards.run("gate", "policy.cose", "corpus", *options).output
    assert "this is shard 1/1 alone; its verdicts, for gate --merge, are in verdicts/1" in told
    merged = " ".join(shards.run(*MERGE, code=1).output.split())
    assert "11 signatures had been verified in 1 shard, as holders of the verdict key say" in merged


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--shard", "1/2"), "--verdicts FILE go together"),
        (("--verdicts", "verdicts/1"), "--verdicts FILE go together"),
        (("--shard", "1/2", "--verdicts", "verdicts/1", "--now", "+0d"), "give --verdict-key"),
        (("--merge", "verdicts"), "give --verdict-key"),
        (("--verdict-key", "shards.key"), "--verdict-key is for"),
        (("--shard", "1/2", "--verdicts", "verdicts/1", "--verdict-key", "shards.key"), "the same --now"),
        (("--shard", "1/2", "--verdicts", "x/1", "--verdict-key", "shards.key", "--now", "+0d"), "there is no folder x"),
        (("--shard", "1/2", "--verdicts", "1", "--merge", "verdicts", "--verdict-key", "shards.key"), "give one of them"),
        (
            ("--shard", "1/2", "--verdicts", "1", "--verdict-key", "shards.key", "--now", "+0d", "--for", "new.db"),
            "judged without a ledger",
        ),
    ],
)
def test_options_that_do_not_go_together_are_wrong_use(shards, options, told):
    answer = shards.json("gate", "policy.cose", "corpus", *options, code=2)
    assert told in answer["error"]["sentence"]


def test_what_cannot_be_merged_is_refused_with_its_code(shards):
    assert shards.json(*MERGE, code=1)["error"]["code"] == "MISSING"
    judge(shards, 1, 2)
    assert shards.json(*MERGE, code=1)["error"]["code"] == "MISSING"
    judge(shards, 2, 2, now="2026-01-01")
    assert shards.json(*MERGE, code=1)["error"]["code"] == "TIME"
    answer = judge(shards, 3, 2, code=1)
    assert answer["error"]["code"] == "SHARD" and "no shard 3 of 2" in answer["error"]["sentence"]


def test_no_key_of_a_contributor_makes_verdicts(shards):
    made = ("--shard", "1/1", "--verdicts", "verdicts/1", "--verdict-key", "alice.key", "--now", "+0d")
    answer = shards.json("gate", "policy.cose", "corpus", *made, code=1)
    assert answer["error"]["code"] == "KEY" and "a contributor's" in answer["error"]["sentence"]


def test_verdicts_of_an_older_time_are_refused_by_a_merge_that_names_its_time(shards):
    """A whole set of files that was put back says what was admitted then; without --now the report is of that time."""
    then = int(time.time()) - 60
    for number in (1, 2):
        judge(shards, number, 2, now=str(then))
    assert shards.json(*MERGE, "--now", str(then + 60), code=1)["error"]["code"] == "TIME"
    assert shards.json(*MERGE, code=1)["now"] == then


def blocks(language):
    """The programs of the page, in order."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def environment():
    """One in which `dptrain` is the command of this interpreter."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_processes_of_the_page_judge_and_their_verdicts_merge(shards):
    one, plain = blocks("python")[:2]
    shards.write("shards.py", one)
    shards.write("run.py", plain)
    subprocess.run([sys.executable, "run.py"], cwd=shards.directory, env=environment(), check=True, timeout=300)
    assert len(list((shards.directory / "verdicts").iterdir())) == 4
    assert shards.json(*MERGE, code=1)["merged"] == {"shards": 4, "spared": 11, "checked": 0}


def test_the_commands_of_the_page_sign_and_judge(shell, corpus):
    """Files that processes of their own signed are one corpus; the shards of it are judged side by side."""
    corpus()
    (shell.directory / "corpus/notes.jsonl.attest").unlink()
    for name in "abc":
        shell.write(f"corpus/{name}.jsonl", "".join(f'{{"text": "{name} {index}"}}\n' for index in range(4)))
    sign, judged = (block.replace("2026-01-01", "-1d") for block in blocks("sh"))
    done = subprocess.run(
        ["bash", "-ec", sign + judged.replace("--for ledger.db", "--for ledger.db --json > answer.json")],
        cwd=shell.directory, env=environment(), check=False, timeout=600, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    answer = json.loads((shell.directory / "answer.json").read_text())
    assert answer["admitted"] == {"sensitive": 17} and answer["merged"] == {"shards": 4, "spared": 17, "checked": 0}
    contributions = list(open_corpus(shell.directory / "corpus"))
    assert len(contributions) == 17 and len({one.attestation.opened().salts for one in contributions}) == 4


@pytest.mark.parametrize("program", range(1, 5))
def test_every_example_has_ten_lines_at_most(program):
    assert len(blocks("python")[program].splitlines()) <= 10
