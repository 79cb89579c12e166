"""Predicted seconds of a step: counts are those of real models, operations those that torch counts, and the page says so."""

import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dptrain.errors import ConfigError
from dptrain.planning import scaling
from dptrain.planning.per_rank import per_rank
from dptrain.planning.scaling import ASSUMED, MODELS, Inputs, Model, Source, fits, ranks_of, seconds
from tests.pages.scaling import GPUS, PAGES, STEPS, held, predicted

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
PLAIN = " ".join(PAGE.split())
WHOLE = ("gpt2-124m", "llama-1b", "llama-8b")
"""Models that are trained whole."""


def on_meta(name: str):
    """A real model of these sizes, without its weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    llama = {
        "llama-1b": {"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "tie_word_embeddings": True},
        "llama-8b": {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336, "tie_word_embeddings": False},
    }
    with torch.device("meta"):
        if name == "gpt2-124m":
            config = transformers.GPT2Config(bos_token_id=1, eos_token_id=1, attn_implementation="eager")
            return transformers.GPT2LMHeadModel(config)
        sizes = llama[name.removesuffix("-lora")]
        config = transformers.LlamaConfig(
            vocab_size=128256, num_attention_heads=32, num_key_value_heads=8, attn_implementation="eager", **sizes
        )
        model = transformers.LlamaForCausalLM(config)
        if not name.endswith("-lora"):
            return model
        peft = pytest.importorskip("peft")
        return peft.get_peft_model(model, peft.LoraConfig(r=scaling.RANK, target_modules="all-linear"))


@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_parameters_that_transformers_and_peft_count(name: str) -> None:
    model = on_meta(name)
    counts = [parameter.numel() for parameter in model.parameters()], [p.numel() for p in model.parameters() if p.requires_grad]
    assert (MODELS[name].parameters, MODELS[name].trained) == tuple(map(sum, counts))


@pytest.mark.one_in(99)
@pytest.mark.parametrize("name", ["gpt2-124m", "llama-1b"])
def test_operations_are_those_that_torch_counts_in_a_forward_and_backward_pass(name: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    model, tokens = on_meta(name), 128
    ids, mask = torch.zeros(1, tokens, dtype=torch.long, device="meta"), torch.zeros(1, 1, tokens, tokens, device="meta")
    with FlopCounterMode(display=False) as counted:
        model(input_ids=ids, attention_mask=mask, position_ids=ids, use_cache=False).logits.sum().backward()
    through, gradients, _ = scaling._operations(MODELS[name], tokens)
    assert counted.get_total_flops() == pytest.approx(tokens * (through + gradients), rel=0.005)


@pytest.mark.parametrize("tokens", [64, 512, 2048])
def test_a_norm_by_gram_matrices_is_counted_where_the_router_keeps_factors(tokens: int) -> None:
    torch = pytest.importorskip("torch")
    from dptrain.gradients.forms import Outer

    for name in MODELS:
        factored = 0
        for count, rows, columns in MODELS[name].learned:
            a, b = (torch.empty(1, tokens, width, device="meta") for width in (rows, columns))
            stored = Outer(a, b).settled(torch.Size((columns, rows)), alone=True)
            factored += count * 2 * tokens * (rows + columns) if isinstance(stored, Outer) else 0
        _, gradients, float32 = scaling._operations(MODELS[name], tokens)
        assert float32 - gradients == factored


def test_norms_and_sums_may_not_use_tensor_cores_as_the_formula_takes_for_granted() -> None:
    torch = pytest.importorskip("torch")
    from dptrain.engine.refusals import refuse_low_precision
    from dptrain.errors import NotPrivateUse

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        with pytest.raises(NotPrivateUse, match="MATMUL_PRECISION"):
            refuse_low_precision()
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_step_is_the_sum_of_its_parts_and_one_rank_sends_nothing() -> None:
    model = MODELS["llama-1b"]
    alone = seconds(model, ranks_of(model, 1024, 1, sharded=False), ASSUMED, 512)
    assert alone.communication == alone.plain_communication == 0
    assert alone.ledger == ASSUMED.window / ASSUMED.steps
    for processes in GPUS:
        ranks = ranks_of(model, 1024, processes, sharded=False)
        step = seconds(model, ranks, ASSUMED, 512)
        assert step.seconds == pytest.approx(step.compute + step.communication + step.noise + step.ledger)
        assert step.noise == math.ceil(model.trained / processes) * ASSUMED.noise
        assert step.ledger == pytest.approx(alone.ledger + (processes - 1) * ASSUMED.hop)
        assert step.plain_compute == pytest.approx(alone.plain_compute / processes)


def test_bytes_go_by_nvlink_inside_a_node_and_by_the_port_of_a_rank_to_others() -> None:
    model = MODELS["llama-1b"]
    sent = 4 * model.trained
    inside = scaling.communication(ranks_of(model, 1024, 8, sharded=False), ASSUMED)
    assert inside == pytest.approx(2 * 7 / 8 * sent / ASSUMED.nvlink, rel=1e-6)
    across = scaling.communication(ranks_of(model, 1024, 64, sharded=False), ASSUMED)
    pairs = sent * (7 / 64 / ASSUMED.nvlink + 56 / 64 / ASSUMED.fabric)
    assert across == pytest.approx(pairs + 63 / 64 * sent / (8 * ASSUMED.fabric), rel=1e-6)


def test_a_measured_ratio_takes_the_place_of_the_operations_in_float32() -> None:
    model = MODELS["llama-1b"]
    ranks = ranks_of(model, 1024, 8, sharded=False)
    step = seconds(model, ranks, replace(ASSUMED, ratio=2.5), 512)
    assert step.compute == pytest.approx(2.5 * step.plain_compute)
    assert seconds(model, ranks, replace(ASSUMED, utilisation=0.8), 512).plain_compute == pytest.approx(step.plain_compute / 2)


def test_what_nobody_measured_is_open_and_has_to_be_given() -> None:
    model = MODELS["gpt2-124m"]
    ranks = ranks_of(model, 64, 8, sharded=False)
    with pytest.raises(ConfigError, match="OPEN_INPUT"):
        seconds(model, ranks, Inputs(), 512)
    with pytest.raises(ConfigError, match="SIZES: 0 tokens"):
        seconds(model, ranks, ASSUMED, 0)
    open_ones = {item.name for item in fields(Inputs) if getattr(Inputs(), item.name) is None}
    assert open_ones == {item.name for item in fields(Inputs) if item.metadata["source"] is Source.GPU}
    performance = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    told = " ".join(performance.split())
    assert open_ones and "**It has not been run on a GPU yet**" in told, "put what make gpu measured into Inputs"


def test_inputs_measured_here_stand_on_the_page_that_they_name() -> None:
    performance = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    row = next(line for line in performance.splitlines() if line.startswith("| noise |"))
    assert f"**{ASSUMED.noise * 1e9:.1f}** of wall time on two threads" in row
    assert f"cost {ASSUMED.window * 1e3:.1f} ms per window of {ASSUMED.steps} steps on SQLite" in performance
    told = next(line.split(" | ") for line in performance.splitlines() if line.startswith("| `bert_full` | "))
    assert told[2].startswith(f"{ASSUMED.cpu_ratio} (")
    assert f"({0.39} ms)" in PAGE and ASSUMED.hop == pytest.approx(0.39e-3, rel=0.05)


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_the_page_are_what_the_formulas_give(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert PAGES[name](page) == page, "write it again: python -m tests.pages"
    assert PAGES[name](page.replace("989 TFLOP/s", "1,979 TFLOP/s")) == page


def test_the_page_calls_its_figures_predictions_and_names_every_model() -> None:
    assert "Every figure here is a prediction, unless it is called measured" in PLAIN
    assert all(name in PLAIN for name in MODELS)


def _at(name: str, contributions: int, processes: int):
    return predicted(MODELS[name], held(MODELS[name], contributions, processes))


def test_what_the_page_concludes_follows_from_its_formulas() -> None:
    for name in WHOLE:  # products in float32 are more than four fifths of the compute
        model, ranks = MODELS[name], held(MODELS[name], STEPS[1], 64)
        free = predicted(model, ranks, replace(ASSUMED, fp32=math.inf))
        assert 1 - free.compute / predicted(model, ranks).compute > 0.8
    assert "more than four fifths of the compute" in PLAIN

    lora = _at("llama-8b-lora", STEPS[1], 64)
    assert f"costs {lora.compute / lora.plain_compute - 1:.0%} more".replace("%", " %") in PLAIN

    ranks = held(MODELS["llama-8b"], STEPS[1], 64)
    sums = next(one for one in per_rank(ranks).sent if one.name == "sums")
    ratio = scaling._pairs(sums.bytes, ranks, ASSUMED) / scaling._ring(sums.bytes, ranks, ASSUMED)
    assert round(ratio) == 7 and "costs seven times a ring" in PLAIN

    large = _at("llama-1b", STEPS[0], 8)
    assert 0.09 < large.noise / large.seconds < 0.11 and "Noise on the host is a tenth of a step" in PLAIN


def test_whole_parameters_are_taken_where_they_fit_and_only_there() -> None:
    for name, model in MODELS.items():
        assert fits(ranks_of(model, 1024, 8, sharded=False), ASSUMED) == (name != "llama-8b")
        assert fits(held(model, 1024, 8), ASSUMED)
    few, many = (per_rank(held(MODELS["llama-8b"], 1024, processes)) for processes in (8, 64))
    assert f"with {few.peak_bytes / 1e9:.0f} GB a rank" in PLAIN and f"On 64 it is {many.peak_bytes / 1e9:.0f} GB" in PLAIN
    whole = sum(one.bytes for one in many.memory if one.when == "probes" and "W" not in one.inputs)
    assert many.peak_at == "probes" and f"of which {whole / 1e9:.0f} GB are no shard" in PLAIN


def test_the_predictions_beside_measurements_are_those_of_the_benchmark() -> None:
    pytest.importorskip("torch")
    from benchmarks.ranks import predicted as of_benchmark

    names = {"microbatches": "microbatches", "probes": "probes", "release": "release", "sent": "sent"}
    table = PAGE[PAGE.index("| ranks | microbatches |") :].split("\n\n")[0].splitlines()
    moments = [cell.strip() for cell in table[0].split("|")[2:-1]]
    rows = []
    for line in table[2:]:
        (processes, kind), *cells = (cell.split() for cell in line.split("|")[1:-1])
        rows += [(processes, kind, at, cell[0].rstrip(";"), cell[1]) for at, cell in zip(moments, cells, strict=True) if cell]
    assert len(rows) == 18
    for processes, kind, moment, said, seen in rows:
        assert int(said) == round(of_benchmark(int(processes), kind == "FSDP2")[names[moment]])
        assert 0.88 < float(seen) / float(said) < 1.12, "the page shows a prediction that does not hold"


def test_sizes_of_layers_and_of_the_largest_tensor_are_those_of_the_models() -> None:
    pytest.importorskip("torch")
    for name, model in MODELS.items():
        real = on_meta(name)
        inner = [parameter.numel() for key, parameter in real.named_parameters() if re.search(r"\.(h|layers)\.\d+\.", key)]
        norms = 0.002 * model.parameters  # norms and biases of layers count as outside here
        assert model.outside == pytest.approx(model.parameters - sum(inner), abs=norms)
        assert model.largest == max(parameter.numel() for parameter in real.parameters() if parameter.requires_grad)


def test_a_model_by_its_maps_counts_adapters_alone_where_only_these_train() -> None:
    model = Model(100, 1, 4, ((2, 4, 8), (1, 4, 16)), 7)
    assert (model.products, model.trained) == (128, 135)
    lora = replace(model, adapters=True)
    assert lora.trained == 2 * scaling.RANK * (4 + 8)
