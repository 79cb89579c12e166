"""Other heads over one body, where heads differ in what they compute."""

import torch
from torch import nn

from tests.zoo import losses, records
from tests.zoo.families import decoders, translators, vision
from tests.zoo.families.encoders import SIZES
from tests.zoo.family import Family, Rows, hf
from tests.zoo.records import EOS, LABELS, MASK

KIND = "other heads"


def head(name: str, model: str, options: dict, collate, loss, **more) -> Family:
    extra = {key: more.pop(key) for key in ("layers", "frozen", "note") if key in more}
    return Family(name, KIND, hf(model, options, **more), records.text, collate, loss, model=model, **extra)


def _rewarded(model: nn.Module, rows: Rows) -> torch.Tensor:
    """A text against itself with its tokens reversed: which one is the better."""
    ids, mask = rows["input_ids"], rows["attention_mask"]
    good, bad = (model(input_ids=x, attention_mask=mask, use_cache=False).logits[:, 0] for x in (ids, ids.flip(1)))
    return -nn.functional.logsigmoid(good - bad)


def _regress(model: nn.Module, rows: Rows) -> torch.Tensor:
    return (model(**losses.inputs(rows)).logits[:, 0] - rows["labels"].float()).square()


def _several(model: nn.Module, rows: Rows) -> torch.Tensor:
    wanted = nn.functional.one_hot(rows["labels"], LABELS).float()
    logits = model(**losses.inputs(rows)).logits
    return nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1)


def _decide(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Next-sentence prediction."""
    return nn.functional.cross_entropy(model(**losses.inputs(rows)).logits, rows["labels"] % 2, reduction="none")


def _pretrain(model: nn.Module, rows: Rows) -> torch.Tensor:
    out = model(**losses.inputs(rows))
    told = losses.each(out.prediction_logits, rows["labels"])
    return told + nn.functional.cross_entropy(out.seq_relationship_logits, rows["input_ids"][:, 1] % 2, reduction="none")


def _replaced(model: nn.Module, rows: Rows) -> torch.Tensor:
    """ELECTRA's discriminator: was a token replaced."""
    logits = model(**losses.inputs(rows)).logits
    wanted = (rows["input_ids"] == MASK).float()
    return nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1)


def _classify_pair(model: nn.Module, rows: Rows) -> torch.Tensor:
    """A model whose sequence-to-sequence head classifies the text."""
    return nn.functional.cross_entropy(model(**losses.inputs(rows), use_cache=False).logits, rows["labels"], reduction="none")


