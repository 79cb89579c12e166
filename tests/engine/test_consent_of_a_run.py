"""What a run trains on: contributions whose contributors signed that, in classes of the policy that are for training."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from attest.corpus import SigningTemplate, sign_corpus  # noqa: E402
from attest.errors import PolicyRefused  # noqa: E402
from attest.policy import Policy  # noqa: E402
from dptrain.blocks.stack import layer_stack  # noqa: E402
from dptrain.clipping.resolver import bind  # noqa: E402
from dptrain.engine import refusals  # noqa: E402
from dptrain.errors import ConfigError, NotPrivateUse, UnsupportedPolicy  # noqa: E402
from dptrain.planning.plan import make_plan  # noqa: E402
from tests.attacks.test_attacks_on_training import forged  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.trainer import Trainer, audited, opening  # noqa: E402
from tests.worlds.training import CLASSES, DAY, PUBLIC, SENSITIVE, World, make_world  # noqa: E402

TEXTS = """
[[class]]
name = "texts"
clip_norm = 8.0
noise_multiplier = 9.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
purposes = ["generate"]
generation = {{ references = 7, clip_norm = 0.5, temperature = 1.0, tokens = 100, max_rho = 1.0 }}
"""
"""A class that is for generation alone. As a class of training it would reach every block, and raise the noise of each."""

BESIDE = TEXTS + CLASSES
"""It comes first, so that places of the others are not those that they have in the policy."""


def rules(classes: str) -> Policy:
    text = f'corpus = "c"\ndelta = 1e-5\nsteps = 4\nnormalizer = 4\n{classes.format(q=0.5)}'
    return Policy.from_toml(text)


def sign_again(world: World, name: str, purposes: tuple[str, ...] | None) -> None:
    """Lets the contributor of a class sign its records anew, for these purposes."""
    rule = rules(BESIDE).class_rule(name)
    template = SigningTemplate(
        contributor=f"contributor-{name}", data_class="test", admissibility_class=name, corpus="test-corpus",
        not_before=world.now - DAY, not_after=world.now + 200 * DAY, clip_norm_micro=rule.clip_norm_micro,
        noise_multiplier_micro=rule.noise_multiplier_micro, purposes=purposes,
    )  # fmt: skip
    sign_corpus(world.corpus / f"{name}.jsonl", None, world.contributor_keys[f"contributor-{name}"], template)


def test_a_class_that_is_not_for_training_has_no_profile_adds_nothing_to_the_noise_of_a_block_and_opens_no_tensor():
    model = FAMILIES["bert"]().model
    beside, alone = (bind(rules(classes), layer_stack(model)) for classes in (BESIDE, CLASSES))
    assert beside.blocks == alone.blocks and beside.profiles == alone.profiles and beside.frozen == alone.frozen
    assert beside.policy == alone.policy and [rule.name for rule in beside.policy.classes] == ["sensitive", "internal", "open"]
    # Were it for training too, it would be in every block, and its noise with it.
    trained = rules(BESIDE.replace('["generate"]', '["generate", "train"]'))
    every = bind(trained, layer_stack(model))
    assert all("texts" in block.classes and block.std >= 72 for block in every.blocks)
    frozen = {tensor.name for tensor in bind(rules(SENSITIVE), layer_stack(model)).frozen}
    assert frozen and {tensor.name for tensor in bind(rules(TEXTS + SENSITIVE), layer_stack(model)).frozen} == frozen


def test_a_policy_all_of_whose_classes_only_generate_starts_no_training(tmp_path):
    only = rules(TEXTS)
    with pytest.raises(UnsupportedPolicy) as caught:
        bind(only, layer_stack(FAMILIES["bert"]().model))
    assert caught.value.code == "PURPOSE" and "texts for generate" in caught.value.sentence
    with pytest.raises(UnsupportedPolicy, match="PURPOSE"):
        refusals.refuse_policy(only)
    with pytest.raises(PolicyRefused, match="PURPOSE"):
        make_plan(only, 12)
    world = make_world(tmp_path, classes=TEXTS, per_class=1, template_extra={"purposes": ("generate",)})
    with pytest.raises(UnsupportedPolicy, match="PURPOSE"):
        Trainer(world)
    assert not world.ledger.exists()


def test_classes_that_are_trained_on_need_one_that_is_not_public():
    """A private class that only generates protects nobody in a run."""
    with pytest.raises(PolicyRefused) as caught:
        rules(TEXTS + PUBLIC)
    assert caught.value.code == "RANGE" and "every class that is for training is public" in caught.value.sentence


def test_a_run_trains_on_what_was_signed_for_it_and_is_audited_by_the_same_rule(tmp_path):
    """Signed for both, signed for generation alone, and a class that only generates: the first is all that is trained on."""
    world = make_world(tmp_path, classes=BESIDE, per_class=2, steps=2, rate="1")
    sign_again(world, "texts", ("generate",))
    sign_again(world, "internal", ("generate",))
    sign_again(world, "open", ("generate", "train"))
    trainer = Trainer(world)
    gate = trainer.private.opened.gate
    assert gate.counts() == {"admitted": {"open": 2, "sensitive": 2}, "refused": {"PURPOSE": 4}}
    trainer.run()
    assert {slot.resolution.class_name for slot in trainer.private.prepared.pool.slots} == {"open", "sensitive"}
    assert [row["class"] for row in trainer.private.prepared.summary()] == ["sensitive", "internal", "open"]
    report = audited(trainer, world, tmp_path / "export")
    assert [(one.name, one.active) for one in report.classes] == [("sensitive", 2), ("internal", 0), ("open", 2)]
    trainer.close()


def test_nothing_rests_on_the_gate_having_run(tmp_path):
    """An admission that no gate made, of what was not signed for training, gets no noise and no profile."""
    world = make_world(tmp_path, classes=BESIDE, per_class=1, steps=2, rate="1", template_extra={"purposes": ("train",)})
    trainer = Trainer(world)
    prepared = trainer.private.prepared
    (admission, *_) = (slot.admitted.admission for slot in prepared.pool.slots)
    assert prepared.schedule.resolve(forged(admission, purposes=("generate", "train"))) == prepared.schedule.resolve(admission)
    with pytest.raises(NotPrivateUse) as caught:
        prepared.schedule.resolve(forged(admission, purposes=("generate",)))
    assert caught.value.code == "PURPOSE" and "signed for generate, asked for is train" in caught.value.sentence
    with pytest.raises(NotPrivateUse) as caught:
        prepared.schedule.resolve(forged(admission, admissibility_class="texts"))
    assert caught.value.code == "CLASS_UNKNOWN"
    # Nor does a schedule whose policy was put in place of the one that it was bound to.
    lost = tuple(
        replace(rule, purposes=("generate",), generation=rules(TEXTS).classes[0].generation)
        if rule.name == admission.admissibility_class
        else rule
        for rule in prepared.schedule.policy.classes
    )
    with pytest.raises(NotPrivateUse) as caught:
        replace(prepared.schedule, policy=replace(prepared.schedule.policy, classes=lost)).resolve(admission)
    assert caught.value.code == "PURPOSE" and "asked for is train" in caught.value.sentence
    trainer.close()


def test_a_corpus_of_which_nothing_was_signed_for_training_starts_no_run(tmp_path):
    world = make_world(tmp_path, classes=CLASSES, per_class=1)
    for name in ("sensitive", "internal", "open"):
        sign_again(world, name, ("generate",))
    with pytest.raises(ConfigError) as caught:
        Trainer(world)
    assert caught.value.code == "NOTHING_ADMITTED" and "PURPOSE 3" in caught.value.sentence
    assert opening(world.ledger)["ledger"] and not world.ledger.exists()
