"""What is done to gradients and parameters beside the optimizer: what is seen, refused and recorded, and what keeps A."""

import math
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: E402

from dptrain.errors import ConfigError, NotPrivateUse, ResumeRefused, StepOrder  # noqa: E402
from dptrain.sandbox import untouched  # noqa: E402
from dptrain.sandbox.isolation import Isolation, IsolationNotice  # noqa: E402
from dptrain.sandbox.untouched import Remembered, checksums  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.leaves import HELD, Epoch, decode_leaf  # noqa: E402
from tests.guarantees.peers import Run, must_fail, net, per_example  # noqa: E402
from tests.guarantees.test_statement_a import BANDS, GlobalLars  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.sandbox.isolation.IsolationNotice")

STEPS = 3
CHANGED = "step 1: gradients were changed after their release"
WRITTEN = "parameters were written beside the optimizer, after the release of step 1"
REQUIRED = "[isolation]\nrequired = true\n"

_names = count()


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), classes=BANDS, steps=STEPS, rate="1", per_class=2, now=1_750_000_000)


@pytest.fixture(scope="module")
def strict(tmp_path_factory) -> World:
    """The same under a policy that requires statement A."""
    options: dict[str, Any] = {"classes": BANDS, "steps": STEPS, "rate": "1", "per_class": 2, "now": 1_750_000_000}
    return make_world(tmp_path_factory.mktemp("strict"), policy_extra=REQUIRED, **options)


def opened(world: World, make: Any = lambda ps: torch.optim.AdamW(ps, lr=0.05), **options: Any) -> Run:
    model = net().float()
    options.setdefault("name", f"ledger-{next(_names)}")
    return Run(world, model, optimizer=make(model.parameters()), **options)


def told(world: World, act: Callable[[Run], Any], after: Callable[[Run], Any] = lambda run: None) -> str:
    """What the product says of A after two steps, of which the first is tampered with before and after the optimizer."""
    with opened(world) as run:
        steps = iter(run.steps)
        for first in (True, False):
            run.gradients(next(steps))
            if first:
                act(run)
            run.optimizer.step()
            if first:
                after(run)
        run.private.end_step(2)
        return run.private.isolation.told


def grads(run: Run) -> list[torch.Tensor]:
    return [p.grad for p in run.model.parameters()]


# --- what is seen of gradients --------------------------------------------------------------------------------------------


def through_numpy(run: Run) -> None:
    run.model.head.bias.grad.numpy()[0] *= 0.5


def in_inference(run: Run) -> None:
    with torch.inference_mode():
        run.model.embed.weight.grad.mul_(0.5)


def by_one_bit(run: Run) -> None:
    words = run.model.embed.weight.grad.data.view(torch.int32)
    words[3, 3] ^= 1


def rows_swapped(run: Run) -> None:
    data = run.model.layers[1].weight.grad.data
    data.copy_(data.flip(0))


