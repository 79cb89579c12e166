"""Text encoders, each with the head that people train most: classification of a text."""

from typing import Any

import torch

from tests.zoo import losses, records
from tests.zoo.family import Family, Layers, hf
from tests.zoo.records import BOS, EOS, LABELS, MASK, PAD, VOCABULARY

KIND = "text encoder"

IDS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 32, "num_labels": LABELS, **IDS,
}  # fmt: skip


def encoder(name: str, model: str, *, layers: tuple[Layers, ...] = (None,), **more: Any) -> Family:
    """A classifier of texts, its configuration from the usual names of sizes."""
    frozen = more.pop("frozen", ())
    made = hf(model, SIZES, **more)
    return Family(name, KIND, made, records.text, records.labelled, losses.classify, layers, frozen, model)


def classifier(name: str, model: str, options: dict[str, Any], **more: Any) -> Family:
    """A classifier of texts with sizes under names of its own."""
    return Family(name, KIND, hf(model, options), records.text, records.labelled, losses.classify, model=model, **more)


XLM = {
    "vocab_size": VOCABULARY, "emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 32, "num_labels": LABELS,
    "pad_index": PAD, "bos_index": BOS, "eos_index": EOS, "n_langs": 1, "use_lang_emb": False,
}  # fmt: skip

XLNET = {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "num_labels": LABELS}


def _in_two(examples: list[Any]) -> dict[str, Any]:
    """Texts whose second half is a segment of its own."""
    rows = records.labelled(examples)
    half = torch.arange(rows["input_ids"].shape[1]) >= rows["input_ids"].shape[1] // 2
    return rows | {"token_type_ids": half.long().expand_as(rows["input_ids"]).clone()}


def _permuted(examples: list[Any]) -> dict[str, Any]:
    """Texts of which the last two tokens are predicted, the earlier one without a look at the other."""
    rows = records.tokens(examples)
    count, length = rows["input_ids"].shape
    hidden = torch.zeros(count, length, length)
    hidden[:, :, -1] = hidden[:, -2, -2] = hidden[:, :-2, -2] = 1.0
    target = torch.zeros(count, 2, length)
    target[:, 0, -2] = target[:, 1, -1] = 1.0
    return rows | {"perm_mask": hidden, "target_mapping": target, "labels": rows["input_ids"][:, -2:].clone()}


