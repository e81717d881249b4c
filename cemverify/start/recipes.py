"""The shortest recipe of each CI service, as docs/ci.md has them at more length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CiRecipe:
    """What makes a CI service judge an implementation on every push."""

    path: str  # where the service looks for it
    # a whole file, in which NAME stands for the implementation's module and CATALOGUE for the version of the
    # catalogue that is enforced
    text: str

    def filled(self, name: str, version: str) -> str:
        """The text for a module of that name, pinned to that version of the catalogue."""
        return self.text.replace("NAME", name).replace("CATALOGUE", version)


RECIPES: Mapping[str, CiRecipe] = {
    "github": CiRecipe(
        ".github/workflows/cemverify.yml",
        """\
name: cemverify
on: [push, pull_request]
jobs:
  check:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      # cemverify is not on PyPI yet: replace OWNER by the account that hosts it
      - run: python -m pip install "cemverify @ git+https://github.com/OWNER/cemverify"  # and what NAME.py imports
      - run: cemverify check NAME:mine --catalogue CATALOGUE --markdown "$GITHUB_STEP_SUMMARY"
""",
    ),
    "gitlab": CiRecipe(
        ".gitlab-ci.yml",
        """\
cemverify:
  image: python:3.12
  script:
    # cemverify is not on PyPI yet: replace OWNER by the account that hosts it
    - python -m pip install "cemverify @ git+https://github.com/OWNER/cemverify"  # and what NAME.py imports
    - cemverify check NAME:mine --catalogue CATALOGUE --junit cemverify.xml
  artifacts:
    when: always
    reports:
      junit: cemverify.xml
""",
    ),
    "tox": CiRecipe(
        "tox.ini",
        """\
[tox]
env_list = cemverify
no_package = true

[testenv:cemverify]
# cemverify is not on PyPI yet: replace OWNER by the account that hosts it
deps = cemverify @ git+https://github.com/OWNER/cemverify
commands = cemverify check NAME:mine --catalogue CATALOGUE {posargs}
""",
    ),
}
