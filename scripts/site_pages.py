"""For MkDocs: which files are the site's, and where they lie in it.

The site has the layout of the repository: README.md is its first page, docs/heads.md is /docs/heads/. So a
link that works in the repository works on the site, and a strict build checks both.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

log = logging.getLogger("mkdocs.hooks.site_pages")

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "README.md",
    "README.tr.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "docs/**/*.*",
    "benchmarks/*.md",
    "benchmarks/training/*.md",
    "benchmarks/results/*.svg",
    "examples/*.*",
)


def on_files(files: Files, config: Any) -> Files:
    """The repository's files beside the theme's."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted(path for pattern in FILES for path in ROOT.glob(pattern) if path.is_file())
    ours = [
        File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls)
        for path in paths
    ]
    return Files([*theme, *ours])


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """MkDocs wants an empty line before a list and four spaces within one, where repositories' viewers don't:
    what it shows as text instead is a warning, and so a failure of a strict build."""
    text = re.sub(r"<(pre|code|svg|h[1-6]).*?</\1>|<[^>]+>", "", html, flags=re.DOTALL)
    if found := re.search(r"^(- |\d+\. |\| ?-{3}).*", text, re.MULTILINE):
        log.warning("%s: a list or table that isn't one: %s", page.file.src_uri, found[0][:60])
    return html
