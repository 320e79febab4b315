"""docs/from-relaax-0.1.md: its new client works, and old keys give the messages of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from relaax import rlx
from relaax.configuration import ConfigurationError, load_configuration
from support.pages import DOCS, ROOT, block
from support.rlx_peer import RlxPeer, serve

PAGE = DOCS / "from-relaax-0.1.md"


class Over(Exception):
    """The end of the game, after ten steps."""


class Game:
    """A game with two episodes of five steps."""

    def __init__(self) -> None:
        self.steps = 0

    def state(self) -> Any:
        return np.zeros((84, 84), np.uint8)

    def act(self, action: int) -> tuple[float, bool]:
        if self.steps == 10:
            raise Over
        self.steps += 1
        return 1.0, self.steps % 5 == 0

    def reset(self) -> None:
        """Start the next episode."""


def test_new_client_of_page_plays() -> None:
    with RlxPeer(serve) as peer:
        names: dict[str, Any] = {"game": Game()}
        code = block(PAGE, "new").replace("localhost:7001", peer.address)
        with pytest.raises(Over):
            exec(compile(code, "new", "exec"), names)
        names["client"].disconnect()
        (conn,) = peer.connections
    assert names["episode_score"] == 5.0
    assert (len(conn.of(rlx.Init)), len(conn.of(rlx.Reset))) == (3, 2)


def test_checkpoint_dir_and_s3_exclude_each_other(tmp_path: Path) -> None:
    sentence = "relaax-parameter-server: checkpoint_dir and checkpoint_aws_s3 are both given"
    assert f"`{sentence}" in PAGE.read_text("utf-8")
    document = yaml.safe_load((ROOT / "tests" / "data" / "da3c_ale_boxing.yaml").read_text("utf-8"))
    section = document["relaax-parameter-server"]
    section["--checkpoint-aws-s3"] = ["models", "boxing"]
    file = tmp_path / "old.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=sentence):
        load_configuration(file)
    del section["--checkpoint-dir"]
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert load_configuration(file).parameter_server.checkpoint_aws_s3 == ["models", "boxing"]


@pytest.mark.parametrize("section", ["version", "environment"])
def test_files_with_unknown_sections_are_refused(section: str, tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text(f"{section}: x\nalgorithm: {{name: da3c}}\n", encoding="utf-8")
    assert f"`unknown section '{section}'`" in PAGE.read_text("utf-8")
    with pytest.raises(ConfigurationError, match=f"unknown section '{section}'"):
        load_configuration(tmp_path / "old.yaml")
