"""The manager of a machine's model store: one process that owns the memory and serves a socket.

One thread runs the core and the sockets; copies run in other threads and report to it. It may be
killed at any point: descriptors end with it, and files on disk become visible only when complete.
"""

import logging
import os
import queue
import selectors
import socket
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from deployments.modelstore.core.actions import Action, Copy, Drop, Granted, Refused, Resolve, Tier
from deployments.modelstore.core.store_core import StoreCore
from deployments.modelstore.device.tier import PAGE_BYTES, DeviceTier
from deployments.modelstore.errors import StoreError
from deployments.modelstore.files.disk import Disk
from deployments.modelstore.files.remote import open_remote
from deployments.modelstore.host_memory import HostMemory
from deployments.modelstore.manager.background import Background, Event
from deployments.modelstore.manager.connections import Client, Connections, fault_of
from deployments.modelstore.manager.endpoint import listen, lock
from deployments.modelstore.manager.settings import ManagerSettings
from deployments.modelstore.manager.shared_files import ClientFile, SharedFiles
from deployments.modelstore.names import Blob, ModelName
from deployments.modelstore.private_folder import make_private
from policy.errors import SojournError

logger = logging.getLogger(__name__)

#: A list of models is sent in parts, because a message must fit into the socket's buffer.
MODELS_PER_MESSAGE = 200


