"""Run the parts of a benchmark in turn and combine their results."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaax.cli.bench import results
from relaax.cli.bench.programs import EmulatorForm, emulator_forms, with_network
from relaax.cli.bench.service import MeasuredService, Window
from relaax.cli.options import cores
from relaax.cli.run.plan import Plan

ROUNDS = 3
STARTS = 5
CROWD_PER_CORE = 4
"""Connections per core, with one environment each. More of them do not raise the cost of a step
(relaax docs results/growth)."""
PACED_RATE = 30.0
"""Steps per second of each environment in the measurement at a fixed rate."""
MAX_CROWD = 32
"""Maximum number of these connections. Each needs a program, which imports an emulator."""
MIN_WINDOW_SECONDS = 1.0
"""Minimum seconds of a window in which emulator forms are compared."""
EXCHANGE_SECONDS = 10.0
"""Maximum seconds of the measurement of an exchange."""
MEMORY_SECONDS = 300.0
"""Maximum seconds to wait until workers have made their updates."""


@dataclass(slots=True)
class Benchmark:
    """All parts of a benchmark. `report` receives each result, `show_activity` the start of each part.

    `seconds`: measured time of the emulator and of training, in ROUNDS alternating windows each. `updates`: updates of
    each worker before its memory is measured.
    """

    plan: Plan
    folder: Path
    seconds: float
    updates: int
    report: Callable[[str], None]
    show_activity: Callable[[str], None]
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def _window(self) -> float:
        return self.seconds / ROUNDS

    def run(self) -> dict[str, Any]:
        """Return all figures, windows and facts. Raises StartError."""
        self.show_activity("measuring the load of the machine")
        facts = results.describe_machine()
        self.result["machine"] = facts
        self.result["warnings"] = results.busy_machine(facts)
        for warning in self.result["warnings"]:
            self.report(f"warning: {warning}")
        form = self._fastest_form()
        self.show_activity("starting the servers")
        with MeasuredService(self.plan, self.folder) as service:
            self._rounds(service, form)
            self._single_client(service)
            self._crowd(service)
            self.show_activity("a worker's exchange with the parameter server")
            service.stop()
            self._exchange(service)
            self.show_activity("a worker's exchange with replay servers")
            self._replay(service)
        return self.result

    def _fastest_form(self) -> EmulatorForm:
        """Return the form of the bare environments that is fastest in a short window."""
        found = {}
        choices = emulator_forms(self.plan)
        for form in choices:
            self.show_activity(f"the environments alone: {form.name}")
            found[form.name] = round(
                form.window(max(self._window / 2, MIN_WINDOW_SECONDS), self.folder / "emulator"), 1
            )
            self.report(f"the environments alone, {form.name}: {found[form.name]:,.0f} steps/s")
        best = max(choices, key=lambda form: found[form.name])
        self.result |= {"emulator_forms": found, "emulator_form": best.name}
        return best

    def _rounds(self, service: MeasuredService, form: EmulatorForm) -> None:
        """Measure windows of each kind in turn, so that a temporary slowdown of the machine affects all kinds.

        With a replay memory, learners compute at their own pace, so the environments are not measured with the network.
        """
        alone: list[float] = []
        computed: list[float] = []
        trained: list[Window] = []
        network = None if service.learns_separately else with_network(self.plan, service.configuration)
        for number in range(1, ROUNDS + 1):
            place = f"window {number} of {ROUNDS}"
            self.show_activity(f"the environments alone, {place}")
            alone.append(round(form.window(self._window, self.folder / "emulator"), 1))
            if network is not None:
                self.show_activity(f"the environments and the network, {place}")
                computed.append(round(network.window(self._window, self.folder / "network"), 1))
            last = number == ROUNDS
            self.show_activity(f"training, {place}" + (f", then until {self.updates:,} updates" if last else ""))
            trained.append(service.window(self._window, self.updates if last else 0, MEMORY_SECONDS))
            found = {"emulator_only": alone[-1], "training": trained[-1].steps_per_second}
            found |= {"with_network": computed[-1]} if computed else {}
            self.report(f"{place}: " + ", ".join(f"{name} {speed:,.0f}" for name, speed in found.items()))
        windows = {"emulator_only": alone, "training": [round(window.steps_per_second, 1) for window in trained]}
        ratios = {"training_over_emulator": results.ratios(windows["training"], alone)}
        if computed:
            windows["with_network"] = computed
            ratios["efficiency"] = results.ratios(windows["training"], computed)
            self.result["parts_us"] = results.parts_us(windows, [window.processor for window in trained])
        pushes, discarded = sum(window.pushes for window in trained), sum(window.discarded for window in trained)
        memory = trained[-1].memory
        assert memory is not None
        self.result |= {
            **{f"{key}_steps_per_second": results.median(values) for key, values in windows.items()},
            **{key: results.median(values, 4) for key, values in ratios.items()},
            "windows": {**windows, **ratios},
            "window_seconds": round(self._window, 3),
            "training_discarded_share": round(discarded / pushes, 4) if pushes else None,
            "processor_training": trained[-1].processor.as_json(),
            "worker_memory_mb": memory.as_json(),
        }
        self.result["warnings"] += results.unsteady_windows(windows)
        if memory.updates < self.updates:
            self.result["warnings"].append(
                f"workers had made {memory.updates:,} updates of {self.updates:,} when their memory was measured"
            )

    def _single_client(self, service: MeasuredService) -> None:
        self.show_activity("latency of an action, one environment")
        act_ms, first, use = service.latencies(self._window)
        starts = [first]
        for number in range(1, STARTS):
            self.show_activity(f"start of a worker, {number} of {STARTS - 1}")
            starts.append(service.start_seconds())
        self.result |= {
            "processor_single": use.as_json(),
            "act_latency_ms": results.p50_p99(act_ms),
            "worker_start_s": round(statistics.median(starts), 3),
            "worker_starts_s": [round(value, 3) for value in starts],
        }
        self.report(
            f"an action: {results.format_figure('act_latency_ms', self.result['act_latency_ms'])}; "
            f"a worker starts in {self.result['worker_start_s']:.2f} s"
        )

    def _crowd(self, service: MeasuredService) -> None:
        """Measure many connections of one environment, whose processes compete for the caches."""
        connections = CROWD_PER_CORE * cores()
        if connections > MAX_CROWD:
            return
        title = f"{connections} connections of one environment"
        for key, rate in (("processor_crowd", None), ("processor_paced", PACED_RATE)):
            self.show_activity(title if rate is None else f"{title}, limited to {rate:g} steps/s each")
            window = service.crowd(connections, self._window, rate)
            act = {"act_ms": results.p50_p99(window.act_ms)} if window.act_ms else {}
            self.result[key] = window.processor.as_json() | act
            if rate is None:
                self.report(f"{title}: {window.steps_per_second:,.0f} steps/s")

    def _exchange(self, service: MeasuredService) -> None:
        times = service.exchange(min(self._window, EXCHANGE_SECONDS))
        shared = times["shared_memory_ms"]  # empty if server and worker do not share memory
        if shared:
            self.result["shared_memory_ms"] = results.p50_p99(shared)
        configured = self.plan.configuration.rlx_server.bridge
        self.result |= {
            "bridge": configured if configured != "auto" else "shared_memory" if shared else "grpc",
            "sync_ms": results.p50_p99(times["sync_ms"]),
            "parameters": times["parameters"],
        }

    def _replay(self, service: MeasuredService) -> None:
        """Measure the replay servers, if there are any. They have no other client at this time."""
        found = service.replay_exchange(min(self._window, EXCHANGE_SECONDS))
        if found is None:
            return
        for figure, value in found.items():
            if isinstance(value, list):
                value = results.p50_p99(value)
            self.result[f"replay_{figure}"] = round(value, 1) if isinstance(value, float) else value
