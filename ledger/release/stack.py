"""Holds the tensors to which an epoch commits against the stack of the header, and what was frozen against its digest there."""

import math
from collections.abc import Iterator, Sequence

from ledger.leaves import Header
from ledger.leaves.weights import WeightRecord, frozen_digest
from ledger.release.tied import few


def stack_problems(header: Header, records: Sequence[WeightRecord]) -> Iterator[tuple[str, str]]:
    """Finds where the tensors to which an epoch commits are not those of the header's stack.

    Yields code and sentence: STACK, a tensor is not as the stack says; FROZEN, frozen parameters changed.

    Guarantee: without a problem every tensor that the run trained is a parameter of the stack in a block that a class may
    touch, and every parameter of such a block that has a record was trained; each has the adapter and the size that the stack
    says; the parameters in blocks without classes, whole ones, are bit for bit those to which the header commits. That the
    records are of the model that was trained is the operator's word.
    """
    stack, touched = header.stack, {piece.tensor for block in header.derived if block.classes for piece in block.pieces}
    places = {name: place for place, tensor in enumerate(stack.tensors) for name in tensor.names}
    unknown, sizes, wrong = [], [], []
    for record in records:
        if record.sources:
            continue
        place = places.get(record.names[0])
        if place is None:
            unknown += [record.names[0]] * record.trained
            continue
        if math.prod(record.shape) != stack.tensors[place].coordinates:
            sizes.append(record.names[0])
        adapter = stack.tensors[place].adapter
        if record.trained != (place in touched) or (adapter is not None and record.adapter != adapter):
            wrong.append(record.names[0])
    if unknown:
        yield "STACK", f"tensors were trained that the stack of the header does not have: {len(unknown)} ({few(unknown)})"
    if sizes:
        yield "STACK", f"tensors have other sizes than the stack of the header says: {len(sizes)} ({few(sizes)})"
    if wrong:
        told = "tensors were trained and are frozen in the header, or the reverse, or are of another adapter"
        yield "STACK", f"{told}: {len(wrong)} ({few(wrong)})"
    found = frozen_digest(records, places)
    if header.frozen_digest is not None and found != header.frozen_digest:
        there = found.hex() if found else "none"
        yield "FROZEN", f"frozen parameters have the digest {there}, {header.frozen_digest.hex()} before the first step"


def frozen_note(header: Header, records: Sequence[WeightRecord] | None) -> str | None:
    """Says of frozen parameters what `stack_problems` cannot compare; None where there is nothing to say."""
    own = [piece for block in header.derived if not block.classes for piece in block.pieces]
    if not own:
        return None
    if records is None or header.frozen_digest is None:
        which = "the release has no record of single tensors" if records is None else "the header does not commit to them"
        return f"what is frozen is so as told: {which}"
    parts = len({piece.tensor for piece in own if piece.owners is not None})
    if parts:
        return f"of {parts} tensors a part is frozen, by heads or experts, as told; the rest of each was trained"
    frozen = {name: piece.tensor for piece in own for name in header.stack.tensors[piece.tensor].names}
    left = set(frozen.values()) - {frozen.get(record.names[0]) for record in records if not record.sources}
    if left:
        names = [header.stack.tensors[place].names[0] for place in sorted(left)]
        return f"{len(left)} frozen parameters have no record, so that nothing was compared ({few(names)})"
    made = [record.names[0] for record in records if not frozen.keys().isdisjoint(record.sources)]
    if made:
        return f"{len(made)} tensors are computed from frozen ones, and are what these give as told ({few(made)})"
    return None
