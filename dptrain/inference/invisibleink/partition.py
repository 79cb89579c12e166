"""Forms batches of references by a salted hash of the records' ids: what is in them decides nothing.

Batches are disjoint, so that texts of different batches compose in parallel (Corollary 11): a run costs what one text costs.
That holds as long as one payload cannot move another record: a record that is empty, short or null keeps its place.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from dptrain.errors import ConfigError

SALT_SIZE: Final = 16
"""Least bytes of a salt."""


PARTITION: Final = "hash"
"""Name of the way in which batches are formed here: by a salted hash of ids."""

REFUSED_PARTITIONS: Final = {
    "clusters": "clusters follow from what is in the texts, so that one text moves others from batch to batch",
    "content": "one text would choose its batch, and with it what others stand beside",
    "length": "the length of a text is part of it, and one that becomes null would change batches",
    "label": "a label of the row itself is part of the payload; public labels go beside the references",
}
"""Ways to form batches that look at payloads, each with the reason why no parallel composition holds for it."""


def require_hashed(partition: str) -> None:
    """Refuses every way of forming batches that looks at a payload.

    Raises:
        ConfigError: code PARTITION, with the reason.
    """
    if partition == PARTITION:
        return
    if partition in REFUSED_PARTITIONS:
        sentence = f"batches by {partition}: {REFUSED_PARTITIONS[partition]}, and texts would not compose in parallel"
        raise ConfigError("PARTITION", f"{sentence}; take {PARTITION!r}, a salted hash of public ids")
    known = ", ".join([PARTITION, *REFUSED_PARTITIONS])
    raise ConfigError("PARTITION", f"{partition!r:.40} is no way to form batches (known: {known}); take {PARTITION!r}")


def fresh_salt() -> bytes:
    """Returns a salt from the operating system. Keep it: another salt makes other batches, which do not compose in parallel."""
    return secrets.token_bytes(32)


def batches(ids: Sequence[str], batch: int, *, salt: bytes) -> list[tuple[str, ...]]:
    """Returns disjoint batches of B ids each, in an order that follows from the ids and the salt alone.

    Guarantee: no payload is looked at. Where the payload of one record is replaced by null, every batch keeps its ids, and all
    batches but its own keep their payloads.

    Args:
        ids: of all records, public, each once; those whose payload is empty among them. batch: B.
        salt: at least 16 bytes, chosen before whoever names the records knows it.

    Returns:
        ``len(ids) // batch`` batches; the ids that are left over are in none.

    Raises:
        ConfigError: code RECORD_ID, one that stands twice or is no text; SALT; BATCH, fewer records than a batch has.
    """
    if len(salt) < SALT_SIZE:
        raise ConfigError("SALT", f"a salt has at least {SALT_SIZE} bytes, got {len(salt)}; take fresh_salt()")
    if not all(isinstance(one, str) and one for one in ids) or len(set(ids)) != len(ids):
        raise ConfigError("RECORD_ID", "an id stands twice, or is no text; every record has an id of its own, empty ones too")
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= len(ids):
        raise ConfigError("BATCH", f"a batch has {batch!r} references of {len(ids)} records; expected 1 to their number")
    ordered = sorted(ids, key=lambda one: (hmac.new(salt, one.encode(), hashlib.sha256).digest(), one))
    return [tuple(ordered[start : start + batch]) for start in range(0, len(ordered) - batch + 1, batch)]


def batches_by_label(labels: Mapping[str, str], batch: int, *, salt: bytes) -> dict[str, list[tuple[str, ...]]]:
    """Returns the batches of each label. Labels are public: signed, or from a public list, and never read from a payload.

    Guarantee: as `batches`, within each label.

    Args:
        labels: public label by id. batch, salt: as `batches`; a label of fewer records has no batch.

    Raises:
        ConfigError: as `batches`.
    """
    members: dict[str, list[str]] = {}
    for one, label in labels.items():
        members.setdefault(label, []).append(one)
    return {
        label: batches(ids, batch, salt=salt) if len(ids) >= batch else [] for label, ids in sorted(members.items())
    }
