"""Records as contributors would have them, and collate functions as a user would write them: fixed shapes, padded."""

import random
from typing import Any

import torch

VOCABULARY = 40
LENGTH = 8
PAD, BOS, EOS, MASK, SPECIAL = 0, 1, 2, 3, 4
"""``SPECIAL`` stands for an image or sound inside a text."""
FIRST = 5
"""The first id of an ordinary token."""
LABELS = 3
SIDE = 16
"""Pixels of a picture's side."""
SOUND = 160
"""Samples of a sound."""
BINS, FRAMES = 8, 16
"""Of a spectrogram."""


def text(seed: int) -> dict:
    """A text with every kind of label that a head may want."""
    rng = random.Random(seed)
    ids = [BOS, *(rng.randrange(FIRST, VOCABULARY) for _ in range(rng.randint(2, LENGTH - 2))), EOS]
    start = rng.randrange(len(ids))
    hidden = rng.randrange(1, len(ids) - 1)
    return {
        "ids": ids,
        "label": rng.randrange(LABELS),
        "tags": [rng.randrange(LABELS) for _ in ids],
        "start": start,
        "end": rng.randrange(start, len(ids)),
        "hidden": hidden,
        "target": [BOS, *(rng.randrange(FIRST, VOCABULARY) for _ in range(rng.randint(1, 4))), EOS],
        "boxes": [sorted(rng.randrange(1000) for _ in range(4)) for _ in ids],
    }


def picture(seed: int, side: int = SIDE, channels: int = 3) -> dict:
    """A picture with a label, a label and a depth for every pixel, and one box."""
    rng = random.Random(seed)
    x, y = rng.uniform(0.3, 0.7), rng.uniform(0.3, 0.7)
    return {
        "pixels": [[[round(rng.gauss(0, 1), 3) for _ in range(side)] for _ in range(side)] for _ in range(channels)],
        "label": rng.randrange(LABELS),
        "seed": seed,
        "box": [x, y, rng.uniform(0.2, 0.5), rng.uniform(0.2, 0.5)],
        "second": [y, x, rng.uniform(0.2, 0.5), rng.uniform(0.2, 0.5)],
    }


def film(seed: int) -> dict:
    """Four small frames with one label."""
    return {"frames": [picture(10 * seed + t, side=8)["pixels"] for t in range(4)], "label": seed % LABELS}


def sound(seed: int) -> dict:
    """A sound with a label, and the ids of what is said."""
    rng = random.Random(seed)
    return {
        "wave": [round(rng.gauss(0, 1), 3) for _ in range(SOUND)],
        "label": rng.randrange(LABELS),
        "said": [rng.randrange(FIRST, VOCABULARY) for _ in range(rng.randint(1, 3))],
    }


def spectrum(seed: int) -> dict:
    """A spectrogram, bins by frames, with a label and the ids of what is said."""
    rng = random.Random(seed)
    said = [BOS, *(rng.randrange(FIRST, VOCABULARY) for _ in range(3)), EOS]
    bins = [[round(rng.gauss(0, 1), 3) for _ in range(FRAMES)] for _ in range(BINS)]
    return {"bins": bins, "label": rng.randrange(LABELS), "said": said}


def captioned(seed: int) -> dict:
    """A picture with a text."""
    return picture(seed) | text(seed)


def series(seed: int) -> dict:
    """A time series of two channels: 24 values known, 4 to be told."""
    rng = random.Random(seed)
    level, values = rng.gauss(0, 1), []
    for _ in range(28):
        level = 0.8 * level + rng.gauss(0, 0.5)
        values.append([round(level, 3), round(rng.gauss(0, 1), 3)])
    return {"past": values[:24], "future": values[24:], "label": rng.randrange(LABELS)}


def table(seed: int) -> dict:
    """A row of a table: two categories, five numbers, a label."""
    rng = random.Random(seed)
    return {
        "categories": [rng.randrange(6), rng.randrange(4)],
        "numbers": [round(rng.gauss(0, 1), 3) for _ in range(5)],
        "label": rng.randrange(LABELS),
    }


def _pad(ids: list[int], length: int = LENGTH, value: int = PAD) -> list[int]:
    return (ids + [value] * length)[:length]


def _labels(examples: list[Any], key: str = "label") -> torch.Tensor:
    return torch.tensor([e[key] for e in examples])


def tokens(examples: list[dict], length: int = LENGTH) -> dict:
    """Ids and their mask, padded to one length."""
    ids = torch.tensor([_pad(e["ids"], length) for e in examples])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def labelled(examples: list[dict]) -> dict:
    return tokens(examples) | {"labels": _labels(examples)}


