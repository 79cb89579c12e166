"""What SPEND leaves say of each contribution, from the leaves alone: groups as docs/formats has them, plain and slow.

And a run whose leaves have many such rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ledger.leaves import Admit, Charge, Draw, Epoch, Leaf, Resume, Spend, SpendRow, Withdraw
from ledger.replay.contributions import AdmitSpec
from tests.worlds.ledgers import Driver


def three_epochs(run: Driver, one: Callable[..., AdmitSpec]) -> None:
    """Three epochs with rows: 2 leaves before the second, 5 comes; nothing is charged in the last one, and 3 leaves then."""
    run.admit(one(1), one(2), one(3, "sensitive"), one(4, sigma_micro=4_000_000))
    run.steps(1)
    run.epoch()
    run.withdraw(2)
    run.admit(one(5))
    run.steps(1)
    run.epoch()
    run.admit(one(6))
    run.withdraw(3)
    run.epoch()


def rows_of(leaves: Iterable[Leaf]) -> list[SpendRow]:
    """All rows, in their order."""
    return [row for leaf in leaves if isinstance(leaf, Spend) for row in leaf.rows]


def with_rows(leaf: Spend, change: Callable[[SpendRow], SpendRow], place: int | None = None) -> Spend:
    """The leaf with every row changed, or the one at a place."""
    rows = list(leaf.rows)
    for at in range(len(rows)) if place is None else (place % len(rows),):
        rows[at] = change(rows[at])
    return replace(leaf, rows=tuple(rows))


def changing(place: int | None = None, **changes: object) -> Callable[[Spend], Spend]:
    """What changes fields of every row, or of the one at a place."""
    return lambda leaf: with_rows(leaf, lambda row: replace(row, **changes), place)


def told(leaves: Sequence[Leaf]) -> dict[bytes, SpendRow]:
    """The row that holds for each contribution at the last EPOCH leaf of these: the last one of the group that it was in.

    Where occurrences are public, groups that differ in their losses alone cannot be told apart so.
    """
    windows = attempt = 0
    terms: dict[bytes, tuple] = {}
    until: dict[bytes, int] = {}
    drawn: dict[bytes, int] = {}
    numbers: list[bytes] = []
    latest: dict[tuple, SpendRow] = {}
    found: dict[bytes, SpendRow] = {}
    for leaf in leaves:
        match leaf:
            case Admit():
                bounds = (leaf.profile_id, leaf.clip_micro, leaf.sigma_micro, leaf.max_occurrences)
                limits = (leaf.carried_micro, leaf.max_epsilon_micro, leaf.max_delta_pico)
                terms[leaf.descriptor_hash] = (*bounds, *limits, windows, attempt)
                numbers.append(leaf.descriptor_hash)
            case Charge():
                windows += 1
            case Resume():
                attempt = leaf.attempt
            case Withdraw():
                until[leaf.descriptor_hash] = windows
            case Draw():
                for number in leaf.drawn:
                    drawn[numbers[number]] = drawn.get(numbers[number], 0) + 1
            case Spend():
                keys = [row.key[:-1] for row in leaf.rows]
                assert len(set(keys)) == len(keys), "two groups differ in their losses alone"
                latest |= zip(keys, leaf.rows, strict=True)
            case Epoch():
                for name, signed in terms.items():
                    row = latest.get((*signed, until.get(name), drawn.get(name, 0)))
                    if row is not None:
                        found[name] = row
    return found
