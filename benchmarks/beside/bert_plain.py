"""Fine-tunes a BERT without privacy."""

import torch
from torch.utils.data import DataLoader

from benchmarks.beside.scene import BATCH, EPOCHS, bert, reviews

model = bert()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
loader = DataLoader(reviews(), batch_size=BATCH, shuffle=True)
for _ in range(EPOCHS):
    for rows in loader:
        model(**rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
model.save_pretrained("model")