WRITES: dict[str, Callable[[Run], Any]] = {
    "clip_grad_norm_": lambda run: nn.utils.clip_grad_norm_(run.model.parameters(), 0.05),
    "clip_grad_norm_ one by one": lambda run: nn.utils.clip_grad_norm_(run.model.parameters(), 0.05, foreach=False),
    "clip_grad_norm_ that does not bite": lambda run: nn.utils.clip_grad_norm_(run.model.parameters(), 1e9),
    "clip_grad_value_": lambda run: nn.utils.clip_grad_value_(run.model.parameters(), 1e-3),
    "zeros": lambda run: run.optimizer.zero_grad(set_to_none=False),
    "a write to .data": lambda run: run.model.head.weight.grad.data.mul_(0.5),
    "a write through numpy": through_numpy,
    "a write in inference mode": in_inference,
    "one bit through .data": by_one_bit,
    "rows turned round": rows_swapped,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("write", WRITES)
def test_whatever_writes_a_gradient_after_its_release_weakens_a(world, write: str) -> None:
    assert told(world, WRITES[write]) == CHANGED


@pytest.mark.one_in(3)
@pytest.mark.parametrize("write", WRITES)
def test_where_the_policy_requires_a_it_is_refused_before_the_optimizer_moves_anything(strict, write: str) -> None:
    with opened(strict) as run:
        run.gradients(next(iter(run.steps)))
        before = [p.detach().clone() for p in run.model.parameters()]
        WRITES[write](run)
        for _ in range(2):
            with pytest.raises(NotPrivateUse, match=r"ISOLATION.*\[isolation\] required.*clip_blocks_"):
                run.optimizer.step()
        with pytest.raises(NotPrivateUse, match=r"ISOLATION"):
            run.private.clip_blocks_(0.1)
        assert all(torch.equal(p, b) for p, b in zip(run.model.parameters(), before, strict=True))
        assert not run.optimizer.state and run.private.isolation.told == HELD


def test_what_only_reads_keeps_a(world) -> None:
    def read(run: Run) -> None:
        nn.utils.get_total_norm(grads(run))
        [g.numpy().sum() for g in grads(run)]
        [g.data.abs().max().item() for g in grads(run)]

    assert told(world, read, lambda run: run.optimizer.zero_grad()) == HELD
    assert told(world, read, lambda run: run.optimizer.zero_grad(set_to_none=False)) == HELD


def test_it_is_said_once_and_the_first_reason_stays(world) -> None:
    with opened(world) as run, warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        for step in run.steps:
            run.gradients(step)
            nn.utils.clip_grad_norm_(run.model.parameters(), 0.05)
            run.optimizer.step()
        assert [item.category for item in noticed].count(IsolationNotice) == 1
        assert run.private.isolation.told == CHANGED
        assert {row["isolation"] for row in run.private.summary()} == {CHANGED}


def test_a_second_reason_of_another_kind_does_not_replace_the_first() -> None:
    isolation = Isolation(required=False)
    with pytest.warns(IsolationNotice) as told:
        isolation.weaken("the first reason", "do not")
        isolation.weaken("another", "do not")
    assert isolation.told == "the first reason" and len(told) == 1


def test_without_the_checksum_a_write_that_leaves_no_version_would_go_unseen(world, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault injected: this is what the checksum is for."""
    monkeypatch.setattr(untouched, "checksums", lambda tensors: torch.zeros(len(tensors), dtype=torch.int64))
    for write in ("a write to .data", "a write through numpy", "one bit through .data"):
        must_fail(lambda write=write: test_whatever_writes_a_gradient_after_its_release_weakens_a(world, write))


def test_without_the_version_a_clip_that_does_not_bite_would_go_unseen(world, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault injected: values are the same, and the clip would have bitten had another payload been larger."""
    monkeypatch.setattr(untouched, "versions", lambda tensors: [0] * len(tensors))
    must_fail(lambda: test_whatever_writes_a_gradient_after_its_release_weakens_a(world, "clip_grad_norm_ that does not bite"))


# --- checksums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1,), (3,), (7, 5), (300, 301), (1 << 17, 3)])
def test_a_changed_element_changes_the_checksum_wherever_it_is(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    tensor, remembered = torch.randn(shape).to(dtype), Remembered()
    remembered.take([tensor])
    assert not remembered.changed()
    flat = tensor.view(-1)
    places = {0, len(flat) - 1, *torch.randint(0, len(flat), (20,)).tolist()}
    for place in places:
        kept = flat[place].item()
        tensor.data.view(-1)[place] = -kept
        assert remembered.changed(), place
        tensor.data.view(-1)[place] = kept
        assert not remembered.changed(), place


def test_elements_that_trade_places_change_the_checksum() -> None:
    tensor, remembered = torch.randn(1 << 18), Remembered()
    remembered.take([tensor])
    for one, other in ((0, 1), (0, 2), (5, 70_001), (17, len(tensor) // 16 + 18)):
        tensor.data[[one, other]] = tensor.data[[other, one]]
        assert remembered.changed(), (one, other)
        tensor.data[[one, other]] = tensor.data[[other, one]]
        assert not remembered.changed()


def test_checksums_do_not_hang_on_which_tensors_came_before() -> None:
    small, large = torch.randn(1000), torch.randn(3 << 20)
    alone = checksums([small])
    assert torch.equal(checksums([small, large])[:1], alone) and torch.equal(checksums([large, small])[1:], alone)


def test_views_that_lie_askew_and_strided_tensors_have_checksums() -> None:
    base = torch.randn(4, 6, 5, 3)
    last = base.to(memory_format=torch.channels_last)
    for tensor in (base[0, 0, 0, 1:], base.flatten()[1:8], base.permute(0, 3, 1, 2), last):
        remembered = Remembered()
        remembered.take([tensor])
        assert not remembered.changed()
        kept = tensor.data.clone()
        tensor.data[(0,) * tensor.dim()] += 1
        assert remembered.changed()
        tensor.data.copy_(kept)
        assert not remembered.changed()


# --- hooks ----------------------------------------------------------------------------------------------------------------


def halve(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad.mul_(0.5)


def test_a_hook_that_changes_gradients_is_seen_whenever_it_was_registered_before_the_release(world) -> None:
    for when in ("before prepare", "after prepare", "in the microbatches", "globally"):
        model = net().float()
        optimizer, handles = torch.optim.SGD(model.parameters(), lr=0.1), []
        if when == "before prepare":
            handles.append(optimizer.register_step_pre_hook(halve))
        with Run(world, model, optimizer=optimizer, name=f"ledger-{next(_names)}") as run:
            if when == "after prepare":
                handles.append(optimizer.register_step_pre_hook(halve))
            for rows in (step := next(iter(run.steps))):
                run.private.backward(per_example(model, rows), rows)
                if when == "in the microbatches" and not run.private.probe.active and not handles:
                    handles.append(optimizer.register_step_pre_hook(halve))
            if when == "globally":
                handles.append(register_optimizer_step_pre_hook(halve))
            assert step.number == 1
            optimizer.step()
            for handle in handles:
                handle.remove()
            assert run.private.isolation.told == CHANGED, when


def test_a_hook_that_comes_after_the_release_is_named_since_nobody_looks_behind_it(world, strict) -> None:
    late = "step 1: a hook that was registered after the release runs behind the check of gradients"
    assert told(world, lambda run: run.optimizer.register_step_pre_hook(halve)) == late
    with opened(strict) as run:
        run.gradients(next(iter(run.steps)))
        handle = run.optimizer.register_step_pre_hook(halve)
        with pytest.raises(NotPrivateUse, match=r"ISOLATION.*before the last microbatch"):
            run.optimizer.step()
        handle.remove()
        run.optimizer.step()
        assert run.private.isolation.told == HELD


def test_hooks_that_look_keep_a(world) -> None:
    seen = []
    model = net().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.append("early"))
    optimizer.register_step_post_hook(lambda opt, *_: opt.zero_grad(set_to_none=False))
    with Run(world, model, optimizer=optimizer, name=f"ledger-{next(_names)}") as run:
        optimizer.register_step_pre_hook(lambda *_: seen.append("late"))
        for step in run.steps:
            run.gradients(step)
            optimizer.step()
        assert run.private.isolation.told == HELD and seen == ["early", "late"] * STEPS


# --- loss scalers, averages, schedulers -----------------------------------------------------------------------------------


def scaled(run: Run) -> None:
    """The step as mixed precision in float16 takes it."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(()))
    scaler.step(run.optimizer)


def test_a_loss_scaler_weakens_a_by_name_in_either_of_its_forms(world, strict) -> None:
    """A fused optimizer leaves p.grad alone and takes one flag over all gradients; the others have them multiplied."""
    for fused, reason in (
        (True, "step 1: a loss scaler decides over the gradients of all blocks together"),
        (False, CHANGED),
    ):
        with opened(world, lambda ps, fused=fused: torch.optim.AdamW(ps, lr=0.05, fused=fused)) as run:
            run.gradients(next(iter(run.steps)))
            scaled(run)
            assert run.private.isolation.told == reason
    with opened(strict, lambda ps: torch.optim.AdamW(ps, lr=0.05, fused=True)) as run:
        run.gradients(next(iter(run.steps)))
        with pytest.raises(NotPrivateUse, match=r"ISOLATION.*without a GradScaler"):
            scaled(run)


def test_averages_beside_the_model_and_schedulers_keep_a(strict) -> None:
    model = net().float()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    with Run(strict, model, optimizer=optimizer, name=f"ledger-{next(_names)}") as run:
        for step in run.steps:
            run.gradients(step)
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
        assert run.private.isolation.told == HELD
    assert int(average.n_averaged) == STEPS


# --- parameters -----------------------------------------------------------------------------------------------------------


def project(run: Run) -> None:
    """The whole model onto a ball: one number for all tensors."""
    held = list(run.model.parameters())
    with torch.no_grad():
        for p in held:
            p.mul_(1 - 0.01 * nn.utils.get_total_norm(held))


def test_whatever_writes_parameters_beside_the_optimizer_weakens_a(world) -> None:
    assert told(world, project) == WRITTEN, "between release and step"
    assert told(world, lambda run: None, project) == WRITTEN, "after the step"
    swap = lambda run: run.model.load_state_dict(net().float().state_dict())  # noqa: E731
    assert told(world, lambda run: None, swap) == WRITTEN

    def by_a_hook(run: Run) -> None:
        run.optimizer.register_step_post_hook(lambda *_: project(run))

    assert told(world, by_a_hook) == WRITTEN, "in a hook behind the step"


def test_a_hook_behind_the_step_that_was_there_before_prepare_is_seen_too(world) -> None:
    model = net().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: model.head.weight.mul_(0.5))
    with Run(world, model, optimizer=optimizer, name=f"ledger-{next(_names)}") as run:
        run.gradients(next(iter(run.steps)))
        optimizer.step()
        run.private.end_step(1)
        assert run.private.isolation.told == WRITTEN


def test_writes_at_the_top_of_the_loop_and_among_microbatches_are_seen(world) -> None:
    for place in ("top", "microbatches"):
        with opened(world) as run:
            for step in run.steps:
                if place == "top" and step.number == 2:
                    project(run)
                for rows in step:
                    run.private.backward(per_example(run.model, rows), rows)
                    if place == "microbatches" and step.number == 2:
                        project(run)
                run.optimizer.step()
            assert run.private.isolation.told == WRITTEN, place


def test_where_the_policy_requires_a_written_parameters_end_the_run_and_reach_no_checkpoint(strict) -> None:
    with opened(strict) as run:
        run.gradients(next(iter(run.steps)))
        run.optimizer.step()
        project(run)
        for attempt in (run.private.save, lambda: run.private.end_step(1), run.private.finish, run.private.finish):
            with pytest.raises(NotPrivateUse, match=r"ISOLATION.*leave parameters to the optimizer"):
                attempt()
        assert not run.private.recorder.ledger.finished


def test_weights_that_are_loaded_before_the_first_step_are_not_the_runs(strict) -> None:
    with opened(strict) as run:
        run.model.load_state_dict(net().float().state_dict())
        for step in run.steps:
            run.gradients(step)
            run.optimizer.step()
        project(run)
        assert run.private.isolation.told == HELD, "nor what is done to them when the run is over"


# --- clip_blocks_ ---------------------------------------------------------------------------------------------------------


def by_block(run: Run) -> dict[str, list[torch.Tensor]]:
    found: dict[str, list[torch.Tensor]] = {}
    for block, tensor in run.private.router.tensors:
        found.setdefault(run.private.schedule.blocks[block].name, []).append(tensor.parameter.grad)
    return found


def test_every_block_is_scaled_by_its_own_norm_and_a_small_one_is_left_to_the_bit(world) -> None:
    with opened(world) as run:
        run.gradients(next(iter(run.steps)))
        before = {name: [g.clone() for g in own] for name, own in by_block(run).items()}
        norms = {name: math.sqrt(sum(float(g.double().square().sum()) for g in own)) for name, own in before.items()}
        limit = sorted(norms.values())[len(norms) // 2]
        returned = run.private.clip_blocks_(limit)
        assert returned == pytest.approx(norms, rel=1e-6) and list(returned) == [b.name for b in run.private.schedule.blocks]
        shrunk = 0
        for name, own in by_block(run).items():
            factor = min(1.0, limit / norms[name])
            shrunk += factor < 1
            for g, b in zip(own, before[name], strict=True):
                assert torch.equal(g, b) if factor == 1 else torch.allclose(g, factor * b, rtol=1e-6, atol=0)
        assert 0 < shrunk < len(norms)
        again = run.private.clip_blocks_(limit)
        assert max(again.values()) <= limit * (1 + 1e-6)
        run.optimizer.step()
        assert run.private.isolation.told == HELD


def test_it_belongs_between_the_last_microbatch_and_the_step(world) -> None:
    with opened(world) as run:
        step = next(iter(run.steps))
        for rows in step:
            run.private.backward(per_example(run.model, rows), rows)
            with pytest.raises(StepOrder):
                run.private.clip_blocks_(1.0)
        for bad in (0.0, -1.0, math.nan, math.inf, "1", None):
            with pytest.raises(ConfigError, match="MAX_NORM"):
                run.private.clip_blocks_(bad)
        run.private.clip_blocks_(1)
        run.optimizer.step()
        with pytest.raises(StepOrder, match="optimizer has stepped"):
            run.private.clip_blocks_(1.0)


def test_it_does_not_wash_what_was_changed_before_it(world) -> None:
    def both(run: Run) -> None:
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.05)
        run.private.clip_blocks_(0.01)

    def replaced(run: Run) -> None:
        run.model.head.bias.grad = run.model.head.bias.grad.clone()
        run.private.clip_blocks_(0.01)

    assert told(world, both) == CHANGED
    with pytest.raises(NotPrivateUse, match="GRADIENT_REPLACED"):
        told(world, replaced)


def test_an_empty_gradient_is_clipped_to_itself(world) -> None:
    """A block of public classes alone has no noise and may have no gradient; its norm is zero."""
    with opened(world) as run:
        run.gradients(next(iter(run.steps)))
        for g in grads(run):
            g.data.zero_()
        run.private.gradients._remember()
        assert set(run.private.clip_blocks_(1.0).values()) == {0.0}
        assert all(bool((g == 0).all()) for g in grads(run))


# --- optimizers and the record --------------------------------------------------------------------------------------------


def test_where_the_policy_requires_a_an_unknown_optimizer_is_refused_before_there_is_a_ledger(strict) -> None:
    with pytest.raises(NotPrivateUse, match=r"ISOLATION: optimizer GlobalLars is not known.*optimizer of torch.optim"):
        opened(strict, GlobalLars, name="never")
    assert not (strict.root / "never.db").exists()


def epochs(recorder: Any) -> list[str]:
    """What the EPOCH leaves say of isolation."""
    with recorder.ledger.rows() as rows:
        return [leaf.isolation for row in rows if isinstance(leaf := decode_leaf(row.body), Epoch)]


def test_a_weakening_found_during_a_run_is_in_its_ledger_and_its_audit(world, tmp_path) -> None:
    with opened(world, key=None) as run:
        for step in run.steps:
            run.gradients(step)
            if step.number == 2:
                nn.utils.clip_grad_norm_(run.model.parameters(), 0.05)
            run.optimizer.step()
        recorder = run.private.recorder
        assert recorder.ledger.header.isolation == HELD and epochs(recorder) == [CHANGED.replace("1", "2")]
        report = verify_export(run.private.export(tmp_path / "export"), [recorder.ledger.signer.vkey])
    assert report.verdict == "FULL" and report.isolation.endswith(CHANGED.replace("1", "2"))


def test_a_weakening_survives_a_crash_before_its_epoch_was_closed(world) -> None:
    name = f"ledger-{next(_names)}"
    with opened(world, key=None, name=name) as run:
        steps = iter(run.steps)
        run.gradients(next(steps))
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.05)
        run.optimizer.step()
        run.private.save()
        assert epochs(run.private.recorder) == []
    with opened(world, key=None, name=name, resume=True) as run:
        assert run.private.isolation.told == CHANGED and run.private.start_step == 1
        for step in run.steps:
            run.gradients(step)
            run.optimizer.step()
        assert epochs(run.private.recorder) == [CHANGED]


def test_a_weakening_in_the_ledger_stays_although_an_older_checkpoint_knows_nothing_of_it(tmp_path) -> None:
    world = make_world(tmp_path, classes=BANDS, steps=8, rate="1", per_class=2, now=1_750_000_000)
    with opened(world, key=None, name="ledger") as run:
        for step in run.steps:
            run.gradients(step)
            if step.number == 3:
                nn.utils.clip_grad_norm_(run.model.parameters(), 0.05)
            run.optimizer.step()
            if step.number == 2:
                run.private.save()
            if step.number == 5:
                break
        found = epochs(run.private.recorder)
        assert found == [CHANGED.replace("1", "3")]
    with opened(world, key=None, name="ledger", resume=True) as run:
        assert run.private.start_step == 2 and run.private.isolation.told == found[0]
        for step in run.steps:
            run.gradients(step)
            run.optimizer.step()
        assert set(epochs(run.private.recorder)) == set(found)


def test_a_run_is_not_resumed_with_an_optimizer_of_another_word(world) -> None:
    name = f"ledger-{next(_names)}"
    with opened(world, key=None, name=name) as run:
        run.gradients(next(iter(run.steps)))
        run.optimizer.step()
        run.private.save()
    with pytest.raises(ResumeRefused, match=r"ANOTHER_RUN.*word on isolation by its optimizer"):
        opened(world, GlobalLars, key=None, name=name, resume=True)
