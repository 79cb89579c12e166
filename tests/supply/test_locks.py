"""The locks fit pyproject.toml, hold every file to a hash, and name neither an index nor a build of torch."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from publish.lock import BY_HAND, LOCKS, ROOT, Lock, headed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMES = [lock.name for lock in LOCKS]


def items(lock: Lock) -> list[str]:
    """Returns what stands in a lock, each with its hashes."""
    text = lock.path.read_text(encoding="utf-8")
    return [item for item in re.split(r"^(?=\S)", text, flags=re.M) if item and not item.startswith("#")]


def asked(lock: Lock) -> list[Requirement]:
    """Returns what the source of a lock asks for directly, extras within extras included."""
    if lock.source != "pyproject.toml":
        lines = (ROOT / lock.source).read_text(encoding="utf-8").splitlines()
        return [Requirement(line) for line in lines if line and not line.startswith("#")]
    found, waiting = [Requirement(line) for line in PROJECT["dependencies"]], list(lock.extras)
    while waiting:
        for one in map(Requirement, PROJECT["optional-dependencies"][waiting.pop()]):
            waiting += sorted(one.extras) if one.name == PROJECT["name"] else []
            found += [one] if one.name != PROJECT["name"] else []
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=NAMES)
def test_a_lock_has_what_is_asked_for_in_versions_that_fit(lock: Lock) -> None:
    pins = {canonicalize_name(one.name): one for one in (Requirement(item.split(" \\")[0].strip()) for item in items(lock))}
    for one in asked(lock):
        if BY_HAND.match(f"{one.name}=="):
            continue
        assert canonicalize_name(one.name) in pins, f"{lock.path.name} lacks {one.name}; run make lock"
        (pin,) = pins[canonicalize_name(one.name)].specifier
        assert pin.operator == "==" and one.specifier.contains(pin.version), (
            f"{one} is {pin} in {lock.path.name}; run make lock"
        )


@pytest.mark.parametrize("lock", LOCKS, ids=NAMES)
def test_every_line_of_a_lock_has_a_hash_and_names_no_index(lock: Lock) -> None:
    assert len(items(lock)) > 10
    for item in items(lock):
        head, *hashes = item.split(" \\\n")
        assert re.fullmatch(r"[a-z0-9.-]+(\[[a-z,]+\])?==\S+( ; .+)?", head), head
        assert hashes and all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line.rstrip("\n")) for line in hashes), head
    assert not re.search(r"https?:|file:|index-url|find-links|@ ", lock.path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("lock", LOCKS, ids=NAMES)
def test_no_lock_chooses_a_build_of_torch(lock: Lock) -> None:
    assert not [item for item in items(lock) if re.match(r"(torch|triton|nvidia-|cuda-)", item)]


def test_what_is_left_out_of_a_lock_is_what_torch_alone_brings() -> None:
    pins = ("numpy==2.0", "torch==2.13.0", "nvidia-nccl-cu13==1", "torchvision==1")
    text = "".join(f"{pin} \\\n    --hash={pin[:6]}\n" for pin in pins)
    kept = headed(LOCKS[0], text)
    assert [line for line in kept.splitlines() if "==" in line] == ["numpy==2.0 \\", "torchvision==1 \\"]
    assert "--hash=torch=" not in kept and "--hash=nvidia" not in kept and kept.startswith("# dptrain without torch")


def test_the_base_lock_is_within_the_train_lock() -> None:
    """One version of what trainers and auditors both run."""
    base, train = ({item.split(" ")[0] for item in items(lock)} for lock in LOCKS[:2])
    assert base <= train
