"""How the files of a directory differ from those of a manifest: every one is named, and of safetensors files every tensor."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from ledger.audit.findings import Finding
from ledger.errors import LedgerError
from ledger.release.files import Digested, digested, listed
from ledger.release.tensors import Tensor

MAX_NAMED: Final = 50
"""Files that are missing, extra or changed are named up to this many of each."""


def differences(directory: Path, files: Sequence[Digested], left_out: Sequence[str]) -> Iterator[Finding]:
    """Names every file that is missing, not in the manifest, or another than it says.

    Args:
        directory: the release.
        files: those of the manifest.
        left_out: names directly in the directory that are none of them.

    Raises:
        ReleaseRefused: the directory has what no release can have (`ledger.release.files.listed`).
    """
    found = set(listed(directory, left_out))
    expected = {file.path: file for file in files}
    for path in islice(sorted(expected.keys() - found), MAX_NAMED):
        yield Finding("MISSING_FILE", path, "the manifest has this file, the directory has not")
    for path in islice(sorted(found - expected.keys()), MAX_NAMED):
        yield Finding("UNKNOWN_FILE", path, "this file is not in the manifest: it was not released")
    pairs = ((path, _difference(directory, expected[path])) for path in sorted(expected.keys() & found))
    wrong = (Finding("CHANGED_FILE", path, problem) for path, problem in pairs if problem is not None)
    yield from islice(wrong, MAX_NAMED)


def _difference(directory: Path, expected: Digested) -> str | None:
    try:
        found = digested(directory, expected.path)
    except LedgerError as error:
        return error.sentence
    if found == expected:
        return None
    if (found.size, found.sha256) == (expected.size, expected.sha256):
        if (found.form, found.names) != (expected.form, expected.names):
            named = [f"{file.form} that names {', '.join(file.names) or 'nothing'}" for file in (expected, found)]
            return f"the manifest says {named[0]:.200}, its bytes are {named[1]:.200}"
        return "the manifest says other tensors of this very file"
    told = (
        f"it has {found.size} bytes with SHA-256 {found.sha256.hex()}, the manifest says {expected.size} bytes with "
        f"{expected.sha256.hex()}"
    )
    if expected.tensors is None or found.tensors is None:
        return told
    return f"{told}; {_tensors_that_differ(found.tensors, expected.tensors)}"


def _tensors_that_differ(found: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """Names what is different about the tensors of a file, each with what it is."""
    here, there = ({tensor.name: tensor for tensor in tensors} for tensors in (found, expected))
    told = []
    for name in sorted(here.keys() | there.keys()):
        if name not in here or name not in there:
            told.append(f"{name!a:.100} {'is missing' if name in there else 'is new'}")
        elif (here[name].dtype, here[name].shape) != (there[name].dtype, there[name].shape):
            one, other = (f"{tensor.dtype} {list(tensor.shape)}" for tensor in (here[name], there[name]))
            told.append(f"{name!a:.100} is {one} and not {other}")
        elif here[name] != there[name]:
            told.append(f"{name!a:.100} has other values")
    if not told:
        return "its tensors are the same, its header is another or they stand in another order"
    return f"tensors that differ: {', '.join(told[:5])}{' ...' if told[5:] else ''}"
