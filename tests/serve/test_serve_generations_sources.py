"""Where the references and numbers of texts come from: the file, a salt that its log knows, or what contributors signed."""

import hashlib
import json
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from attest import signed_file
from attest.attestation import read_sequence
from attest.descriptor import SignedDescriptor
from attest.keys import public_bytes
from attest.withdrawal import Withdrawal, sign_withdrawal
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink import Task, fresh_salt
from dptrain.inference.invisibleink.tasks import names
from dptrain.serve.config import ServeConfig
from dptrain.serve.generations import sources
from dptrain.serve.generations.sources import make_salts
from dptrain.serve.paying import create_log
from ledger.budget import Unit
from ledger.budget.generation import ClassLimit
from ledger.budget.log import BudgetLog
from ledger.budget.rho import epsilon_of_rho
from ledger.errors import AccountantError
from ledger.log import Ledger
from tests.serve.test_serve_generations_closing import halfway
from tests.worlds.gate import ALICE, CORPUS, MALLORY, OWNER
from tests.worlds.generating import signed, unit
from tests.worlds.ledgers import SIGNER, Driver, admission, header_spec, parameter, stack_of
from tests.worlds.listening import until
from tests.worlds.servers import running, table
from tests.worlds.texts import (
    ATTESTED,
    BATCH,
    BUDGET,
    NOTES,
    RICH,
    RULE,
    TASK,
    TOKENS,
    batches,
    changes,
    offered,
    sign,
    tell,
    telling,
    write,
    write_attested,
)


def refused(found: dict[str, Any], code: str, *words: str) -> None:
    with pytest.raises(ConfigError) as error:
        ServeConfig.of(found)
    assert error.value.code == code, error.value
    assert all(word in error.value.sentence for word in words), error.value.sentence


# --- the file -----------------------------------------------------------------------------------------------------------


def test_without_a_budget_or_a_cap_of_contributions_no_server_starts_and_it_says_what_is_missing() -> None:
    found = table(**changes())
    bare = {name: value for name, value in found.items() if name != "budget"}
    refused({**bare, "classes": {"plain": {"artifacts": ["base"]}}}, "SERVE_KEY", "generations.tales", "[budget]")
    caps = {"user": BUDGET["user"]}
    refused(table(**changes(caps)), "SERVE_KEY", "generations.tales", "budget.caps.contribution")


@pytest.mark.parametrize("key", ["task", "artifact", "delta", "salt"])
def test_what_has_no_default_is_missed_by_its_name(key: str) -> None:
    refused(table(**changes(generation={key: None})), "SERVE_KEY", f"generations.tales.{key}")


WRONG: list[tuple[str, Any]] = [
    ("batch", 0), ("batch", 1.5), ("tokens", 0), ("delta", 0), ("delta", 1.0), ("epsilon", 0), ("epsilon", "3"), ("tau", 0),
    ("top_k", -1), ("labels", {"kind": []}), ("labels", {"kind": "boat"}), ("labels", ["boat"]), ("recheck_every", 0),
    ("minibatch", 0), ("compile", 1), ("labels", {"kind": ["boat", "boat"]}), ("clip", 0.5), ("epsilon", None), ("batch", None),
    ("tokens", None), ("references", None), ("attested", ATTESTED["attested"]), ("tau", float("inf")), ("clip", float("nan")),
    ("batch", 1901),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG, ids=[f"{key}={value}"[:40] for key, value in WRONG])
def test_what_does_not_fit_is_refused_by_its_name(key: str, value: Any) -> None:
    refused(table(**changes(generation={key: value})), "SERVE_VALUE", "generations.tales")


def test_no_key_makes_draws_reproducible_or_another_adjacency() -> None:
    for key in ("seed", "unsafe_reproducible", "adjacency", "records", "max_tokens", "aggregation"):
        refused(table(**changes(generation={key: 1})), "SERVE_KEY", f"generations.tales.{key}")


@pytest.mark.parametrize("key", ["epsilon", "clip", "batch", "tokens", "tau", "top_k", "label_list"])
def test_of_what_contributors_signed_the_file_says_no_number(key: str) -> None:
    value = {"label_list": "labels.csv", "batch": 2, "tokens": 6, "top_k": 20}.get(key, 1.0)
    refused(table(**changes(generation={**ATTESTED, key: value})), "SERVE_VALUE", f"generations.tales.{key}", "signed")


