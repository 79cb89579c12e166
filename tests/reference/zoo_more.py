"""More families of transformers: vision, sound, two towers, and newer language models; see :mod:`tests.reference.zoo`."""

import torch
from torch import nn

from tests.reference.zoo import DECODER, EAGER, ENCODER, VISION, VOCABULARY, Entry, next_token, pictures, tokens, translate


def sounds(rows: int) -> dict:
    g = torch.Generator().manual_seed(3)
    return {
        "input_values": torch.randn(rows, 120, generator=g, dtype=torch.float64),
        "labels": torch.randint(0, 3, (rows,), generator=g),
    }


def spectra(rows: int) -> dict:
    g = torch.Generator().manual_seed(3)
    return {
        "input_features": torch.randn(rows, 8, 16, generator=g, dtype=torch.float64),
        "input_ids": torch.randint(3, VOCABULARY, (rows, 4), generator=g),
    }


def pairs(rows: int) -> dict:
    return tokens(rows) | pictures(rows)


def transcribe(model: nn.Module, batch: dict) -> torch.Tensor:
    ids = batch["input_ids"]
    out = model(input_features=batch["input_features"], decoder_input_ids=ids.roll(1, 1), use_cache=False).logits
    return nn.functional.cross_entropy(out.mT, ids, reduction="none").mean(1)


def _both(model: nn.Module, batch: dict):
    return model(**{key: batch[key] for key in ("input_ids", "attention_mask", "pixel_values")})


def agree(model: nn.Module, batch: dict) -> torch.Tensor:
    """A loss of each pair by itself."""
    out = _both(model, batch)
    return 1.0 - (out.image_embeds * out.text_embeds).sum(1)


def contrast(model: nn.Module, batch: dict) -> torch.Tensor:
    """The loss that CLIP was trained with: every other pair of the batch is a negative."""
    logits = _both(model, batch).logits_per_image
    return nn.functional.cross_entropy(logits, torch.arange(len(logits)), reduction="none")


