"""Every released gradient of a real run, recomputed from the policy, the corpus and the test key by naive code.

One test against many faults at once: wrong masks, bounds of the class in place of signed ones, one class unclipped,
clipping per example, noise that follows the draw, a realised normaliser, noise on hit rows only, a sampler at another rate,
a withdrawn slot that is drawn, an empty draw that is drawn again.
"""

import hashlib
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from attest import signed_file  # noqa: E402
from attest.withdrawal import Withdrawal, sign_withdrawal  # noqa: E402
from tests.reference import streams  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.trainer import collate_tokens  # noqa: E402
from tests.worlds.training import World, make_world, token_record  # noqa: E402

KEY = b"\x21" * 32
STEPS = 8
SIGNED = {  # what contributors signed: (clip norm, noise multiplier); "open" signed stricter bounds than its class
    "sensitive": (0.5, 1.5),
    "internal": (1.0, 1.0),
    "open": (0.4, 2.5),
}
PRESET = {"sensitive": (0.5, 1.5), "internal": (1.0, 1.0), "open": (1.0, 0.6)}
RATES = {"sensitive": Fraction(1, 10), "internal": Fraction(1, 3), "open": Fraction(1, 4)}
LOWEST = {"sensitive": 2, "internal": 1, "open": -1}
"""Lowest layer of each class in a model of three layers; -1 stands for the embeddings, the head is open to all."""

POLICY = "".join(
    f"""
[[class]]
name = "{name}"
clip_norm = {PRESET[name][0]}
noise_multiplier = {PRESET[name][1]}
sampling_rate = {rate}
depth = {{{{ from = {start}, to = 1.0 }}}}
"""
    for name, rate, start in (("sensitive", "0.1", 0.67), ("internal", "0.333333333333", 0.34), ("open", "0.25", 0.0))
)
RATES["internal"] = Fraction("0.333333333333")
NORMALIZER = 4


def several(seed: int) -> list[dict]:
    return [token_record(seed + 17 * j) for j in range(1 + seed % 3)]


def depth_of(name: str) -> int:
    if ".layer." in name:
        return int(name.split(".layer.")[1].split(".")[0])
    return -1 if "embeddings" in name else 3


def noise_std(name: str) -> float:
    """The max rule, from the policy's presets."""
    return max(c * s for cls, (c, s) in PRESET.items() if depth_of(name) >= LOWEST[cls])


def expected_release(trainer: Trainer, slots: list, drawn: list[int], step: int) -> dict[str, torch.Tensor]:
    """p.grad by definition: per-contribution autograd, mask, dual clip, sum, noise, divide by the public constant."""
    named = [(t.name, t.parameter) for _, t in trainer.private.prepared.router.tensors]
    total = {name: torch.zeros_like(p) for name, p in named}
    coordinates = sum(p.numel() for _, p in named)
    for slot in drawn:
        cls, seed = slots[slot]
        clip, sigma = SIGNED[cls]
        batch = collate_tokens(several(seed))
        for _, p in named:
            p.requires_grad_(True)
        loss = (trainer.family.losses(trainer.model, batch) * trainer.scale).mean()
        grads = dict(zip((n for n, _ in named), torch.autograd.grad(loss, [p for _, p in named]), strict=True))
        for _, p in named:
            p.requires_grad_(False)
        grads = {n: g for n, g in grads.items() if depth_of(n) >= LOWEST[cls]}
        norm = sum(float(g.square().sum()) for g in grads.values()) ** 0.5
        white = sum(float(g.square().sum()) / noise_std(n) ** 2 for n, g in grads.items()) ** 0.5
        least = min(noise_std(n) for n in grads)
        keep = 1.0 - 2.0**-40 - max(sigma, least / clip) * coordinates**0.5 * 2.0**-32
        factor = min(1.0, keep * clip / norm, keep / (sigma * white))
        for n, g in grads.items():
            total[n] += factor * g
    key = streams.stream_key("noise", hashlib.sha256(KEY).digest()[:16], 0, KEY)
    for lane, (name, p) in enumerate(named):
        noise = torch.tensor(streams.normals(key, step, lane, p.numel()), dtype=torch.float64).view(p.shape)
        total[name] = (total[name] + noise_std(name) * noise) / NORMALIZER
    return total


class Scaled(Trainer):
    """Losses large enough that every clip bound binds."""

    scale = 50.0

    def losses(self, rows):
        return super().losses(rows) * self.scale


@pytest.fixture
def world(tmp_path) -> World:
    return make_world(
        tmp_path, per_class=3, steps=STEPS, classes=POLICY, record=several, policy_extra="[gate]\nmax_examples = 4\n",
        signed_bounds=lambda name: {"clip_norm_micro": str(SIGNED[name][0]), "noise_multiplier_micro": str(SIGNED[name][1])},
    )  # fmt: skip


