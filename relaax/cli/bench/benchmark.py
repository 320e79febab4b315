"""Run the parts of a benchmark in turn and combine their results."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaax.cli.bench import results
from relaax.cli.bench.programs import Form, forms
from relaax.cli.bench.service import MeasuredService, Window
from relaax.cli.options import cores
from relaax.cli.run.plan import Plan

ROUNDS = 3
STARTS = 5
CROWD = 4
"""Connections per core, of one environment each, from which a step costs as much as with more
(relaax docs results/growth)."""
PACE = 30.0
"""Steps per second of each environment that is held to a rate."""
LARGEST_CROWD = 32
"""Maximum number of these: each has a program of its own, which imports an emulator."""
LEAST_SECONDS = 1.0
"""Minimum length of a window in which forms are compared."""
EXCHANGE_SECONDS = 10.0
"""Maximum length of the measurement of an exchange."""
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
        facts = results.describe_machine()
        self.result["machine"] = facts
        self.result["warnings"] = results.busy_machine(facts)
        for warning in self.result["warnings"]:
            self.say(f"warning: {warning}")
        form = self._fastest_form()
        self.begin("starting the servers")
        with MeasuredService(self.plan, self.folder) as service:
            self._rounds(service, form)
            self._single_client(service)
            self._crowd(service)
            self.begin("a worker's exchange with the parameter server")
            service.stop()
            self._exchange(service)
            self.begin("a worker's exchange with replay servers")
            self._replay(service)
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
        self.result |= {"emulator_forms": found, "emulator_form": best.name}
        return best

    def _rounds(self, service: MeasuredService, form: Form) -> None:
        """Measure windows of each kind in turn, so that a temporary slowdown of the machine affects all kinds."""
        alone: list[float] = []
        trained: list[Window] = []
        for number in range(1, ROUNDS + 1):
            place = f"window {number} of {ROUNDS}"
            self.begin(f"the environments alone, {place}")
            alone.append(round(form.window(self._window, self.folder / "emulator"), 1))
            last = number == ROUNDS
            self.begin(f"training, {place}" + (f", then on to {self.updates:,} updates" if last else ""))
            trained.append(service.window(self._window, self.updates if last else 0, MEMORY_SECONDS))
            self.say(f"{place}: emulator_only {alone[-1]:,.0f}, training {trained[-1].steps_per_second:,.0f}")
        windows = {"emulator_only": alone, "training": [round(window.steps_per_second, 1) for window in trained]}
        ratios = results.ratios(windows["training"], alone)
        pushes, discarded = sum(window.pushes for window in trained), sum(window.discarded for window in trained)
        memory = trained[-1].memory
        assert memory is not None
        self.result |= {
            **{f"{key}_steps_per_second": results.median(values) for key, values in windows.items()},
            "training_over_emulator": results.median(ratios, 4),
            "windows": {**windows, "training_over_emulator": ratios},
            "window_seconds": round(self._window, 3),
            "training_discarded_share": round(discarded / pushes, 4) if pushes else None,
            "processor_training": trained[-1].processor.as_json(),
            "worker_memory_mb": memory.as_json(),
        }
        self.result["warnings"] += results.unsteady(windows)
        if memory.updates < self.updates:
            self.result["warnings"].append(
                f"workers had made {memory.updates:,} updates of {self.updates:,} when their memory was measured"
            )

    def _single_client(self, service: MeasuredService) -> None:
        self.begin("how long an action takes, one environment")
        act_ms, first, use = service.latencies(self._window)
        starts = [first]
        for number in range(1, STARTS):
            self.begin(f"how long a worker takes to start, {number} of {STARTS - 1}")
            starts.append(service.start_seconds())
        self.result |= {
            "processor_single": use.as_json(),
            "act_latency_ms": results.p50_p99(act_ms),
            "worker_start_s": round(statistics.median(starts), 3),
            "worker_starts_s": [round(value, 3) for value in starts],
        }
        self.say(
            f"an action: {results.shown('act_latency_ms', self.result['act_latency_ms'])}; "
            f"a worker starts in {self.result['worker_start_s']:.2f} s"
        )

    def _crowd(self, service: MeasuredService) -> None:
        """Measure many connections of one environment: what each then costs, as the caches are others' by turns."""
        connections = CROWD * cores()
        if connections > LARGEST_CROWD:
            return
        what = f"{connections} connections of one environment"
        for key, rate in (("processor_crowd", None), ("processor_paced", PACE)):
            self.begin(what if rate is None else f"{what}, held to {rate:g} steps/s each")
            window = service.crowd(connections, self._window, rate)
            act = {"act_ms": results.p50_p99(window.act_ms)} if window.act_ms else {}
            self.result[key] = window.processor.as_json() | act
            if rate is None:
                self.say(f"{what}: {window.steps_per_second:,.0f} steps/s")

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
        """Measure the replay servers, which nobody else uses now, if there are any."""
        found = service.replay_exchange(min(self._window, EXCHANGE_SECONDS))
        if found is None:
            return
        for figure, value in found.items():
            if isinstance(value, list):
                value = results.p50_p99(value)
            self.result[f"replay_{figure}"] = round(value, 1) if isinstance(value, float) else value
