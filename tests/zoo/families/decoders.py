"""Causal language models that are dense: every token of a text from those before it."""

from typing import Any

from tests.zoo import losses, records
from tests.zoo.families.encoders import IDS
from tests.zoo.family import Family, hf
from tests.zoo.records import BOS, EOS, VOCABULARY

KIND = "language model"

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 32, "head_dim": 4, **IDS,
}  # fmt: skip
"""What most models since Llama call their sizes."""
OLD = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, **IDS}
"""What GPT-2 and its kin call theirs."""

GEMMA_3N = {
    "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 4, "laurel_rank": 2, "num_hidden_layers": 4,
    "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2, "attention_dropout": 0.1,
    "activation_sparsity_pattern": [0.95, 0.0, 0.95, 0.0],
}  # fmt: skip
"""As the published models are: sparse layers, and layers that share their keys and values."""


def decoder(name: str, model: str, options: dict[str, Any] | None = None, /, kind: str = KIND, **more: Any) -> Family:
    """A causal language model; configurations that do not know a size ignore it, as transformers does."""
    extra = {key: more.pop(key) for key in ("layers", "frozen", "note") if key in more}
    made = hf(model, SIZES if options is None else options, **more)
    return Family(name, kind, made, records.text, records.tokens, losses.next_token_without_cache, model=model, **extra)


DECODERS = (
    decoder("GPT", "OpenAIGPTLMHeadModel", OLD),
    decoder("GPT-2", "GPT2LMHeadModel", OLD),
    decoder("GPT-2, untied", "GPT2LMHeadModel", OLD, tie_word_embeddings=False),
    decoder("GPT-Neo", "GPTNeoForCausalLM", {
        "vocab_size": VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24,
        "attention_types": [[["global", "local"], 1]], "window_size": 4, "max_position_embeddings": 32, **IDS}),
    decoder("GPT-J", "GPTJForCausalLM", OLD, rotary_dim=4),
    decoder("GPT-NeoX", "GPTNeoXForCausalLM"),
    decoder("GPT-NeoX Japanese", "GPTNeoXJapaneseForCausalLM", intermediate_multiple_size=2),
    decoder("GPT-BigCode", "GPTBigCodeForCausalLM", OLD),
    decoder("CodeGen", "CodeGenForCausalLM", OLD, rotary_dim=4, n_head=4),
    decoder("CTRL", "CTRLLMHeadModel", {**OLD, "dff": 24}),
    decoder("OPT", "OPTForCausalLM", ffn_dim=24, word_embed_proj_dim=16),
    decoder("BLOOM", "BloomForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 16, "n_layer": 2, "n_head": 2, **IDS}),
    decoder("Falcon", "FalconForCausalLM", {key: value for key, value in SIZES.items() if key != "head_dim"}),
    decoder("MPT", "MptForCausalLM", {"vocab_size": VOCABULARY, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 32,
                                      **IDS}),
    decoder("XGLM", "XGLMForCausalLM", {"vocab_size": VOCABULARY, "d_model": 16, "ffn_dim": 24, "num_layers": 2,
                                        "attention_heads": 2, "max_position_embeddings": 32, **IDS}),
    decoder("BioGPT", "BioGptForCausalLM"),
    decoder("Llama", "LlamaForCausalLM"),
    decoder("Llama, tied and with biases", "LlamaForCausalLM", tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    decoder("Mistral", "MistralForCausalLM", sliding_window=4),
    decoder("Ministral", "MinistralForCausalLM", sliding_window=4),
    decoder("Ministral 3", "Ministral3ForCausalLM"),
    decoder("Qwen2", "Qwen2ForCausalLM"),
    decoder("Qwen3", "Qwen3ForCausalLM"),
    decoder("Gemma", "GemmaForCausalLM"),
    decoder("Gemma 2", "Gemma2ForCausalLM", sliding_window=4),
    decoder("Gemma 3", "Gemma3ForCausalLM", sliding_window=4),
    decoder("VaultGemma", "VaultGemmaForCausalLM", sliding_window=4),
    decoder("Gemma 3n", "Gemma3nForCausalLM", layers=(None, "model.layers"), vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=4,
            laurel_rank=2, num_kv_shared_layers=0, layer_types=["sliding_attention", "full_attention"],
            activation_sparsity_pattern=[0.0, 0.0]),
    decoder("Gemma 3n, sparse and with shared keys", "Gemma3nForCausalLM", layers=(None, "model.layers"), **GEMMA_3N),
    decoder("Gemma 4", "Gemma4ForCausalLM", layers=(None, "model.layers"), vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=4,
            num_kv_shared_layers=0, global_head_dim=4, layer_types=["sliding_attention", "full_attention"]),
    decoder("Phi", "PhiForCausalLM"),
    decoder("Phi-3", "Phi3ForCausalLM"),
    decoder("OLMo", "OlmoForCausalLM"),
    decoder("OLMo 2", "Olmo2ForCausalLM"),
    decoder("OLMo 3", "Olmo3ForCausalLM", sliding_window=4),
    decoder("Cohere", "CohereForCausalLM"),
    decoder("Cohere 2", "Cohere2ForCausalLM", sliding_window=4),
    decoder("StableLM", "StableLmForCausalLM"),
    decoder("StarCoder 2", "Starcoder2ForCausalLM"),
    decoder("SmolLM3", "SmolLM3ForCausalLM"),
    decoder("Granite", "GraniteForCausalLM"),
    decoder("Persimmon", "PersimmonForCausalLM"),
    decoder("Nemotron", "NemotronForCausalLM"),
    decoder("GLM", "GlmForCausalLM"),
    decoder("GLM-4", "Glm4ForCausalLM"),
    decoder("Helium", "HeliumForCausalLM"),
    decoder("EXAONE 4", "Exaone4ForCausalLM", sliding_window=4),
    decoder("ERNIE 4.5", "Ernie4_5ForCausalLM"),
    decoder("Arcee", "ArceeForCausalLM"),
    decoder("Apertus", "ApertusForCausalLM"),
    decoder("Seed-OSS", "SeedOssForCausalLM"),
    decoder("HunYuan, dense", "HunYuanDenseV1ForCausalLM"),
    decoder("DiffLlama", "DiffLlamaForCausalLM"),
    decoder("MiniCPM3", "MiniCPM3ForCausalLM", q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4,
            v_head_dim=4, num_key_value_heads=4),
    decoder("YOUTU", "YoutuForCausalLM", q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4,
            num_key_value_heads=4),
    decoder("nanochat", "NanoChatForCausalLM"),
    decoder("ModernBERT decoder", "ModernBertDecoderForCausalLM", cls_token_id=BOS, sep_token_id=EOS),
    decoder("CWM", "CwmForCausalLM", sliding_window=4),
    decoder("Jais 2", "Jais2ForCausalLM"),
    decoder("HyperCLOVA X", "HyperCLOVAXForCausalLM"),
    decoder("BERT as a decoder", "BertLMHeadModel", is_decoder=True),
)  # fmt: skip
