"""Show what an evaluation found."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from relaax.console import shown
from relaax.evaluation import scores
from relaax.plain_console import PlainConsole

NOT_COMPARABLE = "human starts: not comparable with null-op scores"


def comparisons(game: str | None, mean: float, is_noop: bool) -> dict[str, Any]:
    """Return what is published of an Atari game, and the human-normalised score in percent, for null ops alone."""
    published = scores.noop_starts().get(game or "")
    if game is None or published is None:
        return {}
    found: dict[str, Any] = {"published": {"noop": dict(published)}}
    if is_noop:
        found["human_normalized"] = scores.human_normalized(mean, game)
    if game in scores.human_starts():
        found["published"]["human_starts"] = dict(scores.human_starts()[game])
    return found


def show(result: dict[str, Any]) -> None:
    """Print the result for a person."""
    print(headline(result))
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, value in _rows(result):
        table.add_row(name, value)
    PlainConsole().print(table, highlight=False)
    if _is_below_training(result):
        print(
            f"training had a mean return of {shown(result['training_mean_return'])} in its last 100 episodes, with "
            "actions that are drawn; early in training the most probable ones can do much worse. --sample draws, too"
        )
    published = result.get("published", {})
    if "noop" in published:
        print(f"published, null-op starts: {_list(published['noop'])}")
    if "human_starts" in published:
        print(f"published, {NOT_COMPARABLE}: {_list(published['human_starts'])}")


def headline(result: dict[str, Any]) -> str:
    """Return what was evaluated, and how."""
    if result["checkpoint"] is None:
        who = "a random agent"
    else:
        who = f"checkpoint {result['checkpoint']} at global step {result['global_step']:,}, "
        who += "greedy" if result["greedy"] else "sampled"
    protocol = result["protocol"]
    how = f", sticky actions {protocol['sticky']:g}" if protocol.get("sticky") else ""
    if protocol["name"] == "noop":
        how = f", null-op starts up to {protocol['noop_max']}, at most {protocol['max_frames']:,} frames{how}"
        if "frame_skip" in protocol:
            how = f", an action every {protocol['frame_skip']} frames{how}"
    return f"{result['environment']}: {who}{how}, seed {result['seed']}"


def _is_below_training(result: dict[str, Any]) -> bool:
    """Return whether greedy play has a lower mean return than training, beyond chance."""
    trained = result["training_mean_return"]
    return bool(result["greedy"]) and trained is not None and result["interval_95"][1] < trained


def _rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    low, high = result["interval_95"]
    rows = [
        ("episodes", f"{result['episodes']:,}"),
        ("mean return", shown(result["mean"])),
        ("95 % interval of the mean", f"{shown(low)} to {shown(high)}"),
        ("standard deviation", shown(result["std"])),
        ("median", shown(result["median"])),
        ("smallest, largest", f"{shown(result['min'])}, {shown(result['max'])}"),
        ("steps, frames", f"{result['steps']:,}, {result['frames']:,}"),
    ]
    if result["cut_off"]:
        rows.append((f"cut off at {result['max_episode_steps']:,} steps", f"{result['cut_off']:,}"))
    if result.get("human_normalized") is not None:
        rows.insert(3, ("human-normalised", f"{result['human_normalized']:,.1f} %"))
    return rows


def _list(published: dict[str, float]) -> str:
    return ", ".join(f"{agent} {shown(score)}" for agent, score in published.items())