class Manager:
    """Serve a store until `stop`; `StoreError` if another manager has the socket or the disk."""

    def __init__(self, settings: ManagerSettings) -> None:
        self._settings = settings
        self._files = SharedFiles(open_remote(settings.remote) if settings.remote else None)
        self._locks: list[int] = []
        try:
            make_private(settings.socket.parent)
            self._locks.append(lock(settings.socket.with_name(f"{settings.socket.name}.lock")))
            settings.disk.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._locks.append(lock(settings.disk / "lock"))
            self._disk = Disk(settings.disk)
            self._memory = HostMemory()
            budgets_bytes = {Tier.HOST: settings.host_bytes, Tier.DISK: settings.disk_bytes}
            self._device = None
            if settings.device_bytes:
                budgets_bytes[Tier.DEVICE] = settings.device_bytes
                self._device = DeviceTier(settings.device, settings.device_driver)
            pages = {Tier.DEVICE: PAGE_BYTES}
            self._core = StoreCore(budgets_bytes, pages)
            self._stopped = threading.Event()
            self._actions: deque[Action] = deque()
            self._carrying_out = False
            self._recover()
            listener = listen(settings.socket)
        except OSError as error:
            self._unlock()
            raise StoreError(str(error)) from error
        except BaseException:
            self._unlock()
            raise
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._background = Background(
            self._core,
            self._files,
            self._disk,
            self._memory,
            self._device,
            self._report,
            self._stopped,
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._connections = Connections(
            listener,
            self._selector,
            self._handle,
            lambda client: self._take(lambda: self._core.disconnect(client)),
        )
        if self._device is not None:
            self._device.start()

    @property
    def device_fault(self) -> str | None:
        """Why the device cannot be used, or None. If set, its tier refuses all models."""
        return None if self._device is None else self._device.fault

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                for key, mask in self._connections.wait():
                    if key.data is not None:
                        self._connections.serve(key.data, mask)
                    elif key.fileobj is self._wake_read:
                        self._take_events()
                    else:
                        self._connections.accept()
        finally:
            self._close()

    def stop(self) -> None:
        """Stop `run` and its copies. Any thread and any signal handler may call this."""
        self._stopped.set()
        with suppress(OSError):  # the loop has already ended
            self._wake_write.send(b"\0")

    def _handle(
        self, client: Client, message: dict[str, Any], descriptors: Sequence[int] = ()
    ) -> None:
        do, name = message.get("do"), message.get("name")
        if do == "stats":
            device = {} if self._device is None else {"device": self._device.describe()}
            self._connections.send(client, {"result": self._core.stats() | device})
            return
        if do == "models":
            first = message.get("first")
            rows = self._core.models()[first if type(first) is int and first >= 0 else 0 :]
            self._connections.send(client, {"result": rows[:MODELS_PER_MESSAGE]})
            return
        if do == "share" and isinstance(name, str) and len(descriptors) == 1:
            self._share(client, name, descriptors[0])
            return
        if do not in ("open", "evict", "uses") or not isinstance(name, str):
            raise StoreError(f"a message with do={do!r:.50} and name={name!r:.50}")
        model = ModelName.parse(name)
        if do == "open":
            tier = str(message.get("tier", "host")).upper()
            if tier not in Tier.__members__:
                raise StoreError(f"tier {tier.lower()!r:.50}: must be host or device")
            if Tier[tier] is Tier.DEVICE:
                self._check_device()
            self._carry_out(self._core.open(client, model, Tier[tier]))
            return
        if do == "uses":
            used_bytes = message.get("bytes")
            if type(used_bytes) is not int:
                raise StoreError(f"bytes={used_bytes!r:.50}: must be a whole number")
            self._carry_out(self._core.uses(model, used_bytes))
            self._connections.send(client, {"result": None})
            return
        self._carry_out(self._core.evict(model, disk=message.get("disk") is True))
        self._disk.remove_manifest(model)
        self._connections.send(client, {"result": None})

    def _share(self, client: Client, label: str, descriptor: int) -> None:
        if not self._settings.files:
            raise StoreError("this store takes no files of processes")
        client.kept = file = ClientFile(descriptor)

        def identified(found: Blob | StoreError) -> Sequence[Action]:
            if client not in self._connections:
                return ()
            try:
                if isinstance(found, StoreError):
                    raise found
                name, manifest = self._files.add(label, found, file)
                self._core.share(name, manifest)
                return self._core.open(client, name)
            except SojournError as error:
                self._connections.send_error(client, error)
                return ()

        known = self._files.known(file)
        if known is None:
            self._background.identify(file, identified)
        else:
            self._carry_out(identified(known))

    def _check_device(self) -> None:
        if self._device is None:
            raise StoreError("this store has no device tier; start it with --device-bytes")
        if self._device.fault is not None:
            raise StoreError(self._device.fault)

    def _carry_out(self, actions: Sequence[Action]) -> None:
        """Carry out actions in the order of the core's decisions.

        Actions that they lead to, as when a client is gone, come last.
        """
        self._actions += actions
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._actions:
                action = self._actions.popleft()
                try:
                    self._do(action)
                except Exception as error:
                    logger.exception("an action failed: %s", type(action).__name__)
                    if isinstance(action, Granted) and isinstance(action.holder, Client):
                        self._connections.send_error(action.holder, fault_of(error))
        finally:
            self._carrying_out = False

    def _do(self, action: Action) -> None:
        match action:
            case Copy(blob):
                self._background.copy(action, self._core.origins(blob))
            case Resolve(name):
                self._background.resolve(name)
            case Drop(blob, tier):
                self._holder_of(tier).drop(blob)
            case Granted(Client() as client):
                self._grant(client, action)
            case Refused(Client() as client, error):
                client.kept = None
                self._connections.send_error(client, error)

    def _holder_of(self, tier: Tier) -> HostMemory | DeviceTier | Disk:
        if tier is Tier.DEVICE:
            assert self._device is not None
            return self._device
        return self._memory if tier is Tier.HOST else self._disk

    def _grant(self, client: Client, granted: Granted) -> None:
        client.kept = None
        message: dict[str, Any] = {"granted": str(granted.name)}
        message["source"] = granted.source.name.lower()
        contents = granted.manifest.files
        if granted.tier is Tier.DEVICE:
            assert self._device is not None
            grant, descriptors = self._device.grant(granted.manifest)
            message |= grant
        else:
            message["files"] = [[file, blob.sha256, blob.size_bytes] for file, blob in contents]
            descriptors = [self._memory.descriptor(blob) for _, blob in contents]
        self._connections.send(client, message, descriptors)

    def _report(self, event: Event) -> None:
        self._events.put(event)
        with suppress(OSError):  # the loop has ended
            self._wake_write.send(b"\0")

    def _take_events(self) -> None:
        with suppress(BlockingIOError):
            self._wake_read.recv(4096)
        while not self._events.empty():
            self._take(self._events.get())

    def _take(self, event: Event) -> None:
        """Process an event. A failure is logged and does not affect other clients."""
        try:
            actions = event()
        except Exception:
            logger.exception("an event failed")
        else:
            self._carry_out(actions)

    def _recover(self) -> None:
        models, blobs = self._disk.recover()
        for name, manifest in models.items():
            self._core.known(name, manifest)
        for blob in blobs:
            self._carry_out(self._core.found(blob, Tier.DISK))

    def _close(self) -> None:
        self._background.close()
        self._connections.close()
        self._selector.close()
        self._settings.socket.unlink(missing_ok=True)
        self._wake_read.close()
        self._wake_write.close()
        if self._device is not None:
            self._device.close()
        self._memory.close()
        self._unlock()

    def _unlock(self) -> None:
        while self._locks:
            os.close(self._locks.pop())
