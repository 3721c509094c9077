import inspect
import re
from pathlib import Path

import pytest

from sluice.buffer_service.settings import Settings
from studies.reference import api_page, command_line_page, faces, parameters, settings_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def test_the_command_line_page_is_what_the_commands_say():
    assert (DOCS / "command-line.md").read_text(encoding="utf-8") == command_line_page()


def test_the_settings_page_is_what_the_record_of_settings_says_and_has_each_once():
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == settings_page()
    assert sorted(name for names, _ in parameters(Settings) for name in names) == sorted(Settings.__dataclass_fields__)
    assert all(text for _, text in parameters(Settings))


def test_the_api_page_is_what_the_packages_export():
    assert (DOCS / "api.md").read_text(encoding="utf-8") == api_page()


@pytest.mark.parametrize("package", faces(), ids=lambda package: package.__name__)
def test_every_name_that_a_package_exports_is_explained(package):
    for name in package.__all__:
        thing = getattr(package, name)
        if inspect.ismodule(thing) or inspect.isclass(thing) or inspect.isroutine(thing):  # other things show their value
            assert thing.__doc__, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_index_names_every_page():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index, page.name
