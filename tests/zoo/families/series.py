"""Time series, decisions, and tables."""

import torch
from torch import nn

from tests.zoo import losses, records
from tests.zoo.family import Family, Rows, hf
from tests.zoo.records import LABELS

KIND = "time series and tables"

PATCHED = {
    "num_input_channels": 2, "context_length": 24, "prediction_length": 4, "patch_length": 4, "patch_stride": 4, "d_model": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24, "num_targets": LABELS, "norm_type": "layernorm",
    "use_cls_token": True,
}  # fmt: skip
MIXED = {
    "num_input_channels": 2, "context_length": 24, "prediction_length": 4, "patch_length": 4, "patch_stride": 4, "d_model": 16,
    "num_layers": 2, "num_targets": LABELS, "norm_mlp": "LayerNorm",
}  # fmt: skip
LAGGED = {
    "prediction_length": 4, "context_length": 20, "lags_sequence": [1, 2, 3, 4], "input_size": 2, "num_time_features": 1,
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
}  # fmt: skip
OF_TWO = (None, "model.encoder.layers", ("model.encoder.layers", "model.decoder.layers"))


def _lagged(examples: list) -> dict:
    """Values with the time that belongs to them, and which were seen."""
    rows = records.forecasts(examples)
    count = len(examples)
    past, future = torch.arange(24) / 24, torch.arange(24, 28) / 24
    return {
        "past_values": rows["past_values"], "future_values": rows["future"],
        "past_time_features": past.expand(count, 24)[..., None].clone(),
        "future_time_features": future.expand(count, 4)[..., None].clone(),
        "past_observed_mask": torch.ones_like(rows["past_values"]),
    }  # fmt: skip


def _likelihood(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Negative log likelihood of the future under the distribution that the model tells."""
    out = model(**rows, use_cache=False)
    found = model.output_distribution(out.params, loc=out.loc, scale=out.scale)
    return -found.log_prob(rows["future_values"]).flatten(1).mean(1)


def _one(examples: list) -> dict:
    """One channel, as TimesFM reads series."""
    rows = records.forecasts(examples)
    known = torch.cat([rows["past_values"][..., 0], rows["past_values"][:, :8, 1]], 1)
    return {"series": known, "future": rows["future"][..., 0]}


def _timesfm(model: nn.Module, rows: Rows) -> torch.Tensor:
    freq = torch.zeros(len(rows["series"]), 1, dtype=torch.long)
    nothing = torch.zeros_like(rows["series"], dtype=torch.long)
    out = model.decoder(past_values=rows["series"], past_values_padding=nothing, freq=freq)
    found = model.horizon_ff_layer(out.last_hidden_state)[:, -1, :4]
    return (found - rows["future"]).square().mean(1)


def _decide(examples: list) -> dict:
    """States, actions and what they brought, as a decision transformer reads them."""
    past = torch.tensor([e["past"] for e in examples])
    return {
        "states": past[:, :6], "actions": past[:, 6:12], "rewards": past[:, 12:18, :1],
        "returns_to_go": past[:, :6, 1:].flip(1).cumsum(1), "timesteps": torch.arange(6).expand(len(examples), 6).clone(),
        "attention_mask": torch.ones(len(examples), 6, dtype=torch.long),
    }  # fmt: skip


def _decided(model: nn.Module, rows: Rows) -> torch.Tensor:
    return (model(**rows).action_preds - rows["actions"]).square().flatten(1).mean(1)


SERIES = (
    Family("PatchTST forecast", KIND, hf("PatchTSTForPrediction", PATCHED, loss="mse"), records.series, records.forecasts,
           losses.forecast, model="PatchTSTForPrediction"),
    Family("PatchTST classifier", KIND, hf("PatchTSTForClassification", PATCHED), records.series, records.labelled_series,
           losses.classify_series, model="PatchTSTForClassification"),
    Family("PatchTST with its own batch norm", KIND, hf("PatchTSTForClassification", {**PATCHED, "norm_type": "batchnorm"}),
           records.series, records.labelled_series, losses.classify_series, model="PatchTSTForClassification"),
    Family("PatchTSMixer forecast", KIND, hf("PatchTSMixerForPrediction", MIXED, loss="mse"), records.series, records.forecasts,
           losses.forecast, model="PatchTSMixerForPrediction"),
    Family("PatchTSMixer classifier", KIND, hf("PatchTSMixerForTimeSeriesClassification", MIXED), records.series,
           records.labelled_series,
           lambda model, rows: nn.functional.cross_entropy(
               model(past_values=rows["past_values"]).prediction_outputs, rows["labels"], reduction="none"),
           model="PatchTSMixerForTimeSeriesClassification"),
    Family("Time series transformer", KIND, hf("TimeSeriesTransformerForPrediction", LAGGED), records.series, _lagged,
           _likelihood, OF_TWO, model="TimeSeriesTransformerForPrediction"),
    Family("Time series transformer, scaled by deviation", KIND,
           hf("TimeSeriesTransformerForPrediction", LAGGED, scaling="std"), records.series, _lagged, _likelihood, OF_TWO,
           model="TimeSeriesTransformerForPrediction", note='`scaling="std"`'),
    Family("Informer, scaled by deviation", KIND, hf("InformerForPrediction", LAGGED, attention_type="full", distil=False,
           scaling="std"), records.series, _lagged, _likelihood, OF_TWO, model="InformerForPrediction",
           note='`scaling="std"`'),
    Family("Informer", KIND, hf("InformerForPrediction", LAGGED, attention_type="full", distil=False), records.series, _lagged,
           _likelihood, OF_TWO, model="InformerForPrediction"),
    Family("Informer, sparse attention", KIND, hf("InformerForPrediction", LAGGED), records.series, _lagged, _likelihood,
           OF_TWO, model="InformerForPrediction"),
    Family("Autoformer", KIND, hf("AutoformerForPrediction", LAGGED, moving_average=5, label_length=4), records.series, _lagged,
           _likelihood, OF_TWO, model="AutoformerForPrediction"),
    Family("TimesFM", KIND, hf("TimesFmModelForPrediction", {
        "patch_length": 8, "context_length": 32, "horizon_length": 8, "hidden_size": 16, "intermediate_size": 24, "head_dim": 8,
        "num_hidden_layers": 2, "num_attention_heads": 2, "quantiles": [0.5]}), records.series, _one, _timesfm,
        (None, "decoder.layers"), model="TimesFmModelForPrediction"),
    Family("Decision transformer", KIND, hf("DecisionTransformerModel", {
        "state_dim": 2, "act_dim": 2, "hidden_size": 16, "max_ep_len": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}),
        records.series, _decide, _decided, (None, "encoder.h"), model="DecisionTransformerModel"),
)  # fmt: skip
