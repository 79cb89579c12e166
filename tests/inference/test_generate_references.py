"""References of a run: read strictly, each in its place, and labelled by what is public alone."""

import hashlib
import hmac
import json
from dataclasses import replace

import pytest

from attest.errors import FileRefused
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.formulas import require_mean, sensitivity_of
from dptrain.inference.invisibleink.partition import REFUSED_PARTITIONS, require_hashed
from dptrain.inference.invisibleink.references import MOST_ROW, References, read_labels
from dptrain.inference.invisibleink.tasks import Task
from ledger.errors import AccountantError
from tests.worlds.text_runs import SALT, TEXTS, write_labels, write_references


@pytest.fixture
def rows(tmp_path):
    return write_references(tmp_path / "refs.jsonl")


def written(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def test_every_row_keeps_its_place_and_one_that_is_empty_or_null_is_a_null_reference(rows):
    found = References.read(rows, salt=SALT)
    assert [one.id for one in found] == [f"r{number}" for number in range(10)]
    assert [one.text for one in found] == [TEXTS[number % len(TEXTS)] or "" for number in range(10)]
    assert found.labels == (None,)


def test_a_unit_is_the_id_under_the_salt_and_another_salt_makes_other_units(rows):
    found = References.read(rows, salt=SALT).rows[4]
    assert found.unit.kind == "contribution"
    assert found.unit.name == hmac.new(SALT, b"r4", hashlib.sha256).hexdigest()
    assert References.read(rows, salt=bytes(32)).rows[4].unit != found.unit


def test_the_text_of_a_reference_stands_in_no_picture_of_it(rows):
    found = References.read(rows, salt=SALT)
    assert "red boat" not in repr(found.rows[0]) and "red boat" not in repr(found)


@pytest.mark.parametrize(
    "text, line, code",
    [
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n', "lines 1 and 2", "RECORD_ID"),
        ('\n{"id": "a", "text": "x"}\nno json\n', "line 3", "REFERENCES"),
        ('{"id": "", "text": "x"}\n', "line 1", "REFERENCES"),
        ('{"id": 7, "text": "x"}\n', "line 1", "REFERENCES"),
        ('{"id": "a", "id": "b", "text": "secret"}\n', "line 1", "REFERENCES"),
        ('{"id": NaN, "text": "x"}\n', "line 1", "REFERENCES"),
        ('{"text": {"id": "a"}}\n', "line 1", "REFERENCES"),
        ('{"id": "a", "text": "secret}\n', "line 1", "REFERENCES"),
        ('{"id": "a", "text": [{"q": "secret"]}}\n', "line 1", "REFERENCES"),
        ('{"id": "a", "id": "b", "text": ' + "[" * 5000 + "]" * 5000 + "}\n", "line 1", "REFERENCES"),
        ('["a", "secret"]\n', "line 1", "REFERENCES"),
        ('{"id": "a", "text": "secret \udcff"}\n', "line 1", "REFERENCES"),
        ("\n \n", "has no rows", "REFERENCES"),
    ],
)
def test_a_line_that_is_no_row_is_named_by_its_number_and_nothing_of_it_is_repeated(tmp_path, text, line, code):
    with pytest.raises(ConfigError, match=line) as refused:
        References.read(written(tmp_path, text), salt=SALT)
    assert refused.value.code == code
    assert "secret" not in refused.value.sentence


def test_what_is_no_text_is_a_null_reference_and_ends_the_run_for_nobody(tmp_path):
    told = ["7", "true", '["a secret"]', '{"text": "a secret"}', '"\\ud800"', "null", '""', '"tea"']
    lines = "".join(f'{{"id": "r{number}", "text": {text}}}\n' for number, text in enumerate(told))
    found = References.read(written(tmp_path, lines), salt=SALT)
    assert [one.id for one in found] == [f"r{number}" for number in range(8)]
    assert [one.text for one in found] == [""] * 7 + ["tea"]


WRONG = {
    "no number": '"text": "secret", "more": NaN',
    "no number as text": '"text": NaN',
    "no text": '"more": 1',
    "nothing": '"text": {"id": "b", "id": "c"}',
    "two names within": '"text": "secret", "more": [{"q": 1, "q": 2}]',
    "two texts": '"text": "secret", "text": "another"',
    "too deep": '"text": ' + "[" * 5000 + '{"q": "]"}' + "]" * 5000,
    "too large a number": '"text": ' + "9" * 5000,
    "a line of control": '"text": "sec\tret"',
    "too long": '"text": "' + "y" * MOST_ROW + '"',
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_row_with_an_id_is_null_whatever_else_is_wrong_with_it(tmp_path, wrong):
    """An error would tell of one payload, and end the run for all."""
    for line in ('{"id": "r1", ' + wrong + "}", "{" + wrong + ', "id": "r1"}'):
        found = References.read(written(tmp_path, '{"id": "r0", "text": "tea"}\n' + line + "\n"), salt=SALT)
        assert [(one.id, one.text) for one in found] == [("r0", "tea"), ("r1", "")]
        assert found.absent is None


def test_a_row_of_the_longest_size_is_read_whole(tmp_path):
    text = "y" * (MOST_ROW - len('{"id": "r", "text": ""}'))
    [found] = References.read(written(tmp_path, f'{{"id": "r", "text": "{text}"}}\n'), salt=SALT)
    assert found.text == text


def test_that_no_row_has_the_field_of_texts_is_told_to_who_runs_it_and_changes_no_reference(tmp_path):
    lines = '{"id": "a", "note": "x"}\n{"id": "b", "note": "y"}\n'
    found = References.read(written(tmp_path, lines), salt=SALT)
    null = References.read(written(tmp_path, lines.replace("note", "text")), salt=SALT)
    assert (found.absent, null.absent) == ("text", None)
    assert [one.text for one in found] == ["", ""] and found.digest == null.digest
    assert replace(null.rows[0], text="") == found.rows[0]


def test_references_that_are_not_there_are_refused_by_their_path(tmp_path):
    with pytest.raises(FileRefused, match="no references at"):
        References.read(tmp_path / "none.jsonl", salt=SALT)


def test_a_salt_has_sixteen_bytes_at_least(rows):
    with pytest.raises(ConfigError) as refused:
        References.read(rows, salt=b"short")
    assert refused.value.code == "SALT"


def test_labels_of_a_public_list_form_the_batches_whatever_the_texts_are(tmp_path, rows):
    labels = write_labels(tmp_path / "labels.csv")
    found = References.read(rows, salt=SALT, labels=labels)
    assert found.labels == ("calm", "loud")
    batches = found.batches(2, SALT)
    assert {label: len(made) for label, made in batches.items()} == {"calm": 2, "loud": 2}
    assert all(one.label == label for label, made in batches.items() for batch in made for one in batch)


def test_a_text_that_becomes_null_moves_no_other_reference(tmp_path, rows):
    before = References.read(rows, salt=SALT)
    write_references(rows, texts=("", *TEXTS[1:]))
    after = References.read(rows, salt=SALT)
    assert after.digest == before.digest
    pairs = zip(before.batches(3, SALT)[None], after.batches(3, SALT)[None], strict=True)
    changed = [(one.id, two.id) for old, new in pairs for one, two in zip(old, new, strict=True) if one != two]
    assert changed and set(changed) <= {("r0", "r0"), ("r7", "r7")}


def test_the_digest_follows_from_ids_and_labels(tmp_path, rows):
    plain = References.read(rows, salt=SALT)
    assert References.read(rows, salt=bytes(32)).digest == plain.digest
    assert References.read(rows, salt=SALT, labels=write_labels(tmp_path / "l.csv")).digest != plain.digest
    write_references(rows, 9)
    assert References.read(rows, salt=SALT).digest != plain.digest


def test_a_label_of_the_row_itself_is_refused_because_it_is_part_of_the_payload(tmp_path, rows):
    listed = tmp_path / "listed.jsonl"
    listed.write_text(json.dumps({"id": "r0", "label": "calm", "text": "a red boat"}) + "\n")
    plain = write_references(tmp_path / "rows.txt")
    for path, labels in ((rows, rows), (plain, plain), (rows, "ward"), (rows, listed)):
        with pytest.raises(ConfigError, match="payload") as refused:
            References.read(path, salt=SALT, labels=labels)
        assert refused.value.code == "LABEL_PRIVATE"


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("l.csv", "name,label\nr0,calm\n", "line 1"),
        ("l.csv", "id,label\nr0,calm\nr0,loud\n", "line 3"),
        ("l.csv", "id,label\nr0,\n", "line 2"),
        ("l.jsonl", '{"id": "r0", "label": 7}\n', "line 1"),
        ("l.jsonl", '{"id": "r0", "label": "calm"}\nno\n', "line 2"),
    ],
)
def test_a_list_of_labels_is_read_strictly(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said) as refused:
        read_labels(tmp_path / name)
    assert refused.value.code == "LABELS"


