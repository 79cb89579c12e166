"""Writes what stands beside a wheel and an sdist: bills of materials (CycloneDX), provenance (in-toto, SLSA) and SHA-256 sums.

None of it is signed here. docs/publishing.md says how a maintainer signs the sums, and how a user checks them.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from publish.lock import FOLDER, ROOT

PLACEHOLDER = "REPOSITORY.example"
"""Stands in pyproject.toml and SECURITY.md until the project has an address."""

TOOLS = ("build", "setuptools", "cyclonedx-bom")
"""Settings that decide the bytes of what is built."""


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def repository() -> str:
    """Returns where the source lies, as pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def bill(lock: str, wheel: Path, epoch: int, out: Path) -> Path:
    """Writes the bill of materials of a wheel with what a lock installs beside it; returns its path.

    Args:
        lock: name of the lock, ``base`` or ``train``.
        wheel: the wheel, whose hash stands at the main component.
        epoch: time of the commit, which is that of the bill.
        out: folder to write into.
    """
    path = out / f"{wheel.name.removesuffix('.whl')}.{lock}.cdx.json"
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", str(FOLDER / f"{lock}.lock")]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library", "--output-reproducible"]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}
    text = subprocess.run([*command, "--output-format", "JSON", "-o", "-"], env=environment, check=True, capture_output=True)
    made = json.loads(text.stdout)
    main = made["metadata"]["component"]
    main["hashes"] = [{"alg": "SHA-256", "content": digest(wheel)}]
    main["purl"] = f"pkg:pypi/{main['name']}@{main['version']}"
    for component in made["components"]:
        del component["description"]  # the line of the lock, whose hashes stand beside it
    made["dependencies"] = [
        {"ref": main["bom-ref"], "dependsOn": sorted(component["bom-ref"] for component in made["components"])},
        *(entry for entry in made["dependencies"] if entry["ref"] != main["bom-ref"]),
    ]
    return _written(path, made)


def provenance(built: Sequence[Path], commit: str, epoch: int, builder: str, out: Path) -> Path:
    """Writes an in-toto statement of what was built, from which revision, by whom and with what; returns its path.

    Nothing in it depends on when or in which folder it was built, so that whoever builds the commit again can compare.

    Source: in-toto Attestation Framework, Statement v1; SLSA 1.0, Provenance.
    """
    source = f"git+{repository()}@{commit}"
    tools = [{"uri": f"pkg:pypi/{name}@{metadata.version(name)}"} for name in TOOLS]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": digest(path)}} for path in built],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{repository()}#make-dist",
                "externalParameters": {"source": source, "target": "make dist"},
                "internalParameters": {
                    "SOURCE_DATE_EPOCH": epoch,
                    "python": platform.python_version(),
                    "requirements/release.lock": digest(FOLDER / "release.lock"),
                },
                "resolvedDependencies": [{"uri": source, "digest": {"gitCommit": commit}}, *tools],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }
    return _written(out / "provenance.intoto.json", statement)


def sums(paths: Sequence[Path], out: Path) -> Path:
    """Writes SHA256SUMS in the form of `sha256sum --check`; returns its path."""
    listed = out / "SHA256SUMS"
    listed.write_text("".join(f"{digest(path)}  {path.name}\n" for path in sorted(paths)), encoding="utf-8")
    return listed


def _written(path: Path, value: dict[str, Any]) -> Path:
    path.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
