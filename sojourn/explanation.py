"""Why a service refused requests, or was late, in the last minute: cause, evidence, and remedy."""

from collections.abc import Iterator
from typing import NamedTuple

from sojourn.service_view import Document, is_sla_kept

#: Reasons of refusals for which more capacity would help.
_CAPACITY = {"queue_full", "concurrency_limit", "deadline"}
_LAST_MINUTE_S = 60.0
#: Replicas that answered this share of what they can within the SLA had no room for more.
_FULL = 0.8


class Finding(NamedTuple):
    """One explanation; `change` begins with the setting to change, if there is one."""

    cause: str
    evidence: str
    change: str


_HUNG = "the model: the replica's log has the batch and the line where it hung"
#: Cause and remedy of refusals for other reasons.
_BY_REASON = {
    "memory": (
        "large bodies, or models, have no room in memory",
        "limits.expert.max_bytes_in_flight, or store.host_bytes for models: more",
    ),
    "loading": (
        "a model, or a worker of a stage, is being loaded",
        "on_demand: false, to load models before they are asked for",
    ),
    "stopping": ("replicas stop, or are replaced", "nothing: whoever tries again is answered"),
    "device_lost": ("a device hung or was lost, and Ray replaces its replica", _HUNG),
    "suspected": ("requests were in a batch that hung another replica", _HUNG),
    "rate_limit": ("a token has used its rate", "access.tokens: more requests_per_s for it"),
}


def findings(snapshot: Document) -> list[Finding]:
    """Return what explains a snapshot of `ServiceView`; nothing if nothing went wrong.

    There is one explanation of too little capacity: those that come after it are its effects.
    """
    found, refused = [], snapshot["refused_per_s_by_reason"]
    if error := snapshot["config_error"]:
        cause = "the newest config was rejected, so an older one is in force"
        found.append(Finding(cause, error, "what the evidence names"))
    if refused.keys() & _CAPACITY or (snapshot["late_per_s"] and not is_sla_kept(snapshot)):
        found.append(next(_lacks_of_capacity(snapshot)))
    if failed := snapshot["failed_per_s"]:
        last = snapshot["model_error"]
        evidence = f"{failed:.3g}/s failed" + (f", the last with {last}" if last else "")
        found.append(Finding("the model fails", evidence, "the model: its log has the traceback"))
    for reason in sorted(refused.keys() & _BY_REASON.keys()):
        cause, change = _BY_REASON[reason]
        found.append(Finding(cause, f"{refused[reason]:.3g}/s were refused: {reason}", change))
    return found


def _lacks_of_capacity(snapshot: Document) -> Iterator[Finding]:
    """Yield what explains full queues and late answers, the most certain first; at least one."""
    replicas, decision = snapshot["replicas"], snapshot["newest"] or {}
    ordered, required = decision.get("replicas", 0), decision.get("required_replicas") or 0
    if all(one["table"] == "solved" and one["sla_rate_per_s"] is None for one in replicas):
        evidence = f"no arrival rate keeps {snapshot['sla_in_words']} on this device"
        yield Finding("the SLA is out of reach", evidence, "sla: a longer response_time_ms")
    for stage in snapshot["stages"] or ():
        if stage["name"] == replicas[0]["bottleneck"]:
            yield Finding(
                "a stage has too few workers",
                f"stage {stage['name']}: {stage['busy']} of {stage['workers']} workers are busy, "
                f"{stage['queue_length']} items wait",
                "workers of that stage: more",
            )
    if snapshot["dry_run"] and ordered > decision.get("target_replicas", ordered):
        yield Finding(
            "the autoscaler only reports what it would do",
            f"{ordered} replicas are needed, {decision['target_replicas']} ordered",
            "autoscaler.dry_run: false",
        )
    if stuck := decision.get("stuck_replicas"):
        yield Finding(
            "replicas do not start",
            f"{stuck} of {ordered} replicas ordered do not serve",
            "ray_actor_options: no more than a node has free (`ray status`)",
        )
    if ordered < required:
        yield Finding(
            "other deployments use the shared budget",
            f"{required} replicas are needed, {ordered} granted",
            "policy_kwargs.replica_budget: more",
        )
    share, wanted = decision.get("predicted_service_level"), snapshot["sla_share"]
    if share is not None and wanted is not None and share < wanted:
        yield Finding(
            "there may be no more replicas",
            f"{ordered}, as many as there may be, keep {100 * share:.3g}% in time at the demand "
            f"of {decision['demand_per_s']:.4g}/s",
            "autoscaling_config.max_replicas: more",
        )
    for entry in snapshot["decisions"]:
        after = entry["replicas"]
        before = entry.get("target_replicas", after)
        if after > before and entry["time_s"] >= decision["time_s"] - _LAST_MINUTE_S:
            yield Finding(
                "the load rose faster than replicas start",
                f"in the last minute {after} replicas were ordered instead of {before}",
                "autoscaler.expert.burst_factor: higher, to keep room for such a rise",
            )
    if any(one["bottleneck"] == "neither" for one in replicas):
        yield Finding(
            "other processes use the replicas' CPUs",
            "neither the event loop nor the device limits them",
            "ray_actor_options.num_cpus: more, so that nothing else runs there",
        )
    refused = snapshot["refused_per_s_by_reason"]
    if refused.keys() & _CAPACITY == {"deadline"} and not snapshot["late_per_s"]:
        yield Finding(
            "clients want answers sooner than they can be computed",
            f"{refused['deadline']:.3g}/s were refused for their deadline, and no queue was full",
            "the requests' X-Request-Timeout-Ms or parameters.timeout: longer",
        )
    rates_per_s = [one["sla_rate_per_s"] or 0.0 for one in replicas]
    answered_per_s = snapshot["completed_per_s"] or 0.0
    evidence = (
        f"replicas: {len(replicas)}; answered: {answered_per_s:.4g}/s; within the SLA they can "
        + (
            f"answer {sum(rates_per_s):.4g}/s"
            if all(rates_per_s)
            else "answer what is not known yet"
        )
    )
    if all(rates_per_s) and answered_per_s >= _FULL * sum(rates_per_s):
        # The autoscaler may know of it later: its log is up to a minute old.
        yield Finding(
            "there are too few replicas",
            evidence,
            "autoscaling_config.max_replicas: more; or min_replicas, to have them at once",
        )
    yield Finding(
        "more requests came at once than can be answered in time",
        evidence,
        "autoscaler.expert.burst_factor: higher, to keep room for such bursts",
    )
