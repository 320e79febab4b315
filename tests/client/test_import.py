import subprocess
import sys
from pathlib import Path

import relaax

ROOT = Path(relaax.__file__).parent.parent
HEAVY = ("tensorflow", "grpc", "boto3", "pydantic", "gymnasium", "ale_py", "yaml", "rich", "typer", "websockets")


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    ).stdout


def test_nothing_of_the_servers_is_loaded():
    loaded = python("import sys, relaax.client; print(*sys.modules)").split()
    assert "relaax.client" in loaded
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)


SHARE = """
import time
begun = time.process_time()
import numpy, google.protobuf.json_format
libraries = time.process_time()
import relaax.client
print((time.process_time() - libraries) / (libraries - begun))
"""


def test_it_is_quick():
    """It takes less time than the two libraries that it stands on."""
    # In units of theirs, as processors differ and change their pace; the best of up to five: other work must not count.
    assert any(float(python(SHARE)) < 1 for _ in range(5))
