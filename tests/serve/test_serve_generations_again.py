"""References and withdrawals that are read again while the server runs, or at its next start: what ends, and what counts."""

import asyncio
import hashlib
import json
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from attest import signed_file
from attest.attestation import read_sequence
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink import generator
from dptrain.inference.invisibleink.rows import Prompts
from dptrain.serve import program
from dptrain.serve.scheduler import Scheduler
from ledger.budget.log import BudgetLog
from tests.serve.test_serve_generations_closing import halfway
from tests.serve.test_serve_generations_sources import WITHDRAWALS, starts, withdraw
from tests.worlds.gate import ALICE, MALLORY, OWNER
from tests.worlds.generating import signed
from tests.worlds.listening import until
from tests.worlds.servers import Running
from tests.worlds.texts import (
    ATTESTED,
    NOTES,
    PLAN,
    RICH,
    RULE,
    TOKENS,
    batches,
    offered,
    spent,
    tell,
    telling,
    write_attested,
)

FIVE = [*NOTES, "tide net"]
"""Without one of these there are two batches still."""

SIGNED = {"generation": {**ATTESTED, **WITHDRAWALS}}


def withdrawn(world: Running) -> set[bytes]:
    log = world.service.till.log  # type: ignore[union-attr]
    log.refresh()
    return set(log.state.withdrawn)


def digest(folder: Path, number: int) -> bytes:
    with (folder / "corpus" / f"{number}.txt.attest").open("rb") as stream:
        (found,) = read_sequence(stream)
    return hashlib.sha256(found.descriptor).digest()


# --- references ---------------------------------------------------------------------------------------------------------


def put(folder: Path, **texts: Any) -> None:
    """Writes other texts of some references, by their ids with _ in place of -."""
    path = folder / "references.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["text"] = texts.get(row["id"].replace("-", "_"), row["text"])
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize("text", ["another word", None], ids=["changed", "null"])
def test_a_text_ends_whose_reference_was_changed_or_emptied_while_it_was_drawn(tmp_path: Path, text: str | None) -> None:
    with telling(tmp_path) as world:
        gone = next(one for one in batches(world)[0] if one.text)
        with halfway(world) as (_, _, seen, ended):
            put(tmp_path, **{gone.id.replace("-", "_"): text})
            world.service.reload(world.config)
            assert '"WITHDRAWN"' in ended() and not any('"usage"' in line for line in seen)
        assert [one.text for one in batches(world)[0] if one.id == gone.id] == [text or ""]
        assert spent(world)[0] in (2, 3)  # and not a token more is computed


@pytest.mark.parametrize("other", [False, True], ids=["nothing changed", "another changed"])
def test_a_text_of_references_that_nobody_signed_ends_though_its_own_are_what_they_were(tmp_path: Path, other: bool) -> None:
    """Were it to go on, that it ends would tell, of a reference that is null now, whether it was null before."""
    with telling(tmp_path) as world, halfway(world) as (_, _, seen, ended):
        if other:
            put(tmp_path, **{batches(world)[1][0].id.replace("-", "_"): "another word"})
        world.service.reload(world.config)
        assert '"WITHDRAWN"' in ended() and not any('"usage"' in line for line in seen)


def left_out(folder: Path, gone: Any) -> None:
    """Takes a contribution out of the corpus; nobody withdraws it."""
    [number] = [number for number in range(len(FIVE)) if digest(folder, number).hex() == gone.id]
    (folder / "corpus" / f"{number}.txt.attest").unlink()


@pytest.mark.parametrize("own", [False, True], ids=["of another text", "its own"])
def test_a_text_of_contributions_ends_where_one_of_its_own_is_gone_and_else_goes_on(tmp_path: Path, own: bool) -> None:
    write_attested(tmp_path, FIVE)
    with telling(tmp_path, RICH, generation=ATTESTED) as world, halfway(world) as (_, _, _, ended):
        left_out(tmp_path, batches(world)[0 if own else 1][0])
        world.service.reload(world.config)
        assert ('"WITHDRAWN"' if own else '"finish_reason": "length"') in ended()


