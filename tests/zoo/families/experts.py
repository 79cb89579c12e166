"""Mixtures of experts, and models of state spaces, linear attention and convolution: language models of another kind."""

from tests.zoo import losses, records
from tests.zoo.families.decoders import SIZES, decoder
from tests.zoo.families.encoders import IDS
from tests.zoo.family import Family, hf
from tests.zoo.records import PAD, VOCABULARY

EXPERTS = "mixture of experts"
STATES = "state space or linear attention"

MOE = {**SIZES, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
LATENT = {
    **MOE, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
SHARED = {**MOE, "shared_expert_intermediate_size": 8, "decoder_sparse_step": 1}
STATE = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, **IDS}
SWITCH = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
    "num_experts": 4, "expert_capacity": 2, "pad_token_id": PAD, "decoder_start_token_id": PAD,
}  # fmt: skip


def moe(name: str, model: str, options: dict | None = None, /, **more) -> Family:
    return decoder(name, model, MOE if options is None else options, kind=EXPERTS, **more)


def state(name: str, model: str, options: dict | None = None, /, **more) -> Family:
    return decoder(name, model, STATE if options is None else options, kind=STATES, **more)


MIXTURES = (
    moe("Mixtral", "MixtralForCausalLM"),
    moe("Qwen2-MoE", "Qwen2MoeForCausalLM", SHARED),
    moe("Qwen3-MoE", "Qwen3MoeForCausalLM", SHARED),
    moe("Granite-MoE", "GraniteMoeForCausalLM"),
    moe("Granite-MoE, shared experts", "GraniteMoeSharedForCausalLM", shared_intermediate_size=8),
    moe("OLMoE", "OlmoeForCausalLM"),
    moe("FlexOlmo", "FlexOlmoForCausalLM"),
    moe("gpt-oss", "GptOssForCausalLM", sliding_window=4),
    moe("DeepSeek v2", "DeepseekV2ForCausalLM", LATENT),
    moe("DeepSeek v3", "DeepseekV3ForCausalLM", LATENT),
    moe("GLM-4 MoE", "Glm4MoeForCausalLM", {**LATENT, "num_key_value_heads": 2}),
    moe("GLM-4 MoE lite", "Glm4MoeLiteForCausalLM", LATENT),
    moe("dots.llm1", "Dots1ForCausalLM", LATENT),
    moe("ERNIE 4.5 MoE", "Ernie4_5_MoeForCausalLM", moe_num_experts=4, moe_k=2, moe_num_shared_experts=1,
        moe_layer_start_index=0),
    moe("HunYuan MoE", "HunYuanMoEV1ForCausalLM", moe_topk=2),
    moe("MiniMax M2", "MiniMaxM2ForCausalLM"),
    moe("PhiMoE", "PhimoeForCausalLM"),
    moe("AFMoE", "AfmoeForCausalLM", num_dense_layers=1, num_shared_experts=1, sliding_window=4),
    moe("Solar Open", "SolarOpenForCausalLM", LATENT),
    moe("JetMoE", "JetMoeForCausalLM", kv_channels=4, num_key_value_heads=2),
    moe("DBRX", "DbrxForCausalLM", {
        "vocab_size": VOCABULARY, "d_model": 16, "n_heads": 4, "n_layers": 2, "max_seq_len": 32,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4,
                                                                            "moe_top_k": 2}, **IDS}),
    moe("Llama 4 text", "Llama4ForCausalLM", {**MOE, "intermediate_size_mlp": 24, "interleave_moe_layer_step": 1}),
    moe("MiMo v2", "MiMoV2FlashForCausalLM", {**LATENT, "num_key_value_heads": 2, "sliding_window": 4}),
    moe("LongCat flash", "LongcatFlashForCausalLM", {
        **LATENT, "ffn_hidden_size": 24, "expert_ffn_hidden_size": 8, "zero_expert_num": 2, "moe_topk": 2, "num_layers": 1}),
    moe("LFM2 MoE", "Lfm2MoeForCausalLM", {**MOE, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    Family("Switch Transformers", EXPERTS, hf("SwitchTransformersForConditionalGeneration", SWITCH), records.text,
           records.translated, losses.translate, (None, "encoder.block", ("encoder.block", "decoder.block")),
           model="SwitchTransformersForConditionalGeneration"),
    Family("NLLB-MoE", EXPERTS, hf("NllbMoeForConditionalGeneration", {
        "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
        "num_experts": 4, "expert_capacity": 8, "encoder_sparse_step": 2, "decoder_sparse_step": 2, **IDS}), records.text,
           records.translated, losses.translate,
           (None, "model.encoder.layers", ("model.encoder.layers", "model.decoder.layers")),
           model="NllbMoeForConditionalGeneration"),
)  # fmt: skip

LINEAR = {
    "linear_conv_kernel_dim": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_num_key_heads": 2,
    "linear_num_value_heads": 2, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 4, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_d_conv": 2, "mamba_expand": 2,
          "mamba_chunk_size": 4}  # fmt: skip

LISTED = (None, "model.layers")
"""Layers of several classes in one list are found by its name alone."""

STATE_SPACES = (
    state("Mamba", "MambaForCausalLM"),
    state("Mamba 2", "Mamba2ForCausalLM", num_heads=8, head_dim=4, n_groups=1, chunk_size=4),
    state("Falcon-Mamba", "FalconMambaForCausalLM"),
    state("RWKV", "RwkvForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2,
                                      "attention_hidden_size": 16, "intermediate_size": 24, "context_length": 16, **IDS}),
    state("RecurrentGemma", "RecurrentGemmaForCausalLM", SIZES, lru_width=16, attention_window_size=4,
          block_types=["recurrent", "attention"]),
    state("Jamba", "JambaForCausalLM", MOE, layers=LISTED, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
          expert_layer_offset=1, mamba_d_state=4, mamba_dt_rank=2, use_mamba_kernels=False),
    state("Bamba", "BambaForCausalLM", SIZES, **MAMBA2, attn_layer_indices=[1]),
    state("Zamba", "ZambaForCausalLM", SIZES, layers=LISTED, n_mamba_heads=2, mamba_d_state=4, mamba_dt_rank=2,
          use_mamba_kernels=False,           num_hidden_layers=3,
          layers_block_type=["mamba", "hybrid", "hybrid"], attention_hidden_size=32, attention_head_dim=8),
    state("Zamba 2", "Zamba2ForCausalLM", {**SIZES, "num_key_value_heads": 4}, layers=LISTED, n_mamba_heads=8, mamba_headdim=4,
          mamba_d_state=4,
          mamba_ngroups=1, chunk_size=4, layers_block_type=["mamba", "hybrid"], num_mem_blocks=1, use_mem_rope=False,
          adapter_rank=4),
    state("Falcon-H1", "FalconH1ForCausalLM", SIZES, mamba_d_ssm=32, **MAMBA2),
    state("Granite-MoE hybrid", "GraniteMoeHybridForCausalLM", MOE, **MAMBA2, layer_types=["mamba", "attention"],
          shared_intermediate_size=8),
    state("Nemotron-H", "NemotronHForCausalLM", MOE, mamba_num_heads=8, mamba_head_dim=4, ssm_state_size=4, n_groups=1,
          chunk_size=4, layers_block_type=["mamba", "attention"]),
    state("LFM2", "Lfm2ForCausalLM", SIZES, layer_types=["conv", "full_attention"], block_multiple_of=8, conv_L_cache=3),
    state("Qwen3-Next", "Qwen3NextForCausalLM", SHARED, **LINEAR),
    state("Qwen3.5", "Qwen3_5ForCausalLM", SIZES, **LINEAR),
    state("OLMo hybrid", "OlmoHybridForCausalLM", SIZES, **LINEAR, layers=LISTED),
    state("MiniMax", "MiniMaxForCausalLM", MOE, layer_types=["linear_attention", "full_attention"], block_size=4),
    state("xLSTM", "xLSTMForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 16, "num_blocks": 2, "num_heads": 2,
                                        "qk_dim_factor": 0.5, "chunk_size": 4, **IDS}),
    state("Kimi linear", "KimiLinearForCausalLM", LATENT, linear_head_dim=4, linear_num_heads=2, linear_conv_kernel_dim=2,
          layer_types=["linear_attention", "full_attention"]),
    state("Doge", "DogeForCausalLM", SIZES, keep_window_size=4),
)  # fmt: skip
