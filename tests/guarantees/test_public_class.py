"""Public classes: unclipped, without noise of their own, and no way for anything private to get among them (Theorem 5)."""

import contextlib
import copy
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from attest.descriptor import PUBLIC_BOUNDS  # noqa: E402
from attest.keys import public_bytes  # noqa: E402
from dptrain.clipping.fast import FastSums, PublicSums  # noqa: E402
from dptrain.data.packing import Planned  # noqa: E402
from dptrain.engine import start  # noqa: E402
from dptrain.errors import NotPrivateUse  # noqa: E402
from dptrain.noise import LatticeGaussian  # noqa: E402
from dptrain.routing import accumulate as folding  # noqa: E402
from dptrain.routing import bounds_of  # noqa: E402
from dptrain.sandbox import interception  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.errors import LeafRefused  # noqa: E402
from ledger.leaves import Epoch, EpochClass, Spend, decode_leaf  # noqa: E402
from ledger.report import write_report  # noqa: E402
from tests.worlds.bounds import signed  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.trainer import collate_tokens  # noqa: E402
from tests.worlds.training import PUBLIC, SENSITIVE, World, make_world, token_record  # noqa: E402

KEY = b"\x07" * 32
PRIVATE_SEEDS, PUBLIC_SEEDS = range(0, 100), range(1000, 1100)

CLASSES = SENSITIVE + PUBLIC


def world_of(root: Path, *, rate: str = "1", **options) -> World:
    return make_world(root, classes=CLASSES, rate=rate, **options)


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    """What the next step releases, by tensor; the optimizer does not step."""
    for rows in next(iter(trainer.steps)):
        trainer.private.backward(trainer.losses(rows), rows)
    return {tensor.name: tensor.parameter.grad.clone() for _, tensor in trainer.private.prepared.router.tensors}


def block_of(trainer: Trainer) -> dict[str, str]:
    return {t.name: trainer.private.prepared.schedule.blocks[g].name for g, t in trainer.private.prepared.router.tensors}


def public_only(trainer: Trainer) -> set[str]:
    """Tensors that no private class may touch."""
    run = trainer.private.prepared
    return {t.name for g, t in run.router.tensors if run.schedule.blocks[g].std == 0.0}


def naive_public_sum(trainer: Trainer, *classes: str) -> dict[str, torch.Tensor]:
    """Gradients of every public contribution (of some classes), one backward pass of plain autograd each, added up; no
    clipping anywhere."""
    private, found = trainer.private, {}
    parameters = [t.parameter for _, t in private.prepared.router.tensors]
    private.prepared.router.detach()
    for parameter in parameters:
        parameter.requires_grad_(True)
    for slot, entry in enumerate(private.prepared.pool.slots):
        if entry.resolution.public and (not classes or entry.resolution.class_name in classes):
            rows = collate_tokens(private.prepared.pool.examples(slot))
            grads = torch.autograd.grad(trainer.losses(rows).mean(), parameters, allow_unused=True)
            for (_, tensor), grad in zip(private.prepared.router.tensors, grads, strict=True):
                found[tensor.name] = found.get(tensor.name, 0) + (0 if grad is None else grad.double())
    for parameter in parameters:
        parameter.requires_grad_(False)
    private.prepared.router.attach()
    return found


def test_public_gradients_are_added_as_they_are_and_private_noise_stays(tmp_path) -> None:
    """H1 on the blocks that private classes touch; the plain sum, divided by the normaliser, where they do not."""
    trainer = Trainer(world_of(tmp_path, per_class=2, steps=2), dtype=torch.float64)
    alone = public_only(trainer)
    assert alone and len(alone) < len(trainer.private.prepared.router.tensors)
    assert all("(public)" in block_of(trainer)[name] for name in alone)
    expected, released = naive_public_sum(trainer), gradients(trainer)
    for name in alone:
        assert torch.allclose(released[name].double(), expected[name] / 4, rtol=1e-9, atol=1e-12), name
    noise = []
    for g, tensor in trainer.private.prepared.router.tensors:
        if tensor.name not in alone:
            std = trainer.private.prepared.schedule.blocks[g].std
            assert std == 0.75
            noise.append(((released[tensor.name].double() - expected[tensor.name] / 4) * 4 / std).flatten())
    values = torch.cat(noise)
    d = values.numel()
    # Beside the noise there is one private sum of norm at most 2 * 0.5, that is 1.3 in units of the noise.
    assert abs(float(values.square().sum()) - d) < 5 * math.sqrt(2 * d) + 10
    trainer.close()


