"""A run of one's own over people with several records, and over records of several lengths."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain import PrivateTraining, pack_examples  # noqa: E402
from dptrain.data.items import contents_of, decode_items, encode_items  # noqa: E402
from dptrain.demo.quickstart import quickstart  # noqa: E402
from dptrain.errors import ConfigError, ContentChanged  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from tests.worlds.programs import ran  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SEPARATOR = 1


def people(count: int = 12) -> list[dict[str, Any]]:
    """Records of people, of whom the n-th has 1 to 4; nobody's stand side by side."""
    records = [
        {"who": f"p{person}", "input_ids": [2 + (person * 5 + turn) % 20] * (1 + (person + turn) % 6), "label": person % 2}
        for person in range(count)
        for turn in range(1 + person % 4)
    ]
    return sorted(records, key=lambda record: record["input_ids"])


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 6), nn.Linear(6, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        shown = (ids > 0).unsqueeze(2)
        return self.head((self.embed(ids) * shown).sum(1) / shown.sum(1).clamp(min=1))


def collate(examples: list[dict], length: int = 8) -> dict[str, torch.Tensor]:
    ids = [(list(example["input_ids"]) + [0] * length)[:length] for example in examples]
    return {"ids": torch.tensor(ids), "label": torch.tensor([example.get("label", 0) for example in examples])}


def train(directory: Path, data: Any, decode: Any = None, **options: Any) -> tuple[PrivateTraining, list[Any]]:
    torch.manual_seed(1)
    model, seen = Reader(), []
    optimizer = torch.optim.Adam(model.parameters())
    given = {"epochs": 2, "batch_size": 4, "directory": directory, "progress": False} | options
    with PrivateTraining.own(data, **given) as private:
        _, optimizer, steps = private.prepare(model, optimizer, collate, decode=decode)
        for step in steps:
            for rows in step:
                seen.append((rows.contributions, rows.examples, rows["ids"].shape))
                private.backward(nn.functional.cross_entropy(model(rows["ids"]), rows["label"], reduction="none"), rows)
            optimizer.step()
        private.export(directory / "export")
    return private, seen


def verdict(private: PrivateTraining, directory: Path) -> str:
    recorder = private.opened.recorder
    return verify_export(directory / "export", [recorder.signer.vkey], owner_key=recorder.owner_public).verdict


def test_all_records_of_a_person_are_one_contribution_which_epsilon_is_for(tmp_path: Path) -> None:
    private, seen = train(tmp_path, people(), by="who")
    pool = private.prepared.pool
    assert len(pool) == 12 and private.policy.max_examples == 4
    owners = [{record["who"] for record in pool.examples(index)} for index in range(12)]
    assert all(len(names) == 1 for names in owners) and len(set().union(*owners)) == 12
    assert max(examples for _, examples, _ in seen) > 1
    assert verdict(private, tmp_path) == "FULL"


def test_a_function_says_whose_an_item_is_and_a_missing_column_is_refused(tmp_path: Path) -> None:
    found = list(contents_of(people(), by=lambda record: record["who"][-1]))
    assert len(found) == 10 and sum(content.examples for content in found) == len(people())
    with pytest.raises(ConfigError, match=r"DATASET.*item 1 has no 'name'"):
        list(contents_of(people(), by="name"))


def test_the_items_of_a_person_come_back_as_they_were() -> None:
    items = [{"x": torch.tensor([1.5]), "t": (1, b"\n")}, {"x": torch.tensor([2.5]), "t": ()}]
    line = encode_items(items)
    assert b"\n" not in line
    first, second = decode_items(line)
    assert first["t"] == (1, b"\n") and first["x"].tolist() == [1.5] and second["x"].tolist() == [2.5]


def test_every_item_is_padded_to_the_shortest_length_that_holds_it(tmp_path: Path) -> None:
    records = [{"input_ids": [2 + n % 20] * (1 + n % 8), "label": n % 2, "n": n} for n in range(40)]
    private, seen = train(tmp_path, records, public_lengths=(8, 2, 4))
    assert {shape[1] for _, _, shape in seen} == {2, 4, 8}
    pool = private.prepared.pool
    for index in range(len(pool)):
        tokens = len(pool.examples(index)[0]["input_ids"])
        assert pool.length(index) == min(length for length in (2, 4, 8) if length >= tokens)
    assert verdict(private, tmp_path) == "FULL"


def test_lengths_of_people_are_those_of_their_longest_record() -> None:
    for content in contents_of(people(), by="who", length_of=lambda record: len(record["input_ids"])):
        assert content.tokens == max(len(record["input_ids"]) for record in decode_items(content.line))


def test_records_of_a_person_are_packed_into_rows_and_never_with_anothers(tmp_path: Path) -> None:
    """Decode packs, so that a contribution has few full rows; a row holds tokens of one person alone."""

    def packed(content: bytes) -> list[dict]:
        return pack_examples([record["input_ids"] for record in json.loads(content)], 8, SEPARATOR)

    private, _ = train(tmp_path, people(), decode=packed, by="who")
    pool = private.prepared.pool
    for index in range(len(pool)):
        with pool.reading() as contents:
            records = decode_items(contents.read(pool.slots.locator(index)))
        rows = [row["input_ids"] for row in pool.examples(index)]
        assert [token for row in rows for token in row] == [
            token for record in records for token in (*record["input_ids"], SEPARATOR)
        ]
        assert all(len(row) == 8 for row in rows[:-1])
    assert sum(pool.size(index) for index in range(12)) < len(people())
    assert verdict(private, tmp_path) == "FULL"


def test_a_long_record_may_be_packed_into_more_rows_than_there_are_records(tmp_path: Path) -> None:
    records = [{"who": person, "input_ids": [2 + person] * 20} for person in range(8)]

    def packed(content: bytes) -> list[dict]:
        return pack_examples([record["input_ids"] for record in decode_items(content)], 8, SEPARATOR)

    with pytest.raises(ContentChanged, match=r"EXAMPLES.*decodes to 3 examples, expected 1 to 1"):
        train(tmp_path / "few", records, decode=packed, by="who")
    private, _ = train(tmp_path / "enough", records, decode=packed, by="who", max_examples=3)
    assert private.prepared.pool.size(0) == 3 and verdict(private, tmp_path / "enough") == "FULL"


def test_nothing_to_pack_is_one_empty_row() -> None:
    assert pack_examples([], 4, SEPARATOR) == [{"input_ids": []}]
    assert pack_examples([[5, 6, 7]], 4, SEPARATOR) == [{"input_ids": [5, 6, 7, 1]}]


def test_items_that_repeat_another_are_left_out_before_anything_is_counted(tmp_path: Path) -> None:
    records = [{"input_ids": [n], "label": 0} for n in range(2, 14)]
    with pytest.warns(UserWarning, match="3 of 15 items repeat another one"):
        private, _ = train(tmp_path, records + records[:3])
    assert float(private.policy.classes[0].sampling_rate) == 4 / 12 and private.opened.gate.counts()["refused"] == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"length_of": len}, "OWN.*length_of is given without public_lengths"),
        ({"public_lengths": (2, 4)}, "DATASET.*no input_ids to count.*length_of=function"),
    ],
)
def test_lengths_without_what_belongs_to_them_are_refused(tmp_path: Path, options: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PrivateTraining.own([{"x": number} for number in range(8)], batch_size=4, directory=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_quickstart_groups_records_by_a_column_and_its_program_runs(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = [{"who": n % 10, "stars": n, "label": "yes" if n % 2 else "no"} for n in range(30)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = quickstart(data, tmp_path / "run", epochs=2, batch_size=5, by="who")
    assert (made.contributions, made.steps) == (10, 4)
    program = Path(made.program).read_text()
    assert "by='who'" in program and "['stars']" in program
    done = ran(["-c", program], ROOT)
    assert done.returncode == 0 and "Epsilon(spent=" in done.stdout, done.stderr
