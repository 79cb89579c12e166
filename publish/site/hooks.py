"""Hooks of mkdocs: pages that are made, the navigation, links to the repository, notebooks."""

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # mkdocs is started without the project's root; the imports below need it

from mkdocs.structure.files import File, Files  # noqa: E402

from publish.site import api, commands, errors, links, notebooks  # noqa: E402
from publish.site.navigation import navigation  # noqa: E402

RUN = "DOCS_NOTEBOOKS"
"""Environment: "no" shows notebooks without running them, for who writes and builds again and again."""


def on_config(config: Any) -> Any:
    """Takes the address of the repository from pyproject.toml, where its other users have it from."""
    config["repo_url"] = links.repository()
    return config


@cache
def pages() -> dict[str, str]:
    """Returns the pages that are made of the source, by their paths in the site."""
    return commands.pages() | errors.pages() | api.pages()


def on_files(files: Files, config: Any) -> Files:
    """Adds pages that are made of the source, and notebooks as pages; puts all into the navigation."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        book = notebooks.executed(path) if os.environ.get(RUN) != "no" else notebooks.nbformat.read(path, as_version=4)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebooks.markdown(book, path.name)))
    config["nav"] = navigation(file.src_uri for file in files.documentation_pages())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links out of the docs, and lists the pages that are made on the page that tells of them."""
    if page.file.src_uri == "reference/README.md":
        titles = {(name := path.removeprefix("reference/")): name.removesuffix(".md").replace("-", " ") for path in pages()}
        markdown += "\n" + "\n".join(f"* [{title}]({name})" for name, title in titles.items()) + "\n"
    return links.outward(markdown, page.file.src_uri)
