"""Tests that no row of a model's batch depends on another: changes one, and demands that all others keep every bit.

The sensitivity C/B takes for granted that the public logits, and those of other references, stay what they are when one
reference changes. What a kernel rounds may break that: a shift of the public logits is not divided by B. So shapes are public
and constant, and this test holds the rest, for the device, the type and the shapes that are served.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

from dptrain.errors import NotPrivateUse
from dptrain.inference.invisibleink.forward import Form, Forward, form_of
from dptrain.inference.invisibleink.rows import Rows

SHALLOW: Final = 2
"""Tokens behind the prompts that are compared for each row; for the outer rows of each call it is all of a text."""


def check_rows(
    model: Any,
    batch: int,
    length: int,
    tokens: int,
    *,
    minibatch: int | None = None,
    compile: bool = False,
    form: Form | None = None,
) -> Form:
    """Changes the content and the length of each private row, and compares all other rows, bit by bit.

    Guarantee: returns only where, at these shapes and over all tokens of a text, no other row had another bit. The first
    and the last private row, and those of each minibatch of two or more, become the longest of all among rows of middle length,
    and the first one among rows of one token, over a whole text; all others over two tokens.

    It is the form it returns that was tested, its graph too, and nothing else may serve. It looks at rows of its own making,
    at no reference. It takes the time of five texts and some 3 B + 6 prompts, and of two texts more for each minibatch behind
    the first; for a new form, of two texts more, and for a new compiled step of a third and of the compiler.

    Args:
        model: in evaluation. batch: B. length: of the prompts. tokens: T. minibatch: as `Forward`.
        compile: whether the form is compiled. form: what was tested before and serves; None to find one.

    Returns:
        How tokens went through the model, as those of a text then have to: `Forward`.

    Raises:
        ConfigError: code COMPILE, as `form_of`.
        NotPrivateUse: code ROWS_COUPLED, a row changed with another; UNSTEADY, one changed by itself; NOT_FINITE.
    """
    where = f"{next(model.parameters()).dtype} on {model.device}, {batch + 1} rows of {length} and {tokens} tokens"
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    base = _rows(batch, length, vocabulary)
    room = max(2, tokens)
    served = form_of(model, base, room, minibatch, compile=compile) if form is None else form
    where += ", compiled" * (served.graph is not None)

    def logits(rows: Rows, steps: int) -> Iterator[np.ndarray]:
        """Gives the logits behind the prompts, and behind each of ``steps - 1`` tokens, at least two in all."""
        forward = Forward(model, rows, room, minibatch, served)
        yield forward.begin()
        for number in range(max(1, steps - 1)):
            yield forward.step((7919 * number + 11) % vocabulary)

    def seen(rows: Rows, steps: int) -> tuple[list[np.ndarray], list[list[bytes]]]:
        """Returns the first logits, and digests of the rows at each step: a vocabulary is large, and a text is long."""
        first: list[np.ndarray] = []
        digests = []
        for number, found in enumerate(logits(rows, steps)):
            if not np.isfinite(found[0]).all():
                raise NotPrivateUse("NOT_FINITE", f"public logits are not finite ({where}); use another type, float32 say")
            if number < SHALLOW:
                first.append(found)
            digests.append(_digests(found))
        return first, digests

    def compare(
        rows: Rows, before: tuple[list[np.ndarray], list[list[bytes]]], place: int, kept: int, steps: int, among: str = ""
    ) -> None:
        """Changes one row to ``kept`` tokens of other content, and demands all others as they were."""
        others = [row for row in range(batch + 1) if row != place]
        what = f"row {place} was changed to {kept} tokens{among}"
        for number, now in enumerate(logits(_changed(rows, place, kept, vocabulary), steps)):
            if number < SHALLOW:
                _require_equal(now[others], before[0][number][others], what, where)
            elif [_digests(now)[row] for row in others] != [before[1][number][row] for row in others]:
                raise _coupled(f"{what}, and another row moved at token {number + 1}", where)

    told = seen(base, tokens)
    before = told[0]
    if not all(map(_same, logits(base, SHALLOW), before)):
        raise NotPrivateUse("UNSTEADY", f"the same rows gave other logits ({where}); make the kernels deterministic")
    whole = _outer(batch, minibatch)
    for place in range(1, batch + 1):
        for kept in sorted({1, int(base.mask[place].sum()), length - 1}):
            compare(base, told, place, kept, tokens if place in whole and kept == length - 1 else SHALLOW)
    # What a call takes from its longest row, a table of rotary factors say, is the same for all rows of middle length.
    short, long = (_kept(base, kept) for kept in (1, length - 1))
    compare(short, seen(short, tokens), 1, length - 1, tokens, " among rows of one token")
    compare(long, seen(long, SHALLOW), 1, 1, SHALLOW, f" among rows of {length - 1}")
    return served


def _outer(batch: int, minibatch: int | None) -> set[int]:
    """Returns the first private row and the last, of all and of each minibatch. A row that runs by itself has no others."""
    size = batch + 1 if minibatch in (None, 1) else minibatch
    starts = range(0, batch + 1, size)
    return {max(1, start) for start in starts} | {min(batch, start + size - 1) for start in starts} - {0}


def _require_equal(now: np.ndarray, before: np.ndarray, what: str, where: str) -> None:
    if not _same(now, before):
        most = float(np.nanmax(np.abs(now.astype(np.float64) - before)))
        raise _coupled(f"{what}, and another row moved by up to {most:.3g}", where)


def _coupled(what: str, where: str) -> NotPrivateUse:
    way = "use other kernels (attn_implementation='eager'), another type, minibatch=1, or no compiled step"
    return NotPrivateUse("ROWS_COUPLED", f"{what} ({where}): a reference would move what is taken for public; {way}")


def _same(now: np.ndarray, before: np.ndarray) -> bool:
    return now.tobytes() == before.tobytes()


def _digests(logits: np.ndarray) -> list[bytes]:
    return [hashlib.sha256(row.tobytes()).digest() for row in logits]


def _rows(batch: int, length: int, vocabulary: int) -> Rows:
    """Returns rows of fixed pseudo-random tokens, whose lengths lie between a third and two thirds of the whole: a row that
    is changed can become the longest of all, or the shortest."""
    numbers = torch.Generator().manual_seed(length)
    ids = torch.randint(vocabulary, (batch + 1, length), generator=numbers)
    mask = torch.zeros((batch + 1, length), dtype=torch.long)
    least = max(1, length // 3)
    for place in range(batch + 1):
        mask[place, length - least - (5 * place) % max(1, length // 3) :] = 1
    return Rows(ids, mask, ())


def _kept(rows: Rows, kept: int) -> Rows:
    """Returns rows of ``kept`` tokens each."""
    mask = torch.zeros_like(rows.mask)
    mask[:, rows.ids.shape[1] - kept :] = 1
    return Rows(rows.ids, mask, ())


def _changed(rows: Rows, place: int, kept: int, vocabulary: int) -> Rows:
    ids, mask = rows.ids.clone(), rows.mask.clone()
    ids[place] = (ids[place] * 31 + 7 + kept) % vocabulary
    mask[place] = 0
    mask[place, ids.shape[1] - kept :] = 1
    return Rows(ids, mask, ())