@pytest.mark.one_in(99)
@pytest.mark.parametrize("how", ["read again", "another process"])
def test_what_waits_for_a_slow_reader_is_not_sent_once_its_reference_is_gone(tmp_path: Path, how: str) -> None:
    long = {"tokens": 120, "epsilon": 3.0}
    with ExitStack() as opened:
        world = opened.enter_context(telling(tmp_path, generation=long))
        opened.enter_context(mock.patch.object(generator._Text, "add", lambda text, token: "."))
        opened.enter_context(mock.patch("dptrain.serve.scheduler.AHEAD", 4))
        held = threading.Event()
        plain = Scheduler.taken

        async def slowly(self: Any) -> Any:
            while not held.is_set():
                await asyncio.sleep(0.003)
            piece = await self._box.get()
            plain(self._scheduler, self)
            return piece

        opened.enter_context(mock.patch("dptrain.serve.scheduler.Stream.next", slowly))
        socket = opened.enter_context(world.http.websocket_connect("/v1/stream", headers=world.headers()))
        socket.send_json({"generation": {"generation": "tales", "labels": {"kind": "boat"}}})
        until(lambda: any(each.stream._parked for each in world.service._running))
        gone = next(one for one in batches(world)[0] if one.text)
        log = world.service.till.log  # type: ignore[union-attr]
        if how == "read again":
            put(tmp_path, **{gone.id.replace("-", "_"): None})
            world.service.reload(world.config)
            until(lambda: not world.service.scheduler.busy)  # it ends though nobody reads on
        else:
            with BudgetLog.open(log.place) as other:
                other.withdraw(gone.unit)
            until(lambda: log.state.withdrawn)
        held.set()
        assert socket.receive_json()["choices"][0]["text"] == ""  # what it is worth
        assert socket.receive_json()["error"]["code"] == "WITHDRAWN"
        until(lambda: not world.service.scheduler.busy)
        log.refresh()
        assert not log.state.open and log.state.spent(log.account(gone.unit)) == 4 * offered(world).plan.nano_rho


@pytest.mark.parametrize("broken", ["file", "tokens"])
def test_references_are_read_again_though_the_servers_file_or_its_tokens_cannot_be(tmp_path: Path, broken: str) -> None:
    with telling(tmp_path) as world:
        gone = batches(world)[0][0]
        rows = (tmp_path / "references.jsonl").read_text().splitlines()
        (tmp_path / "references.jsonl").write_text("\n".join(row for row in rows if json.loads(row)["id"] != gone.id))
        if broken == "tokens":
            world.config.tokens.write_text("[")
        stop, asked = threading.Event(), threading.Event()
        load = {"side_effect": ConfigError("TOML", "x")} if broken == "file" else {"return_value": world.config}
        with mock.patch.object(program.ServeConfig, "load", **load):
            thread = threading.Thread(target=program._refresh, args=(world.service, stop, asked, tmp_path / "s"), daemon=True)
            thread.start()
            asked.set()
            until(lambda: world.service.unread is not None)
            stop.set()
            thread.join(5)
        assert gone.id not in {one.id for one in offered(world).pool.references}