def test_a_public_gradient_needs_no_bound(tmp_path) -> None:
    """A loss a million times as large gives a sum a million times as large: nothing clips it."""
    small, large = (Trainer(world_of(tmp_path / k, per_class=1, steps=1), insecure_test_key=KEY) for k in "ab")
    large.family.losses, plain = (lambda model, rows: 1e6 * plain(model, rows)), large.family.losses
    one, million = gradients(small), gradients(large)
    for name in public_only(small):
        assert torch.allclose(million[name], 1e6 * one[name], rtol=1e-4, atol=1e-2), name
    small.close()
    large.close()


def test_noise_is_added_to_private_sums_alone(tmp_path, monkeypatch) -> None:
    """Rounding and the limit of the lattice would move private bits by the size of a public sum that came before the noise."""
    seen, release = [], LatticeGaussian.release_

    def listening(self, clipped_sum, *args, **options):
        seen.append(float(clipped_sum.square().sum()))
        return release(self, clipped_sum, *args, **options)

    monkeypatch.setattr(LatticeGaussian, "release_", listening)
    trainer = Trainer(world_of(tmp_path, per_class=2, steps=1))
    trainer.family.losses = lambda model, rows, plain=trainer.family.losses: 1e6 * plain(model, rows)
    gradients(trainer)
    trainer.close()
    assert 0.0 < math.sqrt(sum(seen)) <= 2 * 0.5


def test_public_classes_of_other_bands_keep_apart_in_one_microbatch(tmp_path) -> None:
    leaflet = CLASSES.split("[[class]]")[2].replace("encyclopedia", "leaflet").replace("from = 0.0", "from = 0.67")
    world = make_world(tmp_path, classes=f"{CLASSES}[[class]]{leaflet}", rate="1", per_class=2, steps=1)
    trainer = Trainer(world, dtype=torch.float64, microbatch=8)
    alone = public_only(trainer)
    blocks = {t.name: trainer.private.prepared.schedule.blocks[g].classes for g, t in trainer.private.prepared.router.tensors}
    assert alone and all(blocks[name] == ("encyclopedia",) for name in alone)
    expected, released = naive_public_sum(trainer, "encyclopedia"), gradients(trainer)
    for name in alone:
        assert torch.allclose(released[name].double(), expected[name] / 4, rtol=1e-9, atol=1e-12), name
    trainer.close()


def other_private(seed: int) -> dict:
    return token_record(seed + 500 if seed in PRIVATE_SEEDS else seed)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("exactness", ["fast", "certified"])
def test_a_private_payload_changes_nothing_in_the_public_sums(tmp_path, exactness) -> None:
    """Teacher-forced over three steps: outside the band every bit of parameters and optimizer state is the same."""
    extra = f'exactness = "{exactness}"'
    a = Trainer(world_of(tmp_path / "a", per_class=3, steps=3, policy_extra=extra), insecure_test_key=KEY)
    b = Trainer(world_of(tmp_path / "b", per_class=3, steps=3, policy_extra=extra, record=other_private), insecure_test_key=KEY)
    alone, seen, changed = public_only(a), {}, 0
    for trainer in (a, b):
        seen[trainer] = []
        take = trainer.private.prepared.folding.public.take
        trainer.private.prepared.folding.public.take = lambda take=take, kept=seen[trainer]: iter(_kept(take(), kept))
    steps = iter(a.steps), iter(b.steps)
    for _ in range(3):
        b.model.load_state_dict(a.model.state_dict())
        b.optimizer.load_state_dict(copy.deepcopy(a.optimizer.state_dict()))
        for trainer, iterator in zip((a, b), steps, strict=True):
            trainer.one(next(iterator))
        for (_, left), (_, right) in zip(a.private.prepared.router.tensors, b.private.prepared.router.tensors, strict=True):
            same = torch.equal(left.parameter, right.parameter)
            assert same or left.name not in alone, left.name
            changed += not same
    assert changed, "positive control: inside the band the payload must show"
    assert len(seen[a]) == 3 * len(a.private.prepared.router.tensors)
    assert all(torch.equal(x, y) for x, y in zip(seen[a], seen[b], strict=True))
    a.close()
    b.close()


def _kept(values, kept: list) -> list[torch.Tensor]:
    found = list(values)
    kept += [value.clone() for value in found]
    return found


def test_a_private_contribution_cannot_be_routed_to_the_public_sums(tmp_path, monkeypatch) -> None:
    """Mutation: an engine that takes every microbatch for public is stopped by the bounds that were signed."""
    monkeypatch.setattr(folding, "is_public", lambda bounds: True)
    trainer = Trainer(world_of(tmp_path, per_class=2, steps=1))
    with pytest.raises(NotPrivateUse) as refused:
        gradients(trainer)
    assert refused.value.code == "PRIVATE_IN_PUBLIC"
    assert all(tensor.parameter.grad is None for _, tensor in trainer.private.prepared.router.tensors)
    trainer.close()


