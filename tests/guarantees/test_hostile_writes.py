"""A.2: what a forward writes because of a payload stays out of the model, of the releases and of the ledger.

The net of the other pages keeps a table, a buffer and an attribute, and writes one of them if a feature is larger than any that
the probes saw; the payload says what. Everything runs through the start and the loop of a run.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.errors import NotPrivateUse  # noqa: E402
from dptrain.record.weights import Weights  # noqa: E402
from dptrain.sandbox.writes import Kept  # noqa: E402
from tests.guarantees.hostile.payloads import null  # noqa: E402
from tests.guarantees.hostile.scene import FAR, POOL, WIDTH, WORDS, Net, Run, Scene, Trace  # noqa: E402

STEPS, WINDOW, AT = 6, 3, 2
"""The payload is far in step 2 alone; the window ends with step 3."""

Write = Callable[["Writing", torch.Tensor], object]

@pytest.fixture(autouse=True)
def _windows_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the windows of the policy: only those of several steps hide something until their end."""
    monkeypatch.setattr("dptrain.record.recorder.SHORT", 0)


class Writing(Net):
    """Writes what it keeps if Python finds a feature far away; with ``late``, after autograd has saved it for the way back."""

    shared: torch.Tensor

    def __init__(self, write: Write, late: bool = False) -> None:
        super().__init__()
        self.write, self.late = write, late
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.register_buffer("buffer", torch.zeros(WIDTH))
        self.register_buffer("later", None)
        self.plain, self.said = torch.zeros(WIDTH), []
        self.held, self.other = {"seen": [torch.zeros(WIDTH)]}, SimpleNamespace(table=torch.zeros(WIDTH))
        self.other.inside = SimpleNamespace(table=torch.zeros(WIDTH))
        Writing.shared = torch.zeros(WIDTH)

    def forward(self, ids: torch.Tensor, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        if not self.late:
            self._write(x)
        scores = super().forward(ids, x.clamp(-1, 1), group)
        if self.late:
            scores = scores + (scores.mean(1, keepdim=True) * self.frozen * self.buffer * self.plain).sum(1, keepdim=True)
            self._write(x)
        return scores

    def _write(self, x: torch.Tensor) -> None:
        furthest = x[:, 0].argmax()
        if float(x[furthest, 0]) > FAR:
            with torch.no_grad():
                self.write(self, x[furthest])

    @property
    def kept(self) -> list[torch.Tensor]:
        kept = (self.frozen, self.buffer, self.plain, self.held["seen"][0], self.other.table, self.shared)
        return [each.detach().clone() for each in kept]


def nothing(model: Writing, x: torch.Tensor) -> None:
    """The model that writes nothing."""


BY_TORCH: dict[str, Write] = {
    "frozen": lambda m, x: m.frozen.copy_(x),
    "buffer": lambda m, x: m.buffer.add_(x),
    "buffer, by data": lambda m, x: m.buffer.data.copy_(x),
    "buffer, by foreach": lambda m, x: torch._foreach_add_([m.buffer], [x]),
    "buffer, by out": lambda m, x: torch.add(x, x, out=m.buffer),
    "buffer, by its storage": lambda m, x: m.buffer.untyped_storage().__setitem__(0, int(x[1]) % 100 + 1),
    "attribute": lambda m, x: m.plain.copy_(x),
    "attribute, by statistics of batches": lambda m, x: torch.batch_norm_update_stats(torch.stack((x, x)), m.plain, None, 0.5),
    "a list in a dictionary": lambda m, x: m.held["seen"][0].add_(x),
    "an object": lambda m, x: m.other.table.add_(x),
    "the class": lambda m, x: Writing.shared.add_(x),
    "trained": lambda m, x: m.numbers.bias[:WIDTH].mul_(x),
    "trained, all of it": lambda m, x: m.head.weight.mul_(2.0),
    "trained, by foreach": lambda m, x: torch._foreach_mul_([m.head.weight], 2.0),
}


def into_memory(tensor: torch.Tensor, x: torch.Tensor) -> None:
    tensor.detach().numpy()[:] = x.numpy()


BEHIND: dict[str, Write] = {
    "frozen, by numpy": lambda m, x: into_memory(m.frozen, x),
    "buffer, by numpy": lambda m, x: into_memory(m.buffer, x),
    "attribute, by numpy": lambda m, x: into_memory(m.plain, x),
    "a list in a dictionary, by numpy": lambda m, x: into_memory(m.held["seen"][0], x),
    "an object, by numpy": lambda m, x: into_memory(m.other.table, x),
    "the class, by numpy": lambda m, x: into_memory(m.shared, x),
    "buffer, another one": lambda m, x: setattr(m, "buffer", x.clone()),
    "frozen, another one": lambda m, x: setattr(m, "frozen", nn.Parameter(x.clone(), requires_grad=False)),
    "buffer that was None": lambda m, x: setattr(m, "later", x.clone()),
    "buffer under a new name": lambda m, x: m.register_buffer("fresh", x.clone()),
    "frozen, under a new name": lambda m, x: m.register_parameter("fresh", nn.Parameter(x.clone(), requires_grad=False)),
}

UNSEEN: dict[str, Write] = {
    "a list": lambda m, x: m.said.append(float(x[1])),
    "an object in an object": lambda m, x: m.other.inside.table.add_(x),
    "an attribute, another one": lambda m, x: setattr(m, "plain", x.clone()),
    "a trained tensor, by numpy": lambda m, x: into_memory(m.numbers.bias[:WIDTH], torch.full((WIDTH,), 0.5)),
}


def far(value: float, examples: list[dict]) -> list[dict]:
    return [{**each, "x": [10 * FAR, *[value] * (WIDTH - 1)]} for each in examples]


def swap(value: float | None, *, alone: bool = False) -> Callable[[int], dict]:
    """Some contributions are far in one step; with ``alone``, everybody has the null from that step on."""
    if alone:
        return lambda step: dict.fromkeys(range(POOL), null) if step >= AT else {}
    return lambda step: dict.fromkeys(range(0, POOL, 6), partial(far, value)) if step == AT and value is not None else {}


class Stage:
    def __init__(self, root: Path) -> None:
        self._root, self._count, self._worlds = root, 0, {}
        self.still = lru_cache(None)(self._still)

    def run(self, write: Write, swapped: Callable[[int], dict], then=lambda run: None, **scene) -> tuple[Run, Trace]:
        chosen = Scene(steps=STEPS, window=WINDOW, model=lambda: Writing(write)).but(**scene)
        self._count += 1
        world = self._worlds.get(chosen.level) or chosen.world(self._root / chosen.level)
        self._worlds[chosen.level] = world
        run = Run(chosen, world, swapped)
        return run, run.go(self._root / f"{self._count}.db", then)

    def _still(self, level: str, late: bool = False, alone: bool = False) -> Trace:
        """The run of the model that writes nothing; in a plain loop, as its releases are those of ``private.loss``."""
        return self.run(nothing, swap(7.0, alone=alone), level=level, model=lambda: Writing(nothing, late))[1]


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    return Stage(tmp_path_factory.mktemp("writes"))


LEVELS = pytest.mark.parametrize("level", ["fast", pytest.param("certified", marks=pytest.mark.slow)])
FORMS = pytest.mark.parametrize("form", [pytest.param("plain", marks=pytest.mark.slow), "loss"])


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


# ----------------------------------------------------------------------------------------- what writes always is refused


@pytest.mark.parametrize(
    ("trained", "code"), [(False, "FORWARD_WRITES: the forward writes 'words.weight'"), (True, "EMBEDDING_OPTIONS")]
)
def test_a_table_with_a_largest_norm_is_refused_before_a_ledger_is_made(stage: Stage, trained: bool, code: str) -> None:
    """A frozen one too: what is released of it would tell, without noise, which words occur."""
    tables = []

    def model() -> nn.Module:
        made = Net()
        made.words = nn.Embedding(WORDS, 8, max_norm=0.1)
        made.words.weight.requires_grad_(trained)
        tables.append((made.words.weight, made.words.weight.detach().clone()))
        return made

    _, trace = stage.run(nothing, swap(None), model=model)
    assert trace.ended is not None and trace.ended.startswith(code)
    assert not trace.leaves and not trace.released
    assert torch.equal(*tables[0]), "the probes did not write it either"


def test_a_counter_that_every_forward_writes_is_refused(stage: Stage) -> None:
    class Counts(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return super().forward(*args)

    _, trace = stage.run(nothing, swap(None), model=Counts)
    assert trace.ended is not None and trace.ended.startswith("BUFFER_CHANGES") and not trace.leaves


class Averages(Net):
    """Its statistics are None until the first batch; ``statistics`` are those that it starts with."""

    def __init__(self, statistics: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", statistics)

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        """Takes no names, so that no forward runs before the probes."""
        if self.mean is None:
            self.mean = args[1].mean(0)
        return super().forward(*args)


def test_statistics_that_the_first_batch_makes_are_refused(stage: Stage) -> None:
    _, trace = stage.run(nothing, swap(None), model=Averages)
    assert trace.ended is not None and trace.ended.startswith("BUFFER_CHANGES: forward changed the buffer 'mean'")
    assert not trace.leaves
    _, other = stage.run(nothing, swap(None), model=lambda: Averages(torch.zeros(WIDTH)))
    assert other.ended is None, "the control: those that were there are only read"


# ------------------------------------------------------------------------------------ what writes because of a payload


def check_by_torch(stage: Stage, write: Write, level: str, form: str, late: bool = False) -> str:
    run, found = stage.run(write, swap(7.0), level=level, form=form, model=lambda: Writing(write, late))
    expected = stage.still(level, late)
    assert expected.ended is None and len(expected.released) == STEPS
    assert len(found.released) == WINDOW, "it went on to the end of the window"
    assert all(map(same, found.released, expected.released)), "and released what it would have released"
    assert same(run.model.kept, Writing(nothing).kept), "nothing was written"
    assert found.lines == expected.lines and found.leaves == expected.leaves[: len(found.leaves)]
    return found.ended or ""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", BY_TORCH)
@LEVELS
def test_a_write_because_of_a_payload_is_a_copy_and_ends_the_run_with_its_window(stage, name, level) -> None:
    assert check_by_torch(stage, BY_TORCH[name], level, "plain").startswith("FORWARD_WROTE")


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", BY_TORCH)
@FORMS
def test_a_write_of_what_autograd_has_saved_breaks_no_backward_pass(stage, name, form) -> None:
    """Torch counts writes, and refuses what was written since it was saved."""
    assert check_by_torch(stage, BY_TORCH[name], "fast", form, late=True).startswith("FORWARD_WROTE")


def check_ends(stage: Stage, write: Write) -> str:
    return stage.run(write, swap(7.0), model=lambda: Writing(write, True))[1].ended or ""


def check_behind(stage: Stage, write: Write, level: str, form: str) -> str:
    _, found = stage.run(write, swap(7.0), level=level, form=form)
    noise = stage.still(level, alone=True)
    assert len(found.released) == WINDOW
    assert all(map(same, found.released, noise.released[:WINDOW])), "noise alone from the step on in which it was written"
    assert found.lines == noise.lines and found.leaves == noise.leaves[: len(found.leaves)]
    return found.ended or ""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", BEHIND)
@LEVELS
def test_after_a_write_that_torch_does_not_see_noise_alone_is_released(stage, name, level) -> None:
    assert check_behind(stage, BEHIND[name], level, "plain").startswith("FORWARD_WROTE")


@pytest.mark.slow
def test_the_last_words_of_a_run_are_the_same_whatever_was_written(stage: Stage) -> None:
    """Which tensor, what value and in which step may all follow from payloads."""
    writes = [*BY_TORCH.values(), *BEHIND.values()]
    ends = {stage.run(write, swap(value))[1].ended for write, value in zip(writes, (7.0, -3.0, 0.5) * 9, strict=False)}
    assert len(ends) == 1
    late = lambda step: swap(7.0)(AT) if step == WINDOW else {}  # noqa: E731
    assert stage.run(writes[0], late)[1].ended in ends


def test_a_run_that_ended_so_has_charged_and_settled_what_it_released(stage: Stage) -> None:
    _, trace = stage.run(BY_TORCH["buffer"], swap(7.0))
    kinds = [type(leaf).__name__ for leaf in trace.leaves]
    assert kinds.count("Charge") == 1 and "Settle" in kinds and "Close" not in kinds


# --------------------------------------------------------------------------------------------------- what the ledger says


def closed(run: Run) -> None:
    """What a user may do after the end: close the ledger, epoch included."""
    with pytest.raises(NotPrivateUse, match="FORWARD_WROTE"):
        run.private.prepared.finish()


def digests(stage: Stage, value: float) -> tuple[list[torch.Tensor], list[bytes]]:
    run, trace = stage.run(BEHIND["buffer, by numpy"], swap(value), then=closed)
    return run.model.kept, trace.digests


def test_no_leaf_tells_what_was_written(stage: Stage) -> None:
    """What is not trained is digested once, before the first step."""
    (kept, one), (other_kept, other) = digests(stage, 7.0), digests(stage, 8.0)
    assert not same(kept, other_kept), "the models differ in what was written"
    assert one == other and len(one) == 1


# ------------------------------------------------------------------------------------------------------ not defended


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_operation_of_torch_writes_and_no_checksum_covers_is_not_seen(stage: Stage, name: str) -> None:
    """Not defended: Python state, what lies deeper than one looks, and trained tensors written behind torch's back."""
    _, trace = stage.run(UNSEEN[name], swap(7.0))
    assert trace.ended is None


# ------------------------------------------------------------------------------------------- the tests see the faults


def test_without_copies_the_claim_fails(stage: Stage, monkeypatch) -> None:
    stage.still("fast")
    monkeypatch.setattr(Kept, "spare", lambda self, written, args, kwargs: None)
    with pytest.raises(AssertionError):
        check_by_torch(stage, BY_TORCH["buffer"], "fast", "plain")
    with pytest.raises(AssertionError):
        check_by_torch(stage, BY_TORCH["trained"], "fast", "plain")


def test_with_writes_that_are_counted_the_claim_fails(stage: Stage, monkeypatch) -> None:
    """Autograd raises, or the run takes note that a parameter was written."""
    monkeypatch.setattr(Kept, "uncount", lambda self: None)
    assert check_ends(stage, BY_TORCH["trained, all of it"]).startswith("RuntimeError: one of the variables needed")
    for late in (True, False):
        with pytest.raises(AssertionError):
            check_by_torch(stage, BY_TORCH["trained, all of it"], "fast", "plain", late)


def test_without_the_checksum_the_claim_fails(stage: Stage, monkeypatch) -> None:
    stage.still("fast", alone=True)
    monkeypatch.setattr(Kept, "changed", lambda self: False)
    with pytest.raises(AssertionError):
        check_behind(stage, BEHIND["buffer, by numpy"], "fast", "plain")


def test_with_names_of_the_seal_alone_the_claim_fails(stage: Stage, monkeypatch) -> None:
    untrained = Kept._untrained
    monkeypatch.setattr(
        Kept, "_untrained", lambda self: (each for each in untrained(self) if not self._sealed or each[0] in self._sealed)
    )
    with pytest.raises(AssertionError):
        check_behind(stage, BEHIND["buffer that was None"], "fast", "plain")


def test_digested_again_what_was_written_is_told(stage: Stage, monkeypatch) -> None:
    from dptrain.record.weights import digest_of

    monkeypatch.setattr(Weights, "_digest", lambda self, name, tensor: digest_of(tensor))
    assert digests(stage, 7.0)[1] != digests(stage, 8.0)[1]
