"""A recurrence that keeps its state goes on from none in a private microbatch, and nothing of one is left for the next."""

import copy
import pickle
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402
from transformers.models.recurrent_gemma import modeling_recurrent_gemma as recurrent  # noqa: E402

from dptrain.errors import CoupledModel  # noqa: E402
from dptrain.routing.couplings import couplings  # noqa: E402
from dptrain.sandbox import Sandbox  # noqa: E402
from tests.guarantees.test_shared_tables import routed  # noqa: E402
from tests.zoo.families import ZOO  # noqa: E402
from tests.zoo.family import RANDOM  # noqa: E402

FAMILY = ZOO["RecurrentGemma"]
IDS = torch.randint(3, 40, (3, 6), generator=torch.Generator().manual_seed(1))
LATE = torch.arange(1, 7)[None]
"""Positions that do not begin at 0: a recurrence goes on from the state that it has."""

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")


def recurrence(model: nn.Module) -> nn.Module:
    return model.model.layers[0].temporal_block.rg_lru


def attributes(model: nn.Module) -> dict[str, object]:
    block = model.model.layers[0].temporal_block
    hooks = [len(held) for held in (block.rg_lru._forward_pre_hooks, block.rg_lru._forward_hooks)]
    return {"recurrent": block.rg_lru.recurrent_states, "convolution": block.conv1d_state, "hooks": hooks}


def losses(model: nn.Module, rows: torch.Tensor, **more) -> torch.Tensor:
    logits = model(input_ids=rows, position_ids=LATE, use_cache=False, **more).logits[:, :-1]
    return nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none").mean(1)


def sandboxed(model: nn.Module) -> Sandbox:
    return Sandbox(model, frozenset(map(id, model.parameters())), bytes(16))


