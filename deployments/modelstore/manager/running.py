"""Find a running manager, or run one in a thread of this process."""

import atexit
import os
import threading
from pathlib import Path

from deployments.modelstore.client import ask
from deployments.modelstore.errors import UnavailableError
from deployments.modelstore.manager.endpoint import allow_many_clients
from deployments.modelstore.manager.manager import Manager
from deployments.modelstore.manager.settings import ManagerSettings
from deployments.modelstore.wire import SOCKET_VARIABLE

#: A manager answers within milliseconds; one that hangs is as good as none.
_ANSWER_TIMEOUT_S = 5.0


def answers(socket_path: Path) -> bool:
    try:
        ask("stats", socket_path=socket_path, timeout_s=_ANSWER_TIMEOUT_S)
    except UnavailableError:
        return False
    return True


def run_in_thread(settings: ManagerSettings) -> None:
    """Run a manager as long as this process; `StoreError` if another has its socket."""
    allow_many_clients()
    manager = Manager(settings)
    thread = threading.Thread(target=manager.run, name="store-manager", daemon=True)
    thread.start()
    # Otherwise its socket would stay. What is registered last is called first.
    atexit.register(thread.join)
    atexit.register(manager.stop)


def use_in_process(settings: ManagerSettings) -> None:
    """Use a store in this process and its children; run its manager if there is none."""
    if not answers(settings.socket):
        run_in_thread(settings)
    os.environ[SOCKET_VARIABLE] = str(settings.socket)
