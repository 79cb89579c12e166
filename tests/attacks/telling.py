"""Where the lies of a session are noted, for the table that is printed at its end: one key for whoever tells and who prints."""

import pytest

TOLD_LIES = pytest.StashKey[list[tuple[str, str, str, str]]]()
"""Kind, lie, verdict, and codes or qualifiers of every lie that was told in this session."""
