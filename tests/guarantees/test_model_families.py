"""Families of transformers: sums equal the naive loop's to 1e-10 for random classes, bounds and masks, or a typed refusal."""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from dptrain.errors import CoupledModel, UnsupportedModule  # noqa: E402
from dptrain.routing import FallbackNotice  # noqa: E402
from tests.reference.compare import Found, compare  # noqa: E402
from tests.reference.in_double import in_double  # noqa: E402
from tests.reference.zoo import ZOO, Entry  # noqa: E402
from tests.reference.zoo_more import MORE  # noqa: E402

ROWS = 7


def exact(entry: Entry, model: torch.nn.Module, seed: str, *, examples: int = 1, redraw: int | None = None) -> Found:
    return compare(
        model,
        entry.batch(ROWS * examples),
        entry.losses,
        examples=examples,
        seed=seed,
        layers=entry.layers,
        probe_tolerance=1e-6 if entry.single else 1e-9,
        redraw=redraw,
    )


@pytest.fixture(autouse=True)
def _in_double() -> Iterator[None]:
    with in_double():
        yield


@pytest.mark.one_in(5)
@pytest.mark.parametrize("family", [*ZOO, *(pytest.param(family, marks=pytest.mark.slow) for family in MORE)])
def test_a_family_is_exact_or_refused(family: str) -> None:
    entry = (ZOO | MORE)[family]
    model = entry.build()
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", FallbackNotice)
        if entry.refused:
            with pytest.raises((UnsupportedModule, CoupledModel), match=entry.refused) as refusal:
                exact(entry, model, family)
            print(f"{family}: refused, {refusal.value}")
            return
        found = exact(entry, model, family)
    generic = sorted({str(w.message).split(" ", 1)[0] for w in noticed if issubclass(w.category, FallbackNotice)})
    assert bool(generic) == entry.generic, generic
    print(f"{family}: worst relative error of sums {found.worst:.1e}; generic path: {generic or 'none'}")


@pytest.mark.one_in(9)
@pytest.mark.parametrize("family", ["bert_masked_tokens", "opt", "bart", "t5", "mixtral", "gpt_oss", "vit"])
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_a_microbatch_of_one_contribution_is_exact(family: str) -> None:
    """Nothing tells its batch dimension from any other of size one."""
    entry = ZOO[family]
    tolerance = 1e-6 if entry.single else 1e-9
    compare(entry.build(), entry.batch(4), entry.losses, seed=family, layers=entry.layers, probe_tolerance=tolerance)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("family", ["bert", "t5", "mixtral"])
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_several_examples_per_contribution_are_exact(family: str) -> None:
    entry = ZOO[family]
    exact(entry, entry.build(), family, examples=2)


DROPOUT = {
    "bert_masked_tokens": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "deberta_v2_without_positions": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "opt": {"dropout": 0.1, "attention_dropout": 0.1},
    "bart": {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1},
    "t5": {"dropout_rate": 0.1},
    "mixtral": {"attention_dropout": 0.1},
    "vit": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "convnext": {"drop_path_rate": 0.3},
    "dinov2": {"drop_path_rate": 0.3, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "mt5": {"dropout_rate": 0.1},
    "mbart": {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1},
}
"""Families of which a part takes the generic path, with the dropout that they are trained with."""


@pytest.mark.one_in(99)
@pytest.mark.parametrize("examples", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("family", list(DROPOUT))
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore::UserWarning")
def test_a_family_with_dropout_is_exact(family: str, examples: int) -> None:
    """Against one forward without hooks that draws the same masks."""
    entry = (ZOO | MORE)[family]
    entry = replace(entry, options={**entry.options, **DROPOUT[family]})
    exact(entry, entry.build(), family, examples=examples, redraw=5)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("family", ["opt", "t5"])
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_family_with_dropout_in_checkpoints_is_exact(family: str) -> None:
    entry = replace(ZOO[family], options={**ZOO[family].options, **DROPOUT[family]})
    model = entry.build()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    exact(entry, model, family, redraw=5)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "mixtral"])
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore::FutureWarning", "ignore::UserWarning")
def test_gradient_checkpointing_that_does_not_reenter_is_exact(family: str) -> None:
    entry = ZOO[family]
    model = entry.build()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    exact(entry, model, family)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5"])
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore::FutureWarning", "ignore::UserWarning")
def test_gradient_checkpointing_that_reenters_is_refused_by_name(family: str) -> None:
    entry = ZOO[family]
    model = entry.build()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(UnsupportedModule, match=r"REENTRANT_CHECKPOINT.*use_reentrant=False"):
        exact(entry, model, family)


@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_a_key_value_cache_in_the_generic_path_is_refused_by_name() -> None:
    """Run again, the module would find its own keys in the cache."""
    entry = ZOO["t5"]

    def with_cache(model: torch.nn.Module, batch: dict) -> torch.Tensor:
        ids = batch["input_ids"]
        logits = model(input_ids=ids, decoder_input_ids=ids, use_cache=True).logits
        return torch.nn.functional.cross_entropy(logits.mT, ids, reduction="none").mean(1)

    with pytest.raises(UnsupportedModule, match=r"STATE_IN_GENERIC_PATH.*use_cache=False"):
        compare(entry.build(), entry.batch(ROWS), with_cache, layers=entry.layers, probe_tolerance=1e-6)
