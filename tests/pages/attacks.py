"""Writes the table of attacks on the gate from the rows that are declared beside their tests, and from the tests' names."""

from collections import Counter

from tests.attacks.rows import ATTESTATION_ROWS
from tests.attacks.test_rows_of_the_attack_lists import by_row
from tests.pages.documents import Pages, table, with_tables


def files_of(number: str) -> dict[str, int]:
    """Returns the files in which a row is tried, from the folder of the tests, and how many tests of it each has."""
    return dict(Counter(place.partition("::")[0] for place in by_row().get(number, ())))


def attacks_page(page: str) -> str:
    """Returns formats/attacks.md with the table of rows."""
    rows = []
    for number, row in ATTESTATION_ROWS.items():
        codes = ", ".join(f"`{code}`" for code in row.codes)
        tests = ", ".join(f"{count} in `{path.rpartition('/')[2]}`" for path, count in files_of(number).items())
        rows.append((number, row.attack, row.defence, codes, tests))
    return with_tables(page, "Attacks and defences", [table(("row", "attack", "defence", "code", "tests"), rows)])


PAGES: Pages = {"formats/attacks.md": attacks_page}
