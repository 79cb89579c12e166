"""The document of the server against the server: whatever it allows is answered in time, as it says, and without a fault."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from dptrain.serve.app import make_app
from ledger.errors import ReleaseRefused
from tests.worlds.servers import CLASSES, ENCRYPTED, OpenGate, running

schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
pytest.importorskip("tenseal", reason="pip install 'dptrain[he]'")
pytestmark = pytest.mark.slow

MODES = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
"""Requests as the document says, and such as are not so."""

PLAIN = OpenGate.admit


def checks() -> list[Any]:
    """Returns what each answer is held against."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as found

    named = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
    return [not_a_server_error, *(getattr(found, name) for name in named)]


def admit(self: OpenGate, generation_class: str, rights: Any, *, holder: str | None = None) -> Any:
    """Refuses envelopes as the gate of a release does that nobody signed for it."""
    if isinstance(rights, bytes):
        raise ReleaseRefused("ENVELOPE", "the rights are no envelope that a granter signed")
    return PLAIN(self, generation_class, rights, holder=holder)


def steered(case: Any) -> None:
    """Lets most requests get past the first refusal: to a class that there is, for no more tokens than the server gives."""
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("model"), str) and len(body["model"]) < 30:
        body["model"] = "split" if "releases" in body else ("plain", "released")[len(body) % 2]
        for count in ("max_tokens", "releases"):
            if isinstance(body.get(count), int):
                body[count] = min(body[count], 8)
        body.setdefault("max_tokens" if "releases" not in body else "releases", 8)
        if body["model"] == "plain":
            body.pop("epsilon", None), body.pop("session", None)
    if case.path == "/v1/he/lora" and "model" in (case.query or {}):
        case.query["model"] = "he"


def judging(headers: dict[str, str], seen: set[int]) -> Any:
    """Returns what sends one request and holds the answer against the document."""

    @settings(max_examples=40, deadline=5000, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def judged(case: Any) -> None:
        steered(case)
        answer = case.call(headers=headers)
        seen.add(answer.status_code)
        case.validate_response(answer, checks=checks())

    return judged


@pytest.mark.parametrize("client", ["anna", "op", None])
def test_whatever_the_document_allows_is_answered_as_it_says(
    tmp_path: Path, client: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenGate, "admit", admit)
    rich = {"caps": {"user": {"epsilon": 5000.0, "delta": 1e-5}}}
    with running(tmp_path, classes=CLASSES | ENCRYPTED, budget=rich, server={"max_tokens": 8}) as world:
        schema = schemathesis.openapi.from_asgi("/openapi.json", make_app(world.service))
        headers = {} if client is None else world.headers(client)
        seen: dict[tuple[str, str], set[int]] = {}
        for found in schema.get_all_operations():
            operation: Any = found.ok()

            kept = seen.setdefault((operation.method.upper(), operation.path), set())
            for mode in MODES:
                with suppress(Unsatisfiable):  # some routes take nothing that could be wrong
                    given(case=operation.as_strategy(generation_mode=mode))(judging(headers, kept))()
        assert len(seen) >= 16
        if client is None:
            for (_, path), statuses in seen.items():
                assert statuses <= ({200} if path in ("/healthz", "/readyz") else {401}), path
        if client == "anna":
            assert {200, 400} <= seen["POST", "/v1/completions"] and {200, 400} <= seen["POST", "/v1/split"]
