"""HTTP requests to this program's own processes, past the proxies that the environment names."""

from __future__ import annotations

import urllib.request
from typing import Any

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def open_directly(url: str, timeout: float) -> Any:
    """Open a URL as `urllib.request.urlopen` does, without a proxy, which could not reach a port of this machine."""
    return _OPENER.open(url, timeout=timeout)
