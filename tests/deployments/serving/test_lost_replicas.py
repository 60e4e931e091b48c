import pytest
from ray.core.generated.common_pb2 import ActorDeathCause, ActorDiedErrorContext, OomContext

from deployments.serving.lost_replicas import MOST, lost_replicas

CRASH = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
    "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. "
    "Some common causes include: (1) the process was killed by the OOM killer"
)


def actor(name, end_ms=1000, reason=ActorDiedErrorContext.WORKER_DIED, message=CRASH):
    died = ActorDiedErrorContext(reason=reason, error_message=message)
    cause = ActorDeathCause(actor_died_error_context=died)
    return {"Name": name, "EndTime": end_ms, "DeathCause": cause}


def lost(*dead):
    return lost_replicas(dead, "shop", "Replica")


def test_a_loss_is_told_in_the_directorys_words_without_its_guesses():
    assert lost(actor("SERVE_REPLICA::shop#Replica#abc")) == [
        {
            "replica": "abc",
            "time_s": 1.0,
            "reason": "Worker unexpectedly exits with a connection error code 2. End of file.",
        }
    ]
    memory = ActorDeathCause(oom_context=OomContext(error_message="the node ran out of memory"))
    (one,) = lost({**actor("SERVE_REPLICA::shop#Replica#abc"), "DeathCause": memory})
    assert one["reason"] == "the node ran out of memory"


@pytest.mark.parametrize(
    "dead",
    [
        actor("SERVE_REPLICA::shop#Replica#abc", reason=ActorDiedErrorContext.RAY_KILL),
        actor("SERVE_REPLICA::shop#Other#abc"),
        actor("SERVE_REPLICA::other#Replica#abc"),
        actor("SERVE_CONTROLLER_ACTOR"),
        actor(""),
    ],
    ids=["stopped", "other deployment", "other application", "controller", "nameless"],
)
def test_others_are_not_lost(dead):
    assert lost(dead) == []


def test_the_latest_are_listed_the_oldest_first():
    dead = [actor(f"SERVE_REPLICA::shop#Replica#{n}", end_ms=1000 * n) for n in range(MOST + 5)]
    assert [one["time_s"] for one in lost(*reversed(dead))] == list(range(5, MOST + 5))
