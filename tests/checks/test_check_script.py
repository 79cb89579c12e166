"""A script is read and not run; what is said of its lines is what a run says, and scripts that are private are left alone."""

import re
from pathlib import Path

import pytest

from dptrain.checks.script import CALLS, METHODS, read
from dptrain.checks.verdict import Effect, NotChecked

ROOT = Path(__file__).resolve().parents[2]


def found(tmp_path: Path, text: str) -> dict[str, tuple[str, int]]:
    """Codes of a script, with effect and line."""
    script = tmp_path / "train.py"
    script.write_text(text)
    return {item.code: (item.effect.value, int(item.where.rpartition(":")[2])) for item in read(script).findings}


LINES = {
    "import torch\ntorch.nn.utils.clip_grad_norm_(p, 1.0)": ("ISOLATION", "weakened"),
    "from torch.nn.utils import clip_grad_norm_ as c\nc(p, 1.0)": ("ISOLATION", "weakened"),
    "\naccelerator.clip_grad_norm_(p, 1.0)": ("ISOLATION", "weakened"),
    "from torch import nn\nx = nn.BatchNorm2d(8)": ("BATCH_NORM", "refused"),
    "from torchvision.models import resnet18\nx = resnet18(weights=None)": ("BATCH_NORM", "refused"),
    "import torch.optim as o\nx = o.LBFGS(p)": ("CLOSURE_OPTIMIZER", "refused"),
    "from torch.optim import SparseAdam\nx = SparseAdam(p)": ("SPARSE_OPTIMIZER", "refused"),
    "from torch.cuda.amp import GradScaler\nx = GradScaler()": ("LOSS_SCALER", "refused"),
    "import accelerate\na = accelerate.Accelerator(mixed_precision='fp16')": ("LOSS_SCALER", "refused"),
    "import torch\nwith torch.autocast('cuda', dtype=torch.float16): pass": ("LOSS_SCALER", "refused"),
    "\nloss.mean().backward()": ("OUTSIDE_BACKWARD", "refused"),
    "\naccelerator.backward(loss)": ("OUTSIDE_BACKWARD", "refused"),
    "import torch.nn.functional as F\nx = F.cross_entropy(a, b)": ("LOSS_SHAPE", "refused"),
    "from torch.utils.data import DataLoader\nx = DataLoader(d, shuffle=True)": ("STEPS_IN_ORDER", "changed"),
    "\nx = tokenizer(texts, padding='longest')": ("PADDING", "refused"),
    "from transformers import DataCollatorWithPadding\nx = DataCollatorWithPadding(t)": ("PADDING", "refused"),
    "\nm, o, l = engine.make_private(module=m)": ("OPACUS", "refused"),
    "from transformers import Trainer\nt = Trainer(m)": ("OUTSIDE_BACKWARD", "refused"),
    "from transformers import Trainer\nclass Mine(Trainer): pass": ("OUTSIDE_BACKWARD", "refused"),
    "import trl\nt = trl.KTOTrainer(m)": ("COUPLED_TRAINER", "refused"),
    "from trl import SFTTrainer\nt = SFTTrainer(m)": ("OUTSIDE_BACKWARD", "refused"),
    "\nprint(f'loss {loss.item():.3f}')": ("LOGGED", "weakened"),
    "import wandb\nwandb.log({'loss': loss})": ("LOGGED", "weakened"),
    "\nscheduler.step(loss)": ("LOGGED", "weakened"),
    "\nt = make(train_dataset=d, eval_dataset=d)": ("EVALUATION", "refused"),
    "for x in loader:\n    backward\nfor x in loader: x.backward()\nfor y in loader: test(y)": ("EVALUATION", "weakened"),
    "import torch\nm = torch.nn.DataParallel(m)": ("WRAPPER", "refused"),
    "from torch.distributed.fsdp import FullyShardedDataParallel as F\nm = F(m)": ("WRAPPER", "refused"),
    "import deepspeed\nm, o, _, _ = deepspeed.initialize(model=m)": ("ENGINE", "refused"),
    "from accelerate.utils import MegatronLMPlugin\np = MegatronLMPlugin(tp_degree=2)": ("ENGINE", "refused"),
    "from accelerate import FullyShardedDataParallelPlugin as P\np = P(cpu_offload=True)": ("ENGINE", "refused"),
    "\na = TrainingArguments('out', fsdp=True, fsdp_config={'version': 1})": ("ENGINE", "refused"),
    "\na = TrainingArguments('out', deepspeed='ds.json')": ("ENGINE", "refused"),
    "from accelerate import ParallelismConfig\nc = ParallelismConfig(tp_size=2)": ("ENGINE", "refused"),
    "from torch.distributed.tensor.parallel import parallelize_module as p\np(m, mesh, plan)": ("ENGINE", "refused"),
    "from torch.distributed.pipelining import pipeline\np = pipeline(m)": ("ENGINE", "refused"),
    "\nm = M.from_pretrained('m', tp_plan='auto')": ("ENGINE", "refused"),
    "from torch.nn.parallel import DistributedDataParallel as D\nx = D(m, static_graph=True)": ("STATIC_GRAPH", "refused"),
    "from torch.distributed.optim import ZeroRedundancyOptimizer as Z\no = Z(p, A)": ("OPTIMIZER_SHARDED", "refused"),
    "from torch.utils.data import DistributedSampler\ns = DistributedSampler(d)": ("STEPS_IN_ORDER", "changed"),
    "import torch\nm = torch.compile(m)": ("COMPILED_MODEL", "refused"),
    "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True": ("MATMUL_PRECISION", "refused"),
    "\nx = SFTConfig('out', packing=True)": ("PACKING", "refused"),
    "\nx = TrainingArguments('out', auto_find_batch_size=True)": ("RETRIES", "refused"),
    "\nbest = trainer.hyperparameter_search()": ("SEARCH", "refused"),
    "from torch import nn\nx = nn.Embedding(9, 4, max_norm=1.0)": ("EMBEDDING_OPTIONS", "refused"),
    "\nparam.register_hook(f)": ("GRADIENT_HOOK", "refused"),
}