def test_kinds_never_share_a_microbatch(tmp_path, monkeypatch) -> None:
    trainer = Trainer(world_of(tmp_path, per_class=5, steps=1), microbatch=4).begin()
    pool = trainer.private.prepared.pool
    trainer.private.prepared.charge(1)
    planned = trainer.private.prepared.draw(1)
    kinds = [{pool.slots[slot].resolution.public for slot in item.slots} for item in planned]
    assert kinds == [{False}, {False}, {True}, {True}]
    trainer.close()
    mixed = Trainer(world_of(tmp_path / "mixed", per_class=2, steps=1))
    draw = mixed.private.prepared.draw

    def all_in_one(number):
        slots = tuple(slot for item in draw(number) for slot in item.slots)
        return [Planned(slots, 1)]

    monkeypatch.setattr(mixed.private.prepared, "draw", all_in_one)
    with pytest.raises(NotPrivateUse) as refused:
        gradients(mixed)
    assert refused.value.code == "MIXED_MICROBATCH"
    mixed.close()


@pytest.mark.parametrize("clip, sigma", [(1e9, 2e-6), (999999999.999999, 1e-6), (1.0, 1.0), (1e9, 1.0)])
def test_only_the_bounds_that_say_public_come_to_the_public_sums(tmp_path, clip, sigma) -> None:
    trainer = Trainer(world_of(tmp_path, per_class=1, steps=1))
    bounds = bounds_of([(PUBLIC_BOUNDS, (0,)), (signed(clip, sigma), (0,))], 1)
    with pytest.raises(NotPrivateUse):
        trainer.private.prepared.folding.public.add({}, bounds)
    trainer.close()


def test_a_sum_of_private_gradients_without_noise_is_never_released(tmp_path, monkeypatch) -> None:
    """Mutation: masks that open the public blocks to a private class."""
    trainer = Trainer(world_of(tmp_path, per_class=2, steps=1))
    everything = FastSums.coefficients
    monkeypatch.setattr(
        FastSums, "coefficients", lambda self, norms, bounds: everything(self, norms, bounds).amax(1, True).expand_as(norms)
    )
    router = trainer.private.prepared.router
    arm = router.arm
    monkeypatch.setattr(router, "arm", lambda n, m, permitted, *_: arm(n, m, torch.ones_like(permitted)))
    with pytest.raises(NotPrivateUse) as refused:
        gradients(trainer)
    assert refused.value.code == "NO_NOISE"
    trainer.close()


def test_a_public_gradient_that_is_not_finite_counts_as_zero(tmp_path) -> None:
    released = []
    first = token_record(PUBLIC_SEEDS[0])["ids"][0]
    for fault in (math.nan, 0.0):
        trainer = Trainer(world_of(tmp_path / str(fault), per_class=2, steps=1), insecure_test_key=KEY, microbatch=1)

        def losses(model, rows, plain=trainer.family.losses, private=trainer.private, fault=fault):
            hit = not private.prepared.probe.active and int(rows["input_ids"][0, 0]) == first
            return plain(model, rows) * (fault if hit else 1.0)

        trainer.family.losses = losses
        released.append(gradients(trainer))
        alone = public_only(trainer)
        trainer.close()
    for name in alone:
        assert torch.isfinite(released[0][name]).all()
        assert torch.equal(released[0][name], released[1][name]), name


