"""Hooks of mkdocs: pages that are made, the navigation, links to the repository, notebooks."""

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File, Files  # noqa: E402

from publish.site import api, commands, errors, links, notebooks  # noqa: E402
from publish.site.navigation import navigation  # noqa: E402

RUN = "DOCS_NOTEBOOKS"
"""Environment: "no" shows notebooks without running them, for who writes and builds again and again."""


def on_config(config: Any) -> Any:
    """Takes the address of the repository from pyproject.toml, where its other users have it from."""
    config["repo_url"] = links.repository()
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds pages that are made of the source, and notebooks as pages; puts all into the navigation."""
    for made in (api.pages(), errors.pages(), commands.pages()):
        for path, text in made.items():
            files.append(File.generated(config, path, content=text))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        book = notebooks.executed(path) if os.environ.get(RUN) != "no" else notebooks.nbformat.read(path, as_version=4)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebooks.markdown(book, path.name)))
    config["nav"] = navigation(file.src_uri for file in files.documentation_pages())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links out of the docs."""
    return links.outward(markdown, page.file.src_uri)