def test_every_release_of_a_run_equals_the_definition(world: World) -> None:
    trainer = Scaled(world, insecure_test_key=KEY, dtype=torch.float64, microbatch=2)
    order = ["internal", "open", "sensitive"]  # files of the corpus in their order
    classes = {"sensitive": 0, "internal": 1000, "open": 2000}
    slots = [(cls, classes[cls] + i) for cls in order for i in range(3)]
    key = streams.stream_key("sampling", hashlib.sha256(KEY).digest()[:16], 0, KEY)
    gone = 1  # slot 1 is withdrawn during the second window
    sizes = []
    for step in trainer.steps:
        drawn = streams.draw(key, step.number, [RATES[cls] for cls, _ in slots])
        if step.number > 4 and gone in drawn:
            drawn.remove(gone)
        sizes.append(len(drawn))
        expected = expected_release(trainer, slots, drawn, step.number)
        contributions = 0
        for rows in step:
            contributions += 0 if trainer.private.prepared.probe.active else rows.contributions
            trainer.private.backward(trainer.losses(rows), rows)
        assert contributions == len(drawn)
        for _, tensor in trainer.private.prepared.router.tensors:
            gap = (tensor.parameter.grad - expected[tensor.name]).abs().max()
            assert float(gap) < 2.0**-30 * noise_std(tensor.name), f"step {step.number}: {tensor.name} is not as defined"
        trainer.optimizer.step()
        if step.number == 3:
            payload, message = sign_withdrawal(
                Withdrawal(trainer.private.prepared.pool.slots[gone].descriptor_hash, "test-corpus", world.now, "consent"),
                world.owner_key, signer="owner",
            )  # fmt: skip
            signed_file.write(world.root / "ledger.db.withdrawals" / "w.cose", payload, message)
    assert len(sizes) == STEPS and len(set(sizes)) > 1, "draws of different sizes, so that nothing may follow them"
    trainer.close()


def test_an_empty_draw_is_released_as_it_is(tmp_path) -> None:
    """Draws follow the stream even when they are empty: nobody draws again until somebody comes."""
    world = make_world(tmp_path, per_class=1, steps=12, rate="0.1")
    trainer = Trainer(world, insecure_test_key=KEY)
    key = streams.stream_key("sampling", hashlib.sha256(KEY).digest()[:16], 0, KEY)
    counts = []
    for step in trainer.steps:
        seen = 0
        for rows in step:
            seen += 0 if trainer.private.prepared.probe.active else rows.contributions
            trainer.private.backward(trainer.losses(rows), rows)
        trainer.optimizer.step()
        assert seen == len(streams.draw(key, step.number, [Fraction(1, 10)] * 3))
        counts.append(seen)
    assert 0 in counts and any(counts)
    trainer.close()


def test_the_public_record_does_not_depend_on_who_was_drawn(tmp_path) -> None:
    """Two runs with other draws, other content and other noise: the same leaves, but for keys, times and digests of models."""
    records = []
    for name, key in (("a", b"a" * 32), ("b", b"b" * 32)):
        world = make_world(tmp_path / name, per_class=3, steps=6, rate="0.4", now=1_800_000_000)
        trainer = Trainer(world, insecure_test_key=key, clock=lambda: 1_800_000_000)
        trainer.run()
        ledger = trainer.private.opened.recorder.ledger
        public = [
            [(c.class_name, c.q_num, c.q_den, c.min_std, c.pool_count) for c in w.classes] + [w.first_step, w.n_steps]
            for w in ledger.state.windows
        ]
        with ledger.rows() as rows:
            from ledger.leaves import Epoch, Settle, Spend, decode_leaf

            leaves = [decode_leaf(row.body) for row in rows]
        settled = [(x.window, x.steps_released, x.variances) for x in leaves if isinstance(x, Settle)]
        rows = [row for x in leaves if isinstance(x, Spend) for row in x.rows]
        spent = [(*row.key, row.count, row.steps, row.variance, row.epsilon_micro) for row in rows]
        closed = [(x.number, x.step, x.charged, x.classes) for x in leaves if isinstance(x, Epoch)]
        draws = trainer.private.prepared.attempt.streams.sampler.occurrences.tolist()
        records.append((public, settled, spent, closed, draws))
        trainer.close()
    assert records[0][4] != records[1][4], "the draws must differ for the test to mean something"
    assert records[0][:4] == records[1][:4]
    assert records[0][1] and records[0][2] and records[0][3]


def test_redone_steps_are_paid_for_in_the_recorded_epsilon(tmp_path) -> None:
    from ledger.accountants import epsilon

    world = make_world(tmp_path, per_class=2, steps=4, rate="0.5")
    first = Trainer(world)
    iterator = iter(first.steps)
    for _ in range(4):
        first.one(next(iterator))
    first.close()  # four steps charged, nothing saved
    second = Trainer(world, resume=True)
    second.run()
    ledger = second.private.opened.recorder.ledger
    assert ledger.state.charged == 8
    for slot in second.private.prepared.pool.slots:
        spent = ledger.epsilon(slot.descriptor_hash)
        assert spent == pytest.approx(epsilon(slot.resolution.multiplier, 0.5, 8, 1e-5), rel=1e-9)
        assert spent > 1.2 * epsilon(slot.resolution.multiplier, 0.5, 4, 1e-5)
    second.close()
