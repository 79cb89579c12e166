"""Fine-tunes a BERT with dptrain."""

import torch

from benchmarks.beside.scene import BATCH, CLIP, DELTA, EPOCHS, MULTIPLIER, PART, bert, reviews
from dptrain import Microbatches, PrivateTraining
from dptrain.integrations.losses import losses_of

model = bert()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
private = PrivateTraining.own(
    reviews(), noise_multiplier=MULTIPLIER, clip_norm=CLIP, epochs=EPOCHS, batch_size=BATCH, delta=DELTA,
    microbatches=Microbatches(PART),
)  # fmt: skip
model, optimizer, steps = private.prepare(model, optimizer)
for step in steps:
    for rows in step:
        private.backward(losses_of(model, model(rows["input_ids"]), rows["labels"]), rows)
    optimizer.step()
print(private.epsilon())
model.save_pretrained("model")
