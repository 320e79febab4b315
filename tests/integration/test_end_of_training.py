"""max_global_step ends all processes, and the trained model is saved."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from relaax.bundled import bundled_folder
from support.processes import Processes
from support.service import Service

CLIENT = bundled_folder("environments") / "OpenAI_Gym" / "main.py"


def test_all_processes_end_with_exit_code_0(processes: Processes, tmp_path: Path) -> None:
    service = Service(processes, tmp_path, max_global_step=3000)  # enough steps for the later client to take part
    clients = [processes.start(sys.executable, CLIENT, service.address, "CartPole-v1", "2") for _ in range(2)]
    for client in clients:
        assert client.wait(150) == 0, client.report()
        assert any("training finished" in line for line in client.lines), client.report()
    assert service.rlx_server.wait(60) == 0
    assert service.parameter_server.wait(60) == 0
    for running in (service.rlx_server, service.parameter_server, *clients):
        assert not running.children()
        assert "Traceback" not in running.stderr
    assert len(list((tmp_path / "metrics").glob("events.out.tfevents.*"))) == 1

    manifests = [json.loads(path.read_text()) for path in (tmp_path / "checkpoints").rglob("manifest.json")]
    assert max(manifest["global_step"] for manifest in manifests) >= 3000
