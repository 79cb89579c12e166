"""The handbook is short enough to be read: at most 30,000 words that people wrote."""

import pytest

from tests.docs import words

pytest.importorskip("torch", reason="some tables are written by programs that train: pip install 'dptrain[train]'")


def test_the_handbook_has_at_most_thirty_thousand_words_by_hand() -> None:
    counted = words.by_hand()
    longest = ", ".join(f"{name} {number}" for name, number in sorted(counted.items(), key=lambda one: -one[1])[:8])
    assert sum(counted.values()) <= words.MOST, f"{sum(counted.values()):,} words; the longest: {longest}"


@pytest.mark.parametrize("writer", words.WRITERS, ids=lambda writer: writer.__name__)
def test_what_a_writer_is_asked_for_stands_in_its_pages(writer) -> None:
    texts = dict(words.pages())
    made = list(writer())
    assert made and all(text in texts[name] for name, text in made)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("A page of five words.", 5),
        ("| a | b |\n|---|---|\n| one | two three |", 5),
        ("before\n```sh\nnot counted\n```\nafter <!-- nor this --> it", 3),
        ("1. In a list:\n   ```py\n   a = 1\n   ```\n", 4),
        ("one <!-- made by `make pages`; do not edit -->\n| a |\n<!-- end of what is made --> two", 2),
    ],
)
def test_words_are_counted_outside_of_code_and_of_what_is_made(text: str, number: int) -> None:
    assert words.words(text) == number