def test_every_reference_has_a_label_or_none_has(tmp_path, rows):
    with pytest.raises(ConfigError, match="1 of 10 references have no label") as refused:
        References.read(rows, salt=SALT, labels=write_labels(tmp_path / "l.csv", 9))
    assert refused.value.code == "LABELS"


def test_a_label_of_too_few_references_for_a_batch_is_told(tmp_path, rows):
    with pytest.raises(ConfigError, match="no label has more than 5") as refused:
        References.read(rows, salt=SALT, labels=write_labels(tmp_path / "l.csv")).batches(6, SALT)
    assert refused.value.code == "BATCH"


@pytest.mark.parametrize("partition", [*REFUSED_PARTITIONS, "alphabet"])
def test_every_partition_that_looks_at_payloads_is_refused_by_name(partition):
    with pytest.raises(ConfigError, match=partition) as refused:
        require_hashed(partition)
    assert refused.value.code == "PARTITION"
    require_hashed("hash")


def test_a_median_of_references_is_refused_because_it_divides_by_nothing():
    with pytest.raises(AccountantError, match="whatever B is") as refused:
        require_mean("median")
    assert refused.value.code == "AGGREGATION"
    require_mean("mean")


def test_adding_or_removing_a_reference_is_refused_because_B_would_be_private():
    with pytest.raises(AccountantError, match="number of references would be private") as refused:
        sensitivity_of("add-or-remove")
    assert refused.value.code == "ADJACENCY"