def test_one_name_is_no_class_and_generation_and_one_reference_has_no_two_budgets() -> None:
    found = table(**changes())
    found["generations"]["plain"] = found["generations"]["tales"]
    refused(found, "SERVE_VALUE", "plain is a class and a generation")
    found = table(**changes())
    found["generations"]["more"] = {**found["generations"]["tales"], "salt": "other"}
    refused(found, "SERVE_VALUE", "salt")
    found["generations"]["more"] = table(**changes(generation=ATTESTED))["generations"]["tales"]
    refused(found, "SERVE_VALUE", "attested")


def starts(folder: Path, code: str, **more: Any) -> str:
    """Returns why a server does not start."""
    with pytest.raises((ConfigError, AccountantError)) as error, running(folder, **changes(**more)):
        pass
    assert error.value.code == code, error.value
    return error.value.sentence


def test_lists_of_words_are_those_of_the_tasks_labels(tmp_path: Path) -> None:
    write(tmp_path)
    assert "generations.tales.labels" in starts(tmp_path, "SERVE_VALUE", generation={"labels": {}})
    starts(tmp_path, "SERVE_VALUE", generation={"labels": {"kind": ["boat"], "tone": ["calm"]}})
    words = [f"w{n}" for n in range(70)]
    (tmp_path / "tale.toml").write_text(TASK.replace('["kind"]', '["kind", "tone"]'))
    assert "4900" in starts(tmp_path, "SERVE_VALUE", generation={"labels": {"kind": words, "tone": words}})


def test_a_task_that_comes_along_is_taken_by_its_name_and_an_unknown_one_refused(tmp_path: Path) -> None:
    write(tmp_path)
    assert names()[0] in starts(tmp_path, "TASK", generation={"task": "nothing"})
    labels = {name: ["boat"] for name in Task.shipped(names()[0]).labels}
    with telling(tmp_path, wait=False, generation={"task": names()[0], "labels": labels}) as world:
        assert offered(world).task == Task.shipped(names()[0])


def test_a_text_that_no_reference_could_ever_pay_is_refused_at_the_start(tmp_path: Path) -> None:
    write(tmp_path)
    assert "tales" in starts(tmp_path, "SERVE_VALUE", generation={"epsilon": 3.1})


def test_a_text_takes_references_of_its_own_label_where_a_public_list_has_labels(tmp_path: Path) -> None:
    write(tmp_path)
    rows = "".join(f"note-{n},{'boat' if n < 2 else 'orchard'}\n" for n in range(8))
    (tmp_path / "labels.csv").write_text("id,label\n" + rows)
    with telling(tmp_path, generation={"label_list": "labels.csv"}) as world:
        assert offered(world).pool.sizes == {"boat": 1, "orchard": 3}
        assert [tell(world).status_code for _ in range(2)] == [200, 403]
        assert [tell(world, labels={"kind": "orchard"}).status_code for _ in range(4)] == [200] * 3 + [403]


# --- the salt -----------------------------------------------------------------------------------------------------------


def test_init_makes_a_salt_that_nobody_else_reads_and_a_log_that_knows_it(tmp_path: Path) -> None:
    write(tmp_path)
    config = ServeConfig.of(table(**changes()), tmp_path)
    create_log(config).close()
    salt = (tmp_path / "salt").read_bytes()
    assert len(salt) == 32 and (tmp_path / "salt").stat().st_mode & 0o777 == 0o600
    with BudgetLog.open(str(config.budget.log)) as log:  # type: ignore[union-attr]
        assert salt.hex() not in log.header.mechanism("invisibleink").parameters  # type: ignore[union-attr]
    make_salts(config)
    assert (tmp_path / "salt").read_bytes() == salt  # one that is there is kept


def test_another_salt_gives_nobody_a_new_budget(tmp_path: Path) -> None:
    with telling(tmp_path) as world:
        assert tell(world).status_code == 200
    (tmp_path / "salt").write_bytes(fresh_salt())
    assert "another salt" in starts(tmp_path, "SALT")
    (tmp_path / "salt").unlink()
    starts(tmp_path, "SALT")


def test_a_salt_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with telling(tmp_path, wait=False):
        pass
    os.chmod(tmp_path / "salt", 0o644)
    assert "chmod" in starts(tmp_path, "SALT")


