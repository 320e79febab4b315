"""An environment for `relaax run` that is a program in any language.

Its words: ADDRESS NAME ENVIRONMENTS --seed S FOLDER COMMAND ...
The command is the program's, run in the folder; it gets the address, --environments and --seed, and takes this
process's place.
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
