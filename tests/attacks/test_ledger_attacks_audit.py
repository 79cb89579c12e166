"""Rows B19 to B22 of the attack list: a log that writes leaves which say something else than what was run.

The liar has the log's key: each lie is told in a leaf that is hashed, stored and signed as it should be. So it is tried three
times: the writer refuses to append it, the ledger that holds it does not open (`dptrain ledger fsck` says so), and an auditor
finds it in a signed export.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger.audit import verify_export
from ledger.errors import HorizonExceeded, LeafRefused, LedgerCorrupt
from ledger.leaves import Charge, Epoch, Header, Leaf, Settle, Spend, encode_leaf
from ledger.log import Ledger
from ledger.merkle import Frontier, leaf_hash
from ledger.note import checkpoint_text, sign_note
from ledger.storage.opening import create_store
from ledger.storage.place import Place
from ledger.storage.store import Row
from tests.ledger.ledger_runs import SIGNER, START, Driver, admission, descriptor, header_spec
from tests.ledger.retained_runs import forged_export, leaves_of


@pytest.fixture(scope="module")
def leaves(tmp_path_factory) -> list[Leaf]:
    """A whole run: two epochs of two windows, five admissions, a withdrawal of contribution 2 after the first epoch."""
    with Ledger.create(tmp_path_factory.mktemp("run") / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        return leaves_of(ledger)


@pytest.fixture
def run(tmp_path: Path):
    """A fresh ledger under a driver."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        yield Driver(ledger)


def audited(leaves: list[Leaf], directory: Path) -> set[tuple[str, str]]:
    """What an auditor finds, as code and place."""
    report = verify_export(forged_export(leaves, directory), [SIGNER.vkey])
    assert report.verdict == "FAILED"
    return {(found.code, found.where) for found in report.findings}


def stored(leaves: list[Leaf], path: Path) -> LedgerCorrupt:
    """How a ledger that holds such leaves is refused when it is opened with every epsilon computed again."""
    store, frontier, rows = create_store(Place.of(path)), Frontier(), []
    for seq, leaf in enumerate(leaves):
        body = encode_leaf(leaf)
        rows.append(Row(seq, leaf.KIND, getattr(leaf, "descriptor_hash", None), leaf_hash(body), body))
        frontier.append(leaf_hash(body))
    store.append(rows, frontier, sign_note(checkpoint_text(SIGNER.name, frontier.size, frontier.root()), SIGNER))
    store.close()
    with pytest.raises(LedgerCorrupt) as caught:
        Ledger.open(path, recompute=True)
    return caught.value


def told(leaves: list[Leaf], kind: type[Leaf], change: Callable[[Any], Leaf], nth: int = 0) -> tuple[list[Leaf], int]:
    """The leaves with the n-th of a kind changed, and where it stands."""
    place = [seq for seq, leaf in enumerate(leaves) if isinstance(leaf, kind)][nth]
    return [change(leaf) if seq == place else leaf for seq, leaf in enumerate(leaves)], place


def found_everywhere(leaves: list[Leaf], seq: int, code: str, tmp_path: Path) -> None:
    """Auditor and store name the leaf, for the same reason."""
    assert (code, f"seq {seq}") in audited(leaves, tmp_path / "export")
    error = stored(leaves, tmp_path / "liar.db")
    assert (error.code, error.seq) == ("REPLAY", seq)


def without(leaves: list[Leaf], *places: int) -> list[Leaf]:
    kept = [leaf for seq, leaf in enumerate(leaves) if seq not in places]
    return [leaf if seq == 0 else replace(leaf, seq=seq) for seq, leaf in enumerate(kept)]


def first_class(leaf: Charge, **changes: object) -> Charge:
    return replace(leaf, classes=(replace(leaf.classes[0], **changes), *leaf.classes[1:]))


# --- B19: steps that were never charged ----------------------------------------


def test_B19_a_window_that_skips_steps_is_refused_TILE_by_the_writer(run):
    run.steps()
    for first in (4, 6, 9):
        with pytest.raises(LeafRefused) as refused:
            run.ledger.charge(first, 4, now=run.tick(), noise_stream=run.stream())
        assert refused.value.code == "TILE"
    with pytest.raises(HorizonExceeded):
        run.steps(10)


def test_B19_windows_that_do_not_tile_the_run_are_found(leaves, tmp_path):
    lied, seq = told(leaves, Charge, lambda leaf: replace(leaf, first_step=leaf.first_step + 1), nth=1)
    found_everywhere(lied, seq, "TILE", tmp_path)


