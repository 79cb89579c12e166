"""Models of several kinds of input: pictures with texts, pages, sounds with texts."""

from typing import Any

import torch
from torch import nn

from tests.zoo import losses, records
from tests.zoo.families.decoders import GEMMA_3N
from tests.zoo.families.decoders import SIZES as DECODER
from tests.zoo.families.encoders import IDS, SIZES
from tests.zoo.families.vision import VIT
from tests.zoo.family import Family, Layers, Rows, hf
from tests.zoo.records import BINS, BOS, LABELS, PAD, SIDE, SPECIAL, VOCABULARY

KIND = "several kinds of input"

EYE = {key: VIT[key] for key in VIT if key != "num_labels"}
WORDS = {key: SIZES[key] for key in SIZES if key != "num_labels"}
TOWERS: tuple[Layers, ...] = (
    None, "text_model.encoder.layers", ("text_model.encoder.layers", "vision_model.encoder.layers"),
)  # fmt: skip


def two_towers(name: str, model: str, *, layers: tuple[Layers, ...] = TOWERS, frozen=("logit_scale",), **more: Any) -> Family:
    """A text and a picture, with a loss of each pair by itself."""
    loss = more.pop("loss", losses.agree)
    words, eye = WORDS | more.pop("text", {}), EYE | more.pop("eye", {})
    options = {"text_config": words, "vision_config": eye, "projection_dim": 8, **more}
    return Family(name, KIND, hf(model, options), records.captioned, records.pairs, loss, layers, frozen, model)


def _negatives(model: nn.Module, rows: Rows) -> torch.Tensor:
    """What CLIP was trained with: every other picture of the batch is a negative."""
    logits = model(**losses.inputs(rows)).logits_per_text
    return nn.functional.cross_entropy(logits, torch.arange(len(logits)), reduction="none")


def with_picture(count: int):
    """Collate for a model that sees its picture as ``count`` tokens at the beginning of the text."""

    def collate(examples: list[Any]) -> dict[str, Any]:
        rows = records.pairs(examples)
        place = torch.full((len(examples), count), SPECIAL)
        ids = torch.cat([rows["input_ids"][:, :1], place, rows["input_ids"][:, 1:]], 1)
        mask = torch.cat([rows["attention_mask"][:, :1], torch.ones_like(place), rows["attention_mask"][:, 1:]], 1)
        return {"input_ids": ids, "attention_mask": mask, "pixel_values": rows["pixel_values"]}

    return collate