def test_a_log_that_was_made_before_there_were_generations_is_none_for_them(tmp_path: Path) -> None:
    write(tmp_path)
    with running(tmp_path, budget={"caps": BUDGET}):
        pass
    (tmp_path / "salt").write_bytes(fresh_salt())
    os.chmod(tmp_path / "salt", 0o600)
    assert "invisibleink" in starts(tmp_path, "MECHANISM")


@pytest.mark.parametrize("signed", [False, True], ids=["own references", "contributions"])
def test_a_log_of_charges_between_other_neighbours_is_none_for_these(tmp_path: Path, signed: bool) -> None:
    (write_attested if signed else write)(tmp_path)
    how = {"caps": RICH, "generation": ATTESTED if signed else {}}
    with mock.patch.object(sources, "mechanism", partial(sources.mechanism, adjacency="replace-one")):
        create_log(ServeConfig.of(table(**changes(**how)), tmp_path)).close()
    assert "zero-out" in starts(tmp_path, "MECHANISM", **how)


def test_ids_stand_in_no_leaf_and_a_reference_pays_under_its_salted_name(tmp_path: Path) -> None:
    with telling(tmp_path) as world:
        assert tell(world).status_code == 200
        until(lambda: not world.service.scheduler.busy)
        log = world.service.till.log  # type: ignore[union-attr]
        assert {each.unit for each in log.state.accounts.values()} == {"contribution"}
        for row in log.rows(log.size):
            assert b"note-" not in row.body


# --- what contributors signed -------------------------------------------------------------------------------------------


