"""docs/grafana-dashboard.json: Grafana's own model of a dashboard, and a real Prometheus that reads a training."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.pages import DOCS, ROOT
from support.processes import Processes, Running, wait_until
from support.run import Run, Runs

DASHBOARD = json.loads((ROOT / "docs/grafana-dashboard.json").read_text("utf-8"))
SERVERS = ("parameter-server", "replay-server", "rlx-server", "learner")
LIMIT = 300.0


def expressions() -> dict[str, list[str]]:
    """Return the expressions of each panel."""
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    return {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in panels}


def test_dashboard_has_only_fields_of_grafana() -> None:
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    pytest.importorskip("grafana_foundation_sdk.cog.plugins").register_default_plugins()

    def unknown_fields(document: Any) -> list[str]:
        encoded = encoder.JSONEncoder(sort_keys=True).encode(dashboard.Dashboard.from_json(document))
        return list(_missing(document, json.loads(encoded)))

    assert unknown_fields(DASHBOARD) == []
    wrong = json.loads(json.dumps(DASHBOARD))
    wrong["panels"][1]["fieldConfig"]["defaults"]["unti"] = "s"
    assert unknown_fields(wrong) == [".panels[1].fieldConfig.defaults.unti"]


def _missing(document: Any, known: Any, path: str = "") -> Iterator[str]:
    """Yield the fields of a document that are missing or different in another one."""
    if isinstance(document, dict) and isinstance(known, dict):
        for key, value in document.items():
            yield from _missing(value, known.get(key), f"{path}.{key}") if key in known else [f"{path}.{key}"]
    elif isinstance(document, list) and isinstance(known, list) and len(document) == len(known):
        for index, pair in enumerate(zip(document, known, strict=True)):
            yield from _missing(*pair, f"{path}[{index}]")
    elif document != known:
        yield path


def test_panels_have_own_places_and_the_chosen_source() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    taken = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) == 23
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    names = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource": "datasource", "job": "query"}
    for panel in DASHBOARD["panels"]:
        for part in (panel, *panel.get("targets", ())) if panel["type"] != "row" else ():
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_documented_metrics_are_used() -> None:
    documented = set(re.findall(r"`((?:relaax|process)_\w+)`", (DOCS / "metrics.md").read_text("utf-8")))
    every = " ".join(expr for some in expressions().values() for expr in some)
    used = set(re.findall(r"\b(?:relaax|process)_\w+", every))
    assert used <= documented
    assert len(used) > 25


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.checks(
    *("docs/grafana-dashboard.json", "relaax/server/status.py", "relaax/server/replay_server/prometheus.py"),
    *("relaax/server/parameter_server/command/server.py", "relaax/server/rlx_server/listening/status.py"),
    *("relaax/server/learner", "tests/support/install-trackers"),
)
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is not installed; tests/support/install-trackers installs it"
)
def test_every_expression_has_data_of_a_training(runs: Runs, processes: Processes, tmp_path: Path) -> None:
    sections = ("parameter-server", "replay-server", "rlx-server", "learner")
    options = [f"relaax-{section}.status_bind=127.0.0.1:0" for section in sections]
    options += [
        *("relaax-replay-server.checkpoint_dir=anywhere", "relaax-replay-server.checkpoint_interval=5"),
        *(
            "run.checkpoint_interval=5",
            "run.eval_every=null",
            "run.target_evaluation=null",
            "algorithm.learning_starts=200",
        ),
    ]
    sets = [word for option in options for word in ("--set", option)]
    run = runs.start("--clients", "2", "--no-progress", *sets, config="apex_gym_cartpole")
    targets = [_status_address(run, name) for name in SERVERS]
    url = _start_prometheus(processes, tmp_path, targets)
    every = [expr for some in expressions().values() for expr in some]
    variable = DASHBOARD["templating"]["list"][1]["query"]
    every.append(variable.removeprefix("label_values(").rpartition(",")[0])
    missing = list(every)

    def all_have_data() -> bool:
        assert run.running.returncode is None, run.running.report()
        missing[:] = [expr for expr in missing if not _values(url, expr)]
        return not missing

    try:
        wait_until(all_have_data, "every expression has data", LIMIT, interval=2.0)
    except AssertionError:
        pytest.fail(f"no data for {missing}")
    assert not _values(url, "relaax_no_such_metric")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        _values(url, "rate(relaax_")


def _status_address(run: Run, name: str) -> str:
    log = run.directory / "logs" / f"{name}.log"

    def found() -> str | None:
        assert run.running.returncode is None, run.running.report()
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return next((line.rpartition("//")[2] for line in lines if " status at " in line), None)

    return str(wait_until(found, f"{name} has a status port", LIMIT))


def _start_prometheus(processes: Processes, folder: Path, targets: list[str]) -> str:
    """Start a Prometheus that reads the targets each second; return its URL."""
    scrape = {"job_name": "relaax", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}), "utf-8")
    running: Running = processes.start(
        *("prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"),
        "--web.listen-address=127.0.0.1:0",
    )

    def address() -> str | None:
        assert running.returncode is None, running.report()
        found = re.search(r"\baddress=(?:\")?(127\.0\.0\.1:[1-9]\d*)", running.stderr)
        return found[1] if found else None

    url = f"http://{wait_until(address, 'Prometheus listens', LIMIT)}"

    def is_ready() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=10):
            return True
        return False

    wait_until(is_ready, "Prometheus is ready", LIMIT)
    return url


def _values(url: str, expression: str) -> list[Any]:
    """Return the values of an expression with Grafana's variables replaced. Raises HTTPError if it is not valid."""
    text = expression.replace("$job", "relaax").replace("$__rate_interval", "20s")
    query = urllib.parse.urlencode({"query": text})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=60) as answer:
        result: list[Any] = json.load(answer)["data"]["result"]
    return result
