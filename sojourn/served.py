"""The applications of a config file: any number of models, and a pipeline."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deployments.config.document import (
    IMPORT_PATH,
    PIPELINE_IMPORT_PATH,
    ServiceConfig,
    load_service_configs,
)
from deployments.config.validation import fault
from deployments.config.yaml_file import YamlFile, read_yaml
from deployments.errors import StartError
from deployments.local.check import Checked, check_pipeline, check_service, read_traits
from deployments.local.machine import check_room
from deployments.local.run import LocalRun, least_room, run_of
from deployments.pipelines.serving.config import load_pipeline_file
from policy.errors import InfeasibleError, InvalidInputError
from sojourn.name_clashes import clash_in


def load_served_file(
    path: Path, *, check: bool = True, load: bool = False, here: bool = True, own: bool = True
) -> LocalRun:
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
    pipeline = load_pipeline_file(path) if PIPELINE_IMPORT_PATH in built_by else None
    only_pipeline = pipeline is not None and IMPORT_PATH not in built_by
    services = [] if only_pipeline else load_service_configs(path)
    if check and here:
        check_room(*least_room(services, pipeline))
    checked = [Checked(read_traits(service)) for service in services if not check]
    if check:
        # Ray is imported for its schema while another process imports the models.
        with ThreadPoolExecutor(1) as pool:
            schema = pool.submit(_check_schema, path)
            try:
                checked = [_checked(service, path, load, own) for service in services]
            finally:
                schema.result()
    if pipeline is not None:
        pipeline.pipeline.build()
        if load:
            check_pipeline(pipeline.pipeline, pipeline.user_config)
    notes = [note for one in checked for note in one.notes]
    return run_of(services, [one.traits for one in checked], pipeline, notes)


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
