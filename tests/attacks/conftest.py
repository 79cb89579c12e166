"""The scene of the attacks, and the runs that liars start from."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.leaves import Leaf
from ledger.log import Ledger
from tests.attacks.scene import Scene, make_scene
from tests.attacks.telling import TOLD_LIES
from tests.worlds.ledgers import SIGNER, START, Driver, header_spec
from tests.worlds.retained_ledgers import leaves_of


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the table of lies where tests were chosen by that word, as `make lies` does."""
    told = config.stash.get(TOLD_LIES, [])
    if not told or "lies" not in config.option.keyword:
        return
    terminalreporter.section("lies")
    width = max(len(name) for _, name, _, _ in told)
    for kind, name, verdict, why in told:
        terminalreporter.write_line(f"{kind:16} {name:{width}} {verdict:10} {why}")
    counts = Counter(verdict for _, name, verdict, _ in told if not name.startswith("honest"))
    terminalreporter.write_line(f"{sum(counts.values())} lies: " + ", ".join(f"{n} {word}" for word, n in counts.most_common()))


@pytest.fixture(scope="session")
def scene() -> Scene:
    """Registry and policy of two contributors."""
    return make_scene()


@pytest.fixture(scope="session")
def formats_page() -> str:
    """The pages of the formats, as one line of text."""
    pages = (Path(__file__).resolve().parents[2] / "docs" / "formats").glob("*.md")
    return " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in pages)


@pytest.fixture(scope="package")
def leaves(tmp_path_factory: pytest.TempPathFactory) -> list[Leaf]:
    """A whole run: two epochs of two windows, five admissions, a withdrawal of contribution 2 after the first epoch."""
    with Ledger.create(tmp_path_factory.mktemp("run") / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        return leaves_of(ledger)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Driver]:
    """A fresh ledger under a driver."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        yield Driver(ledger)
