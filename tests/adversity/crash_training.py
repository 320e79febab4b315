"""A small training with checkpoints, for programs that kill trainings at each file that they write.

    crash_training.py FOLDER

It makes four steps, saves a checkpoint after each, and writes what it has learned to FOLDER/learned.bin; begun again,
it goes on from the last checkpoint. `ckpt-chaos`, which has to be installed for it (`pip install ckpt-chaos`; the
project does not need it), kills it at each file and compares what it has learned in the end:

    ckpt-chaos run --step-regex 'resumed from step (\\d+)' --result-file '{out}/learned.bin' --max-points 200 \\
        --modes before,torn -- python tests/adversity/crash_training.py {out}

With `--modes unsynced` it loses what was not synced. It says "plan drift" where the name of a temporary file is another
than that of the first run, which is so for each. Tests that kill at each operation, also within a write, and that lose
names of directories too, are in `test_crash_consistency.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from relaax.checkpoint import CheckpointManager, Lease, LocalStore, highest_fence

STEPS = 4


def train(folder: Path) -> None:
    """As a parameter server of two shards keeps its checkpoints."""
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
