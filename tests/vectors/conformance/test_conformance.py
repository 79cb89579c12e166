"""The conformance vectors: they are what the code gives, and the code judges each as it says."""

import json
import re
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from attest import cbor, sign1
from attest.attestation import Attestation
from attest.errors import AttestError
from attest.gate import Admission, Seen, decide
from attest.policy import verify_policy
from attest.registry.log import read_states
from attest.registry.names import Names
from ledger.errors import LedgerError
from ledger.leaves import decode_leaf, encode_leaf
from ledger.merkle import leaf_hash
from tests.vectors.conformance import budgets, documents, exports, figures, leaves, proofs, serving
from tests.vectors.conformance.honest import Pins
from tests.vectors.conformance.judged import judged
from tests.vectors.conformance.lies_of_runs import LIES
from tests.vectors.conformance.several import RUNS
from tests.vectors.conformance.text import text_of
from tests.vectors.conformance.values import read, told

HERE = Path(__file__).parent
NAMES = ("budgets", "documents", "exports", "leaves", "numbers", "proofs", "serving")


@cache
def vectors(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


def rows(name: str, kind: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in vectors(name)[kind]}


# --- the files ----------------------------------------------------------------------------------------------------------


def test_the_files_are_small_and_nothing_in_them_stands_twice():
    assert sum((HERE / f"{name}.json").stat().st_size for name in NAMES) < 3_900_000
    for name in NAMES:
        for kind, found in vectors(name).items():
            named = [row["name"] for row in found if "name" in row] if type(found) is list else []
            assert len(set(named)) == len(named), (name, kind)


def test_the_readme_tells_every_list():
    page = (HERE / "README.md").read_text()
    for name in NAMES:
        text = page.split(f"## {name}.json\n", 1)[1].split("\n## ", 1)[0]
        assert set(vectors(name)) <= set(re.findall(r"`([a-z_]+)`", text)), name


def test_every_honest_export_and_every_lie_has_its_vector():
    assert list(rows("exports", "honest")) == list(RUNS) and list(rows("exports", "lies")) == list(LIES)
    assert sum(row["verdict"] == "FAILED" for row in vectors("exports")["lies"]) == len(LIES) >= 200


def test_values_are_read_back_as_they_were_told():
    for value in (0, -1, "text", b"\x00", 1.0, 0.1, True, None, [1, [b"", 2.5]], {1: {2: b"x"}, "k": []}):
        again = read(json.loads(json.dumps(told(value))))
        assert again == value and type(again) is type(value)


# --- what the code gives ----------------------------------------------------------------------------------------------------


def test_budgets_are_those_that_the_code_writes():
    assert json.loads(json.dumps(budgets.vectors())) == vectors("budgets")
    assert {row["answer"] for row in vectors("budgets")["logs"]} == {"accepted", "refused"}


def test_rights_are_those_that_the_code_writes_and_judges_so():
    assert json.loads(json.dumps(serving.vectors())) == vectors("serving")
    assert {row["answer"] for row in vectors("serving")["rights"]} == {"accepted", "refused"}


def test_leaves_are_those_that_the_code_writes():
    assert list(leaves.valid()) == vectors("leaves")["valid"]


@pytest.mark.parametrize(
    "kind", ["stds", "effective", "multipliers", "per_sample", "turns", "strategies", "copies", "permutations", "gaussian"]
)
def test_numbers_are_those_that_the_code_computes(kind):
    assert list(getattr(figures, kind)()) == vectors("numbers")[kind]


@pytest.mark.parametrize("count", [5, pytest.param(None, marks=pytest.mark.slow)])
def test_epsilons_are_those_that_the_code_computes(count):
    for name in ("pld", "rdp", "moments"):
        for row, found in zip(vectors("numbers")[name][:count], islice(figures.epsilons(name), count), strict=True):
            assert found["epsilon"]["float"] == pytest.approx(row["epsilon"]["float"], abs=4e-7, rel=1e-9)
            assert abs(found["recorded"] - row["recorded"]) <= 1


@pytest.mark.parametrize(
    "name", ["poisson", "shuffled order", "auditors and witness", "later run", "prv of a library", "buffers, some gone"]
)
def test_honest_exports_are_those_that_the_code_writes(name):
    row, found = rows("exports", "honest")[name], json.loads(json.dumps(exports.honest(name)))
    assert without(found, "figures") == without(row, "figures")
    same_figures(row["figures"], found["figures"])


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "name", ["multiplier 50", "band widened", "a row too low", "cosigned at 2^62", "nothing carried", "who left pays nothing"]
)
def test_lies_are_those_that_the_code_tells(name):
    assert rows("exports", "lies")[name] == json.loads(json.dumps(exports.lie(name)))


def test_documents_and_proofs_are_those_that_the_code_writes():
    assert documents.world() == vectors("documents")["world"]
    signed = {"messages": documents.messages, "withdrawals": documents.withdrawals, "policies": documents.policies}
    for name, make in signed.items():
        assert list(make()) == vectors("documents")[name]
    shown = {"notes": proofs.notes, "receipts": proofs.receipts, "memberships": proofs.memberships}
    shown["releases"] = proofs.manifests
    for name, make in shown.items():
        assert list(make()) == vectors("proofs")[name]


