"""Fine-tunes a GPT-2 under LoRA with dptrain."""

import torch

from benchmarks.beside.scene import BATCH, CLIP, DELTA, EPOCHS, MULTIPLIER, PART, gpt2_lora, texts
from dptrain import Microbatches, PrivateTraining
from dptrain.integrations.losses import losses_of

model = gpt2_lora()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
private = PrivateTraining.own(
    texts(), noise_multiplier=MULTIPLIER, clip_norm=CLIP, epochs=EPOCHS, batch_size=BATCH, delta=DELTA,
    microbatches=Microbatches(PART),
)  # fmt: skip
model, optimizer, steps = private.prepare(model, optimizer)
for step in steps:
    for rows in step:
        ids = rows["input_ids"]
        private.backward(losses_of(model, model(ids), ids), rows)
    optimizer.step()
print(private.epsilon())
model.save_pretrained("model")
