"""Fine-tunes a BERT with Opacus."""

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader

from benchmarks.beside.scene import BATCH, CLIP, DELTA, EPOCHS, LENGTH, MULTIPLIER, PART, bert, reviews

model = bert()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
loader = DataLoader(reviews(), batch_size=BATCH, shuffle=True)
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=MULTIPLIER, max_grad_norm=CLIP
)
for _ in range(EPOCHS):
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=PART, optimizer=optimizer) as parts:
        for rows in parts:
            positions = torch.arange(LENGTH).expand(len(rows["labels"]), -1)
            model(**rows, position_ids=positions).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
print(engine.get_epsilon(DELTA))
model._module.save_pretrained("model")