def norms(router, model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Gradient norms of every contribution, of a microbatch as a run has it."""
    with router.sandbox.enter(1, [bytes([row]) for row in range(len(rows))]):
        router.arm(len(rows), 1, torch.ones(len(rows), 1, dtype=torch.bool))
        router.backward(losses(model, rows), torch.ones(len(rows), dtype=torch.float64))
        found = torch.stack([sum(piece.norm_sq().double() for piece in pieces) for _, pieces in sorted(router.pieces.items())])
        router.disarm()
    return found


@pytest.fixture
def left() -> nn.Module:
    """A model whose modules keep the state of a forward of somebody's."""
    model = FAMILY.build(RANDOM).eval()
    model(input_ids=IDS.flip(0), use_cache=True)
    assert bool(attributes(model)["recurrent"].any()) and attributes(model)["convolution"] is not None
    return model


@pytest.mark.parametrize("trained", [True, False])
def test_no_microbatch_reaches_the_next_and_no_forward_before_a_microbatch(left: nn.Module, trained: bool) -> None:
    for name, parameter in left.named_parameters():
        parameter.requires_grad_(trained or "rg_lru" not in name)
    expected, hostile = {}, IDS.new_tensor([[39] * 6] * 3)
    before = attributes(left)
    for name, earlier in (("alone", None), ("after one", IDS.flip(1)), ("after a hostile one", hostile)):
        for own, parameter in left.named_parameters():
            parameter.requires_grad_(trained or "rg_lru" not in own)
        router = routed(left)
        router.attach()
        if earlier is not None:
            norms(router, left, earlier)
        expected[name] = norms(router, left, IDS)
        router.detach()
        after = attributes(left)
        assert after["recurrent"] is before["recurrent"] and after["convolution"] is before["convolution"], name
        assert after["hooks"] == before["hooks"]
    assert torch.equal(expected["alone"], expected["after one"])
    assert torch.equal(expected["alone"], expected["after a hostile one"])


def test_gradients_are_those_of_each_contribution_alone_whatever_positions_it_has() -> None:
    model = FAMILY.build(RANDOM).double()
    router = routed(model)
    router.attach()
    together = norms(router, model, IDS)
    alone = torch.cat([norms(router, model, IDS[i : i + 1]) for i in range(3)], dim=1)
    router.detach()
    torch.testing.assert_close(together, alone)


def test_a_state_that_is_there_when_a_recurrence_is_called_is_refused(left: nn.Module) -> None:
    """With a cache its block goes on from it, and so does a call of the recurrence after one that no hook saw."""
    sandbox, states, positions = sandboxed(left), torch.randn(3, 6, 16), LATE
    with sandbox.enter(1, [b"a", b"b", b"c"]):
        with pytest.raises(CoupledModel) as raised:
            left(input_ids=IDS, use_cache=True)
        assert raised.value.code == "KEPT_STATE" and "use_cache=False" in raised.value.sentence
    with sandbox.enter(1, [b"a", b"b", b"c"]):
        recurrence(left).forward(states, positions)
        with pytest.raises(CoupledModel):
            recurrence(left)(states, positions)
    with sandbox.enter(1, [b"a", b"b", b"c"]):
        recurrence(left)(states, positions)
        assert recurrence(left).recurrent_states is None
        recurrence(left)(states, positions)


def test_an_error_in_a_microbatch_leaves_no_state_of_it(left: nn.Module) -> None:
    before, sandbox, states = attributes(left), sandboxed(left), torch.randn(3, 6, 16)
    for leave in (lambda: None, sandbox.abandon):
        with pytest.raises(ValueError), sandbox.enter(1, [b"a", b"b", b"c"]):
            recurrence(left).forward(states, LATE)
            leave()
            raise ValueError
        after = attributes(left)
        assert after["recurrent"] is before["recurrent"] and after["hooks"] == before["hooks"]


def test_a_copy_made_in_a_microbatch_is_a_plain_model(left: nn.Module) -> None:
    with sandboxed(left).enter(1, [b"a", b"b", b"c"]):
        copies = [copy.deepcopy(left), pickle.loads(pickle.dumps(left))]
    for copied in copies:
        copied(input_ids=IDS, use_cache=True)
        assert attributes(copied)["recurrent"] is not None


CHANGED = {
    "a class of one's own": lambda model: setattr(
        recurrence(model), "__class__", type("RecurrentGemmaRglru", (recurrent.RecurrentGemmaRglru,), {"__module__": "mine"})
    ),
    "a subclass": lambda model: setattr(
        recurrence(model), "__class__", type("Mine", (recurrent.RecurrentGemmaRglru,), {"__module__": "mine"})
    ),
    "a method of the module's own": lambda model: setattr(
        recurrence(model), "_rnn_scan", types.MethodType(recurrent.RecurrentGemmaRglru._rnn_scan, recurrence(model))
    ),
    "a block of another class": lambda model: setattr(
        model.model.layers[0].temporal_block, "__class__",
        type("Block", (recurrent.RecurrentGemmaRecurrentBlock,), {"__module__": "mine"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_code_that_was_not_read_is_refused(case: str) -> None:
    model = FAMILY.build(RANDOM)
    assert not list(couplings(model))
    CHANGED[case](model)
    assert {code for code, _ in couplings(model)} == {"KEPT_STATE"}


def test_a_recurrence_that_no_known_block_holds_is_refused() -> None:
    """Called by parts, it would go on from its last part outside of a run, and from none within."""
    model = FAMILY.build(RANDOM)
    model.beside = copy.deepcopy(recurrence(model))
    assert [code for code, _ in couplings(model)] == ["KEPT_STATE"]


def test_hooks_are_the_same_in_every_pass(left: nn.Module) -> None:
    """New ones would be a new state of the program, for which a compiled run makes a new graph."""
    sandbox = sandboxed(left)
    seen = []
    for step in (1, 2):
        with sandbox.enter(step, [b"a"]):
            own = recurrence(left)
            seen.append([dict(held) for held in (own._forward_pre_hooks, own._forward_hooks, own._forward_hooks_always_called)])
    assert seen[0] == seen[1] and all(seen[0])
    assert not recurrence(left)._forward_hooks and not recurrence(left)._forward_hooks_always_called


@pytest.mark.parametrize(
    ("owner", "method"),
    [(recurrent.RecurrentGemmaRglru, "forward"), (recurrent.RecurrentGemmaRglru, "_rnn_scan"),
     (recurrent.RecurrentGemmaRecurrentBlock, "forward")],
)  # fmt: skip
def test_another_version_of_the_code_is_refused(owner: type, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = getattr(owner, method)
    monkeypatch.setattr(owner, method, lambda self, *args, **kwargs: own(self, *args, **kwargs))
    assert {code for code, _ in couplings(FAMILY.build(RANDOM))} == {"KEPT_STATE"}
