"""The results of the comparison, each the median of several rounds with its spread."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.peers.closed_loop import ClosedLoop
from benchmarks.peers.goodput import RESPONSE_TIME_MS, Probe, best_rate_per_s
from benchmarks.peers.models import HOSTED, PERCENTILE

#: The real models whose goodput is measured; it is always measured on the emulated device.
GOODPUT_MODELS = ("mlp", "minilm")


@dataclass(frozen=True)
class Spread:
    """The median of a figure over the rounds, and its least and greatest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Return the spread of `values`, at least one."""
        ordered = sorted(values)
        return cls(median(ordered), ordered[0], ordered[-1])

    def text(self, form: str = ",.0f") -> str:
        """Return the median, and the extremes in brackets if there are several rounds."""
        if self.low == self.high:
            return f"{self.median:{form}}"
        return f"{self.median:{form}} [{self.low:{form}}-{self.high:{form}}]"


@dataclass
class Results:
    """All results by server, and the reason for each that is missing.

    Attributes
    ----------
    possible_per_s : float
        The highest rate within the SLA on the emulated device, by the batching model.
    closed : dict of str to dict of str to list of ClosedLoop
        By server and model: every round's runs, in order.
    probes : dict of str to list of Probe
        By server: the search of the goodput on the emulated device.
    model_probes : dict of str to dict of str to list of list of Probe
        By server and model: the search of each round.
    unavailable : dict of str to str
        By server: why something was not measured.
    """

    possible_per_s: float
    closed: dict[str, dict[str, list[ClosedLoop]]] = field(default_factory=dict)
    probes: dict[str, list[Probe]] = field(default_factory=dict)
    model_probes: dict[str, dict[str, list[list[Probe]]]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)

    def cells(self) -> dict[tuple[str, str, int], list[ClosedLoop]]:
        """Return the rounds' runs by server, model and number of connections."""
        cells: dict[tuple[str, str, int], list[ClosedLoop]] = {}
        for name, models in self.closed.items():
            for model, runs in models.items():
                for run in runs:
                    cells.setdefault((name, model, run.connections), []).append(run)
        return cells

    def throughput(self, model: str = "mlp", connections: int = 64) -> dict[str, Spread]:
        """Return the requests per second of each server."""
        return {
            name: Spread.of(run.requests_per_s for run in runs)
            for (name, of_model, of_connections), runs in self.cells().items()
            if (of_model, of_connections) == (model, connections)
        }

    def goodput_fraction(self) -> dict[str, float]:
        """Return each server's goodput, relative to what the batching model says is possible."""
        return {
            name: best_rate_per_s(probes) / self.possible_per_s
            for name, probes in self.probes.items()
        }

    def model_goodput(self) -> dict[str, dict[str, Spread]]:
        """Return the goodput in requests per second of each server, by real model and server."""
        rates: dict[str, dict[str, Spread]] = {}
        for name, models in self.model_probes.items():
            for model, rounds in models.items():
                spread = Spread.of(best_rate_per_s(probes) for probes in rounds)
                rates.setdefault(model, {})[name] = spread
        return rates

    def wrong_by_server(self) -> dict[str, int]:
        """Count the wrong answers of each server."""
        wrong = dict.fromkeys([*self.closed, *self.probes], 0)
        for name, models in self.closed.items():
            wrong[name] += sum(run.wrong for runs in models.values() for run in runs)
        for name, probes in self.probes.items():
            wrong[name] += sum(probe.wrong for probe in probes)
        for name, searches in self.model_probes.items():
            wrong[name] += sum(
                probe.wrong for rounds in searches.values() for probes in rounds for probe in probes
            )
        return wrong

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        rates = self.throughput()
        ours = rates.get("sojourn")
        return {
            "requests_per_s": {name: rate.median for name, rate in rates.items()},
            "requests_per_s_spread": {name: asdict(rate) for name, rate in rates.items()},
            "sojourn_to": {name: ours.median / rate.median for name, rate in rates.items()}
            if ours
            else {},
            "goodput_fraction": self.goodput_fraction(),
            "goodput_per_s": {
                model: {name: asdict(rate) for name, rate in servers.items()}
                for model, servers in self.model_goodput().items()
            },
            "wrong_answers": sum(self.wrong_by_server().values()),
            "wrong_by_server": self.wrong_by_server(),
            "unavailable": self.unavailable,
            "sla": {
                "response_time_ms": {
                    name: HOSTED[name].response_time_ms for name in (*GOODPUT_MODELS, "emulated")
                },
                "percentile": PERCENTILE,
            },
            "possible_per_s": self.possible_per_s,
            "closed_loop": {
                name: {model: [asdict(run) for run in runs] for model, runs in models.items()}
                for name, models in self.closed.items()
            },
            "goodput": {
                name: [asdict(probe) for probe in probes] for name, probes in self.probes.items()
            },
            "cores": os.cpu_count(),
        }


def median_cpu_us(runs: Sequence[ClosedLoop]) -> dict[str, float]:
    """Return the median CPU time per request of each part of a server, in microseconds."""
    parts = sorted({part for run in runs for part in run.cpu_us})
    return {part: median(run.cpu_us.get(part, 0.0) for run in runs) for part in parts}


def _cpu_text(cpu_us: Mapping[str, float]) -> str:
    return " + ".join(f"{value:.0f} {part}" for part, value in cpu_us.items())


def print_results(results: Results) -> None:
    """Print all tables for people."""
    _print_closed(results)
    _print_goodput(results)
    for name, reason in results.unavailable.items():
        print(f"{name} was not measured: {reason}")


def _print_closed(results: Results) -> None:
    print(
        f"{'server':16}{'model':>9}{'conns':>6}{'requests/s':>26}{'p50 ms':>9}{'p99 ms':>22}",
        end="",
    )
    print(f"{'failed':>8}{'checked':>9}{'wrong':>6}{'others':>8}{'Sojourn is':>12}  CPU µs/request")
    for (name, model, connections), runs in results.cells().items():

        def over(figure: Callable[[ClosedLoop], float], runs: list[ClosedLoop] = runs) -> Spread:
            return Spread.of(map(figure, runs))

        rate = over(lambda run: run.requests_per_s)
        ours = results.throughput(model, connections).get("sojourn")
        ratio = ours.median / rate.median if ours and rate.median else float("nan")
        print(
            f"{name:16}{model:>9}{connections:6}{rate.text():>26}"
            f"{over(lambda run: run.p50_ms).median:9.1f}"
            f"{over(lambda run: run.p99_ms).text('.1f'):>22}"
            f"{sum(run.failed for run in runs):8}{sum(run.checked for run in runs):9}"
            f"{sum(run.wrong for run in runs):6}{over(lambda run: run.others_cores).high:8.2f}"
            f"{ratio:11.2f}×  {_cpu_text(median_cpu_us(runs))}"
        )


def _print_goodput(results: Results) -> None:
    print(
        f"\n{PERCENTILE:g}% within {RESPONSE_TIME_MS:g} ms on the emulated device; the batching "
        f"model says {results.possible_per_s:.0f}/s is possible"
    )
    for name, fraction in results.goodput_fraction().items():
        print(f"{name:16}{fraction * results.possible_per_s:9.0f}/s{fraction:9.1%}")
    for model, rates in results.model_goodput().items():
        print(f"\n{PERCENTILE:g}% within {HOSTED[model].response_time_ms:g} ms on {model}")
        for name, rate in rates.items():
            print(f"{name:16}{rate.text():>26}/s")
