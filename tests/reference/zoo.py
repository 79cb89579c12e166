"""Model families of transformers from tiny random configurations, float64, without dropout, one loss per example."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from tests.reference.compare import Losses

VOCABULARY = 30
LENGTH = 5


def tokens(rows: int, *, padding: bool = True) -> dict:
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCABULARY, (rows, LENGTH), generator=g)
    mask = torch.ones_like(ids)
    if padding:
        short = torch.rand(rows, generator=g) < 0.5
        mask[short, -1] = 0
        ids[short, -1] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 3, (rows,), generator=g)}


def pictures(rows: int) -> dict:
    g = torch.Generator().manual_seed(3)
    return {
        "pixel_values": torch.randn(rows, 3, 8, 8, generator=g, dtype=torch.float64),
        "labels": torch.randint(0, 3, (rows,), generator=g),
    }


def classify(model: nn.Module, batch: dict) -> torch.Tensor:
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    return nn.functional.cross_entropy(model(**inputs).logits, batch["labels"], reduction="none")


def next_token(model: nn.Module, batch: dict) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    lost = nn.functional.cross_entropy(logits.mT, batch["input_ids"][:, 1:], reduction="none")
    return (lost * batch["attention_mask"][:, 1:]).sum(1) / LENGTH


def every_token(model: nn.Module, batch: dict) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return nn.functional.cross_entropy(logits.mT, batch["input_ids"], reduction="none").mean(1)


def translate(model: nn.Module, batch: dict) -> torch.Tensor:
    ids = batch["input_ids"]
    out = model(
        input_ids=ids, attention_mask=batch["attention_mask"], decoder_input_ids=ids.roll(1, 1)[:, :4], use_cache=False
    ).logits
    return nn.functional.cross_entropy(out.mT, ids[:, :4], reduction="none").mean(1)


ENCODER = {
    "vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 16, "num_labels": 3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}  # fmt: skip
DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 12,
    "max_position_embeddings": 16, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0,
    "attention_dropout": 0.0, "use_cache": False,
}  # fmt: skip
VISION = {
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "image_size": 8,
    "patch_size": 4, "num_channels": 3, "num_labels": 3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


DISENTANGLED = {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "pooler_hidden_size": 8}
EAGER = {"experts_implementation": "eager"}
"""The grouped products that transformers prefers know no float64."""


@dataclass(frozen=True)
class Entry:
    """How a family is built; ``refused`` is the error code where its gradient cannot be right."""

    model: str
    config: str
    options: dict = field(default_factory=dict)
    losses: Losses = classify
    batch: Callable[[int], dict] = tokens
    layers: str | None = None
    generic: bool = False
    """Whether a part of it takes the generic path."""
    refused: str | None = None
    frozen: tuple[str, ...] = ()
    """Parameters whose names contain one of these are not trained."""
    single: bool = False
    """Whether it computes norms or routing in float32 whatever its own type."""

    def build(self) -> nn.Module:
        import transformers

        torch.manual_seed(1)
        model = getattr(transformers, self.model)(getattr(transformers, self.config)(**self.options)).double().train()
        for name, p in model.named_parameters():
            if p.dim() == 1 or float(p.detach().abs().max()) == 0:
                nn.init.normal_(p, mean=float("norm" in name.lower()), std=0.2)  # zeros and ones would test little
            if any(part in name for part in self.frozen):
                p.requires_grad_(False)
        return model


ZOO: dict[str, Entry] = {
    "bert": Entry("BertForSequenceClassification", "BertConfig", ENCODER),
    "bert_masked_tokens": Entry("BertForMaskedLM", "BertConfig", ENCODER, every_token, generic=True),
    "roberta": Entry("RobertaForSequenceClassification", "RobertaConfig", ENCODER),
    "distilbert": Entry(
        "DistilBertForSequenceClassification", "DistilBertConfig",
        {"vocab_size": VOCABULARY, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": 16,
         "num_labels": 3, "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0},
    ),
    "albert_shared_layers": Entry(
        "AlbertForSequenceClassification", "AlbertConfig",
        {**ENCODER, "num_hidden_layers": 3, "embedding_size": 6, "num_hidden_groups": 1, "classifier_dropout_prob": 0.0},
        layers="albert.encoder.albert_layer_groups",
    ),
    "electra": Entry("ElectraForSequenceClassification", "ElectraConfig", {**ENCODER, "embedding_size": 6}),
    "modernbert": Entry(
        "ModernBertForSequenceClassification", "ModernBertConfig",
        {**ENCODER, "attention_dropout": 0.0, "embedding_dropout": 0.0, "mlp_dropout": 0.0, "classifier_dropout": 0.0,
         "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "deberta_v2": Entry("DebertaV2ForSequenceClassification", "DebertaV2Config", DISENTANGLED, generic=True),
    "deberta_v2_without_positions": Entry(
        "DebertaV2ForSequenceClassification", "DebertaV2Config", DISENTANGLED, generic=True, frozen=("rel_embeddings",)
    ),
    "mpnet": Entry("MPNetForSequenceClassification", "MPNetConfig", ENCODER),
    "mpnet_without_bias": Entry(
        "MPNetForSequenceClassification", "MPNetConfig", ENCODER, frozen=("relative_attention_bias",)
    ),
    "gpt2": Entry(
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.0,
         "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 1},
        next_token,
    ),
    "gpt_neox": Entry(
        "GPTNeoXForCausalLM", "GPTNeoXConfig",
        {**DECODER, "hidden_dropout": 0.0}, next_token,
    ),
    "gptj": Entry(
        "GPTJForCausalLM", "GPTJConfig",
        {"vocab_size": VOCABULARY, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "rotary_dim": 4,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 1},
        next_token,
    ),
    "opt": Entry(
        "OPTForCausalLM", "OPTConfig",
        {**DECODER, "ffn_dim": 12, "word_embed_proj_dim": 8, "dropout": 0.0}, next_token, generic=True,
    ),
    "bloom": Entry(
        "BloomForCausalLM", "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 8, "n_layer": 2, "n_head": 2, "hidden_dropout": 0.0,
         "attention_dropout": 0.0, "use_cache": False, "pad_token_id": 0},
        next_token,
    ),
    "falcon": Entry(
        "FalconForCausalLM", "FalconConfig",
        {**DECODER, "hidden_dropout": 0.0, "multi_query": True, "new_decoder_architecture": False}, next_token,
    ),
    "llama": Entry("LlamaForCausalLM", "LlamaConfig", DECODER, next_token, single=True),
    "mistral": Entry("MistralForCausalLM", "MistralConfig", {**DECODER, "sliding_window": 3}, next_token, single=True),
    "qwen2": Entry("Qwen2ForCausalLM", "Qwen2Config", {**DECODER, "tie_word_embeddings": True}, next_token, single=True),
    "qwen3": Entry("Qwen3ForCausalLM", "Qwen3Config", {**DECODER, "head_dim": 4}, next_token, single=True),
    "gemma": Entry("GemmaForCausalLM", "GemmaConfig", {**DECODER, "head_dim": 4}, next_token, single=True),
    "gemma2": Entry("Gemma2ForCausalLM", "Gemma2Config", {**DECODER, "head_dim": 4}, next_token, single=True),
    "phi": Entry(
        "PhiForCausalLM", "PhiConfig", {**DECODER, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "partial_rotary_factor": 0.5},
        next_token,
    ),
    "mixtral": Entry(
        "MixtralForCausalLM", "MixtralConfig", {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, **EAGER},
        next_token, generic=True, single=True,
    ),
    "qwen2_moe": Entry(
        "Qwen2MoeForCausalLM", "Qwen2MoeConfig",
        {**DECODER, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6,
         "shared_expert_intermediate_size": 6, "decoder_sparse_step": 1, **EAGER},
        next_token, generic=True, single=True,
    ),
    "granite_moe": Entry(
        "GraniteMoeForCausalLM", "GraniteMoeConfig", {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, **EAGER},
        next_token, generic=True, single=True,
    ),
    "olmoe": Entry(
        "OlmoeForCausalLM", "OlmoeConfig", {**DECODER, "num_experts": 4, "num_experts_per_tok": 2, **EAGER}, next_token,
        generic=True, single=True,
    ),
    "gpt_oss": Entry(
        "GptOssForCausalLM", "GptOssConfig",
        {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 4, "sliding_window": 3, **EAGER}, next_token,
        generic=True, single=True,
    ),
    "switch_transformers": Entry(
        "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig",
        {"vocab_size": VOCABULARY, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_decoder_layers": 2,
         "num_heads": 2, "dropout_rate": 0.0, "num_experts": 4, "expert_capacity": 2, "router_jitter_noise": 0.0,
         "pad_token_id": 0, "decoder_start_token_id": 0},
        translate, layers="encoder.block", refused="EXPERT_CAPACITY", single=True,
    ),
    "t5": Entry(
        "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_decoder_layers": 2,
         "num_heads": 2, "dropout_rate": 0.0, "relative_attention_num_buckets": 8, "pad_token_id": 0,
         "decoder_start_token_id": 0},
        translate, layers="encoder.block", generic=True, single=True,
    ),
    "bart": Entry(
        "BartForConditionalGeneration", "BartConfig",
        {"vocab_size": VOCABULARY, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "max_position_embeddings": 16,
         "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        translate, layers="model.encoder.layers", generic=True,
    ),
    "vit": Entry("ViTForImageClassification", "ViTConfig", VISION, batch=pictures, generic=True),
    "convnext": Entry(
        "ConvNextForImageClassification", "ConvNextConfig",
        {"num_channels": 3, "patch_size": 2, "hidden_sizes": [4, 8], "depths": [1, 2], "num_stages": 2, "num_labels": 3,
         "layer_scale_init_value": 0.5},
        batch=pictures, layers="convnext.encoder.stages", generic=True,
    ),
    "resnet_with_batch_norm": Entry(
        "ResNetForImageClassification", "ResNetConfig",
        {"num_channels": 3, "embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "num_labels": 3},
        batch=pictures, layers="resnet.encoder.stages", refused="BATCH_NORM",
    ),
    "swin": Entry(
        "SwinForImageClassification", "SwinConfig",
        {"image_size": 8, "patch_size": 2, "num_channels": 3, "embed_dim": 4, "depths": [1, 1], "num_heads": [2, 2],
         "window_size": 2, "num_labels": 3, "drop_path_rate": 0.0},
        batch=pictures, layers="swin.encoder.layers", refused="BATCH_DIMENSION",
    ),
    "mamba": Entry(
        "MambaForCausalLM", "MambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 4, "use_cache": False,
         "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0},
        next_token, generic=True, single=True,
    ),
}  # fmt: skip