def test_the_text_is_written_in_one_way():
    assert text_of(vectors("leaves")) == (HERE / "leaves.json").read_text()


# --- what the code answers ------------------------------------------------------------------------------------------------


def test_every_valid_leaf_is_read_and_hashed_as_its_vector_says():
    for row in vectors("leaves")["valid"]:
        data = bytes.fromhex(row["cbor"])
        assert encode_leaf(decode_leaf(data)) == data and leaf_hash(data).hex() == row["hash"]
        assert cbor.encode(dict(enumerate(map(read, row["fields"])))) == data, row["name"]
    assert {row["kind"] for row in vectors("leaves")["valid"]} == set(leaves.KINDS.values())


def test_every_invalid_leaf_is_refused():
    for row in vectors("leaves")["invalid"]:
        with pytest.raises(LedgerError) as caught:
            decode_leaf(leaves.bytes_of(row))
        assert caught.value.code == row["code"], row["name"]


def test_every_attestation_is_judged_as_its_vector_says(tmp_path):
    """By policy, registry and names of the vectors, as a stranger has them."""
    world = vectors("documents")["world"]
    owner = bytes.fromhex(world["owner"])
    (tmp_path / "registry.names").write_bytes(bytes.fromhex(world["names"]))
    names = Names.read(tmp_path / "registry.names")
    plain, generating = (
        verify_policy(*map(bytes.fromhex, world[name].values()), owner).policy for name in ("policy", "generating")
    )
    _, registry = read_states(bytes.fromhex(world["registry"]), owner, bytes(32), names=names)
    for row in vectors("documents")["attestations"]:
        parts = [bytes.fromhex(row[part]) for part in ("descriptor", "sign1", "opening") if part in row]
        content = row.get("content", world["content"])
        digest = None if content is None else documents.sha256(bytes.fromhex(content))
        now = row.get("now", documents.NOW)
        attestation = Attestation(*parts) if parts else None
        policy, purpose = (generating, row["purpose"]) if "purpose" in row else (plain, "train")
        found = decide(attestation, digest, policy=policy, registry=registry, now=now, seen=Seen(), purpose=purpose)
        assert ("admitted" if isinstance(found, Admission) else "refused") == row["answer"], row["name"]
        assert isinstance(found, Admission) or str(found.code) == row["code"], row["name"]


def test_every_policy_registry_and_message_is_judged_as_its_vector_says():
    for row in vectors("documents")["policies"]:
        answered(row, verify_policy, *parts(row, "payload", "sign1", "key"))
    for row in vectors("documents")["registries"]:
        answered(row, read_states, *parts(row, "registry", "key"), bytes(32))
    for row in vectors("documents")["messages"]:
        payload, message, key = parts(row, "payload", "sign1", "key")
        answered(row, sign1.verify, message, payload, key, typ=sign1.TYP_ATTESTATION)


def parts(row, *names) -> list[bytes]:
    return [bytes.fromhex(row[name]) for name in names]


def answered(row, call, *arguments, **named) -> None:
    try:
        call(*arguments, **named)
    except (AttestError, LedgerError) as error:
        assert (row["answer"], row["code"]) == ("refused", error.code), row["name"]
    else:
        assert row["answer"] == "accepted", row["name"]


def without(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def same_figures(told: dict[str, Any], found: dict[str, Any]) -> None:
    """Asserts that figures are those of a vector; epsilons up to what machines differ in."""
    assert without(found, "contributions") == without(told, "contributions")
    for one, other in zip(told["contributions"], found["contributions"], strict=True):
        assert without(other, "epsilon") == without(one, "epsilon")
        assert other["epsilon"] == (None if one["epsilon"] is None else pytest.approx(one["epsilon"], abs=4e-7, rel=1e-9))


def answered_export(row: dict[str, Any], *, figures: bool = False) -> dict[str, Any]:
    honest = rows("exports", "honest") | rows("exports", "budgets")
    files, earlier = exports.files_in(row, honest), exports.earlier_in(row, honest)
    return judged(files, Pins.from_json(row["pins"]), earlier, exports.withdrawals_in(row), figures=figures)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", RUNS)
def test_an_honest_export_is_judged_as_its_vector_says(name):
    row = rows("exports", "honest")[name]
    found = answered_export(row, figures=True)
    assert (found["verdict"], found["qualifiers"]) == (row["verdict"], row["qualifiers"])
    same_figures(row["figures"], found["figures"])


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_judged_as_its_vector_says(name):
    row = rows("exports", "lies")[name]
    base = rows("exports", "honest")[row["base"]]
    brought = ("pins", "earlier", "withdrawals")
    assert row["changes"] or any(row.get(what) != base.get(what) for what in brought)
    found = answered_export(row)
    assert found["verdict"] == row["verdict"] and [list(item) for item in found["findings"]] == row["findings"]
