"""Storage that outlives Serve's controller: the key-value store of Ray's GCS.

Serve keeps its own checkpoints there, too. The store usually answers within a millisecond, but it
may be slow or unreachable for seconds. The controller must not wait for it, so a thread does.
"""

import functools
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import ray
from ray.exceptions import RaySystemError, RpcError

logger = logging.getLogger("ray.serve")

_NAMESPACE = b"sojourn"
_TIMEOUT_S = 5.0
#: The thread packs a state after this pause. Without it, the decision that saves the state would
#: wait for the thread to hand back the interpreter's lock.
PACK_AFTER_S = 0.05
_FAILURES = (RpcError, RaySystemError, TimeoutError, ConnectionError)


class RayStore:
    """The implementation of `autoscaler.store.Store` in this process's cluster."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sojourn-store")

    def load(self, key: str) -> "Future[bytes | None]":
        """Read what was saved under `key`; None if there is nothing, or if it cannot be read."""
        return self._thread.submit(read, key)

    def save(self, key: str, content: Callable[[], bytes]) -> "Future[None]":
        """Save what `content` returns under `key`; the thread calls it."""
        return self._thread.submit(_write, key, content)

    def delete(self, key: str) -> None:
        self._thread.submit(_delete, key)


@functools.cache
def store() -> RayStore:
    return RayStore()


def read(key: str) -> bytes | None:
    """Read what was saved under `key`, and wait for it; None if there is nothing to read."""
    try:
        content: bytes | None = _client().internal_kv_get(key.encode(), _NAMESPACE, _TIMEOUT_S)
    except _FAILURES as error:
        logger.warning("%s cannot be read: %s", key, error)
        return None
    return content


def _write(key: str, content: Callable[[], bytes]) -> None:
    time.sleep(PACK_AFTER_S)
    try:
        packed = content()
    except Exception:
        logger.exception("%s cannot be packed", key)
        return
    try:
        _client().internal_kv_put(key.encode(), packed, True, _NAMESPACE, _TIMEOUT_S)
    except _FAILURES as error:
        logger.warning("%s cannot be saved: %s", key, error)


def _delete(key: str) -> None:
    try:
        _client().internal_kv_del(key.encode(), False, _NAMESPACE, _TIMEOUT_S)
    except _FAILURES as error:
        logger.warning("%s cannot be deleted: %s", key, error)


def _client() -> "ray._raylet.GcsClient":
    return ray.experimental.internal_kv.internal_kv_get_gcs_client()
