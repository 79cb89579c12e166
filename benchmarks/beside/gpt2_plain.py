"""Fine-tunes a GPT-2 under LoRA without privacy."""

import torch
from torch.utils.data import DataLoader

from benchmarks.beside.scene import BATCH, EPOCHS, gpt2_lora, texts

model = gpt2_lora()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
loader = DataLoader(texts(), batch_size=BATCH, shuffle=True)
for _ in range(EPOCHS):
    for rows in loader:
        model(**rows, labels=rows["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
model.save_pretrained("model")
