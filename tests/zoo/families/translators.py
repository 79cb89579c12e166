"""Encoders with a decoder: translation and the like."""

from typing import Any

from tests.zoo import losses, records
from tests.zoo.families.encoders import IDS, SIZES
from tests.zoo.family import Family, Layers, hf
from tests.zoo.records import BOS, EOS, PAD, VOCABULARY

KIND = "encoder and decoder"

BART = {
    "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
    "decoder_start_token_id": EOS, "forced_eos_token_id": EOS, **IDS,
}  # fmt: skip
T5 = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
    "relative_attention_num_buckets": 8, "pad_token_id": PAD, "decoder_start_token_id": PAD,
}  # fmt: skip
OF_BART: tuple[Layers, ...] = (None, "model.encoder.layers", ("model.encoder.layers", "model.decoder.layers"))
PROPHET = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_encoder_layers": 2, "num_decoder_layers": 2, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24, "num_encoder_attention_heads": 2, "num_decoder_attention_heads": 2, "ngram": 2,
    "max_position_embeddings": 32, "decoder_start_token_id": BOS, **IDS,
}  # fmt: skip
OF_PROPHET: tuple[Layers, ...] = (None, "prophetnet.encoder.layers", ("prophetnet.encoder.layers", "prophetnet.decoder.layers"))
OF_TUNED: tuple[Layers, ...] = (None, "base_model.model.model.encoder.layers")
FSMT = {**BART, "langs": ["en", "de"], "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY}
OF_T5: tuple[Layers, ...] = (None, "encoder.block", ("encoder.block", "decoder.block"))


def translator(name: str, model: str, options: dict[str, Any] = BART, layers: tuple[Layers, ...] = OF_BART, **more) -> Family:
    frozen = more.pop("frozen", ())
    made = hf(model, options, **more)
    return Family(name, KIND, made, records.text, records.translated, losses.translate, layers, frozen, model)


def _two(encoder: str, decoder: str):
    """An encoder and a decoder of separate kinds, joined by cross attention."""

    def make():
        from transformers import AutoConfig, EncoderDecoderConfig, EncoderDecoderModel

        low = AutoConfig.for_model(encoder, **SIZES)
        high = AutoConfig.for_model(decoder, **SIZES, is_decoder=True, add_cross_attention=True)
        config = EncoderDecoderConfig.from_encoder_decoder_configs(low, high)
        config.decoder_start_token_id, config.pad_token_id = BOS, PAD
        return EncoderDecoderModel(config=config)

    return make


GEMMA = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 24, "head_dim": 8, "max_position_embeddings": 32, "sliding_window": 4,
}  # fmt: skip

TRANSLATORS = (
    translator("T5", "T5ForConditionalGeneration", T5, OF_T5),
    translator("T5 v1.1", "T5ForConditionalGeneration", T5, OF_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    translator("mT5", "MT5ForConditionalGeneration", T5, OF_T5),
    translator("UMT5", "UMT5ForConditionalGeneration", T5, OF_T5),
    translator("LongT5", "LongT5ForConditionalGeneration", T5, OF_T5, local_radius=3, encoder_attention_type="local"),
    translator("BART", "BartForConditionalGeneration"),
    translator("mBART", "MBartForConditionalGeneration"),
    translator("MVP", "MvpForConditionalGeneration"),
    translator("PLBART", "PLBartForConditionalGeneration"),
    translator("Pegasus", "PegasusForConditionalGeneration"),
    translator("Pegasus-X", "PegasusXForConditionalGeneration", block_size=4, num_global_tokens=2),
    translator("Marian", "MarianMTModel"),
    translator("M2M-100", "M2M100ForConditionalGeneration"),
    translator("Blenderbot", "BlenderbotForConditionalGeneration"),
    translator("Blenderbot small", "BlenderbotSmallForConditionalGeneration"),
    translator("BigBird-Pegasus", "BigBirdPegasusForConditionalGeneration", attention_type="original_full"),
    translator("LED", "LEDForConditionalGeneration", BART, (None, "led.encoder.layers", ("led.encoder.layers",
               "led.decoder.layers")), attention_window=4, max_encoder_position_embeddings=32,
               max_decoder_position_embeddings=32),
    translator("FSMT", "FSMTForConditionalGeneration", FSMT),
    translator("ProphetNet", "ProphetNetForConditionalGeneration", PROPHET, OF_PROPHET),
    translator("ProphetNet, table of n-grams frozen", "ProphetNetForConditionalGeneration", PROPHET, OF_PROPHET,
               frozen=("ngram_embeddings",)),
    translator("T5Gemma", "T5GemmaForConditionalGeneration", {
        "encoder": GEMMA, "decoder": GEMMA, "vocab_size": VOCABULARY, **IDS}, OF_BART),
    Family("encoder-decoder of BERT and BERT", KIND, _two("bert", "bert"), records.text, records.translated, losses.translate,
           (None, "encoder.encoder.layer", ("encoder.encoder.layer", "decoder.bert.encoder.layer")),
           model="EncoderDecoderModel"),
    Family("encoder-decoder of BERT and GPT-2", KIND, _two("bert", "gpt2"), records.text, records.translated, losses.translate,
           (None, "encoder.encoder.layer", ("encoder.encoder.layer", "decoder.transformer.h")), model="EncoderDecoderModel"),
)  # fmt: skip
