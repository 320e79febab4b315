"""Readers of a status port: metrics and health."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from support.processes import Running

PATIENCE = 60.0


def scraped(url: str) -> dict[str, float]:
    """Return the values of all metrics by name and labels, in the format of Prometheus. Raises OSError."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as answer:
        return parsed(answer.read().decode())


def parsed(text: str) -> dict[str, float]:
    """Parse the text of /metrics."""
    lines = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def health(url: str) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the JSON object of /healthz. Raises OSError."""
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def status_url(server: Running) -> str:
    """Return the URL of the status port of a server."""
    return server.wait_for_line(" status at ").rsplit(" ", 1)[-1]
