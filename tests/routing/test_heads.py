"""Heads by structure: in every known class, perturbing what is attributed to a head changes the output of that head alone."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch import nn  # noqa: E402

from dptrain.blocks.heads import LAYOUTS, find_heads  # noqa: E402
from dptrain.blocks.stack import layer_stack  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

TEXT = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
BIASED = {**GROUPED, "attention_bias": True}
GPT = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 1}
SEQ2SEQ = {
    "vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1,
}  # fmt: skip
IMAGE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "image_size": 8,
    "patch_size": 4, "num_channels": 1,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}

KNOWN: dict[str, tuple[str, dict]] = {
    "AlbertAttention": ("albert", {**TEXT, "embedding_size": 8}),
    "BartAttention": ("bart", SEQ2SEQ),
    "BertAttention": ("bert", TEXT),
    "BloomAttention": ("bloom", {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "CLIPAttention": ("clip_text_model", TEXT),
    "CohereAttention": ("cohere", BIASED),
    "DeiTAttention": ("deit", IMAGE),
    "Dinov2Attention": ("dinov2", IMAGE),
    "DistilBertSelfAttention": (
        "distilbert",
        {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 16},
    ),
    "ElectraAttention": ("electra", {**TEXT, "embedding_size": 8}),
    "GPT2Attention": ("gpt2", GPT),
    "GPTJAttention": ("gptj", {**GPT, "rotary_dim": 4}),
    "GPTNeoSelfAttention": (
        "gpt_neo",
        {"vocab_size": 50, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
         "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 1},
    ),
    "GPTNeoXAttention": ("gpt_neox", TEXT),
    "GemmaAttention": ("gemma", BIASED),
    "Gemma2Attention": ("gemma2", BIASED),
    "Gemma3Attention": ("gemma3_text", BIASED),
    "GptOssAttention": ("gpt_oss", {**BIASED, **EXPERTS}),
    "GraniteAttention": ("granite", BIASED),
    "LlamaAttention": ("llama", BIASED),
    "MPNetSelfAttention": ("mpnet", TEXT),
    "MistralAttention": ("mistral", GROUPED),
    "MixtralAttention": ("mixtral", {**GROUPED, **EXPERTS}),
    "ModernBertAttention": ("modernbert", {**TEXT, "cls_token_id": 1, "sep_token_id": 2, "attention_bias": True}),
    "MptAttention": ("mpt", {"vocab_size": 50, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 16}),
    "OPTAttention": (
        "opt",
        {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24,
         "max_position_embeddings": 16, "word_embed_proj_dim": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1},
    ),
    "PersimmonAttention": ("persimmon", TEXT),
    "PhiAttention": ("phi", GROUPED),
    "Phi3Attention": ("phi3", GROUPED),
    "Qwen2Attention": ("qwen2", GROUPED),
    "Qwen2MoeAttention": ("qwen2_moe", {**GROUPED, **EXPERTS}),
    "Qwen3Attention": ("qwen3", BIASED),
    "Qwen3MoeAttention": ("qwen3_moe", {**BIASED, **EXPERTS}),
    "RobertaAttention": ("roberta", TEXT),
    "SiglipAttention": ("siglip_vision_model", IMAGE),
    "SmolLM3Attention": ("smollm3", BIASED),
    "StableLmAttention": ("stablelm", {**GROUPED, "use_qkv_bias": True}),
    "Starcoder2Attention": ("starcoder2", GROUPED),
    "T5Attention": ("t5", {"vocab_size": 50, "d_model": 32, "d_kv": 8, "num_layers": 1, "num_heads": 4, "d_ff": 24,
                           "decoder_start_token_id": 0}),
    "ViTAttention": ("vit", IMAGE),
    "WhisperAttention": ("whisper", {**SEQ2SEQ, "num_mel_bins": 4, "max_source_positions": 6, "max_target_positions": 16}),
    "XLMRobertaAttention": ("xlm-roberta", TEXT),
}  # fmt: skip
"""A small configuration for every class in :data:`LAYOUTS`."""

BY_CONFIGURATION: dict[str, tuple[str, dict]] = {
    "falcon-grouped": ("falcon", {**TEXT, "num_kv_heads": 2, "new_decoder_architecture": True, "bias": True}),
    "falcon-multi-query": ("falcon", {**TEXT, "multi_query": True, "new_decoder_architecture": False, "bias": True}),
    "falcon-plain": ("falcon", {**TEXT, "multi_query": False, "new_decoder_architecture": False, "alibi": True, "bias": True}),
    "bigcode-multi-query": ("gpt_bigcode", {**GPT, "multi_query": True}),
    "bigcode-plain": ("gpt_bigcode", {**GPT, "multi_query": False}),
}


def tiny(name: str, settings: dict) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **settings)
    config._experts_implementation = "eager"  # grouped products of experts take no float64
    model = transformers.AutoModel.from_config(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def forward(model: nn.Module, grad: bool = False) -> None:
    ids = torch.randint(2, 50, (2, 6), generator=torch.Generator().manual_seed(3))
    config = model.config
    with torch.set_grad_enabled(grad):
        if model.main_input_name == "pixel_values":
            generator = torch.Generator().manual_seed(3)
            model(torch.randn(2, config.num_channels, config.image_size, config.image_size, generator=generator).double())
        elif model.main_input_name == "input_features":
            model(torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(3)).double(), decoder_input_ids=ids)
        elif getattr(config, "is_encoder_decoder", False):
            model(input_ids=ids, decoder_input_ids=ids)
        else:
            model(input_ids=ids)


def check_heads(model: nn.Module, run=forward) -> tuple[str, dict]:
    """Every run of every tensor of the first attention module, perturbed on its own. Returns what was found of it."""
    divisions, counts, _ = find_heads(model)
    path, heads = next(iter(counts.items()))
    parameters = dict(model.named_parameters())
    own = {name: d for name, d in divisions.items() if name.startswith(f"{path}.") and name in parameters}
    columns = {
        name: d for name, d in own.items()
        if d.dim is not None and name.startswith(f"{output_of(model, path)}.")
    }  # fmt: skip
    assert columns, "the output projection is divided"
    module = model.get_submodule(output_of(model, path))
    seen: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone()))

    def output() -> torch.Tensor:
        seen.clear()
        run(model)
        return seen[0].reshape(-1, seen[0].shape[-1])

    base = output()
    width = base.shape[1] // heads
    features = {h: set(range(h * width, (h + 1) * width)) for h in range(heads)}
    generator = torch.Generator().manual_seed(5)
    divided = 0
    for name, division in own.items():
        if name in columns or division.dim is None:
            continue
        assert [run.start for run in division.runs] == [0] + [run.stop for run in division.runs[:-1]]
        assert division.runs[-1].stop == parameters[name].shape[division.dim]
        for one in division.runs:
            kept = parameters[name].detach().clone()
            with torch.no_grad():
                slice_ = parameters[name].narrow(division.dim, one.start, one.stop - one.start)
                slice_.add_(torch.randn(slice_.shape, generator=generator).double())
            changed = set(torch.nonzero((output() - base).abs().amax(0) > 1e-9).flatten().tolist())
            with torch.no_grad():
                parameters[name].copy_(kept)
            allowed = set().union(*(features[h] for h in one.owners))
            assert changed <= allowed, f"{name}[{one.start}:{one.stop}] of heads {set(one.owners)} changes other heads"
            if parameters[name].dim() == 2:  # (the bias of keys shifts all scores of a query alike, and changes nothing)
                assert changed and all(changed & features[h] for h in one.owners), f"{name}[{one.start}:{one.stop}] is idle"
            divided += 1
    handle.remove()
    assert divided >= 3
    for name, division in columns.items():
        weight = parameters[name]
        for one in division.runs:
            (head,) = one.owners
            alone = torch.zeros(1, base.shape[1]).double()
            alone[0, sorted(features[head])] = 1.0
            others = torch.ones_like(weight)
            others.narrow(division.dim, one.start, one.stop - one.start).zero_()
            with torch.no_grad():
                kept = weight.detach().clone()
                before = module(alone)
                weight.add_(others)
                assert torch.equal(module(alone), before), "columns of other heads do not meet this head"
                weight.copy_(kept)
                weight.add_(1.0 - others)
                assert not torch.equal(module(alone), before)
                weight.copy_(kept)
    return path, own


def output_of(model: nn.Module, path: str) -> str:
    """The output projection of a known attention module, by its usual names."""
    module = model.get_submodule(path)
    for name in ("o_proj", "out_proj", "dense", "c_proj", "output.dense", "out_lin", "Wo", "o"):
        try:
            module.get_submodule(name)
        except AttributeError:
            continue
        return f"{path}.{name}"
    raise AssertionError(path)


def test_every_known_class_has_a_configuration_here() -> None:
    assert set(KNOWN) == set(LAYOUTS)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kind", sorted(KNOWN))
def test_what_is_attributed_to_a_head_moves_that_head_alone(kind: str) -> None:
    model = tiny(*KNOWN[kind])
    path, own = check_heads(model)
    assert type(model.get_submodule(path)).__name__ == kind
    if KNOWN[kind][1].get("num_key_value_heads") == 2:
        assert any(run.owners == {0, 1} for division in own.values() for run in division.runs), "a group of two query heads"


@pytest.mark.parametrize("kind", sorted(BY_CONFIGURATION))
def test_layouts_that_follow_the_configuration(kind: str) -> None:
    check_heads(tiny(*BY_CONFIGURATION[kind]))


def test_the_rows_of_torchs_own_attention() -> None:
    for settings in ({}, {"kdim": 5, "vdim": 7}):
        torch.manual_seed(0)
        model = nn.ModuleDict({"attention": nn.MultiheadAttention(16, 4, batch_first=True, **settings)}).double()
        attention = model["attention"]
        x, k, v = (torch.randn(2, 3, d).double() for d in (16, settings.get("kdim", 16), settings.get("vdim", 16)))
        divisions, counts, unknown = find_heads(model)
        assert counts == {"attention": 4} and not unknown
        with torch.no_grad():
            attention.out_proj.weight.copy_(torch.eye(16))
            base = attention(x, k, v)[0]
            for name in ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
                parameter = getattr(attention, name)
                if parameter is None:
                    continue
                for one in divisions[f"attention.{name}"].runs:
                    kept = parameter.clone()
                    parameter.narrow(0, one.start, one.stop - one.start).add_(
                        torch.randn(one.stop - one.start, *kept.shape[1:])
                    )
                    changed = set(torch.nonzero((attention(x, k, v)[0] - base).abs().amax((0, 1)) > 1e-9).flatten().tolist())
                    (head,) = one.owners
                    assert changed <= set(range(4 * head, 4 * head + 4)) and (changed or name == "in_proj_bias")
                    parameter.copy_(kept)
        assert [run.start for run in divisions["attention.out_proj.weight"].runs] == [0, 4, 8, 12]
        assert divisions["attention.out_proj.weight"].dim == 1 and divisions["attention.out_proj.bias"].dim is None


def test_what_the_heads_share_needs_all_of_them() -> None:
    model = tiny(*KNOWN["Qwen3Attention"])
    divisions, counts, _ = find_heads(model)
    path = next(iter(counts))
    for name in ("q_norm.weight", "k_norm.weight", "o_proj.bias"):
        assert divisions[f"{path}.{name}"].dim is None and divisions[f"{path}.{name}"].owners == {0, 1, 2, 3}
    assert f"{path.rpartition('.')[0]}.input_layernorm.weight" not in divisions, "a norm beside the attention is the layer's"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_lora_around_projections_is_divided_where_it_divides(name: str) -> None:
    peft = pytest.importorskip("peft")
    kind = {"gpt2": ("GPT2Attention", ["c_attn", "c_proj"]), "llama": ("LlamaAttention", ["q_proj", "v_proj", "o_proj"])}[name]
    model = peft.get_peft_model(tiny(*KNOWN[kind[0]]), peft.LoraConfig(r=2, target_modules=kind[1])).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    divisions, counts, unknown = find_heads(model)
    assert not unknown
    path = next(iter(counts))
    query, output = (kind[1][0], kind[1][-1])
    assert divisions[f"{path}.{query}.lora_A.default.weight"].dim is None, "all heads share the first factor"
    assert divisions[f"{path}.{query}.lora_B.default.weight"].dim == 0
    assert divisions[f"{path}.{output}.lora_A.default.weight"].dim == 1
    assert divisions[f"{path}.{output}.lora_B.default.weight"].dim is None
    base = model.base_model.model
    path, own = check_heads(base)
    assert f"{path}.{query}.lora_B.default.weight" in own


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("olmo2", GROUPED),
        ("codegen", {**GPT, "rotary_dim": 4}),
        ("deberta-v2", TEXT),
        ("roformer", {**TEXT, "embedding_size": 8}),
    ],
)
def test_attention_that_is_not_known_is_told(kind: str, settings: dict) -> None:
    """OLMo 2 norms queries over all heads; the others were never checked."""
    _, counts, unknown = find_heads(tiny(kind, settings))
    assert not counts and unknown and "Attention" in unknown[0].sentence


def test_cross_attention_of_gpt2_is_not_known() -> None:
    """Its fused projection has no queries; read as one of twice as many query as key-value heads, it would fit."""
    _, counts, unknown = find_heads(tiny("gpt2", {**GPT, "add_cross_attention": True}))
    assert set(counts) == {"h.0.attn", "h.1.attn"}
    assert [entry.path for entry in unknown] == ["h.0.crossattention", "h.1.crossattention"]


def test_a_class_of_the_same_name_from_elsewhere_is_not_known() -> None:
    class LlamaAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 2
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(self, name, nn.Linear(4, 4))

    _, counts, unknown = find_heads(nn.Sequential(LlamaAttention()))
    assert not counts and [entry.path for entry in unknown] == ["0"]


def test_shapes_that_do_not_fit_the_layout_are_told() -> None:
    model = tiny(*KNOWN["LlamaAttention"])
    path = next(iter(find_heads(model)[1]))
    model.get_submodule(path).k_proj = nn.Linear(32, 24)
    _, counts, unknown = find_heads(model)
    assert path not in counts and "outputs" in unknown[0].sentence
    assert layer_stack(model).owners["heads"].keys() == counts.keys()
