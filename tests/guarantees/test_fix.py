"""One call replaces what a run refuses and what has a usual stand-in; the model then starts."""

import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import dptrain  # noqa: E402
from dptrain.routing.couplings import Repaired, couplings  # noqa: E402
from tests.guarantees.peers import Run, net, per_example, small_world  # noqa: E402


class Channels(nn.Module):
    """Puts a norm over channels between (n, T, C) values."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


CASES = {
    "batch norm": lambda: Channels(nn.BatchNorm1d(8)),
    "batch norm without scale": lambda: Channels(nn.BatchNorm1d(8, affine=False)),
    "instance norm with statistics": lambda: Channels(nn.InstanceNorm1d(8, affine=True, track_running_stats=True)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
    "spectral norm by a hook": lambda: nn.utils.spectral_norm(nn.Linear(8, 8)),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice")
def test_a_model_that_was_refused_starts_once_it_is_fixed(tmp_path, case: str) -> None:
    model = net(CASES[case])
    assert list(couplings(model))
    with pytest.warns(Repaired, match="extra"):
        fixed = dptrain.fix(model)
    assert fixed is model and not list(couplings(fixed))
    with Run(small_world(tmp_path, per_class=5), fixed) as run:
        run.gradients(next(iter(run.steps)), per_example)


def test_scale_and_shift_stay_and_so_does_the_mode() -> None:
    norm = nn.BatchNorm2d(48).eval()
    nn.init.normal_(norm.weight)
    with pytest.warns(Repaired, match="24 groups"):
        model = dptrain.fix(nn.Sequential(nn.Conv2d(3, 48, 3), norm))
    assert isinstance(model[1], nn.GroupNorm) and model[1].weight is norm.weight and not model[1].training
    with pytest.warns(Repaired):
        assert isinstance(dptrain.fix(nn.BatchNorm1d(7)), nn.GroupNorm)


def test_vectors_keep_their_gradient_under_the_norm_that_takes_the_place_of_batch_norm() -> None:
    with pytest.warns(Repaired):
        model = dptrain.fix(nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.Linear(64, 1)))
    model(torch.randn(5, 4)).sum().backward()
    assert model[1].num_groups == 8 and float(model[0].weight.grad.abs().sum()) > 1e-3


def test_a_state_is_loaded_after_spectral_norm_by_a_hook_was_taken_off() -> None:
    with pytest.warns(Repaired):
        model = dptrain.fix(nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 3))))
    model.load_state_dict(model.state_dict())


def test_wrappers_are_taken_off_and_losses_over_the_batch_are_switched_off() -> None:
    inner = net()
    inner.config = SimpleNamespace(router_aux_loss_coef=0.1, output_router_logits=True)
    with pytest.warns(Repaired):
        assert dptrain.fix(nn.DataParallel(inner)) is inner
    assert inner.config.output_router_logits is False


def test_a_model_that_needs_nothing_stays_without_a_word() -> None:
    model = net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dptrain.fix(model) is model
