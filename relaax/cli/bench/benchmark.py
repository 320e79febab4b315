"""Run the parts of a benchmark in turn and combine their results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaax.cli.bench import machine, results
from relaax.cli.bench.client_overhead import client_overhead
from relaax.cli.bench.emulator import Form, ale_vector_form, cores, forms
from relaax.cli.bench.exchange import exchange, replay_exchange
from relaax.cli.bench.service import MeasuredService, Window
from relaax.cli.run.plan import Plan
from relaax.hosting.fingerprint import parse_fingerprint

ROUNDS = 3
STARTS = 5
CROWD = 4
"""Connections per core, of one environment each, from which a step costs as much as with more (docs/results/growth.md).
"""
PACE = 30.0
"""Steps per second of each environment that is held to a rate."""
LARGEST_CROWD = 32
"""Maximum number of these: each has a program of its own, which imports an emulator."""
LEAST_SECONDS = 1.0
"""Minimum length of a window in which forms are compared."""
MEMORY_SECONDS = 300.0
"""Maximum time to wait until workers have made their updates."""


@dataclass(slots=True)
class Benchmark:
    """Run every part. `say` receives each result, `begin` each activity.

    `seconds`: how long the emulator and training are each measured, in ROUNDS alternating windows. `updates`: updates
    of each worker before its memory is measured.
    """

    plan: Plan
    folder: Path
    seconds: float
    updates: int
    say: Callable[[str], None]
    begin: Callable[[str], None]
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def _window(self) -> float:
        return self.seconds / ROUNDS

    def run(self) -> dict[str, Any]:
        """Return all figures, windows and facts. Raises StartError."""
        self.begin("examining the machine")
        facts = machine.describe()
        self.result["machine"] = facts
        self.result["warnings"] = machine.warnings(facts)
        for warning in self.result["warnings"]:
            self.say(f"warning: {warning}")
        form = self._fastest_form()
        self.begin("starting the servers")
        with MeasuredService(self.plan, self.folder) as service:
            self._rounds(service, form)
            self._single_client(service)
            self._crowd(service)
            self.begin("a worker's exchange with the parameter server, compared to bare gRPC")
            service.stop()
            self._exchange(service)
            self._replay(service)
            fingerprint, _ = service.fingerprint()
        self._client(fingerprint)
        return self.result

    def _fastest_form(self) -> Form:
        """Return the form of the bare environments that is fastest in a short window."""
        found = {}
        choices = forms(self.plan)
        for form in choices:
            self.begin(f"the environments alone: {form.name}")
            found[form.name] = round(form.window(max(self._window / 2, LEAST_SECONDS), self.folder / "emulator"), 1)
            self.say(f"the environments alone, {form.name}: {found[form.name]:,.0f} steps/s")
        best = max(choices, key=lambda form: found[form.name])
        self.result["emulator_forms"] = found
        self.result["emulator_form"] = best.name
        return best

    def _rounds(self, service: MeasuredService, form: Form) -> None:
        """Measure windows of each kind in turn, so that a temporary slowdown of the machine affects all kinds."""
        ale = ale_vector_form(self.plan)
        windows: dict[str, list[float]] = {"emulator_only": [], "ale_vector_env": [], "training": []}
        trained: list[Window] = []
        for number in range(1, ROUNDS + 1):
            place = f"window {number} of {ROUNDS}"
            self.begin(f"the environments alone, {place}")
            windows["emulator_only"].append(form.window(self._window, self.folder / "emulator"))
            if ale is not None:
                self.begin(f"{ale.name}, {place}")
                windows["ale_vector_env"].append(ale.window(self._window, self.folder / "emulator"))
            last = number == ROUNDS
            self.begin(f"training, {place}" + (f", then on to {self.updates:,} updates" if last else ""))
            trained.append(service.window(self._window, self.updates if last else 0, MEMORY_SECONDS))
            windows["training"].append(trained[-1].steps_per_second)
            self.say(f"{place}: " + ", ".join(f"{key} {found[-1]:,.0f}" for key, found in windows.items() if found))
        self._speeds({key: [round(value, 1) for value in found] for key, found in windows.items() if found})
        pushes, discarded = sum(window.pushes for window in trained), sum(window.discarded for window in trained)
        self.result["training_discarded_share"] = round(discarded / pushes, 4) if pushes else None
        self.result["processor_training"] = trained[-1].processor.as_json()
        memory = trained[-1].memory
        assert memory is not None
        self.result["worker_memory_mb"] = memory.as_json()
        if memory.updates < self.updates:
            self.result["warnings"].append(
                f"workers had made {memory.updates:,} updates of {self.updates:,} when their memory was measured"
            )

    def _speeds(self, windows: dict[str, list[float]]) -> None:
        for key, values in windows.items():
            self.result[f"{key}_steps_per_second"] = results.median(values)
        shares = {"training_over_emulator": results.ratios(windows["training"], windows["emulator_only"])}
        if "ale_vector_env" in windows:
            shares["emulator_over_ale_vector_env"] = results.ratios(windows["emulator_only"], windows["ale_vector_env"])
        for key, values in shares.items():
            self.result[key] = results.median(values, 4)
        self.result["windows"] = windows | shares
        self.result["window_seconds"] = round(self._window, 3)
        self.result["warnings"] += results.unsteady(windows)

    def _single_client(self, service: MeasuredService) -> None:
        self.begin("how long an action takes, one environment")
        act_ms, first, use = service.latencies(self._window)
        self.result["processor_single"] = use.as_json()
        self.result["act_latency_ms"] = results.p50_p99(act_ms)
        starts = [first]
        for number in range(1, STARTS):
            self.begin(f"how long a worker takes to start, {number} of {STARTS - 1}")
            starts.append(service.start_seconds())
        self.result["worker_start_s"] = round(statistics.median(starts), 3)
        self.result["worker_starts_s"] = [round(value, 3) for value in starts]
        self.say(
            f"an action: {results.shown('act_latency_ms', self.result['act_latency_ms'])}; "
            f"a worker starts in {self.result['worker_start_s']:.2f} s"
        )

    def _crowd(self, service: MeasuredService) -> None:
        """Measure many connections of one environment: what each then costs, as the caches are others' by turns."""
        connections = CROWD * cores()
        if connections > LARGEST_CROWD:
            return
        self.begin(f"{connections} connections of one environment")
        window = service.crowd(connections, self._window)
        self.result["processor_crowd"] = _crowd_as_json(window)
        self.say(f"{connections} connections of one environment: {window.steps_per_second:,.0f} steps/s")
        self.begin(f"{connections} connections of one environment, held to {PACE:g} steps/s each")
        window = service.crowd(connections, self._window, PACE)
        self.result["processor_paced"] = _crowd_as_json(window)

    def _client(self, fingerprint: dict[str, Any]) -> None:
        """Measure the client without environments and network, on the spaces of the trained model."""
        self.begin("the client alone")
        _, observations, actions = parse_fingerprint(json.dumps(fingerprint))
        found = client_overhead(observations, actions, self.plan.run.envs_per_client, self.folder)
        self.result["client_us_per_step"] = found["us_per_step"]
        self.result["client_us_per_message"] = found["us_per_message"]

    def _replay(self, service: MeasuredService) -> None:
        """Measure the replay servers, which nobody else uses now, if there are any."""
        self.begin("a worker's exchange with replay servers")
        found = replay_exchange(service, self.folder, seconds=min(self._window, 10.0))
        if found is None:
            return
        for figure in ("inserts_per_second", "samples_per_second"):
            self.result[f"replay_{figure}"] = round(found[figure], 1)
        for figure in ("insert_ms", "sample_ms"):
            self.result[f"replay_{figure}"] = results.p50_p99(found[figure])
        for figure in ("inserted_at_once", "sampled_at_once"):
            self.result[f"replay_{figure}"] = found[figure]

    def _exchange(self, service: MeasuredService) -> None:
        times = exchange(service, self.folder, seconds=min(self._window, 10.0))
        sync, raw = (results.p50_p99(times[key]) for key in ("sync_ms", "raw_grpc_ms"))
        shared = times["shared_memory_ms"]  # empty if server and worker do not share memory
        if shared:
            self.result["shared_memory_ms"] = results.p50_p99(shared)
        configured = self.plan.configuration.rlx_server.bridge
        self.result["bridge"] = configured if configured != "auto" else "shared_memory" if shared else "grpc"
        self.result |= {
            "sync_ms": sync,
            "raw_grpc_ms": raw,
            "sync_over_raw_grpc": round(sync["p50"] / raw["p50"], 3),
            **{key: times[key] for key in ("parameters", "request_bytes", "response_bytes")},
        }


def _crowd_as_json(window: Window) -> dict[str, Any]:
    """Return what a crowd took of the processor, and how long its actions took, if there were any."""
    act = {"act_ms": results.p50_p99(window.act_ms)} if window.act_ms else {}
    return window.processor.as_json() | act