def test_contributions_that_were_signed_for_generation_make_texts_under_the_rule_of_their_class(tmp_path: Path) -> None:
    write_attested(tmp_path)
    with telling(tmp_path, RICH, generation=ATTESTED) as world:
        found = offered(world)
        assert len(found.pool.references) == len(NOTES) and {one.text for one in found.pool.references} == set(NOTES)
        assert (found.plan.batch, found.plan.tokens, found.plan.clip, found.plan.k) == (BATCH, TOKENS, 0.5, 20)
        log = world.service.till.log  # type: ignore[union-attr]
        assert len(log.state.admitted) == len(NOTES) and [rule.name for rule in log.header.generation] == ["sensitive"]
        answers = [tell(world) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 4 + [403]  # two texts of each, whatever the cap
        told = answers[0].json()["privacy"]["generation"]
        assert told["epsilon"] < told["all_texts"]["epsilon"] < 2 * told["epsilon"]  # that of the rule, not of the file
        for one in found.pool.references:  # under its own digest, which a contributor knows
            assert log.state.spent(bytes.fromhex(one.id)) == 2 * TOKENS * found.plan.nano_rho
            assert one.unit == Unit("contribution", one.id)


def test_a_restart_admits_nobody_twice_and_resets_nothing(tmp_path: Path) -> None:
    write_attested(tmp_path)
    with telling(tmp_path, RICH, generation=ATTESTED) as world:
        for _ in range(4):
            assert tell(world).status_code == 200
        admitted = len(world.service.till.log.state.admitted)  # type: ignore[union-attr]
    with telling(tmp_path, RICH, generation=ATTESTED) as world:
        assert len(world.service.till.log.state.admitted) == admitted  # type: ignore[union-attr]
        assert tell(world).status_code == 403


def test_who_signs_the_same_content_anew_keeps_its_budget_and_holds_nobody_up(tmp_path: Path) -> None:
    write_attested(tmp_path)
    with telling(tmp_path, RICH, generation=ATTESTED) as world:
        assert tell(world).status_code == 200
    sign(tmp_path, 1, NOTES[1], longer=5)  # after the first one expired, say
    with telling(tmp_path, RICH, generation=ATTESTED) as world:
        log = world.service.till.log  # type: ignore[union-attr]
        assert len(log.state.admitted) == len(NOTES) and len(offered(world).pool.references) == len(NOTES) - 1
        assert tell(world).status_code == 200


def test_a_log_keeps_its_rules_and_own_references_pay_in_no_log_that_has_them(tmp_path: Path) -> None:
    write_attested(tmp_path)
    with telling(tmp_path, RICH, wait=False, generation=ATTESTED):
        pass
    write_attested(tmp_path, max_rho_nano=10**9)
    assert "rules" in starts(tmp_path, "RULE", caps=RICH, generation=ATTESTED)
    write(tmp_path)
    starts(tmp_path, "RULE", caps=RICH)


def test_a_contribution_that_is_withdrawn_ends_its_running_text_and_pays_for_no_other(tmp_path: Path) -> None:
    write_attested(tmp_path)
    with telling(tmp_path, RICH, generation=ATTESTED) as world:
        log = world.service.till.log  # type: ignore[union-attr]
        gone = batches(world)[0][1]
        with halfway(world) as (_, _, seen, ended):
            with BudgetLog.open(log.place) as other:  # by another process
                other.withdraw(gone.unit)
            until(lambda: log.state.withdrawn)
            assert '"WITHDRAWN"' in ended() and not any('"usage"' in line for line in seen)
        until(lambda: 2 <= spent_by(log, gone) <= 3)
        before = spent_by(log, gone)
        answers = [tell(world).status_code for _ in range(3)]
        assert answers == [200, 200, 403] and spent_by(log, gone) == before


def withdraw(folder: Path, number: int, key: Any = ALICE, name: str = "alice") -> Path:
    """Writes a withdrawal of a contribution as `attest withdraw` does."""
    place = folder / "withdrawals"
    place.mkdir(exist_ok=True)
    with (folder / "corpus" / f"{number}.txt.attest").open("rb") as stream:
        (signed_as,) = read_sequence(stream)
    withdrawal = Withdrawal(hashlib.sha256(signed_as.descriptor).digest(), CORPUS, int(time.time()), "consent")
    path = place / f"{number}.withdrawal"
    signed_file.write(path, *sign_withdrawal(withdrawal, key, signer=name))
    return path


def run_before(folder: Path, attestation: Any) -> None:
    """Writes the ledger of a closed run in which a contribution took part."""
    policy, began = signed(**RULE), int(time.time()) - 60
    root, owner = policy.policy.registry_root, public_bytes(OWNER)
    stack = stack_of(4, *(parameter(f"layers.{number}.weight") for number in range(4)))
    with Ledger.create(folder / "before.db", header_spec(policy, owner_key=owner, registry_root=root, stack=stack), SIGNER,
                       now=began) as ledger:  # fmt: skip
        driver, terms = Driver(ledger, now=began), SignedDescriptor.from_cbor(attestation.descriptor)
        limit = {"max_epsilon_micro": terms.limit[0], "max_delta_pico": terms.limit[1], "max_occurrences": 0}
        bounds, named = {"clip_micro": 1_000_000, "sigma_micro": 1_100_000, "profile_id": 0}, unit(attestation).name
        driver.admit(replace(admission(0, "sensitive"), descriptor_hash=bytes.fromhex(named), **bounds, **limit))
        driver.steps(2)
        driver.epoch()
        ledger.finish(now=driver.tick())


def test_what_earlier_runs_spent_counts_toward_limits_over_all_runs_in_a_server_too(tmp_path: Path) -> None:
    alone = epsilon_of_rho(RULE["max_rho_nano"] / 1e9, 1e-6)
    micro = int(alone * 1e6) + 1
    for name, earlier, count in (("with", ["before.db"], 4), ("without", [], 5)):
        folder = tmp_path / name
        folder.mkdir()
        write_attested(folder)
        limited = sign(folder, 9, "tide net", max_epsilon_micro=micro, max_delta_pico=10**6)
        run_before(folder, limited)
        with telling(folder, RICH, wait=False, generation=ATTESTED, budget={"earlier": earlier}) as world:
            references = [one for batch in batches(world) for one in batch]
            assert len(references) == 4 and len(world.service.till.log.state.admitted) == count
            found = world.service.till.log.header.over_runs
            assert [one.origin for one in found.previous] == [SIGNER.name] * len(earlier)


def test_earlier_ledgers_without_attested_references_start_no_server(tmp_path: Path) -> None:
    write(tmp_path)
    assert "earlier" in starts(tmp_path, "SERVE_VALUE", budget={"earlier": ["before.db"]})


def test_a_log_without_the_limits_of_the_policy_serves_nobody(tmp_path: Path) -> None:
    write_attested(tmp_path)
    with telling(tmp_path, RICH, wait=False, generation=ATTESTED):
        pass
    with mock.patch.object(sources, "limits_of", lambda config: [ClassLimit("sensitive", 1, 1)]):
        assert "limits over all runs" in starts(tmp_path, "RULE", caps=RICH, generation=ATTESTED)


WITHDRAWALS = {"attested": {**ATTESTED["attested"], "withdrawals": "withdrawals"}}


@pytest.mark.one_in(99)
@pytest.mark.parametrize(("key", "name"), [(ALICE, "alice"), (OWNER, "owner")], ids=["contributor", "owner"])
def test_a_signed_withdrawal_counts_from_the_next_reading_on_and_for_good(tmp_path: Path, key: Any, name: str) -> None:
    write_attested(tmp_path, [*NOTES, "tide net"])  # five: without one there are two batches still
    (tmp_path / "withdrawals").mkdir()
    how = {"generation": {**ATTESTED, **WITHDRAWALS}}
    with telling(tmp_path, RICH, **how) as world:
        log, (gone, *_) = world.service.till.log, batches(world)[0]  # type: ignore[union-attr]
        number = [*NOTES, "tide net"].index(gone.text)
        with halfway(world) as (_, _, _, ended):
            withdraw(tmp_path, number, key, name)
            world.service.reload(world.config)
            assert '"WITHDRAWN"' in ended()
        assert set(log.state.withdrawn) == {bytes.fromhex(gone.id)}
        assert [tell(world).status_code for _ in range(2)] == [200] * 2 and len(batches(world)) == 2
        assert gone.id not in {one.id for batch in batches(world) for one in batch}
        until(lambda: not world.service.scheduler.busy)
        before = spent_by(log, gone)
    (tmp_path / "withdrawals" / f"{number}.withdrawal").unlink()  # what stands in the log stays
    with telling(tmp_path, RICH, **how) as world:
        assert gone.id not in {one.id for batch in batches(world) for one in batch}
        assert spent_by(world.service.till.log, gone) == before  # type: ignore[union-attr]


def test_nobodys_withdrawal_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_attested(tmp_path)
    (tmp_path / "withdrawals").mkdir()
    with telling(tmp_path, RICH, generation={**ATTESTED, **WITHDRAWALS}) as world:
        others = {
            "WITHDRAWAL_UNPROVEN": lambda: withdraw(tmp_path, 0, MALLORY),
            "WITHDRAWALS": lambda: (tmp_path / "withdrawals" / "x").write_bytes(b"x"),
        }
        for code, write_one in others.items():
            write_one()
            world.service.reload(world.config)
            assert tell(world).json()["error"]["code"] == "UNREAD" and f"{code}: " in caplog.text
            assert not world.service.till.log.state.withdrawn  # type: ignore[union-attr]
            for path in (tmp_path / "withdrawals").iterdir():
                path.unlink()
            world.service.reload(world.config)
            assert tell(world).status_code == 200


def spent_by(log: BudgetLog, reference: Any) -> float:
    log.refresh()
    return log.state.spent(log.account(reference.unit)) / 31_250_001


def test_a_reference_that_is_gone_from_what_is_read_again_makes_no_text_any_more(tmp_path: Path) -> None:
    with telling(tmp_path) as world:
        gone = batches(world)[0][0]
        with halfway(world) as (_, _, _, ended):
            rows = (tmp_path / "references.jsonl").read_text().splitlines()
            (tmp_path / "references.jsonl").write_text("\n".join(row for row in rows if json.loads(row)["id"] != gone.id))
            world.service.reload(world.config)
            assert '"WITHDRAWN"' in ended()
        assert gone.id not in {one.id for batch in batches(world) for one in batch} and len(batches(world)) == 3
        assert tell(world).status_code == 200


def test_references_that_cannot_be_read_again_make_no_text_until_they_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with telling(tmp_path) as world:
        path = tmp_path / "references.jsonl"
        kept = path.read_text()
        path.write_text(kept + "{")
        world.service.reload(world.config)
        assert "tales: its references were not read again: REFERENCES" in caplog.text
        answer = tell(world)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNREAD") and not world.calls
        assert "generation tales: UNREAD" in world.http.get("/readyz").text
        path.write_text(kept)
        world.service.reload(world.config)
        assert tell(world).status_code == 200 and world.http.get("/readyz").status_code == 200
