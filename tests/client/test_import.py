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


def test_client_import_loads_no_server_libraries():
    loaded = python("import sys, relaax.client; print(*sys.modules)").split()
    assert "relaax.client" in loaded
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)


SHARE = """
import time
start = time.process_time()
import numpy, google.protobuf.json_format
libraries = time.process_time()
import relaax.client
print((time.process_time() - libraries) / (libraries - start))
"""


def test_client_import_is_faster_than_its_libraries():
    """The import takes less time than that of NumPy and protobuf."""
    # The time is relative to that of the libraries, as processor speeds vary. One fast run of five
    # is enough, because other work may slow down the others.
    assert any(float(python(SHARE)) < 1 for _ in range(5))
