"""A small private training run in a process of its own, to be killed: ``kill_worker.py DIR [tangent]``.

Says ``READY`` once its world exists, and ``DONE`` at the end; resumes whatever it finds.
"""

import sys
from pathlib import Path

import torch

torch.set_num_threads(1)

from dptrain import PrivateTraining  # noqa: E402
from tests.guarantees import peers  # noqa: E402
from tests.guarantees.peers import per_example  # noqa: E402
from tests.guarantees.test_coupling import Net, collate, one_per_example  # noqa: E402


def made(tangent: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer, str]:
    """Returns a model, its optimizer and where its layers lie; with LoRA pairs that move along their tangent space if asked."""
    if tangent:
        from tests.geometry.runs import LAYERS, adam, net

        model = net("peft", dtype=torch.float32)
        return model, adam(model), LAYERS
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), "layers"


def main(root: Path, tangent: bool) -> None:
    model, optimizer, layers = made(tangent)
    print("READY", flush=True)
    with PrivateTraining.open(
        root / "policy.cose", root / "corpus", ledger=root / "ledger.db", resume=True, progress=False
    ) as private:
        _, _, steps = private.prepare(model, optimizer, peers.collate if tangent else collate, layers=layers)
        for step in steps:
            for rows in step:
                private.backward((per_example if tangent else one_per_example)(model, rows), rows)
            optimizer.step()
            if step.number % 3 == 0:
                private.save()
    print("DONE", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "tangent" in sys.argv[2:])
