"""Sound: classification, recognition of speech, and speech with a decoder."""

from typing import Any

import torch

from tests.zoo import losses, records
from tests.zoo.families.encoders import IDS
from tests.zoo.family import Family, Layers, hf
from tests.zoo.records import BINS, FRAMES, LABELS, VOCABULARY

KIND = "sound"

WAVE = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": VOCABULARY,
    "conv_dim": [8, 8], "conv_kernel": [4, 3], "conv_stride": [4, 2], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_labels": LABELS, "classifier_proj_size": 8,
    "mask_time_length": 2, **IDS,
}  # fmt: skip
"""Dropout, layer drop and masking of the input are the library's own."""
SPEECH = {
    "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "decoder_start_token_id": 1,
    "max_source_positions": 16, "max_target_positions": 16, **IDS,
}  # fmt: skip
TWO: tuple[Layers, ...] = (None, "model.encoder.layers", ("model.encoder.layers", "model.decoder.layers"))


def hears(name: str, model: str, *, ctc: bool = False, layers: tuple[Layers, ...] = (None,), **more: Any) -> Family:
    """A classifier of sounds, or a recogniser of speech."""
    collate, loss = (records.spoken, losses.transcribe) if ctc else (records.sounds, losses.classify)
    return Family(name, KIND, hf(model, WAVE, **more), records.sound, collate, loss, layers, model=model)


def spectral(name: str, model: str, collate, loss, options: dict[str, Any], layers: tuple[Layers, ...] = (None,)) -> Family:
    return Family(name, KIND, hf(model, options), records.spectrum, collate, loss, layers, model=model)


