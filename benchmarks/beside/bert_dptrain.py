"""Fine-tunes a BERT with dptrain."""

import torch
from torch.nn.functional import cross_entropy

from benchmarks.beside.scene import BATCH, CLIP, DELTA, EPOCHS, MULTIPLIER, PART, bert, reviews
from dptrain import Microbatches, PrivateTraining

model = bert()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
private = PrivateTraining.own(
    reviews(), noise_multiplier=MULTIPLIER, clip_norm=CLIP, epochs=EPOCHS, batch_size=BATCH, delta=DELTA,
    microbatches=Microbatches(PART),
)  # fmt: skip
model, optimizer, steps = private.prepare(model, optimizer)
for step in steps:
    for rows in step:
        losses = cross_entropy(model(rows["input_ids"]).logits, rows["labels"], reduction="none")
        private.backward(losses, rows)
    optimizer.step()
print(private.epsilon())
model.save_pretrained("model")
