"""Attacks A1 to A20 once more through `dptrain gate`: the command refuses with the code that the library gives.

Unless a test says otherwise, an outcome is asked of `decide` and of `run_gate`, and both must say the same (`Scene.code`).
"""

import json

import pytest

from attest.keys import ed25519
from tests.attacks.attestation.test_envelopes import ALGORITHMS, LABELS, NONCANONICAL
from tests.attacks.attestation.test_numbers_and_sizes import BOUNDS, LARGE, NANS, ON_THE_WIRE, with_raw
from tests.attacks.attestation.test_signed_for_something_else import IN_ANOTHERS_NAME, TYPES
from tests.attacks.attestation.test_validity_and_clocks import VALIDITY
from tests.attacks.attestation.test_who_and_how_often import CONFUSABLES
from tests.attacks.scene import (
    attested,
    descriptor,
    sealed,
    signed,
)
from tests.worlds.commands import run_command
from tests.worlds.gate import (
    CONTENT,
    MALLORY,
    NOW,
    OTHER_CORPUS,
    write_signed_files,
)

L = ed25519.L


# --- through the command ----------------------------------------------------------

THROUGH_THE_COMMAND = {
    "A1 weak key": (lambda: signed(key=MALLORY, header={4: bytes(8)}), "SIG_BAD"),
    "A2 malleated": (
        lambda: attested(
            descriptor(), signed().sign1[:-32] + (int.from_bytes(signed().sign1[-32:], "little") + L).to_bytes(32, "little")
        ),
        "SIG_BAD",
    ),
    **{f"A4 {name}": case for name, case in IN_ANOTHERS_NAME.items()},
    "A6 another corpus": (lambda: signed({11: OTHER_CORPUS}), "AUDIENCE"),
    **{f"A7 {typ or 'empty'}": (lambda typ=typ: signed(header={16: typ}), "HEADER") for typ in TYPES},
    **{f"A8 {name}": (lambda name=name: signed(header={1: ALGORITHMS[name]}), "HEADER") for name in ALGORITHMS},
    **{f"A9 {name}": (lambda name=name: signed(header=LABELS[name]), "HEADER") for name in LABELS},
    **{
        f"A10 {name}": (lambda name=name: sealed(descriptor(), NONCANONICAL[name]), "CBOR_NONCANONICAL")
        for name in NONCANONICAL
    },
    "A14 downgrade": (lambda: signed({4: "open"}), "CLASS_NOT_GRANTED"),
    **{f"A15 {name}": (lambda name=name: signed({4: CONFUSABLES[name]}), "RANGE") for name in CONFUSABLES},
    **{
        f"A16 {name}": (lambda name=name: signed(BOUNDS[name][0]), BOUNDS[name][1])
        for name in BOUNDS
        if BOUNDS[name][1] != "ADMITTED"
    },
    **{f"A17 {text}": (lambda text=text: signed(payload=with_raw(5, bytes.fromhex(text))), "RANGE") for text in NANS},
    **{
        f"A18 {name}": (
            lambda name=name: signed(payload=with_raw(6, bytes.fromhex(ON_THE_WIRE[name][0]))),
            ON_THE_WIRE[name][1],
        )
        for name in ON_THE_WIRE
    },
    **{
        f"A19 {name}": (lambda name=name: signed(payload=LARGE[name][0]), LARGE[name][1])
        for name in LARGE
        if len(LARGE[name][0]) <= 16385
    },
    **{
        f"A20 {name}": (lambda name=name: signed(VALIDITY[name][0]), VALIDITY[name][2])
        for name in VALIDITY
        if VALIDITY[name][1] == NOW and VALIDITY[name][2] != "ADMITTED"
    },
}


@pytest.fixture(scope="module")
def judged_by_the_command(tmp_path_factory):
    """Every attack in a file of its own, and `dptrain gate --json` over all of them: codes by name."""
    root = tmp_path_factory.mktemp("command")
    (root / "corpus").mkdir()
    for index, (make, _) in enumerate(THROUGH_THE_COMMAND.values()):
        (root / "corpus" / f"{index}.txt").write_bytes(CONTENT)
        (root / "corpus" / f"{index}.txt.attest").write_bytes(make().to_cbor())
    (root / "corpus" / "right.txt").write_bytes(b"right")
    (root / "corpus" / "right.txt.attest").write_bytes(signed(content=b"right").to_cbor())
    write_signed_files(root)
    result = run_command(["gate", str(root / "policy.cose"), str(root / "corpus"), "--now", str(NOW), "--json"])
    assert result.exit_code == 1, result.output
    report = json.loads(result.stdout)
    assert report["admitted"] == {"sensitive": 1}
    found = {entry["source"]: entry["code"] for entry in report["refusals"]}
    return {name: found[f"{index}.txt"] for index, name in enumerate(THROUGH_THE_COMMAND)}


@pytest.mark.parametrize("name", THROUGH_THE_COMMAND)
def test_the_command_refuses_with_the_same_code(judged_by_the_command, name):
    assert judged_by_the_command[name] == THROUGH_THE_COMMAND[name][1]


def test_the_command_refuses_one_good_attestation_under_each_wrong_circumstance(tmp_path, monkeypatch):
    """A5, A6, A11, A13 and A20 as a person meets them: files changed, copied, repeated, late."""
    write_signed_files(tmp_path, alice=2)
    corpus = tmp_path / "corpus"
    corpus.mkdir()

    def codes(*options):
        result = run_command(["gate", str(tmp_path / "policy.cose"), str(corpus), "--json", *(options or ("--now", str(NOW)))])
        report = json.loads(result.stdout)
        assert result.exit_code == (1 if report["refusals"] else 0)
        return {**{name: "ADMITTED" for name in report["admitted"]}, **{e["source"]: e["code"] for e in report["refusals"]}}

    def put(name, content, attestation):
        (corpus / name).write_bytes(content)
        (corpus / f"{name}.attest").write_bytes(attestation.to_cbor())

    put("1.txt", b"1", signed(content=b"1"))
    assert codes() == {"sensitive": "ADMITTED"}
    (corpus / "1.txt").write_bytes(b"one")
    assert codes() == {"1.txt": "CONTENT_MISMATCH"}
    put("1.txt", b"1", signed(content=b"1"))
    put("2.txt", b"1", signed(content=b"1"))
    put("3.txt", b"1", signed(content=b"1", nonce=bytes(16)))
    put("4.txt", b"4", signed(content=b"4"))
    put("5.txt", b"5", signed(content=b"5"))
    assert codes() == {
        "sensitive": "ADMITTED", "2.txt": "REPLAYED", "3.txt": "DUPLICATE_CONTENT", "5.txt": "CONTRIBUTOR_CAP"
    }  # fmt: skip
    assert set(codes("--now", str(NOW + 1000)).values()) == {"EXPIRED"}
    assert set(codes("--now", str(NOW - 1001)).values()) == {"NOT_YET_VALID"}


@pytest.mark.parametrize("name", ["\x1b[31mred", "\x1b]0;title\x07", "two\nlines", "\u202egnp", "\udcff", "\x9b31m", "[bold]"])
def test_file_names_do_not_reach_the_terminal_unescaped(tmp_path, name):
    write_signed_files(tmp_path)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / name).write_bytes(b"content")
    (corpus / f"{name}.attest").write_bytes(signed().to_cbor())
    result = run_command(["gate", str(tmp_path / "policy.cose"), str(corpus), "--now", str(NOW)])
    assert result.exit_code == 1 and "CONTENT_MISMATCH" in result.output
    shown = result.output.replace("\n", "")
    assert shown.isprintable() and (name in shown) is name.isprintable()
