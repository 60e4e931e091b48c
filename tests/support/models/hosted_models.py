"""Real services over a model that multiplies, loaded as a replica's repository does."""

import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import UserConfig, parse_user_config
from deployments.hosting.app import HostingApp
from deployments.hosting.reconciler import ModelReconciler
from deployments.hosting.repository import ModelRepository
from deployments.models.base import Model, TensorSpec
from deployments.serving.service import InferenceService
from policy.profile import Profile
from tests.support.models.doubles_service import USER_CONFIG
from tests.support.waiting import LIMIT_S

PROFILE = Profile.from_dict({"max_batch_size": 4, "latency_ms": {"per_request": 0.1, "fixed": 0.5}})


class Multiplier(Model):
    """Multiplies `x` by the version's number."""

    inputs = (TensorSpec("x", "FP32", (1,)),)
    outputs = (TensorSpec("y", "FP32", (1,)),)
    #: It computes in the device's thread, so that a batch can be held up.
    waits = True

    def __init__(self, factor: float, gate: threading.Event) -> None:
        self._factor, self._gate = factor, gate

    def load(self, device: str) -> None: ...

    def forward(self, batch):
        assert self._gate.wait(LIMIT_S)
        return {"y": self._factor * batch["x"]}


class Hosted:
    """Models in a repository, and what holds their loads and batches up.

    `loads` has the names and versions that were loaded, in the order of their beginnings. A load,
    or a batch, of a name and version waits until its gate is set; its loads raise `errors`.
    """

    def __init__(self, *names: str, on_demand: bool = False, **options: Any) -> None:
        self.configs = [config_of(name) for name in names]
        self.loads: list[tuple[str, str]] = []
        self.load_gates: dict[tuple[str, str], threading.Event] = {}
        self.batch_gates: dict[tuple[str, str], threading.Event] = {}
        self.errors: dict[tuple[str, str], list[Exception]] = {}
        self._taken_over: list[Callable[[InferenceService], None]] = []
        first = self.load(self.configs[0])
        self.repository = ModelRepository(
            first, self.configs, self.load, on_demand=on_demand, on_takeover=self._took_over
        )
        self.reconciler = ModelReconciler(self.repository, self.configs, **options)
        self.app = HostingApp(self.reconciler, "0", _no_decisions)
        self._taken_over.append(self.app.take_over)

    def load(self, config: ModelConfig) -> InferenceService:
        key = (config.name, config.version)
        self.loads.append(key)
        gate = self.load_gates.get(key)
        assert gate is None or gate.wait(LIMIT_S)
        if self.errors.get(key):
            raise self.errors[key].pop(0)
        batch_gate = self.batch_gates.get(key)
        if batch_gate is None:
            batch_gate = threading.Event()
            batch_gate.set()
        return InferenceService(config, Multiplier(float(config.version), batch_gate), PROFILE)

    def states(self, name: str) -> dict[str, str]:
        """Return the states of a model's versions, as the index has them."""
        rows = [row for row in self.repository.index() if row["name"] == name]
        return {row["version"]: row["state"] for row in rows}

    def versions(self) -> dict[str, str]:
        """Return the versions that serve, by model."""
        return {one.model_name: one.model_version for one in self.repository.services}

    def _took_over(self, service: InferenceService) -> None:
        for callback in self._taken_over:
            callback(service)


def config_of(name: str, version: str = "1") -> ModelConfig:
    """Return the configuration of a model whose version's number is its factor."""
    return ModelConfig(
        name=name,
        version=version,
        import_path="unused:Unused",
        max_batch_size=4,
        weights=f"store://{name}@{version}",
    )


def user_config(**models: dict[str, Any]) -> UserConfig:
    return parse_user_config({**USER_CONFIG, "models": models})


@contextlib.asynccontextmanager
async def hosted(*names: str, start: bool = True, **options: Any) -> AsyncIterator[Hosted]:
    """Host models of these names until the context ends."""
    made = Hosted(*names, **options)
    if start:
        await made.reconciler.configure(user_config())
    else:
        await made.repository.configure(user_config())
    try:
        yield made
    finally:
        for gate in [*made.load_gates.values(), *made.batch_gates.values()]:
            gate.set()
        await made.repository.close(5)


async def _no_decisions():
    return {}
