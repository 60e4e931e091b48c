"""`sojourn package`: write a config that ships its own models to a cluster."""

import hashlib
import os
import shlex
import tempfile
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from deployments.config.document import ServiceConfig, load_service_configs
from deployments.errors import StartError
from deployments.models.model_files import files_needed
from policy.errors import InvalidInputError
from sojourn.output import existing_file, json_option, print_json, program, say

#: URL schemes from which the nodes of a Ray cluster can fetch a package.
PROTOCOLS = ("file", "http", "https", "s3", "gs", "azure", "abfss")
_DIGITS = 16
#: Zip files record the time of each file; equal files should make equal packages.
_TIME = (1980, 1, 1, 0, 0, 0)


@click.command()
@click.argument("config", type=existing_file)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dist"),
    show_default=True,
    help="Folder for the package and the config that names it.",
)
@click.option(
    "--url",
    help="Where every node of the cluster finds the package, without its name: "
    f"{'://, '.join(PROTOCOLS)}://.  [default: the folder of --out, as file://]",
)
@click.option(
    "--include",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Another file or folder to pack; may be repeated.",
)
@click.option(
    "--load/--no-load",
    default=True,
    help="Load each model, to see which files it reads, and again from the package alone. Without, "
    "it is only imported and constructed.  [default: load]",
)
@json_option
def command(
    config: Path, out: Path, url: str | None, include: Sequence[Path], load: bool, as_json: bool
) -> None:
    """Pack the models of CONFIG, and write a config that ships them to a cluster.

    Run it where `sojourn serve CONFIG` works: models are modules of this folder, and paths are
    relative to it. The package has the modules and files of this folder that the models import and
    read. Packages installed with pip must be installed on the cluster as well.
    """
    if url is not None and url.partition("://")[0] not in PROTOCOLS:
        raise InvalidInputError(f"--url: must begin with {'://, '.join(PROTOCOLS)}://, not {url!r}")
    folder = Path.cwd()
    services = load_service_configs(config)
    document = services[0].document
    _refuse_packaged(document)
    if out.resolve() == config.resolve().parent:
        raise InvalidInputError(f"--out: {out} has {config.name} itself; choose another folder")
    written = out / config.name
    if written.is_dir():
        raise InvalidInputError(f"--out: {written} is a folder; choose another one")
    included = _files_in(include)
    of_each = {
        service.application: files_needed(service.args.model, folder, load=load)
        for service in services
    }
    local = [service for service in services if of_each[service.application]]
    if not local:
        raise InvalidInputError(
            f"{config}: none of its models is in this folder; installed models need no package"
        )
    files = sorted({*(path for found in of_each.values() for path in found), *included})
    package = _write_package(files, config.stem, out)
    try:
        _check_alone(package, local, load)
    except StartError:
        package.unlink()
        raise
    uri = package.absolute().as_uri() if url is None else f"{url.rstrip('/')}/{package.name}"
    names = {service.application for service in local}
    content = yaml.safe_dump(_with_package(document, names, uri), sort_keys=False)
    header = f"# Written by sojourn package from {config}; edit that.\n"
    written.write_text(header + content)
    if as_json:
        shown = [str(path) for path in files]
        print_json({"config": str(written), "package": str(package), "uri": uri, "files": shown})
        return
    say(f"packed {', '.join(map(str, files))} into {package}")
    if url is not None:
        say(f"put it where the nodes find it: {uri}")
    say(f"next: {program('sojourn')} deploy {shlex.quote(str(written))}")


def _files_in(included: Sequence[Path]) -> list[Path]:
    """Return the included files and the files in included folders, relative to this folder."""
    folder = Path.cwd()
    files: list[Path] = []
    for path in included:
        # Without `..`, but with links: a link to a file elsewhere is packed as that file.
        named = Path(os.path.abspath(path))
        if not named.is_relative_to(folder):
            raise InvalidInputError(f"--include: {path} must be in this folder")
        within = sorted(named.rglob("*")) if named.is_dir() else [named]
        files += [each.relative_to(folder) for each in within if each.is_file()]
    return [path for path in files if "__pycache__" not in path.parts]


def _write_package(files: Sequence[Path], name: str, out: Path) -> Path:
    """Write a zip file named by its content, and return its path.

    Ray unpacks it once per node and name, so different content needs a different name, and a
    deployment whose package keeps its name keeps running.
    """
    digest = hashlib.sha256()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        unnamed = Path(scratch) / "package.zip"
        with zipfile.ZipFile(unnamed, "w") as archive:
            for path in files:
                content = path.read_bytes()
                digest.update(f"{path.as_posix()}\0{len(content)}\0".encode() + content)
                # In a folder of its own, because Ray drops a single one at the top.
                entry = zipfile.ZipInfo(f"{name}/{path.as_posix()}", _TIME)
                archive.writestr(entry, content)
        package = out / f"{name}-{digest.hexdigest()[:_DIGITS]}.zip"
        return unnamed.replace(package)


def _check_alone(package: Path, services: Sequence[ServiceConfig], load: bool) -> None:
    """Load the models from the package alone.

    Raise `StartError` if one lacks a file, or reads one by a path that no other machine has.
    """
    folder = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(package) as archive:
            archive.extractall(scratch)
        (unpacked,) = Path(scratch).iterdir()
        for service in services:
            model = service.args.model
            try:
                strays = files_needed(model, unpacked, folder, load=load)
            except StartError as error:
                raise StartError(
                    f"the package alone is not enough; add files with --include: {error}"
                ) from None
            if strays:
                raise StartError(
                    f"model {model.import_path}: reads {folder / strays[0]}, a path that only this "
                    f"machine has; write it relative to this folder: {strays[0]}"
                )


def _refuse_packaged(document: dict[str, Any]) -> None:
    for index, content in enumerate(document["applications"]):
        if "working_dir" in (content.get("runtime_env") or {}):
            raise InvalidInputError(
                f"applications.{index}.runtime_env.working_dir: is set already; "
                "package the config without it"
            )


def _with_package(
    document: dict[str, Any], applications: Collection[str], uri: str
) -> dict[str, Any]:
    """Return the config whose named applications run in the package."""
    changed = [
        {**content, "runtime_env": {**(content.get("runtime_env") or {}), "working_dir": uri}}
        if content.get("name", "default") in applications
        else content
        for content in document["applications"]
    ]
    return {**document, "applications": changed}
