"""The model before anybody contributes: a small vision transformer trained on drawn strokes alone."""

from pathlib import Path

import torch
from torch import nn

from dptrain.demo.strokes import draw_digits
from dptrain.runconfig import ImageModel
from dptrain.tasks.image_classification import build

SIZES = ImageModel(
    labels=tuple("0123456789"), image_size=8, patch_size=2, channels=1, pixel_max=16.0, hidden_size=32, hidden_layers=4
)
"""About 35,000 parameters: noise grows with their number, and 8 x 8 pixels need no more."""

_BATCH = 64


def public_model(directory: Path, *, pictures: int = 6000, epochs: int = 15, seed: int = 0) -> Path:
    """Trains on drawn digits, without privacy since nobody is in them, and saves the model.

    Returns:
        ``directory``, which holds a model that ``transformers`` loads.
    """
    torch.set_num_threads(1)  # so small a model is slower on several cores, and far slower on busy ones
    drawn, answers = draw_digits(pictures, seed)
    inputs = torch.tensor(drawn, dtype=torch.float32)[:, None] / 8.0 - 1.0
    labels = torch.tensor(answers)
    torch.manual_seed(seed)
    model, _ = build(SIZES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * (pictures // _BATCH), pct_start=0.05)
    for _ in range(epochs):
        order = torch.randperm(pictures)
        for start in range(0, pictures - _BATCH + 1, _BATCH):
            chosen = order[start : start + _BATCH]
            optimizer.zero_grad()
            # Smoothed labels keep the model unsure: drawn digits are only like the written ones.
            nn.functional.cross_entropy(model(inputs[chosen]).logits, labels[chosen], label_smoothing=0.1).backward()
            optimizer.step()
            schedule.step()
    model.save_pretrained(directory)
    return directory