def test_a_policy_that_was_signed_anew_makes_no_text_until_the_one_of_the_log_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its numbers of a text are the same; but a contribution may spend less by it, and the log holds nobody to that."""
    write_attested(tmp_path)
    with telling(tmp_path, RICH, generation=ATTESTED) as world:
        kept = (tmp_path / "policy.cose").read_bytes()
        with halfway(world) as (_, _, _, ended):
            policy = signed(**{**RULE, "max_rho_nano": TOKENS * 31_250_100})
            signed_file.write(tmp_path / "policy.cose", policy.payload, policy.sign1)
            world.service.reload(world.config)
            assert '"UNREAD"' in ended()
        answer = tell(world)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNREAD")
        assert "tales: its references were not read again: RULE" in caplog.text
        (tmp_path / "policy.cose").write_bytes(kept)
        world.service.reload(world.config)
        assert tell(world).status_code == 200


# --- withdrawals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["start", "hangup"])
def test_withdrawals_beside_the_log_count_too(tmp_path: Path, when: str) -> None:
    write_attested(tmp_path, FIVE)
    (tmp_path / "withdrawals").mkdir()
    with telling(tmp_path, RICH, generation=ATTESTED) as world:
        withdraw(tmp_path, 2)
        (tmp_path / "withdrawals").rename(tmp_path / "budget.db.withdrawals")
        [lies] = (tmp_path / "budget.db.withdrawals").iterdir()
        lies.rename(lies.with_name(f"{lies.name}.{'taken' if when == 'start' else 'refused'}"))  # whatever others call it
        if when == "hangup":
            world.service.reload(world.config)
            assert withdrawn(world) == {digest(tmp_path, 2)}
    with telling(tmp_path, RICH, generation=ATTESTED) as world:
        assert withdrawn(world) == {digest(tmp_path, 2)} and len(offered(world).pool.references) == 4


@pytest.mark.parametrize("name", [".2.withdrawal", "more", "x.cose.refused"])
def test_what_is_hidden_beside_the_log_or_a_folder_is_told(tmp_path: Path, name: str) -> None:
    write_attested(tmp_path, FIVE)
    (tmp_path / "withdrawals").mkdir()
    with telling(tmp_path, RICH, generation=ATTESTED):
        pass
    withdraw(tmp_path, 2)
    [lies] = (tmp_path / "withdrawals").iterdir()
    there = tmp_path / "budget.db.withdrawals"
    there.mkdir()
    if name == "more":
        (there / name).mkdir()
        lies.rename(there / name / lies.name)
    elif name.startswith("."):
        lies.rename(there / name)
    else:
        (there / name).write_bytes(b"x")
    assert name in starts(tmp_path, "WITHDRAWALS", caps=RICH, generation=ATTESTED)


def test_a_withdrawal_counts_though_the_gate_does_not_take_the_contribution_any_more(tmp_path: Path) -> None:
    write_attested(tmp_path, FIVE)
    (tmp_path / "withdrawals").mkdir()
    with telling(tmp_path, RICH, **SIGNED):
        pass
    (tmp_path / "corpus" / "2.txt").write_text("other bytes than were signed")
    withdraw(tmp_path, 2)
    with telling(tmp_path, RICH, **SIGNED) as world:
        assert withdrawn(world) == {digest(tmp_path, 2)}


SIGNERS = [(ALICE, "alice"), (OWNER, "owner"), (MALLORY, "alice")]


@pytest.mark.parametrize(("key", "name"), SIGNERS, ids=["contributor", "owner", "another"])
def test_a_withdrawal_of_what_was_taken_out_of_the_corpus_is_not_passed_over(tmp_path: Path, key: Any, name: str) -> None:
    """Whose it was is shown by what the log has of it, and by the registry."""
    write_attested(tmp_path, FIVE)
    (tmp_path / "withdrawals").mkdir()
    with telling(tmp_path, RICH, **SIGNED):
        pass
    withdraw(tmp_path, 2, key, name)
    gone = digest(tmp_path, 2)
    (tmp_path / "corpus" / "2.txt.attest").unlink()
    if key is MALLORY:
        assert "2.withdrawal" in starts(tmp_path, "WITHDRAWAL_UNPROVEN", caps=RICH, **SIGNED)
        return
    with telling(tmp_path, RICH, **SIGNED) as world:
        assert withdrawn(world) == {gone} and tell(world).status_code == 200


def test_what_was_withdrawn_once_needs_no_proof_again(tmp_path: Path) -> None:
    write_attested(tmp_path, FIVE)
    withdraw(tmp_path, 2)
    with telling(tmp_path, RICH, **SIGNED) as world:
        withdraw(tmp_path, 2, MALLORY)  # as a key that is in no registry any more
        world.service.reload(world.config)
        assert withdrawn(world) == {digest(tmp_path, 2)} and tell(world).status_code == 200


# --- what is paid, and read then ----------------------------------------------------------------------------------------


def test_references_are_made_into_prompts_once_for_a_text_and_behind_its_payment(tmp_path: Path) -> None:
    """Their time is long where a reference is: it is not spent for batches that another server was quicker to pay for."""
    with telling(tmp_path) as world:
        pool, taken, open_at = offered(world).pool, [], []
        plain, rows = pool.take, Prompts.rows

        def slower(label: str | None = None) -> Any:
            batch, meter = plain(label)
            taken.append(batch)
            if len(taken) < 4:
                meter.settle(meter.reserve(TOKENS, mechanism=PLAN.mechanism, nano_rho=PLAN.nano_rho), TOKENS)
            return batch, meter

        def made(self: Prompts, references: Any) -> Any:
            open_at.append([one.text for one in taken[-1]] == list(references) and spent(world) == [TOKENS] * 4)
            return rows(self, references)

        with mock.patch.object(pool, "take", slower), mock.patch.object(Prompts, "rows", made):
            assert tell(world).status_code == 200
        assert len(taken) == 4 and open_at == [True]


def test_references_that_cannot_be_made_into_prompts_get_nothing_back(tmp_path: Path) -> None:
    """Whether it failed would hang on what is in one of them."""
    with telling(tmp_path) as world, mock.patch.object(Prompts, "rows", side_effect=RuntimeError("of gull rope mast")):
        answer = tell(world)
        assert answer.status_code == 500 and "gull" not in answer.text and not world.calls
        until(lambda: spent(world) == [TOKENS, 0, 0, 0])
