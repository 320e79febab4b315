"""TensorBoard on a real run: what its HTTP interface says of it, and what a browser shows."""

from __future__ import annotations

import importlib.util
import json
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.run import Runs

ROOT = Path(__file__).resolve().parents[2]
STEPS, SHORT_STEPS = 60_000, 12_000


def pictures() -> ModuleType:
    """docs/images/retake.py, which starts TensorBoard and Chromium for the docs."""
    spec = importlib.util.spec_from_file_location("retake", ROOT / "docs" / "images" / "retake.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask(url: str, question: dict[str, Any] | None = None) -> Any:
    data = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tensorboard_shows_a_run(runs: Runs, short: bool) -> None:
    steps = SHORT_STEPS if short else STEPS
    run = runs.start("--max-steps", str(steps), "--set", "run.target_return=null", "--no-progress")
    assert run.running.wait(600) == 0, run.running.report()
    retake = pictures()
    with retake.tensorboard(run.directory) as address:
        data = f"{address}data/plugin"
        (tags,) = ask(f"{data}/scalars/tags").values()
        assert {"episode/mean_return_100", "episode/seconds", "latency/act_ms/p99", "workers/memory_mb/0"} <= set(tags)
        (texts,) = ask(f"{data}/text/tags").values()
        assert "configuration" in texts
        layout = ask(f"{data}/custom_scalars/layout")
        assert layout["category"][0]["title"] == "Does it learn?"
        experiment = ask(f"{data}/hparams/experiment", {"experimentName": ""})
        names = [info["name"] for info in experiment["hparamInfos"]]
        assert names[:3] == ["entropy_beta", "episode_len", "initial_learning_rate"]
        question = {
            "allowedStatuses": ["STATUS_SUCCESS"],
            "startIndex": 0,
            "sliceSize": 10,
            "colParams": [{"metric": {"group": "metrics", "tag": "episode/mean_return_100"}}],
        }
        (group,) = ask(f"{data}/hparams/session_groups", question)["sessionGroups"]
        assert group["hparams"]["initial_learning_rate"] == 3e-3
        assert group["metricValues"][0]["value"] > 8
        if retake.browser() is not None:
            page = retake.look(f"{address}?forceSVG=true#timeseries", "--window-size=1400,1000", "--dump-dom")
            assert page.count(b"<scalar-card") >= 3
            assert page.count(b"<line-chart") >= 3
            assert b"client/latency/act_ms" in page
