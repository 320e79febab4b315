from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.client_languages import LANGUAGES, Language, require


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Language, Path]]:
    """Return a function that builds a client once: built(NAME) returns the language and the build folder."""
    folder = tmp_path_factory.getbasetemp() / "clients"
    ready: dict[str, Path] = {}

    def build(name: str) -> tuple[Language, Path]:
        language = LANGUAGES[name]
        require(language)
        if name not in ready:
            out = folder / name
            out.mkdir(parents=True, exist_ok=True)
            for command in language.build:
                language.run(command, out)
            ready[name] = out
        return language, ready[name]

    return build