SHORT = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
CLIP = {
    "text_config": {
        **SHORT, "vocab_size": VOCABULARY, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2,
        "projection_dim": 6,
    },
    "vision_config": {**SHORT, "image_size": 8, "patch_size": 4, "projection_dim": 6},
    "projection_dim": 6,
}  # fmt: skip
SOUND = {
    **SHORT, "vocab_size": VOCABULARY, "conv_dim": [4, 4], "conv_kernel": [4, 3], "conv_stride": [3, 2],
    "num_feat_extract_layers": 2, "feat_extract_norm": "layer", "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0, "final_dropout": 0.0, "layerdrop": 0.0, "num_labels": 3, "classifier_proj_size": 4,
    "apply_spec_augment": False,
}  # fmt: skip
TRANSLATOR = {
    "vocab_size": VOCABULARY, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "max_position_embeddings": 16,
    "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
RELATIVE = {
    "vocab_size": VOCABULARY, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
    "dropout_rate": 0.0, "relative_attention_num_buckets": 8, "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
LATENT = {
    **DECODER, "num_key_value_heads": 4, "q_lora_rank": 4, "kv_lora_rank": 4, "qk_rope_head_dim": 2, "qk_nope_head_dim": 2,
    "v_head_dim": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 6, **EAGER,
}  # fmt: skip

MORE: dict[str, Entry] = {
    "xlm_roberta": Entry("XLMRobertaForSequenceClassification", "XLMRobertaConfig", ENCODER),
    "camembert": Entry("CamembertForSequenceClassification", "CamembertConfig", ENCODER),
    "roformer": Entry("RoFormerForSequenceClassification", "RoFormerConfig", ENCODER),
    "esm": Entry(
        "EsmForSequenceClassification", "EsmConfig", {**ENCODER, "mask_token_id": 4, "position_embedding_type": "rotary"}
    ),
    "xlnet": Entry(
        "XLNetForSequenceClassification", "XLNetConfig",
        {"vocab_size": VOCABULARY, "d_model": 8, "n_layer": 2, "n_head": 2, "d_inner": 12, "dropout": 0.0,
         "summary_last_dropout": 0.0, "num_labels": 3},
        refused="BATCH_DIMENSION",
    ),
    "longformer": Entry(
        "LongformerForSequenceClassification", "LongformerConfig",
        {**ENCODER, "attention_window": 4, "max_position_embeddings": 24}, generic=True,
    ),
    "funnel": Entry(
        "FunnelForSequenceClassification", "FunnelConfig",
        {"vocab_size": VOCABULARY, "block_sizes": [1, 1], "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 12,
         "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "num_labels": 3},
        refused="GRADIENT_MISMATCH",
    ),
    "llama_with_biases": Entry(
        "LlamaForCausalLM", "LlamaConfig",
        {**DECODER, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}, next_token, single=True,
    ),
    "smollm3": Entry("SmolLM3ForCausalLM", "SmolLM3Config", DECODER, next_token, single=True),
    "gemma3": Entry(
        "Gemma3ForCausalLM", "Gemma3TextConfig", {**DECODER, "head_dim": 4, "sliding_window": 3}, next_token, single=True
    ),
    "phi3": Entry("Phi3ForCausalLM", "Phi3Config", {**DECODER, "resid_pdrop": 0.0, "embd_pdrop": 0.0}, next_token, single=True),
    "olmo2": Entry("Olmo2ForCausalLM", "Olmo2Config", DECODER, next_token, single=True),
    "cohere": Entry("CohereForCausalLM", "CohereConfig", DECODER, next_token, single=True),
    "stablelm": Entry("StableLmForCausalLM", "StableLmConfig", DECODER, next_token),
    "starcoder2": Entry(
        "Starcoder2ForCausalLM", "Starcoder2Config", {**DECODER, "residual_dropout": 0.0, "embedding_dropout": 0.0}, next_token
    ),
    "qwen3_moe": Entry(
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig",
        {**DECODER, "head_dim": 4, "num_experts": 4, "decoder_sparse_step": 1, "num_experts_per_tok": 2,
         "moe_intermediate_size": 6, **EAGER},
        next_token, generic=True, single=True,
    ),
    "deepseek_v2": Entry("DeepseekV2ForCausalLM", "DeepseekV2Config", LATENT, next_token, generic=True, single=True),
    "deepseek_v3": Entry("DeepseekV3ForCausalLM", "DeepseekV3Config", LATENT, next_token, generic=True, single=True),
    "mamba2": Entry(
        "Mamba2ForCausalLM", "Mamba2Config",
        {"vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 4, "num_heads": 4, "head_dim": 4,
         "n_groups": 1, "use_cache": False, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "chunk_size": 4},
        next_token, generic=True, single=True,
    ),
    "rwkv": Entry(
        "RwkvForCausalLM", "RwkvConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 2, "attention_hidden_size": 8,
         "intermediate_size": 12, "context_length": 16, "use_cache": False, "bos_token_id": 1, "eos_token_id": 1},
        next_token, generic=True,
    ),
    "mt5": Entry(
        "MT5ForConditionalGeneration", "MT5Config", RELATIVE, translate, layers="encoder.block", generic=True, single=True
    ),
    "mbart": Entry(
        "MBartForConditionalGeneration", "MBartConfig", TRANSLATOR, translate, layers="model.encoder.layers", generic=True
    ),
    "pegasus": Entry(
        "PegasusForConditionalGeneration", "PegasusConfig", TRANSLATOR, translate, layers="model.encoder.layers"
    ),
    "whisper": Entry(
        "WhisperForConditionalGeneration", "WhisperConfig",
        {**TRANSLATOR, "num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 8, "decoder_start_token_id": 1,
         "suppress_tokens": [], "begin_suppress_tokens": []},
        transcribe, spectra, layers="model.encoder.layers", generic=True,
    ),
    "wav2vec2": Entry(
        "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", {**SOUND, "do_stable_layer_norm": True, "mask_time_prob": 0.0},
        batch=sounds, layers="wav2vec2.encoder.layers", generic=True,
    ),
    "hubert": Entry(
        "HubertForSequenceClassification", "HubertConfig", SOUND, batch=sounds, layers="hubert.encoder.layers", generic=True
    ),
    "dinov2": Entry(
        "Dinov2ForImageClassification", "Dinov2Config", {**VISION, "mlp_ratio": 2, "drop_path_rate": 0.0},
        batch=pictures, generic=True,
    ),
    "deit": Entry("DeiTForImageClassification", "DeiTConfig", VISION, batch=pictures, generic=True),
    "beit": Entry("BeitForImageClassification", "BeitConfig", {**VISION, "drop_path_rate": 0.0}, batch=pictures, generic=True),
    "siglip": Entry(
        "SiglipForImageClassification", "SiglipConfig",
        {"text_config": {}, "vision_config": {**SHORT, "image_size": 8, "patch_size": 4}, "num_labels": 3},
        batch=pictures, generic=True,
    ),
    "clip": Entry(
        "CLIPModel", "CLIPConfig", CLIP, agree, pairs, layers="vision_model.encoder.layers", generic=True,
        frozen=("logit_scale",),
    ),
    "clip_with_negatives": Entry(
        "CLIPModel", "CLIPConfig", CLIP, contrast, pairs, layers="vision_model.encoder.layers", frozen=("logit_scale",),
        refused="CROSS_SAMPLE_GRADIENT",
    ),
    "clip_with_negatives_and_their_scale": Entry(
        "CLIPModel", "CLIPConfig", CLIP, contrast, pairs, layers="vision_model.encoder.layers",
        refused="NO_RULE|CROSS_SAMPLE_GRADIENT",
    ),
}  # fmt: skip
