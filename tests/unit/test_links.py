# SPDX-License-Identifier: Apache-2.0
"""Links between the documents lead to files and headings that are there."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)


def pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def anchors(page: Path) -> set[str]:
    """The names that headings of a page have, as a renderer of GitHub's flavour makes them."""
    headings = _HEADING.findall(page.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """The links of a page within the tree: as written, the file, the heading."""
    for link in _LINK.findall(page.read_text("utf-8")):
        if "://" not in link and not link.startswith("mailto:"):
            path, _, anchor = link.partition("#")
            yield link, (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = []
    for link, target, anchor in links(page):
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


FRONT: Final = ROOT / "README.md"


def test_the_front_page_is_read_in_a_few_minutes() -> None:
    assert len(FRONT.read_text("utf-8").splitlines()) < 150


def test_the_front_page_leads_to_every_page_of_documents() -> None:
    linked = {target for _, target, _ in links(FRONT)}
    assert [page.name for page in pages() if page.parent == ROOT / "docs" and page not in linked] == []


def test_the_front_page_tells_limits_before_it_explains_itself() -> None:
    headings = _HEADING.findall(FRONT.read_text("utf-8"))
    assert headings.index("What it is not yet") < headings.index("How it works")
