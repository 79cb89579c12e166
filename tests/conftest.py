"""What every test leaves behind for the next: nothing of accelerate's state, which is one for the whole process."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _accelerate_forgets() -> Iterator[None]:
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
