"""A small training with checkpoints, for programs that kill a training at each file that it writes.

    crash_training.py FOLDER

It makes four steps, saves a checkpoint after each, and writes the parameters to FOLDER/learned.bin. After a restart, it
resumes from the last checkpoint. `ckpt-chaos` (`pip install ckpt-chaos`; the project does not need it) kills it at each
file and compares the final parameters:

    ckpt-chaos run --step-regex 'resumed from step (\\d+)' --result-file '{out}/learned.bin' --max-points 200 \\
        --modes before,torn -- python tests/adversity/crash_training.py {out}

With `--modes unsynced`, data that was not synced is lost. The message "plan drift" appears for each temporary file,
because its name differs from that of the first run. The tests in `test_crash_consistency.py` also kill within writes
and lose names of directories.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from relaax.checkpoint import CheckpointManager, Lease, LocalStore, highest_fence

STEPS = 4


def train(folder: Path) -> None:
    """Train and save checkpoints as a parameter server with two shards does."""
    directory = folder / "checkpoints"
    store = LocalStore(directory)
    lease = Lease(LocalStore(directory))
    lease.acquire(highest_fence(store))
    manager = CheckpointManager(store, keep=2, keep_best=1, lease=lease)
    found = manager.restore()
    manager.clean()
    step, learned = 0, np.zeros(1000, np.float32)
    if found is not None:
        step = found.manifest["global_step"]
        learned = np.concatenate([found.parts[name]["parameters"] for name in ("shard-0", "shard-1")]).astype(
            np.float32
        )
    print(f"resumed from step {step}")
    while step < STEPS:
        step += 1
        learned = np.float32(0.9) * learned + np.random.default_rng(step).standard_normal(1000).astype(np.float32)
        parts = {"shard-0": {"parameters": learned[:500]}, "shard-1": {"parameters": learned[500:]}}
        manager.save(step, parts, {"mean_return": float(step == 1)})
    lease.release()
    (folder / "learned.bin").write_bytes(learned.tobytes())


if __name__ == "__main__":
    train(Path(sys.argv[1]))
