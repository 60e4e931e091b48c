"""The manager of a node's model store as a Ray actor, which the first replica there starts.

It outlives the replicas and the application, so that weights stay warm, and ends with the node. Ray
starts it again when it dies.
"""

import logging
import os
from pathlib import Path
from typing import cast

import ray
from ray.actor import ActorClass
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from deployments.errors import StartError
from deployments.modelstore.manager.running import answers, run_in_thread
from deployments.modelstore.manager.settings import ManagerSettings
from deployments.modelstore.wire import SOCKET_VARIABLE

logger = logging.getLogger("ray.serve")

_NAMESPACE = "sojourn"
#: Ray needs seconds to start a process, on a busy node many.
_START_TIMEOUT_S = 60.0


@ray.remote(num_cpus=0, max_restarts=-1)
class StoreActor:
    """A manager in a thread of this process."""

    def __init__(self, settings: ManagerSettings) -> None:
        run_in_thread(settings)

    def started(self) -> None:
        """Return once the manager listens."""


def open_store(settings: ManagerSettings) -> Path:
    """Return the socket of this node's model store; start its manager if there is none.

    Raises
    ------
    StartError
        The manager does not start.
    """
    socket_path = settings.socket
    if answers(socket_path):
        return socket_path
    node = ray.get_runtime_context().get_node_id()
    try:
        # Ray's decorator hides from type checkers that it returns another kind of class.
        actor = (
            cast(ActorClass[StoreActor], StoreActor)
            .options(
                name=f"{socket_path.stem}-{node}",
                namespace=_NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(settings)
        )
        ray.get(actor.started.remote(), timeout=_START_TIMEOUT_S)
    except Exception as error:
        # One that the user started, or another cluster on this machine, may have been faster.
        if not answers(socket_path):
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise StartError(f"the model store did not start: {lines[-1]}") from error
    else:
        logger.info("model store at %s", socket_path)
    return socket_path


def use_store(settings: ManagerSettings) -> None:
    """Open this node's store for this process and those that it starts."""
    os.environ[SOCKET_VARIABLE] = str(open_store(settings))
