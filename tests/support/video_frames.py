"""Decode videos with the program ffmpeg."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import numpy.typing as npt


def read_video(path: Path) -> tuple[npt.NDArray[Any], float]:
    """Return all images, uint8 [T, H, W, 3], and the frames per second."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    log = done.stderr.decode()
    size, fps = re.search(r"Video: .* (\d+x\d+)[, ]", log), re.search(r"([\d.]+) fps", log)
    assert size and fps, log
    width, height = map(int, size[1].split("x"))
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3), float(fps[1])
