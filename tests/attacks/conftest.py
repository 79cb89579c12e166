"""The scene of the attacks."""

from pathlib import Path

import pytest

from tests.attacks.scene import Scene, make_scene


@pytest.fixture(scope="session")
def scene() -> Scene:
    """Registry and policy of two contributors."""
    return make_scene()


@pytest.fixture(scope="session")
def formats_page() -> str:
    """The written format document, as one line of text."""
    page = Path(__file__).resolve().parents[2] / "docs" / "formats.md"
    return " ".join(page.read_text().split())
