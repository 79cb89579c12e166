"""A small private training run in a process of its own, to be killed: ``kill_worker.py DIR``.

Says ``READY`` once its world exists, and ``DONE`` at the end; resumes whatever it finds.
"""

import sys
from pathlib import Path

import torch

torch.set_num_threads(1)

from dptrain import PrivateTraining  # noqa: E402
from tests.guarantees.test_coupling import Net, collate, one_per_example  # noqa: E402


def main(root: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print("READY", flush=True)
    with PrivateTraining.open(
        root / "policy.cose", root / "corpus", ledger=root / "ledger.db", resume=True, progress=False
    ) as private:
        _, _, steps = private.prepare(model, optimizer, collate, layers="layers")
        for step in steps:
            for rows in step:
                private.backward(one_per_example(model, rows), rows)
            optimizer.step()
            if step.number % 3 == 0:
                private.save()
    print("DONE", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
