from __future__ import annotations

import subprocess
import sys

import relaax.rlx

HEAVY = (
    "tensorflow",
    "grpc",
    "pydantic",
    "boto3",
    "gymnasium",
    "socket",
    "ssl",
    "asyncio",
    "google.protobuf.json_format",
)


def test_import_loads_no_heavy_modules() -> None:
    code = f"import sys, relaax.rlx; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exported_name_exists() -> None:
    assert len(set(relaax.rlx.__all__)) == len(relaax.rlx.__all__)
    for name in relaax.rlx.__all__:
        assert getattr(relaax.rlx, name) is not None