@pytest.mark.parametrize("nth", [0, 1, 3])
def test_B19_a_charge_left_out_is_found_though_the_rest_is_renumbered_and_signed(leaves, tmp_path, nth):
    places = [seq for seq, leaf in enumerate(leaves) if isinstance(leaf, Charge)]
    for left_out in ((places[nth],), (places[nth], places[nth] + 1)):
        lied = without(leaves, *left_out)
        assert audited(lied, tmp_path / f"export {len(left_out)}")
        assert stored(lied, tmp_path / f"{len(left_out)}.db").code == "REPLAY"


def test_B19_an_epoch_that_names_a_step_never_released_is_found(leaves, tmp_path):
    lied, seq = told(leaves, Epoch, lambda leaf: replace(leaf, step=leaf.step + 1))
    found_everywhere(lied, seq, "EPOCH", tmp_path)


# --- B20: another accountant, delta, orders or rate than were signed ----------------------


def test_B20_a_sampling_rate_other_than_the_signed_policys_is_found(leaves, tmp_path):
    lied, seq = told(leaves, Charge, lambda leaf: first_class(leaf, q_den=leaf.classes[0].q_den * 10))
    found_everywhere(lied, seq, "CHARGE_CLASS", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: {"accountant": replace(header.accountant, name="rdp")},
        lambda header: {"policy_payload": header.policy_payload.replace(b"notes", b"other")},
        lambda header: {"blocks": (replace(header.blocks[0], std=header.blocks[0].std / 2), *header.blocks[1:])},
    ],
    ids=["accountant", "policy", "noise of a block"],
)
def test_B20_a_header_that_is_not_what_the_owner_signed_is_no_header(leaves, change):
    header = leaves[0]
    assert isinstance(header, Header)
    with pytest.raises((LeafRefused, ValueError)):
        replace(header, **change(header))


def test_B20_an_epsilon_of_another_accountant_is_found(leaves, tmp_path):
    """Lower and higher, by more than rounding up once explains."""
    for change in (-2, 3):
        lied, seq = told(leaves, Spend, lambda leaf, by=change: replace(leaf, epsilon_micro=leaf.epsilon_micro + by))
        folder = tmp_path / str(change)
        folder.mkdir()
        found_everywhere(lied, seq, "SPEND_EPSILON", folder)


# --- B21: less noise than was charged --------------------------------------------------


def test_B21_settling_with_less_noise_is_refused_VARIANCE_by_the_writer(run):
    window = run.charge()
    smaller = tuple(value * (1 - 2**-50) for value in run.ledger.state.scheduled_variances())
    with pytest.raises(LeafRefused) as refused:
        run.ledger.settle(window, 4, now=run.tick(), variances=smaller)
    assert refused.value.code == "VARIANCE"


@pytest.mark.parametrize("share", [0.0, 0.5, 1 - 2**-50, 1 + 2**-50])
def test_B21_realised_noise_other_than_charged_is_found(leaves, tmp_path, share):
    lied, seq = told(leaves, Settle, lambda leaf: replace(leaf, variances=tuple(value * share for value in leaf.variances)))
    found_everywhere(lied, seq, "VARIANCE", tmp_path)


# --- B22: a withdrawn contribution is still drawn -------------------------------------


def test_B22_a_pool_that_still_holds_a_withdrawn_contribution_is_found(leaves, tmp_path):
    """The charges after the withdrawal repeat the pool from before it."""
    before, after = (leaf for leaf in leaves if isinstance(leaf, Charge) and leaf.window in (2, 3))
    assert before.classes[0] != after.classes[0]
    for field in ("pool_count", "pool_root"):
        old = getattr(before.classes[0], field)
        lied, seq = told(leaves, Charge, lambda leaf, name=field, old=old: first_class(leaf, **{name: old}), nth=2)
        if lied[seq] == leaves[seq]:
            continue  # one left and one came: as many as before
        folder = tmp_path / field
        folder.mkdir()
        found_everywhere(lied, seq, "CHARGE_CLASS", folder)


def test_B22_a_withdrawal_counts_from_the_next_charge_and_is_never_erased(run):
    run.admit(admission(1), admission(2))
    run.steps()
    run.withdraw(1)
    run.steps()
    counts = [window.classes[0].pool_count for window in run.ledger.windows]
    roots = [window.classes[0].pool_root for window in run.ledger.windows]
    assert counts == [2, 1] and roots[0] != roots[1]
    assert run.ledger.epsilon(descriptor(1)) < run.ledger.epsilon(descriptor(2))
    with pytest.raises(LeafRefused) as refused:
        run.admit(admission(1))
    assert refused.value.code == "WITHDRAWN"
