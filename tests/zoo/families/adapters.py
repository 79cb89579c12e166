"""Tuners of peft over a frozen encoder and a frozen language model."""

from typing import Any

from torch import nn

from tests.zoo import losses, records
from tests.zoo.families import decoders, encoders, translators
from tests.zoo.family import Family, hf

KIND = "adapters of peft"

TUNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", {"r": 2}),
    "LoRA with dropout": ("LoraConfig", {"r": 2, "lora_dropout": 0.05}),
    "LoRA, all linear": ("LoraConfig", {"r": 2, "target_modules": "all-linear"}),
    "LoRA, rank stabilised": ("LoraConfig", {"r": 4, "use_rslora": True}),
    "LoRA with PiSSA": ("LoraConfig", {"r": 2, "init_lora_weights": "pissa"}),
    "DoRA": ("LoraConfig", {"r": 2, "use_dora": True}),
    "LoRA with biases": ("LoraConfig", {"r": 2, "bias": "lora_only"}),
    "AdaLoRA": ("AdaLoraConfig", {"init_r": 4, "target_r": 2, "total_step": 10, "tinit": 2, "tfinal": 2}),
    "IA3": ("IA3Config", {"feedforward_modules": []}),
    "LoHa": ("LoHaConfig", {"r": 2}),
    "LoKr": ("LoKrConfig", {"r": 2}),
    "OFT": ("OFTConfig", {"r": 0, "oft_block_size": 4}),
    "BOFT": ("BOFTConfig", {"boft_block_size": 4}),
    "VeRA": ("VeraConfig", {"r": 4}),
    "VB-LoRA": ("VBLoRAConfig", {"r": 2, "num_vectors": 8, "vector_length": 4, "topk": 2}),
    "RandLoRA": ("RandLoraConfig", {"r": 2}),
    "FourierFT": ("FourierFTConfig", {"n_frequency": 10}),
    "HRA": ("HRAConfig", {"r": 2}),
    "MiSS": ("MissConfig", {"r": 2}),
    "C3A": ("C3AConfig", {"block_size": 4}),
    "RoAd": ("RoadConfig", {"group_size": 4}),
    "SHiRA": ("ShiraConfig", {"r": 2}),
    "DeLoRA": ("DeloraConfig", {"r": 2}),
    "GraLoRA": ("GraloraConfig", {"r": 4, "gralora_k": 2}),
    "LN tuning": ("LNTuningConfig", {}),
    "Trainable tokens": ("TrainableTokensConfig", {"token_indices": list(range(5, 20))}),
    "Prompt tuning": ("PromptTuningConfig", {"num_virtual_tokens": 3}),
    "P-tuning": ("PromptEncoderConfig", {"num_virtual_tokens": 3, "encoder_hidden_size": 8}),
    "Prefix tuning": ("PrefixTuningConfig", {"num_virtual_tokens": 3}),
    "Prefix tuning, projected": (
        "PrefixTuningConfig", {"num_virtual_tokens": 3, "prefix_projection": True, "encoder_hidden_size": 8}),
}  # fmt: skip
"""Name, class of the configuration in peft, and its options."""

PROMPTS = ("Prompt tuning", "P-tuning", "Prefix tuning")


def tuned(base, tuner: str, task: str, targets: list[str], norms: list[str], embeddings: str):
    """Builds a base and puts a tuner on it."""

    def make() -> nn.Module:
        import peft

        kind, options = TUNERS[tuner]
        chosen = dict(options)
        if kind == "LNTuningConfig":
            chosen["target_modules"] = norms
        elif kind == "TrainableTokensConfig":
            chosen["target_modules"] = [embeddings]
        elif not tuner.startswith(PROMPTS):
            chosen.setdefault("target_modules", targets)
        return peft.get_peft_model(base(), getattr(peft, kind)(task_type=task, **chosen))

    return make


def over_bert(tuner: str) -> Family:
    make = tuned(hf("BertForSequenceClassification", encoders.SIZES), tuner, "SEQ_CLS", ["query", "value"],
                 ["attention.output.LayerNorm", "output.LayerNorm"], "word_embeddings")  # fmt: skip
    return Family(f"{tuner} over BERT", KIND, make, records.text, records.labelled, losses.classify, model=TUNERS[tuner][0],
                  shallow=tuner == "Trainable tokens")  # fmt: skip


def over_llama(tuner: str) -> Family:
    make = tuned(hf("LlamaForCausalLM", decoders.SIZES, num_key_value_heads=4), tuner, "CAUSAL_LM", ["q_proj", "v_proj"],
                 ["input_layernorm", "post_attention_layernorm"], "embed_tokens")  # fmt: skip
    loss = losses.next_token if tuner.startswith("Prefix") else losses.next_token_without_cache
    if tuner.startswith(("Prompt", "P-")):
        loss = _after_prompt
    shallow = tuner.startswith((*PROMPTS, "Trainable tokens"))
    return Family(
        f"{tuner} over Llama", KIND, make, records.text, records.tokens, loss, model=TUNERS[tuner][0], shallow=shallow
    )


def _after_prompt(model: nn.Module, rows):
    """Logits come back with the virtual tokens in front."""
    logits = model(**losses.inputs(rows), use_cache=False).logits[:, -rows["input_ids"].shape[1] :][:, :-1]
    target = rows["input_ids"].masked_fill(rows["attention_mask"] == 0, -100)[:, 1:]
    return losses.each(logits, target)


ADAPTERS = (
    *(over_bert(tuner) for tuner in TUNERS),
    *(over_llama(tuner) for tuner in TUNERS),
    Family("LoRA over GPT-2", KIND,
           tuned(hf("GPT2LMHeadModel", decoders.OLD), "LoRA", "CAUSAL_LM", ["c_attn"], ["ln_1"], "wte"),
           records.text, records.tokens, losses.next_token_without_cache, model="LoraConfig"),
    Family("LoRA over FSMT", KIND,
           tuned(hf("FSMTForConditionalGeneration", translators.FSMT), "LoRA", "SEQ_2_SEQ_LM", ["q_proj", "k_proj", "fc1"], [],
                 "embed_tokens"), records.text, records.translated, losses.translate, translators.OF_TUNED, model="LoraConfig"),
    Family("LoRA over XLNet", KIND,
           tuned(hf("XLNetForSequenceClassification", encoders.XLNET), "LoRA", "SEQ_CLS", ["layer_1", "layer_2"], [],
                 "word_embedding"), records.text, records.labelled, losses.classify, model="LoraConfig"),
    Family("LoRA over Mixtral", KIND, tuned(hf("MixtralForCausalLM", decoders.SIZES, num_local_experts=4), "LoRA", "CAUSAL_LM",
           ["q_proj", "v_proj"], [], "embed_tokens"), records.text, records.tokens, losses.next_token_without_cache,
           model="LoraConfig"),
)  # fmt: skip
