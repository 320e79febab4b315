"""TensorBoard on a real run: its HTTP interface, and its page in a browser."""

from __future__ import annotations

import importlib.util
import json
import signal
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.metrics_page import scalars
from support.processes import wait_until
from support.run import Runs

pytestmark = pytest.mark.checks("relaax/metrics", "relaax/server/tensorboard", "relaax/cli/run")

ROOT = Path(__file__).resolve().parents[2]
# The last metrics to appear: clients report every five seconds, and a worker's memory is first measured then.
WANTED = {
    *("episode/mean_return_100", "episode/seconds", "latency/act_ms/p99"),
    *("workers/memory_mb/0", "client/latency/act_ms"),
}


def retake_module() -> ModuleType:
    """Load docs/images/retake.py, which starts TensorBoard and Chromium for the docs."""
    spec = importlib.util.spec_from_file_location("retake", ROOT / "docs" / "images" / "retake.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def get_json(url: str, question: dict[str, Any] | None = None) -> Any:
    data = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tensorboard_shows_a_run(runs: Runs) -> None:
    run = runs.start("--set", "run.target_return=null", "--set", "algorithm.max_global_step=1e9", "--no-progress")
    run.wait_for_steps(1)
    wait_until(lambda: set(scalars(run.directory / "metrics")) >= WANTED, f"{WANTED} are written", 120, interval=0.5)
    assert run.running.stop(signal.SIGINT, timeout=60) == 130, run.running.report()
    retake = retake_module()
    with retake.tensorboard(run.directory) as address:
        data = f"{address}data/plugin"
        (tags,) = get_json(f"{data}/scalars/tags").values()
        assert set(tags) >= WANTED
        (texts,) = get_json(f"{data}/text/tags").values()
        assert "configuration" in texts
        layout = get_json(f"{data}/custom_scalars/layout")
        assert layout["category"][0]["title"] == "Does it learn?"
        experiment = get_json(f"{data}/hparams/experiment", {"experimentName": ""})
        names = [info["name"] for info in experiment["hparamInfos"]]
        assert names[:3] == ["entropy_beta", "episode_len", "initial_learning_rate"]
        question = {
            "allowedStatuses": ["STATUS_SUCCESS"],
            "startIndex": 0,
            "sliceSize": 10,
            "colParams": [{"metric": {"group": "metrics", "tag": "episode/mean_return_100"}}],
        }
        (group,) = get_json(f"{data}/hparams/session_groups", question)["sessionGroups"]
        assert group["hparams"]["initial_learning_rate"] == 3e-3
        assert group["metricValues"][0]["value"] > 8
        if retake.browser() is not None:
            page = retake.look(f"{address}?forceSVG=true#timeseries", "--window-size=1400,1000", "--dump-dom")
            assert page.count(b"<scalar-card") >= 3
            assert page.count(b"<line-chart") >= 3
            assert b"client/latency/act_ms" in page
