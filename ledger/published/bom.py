"""Writes the ML-BOM of a release: the model, its files with their hashes, and a set of data per class, in CycloneDX.

Source: CycloneDX 1.6 (ECMA-424), JSON. Of a class it has the name and the number of contributions, and no contributor.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

from attest.schema.plain import utc
from ledger.audit.findings import QUALIFIERS
from ledger.published.facts import Facts, Listed, decimal

SPEC: Final = "1.6"
_MODEL: Final = "model"


def bom(facts: Facts, files: Sequence[Listed]) -> str:
    """Returns the ML-BOM. `files`: those of the release that it lists, in order."""
    about = facts.publication.about
    tool = {"type": "application", "name": "dptrain", "version": facts.publication.version}
    told: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{_serial(facts)}",
        "version": 1,
        "metadata": {
            "timestamp": utc(facts.time),
            "tools": {"components": [tool]},
            "component": _model(facts, [item.path for item in files]),
        },
        "components": [*_files(files), *_data(facts)],
        "dependencies": [
            {"ref": _MODEL, "dependsOn": [*(f"file:{item.path}" for item in files), *map(_data_ref, facts.classes)]}
        ],
    }
    if about.license is not None:
        told["metadata"]["properties"] = [{"name": "dptrain:typed:license", "value": about.license}]
    return json.dumps(told, indent=1, ensure_ascii=True) + "\n"


def _serial(facts: Facts) -> uuid.UUID:
    """Returns a UUID that follows from ledger and size, so that whoever checks finds it again."""
    digest = hashlib.sha256(b"dptrain ML-BOM\0" + facts.header_digest + facts.root + facts.size.to_bytes(8, "big")).digest()
    return uuid.UUID(bytes=digest[:16], version=5)


def _model(facts: Facts, paths: Sequence[str]) -> dict[str, Any]:
    about = facts.publication.about
    model: dict[str, Any] = {"type": "machine-learning-model", "bom-ref": _MODEL, "name": about.name}
    model["version"] = f"step-{facts.step}"
    if about.description is not None:
        model["description"] = about.description
    pointers = [
        {"type": kind, "url": path, "comment": comment}
        for kind, path, comment in (
            ("model-card", "README.md", "Model card, from the audit"),
            ("model-card", "MODEL_CARD.md", "Model card, from the audit"),
            ("other", "DISCLOSURE.md", "Answers to NIST SP 800-226"),
            ("other", "disclosure.json", "Answers to NIST SP 800-226"),
        )
        if path in facts.publication.documents and path in paths
    ]
    pointers.append({"type": "attestation", "url": "release.cose", "comment": "Signed manifest of the release (COSE_Sign1)"})
    pointers.append({"type": "evidence", "url": "export", "comment": "Export of the privacy ledger, for an audit offline"})
    model["externalReferences"] = pointers
    model["modelCard"] = {
        "modelParameters": {"datasets": [{"ref": _data_ref(row)} for row in facts.classes]},
        "considerations": {
            "technicalLimitations": [*facts.statements, *(f"{word}: {_means(word)}" for word in facts.publication.qualifiers)],
        },
    }
    model["properties"] = [{"name": f"dptrain:{name}", "value": value} for name, value in _properties(facts)]
    return model


def _means(word: str) -> str:
    return QUALIFIERS[word].sentence


def _properties(facts: Facts) -> Iterator[tuple[str, str]]:
    header, policy, publication = facts.header, facts.header.policy, facts.publication
    yield "audit:verdict", publication.verdict
    for word in publication.qualifiers:
        yield "audit:qualifier", word
    yield "weights", facts.weights
    yield "privacy:unit", "contribution"
    yield "privacy:adjacency", policy.adjacency
    yield "privacy:delta", facts.delta
    yield "privacy:planned-horizon", "true" if facts.horizon else "false"
    yield "privacy:disclosure", policy.disclosure
    yield "privacy:exactness", policy.exactness
    yield "privacy:mechanism", policy.mechanism.name
    yield "privacy:accountant", f"{header.accountant.name} {header.accountant.library} {header.accountant.version}"
    yield "ledger:origin", facts.origin
    yield "ledger:key", facts.log_vkey
    yield "ledger:size", str(facts.size)
    yield "ledger:root", facts.root.hex()
    yield "ledger:header-sha256", facts.header_digest.hex()
    for part in facts.artifacts:
        for row, path in facts.spent(part):
            yield f"influence:{row.name}", f"{part.name}: {'may be in it' if path else 'none'}"
    for name in publication.about.base_model:
        yield "typed:base-model", name
    for name in publication.about.language:
        yield "typed:language", name
    for name in publication.about.tags:
        yield "typed:tag", name


def _files(files: Sequence[Listed]) -> Iterator[dict[str, Any]]:
    for item in files:
        hashes = [{"alg": "SHA-256", "content": item.sha256.hex()}]
        yield {"type": "file", "bom-ref": f"file:{item.path}", "name": item.path, "hashes": hashes}


def _data_ref(row: Any) -> str:
    return f"data:{row.name}"


def _data(facts: Facts) -> Iterator[dict[str, Any]]:
    """Yields a set of data per class. Its description counts contributions, and tells of none."""
    for row in facts.classes:
        figures = [("contributions", str(row.contributions)), ("withdrawn", str(row.withdrawn))]
        if row.epsilon_micro is not None and row.replace_micro is not None:
            figures += [("epsilon", decimal(row.epsilon_micro)), ("epsilon-replace", decimal(row.replace_micro))]
            classification = "private"
        else:
            classification = "public"
            figures.append(("promise", "none (public class)"))
        yield {
            "type": "data",
            "bom-ref": _data_ref(row),
            "name": row.name,
            "data": [{"type": "dataset", "name": row.name, "classification": classification}],
            "properties": [{"name": f"dptrain:privacy:{name}", "value": value} for name, value in figures],
        }
