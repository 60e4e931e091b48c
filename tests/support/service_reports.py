"""The reports of replicas and the autoscaler, for `sojourn top` and `sojourn explain`."""

from sojourn.service_view import ServiceView

SLA = {"response_time_ms": 100, "percentile": 99}


def policy(replica="a", answered=0, late=0, failed=0, refused=0, **more):
    counts = {"completed": answered, "answered": answered, "late": late}
    counts["refused_queue_full"] = refused
    return {
        "model": "digits",
        "replica": replica,
        "sla": SLA,
        "sla_in_words": "99% of requests within 100 ms",
        "config_error": None,
        "process": {"memory_bytes": 118e6, "up_s": 60.0},
        "queue_length": 3,
        "control_limit": 8,
        "bottleneck": "device",
        "measured_ms": {"50": 20.0, "95": 50.0, "99": 80.0},
        "predicted_ms": {"50": 22.0, "95": 55.0, "99": 90.0},
        "last_minute": {"seconds": 60.0, **counts, "refused": refused, "failed": failed},
        **more,
    }


def entry(time_s, before, after, reason="keep", **more):
    return {
        "time_s": time_s,
        "target_replicas": before,
        "replicas": after,
        "reason": reason,
        "arrival_rate_per_s": 100.0,
        "required_replicas": after,
        "demand_per_s": 130.0,
        "stuck_replicas": 0,
        **more,
    }


def decided(*entries):
    return {"dry_run": False, "newest": entries[-1] if entries else None, "decisions": entries}


def watched(*documents, decisions=(), lost=(), seconds_apart=0.0):
    """Return a snapshot after polls, each answered by one replica."""
    fleet = {**decided(*decisions), "lost_replicas": lost}
    now_s, answers = 0.0, {"/sojourn/autoscaler": fleet}
    view = ServiceView("http://service", lambda path: answers[path], lambda: now_s)
    for document in documents:
        now_s += seconds_apart
        answers["/sojourn/policy"] = answers["/sojourn/pipeline"] = document
        view.poll()
    return view.snapshot()
