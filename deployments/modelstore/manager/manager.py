"""The manager of a machine's model store: one process that owns the memory and serves a socket.

One thread runs the core and the sockets; copies run in other threads and report to it. It may be
killed at any point: descriptors end with it, and files on disk become visible only when complete.
"""

import asyncio
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
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
        self._memory = HostMemory()
        self._stopped = threading.Event()
        self._actions: deque[Action] = deque()
        self._carrying_out = False
        with ExitStack() as closing:
            try:
                self._open(closing)
            except OSError as error:
                raise StoreError(str(error)) from error
            self._closing = closing.pop_all()
        if self._device is not None:
            self._device.start()

    def _open(self, closing: ExitStack) -> None:
        """Acquire everything that this store needs; what undoes that goes to `closing`."""
        settings = self._settings
        make_private(settings.socket.parent)
        settings.disk.mkdir(mode=0o700, parents=True, exist_ok=True)
        socket_lock = settings.socket.with_name(f"{settings.socket.name}.lock")
        for path in (socket_lock, settings.disk / "lock"):
            closing.callback(os.close, lock(path))
        self._disk = Disk(settings.disk)
        closing.callback(self._memory.close)
        budgets_bytes = {Tier.HOST: settings.host_bytes, Tier.DISK: settings.disk_bytes}
        self._tiers: dict[Tier, HostMemory | Disk | DeviceTier] = {
            Tier.HOST: self._memory,
            Tier.DISK: self._disk,
        }
        self._device = None
        if settings.device_bytes:
            budgets_bytes[Tier.DEVICE] = settings.device_bytes
            self._device = DeviceTier(settings.device, settings.device_driver)
            self._tiers[Tier.DEVICE] = self._device
            closing.callback(self._device.close)
        self._core = StoreCore(budgets_bytes, {Tier.DEVICE: PAGE_BYTES})
        self._recover()
        listener = listen(settings.socket)
        closing.callback(settings.socket.unlink, missing_ok=True)
        self._loop = asyncio.SelectorEventLoop()
        closing.callback(self._loop.close)
        self._connections = Connections(
            listener,
            self._loop,
            self._handle,
            lambda client: self._carry_out(self._core.disconnect(client)),
        )
        closing.callback(self._connections.close)
        self._background = Background(
            self._core,
            self._files,
            self._disk,
            self._memory,
            self._device,
            self._report,
            self._stopped,
        )
        closing.callback(self._background.close)

    @property
    def device_fault(self) -> str | None:
        """Why the device cannot be used, or None. If set, its tier refuses all models."""
        return None if self._device is None else self._device.fault

    def run(self) -> None:
        with self._closing:
            self._loop.run_forever()

    def stop(self) -> None:
        """Stop `run` and its copies. Any thread and any signal handler may call this."""
        self._stopped.set()
        with suppress(RuntimeError):  # the loop has already been closed
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _handle(self, client: Client, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        result: Any = None
        match message:
            case {"do": "share", "name": str(name)} if len(descriptors) == 1:
                self._share(client, name, descriptors[0])
                return
            case {"do": "open", "name": str(name), "tier": "host" | "device" as tier}:
                if tier == "device":
                    self._check_device()
                model = ModelName.parse(name)
                if_faster = message.get("if_faster") is True
                self._carry_out(
                    self._core.open(client, model, Tier[tier.upper()], if_faster=if_faster)
                )
                return
            case {"do": "attached", "seconds": float(seconds)} if 0 <= seconds < math.inf:
                self._core.attached(client, seconds)
                return
            case {"do": "evict", "name": str(name)}:
                model = ModelName.parse(name)
                self._carry_out(self._core.evict(model, disk=message.get("disk") is True))
                self._disk.remove_manifest(model)
            case {"do": "uses", "name": str(name), "bytes": int(used_bytes)}:
                self._carry_out(self._core.uses(ModelName.parse(name), used_bytes))
            case {"do": "models", "first": int(first)} if first >= 0:
                result = self._core.models()[first : first + MODELS_PER_MESSAGE]
            case {"do": "stats"}:
                device = {} if self._device is None else {"device": self._device.describe()}
                result = self._core.stats() | device
            case _:
                raise StoreError(f"not a request to the model store: {message!r:.200}")
        self._connections.send(client, {"result": result})

    def _share(self, client: Client, label: str, descriptor: int) -> None:
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
                self._tiers[tier].drop(blob)
            case Granted(Client() as client):
                self._grant(client, action)
            case Refused(Client() as client, error):
                client.kept = None
                self._connections.send_error(client, error)

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
        with suppress(RuntimeError):  # the loop has already been closed
            self._loop.call_soon_threadsafe(lambda: self._carry_out(event()))

    def _recover(self) -> None:
        models, blobs = self._disk.recover()
        for name, manifest in models.items():
            self._core.resolved(name, manifest)
        for blob in blobs:
            self._carry_out(self._core.found(blob, Tier.DISK))
