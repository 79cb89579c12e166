"""A.5: before the first charge, and at a refusal, nothing is a function of a private payload beyond shape and decodability."""

import dataclasses
import json
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain import Clock, PrivateTraining  # noqa: E402
from dptrain.data import loader, reader  # noqa: E402
from dptrain.data.microbatch import Microbatch, json_examples  # noqa: E402
from dptrain.engine.prepared import PreparedRun  # noqa: E402
from dptrain.errors import ConfigError, UnsupportedModule  # noqa: E402
from dptrain.routing.synthetic_rows import ProbeRows  # noqa: E402
from tests.guarantees import peers  # noqa: E402
from tests.guarantees.hostile import scene as scenes  # noqa: E402
from tests.guarantees.hostile.payloads import KINDS, null  # noqa: E402
from tests.guarantees.hostile.scene import CLASSES, NOW, POOL, Net, Run, Scene, Trace, collate, example  # noqa: E402
from tests.worlds.training import make_world, token_record  # noqa: E402

ONE = Scene(decides="truth", steps=1, window=1)
EVERYBODY = range(POOL)


def everybody(kind: Callable) -> Callable[[int], dict]:
    return lambda step: dict.fromkeys(EVERYBODY, kind)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("starts")


@pytest.fixture(scope="module")
def world(root: Path):
    return ONE.world(root / "world")


def started(root: Path, world, kind: Callable, scene: Scene = ONE, probe=None) -> Trace:
    return Run(scene, world, everybody(kind), probe=probe).go(root / f"{len(list(root.iterdir()))}.db")


# ------------------------------------------------------------------------------------------------------- the same start