ENCODERS = (
    encoder("BERT", "BertForSequenceClassification"),
    encoder("RoBERTa", "RobertaForSequenceClassification"),
    encoder("XLM-RoBERTa", "XLMRobertaForSequenceClassification"),
    encoder("XLM-RoBERTa XL", "XLMRobertaXLForSequenceClassification"),
    encoder("CamemBERT", "CamembertForSequenceClassification"),
    encoder("RoBERTa, norm first", "RobertaPreLayerNormForSequenceClassification"),
    encoder("X-MOD", "XmodForSequenceClassification", languages=["en_XX"], default_language="en_XX"),
    encoder("Data2Vec text", "Data2VecTextForSequenceClassification"),
    encoder("ELECTRA", "ElectraForSequenceClassification", embedding_size=8),
    encoder("ALBERT", "AlbertForSequenceClassification", embedding_size=8,
            layers=(None, "albert.encoder.albert_layer_groups")),
    encoder("ERNIE", "ErnieForSequenceClassification"),
    encoder("Megatron-BERT", "MegatronBertForSequenceClassification"),
    encoder("RemBERT", "RemBertForSequenceClassification", input_embedding_size=8, output_embedding_size=8),
    encoder("RoFormer", "RoFormerForSequenceClassification"),
    encoder("RoCBert", "RoCBertForSequenceClassification", pronunciation_vocab_size=VOCABULARY, shape_vocab_size=VOCABULARY,
            pronunciation_embed_dim=8, shape_embed_dim=8),
    encoder("ESM", "EsmForSequenceClassification", mask_token_id=MASK),
    encoder("ESM, rotary", "EsmForSequenceClassification", mask_token_id=MASK, position_embedding_type="rotary"),
    encoder("I-BERT", "IBertForSequenceClassification"),
    encoder("ConvBERT", "ConvBertForSequenceClassification", embedding_size=16, head_ratio=1, conv_kernel_size=3),
    encoder("SqueezeBERT", "SqueezeBertForSequenceClassification", embedding_size=16, q_groups=1, k_groups=1, v_groups=1,
            post_attention_groups=1, intermediate_groups=1, output_groups=1),
    encoder("MobileBERT", "MobileBertForSequenceClassification", embedding_size=8, intra_bottleneck_size=8,
            num_feedforward_networks=2),
    encoder("MPNet", "MPNetForSequenceClassification"),
    encoder("MPNet, relative positions frozen", "MPNetForSequenceClassification", frozen=("relative_attention_bias",)),
    encoder("DeBERTa", "DebertaForSequenceClassification", relative_attention=True, pos_att_type=["c2p", "p2c"],
            pooler_hidden_size=16),
    encoder("DeBERTa v2", "DebertaV2ForSequenceClassification", relative_attention=True, pos_att_type=["c2p", "p2c"],
            pooler_hidden_size=16),
    encoder("DeBERTa v2, with a convolution", "DebertaV2ForSequenceClassification", relative_attention=True, conv_kernel_size=3,
            pos_att_type=["c2p", "p2c"], pooler_hidden_size=16, position_buckets=4, norm_rel_ebd="layer_norm"),
    encoder("DeBERTa v3", "DebertaV2ForSequenceClassification", relative_attention=True, pos_att_type=["p2c", "c2p"],
            pooler_hidden_size=16, position_buckets=4, norm_rel_ebd="layer_norm", share_att_key=True, type_vocab_size=0,
            position_biased_input=False),
    encoder("DeBERTa v2, relative positions frozen", "DebertaV2ForSequenceClassification", relative_attention=True,
            pos_att_type=["c2p", "p2c"], pooler_hidden_size=16, frozen=("rel_embeddings",)),
    encoder("ModernBERT", "ModernBertForSequenceClassification", cls_token_id=BOS, sep_token_id=EOS),
    encoder("Nomic-BERT", "NomicBertForSequenceClassification"),
    encoder("EuroBERT", "EuroBertForSequenceClassification", num_key_value_heads=2),
    encoder("Jina embeddings v3", "JinaEmbeddingsV3ForSequenceClassification"),
    encoder("FNet", "FNetForSequenceClassification", tpu_short_seq_length=8),
    encoder("Nystromformer", "NystromformerForSequenceClassification", num_landmarks=8, segment_means_seq_len=8),
    encoder("YOSO", "YosoForSequenceClassification", use_expectation=True),
    encoder("MRA", "MraForSequenceClassification"),
    encoder("BigBird", "BigBirdForSequenceClassification", attention_type="original_full"),
    encoder("LUKE", "LukeForSequenceClassification", entity_vocab_size=8, entity_emb_size=8),
    encoder("LayoutLM without a page", "LayoutLMForSequenceClassification"),
    encoder("CANINE", "CanineForSequenceClassification", num_hash_functions=2, num_hash_buckets=16, local_transformer_stride=4,
            downsampling_rate=2),
    classifier("DistilBERT", "DistilBertForSequenceClassification",
               {"vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "num_labels": LABELS,
                "max_position_embeddings": 32}),
    classifier("FlauBERT", "FlaubertForSequenceClassification", XLM),
    classifier("XLM", "XLMForSequenceClassification", XLM),
    classifier("XLNet", "XLNetForSequenceClassification", XLNET),
    Family("XLNet with segments", KIND, hf("XLNetForSequenceClassification", XLNET), records.text, _in_two,
           losses.classify, model="XLNetForSequenceClassification"),
    Family("XLNet as a language model", KIND, hf("XLNetLMHeadModel", XLNET), records.text, _permuted, losses.tag,
           model="XLNetLMHeadModel"),
    classifier("Funnel", "FunnelForSequenceClassification",
               {"vocab_size": VOCABULARY, "block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24,
                "num_labels": LABELS}),
    Family("Longformer", KIND, hf("LongformerForSequenceClassification", SIZES, attention_window=4), records.text,
           records.long_labelled, losses.classify, model="LongformerForSequenceClassification"),
    classifier("Reformer", "ReformerForSequenceClassification",
               {"vocab_size": VOCABULARY, "hidden_size": 16, "attn_layers": ["local", "lsh"], "num_attention_heads": 2,
                "attention_head_size": 8, "feed_forward_size": 24, "axial_pos_embds": False, "max_position_embeddings": 8,
                "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_buckets": 2, "num_hashes": 1,
                "is_decoder": False, "pad_token_id": PAD, "eos_token_id": EOS, "num_labels": LABELS}),
    classifier("Perceiver", "PerceiverForSequenceClassification",
               {"vocab_size": VOCABULARY, "max_position_embeddings": 8, "d_model": 16, "d_latents": 16, "num_latents": 4,
                "num_blocks": 1, "num_self_attends_per_block": 2, "num_self_attention_heads": 2, "num_cross_attention_heads": 2,
                "num_labels": LABELS, "qk_channels": 16, "v_channels": 16}),
)  # fmt: skip
