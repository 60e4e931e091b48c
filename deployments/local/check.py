"""Check what a config file promises before anything starts: the model, the SLA, the machine.

A user's code runs in a process of its own, because it may do anything when it is imported.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.request import url2pathname
from zipfile import BadZipFile, ZipFile

from autoscaler import worker
from deployments.config.declared import declared_models
from deployments.config.document import ServiceConfig
from deployments.config.replica_args import ModelConfig, StoreConfig
from deployments.config.user_config import UserConfig
from deployments.errors import StartError
from deployments.haproxy.request_environment import RequestTraits, traits_of, traits_of_all
from deployments.models.loading import check_weights, find_model_class, make_model
from deployments.modelstore.manager.running import use_in_process
from deployments.pipelines.serving.config import PipelineConfig, PipelineUserConfig
from policy.errors import InfeasibleError, InvalidInputError, SojournError

#: The CPUs to load a model on, and its store.
Loading = tuple[float, StoreConfig | None]
#: Importing a model takes a few seconds with a large library; a module may hang.
TIMEOUT_S = 120.0
_FILE = "file://"


class Checked(NamedTuple):
    """A service that can be served: the traits of its requests.

    The `notes` are on what may be meant, but should be known: more replicas than this machine has
    CPUs for, and a model that is elsewhere.
    """

    traits: RequestTraits = RequestTraits()
    notes: tuple[str, ...] = ()


def check_service(
    config: ServiceConfig, cpu_count: int | None = None, *, load: bool = False
) -> Checked:
    """Check that each model can be imported and constructed, and that its SLA is in reach.

    With `load`, also open the store, load the model, and compute a batch of its example.

    Raises
    ------
    InvalidInputError
        The autoscaler's history is a file that cannot be used, or `user_config` names a model that
        there is not, or a version that cannot be meant.
    StartError
        A model cannot be imported, constructed or loaded, or its profile or its outputs are wrong.
    InfeasibleError
        The model's profile is known, and no load is light enough for the SLA.
    """
    try:
        models = declared_models(config.args.all_models, config.user_config)
    except InvalidInputError as error:
        raise InvalidInputError(f"user_config.{error}") from None
    room = _room(config, cpu_count or os.cpu_count() or 1)
    package = config.working_dir
    if package is not None and not package.startswith(_FILE):
        note = f"{config.application}: its model is in {package} and was not checked"
        return Checked(notes=(note, *room))
    with _working_directory(package) as directory:
        history = config.user_config.autoscaler.history_source()
        if history is not None:
            history.check(directory or ".")
        loading = (config.num_cpus, config.args.store) if load else None
        traits = [
            _in_worker(
                *("check_model", model, config.user_config.for_model(model.name), loading),
                name=f"model {model.import_path}: its import" + " and load" * load,
                folder=directory,
            )
            for model in models.values()
        ]
    return Checked(traits_of_all(traits), room)


def read_traits(config: ServiceConfig) -> RequestTraits:
    """Import a service's models in a process each; return the traits of its requests.

    They are the defaults if a model cannot be imported here: a service for a cluster need not be.
    """
    paths = [model.import_path for model in config.args.all_models]
    function = f"{__name__}:traits_at"
    try:
        return traits_of_all([worker.run(function, path, time_limit_s=TIMEOUT_S) for path in paths])
    except SojournError:
        return RequestTraits()


def traits_at(import_path: str) -> RequestTraits:
    return traits_of(find_model_class(import_path))


def _in_worker(function: str, *arguments: Any, name: str, folder: str | None = None) -> Any:
    """Return the result of a function of this module in a process of its own."""
    function = f"{__name__}:{function}"
    try:
        return worker.run(function, *arguments, time_limit_s=TIMEOUT_S, name=name, folder=folder)
    except InfeasibleError:
        raise
    except SojournError as error:
        raise StartError(str(error)) from None


@contextmanager
def _working_directory(package: str | None) -> Iterator[str | None]:
    """Unpack a local package, as Ray does; without one, stay where we are."""
    if package is None:
        yield None
        return
    path = url2pathname(package.removeprefix(_FILE))
    with TemporaryDirectory() as scratch:
        try:
            with ZipFile(path) as archive:
                archive.extractall(scratch)
        except (OSError, BadZipFile) as error:
            raise StartError(f"runtime_env.working_dir: {package}: {error}") from None
        top = os.listdir(scratch)
        yield os.path.join(scratch, top[0]) if len(top) == 1 else scratch


def _room(config: ServiceConfig, cpu_count: int) -> tuple[str, ...]:
    most = config.replicas[1]
    fits = int(cpu_count / config.num_cpus) if config.num_cpus else most
    if most <= fits:
        return ()
    return (
        f"max_replicas is {most}, and this machine has CPUs for {fits}: "
        f"{cpu_count} CPUs, {config.num_cpus:g} for each replica",
    )


def check_model(
    model_config: ModelConfig, user_config: UserConfig, loading: Loading | None = None
) -> RequestTraits:
    """Construct the model, and return its traits.

    If its profile is known, check that the SLA is in reach.

    With `loading`, also load it, and run it on its example.

    Raises
    ------
    SojournError
        The model cannot be constructed or loaded, its profile or its outputs are wrong, or the SLA
        is out of reach.
    """
    if loading is not None:
        # It loads torch.
        from deployments.serving.service_loading import load_checked

        cpus, store = loading
        _use_store(store)
        load_checked(model_config, cpus)
    model = make_model(model_config.import_path, model_config.options)
    check_weights(model, model_config.import_path, model_config.weights)
    profile = model_config.load_profile() or model.profile()
    if profile is not None and user_config.limits.late == "refuse":
        _ = user_config.service_model(profile).curve
    return traits_of(type(model))


def check_pipeline(pipeline: PipelineConfig, user_config: PipelineUserConfig) -> None:
    """Start the stages of a pipeline without Ray, and send its example through them.

    Raises
    ------
    StartError
        A stage does not start, or the example fails, or its result is not as declared.
    """
    _in_worker("run_pipeline", pipeline, user_config, name=f"pipeline {pipeline.name}: its start")


def run_pipeline(pipeline: PipelineConfig, user_config: PipelineUserConfig) -> None:
    from deployments.pipelines.serving.service import PipelineService

    async def start() -> None:
        service = PipelineService(pipeline, user_config)
        try:
            await service.start()
        finally:
            await service.close()

    _use_store(pipeline.store)
    asyncio.run(start())


def _use_store(store: StoreConfig | None) -> None:
    if store is not None:
        use_in_process(store.settings())