def draw_less(trainer: Trainer) -> None:
    """The same run with other private draws: half of the private contributions of every step are not drawn."""
    sampler = trainer.private.prepared.attempt.streams.sampler
    draw = sampler.draw

    def fewer(step: int):
        slots = draw(step)
        private = [s for s in slots if not trainer.private.prepared.pool.slots[int(s)].resolution.public]
        return [s for s in slots if s not in private[: len(private) // 2]]

    sampler.draw = fewer


@pytest.mark.one_in(9)
@pytest.mark.parametrize("addressed", [True, False])
def test_public_gradients_do_not_show_how_many_private_ones_were_drawn(tmp_path, monkeypatch, addressed) -> None:
    """With dropout, the generator of torch would have moved further the more private microbatches ran before.

    Were masks drawn from it (the control), public gradients, which carry no noise, would show that.
    """
    if not addressed:
        monkeypatch.setattr(interception, "draws", lambda func, args, kwargs: False)
        monkeypatch.setattr(start, "check_company", lambda *args: None)
    world = world_of(tmp_path, per_class=4, steps=1)  # one for both: masks belong to contributions
    released = []
    for name in ("all", "half"):
        for path in tmp_path.glob("ledger.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        trainer = Trainer(world, insecure_test_key=KEY, microbatch=1)
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.3
        trainer.begin()
        if name == "half":
            draw_less(trainer)
        torch.manual_seed(11)
        released.append(gradients(trainer))
        alone = public_only(trainer)
        trainer.close()
    same = all(torch.equal(released[0][name], released[1][name]) for name in alone)
    assert same is addressed
    assert not all(torch.equal(x, y) for x, y in zip(released[0].values(), released[1].values(), strict=True))


def test_the_record_claims_no_epsilon_for_public_contributions(tmp_path) -> None:
    world = world_of(tmp_path, per_class=3, steps=4, rate="0.5")
    trainer = Trainer(world)
    trainer.run()
    private, public = trainer.private.prepared.summary()
    assert private["epsilon"] > 0 and not private["public"]
    assert public["public"]
    assert all(
        public[key] is None for key in ("epsilon", "epsilon_replace", "epsilon_planned", "effective_multiplier", "waste")
    )
    ledger = trainer.private.opened.recorder.ledger
    with ledger.rows() as rows:
        leaves = [decode_leaf(row.body) for row in rows]
    hashes = {s.descriptor_hash: s.resolution.public for s in trainer.private.prepared.pool.slots}
    rows = [row for leaf in leaves if isinstance(leaf, Spend) for row in leaf.rows]
    assert {leaves[0].policy.classes[row.profile_id].public for row in rows} == {False}
    assert {row.count for row in rows} == {sum(not is_public for is_public in hashes.values())}
    assert [row.max_epsilon_micro is None for leaf in leaves if isinstance(leaf, Epoch) for row in leaf.classes] == [
        False,
        True,
    ]
    for descriptor_hash, is_public in hashes.items():
        with pytest.raises(LeafRefused) if is_public else contextlib.nullcontext():
            ledger.epsilon(descriptor_hash)
    assert any(block.std == 0.0 and block.classes == ("encyclopedia",) for block in leaves[0].blocks)
    export = trainer.private.export(tmp_path / "export")
    trainer.close()
    report = verify_export(
        export, [world.ledger.with_suffix(".pub").read_text().strip()], owner_key=public_bytes(world.owner_key)
    )
    assert report.verdict == "FULL", report.findings
    assert report.classes[1].public and report.classes[1].epsilon is None and report.classes[1].noise_multiplier is None
    assert any("class encyclopedia is public" in note for note in report.notes)
    page = write_report(export, tmp_path / "report.html", report=report).read_text()
    assert "<td>public</td>" in page


def test_a_number_in_place_of_no_promise_is_refused(tmp_path) -> None:
    """Zero would be the worst: it reads as perfect privacy."""
    trainer = Trainer(world_of(tmp_path, per_class=1, steps=1, rate="0.5"))
    trainer.run()
    ledger = trainer.private.opened.recorder.ledger
    with ledger.rows() as rows:
        leaves = [decode_leaf(row.body) for row in rows]
    trainer.close()
    from ledger.replay import Replay

    for number, codes in ((None, []), (0, ["EPOCH"]), (5, ["EPOCH"])):
        run, found = Replay(leaves[0], lambda size: b""), []
        for leaf in leaves[1:]:
            if isinstance(leaf, Epoch):
                classes = (leaf.classes[0], EpochClass(leaf.classes[1].active, leaf.classes[1].withdrawn, number))
                leaf = replace(leaf, classes=classes)
            found += [problem.code for problem in run.apply(leaf)]
        assert found == codes


def test_public_sums_keep_to_the_profile_of_their_class(tmp_path) -> None:
    """A public class with a band touches its band; a block that only private classes touch has noise and no public sum."""
    private, public = CLASSES.split("public = true")
    classes = private.replace("from = 0.67", "from = 0.0") + "public = true" + public.replace("from = 0.0", "from = 0.67")
    trainer = Trainer(make_world(tmp_path, classes=classes, rate="1", per_class=2, steps=1))
    assert not public_only(trainer)
    kept: list[torch.Tensor] = []
    take = trainer.private.prepared.folding.public.take
    trainer.private.prepared.folding.public.take = lambda: iter(_kept(take(), kept))
    gradients(trainer)
    assert isinstance(trainer.private.prepared.folding.public, PublicSums)
    for (g, tensor), total in zip(trainer.private.prepared.router.tensors, kept, strict=True):
        inside = "encyclopedia" in trainer.private.prepared.schedule.blocks[g].classes
        assert inside or not total.any(), tensor.name
    assert any(total.any() for total in kept)
    trainer.close()
