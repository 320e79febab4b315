"""An environment for `relaax run` that is a program in any language.

Arguments: ADDRESS NAME ENVIRONMENTS --seed S FOLDER COMMAND ...
The command replaces this process. It runs in the folder, with the address, --environments and --seed as additional
arguments.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    address, _, environments, _, seed, folder, *command = sys.argv[1:]
    os.chdir(folder)
    os.execvp(command[0], [*command, address, "--environments", environments, "--seed", seed])


if __name__ == "__main__":
    main()
