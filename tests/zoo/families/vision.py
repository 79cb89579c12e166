"""Vision: classification of pictures and films, and what a model of pictures gives for every pixel or object."""

from typing import Any

from torch import nn

from tests.zoo import losses, records
from tests.zoo.family import Family, Layers, hf
from tests.zoo.records import LABELS, SIDE

KIND = "vision"
DENSE = "segmentation, depth, detection"

VIT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": SIDE,
    "patch_size": 8, "num_channels": 3, "num_labels": LABELS,
}  # fmt: skip
STAGES = {
    "image_size": SIDE, "num_channels": 3, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2,
    "patch_size": 2, "num_labels": LABELS,
}  # fmt: skip
CONVOLVED = {"num_channels": 3, "hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "num_labels": LABELS}


def sees(name: str, model: str, options: dict[str, Any] = VIT, layers: tuple[Layers, ...] = (None,), **more: Any) -> Family:
    """A classifier of pictures."""
    note = more.pop("note", "")
    extra = {key: more.pop(key) for key in ("settle", "frozen") if key in more}
    made = hf(model, options, **more)
    return Family(name, KIND, made, records.picture, records.pictures, losses.classify, layers, model=model, note=note, **extra)


def dense(name: str, make: Any, collate, loss, layers: tuple[Layers, ...] = (None,), model: str = "", **more: Any) -> Family:
    return Family(name, DENSE, make, records.picture, collate, loss, layers, model=model, **more)


def still(model: nn.Module) -> None:
    """Puts batch normalisation in eval(), with its running statistics as they came."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def films(name: str, model: str, **more: Any) -> Family:
    options = VIT | {"image_size": 8, "patch_size": 4, "num_frames": 4} | more
    return Family(name, KIND, hf(model, options), records.film, records.films, losses.classify, model=model)


def on(model: str, body_of: str, shape: dict[str, Any], /, **options: Any):
    """Builds a model over a backbone of transformers (no timm)."""

    def make():
        import transformers

        kind = getattr(transformers, model)
        body = getattr(transformers, body_of)(**shape)
        return kind(kind.config_class(backbone_config=body, **options))

    return make


def _films(examples: list[Any]) -> dict[str, Any]:
    """Films under the name that V-JEPA gives them."""
    rows = records.films(examples)
    return {"pixel_values_videos": rows["pixel_values"], "labels": rows["labels"]}


RESNET = {
    "num_channels": 3, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": LABELS,
    "layer_type": "basic",
}  # fmt: skip
BODY = {**RESNET, "out_features": ["stage2"]}
BODY4 = {**RESNET, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "out_features": ["stage2", "stage3", "stage4"]}
DETR = {
    "use_timm_backbone": False, "use_pretrained_backbone": False, "num_labels": LABELS, "num_queries": 4, "d_model": 16,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "backbone": None,
}  # fmt: skip
OF_DETR: tuple[Layers, ...] = (None, "model.encoder.layers", ("model.encoder.layers", "model.decoder.layers"))

PICTURES = (
    sees("ViT", "ViTForImageClassification"),
    sees("DeiT", "DeiTForImageClassification"),
    sees("BEiT", "BeitForImageClassification"),
    sees("BEiT, relative positions", "BeitForImageClassification", use_relative_position_bias=True),
    sees("BEiT, shared relative positions", "BeitForImageClassification", use_shared_relative_position_bias=True),
    sees("Data2Vec vision", "Data2VecVisionForImageClassification"),
    sees("Data2Vec vision, relative positions", "Data2VecVisionForImageClassification", use_relative_position_bias=True),
    sees("DINOv2", "Dinov2ForImageClassification", mlp_ratio=2),
    sees("DINOv2 with registers", "Dinov2WithRegistersForImageClassification", mlp_ratio=2),
    sees("ViT-MSN", "ViTMSNForImageClassification"),
    sees("I-JEPA", "IJepaForImageClassification"),
    sees("Hiera", "HieraForImageClassification", {
        "image_size": [SIDE, SIDE], "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "patch_size": [4, 4],
        "patch_stride": [2, 2], "patch_padding": [1, 1], "masked_unit_size": [4, 4], "query_stride": [2, 2],
        "num_query_pool": 1, "num_labels": LABELS}),
    sees("Swin", "SwinForImageClassification", STAGES),
    sees("Swin v2", "Swinv2ForImageClassification", STAGES),
    sees("FocalNet", "FocalNetForImageClassification", {**STAGES, "focal_levels": [1, 1], "focal_windows": [3, 3]}),
    sees("PVT", "PvtForImageClassification", {
        "image_size": SIDE, "num_encoder_blocks": 2, "depths": [1, 1], "sequence_reduction_ratios": [2, 1],
        "hidden_sizes": [8, 16], "patch_sizes": [4, 2], "strides": [4, 2], "num_attention_heads": [1, 2],
        "mlp_ratios": [2, 2], "num_labels": LABELS}),
    sees("PVT v2", "PvtV2ForImageClassification", {
        "image_size": SIDE, "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16],
        "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "num_labels": LABELS}),
    sees("CvT", "CvtForImageClassification", {
        "patch_sizes": [7, 3], "patch_stride": [4, 2], "patch_padding": [2, 1], "embed_dim": [8, 16], "num_heads": [1, 2],
        "depth": [1, 2], "mlp_ratio": [2.0, 2.0], "attention_drop_rate": [0.0, 0.0], "drop_rate": [0.0, 0.0],
        "drop_path_rate": [0.0, 0.1], "qkv_bias": [True, True], "cls_token": [False, True],
        "qkv_projection_method": ["dw_bn", "dw_bn"], "kernel_qkv": [3, 3], "padding_kv": [1, 1], "stride_kv": [2, 2],
        "padding_q": [1, 1], "stride_q": [1, 1], "num_labels": LABELS}),
    sees("PoolFormer", "PoolFormerForImageClassification", {
        "num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3], "strides": [4, 2],
        "padding": [2, 1], "mlp_ratio": 2.0, "num_labels": LABELS}),
    sees("Segformer classifier", "SegformerForImageClassification", {
        "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3],
        "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "num_labels": LABELS}),
    sees("ConvNeXt", "ConvNextForImageClassification", CONVOLVED, patch_size=2),
    sees("ConvNeXt v2", "ConvNextV2ForImageClassification", CONVOLVED, patch_size=2),
    sees("ResNet", "ResNetForImageClassification", RESNET),
    sees("ResNet, statistics frozen", "ResNetForImageClassification", RESNET, settle=still,
         note="batch normalisation in `eval()`"),
    sees("RegNet", "RegNetForImageClassification", {**RESNET, "groups_width": 8, "layer_type": "y"}),
    sees("BiT", "BitForImageClassification", {**RESNET, "layer_type": "preactivation", "num_groups": 4},
         note="group normalisation"),
    sees("MobileNet v1", "MobileNetV1ForImageClassification", {"num_channels": 3, "image_size": SIDE, "depth_multiplier": 0.25,
                                                               "num_labels": LABELS}),
    sees("MobileNet v2", "MobileNetV2ForImageClassification", {"num_channels": 3, "image_size": SIDE, "depth_multiplier": 0.25,
                                                               "num_labels": LABELS}),
    sees("MobileNet v2, statistics frozen", "MobileNetV2ForImageClassification", {
        "num_channels": 3, "image_size": SIDE, "depth_multiplier": 0.25, "num_labels": LABELS}, settle=still,
        note="batch normalisation in `eval()`"),
    sees("EfficientNet", "EfficientNetForImageClassification", {
        "image_size": SIDE, "hidden_dim": 320, "in_channels": [8], "out_channels": [8], "kernel_sizes": [3],
        "depthwise_padding": [], "strides": [1], "num_block_repeats": [1], "expand_ratios": [1], "num_labels": LABELS,
        "width_coefficient": 0.25, "depth_coefficient": 1.0, "depth_divisor": 8}),
    sees("MobileViT", "MobileViTForImageClassification", {
        "image_size": 32, "patch_size": 2, "hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [4, 4, 8, 8, 8, 8, 16],
        "num_attention_heads": 2, "mlp_ratio": 1.5, "num_labels": LABELS}),
    sees("LeViT", "LevitForImageClassification", {
        "image_size": SIDE, "hidden_sizes": [16, 16, 16], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1],
        "key_dim": [4, 4, 4], "attention_ratio": [2, 2, 2], "mlp_ratio": [2, 2, 2], "num_labels": LABELS}),
    sees("SwiftFormer", "SwiftFormerForImageClassification", {
        "image_size": 32, "depths": [1, 1, 1, 1], "embed_dims": [8, 8, 8, 8], "num_labels": LABELS, "mlp_ratio": 2}),
    sees("SigLIP", "SiglipForImageClassification", {
        "vision_config": {key: VIT[key] for key in VIT if key != "num_labels"}, "text_config": {}, "num_labels": LABELS}),
    sees("CLIP", "CLIPForImageClassification", {
        "vision_config": {key: VIT[key] for key in VIT if key != "num_labels"}, "text_config": {}, "num_labels": LABELS},
        layers=(None, "vision_model.encoder.layers")),
    films("VideoMAE", "VideoMAEForVideoClassification", tubelet_size=2),
    films("ViViT", "VivitForVideoClassification", tubelet_size=[2, 4, 4]),
    films("TimeSformer", "TimesformerForVideoClassification"),
    Family("V-JEPA 2", KIND, hf("VJEPA2ForVideoClassification", VIT, crop_size=8, patch_size=4, frames_per_clip=4,
           tubelet_size=2, mlp_ratio=2, pred_hidden_size=16, pred_num_attention_heads=2,
           pred_num_hidden_layers=1, pred_num_mask_tokens=2), records.film, _films, losses.classify,
           (None, "vjepa2.encoder.layer"), model="VJEPA2ForVideoClassification"),
)  # fmt: skip

SCENES = (
    dense("BEiT segmentation", hf("BeitForSemanticSegmentation", VIT, out_indices=[1, 2, 3, 4], num_hidden_layers=4),
          records.segmented, losses.paint, model="BeitForSemanticSegmentation"),
    dense("Segformer", hf("SegformerForSemanticSegmentation", {
        "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3],
        "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "num_labels": LABELS,
        "decoder_hidden_size": 16}), records.segmented, losses.paint, model="SegformerForSemanticSegmentation"),
    dense("Segformer, statistics frozen", hf("SegformerForSemanticSegmentation", {
        "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3],
        "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "num_labels": LABELS,
        "decoder_hidden_size": 16}), records.segmented, losses.paint, model="SegformerForSemanticSegmentation", settle=still,
        note="batch normalisation in `eval()`"),
    dense("DPT segmentation", hf("DPTForSemanticSegmentation", VIT, is_hybrid=False, num_hidden_layers=4,
          backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8), records.segmented,
          losses.paint, model="DPTForSemanticSegmentation"),
    dense("UperNet over ConvNeXt", on("UperNetForSemanticSegmentation", "ConvNextConfig", {
        **CONVOLVED, "patch_size": 2, "out_features": ["stage1", "stage2"]}, hidden_size=8, pool_scales=[1, 2],
        use_auxiliary_head=False, num_labels=LABELS), records.segmented, losses.paint, model="UperNetForSemanticSegmentation"),
    dense("DPT depth", hf("DPTForDepthEstimation", VIT, is_hybrid=False, num_hidden_layers=4,
          backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8), records.deep,
          losses.measure, model="DPTForDepthEstimation"),
    dense("GLPN", hf("GLPNForDepthEstimation", {
        "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3],
        "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 8}), records.deep,
          losses.measure, model="GLPNForDepthEstimation"),
    dense("Depth Anything", on("DepthAnythingForDepthEstimation", "Dinov2Config", {
        **VIT, "mlp_ratio": 2, "num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "apply_layernorm": True,
        "reshape_hidden_states": False},
        reassemble_hidden_size=16, patch_size=8, neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8, head_hidden_size=4),
        records.deep, losses.measure, model="DepthAnythingForDepthEstimation", draw=1),
    dense("YOLOS", hf("YolosForObjectDetection", VIT, num_detection_tokens=4, image_size=[SIDE, SIDE]), records.boxed,
          losses.detect, model="YolosForObjectDetection"),
    dense("DETR", on("DetrForObjectDetection", "ResNetConfig", BODY, **DETR), records.boxed, losses.detect, OF_DETR,
          "DetrForObjectDetection"),
    dense("DETR, query positions frozen", on("DetrForObjectDetection", "ResNetConfig", BODY, **DETR), records.boxed,
          losses.detect, OF_DETR, "DetrForObjectDetection", frozen=("query_position_embeddings",)),
    dense("Conditional DETR", on("ConditionalDetrForObjectDetection", "ResNetConfig", BODY, **DETR), records.boxed,
          losses.detect, OF_DETR, "ConditionalDetrForObjectDetection"),
    dense("DAB-DETR", on("DabDetrForObjectDetection", "ResNetConfig", BODY, **{**DETR, "hidden_size": 16}), records.boxed,
          losses.detect, OF_DETR, "DabDetrForObjectDetection"),
    dense("DAB-DETR, query positions frozen", on("DabDetrForObjectDetection", "ResNetConfig", BODY, **{
        **DETR, "hidden_size": 16}), records.boxed, losses.detect, OF_DETR, "DabDetrForObjectDetection",
          frozen=("query_refpoint_embeddings",)),
    dense("Deformable DETR", on("DeformableDetrForObjectDetection", "ResNetConfig", BODY4, **{**DETR, "d_model": 32},
                                num_feature_levels=3, encoder_n_points=2, decoder_n_points=2), records.boxed,
          losses.detect, OF_DETR, "DeformableDetrForObjectDetection"),
    dense("Table Transformer", on("TableTransformerForObjectDetection", "ResNetConfig", BODY, **DETR), records.boxed,
          losses.detect, OF_DETR, "TableTransformerForObjectDetection"),
)  # fmt: skip
