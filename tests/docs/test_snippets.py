"""Every Python snippet of the README and the docs runs, page by page, on the bundled model."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if re.search(r"^```python$", page.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_of_a_page_run_in_order(page):
    snippets = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    scope = {"__name__": "__main__"}
    for snippet in snippets:
        exec(compile(snippet, str(page), "exec"), scope)  # noqa: S102


def test_the_pages_of_the_site_exist():
    pages = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert pages and all((ROOT / "docs" / page).exists() for page in pages)
