"""Slots in columns: they read like the admissions that they are made of, in any order, and are found by their hash."""

import random
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from attest.gate.admission import AdmittedRows
from dptrain.data.contributions import Pool, in_ledger_order, slots_for
from dptrain.data.slots import Slot, Slots
from dptrain.record.recorder import _admissions, _one_of_each_form, by_terms
from tests.worlds.trainer import BertTrainer as Trainer
from tests.worlds.training import make_world


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    found = Trainer(make_world(tmp_path_factory.mktemp("slots"), per_class=5, steps=2))
    yield found
    found.close()


def test_slots_in_any_order_are_those_of_a_list(trainer) -> None:
    slots = trainer.private.prepared.pool.slots
    admitted, schedule = trainer.private.opened.gate.admitted, trainer.private.prepared.schedule
    plain = [Slot(entry, schedule.resolve(entry.admission)) for entry in admitted]
    assert list(slots) == plain == list(Slots.of(plain)) and len(slots) == len(plain) == 15
    assert len(slots.forms) < len(plain), "contributions that were signed together share a form"
    order = random.Random(7).sample(range(len(plain)), len(plain) - 3)
    for taken, expected in ((slots.take(order), [plain[i] for i in order]), (slots[2:9:3], plain[2:9:3]), (slots, plain)):
        assert list(taken) == expected and taken.class_names() == [slot.resolution.class_name for slot in expected]
        for index, slot in enumerate(expected):
            admission = slot.admitted.admission
            assert taken[index] == slot and taken.resolution(index) == slot.resolution
            assert taken.descriptor_hash(index) == slot.descriptor_hash == admission.descriptor_hash
            assert taken.content_hash(index) == admission.descriptor.content_hash
            assert taken.locator(index) == slot.admitted.locator
            assert taken.find(slot.descriptor_hash) == index
            assert taken.forms[taken.numbers[index]] is taken.form(index)
        missing = [slot for slot in plain if slot not in expected]
        assert [taken.find(slot.descriptor_hash) for slot in missing] == [None] * len(missing)
        assert taken.find(bytes(32)) is None and taken.find(expected[0].descriptor_hash[:8] + bytes(24)) is None
    assert slots.take(order).take([1, 0])[0] == plain[order[1]]
    assert in_ledger_order(slots, [slot.descriptor_hash for slot in plain]) is slots


def test_slots_of_equal_terms_stand_together_and_else_as_they_stood(trainer) -> None:
    """So that a ledger whose corpus alternates between classes keeps no more of pruned admissions than one that does not."""
    slots, policy = trainer.private.prepared.pool.slots, trainer.private.policy
    mixed = slots.take([0, 5, 10, 1, 6, 11, 2, 7])
    found = by_terms(mixed, policy)
    assert found.class_names() == sorted(mixed.class_names(), key=mixed.class_names().index)
    assert [mixed.find(found.descriptor_hash(index)) for index in range(8)] == [0, 3, 6, 1, 4, 7, 2, 5]
    assert by_terms(slots, policy) is slots and by_terms(found, policy) is found


def test_what_was_counted_stays_with_its_contribution_in_another_order(trainer) -> None:
    pool = trainer.private.prepared.pool
    fresh = Pool(pool.corpus, pool.decode, pool.slots, pool._policy)
    fresh.examples(1)
    fresh._sizes[1] = 5
    again = fresh.reordered(fresh.slots.take([3, 1, 0]))
    assert list(again._sizes) == [0, 5, 0]
    same = fresh.reordered(slots_for(trainer.private.opened.gate.admitted, trainer.private.prepared.schedule))
    assert list(same._sizes) == list(fresh._sizes)


def test_what_is_asked_of_a_form_is_answered_for_everybody(trainer) -> None:
    pool = trainer.private.prepared.pool
    names = [pool.slots.admission(index).admissibility_class for index in range(len(pool))]
    found = pool.asked(lambda admission: admission.admissibility_class if admission.admissibility_class != "open" else None)
    assert [(admission.descriptor_hash, answer) for admission, answer in found] == [
        (pool.slots.descriptor_hash(index), name) for index, name in enumerate(names) if name != "open"
    ]
    assert pool.asked(lambda admission: None) == []


def test_what_a_ledger_records_of_slots_is_made_of_each_admission(trainer) -> None:
    """By form and by slot alike, and the plan of a run is held against one of each form."""
    slots, classes = trainer.private.prepared.pool.slots, [rule.name for rule in trainer.private.policy.classes]
    alone = AdmittedRows()
    for entry in trainer.private.opened.gate.admitted:
        alone.append(entry, alone=True)
    found = list(_admissions(slots, classes))
    assert found == list(_admissions(slots_for(alone, trainer.private.prepared.schedule), classes))
    for spec, slot in zip(found, slots, strict=True):
        signed = slot.admitted.admission.descriptor
        assert spec.anchor == signed.signed.content and spec.descriptor_hash == signed.digest()
        assert (spec.clip_micro, spec.sigma_micro) == (signed.clip_norm_micro, signed.noise_multiplier_micro)
        assert spec.attestation[0].signed == replace(signed.signed, content=bytes(32))
    some = list(_one_of_each_form(slots.take(range(4, 15)), classes))
    assert [spec.descriptor_hash for spec in some] == [
        next(s.descriptor_hash for s, number in zip(list(slots)[4:], slots.numbers[4:], strict=True) if number == wanted)
        for wanted in dict.fromkeys(slots.numbers[4:])
    ]
