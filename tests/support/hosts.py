"""Two hosts with a network link, made of network namespaces. Requires a system that allows them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.machine import need


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Host:
    """A host. A process started with `command` uses its network, and shares everything else with this machine."""

    def __init__(self, name: str, address: str, device: str) -> None:
        self.name = name
        self.address = address
        self._device = device

    def command(self, *command: str | Path) -> tuple[str | Path, ...]:
        return ("ip", "netns", "exec", self.name, *command)

    def vanish(self) -> None:
        """Disconnect the host: packets to it and from it are dropped without notice."""
        _ip("-n", self.name, "link", "set", self._device, "down")

    def connections_to(self, address: str) -> int:
        """Return the number of established TCP connections of this host with `address`."""
        found = subprocess.run(
            ["ip", "netns", "exec", self.name, "ss", "-Htn", "state", "established", "dst", address],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return len(found.stdout.splitlines())


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Create two hosts for the block. Skips the test if network namespaces are not allowed."""
    need("ip", "ss")
    number = os.getpid() % 16_384
    subnet = f"10.{200 + number // 4096}.{number // 16 % 256}"
    first = number % 16 * 4
    names = [f"relaax-{number}-{side}" for side in "ab"]
    devices = [f"rlx{number}{side}" for side in "ab"]
    hosts = [Host(names[i], f"{subnet}.{first + 1 + i}", devices[i]) for i in (0, 1)]
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
            _ip("link", "add", devices[0], "netns", names[0], "type", "veth", "peer", devices[1], "netns", names[1])
            for host, device in zip(hosts, devices, strict=True):
                _ip("-n", host.name, "address", "add", f"{host.address}/30", "dev", device)
                _ip("-n", host.name, "link", "set", device, "up")
                _ip("-n", host.name, "link", "set", "lo", "up")
                _ip("netns", "exec", host.name, "true")
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield hosts[0], hosts[1]
    finally:
        for name in names:  # deletes the link too
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=30)