def captions(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Next token of the text, where the picture's places are not told."""
    logits = model(**losses.inputs(rows), use_cache=False).logits[:, :-1]
    ids = rows["input_ids"]
    wanted = torch.where((rows["attention_mask"] != 0) & (ids != SPECIAL), ids, -100)[:, 1:]
    return losses.each(logits[:, -wanted.shape[1] :], wanted)


def speaks(
    name: str, model: str, tokens: int, options: dict[str, Any], layers: tuple[Layers, ...] = (None,), collate: Any = None
) -> Family:
    """A language model with eyes."""
    collate = collate or with_picture(tokens)
    return Family(name, KIND, hf(model, options), records.captioned, collate, captions, layers, model=model)


SOFT = 2
"""Tokens that a sound of Gemma 3n counts."""
EARS = VOCABULARY + 4
"""The first id of a sound; those of a picture are before it."""


def _hears() -> nn.Module:
    """Gemma 3n with its own audio tower; in the place of its eyes, which timm would make, stand those of SigLIP."""
    from transformers import Gemma3nConfig, Gemma3nForConditionalGeneration, SiglipVisionConfig

    text = {**DECODER, **GEMMA_3N, "vocab_size": EARS + 4}
    ears = {
        "vocab_size": 4, "vocab_offset": EARS, "input_feat_size": BINS, "hidden_size": 16, "conf_attention_chunk_size": 2,
        "conf_attention_context_left": 3, "conf_num_attention_heads": 2, "conf_num_hidden_layers": 2,
        "conf_conv_kernel_size": 3, "conf_reduction_factor": 2, "sscp_conv_channel_size": (4, 4),
    }  # fmt: skip
    config = Gemma3nConfig(text_config=text, audio_config=ears, audio_soft_tokens_per_image=SOFT, audio_token_id=EARS,
                           image_token_id=VOCABULARY)  # fmt: skip
    eyes = SiglipVisionConfig(**SIGLIP_EYE)
    eyes.vocab_size, eyes.vocab_offset, eyes.rms_norm_eps = 4, VOCABULARY, 1e-6
    vars(config)["vision_config"] = eyes
    return Gemma3nForConditionalGeneration(config)


def _sounding(examples: list[Any]) -> dict[str, Any]:
    """A sound as tokens at the beginning of a text, and its frames, of which the last are padding now and then."""
    rows = records.tokens(examples)
    place = torch.full((len(examples), SOFT), EARS)
    bins = torch.tensor([e["bins"] for e in examples]).mT
    shown = torch.tensor([[frame < bins.shape[1] - 6 * e["label"] for frame in range(bins.shape[1])] for e in examples])
    return {
        "input_ids": torch.cat([rows["input_ids"][:, :1], place, rows["input_ids"][:, 1:]], 1),
        "attention_mask": torch.cat([rows["attention_mask"][:, :1], torch.ones_like(place), rows["attention_mask"][:, 1:]], 1),
        "input_features": bins, "input_features_mask": shown,
    }  # fmt: skip


def _after_sound(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Next token of the text, where the sound's places are not told."""
    logits = model(**losses.inputs(rows), use_cache=False).logits[:, :-1]
    ids = rows["input_ids"]
    return losses.each(logits, torch.where((rows["attention_mask"] != 0) & (ids != EARS), ids, -100)[:, 1:])


def _sung(seed: int) -> dict[str, Any]:
    return records.spectrum(seed) | records.text(seed)


def _typed(collate):
    """Adds what PaliGemma's processor adds: which tokens are prefix (0) and which are to be told (1)."""

    def typed(examples: list[Any]) -> dict[str, Any]:
        rows = collate(examples)
        return rows | {"token_type_ids": ((rows["input_ids"] != SPECIAL) & (rows["attention_mask"] != 0)).long()}

    return typed


LLAMA = {"model_type": "llama", **DECODER}
CLIP_EYE = {"model_type": "clip_vision_model", **EYE}
SIGLIP_EYE = {"model_type": "siglip_vision_model", **EYE}
PATCHES = (SIDE // 8) ** 2


def _qwen_rows(examples: list[Any]) -> dict[str, Any]:
    """A picture as Qwen-VL wants it: patches flattened, every example the same number, its own dimension first."""
    rows = with_picture(1)(examples)
    pixels = rows.pop("pixel_values")
    patches = pixels.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(len(examples), 4, 3 * 64)
    rows["patches"] = torch.cat([patches, patches], -1)
    return rows


def _qwen(model: nn.Module, rows: Rows) -> torch.Tensor:
    ids, mask, patches = rows["input_ids"], rows["attention_mask"], rows["patches"]
    grid = torch.tensor([[1, 2, 2]] * len(ids))
    types = (ids == SPECIAL).int()
    logits = model(
        input_ids=ids, attention_mask=mask, pixel_values=patches.flatten(0, 1), image_grid_thw=grid, use_cache=False,
        mm_token_type_ids=types,
    ).logits[:, :-1]  # fmt: skip
    return losses.each(logits, torch.where((mask != 0) & (ids != SPECIAL), ids, -100)[:, 1:])


def _pages(examples: list[Any]) -> dict[str, Any]:
    return records.with_boxes(examples)


def _seen_pages(examples: list[Any]) -> dict[str, Any]:
    return records.with_boxes(examples) | {"pixel_values": records.pictures(examples)["pixel_values"]}


def _regions(examples: list[Any]) -> dict[str, Any]:
    """Texts with features of regions, as VisualBERT and LXMERT read them."""
    rows = records.labelled(examples)
    pixels = records.pictures(examples)["pixel_values"]
    features = pixels.reshape(len(examples), 4, -1)[:, :, :16].contiguous()
    mask = torch.ones(len(examples), 4, dtype=torch.long)
    return rows | {"visual_embeds": features, "visual_attention_mask": mask}


def _lxmert(model: nn.Module, rows: Rows) -> torch.Tensor:
    places = torch.zeros(len(rows["labels"]), 4, 4)
    words = {key: rows[key] for key in ("input_ids", "attention_mask")}
    out = model(**words, visual_feats=rows["visual_embeds"], visual_pos=places)
    return nn.functional.cross_entropy(out.question_answering_score, rows["labels"], reduction="none")


def _heard(examples: list[Any]) -> dict[str, Any]:
    """A sound for the encoder, and a text of which every token is to be told."""
    rows = records.transcribed(examples)
    return {"input_features": rows["input_features"], "decoder_input_ids": rows["decoder_input_ids"], "labels": rows["labels"]}


def _vision_decoder():
    from transformers import AutoConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel

    low = AutoConfig.for_model("vit", **EYE)
    high = AutoConfig.for_model("gpt2", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=32,
                                is_decoder=True, add_cross_attention=True, **IDS)  # fmt: skip
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(low, high)
    config.decoder_start_token_id, config.pad_token_id = BOS, PAD
    return VisionEncoderDecoderModel(config=config)


def _vision_text():
    from transformers import AutoConfig, VisionTextDualEncoderConfig, VisionTextDualEncoderModel

    seen, read = AutoConfig.for_model("vit", **EYE), AutoConfig.for_model("bert", **SIZES)
    return VisionTextDualEncoderModel(config=VisionTextDualEncoderConfig.from_vision_text_configs(seen, read, projection_dim=8))


def _captioned(examples: list[Any]) -> dict[str, Any]:
    rows = records.translated(examples)
    return {
        "pixel_values": records.pictures(examples)["pixel_values"], "decoder_input_ids": rows["decoder_input_ids"],
        "labels": rows["labels"],
    }  # fmt: skip


SEVERAL = (
    two_towers("CLIP, text and picture", "CLIPModel"),
    two_towers("CLIP with the other pairs as negatives", "CLIPModel", loss=_negatives),
    two_towers("SigLIP, text and picture", "SiglipModel", frozen=("logit_scale", "logit_bias")),
    two_towers("Chinese CLIP", "ChineseCLIPModel", layers=(None, "text_model.encoder.layer",
               ("text_model.encoder.layer", "vision_model.encoder.layers"))),
    two_towers("MetaCLIP 2", "MetaClip2Model"),
    two_towers("GroupViT", "GroupViTModel", eye={"depths": [1, 1, 0], "num_group_tokens": [4, 0, 0],
               "num_output_groups": [2, 4, 0], "hidden_size": 16}),
    two_towers("BLIP, text and picture", "BlipModel"),
    two_towers("AltCLIP", "AltCLIPModel", text={"project_dim": 8}, layers=(None, "text_model.roberta.encoder.layer",
               ("text_model.roberta.encoder.layer", "vision_model.encoder.layers"))),
    Family("vision-text dual encoder", KIND, _vision_text, records.captioned, records.pairs, losses.agree,
           (None, "text_model.encoder.layer", ("text_model.encoder.layer", "vision_model.layers")), ("logit_scale",),
           "VisionTextDualEncoderModel"),
    Family("ViLT", KIND, hf("ViltForQuestionAnswering", SIZES | VIT, max_image_length=-1), records.captioned,
           records.labelled_pairs, losses.classify, model="ViltForQuestionAnswering"),
    Family("VisualBERT", KIND, hf("VisualBertForQuestionAnswering", SIZES, visual_embedding_dim=16), records.captioned,
           _regions, lambda model, rows: _visual(model, rows), model="VisualBertForQuestionAnswering"),
    Family("LXMERT", KIND, hf("LxmertForQuestionAnswering", {
        "vocab_size": VOCABULARY, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "l_layers": 2,
        "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16, "visual_pos_dim": 4, "num_qa_labels": LABELS,
        "max_position_embeddings": 32}), records.captioned, _regions, _lxmert,
        (None, "lxmert.encoder.layer", ("lxmert.encoder.layer", "lxmert.encoder.r_layers", "lxmert.encoder.x_layers")),
        model="LxmertForQuestionAnswering"),
    Family("LayoutLM", KIND, hf("LayoutLMForSequenceClassification", SIZES), records.text, _pages, losses.classify,
           model="LayoutLMForSequenceClassification"),
    Family("LayoutLMv3", KIND, hf("LayoutLMv3ForSequenceClassification", SIZES, input_size=SIDE, patch_size=8,
           coordinate_size=3, shape_size=2, rel_pos_bins=4, max_rel_pos=8, rel_2d_pos_bins=4, max_rel_2d_pos=8),
           records.captioned, _seen_pages, losses.classify, model="LayoutLMv3ForSequenceClassification"),
    Family("LiLT", KIND, hf("LiltForSequenceClassification", SIZES, hidden_size=24, channel_shrink_ratio=2), records.text,
           _pages, losses.classify, model="LiltForSequenceClassification"),
    Family("BROS", KIND, hf("BrosForTokenClassification", SIZES, hidden_size=64), records.text,
           lambda e: (rows := records.with_boxes(e)) | {"bbox": rows["bbox"] / 1000.0,
                                                        "labels": records.tagged(e)["labels"]},
           losses.tag, model="BrosForTokenClassification"),
    speaks("GIT", "GitForCausalLM", 0, {**WORDS, "vision_config": EYE}),
    speaks("LLaVA", "LlavaForConditionalGeneration", PATCHES, {
        "vision_config": CLIP_EYE, "text_config": LLAMA, "image_token_index": SPECIAL, "image_token_id": SPECIAL,
        "image_seq_length": PATCHES}, (None, "model.language_model.layers",
        ("model.vision_tower.encoder.layers", "model.language_model.layers"))),
    speaks("PaliGemma", "PaliGemmaForConditionalGeneration", PATCHES, {
        "vision_config": {**SIGLIP_EYE, "projection_dim": 16}, "text_config": {"model_type": "gemma", **DECODER},
        "image_token_id": SPECIAL, "image_token_index": SPECIAL, "projection_dim": 16}, (None, "model.language_model.layers")),
    speaks("PaliGemma, token types given", "PaliGemmaForConditionalGeneration", PATCHES, {
        "vision_config": {**SIGLIP_EYE, "projection_dim": 16}, "text_config": {"model_type": "gemma", **DECODER},
        "image_token_id": SPECIAL, "image_token_index": SPECIAL, "projection_dim": 16}, (None, "model.language_model.layers"),
        collate=_typed(with_picture(PATCHES))),
    speaks("Aya Vision", "AyaVisionForConditionalGeneration", 1, {
        "vision_config": SIGLIP_EYE, "text_config": {"model_type": "cohere2", **DECODER, "sliding_window": 4},
        "image_token_index": SPECIAL, "image_token_id": SPECIAL, "downsample_factor": 2, "adapter_layer_norm_eps": 1e-6},
        (None, "model.language_model.layers")),
    speaks("Gemma 3, with pictures", "Gemma3ForConditionalGeneration", 1, {
        "vision_config": {**SIGLIP_EYE, "vision_use_head": False},
        "text_config": {"model_type": "gemma3_text", **DECODER, "sliding_window": 4},
        "image_token_index": SPECIAL, "image_token_id": SPECIAL, "mm_tokens_per_image": 1},
        (None, "model.language_model.layers")),
    Family("Gemma 3n, with sound", KIND, _hears, _sung, _sounding, _after_sound, (None, "model.language_model.layers"),
           frozen=("vision_tower",), model="Gemma3nForConditionalGeneration", draw=3),
    Family("Qwen2-VL", KIND, hf("Qwen2VLForConditionalGeneration", {
        "text_config": {**DECODER, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                       "mrope_section": [1, 1, 0]}},
        "vision_config": {"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2, "patch_size": 8,
                          "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3},
        "image_token_id": SPECIAL, "video_token_id": 39, "vision_start_token_id": 38, "vision_end_token_id": 37}),
        records.captioned, _qwen_rows, _qwen, (None, "model.language_model.layers"), model="Qwen2VLForConditionalGeneration"),
    Family("Qwen2-VL, vision frozen", KIND, hf("Qwen2VLForConditionalGeneration", {
        "text_config": {**DECODER, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                       "mrope_section": [1, 1, 0]}},
        "vision_config": {"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2, "patch_size": 8,
                          "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3},
        "image_token_id": SPECIAL, "video_token_id": 39, "vision_start_token_id": 38, "vision_end_token_id": 37}),
        records.captioned, _qwen_rows, _qwen, (None, "model.language_model.layers"), frozen=("visual",),
        model="Qwen2VLForConditionalGeneration"),
    Family("vision encoder-decoder of ViT and GPT-2", KIND, _vision_decoder, records.captioned, _captioned, losses.translate,
           (None, "encoder.layers", ("encoder.layers", "decoder.transformer.h")), model="VisionEncoderDecoderModel"),
    Family("BLIP captions", KIND, hf("BlipForConditionalGeneration", {
        "text_config": {**WORDS, "encoder_hidden_size": 16, "is_decoder": True, "projection_dim": 8}, "vision_config": EYE,
        "image_text_hidden_size": 8}), records.captioned, records.pairs, lambda model, rows: _blip(model, rows),
        model="BlipForConditionalGeneration"),
    Family("Donut Swin", KIND, hf("DonutSwinForImageClassification", {
        "image_size": SIDE, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 2,
        "num_labels": LABELS}), records.picture, records.pictures, losses.classify, model="DonutSwinForImageClassification"),
    Family("FLAVA text", KIND, hf("FlavaTextModel", WORDS), records.text, records.labelled,
           lambda model, rows: _first(model, rows), model="FlavaTextModel"),
    Family("CLAP audio", KIND, hf("ClapAudioModelWithProjection", {
        "patch_embeds_hidden_size": 8, "hidden_size": 16, "depths": [1, 1], "num_attention_heads": [2, 2], "patch_size": 2,
        "patch_stride": [2, 2], "window_size": 2, "num_mel_bins": BINS, "spec_size": 2 * BINS, "projection_dim": LABELS}),
        records.spectrum, lambda e: {"input_features": (r := records.spectra(e))["input_features"].mT[:, None].contiguous(),
                                     "labels": r["labels"]},
        lambda model, rows: nn.functional.cross_entropy(
            model(input_features=rows["input_features"], is_longer=torch.zeros(len(rows["labels"]), 1)).audio_embeds,
            rows["labels"], reduction="none"), model="ClapAudioModelWithProjection"),
)  # fmt: skip


def _visual(model: nn.Module, rows: Rows) -> torch.Tensor:
    logits = model(**losses.inputs(rows)).logits
    return nn.functional.cross_entropy(logits, rows["labels"], reduction="none")


def _blip(model: nn.Module, rows: Rows) -> torch.Tensor:
    logits = model(**losses.inputs(rows)).logits
    ids = rows["input_ids"]
    return losses.each(logits[:, :-1], torch.where(rows["attention_mask"] != 0, ids, -100)[:, 1:])


def _first(model: nn.Module, rows: Rows) -> torch.Tensor:
    """A probe of the first token's features, as one who has no head yet would try."""
    found = model(**losses.inputs(rows)).last_hidden_state[:, 0, :LABELS]
    return nn.functional.cross_entropy(found, rows["labels"], reduction="none")
