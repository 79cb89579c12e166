"""The kernels of a graph are built by one call of the compiler, and are those that inductor builds one by one."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch._inductor import config as inductor  # noqa: E402
from torch._inductor import cpp_builder, cpu_vec_isa  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402
from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # noqa: E402
from torch._inductor.utils import clear_caches  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from dptrain.routing import building  # noqa: E402


def emptied(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    patch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    clear_caches()


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied(tmp_path, monkeypatch)


@pytest.fixture
def commands() -> list[str]:
    return []


def listened(commands: list, patch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    call = cpp_builder.run_compile_cmd

    def run(command: str, cwd: str) -> None:
        commands.append(command)
        made.extend(re.findall(r"\S+main\.cpp", command)[:1])
        call(command, cwd)

    patch.setattr(cpp_builder, "run_compile_cmd", run)
    return made


@pytest.fixture
def calls(commands: list, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources that the compiler is called with, but those that try what a processor can do."""
    return listened(commands, monkeypatch)


VALUES = [torch.linspace(-3.0, 5.0, 64 * 96).view(64, 96), torch.linspace(2.0, -1.0, 96 * 32).view(96, 32)]


def chain(values: list) -> list:
    """Three kernels: products stand between them."""
    x, w = values
    first = torch.tanh(x * 0.25).softmax(-1) @ w
    second = (first.exp() - first.mean(-1, keepdim=True)) @ w.t()
    return [second.sigmoid().sum(0), first.std(-1)]


def built(form: Callable = building.together, function: Callable = chain) -> list:
    graph = make_fx(function, tracing_mode="fake")(VALUES)
    with building.best_alone(), form(), torch.no_grad():
        return list(torch._inductor.compile(graph, [VALUES])(list(VALUES)))


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> tuple[list, int]:
    """What inductor's own kernels give, and how many those are, built in a directory that no other test has."""
    with pytest.MonkeyPatch.context() as patch, inductor.patch(fx_graph_cache=False):
        emptied(tmp_path_factory.mktemp("one_by_one"), patch)
        calls = listened([], patch)
        found = built(nullcontext)
    clear_caches()
    return found, len(calls)


def same(found: list, truth: list) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, truth, strict=True))


@pytest.fixture
def uncached() -> Iterator[None]:
    """Graphs are made anew: from a cache of them, a second form would take the first one's code, and its kernels."""
    with inductor.patch(fx_graph_cache=False):
        yield