def _distil(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Soft labels from elsewhere: divergence from a fixed distribution."""
    logits = model(**losses.inputs(rows)).logits.log_softmax(-1)
    soft = nn.functional.one_hot(rows["labels"], LABELS) * 0.8 + 0.2 / LABELS
    return nn.functional.kl_div(logits, soft, reduction="none").sum(1)


def _features(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Of the body alone: the mean over tokens, held to a fixed direction, as embeddings are trained without negatives."""
    found = model(**losses.inputs(rows)).last_hidden_state
    mask = rows["attention_mask"][..., None]
    mean = (found * mask).sum(1) / mask.sum(1)
    return 1.0 - nn.functional.cosine_similarity(mean, torch.linspace(-1, 1, mean.shape[1]).expand_as(mean))


def _contrast(model: nn.Module, rows: Rows) -> torch.Tensor:
    """In-batch negatives: every other text of the batch enters."""
    found = nn.functional.normalize(model(**losses.inputs(rows)).last_hidden_state[:, 0], dim=-1)
    return nn.functional.cross_entropy(found @ found.detach().T / 0.1, torch.arange(len(found)), reduction="none")


def _masked_pictures(examples: list) -> dict:
    rows = records.pictures(examples)
    hidden = torch.zeros(len(examples), 4, dtype=torch.bool)
    hidden[:, 1] = True
    return {"pixel_values": rows["pixel_values"], "bool_masked_pos": hidden}


def _restore(model: nn.Module, rows: Rows) -> torch.Tensor:
    found = model(**rows).reconstruction
    return (found - rows["pixel_values"]).square().flatten(1).mean(1)


HEADS = (
    head("BERT, tokens", "BertForTokenClassification", SIZES, records.tagged, losses.tag),
    head("BERT, questions", "BertForQuestionAnswering", {**SIZES, "num_labels": 2}, records.spans, losses.answer),
    head("BERT, masked tokens", "BertForMaskedLM", SIZES, records.masked, losses.tag),
    head("BERT, multiple choice", "BertForMultipleChoice", SIZES, records.choices, losses.classify),
    head("BERT, next sentence", "BertForNextSentencePrediction", SIZES, records.labelled, _decide),
    head("BERT, pretraining", "BertForPreTraining", SIZES, records.masked, _pretrain),
    head("BERT, one number", "BertForSequenceClassification", {**SIZES, "num_labels": 1}, records.labelled, _regress),
    head("BERT, several labels", "BertForSequenceClassification", SIZES, records.labelled, _several),
    head("BERT, soft labels", "BertForSequenceClassification", SIZES, records.labelled, _distil),
    head("BERT, embeddings", "BertModel", SIZES, records.tokens, _features),
    head("BERT, embeddings against the batch", "BertModel", SIZES, records.tokens, _contrast),
    head("RoBERTa, masked tokens", "RobertaForMaskedLM", SIZES, records.masked, losses.tag),
    head("RoBERTa, tokens", "RobertaForTokenClassification", SIZES, records.tagged, losses.tag),
    head("XLM-RoBERTa, tokens", "XLMRobertaForTokenClassification", SIZES, records.tagged, losses.tag),
    head("XLM-RoBERTa, masked tokens", "XLMRobertaForMaskedLM", SIZES, records.masked, losses.tag),
    head("CamemBERT, questions", "CamembertForQuestionAnswering", {**SIZES, "num_labels": 2}, records.spans, losses.answer),
    head("DistilBERT, masked tokens", "DistilBertForMaskedLM", {
        "vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 32},
        records.masked, losses.tag),
    head("ELECTRA, replaced tokens", "ElectraForPreTraining", {**SIZES, "embedding_size": 8}, records.masked, _replaced),
    head("ALBERT, masked tokens", "AlbertForMaskedLM", {**SIZES, "embedding_size": 8}, records.masked, losses.tag),
    head("ModernBERT, masked tokens", "ModernBertForMaskedLM", {**SIZES, "cls_token_id": 1, "sep_token_id": 2}, records.masked,
         losses.tag),
    head("DeBERTa v2, masked tokens", "DebertaV2ForMaskedLM", SIZES, records.masked, losses.tag),
    head("LUKE, tokens", "LukeForTokenClassification", {**SIZES, "entity_vocab_size": 8, "entity_emb_size": 8}, records.tagged,
         losses.tag),
    head("GPT-2, classifier", "GPT2ForSequenceClassification", {**decoders.OLD, "num_labels": LABELS}, records.labelled,
         losses.classify),
    head("GPT-2, tokens", "GPT2ForTokenClassification", {**decoders.OLD, "num_labels": LABELS}, records.tagged, losses.tag),
    head("OPT, classifier", "OPTForSequenceClassification",
         {**decoders.SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16, "num_labels": LABELS}, records.labelled, losses.classify),
    head("OPT, classifier without a cache", "OPTForSequenceClassification",
         {**decoders.SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16, "num_labels": LABELS, "use_cache": False},
         records.labelled, losses.classify, note="`use_cache=False`"),
    head("Llama, classifier", "LlamaForSequenceClassification", {**decoders.SIZES, "num_labels": LABELS}, records.labelled,
         losses.classify),
    head("Llama, reward", "LlamaForSequenceClassification", {**decoders.SIZES, "num_labels": 1}, records.tokens, _rewarded),
    head("Llama, tokens", "LlamaForTokenClassification", {**decoders.SIZES, "num_labels": LABELS}, records.tagged, losses.tag),
    head("Llama, questions", "LlamaForQuestionAnswering", decoders.SIZES, records.spans, losses.answer),
    head("Mistral, classifier", "MistralForSequenceClassification", {**decoders.SIZES, "num_labels": LABELS}, records.labelled,
         losses.classify),
    head("Mixtral, classifier", "MixtralForSequenceClassification",
         {**decoders.SIZES, "num_local_experts": 4, "num_labels": LABELS}, records.labelled, losses.classify),
    head("BLOOM, classifier", "BloomForSequenceClassification",
         {"vocab_size": 40, "hidden_size": 16, "n_layer": 2, "n_head": 2, "pad_token_id": 0, "num_labels": LABELS},
         records.labelled, losses.classify),
    head("T5, encoder", "T5EncoderModel", translators.T5, records.tokens, _features),
    head("T5, classifier", "T5ForSequenceClassification", {**translators.T5, "num_labels": LABELS, "eos_token_id": EOS},
         records.labelled, _classify_pair, layers=(None, "transformer.encoder.block",
                                                   ("transformer.encoder.block", "transformer.decoder.block"))),
    head("T5, tokens", "T5ForTokenClassification", {**translators.T5, "num_labels": LABELS}, records.tagged, losses.tag),
    head("BART, classifier", "BartForSequenceClassification", {**translators.BART, "num_labels": LABELS}, records.labelled,
         _classify_pair, layers=translators.OF_BART),
    head("BART, causal", "BartForCausalLM", translators.BART, records.tokens, losses.next_token_without_cache,
         layers=(None, "model.decoder.layers")),
    head("mBART, questions", "MBartForQuestionAnswering", translators.BART, records.spans, losses.answer,
         layers=translators.OF_BART),
    Family("ViT, hidden patches", KIND, hf("ViTForMaskedImageModeling", vision.VIT, encoder_stride=8), records.picture,
           _masked_pictures, _restore, model="ViTForMaskedImageModeling"),
    Family("DeiT with a teacher's head", KIND, hf("DeiTForImageClassificationWithTeacher", vision.VIT), records.picture,
           records.pictures, losses.classify, model="DeiTForImageClassificationWithTeacher"),
    Family("ViT, many small pictures as one example", KIND, hf("ViTForImageClassification", vision.VIT), records.picture,
           lambda e: {"pixel_values": torch.stack([(p := records.pictures(e)["pixel_values"]), p.flip(-1)], 1),
                      "labels": records.pictures(e)["labels"]},
           lambda model, rows: nn.functional.cross_entropy(
               model(pixel_values=rows["pixel_values"].flatten(0, 1)).logits.view(len(rows["labels"]), 2, -1).mean(1),
               rows["labels"], reduction="none"), model="ViTForImageClassification"),
)  # fmt: skip
