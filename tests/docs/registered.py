"""Says who runs the blocks of a page where the harness does not, which pages are slow, and why nobody runs some blocks."""

from typing import Final

WALK, PAGES = "tests/cli/test_walkthrough.py", "tests/cli/test_walkthrough_pages.py"
RECIPES = "tests/train/test_recipe_pages.py"
EXTENDING, CORRELATED = "tests/test_extending.py", "tests/correlated/test_correlated_page.py"
RELEASES = "tests/cli/test_releases_page.py"
RULES = "tests/guarantees/test_gradient_rules.py"

ELSEWHERE: Final[dict[str, dict[str, str]]] = {
    "README.md": {"sh": PAGES, "diff": "tests/integrations/test_readme_diff.py"},
    "docs/auditors.md": {"sh": PAGES},
    "docs/contributors.md": {"sh": PAGES},
    "docs/correlated.md": {"python": CORRELATED, "sh": CORRELATED},
    "docs/extending/accountant.md": {"python": EXTENDING},
    "docs/extending/layers.md": {"python": RULES, "text": RULES},
    "docs/extending/noise.md": {"python": EXTENDING, "py": EXTENDING, "toml": EXTENDING},
    "docs/extending/store.md": {"python": "tests/ledger/test_store_check.py"},
    "docs/formats/attestation.md": {"hex": "tests/attacks/test_formats_page.py"},
    "docs/formats/figures.md": {"hex": "tests/attacks/test_formats_page.py"},
    "docs/keys.md": {"sh": PAGES, "python": PAGES},
    "docs/large.md": {"sh": "tests/cli/test_cli_shards.py", "python": "tests/cli/test_cli_shards.py"},
    "docs/lengths.md": {"python": "tests/train/test_lengths_page.py"},
    "docs/opacus.md": {"python": "tests/integrations/test_opacus_page.py"},
    "docs/operating.md": {"sh": PAGES},
    "docs/recipes/causal-lm.md": {"sh": RECIPES, "text": RECIPES},
    "docs/recipes/correlated.md": {"sh": RECIPES, "text": RECIPES},
    "docs/recipes/images.md": {"sh": RECIPES, "text": RECIPES},
    "docs/recipes/lora-per-class.md": {"sh": RECIPES, "text": RECIPES},
    "docs/recipes/tabular.md": {"sh": RECIPES, "text": RECIPES},
    "docs/recipes/text-classification.md": {"sh": RECIPES, "text": RECIPES},
    "docs/releases.md": {"sh": RELEASES, "toml": RELEASES, "python": RELEASES},
    "docs/tracing.md": {"sh": PAGES},
    "docs/trainers.md": {"python": "tests/integrations/test_trainers_page.py"},
    "docs/walkthrough.md": {"sh": WALK, "text": WALK},
}
"""Pages with blocks that a test of their own runs: page, language, test. The other languages of the page are run here."""

SLOW: Final[frozenset[str]] = frozenset(
    {"docs/models.md", "docs/planning.md", "docs/quickstart.md", "docs/ranks.md", "docs/scaling.md",
     "docs/private-text.md", "docs/serving.md"}
)
"""Pages that take more than ten seconds."""

REASONS: Final[dict[str, str]] = {
    "needs a network": "downloads or installs, or asks a server of others",
    "needs several machines": "or several GPUs, or a scheduler of clusters",
    "needs a token": "a hardware key, or an agent with a key on it",
    "asks a person": "a passphrase is typed",
    "takes long": "and a slow test or a benchmark does it",
    "a drawing": "lines and boxes for people, or a layout of files",
    "a form": "names of the reader's own stand in it, or a notation for no program",
}
"""Why a block is not run, with what each reason covers."""

MOST_NOT_RUN: Final = 40
"""Blocks of all pages that are not run, at most: a longer list is not read."""