def long_labelled(examples: list[dict]) -> dict:
    """For attention that works in blocks of tokens."""
    return tokens(examples, 16) | {"labels": _labels(examples)}


def tagged(examples: list[dict]) -> dict:
    return tokens(examples) | {"labels": torch.tensor([_pad(e["tags"], value=-100) for e in examples])}


def spans(examples: list[dict]) -> dict:
    return tokens(examples) | {"starts": _labels(examples, "start"), "ends": _labels(examples, "end")}


def masked(examples: list[dict]) -> dict:
    """One token of each text is hidden; only it is to be told."""
    rows = tokens(examples)
    hidden = _labels(examples, "hidden")[:, None]
    there = torch.arange(LENGTH) == hidden
    labels = torch.where(there, rows["input_ids"], -100)
    return rows | {"input_ids": torch.where(there, MASK, rows["input_ids"]), "labels": labels}


def choices(examples: list[dict]) -> dict:
    """Two candidates for each text, the second with its tokens reversed."""
    rows = tokens(examples)
    ids, mask = rows["input_ids"], rows["attention_mask"]
    both = torch.stack([ids, ids.flip(1)], 1)
    return {"input_ids": both, "attention_mask": torch.stack([mask, mask.flip(1)], 1), "labels": _labels(examples) % 2}


def translated(examples: list[dict]) -> dict:
    """A text and its translation; the decoder reads the translation shifted by one."""
    target = torch.tensor([_pad(e["target"], 6) for e in examples])
    labels = torch.where(target == PAD, -100, target)
    return tokens(examples) | {"decoder_input_ids": target[:, :-1], "labels": labels[:, 1:]}


def with_boxes(examples: list[dict]) -> dict:
    """The place of every token on a page, as documents have it."""
    boxes = [(e["boxes"] + [[0, 0, 0, 0]] * LENGTH)[:LENGTH] for e in examples]
    return labelled(examples) | {"bbox": torch.tensor(boxes)}


def pictures(examples: list[dict]) -> dict:
    return {"pixel_values": torch.tensor([e["pixels"] for e in examples]), "labels": _labels(examples)}


def segmented(examples: list[dict]) -> dict:
    """A label for every pixel: whether it is brighter than its neighbours on average, or darker."""
    rows = pictures(examples)
    return rows | {"labels": (rows["pixel_values"].mean(1) > 0).long()}


def deep(examples: list[dict]) -> dict:
    """A distance for every pixel."""
    rows = pictures(examples)
    return {"pixel_values": rows["pixel_values"], "distances": rows["pixel_values"].mean(1).abs() + 1.0}


def boxed(examples: list[dict]) -> dict:
    """Two objects in every picture."""
    rows = pictures(examples)
    boxes = torch.tensor([[e["box"], e["second"]] for e in examples])
    return rows | {"boxes": boxes, "classes": torch.stack([rows["labels"], (rows["labels"] + 1) % LABELS], 1)}


def films(examples: list[dict]) -> dict:
    return {"pixel_values": torch.tensor([e["frames"] for e in examples]), "labels": _labels(examples)}


def sounds(examples: list[dict]) -> dict:
    return {"input_values": torch.tensor([e["wave"] for e in examples]), "labels": _labels(examples)}


def spoken(examples: list[dict]) -> dict:
    """Sounds with the ids of what is said, padded with -100."""
    said = torch.tensor([_pad(e["said"], 3, -100) for e in examples])
    return {"input_values": torch.tensor([e["wave"] for e in examples]), "labels": said}


def spectra(examples: list[dict]) -> dict:
    return {"input_features": torch.tensor([e["bins"] for e in examples]), "labels": _labels(examples)}


def transcribed(examples: list[dict]) -> dict:
    said = torch.tensor([e["said"] for e in examples])
    features = torch.tensor([e["bins"] for e in examples])
    return {"input_features": features, "decoder_input_ids": said[:, :-1], "labels": said[:, 1:]}


def pairs(examples: list[dict]) -> dict:
    """A text and a picture each."""
    return tokens(examples) | {"pixel_values": torch.tensor([e["pixels"] for e in examples])}


def labelled_pairs(examples: list[dict]) -> dict:
    return pairs(examples) | {"labels": _labels(examples)}


def forecasts(examples: list[dict]) -> dict:
    return {"past_values": torch.tensor([e["past"] for e in examples]), "future": torch.tensor([e["future"] for e in examples])}


def labelled_series(examples: list[dict]) -> dict:
    return {"past_values": torch.tensor([e["past"] for e in examples]), "labels": _labels(examples)}


def tables(examples: list[dict]) -> dict:
    return {
        "categories": torch.tensor([e["categories"] for e in examples]),
        "numbers": torch.tensor([e["numbers"] for e in examples]),
        "labels": _labels(examples),
    }