def test_the_words_of_a_task_come_from_the_label_and_from_what_is_given_for_all_texts():
    one = Task("Say {mood}.", "[[Of {reference}: ]]Say {mood}.", 20, labels=("mood",))
    two = Task("{a} {b}", "[[{reference}]]{a} {b}", 20, labels=("a", "b"))
    none = Task("Say it.", "[[Of {reference}: ]]Say it.", 20)
    assert one.words("calm") == one.words(None, {"mood": "calm"}) == {"mood": "calm"}
    assert two.words("y", {"a": "x"}) == two.words("a=x, b=y") == {"a": "x", "b": "y"}
    assert none.words(None) == none.words("calm") == {}
    for task, label, given in ((one, None, {}), (two, "x", {}), (two, "a=x", {}), (none, None, {"mood": "calm"})):
        with pytest.raises(ConfigError) as refused:
            task.words(label, given)
        assert refused.value.code == "LABELS"


def test_the_digest_of_a_task_follows_from_all_that_it_says():
    task = Task("Say it.", "[[Of {reference}: ]]Say it.", 20)
    assert task.digest == Task("Say it.", "[[Of {reference}: ]]Say it.", 20).digest
    assert task.digest != Task("Say it.", "[[Of {reference}: ]]Say it.", 21).digest
    assert task.digest != Task("Say it.", "[[Of {reference}: ]]Say it.", 20, system="Be brief.").digest
