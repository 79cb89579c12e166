"""Every row of the table of lies gets the verdict that it should: FAILED, TOLD or SUMMARISED, and FULL only by name."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.release import ReleaseReport
from ledger.storage.place import Place
from tests.attacks.lies import TABLE, TOLD_AS_SOMEBODYS_WORD, Lie
from tests.attacks.telling import TOLD_LIES
from tests.worlds.postgres import Cluster, require_server


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server for the lies that are told on one."""
    require_server()
    server = Cluster()
    yield server
    server.stop()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("lie", TABLE, ids=lambda lie: f"{lie.kind}: {lie.name}")
def test_lies_get_the_verdict_that_they_should(lie: Lie, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    places = []
    if lie.server:
        schema = f"lie{TABLE.index(lie)}"
        places = [Place.of(f"{request.getfixturevalue('cluster').url()}?schema={schema}", tmp_path / "state")]
    report = lie.tell(tmp_path, *places)
    codes = sorted({item.code for item in report.findings})
    told = codes if report.verdict == "FAILED" else report.qualifiers
    request.config.stash.setdefault(TOLD_LIES, []).append((lie.kind, lie.name, report.verdict, " ".join(told)))
    assert report.verdict == lie.verdict, report.findings
    assert not lie.word or lie.word in told
    if lie.verdict == "FULL" and not lie.honest:
        assert lie.word in TOLD_AS_SOMEBODYS_WORD
    if lie.kind == "releases" and lie.honest:
        assert isinstance(report, ReleaseReport) and report.weights.status == "TIED" and not report.weights.code


def test_the_table_has_eighty_lies_and_an_honest_run_of_every_kind() -> None:
    lies = [lie for lie in TABLE if not lie.honest]
    assert len(lies) >= 80
    assert len({(lie.kind, lie.name, lie.verdict) for lie in TABLE}) == len(TABLE)
    honest = Counter(lie.kind for lie in TABLE if lie.honest and lie.verdict == "FULL")
    assert honest.keys() == {lie.kind for lie in TABLE}
    assert all(lie.word in TOLD_AS_SOMEBODYS_WORD for lie in lies if lie.verdict == "FULL")