@pytest.mark.one_in(6)
@pytest.mark.parametrize("form", ["plain", "loss"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_starts_and_goes_on_as_it_would_if_all_64_payloads_were_hostile(root, world, kind, form) -> None:
    """Verdict of the probes, warnings, header, and everything after: all contributions count as zero."""
    expected, found = started(root, world, null), started(root, world, KINDS[kind], ONE.but(form=form))
    assert found.ended is None and found.seen == expected.seen
    assert found.leaves[0] == expected.leaves[0], "the header"
    if KINDS[kind].zero:
        assert found.same_releases(expected)


class Coupled(Net):
    """Every row sees the mean of all."""

    def forward(self, ids: torch.Tensor, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        scores = super().forward(ids, x, group)
        return scores - scores.mean(0)


def unhappy_loss(model: nn.Module, rows: Microbatch) -> torch.Tensor:
    """Is infinite on rows that are made up, whose words are 0 and 1."""
    return scenes.loss_of(model, rows) + torch.where(rows["ids"].amax(1) < 2, torch.inf, 0.0)


REFUSED = {
    "coupled": (ONE.but(model=Coupled), "CROSS_SAMPLE_GRADIENT"),
    "asks for rows": (ONE.but(loss=unhappy_loss), "PROBE_NEEDED"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_the_same_whatever_all_payloads_say(root, world, name) -> None:
    scene, code = REFUSED[name]
    kinds = (null, *(KINDS[kind] for kind in ("infinite loss", "word out of range", "NaN", "1e38", "wrong branch")))
    found = [started(root, world, kind, scene) for kind in kinds]
    assert found[0].ended is not None and found[0].ended.startswith(code)
    assert all(trace.seen == found[0].seen for trace in found)
    assert not found[0].leaves, "no ledger was made"


def test_records_of_the_user_serve_where_made_up_rows_do_not(root, world) -> None:
    records = [json.dumps([example(5000 + place)]).encode() for place in range(8)]
    scene = ONE.but(loss=unhappy_loss)
    found = [started(root, world, kind, scene, probe=records) for kind in (null, KINDS["NaN"])]
    assert found[0].ended is None and found[0].seen == found[1].seen


# ------------------------------------------------------------------------------------------------ what the probes run on


class Prepared:
    """A run up to its start, and the contributions that it reads from then on."""

    def __init__(self, root: Path, world, swap: Callable, probe: Sequence[bytes] | None = None) -> None:
        self.run = Run(ONE, world, swap)
        torch.manual_seed(0)
        model = Net("truth")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.private = PrivateTraining.open(
            world.policy, world.corpus, ledger=root / f"{len(list(root.iterdir()))}.db", progress=False,
            clock=Clock(lambda: NOW),
        )  # fmt: skip
        self.model = model
        _, self.optimizer, self.steps = self.private.prepare(
            model, optimizer, collate, decode=self.run.decode, layers="layers", probe=probe
        )

    def rows(self) -> dict[str, torch.Tensor]:
        names = [b"%04d" % place for place in range(16)]
        return dict(self.private.prepared.probe_rows.microbatch(range(16), names)) | {
            f"filled {key}": value for key, value in self.private.prepared.probe_rows.filled(16, 1).items()
        }

    def read_by_the_probes(self) -> list[int]:
        """Runs the probes alone; whom they read."""
        self.run.reads.clear()
        for rows in self.private.prepared.probe.run():
            self.private.backward(scenes.loss_of(self.model, rows), rows)
        return list(self.run.reads)


def other_words(examples: list[dict]) -> list[dict]:
    return [{**example(each["number"] + 7000), "number": each["number"]} for each in examples]


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("kind", [other_words, KINDS["NaN"], KINDS["word out of range"], KINDS["1e38"]])
def test_rows_that_are_made_up_are_a_function_of_shapes_and_types(root, world, kind) -> None:
    own, other = Prepared(root, world, everybody(null)), Prepared(root, world, everybody(kind))
    assert own.private.prepared.probe_rows.made_up and equal(own.rows(), other.rows())
    assert not own.read_by_the_probes() and not other.read_by_the_probes()
    own.private.close()
    other.private.close()


def test_rows_of_the_user_are_the_records_alone(root, world) -> None:
    records = [json.dumps([example(5000 + place)]).encode() for place in range(16)]
    own, other = (Prepared(root, world, everybody(kind), records) for kind in (null, KINDS["NaN"]))
    assert equal(own.rows(), other.rows())
    assert own.rows()["x"].tolist() == collate([example(5000 + place) for place in range(16)])["x"].tolist()
    assert not own.read_by_the_probes()
    own.private.close()
    other.private.close()


PUBLIC = (
    CLASSES
    + """
[[class]]
name = "open"
public = true
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""
)


def test_rows_of_a_public_class_are_public_contributions_alone(root) -> None:
    def record(number: int) -> list[dict]:
        return [{**example(number), "number": number % 1000 + 100 * (number // 1000)}]

    world = make_world(
        root / "public", per_class={"general": 12, "sensitive": 4, "open": 6}, steps=1, window_steps=1, classes=PUBLIC,
        record=record, now=NOW,
    )  # fmt: skip
    private = set(range(12)) | set(range(100, 104))
    own, other = (Prepared(root, world, lambda step, kind=kind: dict.fromkeys(private, kind)) for kind in (null, KINDS["NaN"]))
    assert not own.private.prepared.probe_rows.made_up and equal(own.rows(), other.rows())
    public = collate([example(2000 + place) for place in range(6)])["x"].tolist()
    assert all(row in public for row in own.rows()["x"].tolist())
    assert not own.read_by_the_probes()
    own.private.close()
    other.private.close()


# --------------------------------------------------------------------------------------------------- types of what is read


def a_whole_number(examples: list[dict]) -> list[dict]:
    return [{**each, "label": float(each["label"])} for each in examples]


@pytest.mark.parametrize("place", [0, 1, 31, POOL - 1])
def test_a_payload_that_changes_the_type_of_a_tensor_is_refused_before_a_charge(root, world, place) -> None:
    """Found later it would stop the step that draws it: labels of a whole microbatch would be fractions."""
    found = Run(ONE, world, lambda step: {place: a_whole_number}).go(root / f"type{place}.db")
    assert found.ended is not None and found.ended.startswith("COLLATE_TYPE: the collated 'labels'")
    assert not found.leaves


def test_without_that_check_it_would_stop_the_step_that_draws_it(root, world, monkeypatch) -> None:
    """The negative control: after the charge, and so telling who was drawn."""
    looks = reader.looks_of
    monkeypatch.setattr("dptrain.data.reader._UNLIKE", [unlike for unlike in reader._UNLIKE if unlike[0] != "COLLATE_TYPE"])
    for room in (loader, reader):
        monkeypatch.setattr(room, "looks_of", lambda collated: looks(collated)[::2])
    some = dict.fromkeys(range(1, POOL, 3), a_whole_number)
    found = Run(ONE, world, lambda step: some).go(root / "untyped.db")
    assert found.ended is not None and found.ended.startswith("RuntimeError")
    assert any(type(leaf).__name__ == "Charge" for leaf in found.leaves)


# ------------------------------------------------------------------------------------------- contents that cannot be read

SECRET = "J. Doe, HIV positive"


def number_of(word: str) -> float:
    return float(word)  # the line that raises


LINE = number_of.__code__.co_firstlineno + 1


def strict_decode(content: bytes) -> list[dict]:
    found = json.loads(content)
    return [found | {"weight": number_of(found["weight"])}]


def strict_collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    return peers.collate(examples) | {"weight": torch.tensor([number_of(each["weight"]) for each in examples])}


class FailsOnce:
    """A collate that raises at its first call, and never again."""

    def __init__(self) -> None:
        self.failed = False

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        if not self.failed:
            self.failed = True
            raise ValueError(SECRET)
        return peers.collate(examples)


UNREADABLE = {
    "decode": ({"decode": strict_decode}, f"'open.jsonl' at byte [1-9].*ValueError at .*test_hostile_starts.py:{LINE};"),
    "collate": ({"collate_fn": strict_collate}, f"'open.jsonl' at byte [1-9].*ValueError at .*test_hostile_starts.py:{LINE};"),
    "collate, once": ({"collate_fn": FailsOnce}, r"one by one \(ValueError at .*test_hostile_starts.py:[0-9]+;"),
}


@pytest.fixture(scope="module")
def odd_one(root: Path):
    """The last of four contributions has words where a number belongs."""
    return peers.small_world(root / "odd", record=lambda n: token_record(n) | {"weight": SECRET if n == 3 else "1"})


def refusal(world, **options) -> str:
    """The refusal as Python prints it, with all that it says of its cause."""
    if options.get("collate_fn") is FailsOnce:
        options = {"collate_fn": FailsOnce()}
    with pytest.raises(ConfigError) as caught:
        peers.Run(world, peers.net(), **options)
    assert caught.value.__context__ is None, "nor does a tool find the cause that looks further"
    return "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("where", UNREADABLE)
def test_a_content_that_cannot_be_read_is_named_by_file_type_and_line_and_not_repeated(odd_one, where) -> None:
    options, said = UNREADABLE[where]
    text = refusal(odd_one, **options)
    assert re.search(f"COLLATE: .*{said}", text) and "Doe" not in text
    assert not list(odd_one.root.glob("*.db"))


def test_a_content_that_is_no_json_is_not_repeated(tmp_path) -> None:
    world = peers.small_world(tmp_path)
    content = SECRET.encode() + b"\xff"
    with pytest.raises(ConfigError, match="DECODE: a contribution is not JSON") as caught:
        json_examples(content)
    text = "".join(traceback.format_exception(caught.value))
    assert "UnicodeDecodeError" in text and "0xff" not in text
    with pytest.raises(ConfigError, match="DECODE: a contribution is not JSON"):
        peers.Run(world, peers.net(), probe=[b"{", b"{"])


class Picky(nn.Module):
    """Trains, and cannot be run again for one contribution."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 1:
            raise ValueError(SECRET)
        return x * self.scale


def test_a_module_that_raises_for_one_contribution_is_named_and_what_it_says_is_not_repeated(odd_one) -> None:
    with peers.Run(odd_one, peers.net(Picky)) as run, pytest.raises(UnsupportedModule, match="NO_RULE") as caught:
        run.gradients(next(iter(run.steps)))
    text = "".join(traceback.format_exception(caught.value))
    assert "Doe" not in text and re.search(r"'extra'.*ValueError at .*test_hostile_starts.py:[0-9]+\)", text)


def test_with_the_text_of_the_error_the_claim_fails(odd_one, monkeypatch) -> None:
    monkeypatch.setattr("dptrain.data.loader.without_text", str)
    assert all("Doe" in refusal(odd_one, **options) for options, _ in UNREADABLE.values())


# --------------------------------------------------------------------------------------------- the tests see the faults


def test_probes_that_read_private_contributions_are_noticed(root, world, monkeypatch) -> None:
    """The old behaviour: places spread over the pool."""

    def from_the_pool(self: PreparedRun, pool, decode, probe) -> ProbeRows:
        records = [pool.examples(place)[:1] for place in range(0, POOL, 13)]
        names = [b"record" + bytes([place]) for place in range(len(records))]
        return ProbeRows(list(self.feeder.likes.values()), self.device, [self.feeder.records(records, names)])

    monkeypatch.setattr(PreparedRun, "_probe_rows", from_the_pool)
    found = [started(root, world, kind) for kind in (as_it_is, KINDS["infinite loss"])]
    assert found[0].ended is None and found[1].ended is not None and found[1].ended.startswith("LOSS_NOT_FINITE")
    own, other = Prepared(root, world, lambda step: {}), Prepared(root, world, everybody(other_words))
    assert not equal(own.rows(), other.rows())
    own.private.close()
    other.private.close()


def as_it_is(examples: list[dict]) -> list[dict]:
    return examples


def test_traces_tell_two_headers_apart(root, world) -> None:
    trace = started(root, world, null)
    changed = dataclasses.replace(trace.leaves[0], unprobed=())
    assert trace.leaves[0] != changed and trace.leaves[0].unprobed
