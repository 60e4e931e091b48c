"""The applications of a config file: any number of models, and a pipeline."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from deployments.config.document import (
    IMPORT_PATH,
    PIPELINE_IMPORT_PATH,
    ServiceConfig,
    load_service_configs,
)
from deployments.config.user_config import AccessConfig
from deployments.config.validation import fault
from deployments.config.yaml_file import YamlFile, read_yaml
from deployments.errors import StartError
from deployments.haproxy.command import HELD_MS
from deployments.haproxy.routing import held_environment
from deployments.local.check import Checked, check_pipeline, check_service, read_traits
from deployments.local.machine import check_room
from deployments.local.run import LocalRun, ServedApplication, least_room, run_of
from deployments.pipelines.serving.config import load_pipeline_file
from policy.errors import InfeasibleError, InvalidInputError
from sojourn.name_clashes import clash_in


@dataclass(frozen=True)
class Served:
    sla: str
    access: AccessConfig
    is_pipeline: bool = False
    further_models: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServedFile:
    run: LocalRun
    applications: tuple[Served, ...]
    #: Warnings: it may be meant so.
    notes: tuple[str, ...] = ()


def load_served_file(
    path: Path, *, check: bool = True, load: bool = False, here: bool = True, own: bool = True
) -> ServedFile:
    """Read a config file of models, of a pipeline, or of both.

    With `check`, also check what takes seconds: the imports of models, and their SLAs; with `load`,
    also load each model, start each stage, and run them once. What is to run `here` must find room
    on this machine. Errors name a place in the file if it is the user's `own`.

    Raises
    ------
    SojournError
        The file is wrong; the message has the place and the allowed values.
    """
    if clash := clash_in(Path.cwd()):
        raise InvalidInputError(clash)
    content = read_yaml(path)
    listed = content.get("applications") if isinstance(content, dict) else None
    built_by = [
        entry.get("import_path")
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict)
    ]
    if PIPELINE_IMPORT_PATH not in built_by:
        return _models(path, check, load, here, own)
    pipeline = _pipeline(path, check, load, here)
    if IMPORT_PATH not in built_by:
        return pipeline
    models = _models(path, check, load, here, own)
    held = [one.run.environment[HELD_MS] for one in (models, pipeline)]
    run = replace(
        models.run,
        applications=models.run.applications + pipeline.run.applications,
        environment={**models.run.environment, HELD_MS: ",".join(filter(None, held))},
        num_cpus=models.run.num_cpus + pipeline.run.num_cpus,
        num_gpus=models.run.num_gpus + pipeline.run.num_gpus,
    )
    if check and here:
        check_room(run.num_cpus, run.num_gpus)
    return ServedFile(run, models.applications + pipeline.applications, models.notes)


def _models(path: Path, check: bool, load: bool, here: bool, own: bool) -> ServedFile:
    services = load_service_configs(path)
    if check and here:
        check_room(*least_room((service.replicas[0], service.actor) for service in services))
    if check:
        # Ray is imported for its schema while another process imports the models.
        with ThreadPoolExecutor(1) as pool:
            schema = pool.submit(_check_schema, path)
            try:
                checked = [_checked(service, path, load, own) for service in services]
            finally:
                schema.result()
    else:
        checked = [Checked(read_traits(service)) for service in services]
    return ServedFile(
        run_of(services, [one.traits for one in checked]),
        tuple(
            Served(
                service.user_config.sla.objective.in_words(),
                service.user_config.access,
                further_models=tuple(model.name for model in service.args.models),
            )
            for service in services
        ),
        tuple(note for one in checked for note in one.notes),
    )


def _checked(service: ServiceConfig, path: Path, load: bool, own: bool) -> Checked:
    try:
        return check_service(service, load=load)
    except (StartError, InfeasibleError) as error:
        if not own:
            raise
        module = service.args.model.import_path.partition(":")[0].partition(".")[0]
        folder = path.parent.resolve()
        found = (folder / f"{module}.py").exists() or (folder / module).is_dir()
        hint = ""
        if found and folder != Path.cwd() and "no module named" in str(error):
            hint = f"; it is next to {path.name}: run this in {folder}"
        out_of_reach = isinstance(error, InfeasibleError)
        block = ("deployments", 0, "user_config") if out_of_reach else ("args",)
        # With further models, the error names the one that it concerns.
        key = () if service.args.models else ("sla" if out_of_reach else "model",)
        file = YamlFile(path)
        names = [one.get("name", "default") for one in file.content["applications"]]
        with file.located():
            raise fault(
                ("applications", names.index(service.application), *block, *key), f"{error}{hint}"
            ) from None


def _check_schema(path: Path) -> None:
    from deployments.config.ray_schema import check_schema  # imports Ray

    file = YamlFile(path)
    with file.located():
        check_schema(file.content)


def _pipeline(path: Path, check: bool, load: bool, here: bool) -> ServedFile:
    file = load_pipeline_file(path)
    room = least_room(file.least_replicas)
    if check and here:
        check_room(*room)
    if check:
        _check_schema(path)
    file.pipeline.build()
    if load:
        check_pipeline(file.pipeline, file.user_config)
    application = ServedApplication(file.application, file.pipeline.name, file.route_prefix)
    config = file.user_config
    return ServedFile(
        LocalRun(
            file.http_host,
            file.http_port,
            (application,),
            file.document,
            held_environment({file.application: config.sla.response_time_ms}),
            *room,
        ),
        (Served(config.sla.objective.in_words(), config.access, is_pipeline=True),),
    )
