"""`make dist` publishes what is complete, equal byte for byte when it is built again, and described as it is."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from publish import dist
from publish.lock import LOCKS, ROOT
from publish.statement import PLACEHOLDER, digest

TRACKED = "a commit to publish: here is no git checkout"


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip(TRACKED)
    return dist.git("ls-files").splitlines()


def test_the_manifest_names_every_file_and_folder_that_is_tracked() -> None:
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()]
    grafted = {words[1] for words in lines if words and words[0] == "graft"}
    included = {name for words in lines if words and words[0] == "include" for name in words[1:]}
    missing = {name for name in tracked() if name.partition("/")[0] not in grafted and name not in included}
    assert not missing


def an_archive(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = 1 if member.isreg() else 0
            tar.addfile(member, io.BytesIO(b"x") if member.isreg() else None)
    return path


def a_member(name: str, **fields: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(member, key, value)
    return member


def test_an_sdist_is_evened_to_one_order_owner_time_and_mode(tmp_path: Path) -> None:
    first = an_archive(
        tmp_path / "1.tar.gz", a_member("p/b", mtime=5, uid=7, uname="me", mode=0o640), a_member("p/a", mode=0o700)
    )
    second = an_archive(tmp_path / "2.tar.gz", a_member("p/a", mtime=9, mode=0o777), a_member("p/b", gid=3, mode=0o600))
    for path in (first, second):
        dist.even(path, 1_700_000_000, path.with_suffix(".even"))
    assert first.read_bytes() != second.read_bytes()
    assert first.with_suffix(".even").read_bytes() == second.with_suffix(".even").read_bytes()
    with tarfile.open(first.with_suffix(".even")) as tar:
        assert [(one.name, one.mode, one.mtime, one.uid) for one in tar] == [
            ("p/a", 0o755, 1_700_000_000, 0), ("p/b", 0o644, 1_700_000_000, 0),
        ]  # fmt: skip


@pytest.mark.parametrize(
    "member",
    [a_member("../out"), a_member("p/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"), a_member("/abs")],
    ids=("above", "a link", "absolute"),
)
def test_what_is_no_regular_file_below_an_archive_is_not_unpacked(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(dist.NotPublished, match="no regular file below the archive"):
        dist.unpack(an_archive(tmp_path / "a.tar.gz", member), tmp_path / "into")


def test_a_file_that_an_sdist_lacks_is_named(tmp_path: Path) -> None:
    made = an_archive(tmp_path / "a.tar.gz", a_member("p-1/here.py"), a_member("p-1/PKG-INFO"))
    assert dist.left_out(["here.py", "tests/gone.toml"], made) == ["tests/gone.toml"]


def make(folder: Path, *words: str, umask: int = 0o022, **environment: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", *words], cwd=folder, env=os.environ | environment, umask=umask, capture_output=True,
        text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, release_python: Path) -> tuple[Path, Path, Path]:
    """Two builds of the commit, in two clones, under different umasks and clocks; and the second clone."""
    tracked()
    base = tmp_path_factory.mktemp("dist")
    folders = []
    for name, umask, zone in (("one", 0o022, "UTC"), ("two", 0o077, "Pacific/Apia")):
        clone = base / name
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        (clone / "build").mkdir()
        (clone / "build" / "release").symlink_to(release_python.parents[1])
        make(clone, "dist", "--assume-old=build/release/.installed", umask=umask, TZ=zone)
        folders.append(clone / "dist")
    return folders[0], folders[1], base


@pytest.mark.slow
def test_building_a_commit_twice_gives_equal_bytes(built: tuple[Path, Path, Path]) -> None:
    one, two, _ = built
    names = sorted(path.name for path in one.iterdir())
    assert [name.rpartition("dptrain-0.1.0")[2] for name in names] == [
        "SHA256SUMS", "-py3-none-any.base.cdx.json", "-py3-none-any.train.cdx.json", "-py3-none-any.whl", ".tar.gz",
        "provenance.intoto.json",
    ]  # fmt: skip
    assert {name: digest(one / name) for name in names} == {name: digest(two / name) for name in names}
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=one, check=True)


@pytest.mark.slow
def test_the_provenance_names_what_was_built_from_which_revision_and_the_bill_what_is_locked(built) -> None:
    one, _, base = built
    statement = json.loads((one / "provenance.intoto.json").read_text(encoding="utf-8"))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert {(row["name"], row["digest"]["sha256"]) for row in statement["subject"]} == {
        (path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in one.iterdir() if path.suffix in (".whl", ".gz")
    }
    source = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    commit = dist.git("rev-parse", "HEAD", root=base / "one").strip()
    assert source["digest"] == {"gitCommit": commit} and source["uri"].endswith(f"@{commit}")
    for lock in LOCKS[:2]:
        (path,) = one.glob(f"*.{lock.name}.cdx.json")
        bill = json.loads(path.read_text(encoding="utf-8"))
        found = {f"{row['name']}=={row['version']}" for row in bill["components"]}
        text = lock.path.read_text(encoding="utf-8")
        assert found == {line.split()[0] for line in text.splitlines() if "==" in line and line[0] != " "}
        assert bill["bomFormat"] == "CycloneDX" and all(row["externalReferences"][0]["hashes"] for row in bill["components"])
        (wheel,) = one.glob("*.whl")
        assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": digest(wheel)}]


@pytest.mark.slow
def test_changes_that_are_not_committed_are_not_published(built, release_python: Path) -> None:
    _, _, base = built
    readme = base / "one" / "README.md"
    before = readme.read_bytes()
    readme.write_bytes(before + b"\n")
    done = subprocess.run(
        [release_python, "-m", "publish.dist", "--builder", "b", "--out", str(base / "none")],
        cwd=base / "one", capture_output=True, text=True,
    )  # fmt: skip
    readme.write_bytes(before)
    assert done.returncode == 1 and "1 tracked files differ from the commit (README.md, ...); commit them first" in done.stderr
    assert not (base / "none").exists()


@pytest.mark.slow
def test_from_the_sdist_alone_the_wheel_builds_and_the_tests_are_collected(built, release_python: Path, tmp_path: Path) -> None:
    (sdist,) = built[0].glob("*.tar.gz")
    dist.unpack(sdist, tmp_path)
    tree = tmp_path / sdist.name.removesuffix(".tar.gz")
    made = tmp_path / "wheel"
    subprocess.run(
        [release_python, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(made), str(tree)],
        check=True, capture_output=True,
    )  # fmt: skip
    assert [path.name for path in made.iterdir()] == [path.name for path in built[0].glob("*.whl")]
    shutil.rmtree(tree / "build", ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-p", "no:cacheprovider"], cwd=tree,
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0 and "error" not in done.stdout.splitlines()[-1], done.stdout[-3000:]


def test_the_placeholder_of_the_project_s_address_stands_where_it_is_said_to_be_filled_in() -> None:
    known = {"pyproject.toml", "SECURITY.md"}
    found = {name for name in tracked() if name.partition("/")[0] not in ("tests", "publish") and PLACEHOLDER in _text(name)}
    assert found in (known, set()), f"fill in, or leave, both: {found}"


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8", errors="replace") if (ROOT / name).is_file() else ""