@pytest.mark.parametrize("workers", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_one_call_of_the_compiler_builds_the_very_kernels(calls: list, workers: int, uncached: None, one_by_one: tuple) -> None:
    truth, alone = one_by_one
    assert alone >= 3
    with inductor.patch(compile_threads=workers):
        assert same(built(), truth)
    assert len(calls) == 1
    calls.clear()
    assert same(built(), truth)
    assert not calls, "it was kept"


def test_kernels_of_many_threads_are_one_unit_too(calls: list, uncached: None) -> None:
    """They hold pragmas."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = built(function=lambda values: [chain([v.repeat(40, 1) if v is values[0] else v for v in values])[0]])
    finally:
        torch.set_num_threads(before)
    assert len(calls) == 1
    assert "#pragma omp" in Path(calls[0]).read_text()
    assert bool(found[0].isfinite().all())


@pytest.mark.parametrize(
    ("kernels", "workers", "sizes"),
    [(0, 2, []), (1, 4, [1]), (24, 2, [24]), (48, 1, [48]), (48, 2, [24, 24]), (50, 8, [16, 17, 17]), (120, 1, [40, 40, 40])],
)
def test_units_are_as_many_as_have_enough_to_do_and_none_grows_too_large(kernels: int, workers: int, sizes: list) -> None:
    shares = list(building._shares(list(range(kernels)), workers))
    assert [len(share) for share in shares] == sizes
    assert [kernel for share in shares for kernel in share] == list(range(kernels))


@pytest.mark.slow
def test_kernels_of_many_units_are_the_same(
    calls: list, one_by_one: tuple, uncached: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, alone = one_by_one
    monkeypatch.setattr(building, "MANY", 2)
    assert same(built(), truth)
    assert len(calls) == -(-alone // 2) > 1


def test_a_unit_that_cannot_be_built_is_built_kernel_by_kernel(
    calls: list, uncached: None, one_by_one: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, alone = one_by_one
    monkeypatch.setattr(building, "_joined", lambda kernels: "#error is what comes of this")
    assert same(built(), truth)
    assert len(calls) == alone + 1


def test_a_kernel_of_another_form_is_built_alone(calls: list) -> None:
    one = '#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C" void kernel(float* out)\n{\n    *out = 1.0f;\n}\n'
    other = one.replace("{\n", "{\n#define TWO 2.0f\n").replace("1.0f", "TWO")
    with building.best_alone(), building.together():
        work = AsyncCompile()
        scope = {str(place): work.cpp_pybinding(["float*"], source) for place, source in enumerate((one, one, other))}
        work.wait(scope)
    found = [torch.zeros(1) for _ in scope]
    for kernel, out in zip(scope.values(), found, strict=True):
        kernel(out)
    assert [float(out) for out in found] == [1.0, 1.0, 2.0]
    assert sorted("#define TWO" in Path(call).read_text() for call in calls) == [False, True]


def test_inductor_is_itself_outside_and_after_an_error() -> None:
    before = AsyncCompile.cpp_pybinding, AsyncCompile.wait, cpu_vec_isa.valid_vec_isa_list
    with pytest.raises(ValueError, match="of a program"), building.together(), building.best_alone():
        raise ValueError("of a program")
    assert (AsyncCompile.cpp_pybinding, AsyncCompile.wait, cpu_vec_isa.valid_vec_isa_list) == before


# ------------------------------------------------------------------------------------------------- vector instructions


class Instructions:
    """Stands for what a processor has; the compiler may know it or not."""

    def __init__(self, name: str, works: bool = True) -> None:
        self.name, self.works, self.tried = name, works, 0
        self.place: str | None = None

    def __str__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        self.tried += 1
        self.place = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        return self.works


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["a", "b", "c"])
    found = [Instructions("a z"), Instructions("b c", works=False), Instructions("b"), Instructions("a")]
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", found)
    building._first.cache_clear()
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    yield found
    building._first.cache_clear()
    cpu_vec_isa.valid_vec_isa_list.cache_clear()


def test_what_inductor_would_take_is_taken_and_what_lies_behind_is_not_tried(known: list) -> None:
    building.begin().join()
    with building.best_alone():
        assert cpu_vec_isa.pick_vec_isa() is known[2]
    assert [one.tried for one in known] == [0, 1, 1, 0]
    assert cpu_vec_isa.pick_vec_isa() is known[2], "and so it is among all"


@pytest.mark.parametrize("chosen", ["", "chosen", "torch's own"])
def test_nothing_is_tried_where_others_may_write(
    chosen: str, known: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes a directory of the user's own choice as it is: what is tried is loaded."""
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    before = default_cache_dir() if chosen == "torch's own" else chosen and str(tmp_path / chosen)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", before)
    if not chosen:
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    building.own_place.cache_clear()
    try:
        building.begin().join()
    finally:
        building.own_place.cache_clear()
    expected = str(tmp_path / chosen) if chosen == "chosen" else str(home / "dptrain" / "compiled" / "instructions")
    assert [one.place for one in known] == [None, expected, expected, None]
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR", "") == before


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o700])
def test_a_place_that_others_may_enter_keeps_nothing(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor makes directories in it as the umask says, and loads what lies there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "dptrain" / "compiled"
    place.mkdir(parents=True)
    (tmp_path / "dptrain").chmod(0o755)
    place.chmod(mode)
    found = building.own_place.__wrapped__()
    assert (found == place) == (mode == 0o700) and not found.stat().st_mode & 0o077


def test_a_default_that_torch_wrote_for_another_is_no_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that anybody can guess and make first."""
    tmp_path.chmod(0o1777)
    for name, kept in (("torchinductor_alice", False), ("mine", True)):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / name))
        with building.kept_in(lambda: "another"):
            assert (os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / name)) == kept


def test_no_header_is_read_that_was_compiled_before(calls: list, commands: list) -> None:
    """Torch keeps those in a directory of its own in TMPDIR."""
    one = '#include <torch/csrc/inductor/cpp_prefix.h>\n#define A 1\nextern "C" void kernel(float* out)\n{\n    *out = A;\n}\n'
    with building.best_alone(), building.together():
        work = AsyncCompile()
        other = one.replace("#define A 1\n", "").replace("A", "2")
        scope = {name: work.cpp_pybinding(["float*"], source) for name, source in (("alone", one), ("unit", other))}
        work.wait(scope)
    assert len(calls) == 2
    assert not any(" -include " in command or "c++-header" in command for command in commands)


@pytest.mark.parametrize("chosen", ["default", "avx2"])
def test_a_choice_of_the_user_is_left_to_inductor(chosen: str, known: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", chosen)
    before = cpu_vec_isa.valid_vec_isa_list
    with building.best_alone():
        assert cpu_vec_isa.valid_vec_isa_list is before
    assert not any(one.tried for one in known)


def test_without_any_inductor_decides(known: list, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in known:
        one.works = False
    with building.best_alone():
        assert cpu_vec_isa.pick_vec_isa() is cpu_vec_isa.invalid_vec_isa
