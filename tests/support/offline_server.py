"""The command relaax-rlx-server, whole, but that its workers reach no parameter server."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax.server.rlx_server import main
from support.offline_bridge import OfflineBridge

if __name__ == "__main__":
    main._bridge = lambda settings: OfflineBridge()
    main.main()
