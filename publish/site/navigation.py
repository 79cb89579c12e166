"""Says which page stands where on the site. A page of the docs that is not named here fails the build."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

Section = tuple[str, tuple[str | tuple[str, str], ...]]

SECTIONS: Final[tuple[Section, ...]] = (
    (
        "Start",
        ("index.md", "quickstart.md", "concepts.md", "demo.md", "walkthrough.md", "faq.md", ("Notebooks", "notebooks/*")),
    ),
    (
        "Guides",
        (
            "models.md", "trainers.md", "opacus.md", "policy.md", "planning.md", "lengths.md", "ranks.md", "scaling.md",
            "large.md", "operating.md", "storage.md", "keys.md",
        ),
    ),
    (
        "Recipes",
        (
            "recipes/README.md", "recipes/text-classification.md", "recipes/causal-lm.md", "recipes/images.md",
            "recipes/tabular.md", "recipes/lora-per-class.md", "recipes/correlated.md", "recipes/*", "correlated.md",
            "geometry.md", "utility.md",
        ),
    ),
    ("Guarantee", ("guarantee.md", "threat-model.md", ("Theorems", "mechanism/*"), "glossary.md")),
    ("Audit", ("auditors.md", "contributors.md", "releases.md", "report.md", "tracing.md")),
    (
        "Reference",
        (
            "reference/README.md", ("Command line", "reference/commands*"), ("Errors", "reference/errors*"),
            ("API", "reference/api-*"),
            ("Formats", "formats/*"),
        ),
    ),
    ("Extending", ("extending/layers.md", "extending/noise.md", "extending/accountant.md", "extending/*")),
    ("Serve", ("serving.md", "private-text.md", "inference.md")),
    ("Project", ("architecture.md", "publishing.md", "performance.md")),
)  # fmt: skip
"""Sections with their pages in order. A pattern takes what no line before it has; one with a title is a section of its own.
Pages that are not there yet are left out."""

class Unplaced(ValueError):
    """A page stands in no section."""


def navigation(pages: Iterable[str]) -> list[Any]:
    """Returns the navigation as mkdocs takes it. Raises Unplaced."""
    left = sorted(pages, key=_order)
    made = []
    for title, entries in SECTIONS:
        section: list[Any] = []
        for entry in entries:
            named, pattern = entry if isinstance(entry, tuple) else ("", entry)
            taken = [page for page in left if _is_of(page, pattern)]
            left = [page for page in left if page not in taken]
            if taken:
                section += [{named: taken}] if named else taken
        if section:
            made.append({title: section})
    if left:
        raise Unplaced(f"{', '.join(left)} stands in no section: name it in publish/site/navigation.py")
    return made


def _is_of(page: str, pattern: str) -> bool:
    """Tells whether a page is named; a pattern takes no page of a folder below its own."""
    return Path(page).match(pattern) and page.count("/") == pattern.count("/")


def _order(page: str) -> tuple[str, bool, list[str]]:
    """Orders an index first, then pages by name, numbers in names as numbers."""
    folder, _, name = page.rpartition("/")
    parts = [part.zfill(4) if part.isdigit() else part for part in name.removesuffix(".md").split("-")]
    return folder, name not in ("README.md", "index.md", "commands.md", "errors.md"), parts
