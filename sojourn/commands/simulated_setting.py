"""What `sojourn simulate` has simulated, in words, for its report."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoscaler.simulator.autoscalers.registry import Choice
from autoscaler.simulator.reporting.comparison import percent
from autoscaler.simulator.scenario import Scenario
from policy.front import FrontCosts
from policy.profile import Profile
from sojourn.output import command_line

if TYPE_CHECKING:
    from autoscaler.simulator.reporting.report import Setting


def load_in_words(trace_file: Path | None, scale: float, arrival_rate: float | None) -> str:
    """Return what was sent: a trace, or Poisson arrivals."""
    if trace_file is None:
        return f"Poisson arrivals, {arrival_rate:g} requests/s"
    return trace_file.name + (f" \N{MULTIPLICATION SIGN} {scale:g}" if scale != 1 else "")


def setting_of(
    context: click.Context, scenario: Scenario, choices: Sequence[Choice], load: str
) -> "Setting":
    """Describe what was simulated, and the command that repeats it.

    Parameters
    ----------
    context : click.Context
        Of the command.
    scenario : Scenario
    choices : sequence of Choice
        The autoscalers; none for a fixed fleet.
    load : str
        The load, in words.
    """
    from autoscaler.simulator.reporting.report import (
        Setting,  # importing matplotlib takes half a second
    )

    profile, delays = scenario.profile, scenario.delays
    limits = scenario.replica_model().limits
    fleet = (
        f"{_starts_in_words(scenario)}; at most "
        f"{scenario.max_replicas}; all begin with the oracle's first number of replicas"
    )
    return Setting(
        title=f"{load}, {profile.model} on {profile.device}",
        command=command_line(context),
        assumptions=(
            ("arrivals", f"{load}, seed {scenario.seed}"),
            *(
                (("history", f"Sojourn knows {scenario.history.seconds / 86_400:.3g} days before"),)
                if scenario.history
                else ()
            ),
            (
                "replica",
                f"{profile.model} on {profile.device}: batches up to {profile.max_batch_size}, "
                f"{profile.capacity_per_s:.4g} requests/s at most, waiting room for "
                f"{limits.waiting_room} requests",
            ),
            ("batching", f"{context.params['batching']}, one row per request"),
            (
                "routing",
                f"{scenario.routing.value}; a refused request is sent to another replica, up to "
                f"{delays.retries} times; {delays.request_delay_ms:g} ms to a replica, "
                f"{delays.reply_delay_ms:g} ms back",
            ),
            *((("starts", fleet),) if choices else ()),
            ("cost", "a replica is paid for from its order until it has stopped"),
            ("batch times", f"{_batch_times_in_words(profile)}; no batch fails"),
            *((("front", _front_in_words(profile.front)),) if profile.front else ()),
        ),
        autoscalers=tuple((choice.label, choice.rule) for choice in choices),
    )


def _starts_in_words(scenario: Scenario) -> str:
    start, failed = scenario.start_time, scenario.failures.failed_start_share
    spread = f", lognormal with a spread of {start.spread:g}" if start.spread else ""
    fails = f"; {percent(failed)} of them fail" if failed else ""
    standbys = scenario.standbys
    near = (
        f"; {standbys.start_time.median_s:g} s for a standby, at {standbys.price:g} of the price"
        if standbys
        else ""
    )
    return f"{start.median_s:g} s from order to service{spread}{fails}{near}"


def _batch_times_in_words(profile: Profile) -> str:
    if profile.latency_quantiles is None:
        return "exactly those of the profile"
    return "drawn at random, from the quantiles of the profile"


def _front_in_words(front: FrontCosts) -> str:
    where = "in turn with the device, on one CPU" if front.shares_cpu else "beside the device"
    return f"{front.request_ms:g} ms a request and {front.batch_ms:g} ms a batch, {where}"