@pytest.mark.parametrize("text", LINES, ids=lambda text: text.strip().splitlines()[-1][:40])
def test_a_construct_is_found_on_its_line_with_its_code(text: str, tmp_path: Path) -> None:
    code, effect = LINES[text]
    assert found(tmp_path, text)[code] == (effect, len(text.splitlines()))


@pytest.mark.parametrize(
    "text",
    [
        "from torch import nn\nx = nn.GroupNorm(4, 8)",
        "import torch.nn.functional as F\nx = F.cross_entropy(a, b, reduction='none')",
        "print(val_loss, accuracy)",
        "x = tokenizer(t, padding='max_length', max_length=8)",
        "import torch\nwith torch.autocast('cuda', dtype=torch.bfloat16): pass",
        "import torch\ntorch.set_float32_matmul_precision('highest')",
        "def clip_grad_norm_(p): pass\nclip_grad_norm_(3)",
        "optimizer.step()",
        "for x in loader: test(x)",
        "import torch\ntorch.distributed.init_process_group('nccl')",
        "from accelerate import notebook_launcher\nnotebook_launcher(train, num_processes=2)",
        "from accelerate import FullyShardedDataParallelPlugin as P\np = P(fsdp_version=2)",
        "a = TrainingArguments('out', fsdp=True, fsdp_config={'version': 2})",
        "from accelerate import ParallelismConfig\nc = ParallelismConfig(dp_shard_size=2, tp_size=1)",
    ],
)
def test_what_a_run_takes_is_left_alone(text: str, tmp_path: Path) -> None:
    assert found(tmp_path, text) == {}


OPENED = "from dptrain import PrivateTraining\nprivate = PrivateTraining.own(data, accelerator=accelerator)\n"
PREPARED = "m, o, steps = private.prepare(m, o, collate)\n"


@pytest.mark.parametrize(
    "wrapped",
    [
        "from torch.nn.parallel import DistributedDataParallel as D\nm = D(m)\n",
        "from torch.distributed.fsdp import fully_shard\nfully_shard(m)\n",
    ],
)
def test_a_wrapper_of_several_processes_comes_before_the_run_is_prepared(wrapped: str, tmp_path: Path) -> None:
    assert found(tmp_path, OPENED + wrapped + PREPARED) == {}
    assert found(tmp_path, wrapped) == {}
    assert found(tmp_path, OPENED + PREPARED + wrapped) == {"NOT_WRAPPED": ("refused", 5)}


def test_accelerate_may_prepare_before_the_run(tmp_path: Path) -> None:
    assert found(tmp_path, OPENED + "m, o = accelerator.prepare(m, o)\n" + PREPARED) == {}


def test_a_script_is_never_run(tmp_path: Path) -> None:
    assert found(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(3)\nimport nothing_of_this_name\n") == {}
    assert not (tmp_path / "ran").exists()


def python_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_private_scripts_of_the_pages_and_recipes_have_nothing_to_change(tmp_path: Path) -> None:
    blocks = [*python_of("README.md"), *python_of("docs/trainers.md")]
    private = [text for text in blocks if "PrivateTraining" in text or "dptrain.integrations" in text]
    assert len(private) >= 4
    for text in [*private, *(path.read_text() for path in (ROOT / "recipes").rglob("*.py"))]:
        assert found(tmp_path, text) == {}, text


def test_plain_scripts_of_the_page_of_trainers_get_the_lines_of_the_private_ones(tmp_path: Path) -> None:
    plain = [text for text in python_of("docs/trainers.md") if "trainer = Trainer(" in text or "trainer = SFTTrainer(" in text]
    assert len(plain) == 2
    for text, module in zip(plain, ("dptrain.integrations.transformers", "dptrain.integrations.trl"), strict=True):
        (tmp_path / "train.py").write_text(text)
        assert any(module in item.repair for item in read(tmp_path / "train.py").findings)


def test_every_code_of_a_refusal_is_one_that_a_run_raises() -> None:
    files = [path for path in (ROOT / "dptrain").rglob("*.py") if path.parent.name not in ("checks", "cli")]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files)
    codes = {row[1] for row in (*CALLS.values(), *METHODS.values()) if row[0] is not Effect.CHANGED}
    codes |= {code for code, effect in LINES.values() if effect != "changed"}
    assert [code for code in sorted(codes) if f'"{code}"' not in sources] == []


def test_a_file_that_is_no_python_is_told_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\nfor for\n")
    with pytest.raises(NotChecked, match=r"SUBJECT.*line 2"):
        read(tmp_path / "train.py")
    with pytest.raises(NotChecked, match="SUBJECT"):
        read(tmp_path / "gone.py")
