"""Writer of protocol/vectors/*.json and of the generated parts of protocol/RLX.md:

python -m support.rlx_vector_files        (in tests/, with the root of the checkout on PYTHONPATH)

The files are golden: a change of one is a change of the protocol. `test_vectors_are_current` compares them with the
output of this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain

from relaax.rlx import Bye, Error, Ping, Pong, TrainingFinished
from relaax.rlx.transitions import _OPEN, TRANSITIONS, Sender, allowed

from .rlx_vector_bad import client_mistakes, server_mistakes
from .rlx_vector_control import chosen_actions, chosen_mistakes, environment_parameters, parameter_mistakes
from .rlx_vector_good import control, episodes, plain, spaces
from .rlx_vector_idle import idle_mistakes, out_of_step, unasked_welcome
from .rlx_vector_recorder import Recording
from .rlx_vectors import FOLDER

SPECIFICATION = FOLDER.parent / "RLX.md"
JSON_CLIENT = FOLDER.parent / "clients" / "json_client.py"

FILES: dict[str, tuple[str, Callable[[], Iterator[Recording]]]] = {
    "plain": ("One environment, plain episodes.", plain),
    "episodes": ("Several environments, and both habits of ending episodes.", episodes),
    "out_of_step": ("Environments that take turns, come and leave.", out_of_step),
    "chosen_actions": ("Actions that the client chose.", chosen_actions),
    "environment_parameters": ("Parameters of environments, set by the server.", environment_parameters),
    "spaces": ("Spaces, leaf order and element types.", spaces),
    "control": ("Everything that is not an episode.", control),
    "client_mistakes": (
        "What a server must refuse, and with which code.",
        lambda: chain(client_mistakes(), idle_mistakes(), chosen_mistakes()),
    ),
    "server_mistakes": (
        "What a client must notice.",
        lambda: chain(server_mistakes(), unasked_welcome(), parameter_mistakes()),
    ),
}


# The text above the state table describes these messages.
IN_MANY_STATES = (Ping, Pong, Bye, Error, TrainingFinished)


def vector_files() -> dict[str, str]:
    """Return the content of each file by its name."""
    files = {}
    for name, (title, recordings) in FILES.items():
        tree = {"title": title, "conversations": [recording.as_json() for recording in recordings()]}
        files[f"{name}.json"] = json.dumps(tree, indent=1, ensure_ascii=True) + "\n"
    return files


def with_generated_parts(text: str) -> str:
    """Return the specification with a new state table, which is between two marks."""
    pattern = re.compile(r"(<!-- generated: state table -->\n).*?(\n<!-- end -->)", re.DOTALL)
    text, count = pattern.subn(lambda marks: marks[1] + state_table() + marks[2], text)
    assert count == 1, "the mark of the generated state table is missing"
    return text


def state_table() -> str:
    """Return the table in Markdown, for protocol/RLX.md: messages that each side may send, and the next states.

    It leaves out IN_MANY_STATES.
    """
    lines = ["| state | the client may send | the server may send |", "|---|---|---|"]
    for state in _OPEN:
        cells = []
        for sender in Sender:
            after = {
                kind.__name__: TRANSITIONS[state, sender, kind]
                for kind in allowed(state, sender)
                if kind not in IN_MANY_STATES
            }
            cells.append(", ".join(k if a is state else f"{k} → `{a.value}`" for k, a in after.items()))
        lines.append(f"| `{state.value}` | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def main() -> None:
    for name, text in vector_files().items():
        (FOLDER / name).write_text(text, "utf-8")
    SPECIFICATION.write_text(with_generated_parts(SPECIFICATION.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
