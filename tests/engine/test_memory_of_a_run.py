"""While a run goes on, what a microbatch frees stays with the process; behind it, the system gets it back."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from dptrain import native
from tests.worlds.trainer import BertTrainer as Trainer
from tests.worlds.training import make_world

ROUNDS = """
import json, resource, torch
from dptrain.native import KeptMemory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.full((1 << size,), 1.0) for size in (22,) * 16 + (24,)]  # 16 MiB each, and one of 64
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

faults()
usual = faults()
kept = KeptMemory()
faults()
inside, before = faults(), resident()
kept.close()
print(json.dumps([usual, inside, before - resident()]))
"""


@pytest.mark.one_in(9)
@pytest.mark.skipif(not hasattr(native._LIBC, "mallopt"), reason="memory is not allocated by glibc")
@pytest.mark.parametrize("tuned", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.top_pad=131072"}])
def test_freed_memory_is_kept_inside_unless_the_user_has_tuned_it(tuned: dict[str, str]) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run([sys.executable, "-c", ROUNDS], env=clean | tuned, capture_output=True, text=True, check=True)
    usual, inside, given_back = json.loads(done.stdout)
    if tuned:
        assert inside > usual / 2
    else:
        assert inside < usual / 100
        assert given_back > 200 << 20, "320 MiB were free"


def test_memory_is_kept_from_the_first_step_to_the_end(tmp_path, monkeypatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(native, "_thresholds", lambda *given: told.append(given))
    monkeypatch.setattr(native, "_tuned", lambda: False)
    monkeypatch.setattr(native.KeptMemory, "_open", 0)  # other tests leave runs open
    trainer = Trainer(make_world(tmp_path, steps=2))
    assert told == []
    trainer.run()
    assert told == [(native._ALL, 0)]
    trainer.close()
    assert told == [(native._ALL, 0), (native._USUAL, native._MAPS)]