SOUNDS = (
    hears("wav2vec 2.0, norm over time", "Wav2Vec2ForSequenceClassification"),
    hears("wav2vec 2.0, norm per frame", "Wav2Vec2ForSequenceClassification", feat_extract_norm="layer",
          do_stable_layer_norm=True),
    hears("wav2vec 2.0 CTC", "Wav2Vec2ForCTC", ctc=True, feat_extract_norm="layer", do_stable_layer_norm=True),
    hears("HuBERT", "HubertForSequenceClassification", feat_extract_norm="layer"),
    hears("HuBERT CTC", "HubertForCTC", ctc=True, feat_extract_norm="layer"),
    hears("wav2vec 2.0 CTC, without masking and layer drop", "Wav2Vec2ForCTC", ctc=True, feat_extract_norm="layer",
          do_stable_layer_norm=True, apply_spec_augment=False, layerdrop=0.0),
    hears("wav2vec 2.0 CTC, without masking", "Wav2Vec2ForCTC", ctc=True, feat_extract_norm="layer", do_stable_layer_norm=True,
          apply_spec_augment=False),
    Family("wav2vec 2.0 CTC of several lengths, without masking", KIND, hf("Wav2Vec2ForCTC", WAVE, feat_extract_norm="layer",
                                                                         do_stable_layer_norm=True, apply_spec_augment=False),
           records.sound, lambda e: _short(records.spoken(e)), losses.transcribe, model="Wav2Vec2ForCTC"),
    hears("HuBERT, without masking and layer drop", "HubertForSequenceClassification", feat_extract_norm="layer",
          apply_spec_augment=False, layerdrop=0.0),
    hears("WavLM", "WavLMForSequenceClassification", feat_extract_norm="layer"),
    Family("WavLM CTC, norm first, of several lengths", KIND, hf("WavLMForCTC", WAVE, feat_extract_norm="layer",
                                                               do_stable_layer_norm=True, apply_spec_augment=False),
           records.sound, lambda e: _short(records.spoken(e)), losses.transcribe, model="WavLMForCTC"),
    hears("UniSpeech", "UniSpeechForSequenceClassification", feat_extract_norm="layer"),
    hears("UniSpeech-SAT", "UniSpeechSatForSequenceClassification", feat_extract_norm="layer"),
    hears("Data2Vec audio", "Data2VecAudioForSequenceClassification"),
    hears("SEW", "SEWForSequenceClassification", squeeze_factor=2, feat_extract_norm="layer"),
    hears("SEW-D", "SEWDForSequenceClassification", squeeze_factor=2, feat_extract_norm="layer"),
    hears("wav2vec 2.0 Conformer", "Wav2Vec2ConformerForSequenceClassification", feat_extract_norm="layer",
          conv_depthwise_kernel_size=3),
    Family("wav2vec 2.0 BERT", KIND, hf("Wav2Vec2BertForSequenceClassification", WAVE, feature_projection_input_dim=BINS,
                                        conv_depthwise_kernel_size=3),
           records.spectrum, lambda e: _frames(records.spectra(e)), losses.classify,
           model="Wav2Vec2BertForSequenceClassification"),
    spectral("Audio Spectrogram Transformer", "ASTForAudioClassification",
             lambda e: {"input_values": (rows := records.spectra(e))["input_features"].mT, "labels": rows["labels"]},
             losses.classify, {
                 "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
                 "patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": FRAMES, "num_mel_bins": BINS,
                 "num_labels": LABELS}),
    spectral("Whisper", "WhisperForConditionalGeneration", records.transcribed, losses.translate, {
        **SPEECH, "num_mel_bins": BINS, "max_source_positions": FRAMES // 2, "suppress_tokens": [],
        "begin_suppress_tokens": []}, TWO),
    spectral("Whisper classifier", "WhisperForAudioClassification", records.spectra, losses.classify, {
        **SPEECH, "num_mel_bins": BINS, "max_source_positions": FRAMES // 2, "num_labels": LABELS,
        "classifier_proj_size": 8}),
    spectral("Speech2Text", "Speech2TextForConditionalGeneration", lambda e: _frames(records.transcribed(e)),
             losses.translate, {
        **SPEECH, "input_feat_per_channel": BINS, "input_channels": 1, "conv_channels": 16, "conv_kernel_sizes": [3, 3]},
        TWO),
    Family("Moonshine", KIND, hf("MoonshineForConditionalGeneration", {
        "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2,
        "max_position_embeddings": 32, "decoder_start_token_id": 1, **IDS}), records.sound,
        lambda e: _said(e), losses.translate, TWO, model="MoonshineForConditionalGeneration"),
    Family("Parakeet CTC", KIND, hf("ParakeetForCTC", {
        "vocab_size": VOCABULARY, "pad_token_id": 0, "encoder_config": {
            "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
            "num_mel_bins": BINS, "subsampling_conv_channels": 4, "subsampling_factor": 2, "conv_kernel_size": 3}}),
        records.spectrum, lambda e: _ctc(records.transcribed(e)), losses.transcribe, model="ParakeetForCTC"),
)  # fmt: skip


def _short(rows: dict[str, Any]) -> dict[str, Any]:
    """Every other sound is shorter, and padded."""
    wave = rows["input_values"]
    ends = wave.shape[1] - 8 * (rows["labels"][:, :1] % 2)
    inside = torch.arange(wave.shape[1]) < ends
    return rows | {"input_values": wave * inside, "attention_mask": inside.long()}


def _frames(rows: dict[str, Any]) -> dict[str, Any]:
    """Frames before bins, as these models want them."""
    return rows | {"input_features": rows["input_features"].mT.contiguous()}


def _said(examples: list[Any]) -> dict[str, Any]:
    """A longer sound (Moonshine's strides are fixed) with what is said, shifted for the decoder."""
    rows = records.spoken(examples)
    said = rows["labels"].clamp_min(0)
    return {"input_values": rows["input_values"].repeat(1, 20), "decoder_input_ids": said[:, :-1], "labels": said[:, 1:]}


def _ctc(rows: dict[str, Any]) -> dict[str, Any]:
    frames = _frames(rows)
    return {"input_features": frames["input_features"], "labels": frames["labels"][:, :2]}
