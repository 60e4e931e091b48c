"""Load what a replica serves: the model, its weights and its profile."""

import logging
import os
from dataclasses import replace
from pathlib import Path

from deployments.config.replica_args import ModelConfig
from deployments.control.response_times import load_evaluation
from deployments.models.base import EnergyMeter, Model
from deployments.models.loading import check_weights, find_model_class, load_model
from deployments.models.outputs import check_forward
from deployments.models.threads import limit_threads
from deployments.models.weights import WeightsLoader
from deployments.profiling.energy import best_meter
from deployments.profiling.measure import measure_profile
from deployments.profiling.profile_cache import ProfileCache
from deployments.serving.service import InferenceService
from deployments.serving.service_start import ServiceStart
from deployments.serving.warm_up import warm_up
from policy.errors import InvalidInputError
from policy.profile import Profile

logger = logging.getLogger("sojourn.service")

#: How long a starting replica may measure batch times, and as long the energy, without a profile.
PROFILE_BUDGET_S = 1.0
#: Where there is no driver of a GPU, `resolve_device` need not load torch: NVIDIA's, WSL's, AMD's.
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def load_service(
    config: ModelConfig,
    cpus: float | None = None,
    journals: Path | None = None,
    start: ServiceStart | None = None,
) -> InferenceService:
    """Load a model, warm it up, and return its service.

    This process is limited to one thread of BLAS, OpenMP and torch for each of the `cpus`. By
    default, those are all that it may run on, and its threads stay as they are.

    Raises
    ------
    InvalidInputError
        The model or its profile cannot be loaded, the profile exceeds `max_batch_size`, the
        config names weights and the model does not ask for any, or the model has none to share.
    """
    if cpus is None:
        cpus = float(len(os.sched_getaffinity(0)))
    else:
        limit_threads(cpus)
    start = start or ServiceStart()
    start.weights = WeightsLoader(config.weights, start.store_socket, start.timings)
    with start.timings.phase("imports"):
        device = resolve_device(config.device)
        model_class = find_model_class(config.import_path)
    check_weights(model_class, config.import_path, config.weights)
    with start.timings.phase("model"), start.weights.sharing(config.share):
        model = load_model(config.import_path, config.options, device, start.weights)
    with start.timings.phase("profile"), start.weights.computing(device):
        meter, note = best_meter(device, model)
        profile = profile_of(config, model, device, cpus, start.profile_cache, meter, note)
    if profile.max_batch_size > config.max_batch_size:
        raise InvalidInputError(
            f"model: the profile goes to batch size {profile.max_batch_size}, which exceeds "
            f"max_batch_size {config.max_batch_size}"
        )
    with start.timings.phase("warm_up"), start.weights.computing(device):
        not_run = warm_up(model, profile.latency_ms.tolist(), config.expert.warm_up_s)
        load_evaluation()
    service = InferenceService(
        config,
        model,
        profile,
        device=device,
        cpus=cpus,
        not_run=not_run,
        journals=journals,
        start=start,
        energy_meter=meter,
    )
    if service.device.cpus_note is not None:
        logger.warning("%s", service.device.cpus_note)
    return service


def load_checked(config: ModelConfig, cpus: float) -> None:
    """Load a model as a replica does, and compute a batch; raise `SojournError` if that fails."""
    limit_threads(cpus)
    weights = WeightsLoader(config.weights)
    device = resolve_device(config.device)
    with weights.sharing(config.share):
        model = load_model(config.import_path, config.options, device, weights)
    check_forward(model, [1])


def resolve_device(device: str) -> str:
    """Return `device`; for ``auto``, ``cuda`` if this process has a GPU, else ``cpu``."""
    if device != "auto":
        return device
    if not any(map(os.path.exists, _GPU_DRIVERS)):
        return "cpu"
    import torch  # takes longer than all else of a start, and a model may not need it

    return "cuda" if torch.cuda.is_available() else "cpu"


def profile_of(
    config: ModelConfig,
    model: Model,
    device: str,
    cpus: float | None = None,
    kept: ProfileCache | None = None,
    energy_meter: EnergyMeter | None = None,
    energy_note: str = "not measured",
) -> Profile:
    """Return the profile in the config, else the model's own, else the one kept, else measure one.

    Raises
    ------
    InvalidInputError
        The profile in the config is invalid.
    """
    profile = config.load_profile() or model.profile()
    if profile is None and kept is not None:
        profile = kept.load()
    if profile is None:
        profile = measure_profile(
            model,
            model_name=config.name,
            device=device,
            max_batch_size=config.max_batch_size,
            budget_s=PROFILE_BUDGET_S,
            energy_meter=energy_meter,
            energy_note=energy_note,
        )
        profile = replace(profile, cpus=cpus)
        if kept is not None:
            kept.save(profile)
    return profile
