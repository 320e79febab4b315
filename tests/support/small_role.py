"""The table of roles with a small program in every row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from relaax.configuration import roles
from relaax.configuration.roles import Addresses, Role


def small_roles(folder: Path) -> tuple[Role, ...]:
    """Return the table with `support.small_program` in every row. `folder`: folder of its gates."""
    return tuple(_small(role, folder) for role in roles.ROLES)


def _small(role: Role, folder: Path) -> Role:
    if role.module is None:
        return role

    def arguments(addresses: Addresses, number: int, _: int) -> list[str]:
        name = f"{role.name}-{number}" if number else role.name
        needed = [address for need in role.needs for address in addresses[need]]
        needed += [addresses[role.name][0]] if role.led and number else []
        return ["--name", name, "--folder", str(folder), "--needs", *needed]

    return replace(role, module="support.small_program", arguments=arguments)
