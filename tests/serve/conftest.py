"""Servers for the tests of this folder: one for all that leave it as it was. Answers have all their tokens, unless a test sets
the ids at which they end."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("fastapi", reason="pip install 'dptrain[serve]'")

RICH = {"caps": {"user": {"epsilon": 5000.0, "delta": 1e-5}}}
"""A budget that no test uses up."""


@pytest.fixture(scope="session", autouse=True)
def _endless() -> Iterator[None]:
    """Lets no token end an answer: one in fifty would, by chance."""
    from dptrain.serve.decoding import Served

    found = Served.of

    def of(model: Any, tokenizer: Any) -> Served:
        return replace(found(model, tokenizer), stops=frozenset())

    with mock.patch.object(Served, "of", of):
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: Any) -> Iterator[Any]:
    """A server with a budget for many answers."""
    from tests.worlds.servers import running

    with running(tmp_path_factory.mktemp("served"), budget=RICH) as found:
        yield found
