"""`sojourn store`: share one copy of each model's weights among the processes of this machine."""

import os
import signal
from pathlib import Path
from typing import Any

import click

from deployments.modelstore.client import ask, list_models, open_model
from deployments.modelstore.device.driver import CUDA
from deployments.modelstore.errors import StoreError
from deployments.modelstore.files import publishing
from deployments.modelstore.manager.endpoint import allow_many_clients
from deployments.modelstore.manager.manager import Manager
from deployments.modelstore.manager.prometheus import exposition
from deployments.modelstore.manager.settings import ManagerSettings
from deployments.modelstore.names import ModelName
from deployments.modelstore.wire import default_socket
from sojourn.output import json_option, print_json, print_table, say

_socket_option = click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    help="The manager's socket.  [default: $SOJOURN_STORE, or this user's]",
)


@click.group(name="store")
def command() -> None:
    """Share one copy of each model's weights among the processes of this machine.

    A model is named [FRAMEWORK/]NAME[@VERSION]; the defaults are pytorch and 1. Every command
    but serve has --json.
    """


@command.command()
@click.option(
    "--remote",
    help="URL of published models: file://, https://, s3://, …  [default: none, only shared files]",
)
@click.option(
    "--disk",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: Path.home() / ".cache/sojourn/store",
    help="Folder of the files on this machine.  [default: ~/.cache/sojourn/store]",
)
@click.option(
    "--host-bytes",
    type=click.IntRange(min=1),
    default=8_000_000_000,
    show_default=True,
    help="Memory budget.",
)
@click.option(
    "--disk-bytes",
    type=click.IntRange(min=0),
    default=50_000_000_000,
    show_default=True,
    help="Disk budget.",
)
@click.option(
    "--device-bytes",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Budget of a GPU's memory; 0 leaves the GPU out.",
)
@click.option(
    "--device",
    default="0",
    show_default=True,
    help="The GPU: its number on this machine, or its UUID.",
)
@click.option("--device-driver", default=CUDA, hidden=True, help="Module of another driver.")
@_socket_option
def serve(socket_path: Path | None, **options: Any) -> None:
    """Run the manager of this machine's store until Ctrl-C."""
    settings = ManagerSettings(**options, socket=socket_path or default_socket())
    allow_many_clients()
    manager = Manager(settings)
    if manager.device_fault is not None:
        manager.stop()
        manager.run()  # closes everything
        raise StoreError(f"--device-bytes: {manager.device_fault}")

    def stop(number: int, frame: object) -> None:
        # Files on the disk are always complete, so a download is not waited for.
        os._exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    say(f"The store serves {settings.remote or 'shared files'} at {settings.socket}.")
    manager.run()


@command.command()
@click.argument("models", nargs=-1, required=True, metavar="NAME=PATH…")
@click.option(
    "--to",
    "root",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that is a remote, or is copied to one.",
)
@json_option
def publish(models: tuple[str, ...], root: Path, as_json: bool) -> None:
    """Write models to a remote's folder. PATH is a safetensors file, or a folder of them."""
    found = dict(_model_files(text) for text in models)
    publishing.publish(found, root)
    rows = [
        {"name": str(name), "files": len(paths), "bytes": sum(map(os.path.getsize, paths))}
        for name, paths in found.items()
    ]
    if as_json:
        print_json({"models": rows})
        return
    columns = ("name", "files", "bytes")
    print_table(columns, [[row[column] for column in columns] for row in rows])


def _model_files(text: str) -> tuple[ModelName, list[Path]]:
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise click.UsageError(f"{text!r}: must be NAME=PATH, such as digits@2=digits.safetensors")
    found = Path(path)
    files = sorted(found.glob("*.safetensors")) if found.is_dir() else [found]
    return ModelName.parse(name), files


@command.command()
@_socket_option
@json_option
def ls(socket_path: Path | None, as_json: bool) -> None:
    """List the store's models and the tiers that they are in.

    attach_ms is the least time that a process took to attach to a model of so many files in each
    tier; copy_ms is that of a copy from each tier at the measured bandwidth.
    """
    models = list_models(socket_path)
    if as_json:
        print_json({"models": models})
        return
    columns = ["name", "files", "bytes", "host_bytes", "disk_bytes", "leases"]
    if any("device_bytes" in model for model in models):
        columns.insert(3, "device_bytes")
    times = [name for name in ("attach_ms", "copy_ms") if any(model[name] for model in models)]
    print_table(
        (*columns, *times),
        [
            [
                *(model[column] for column in columns),
                *(", ".join(f"{at} {ms:.3g}" for at, ms in model[name].items()) for name in times),
            ]
            for model in models
        ],
    )


@command.command()
@click.argument("name")
@_socket_option
@json_option
def warm(name: str, socket_path: Path | None, as_json: bool) -> None:
    """Load a model into memory for the next process that opens it."""
    hold, files = open_model(name, socket_path)
    for file in files:
        os.close(file.descriptor)
    hold.close()
    size_bytes = sum(file.size_bytes for file in files)
    _answer(
        {"name": name, "files": len(files), "bytes": size_bytes},
        f"{name} is in memory: {len(files)} files, {size_bytes} bytes.",
        as_json,
    )


@command.command()
@click.argument("name")
@click.option("--disk", is_flag=True, help="Remove it from the disk, too.")
@_socket_option
@json_option
def evict(name: str, disk: bool, socket_path: Path | None, as_json: bool) -> None:
    """Drop an unused model from memory.

    The next open reads its list of files from the remote.
    """
    ask("evict", name, socket_path, disk=disk)
    _answer({"name": name, "evicted": True}, f"{name}: evicted.", as_json)


@command.command()
@click.option("--prometheus", is_flag=True, help="Print Prometheus metrics, sojourn_store_*.")
@_socket_option
@json_option
def stats(prometheus: bool, socket_path: Path | None, as_json: bool) -> None:
    """Show the store's counters, per tier."""
    if prometheus and as_json:
        raise click.UsageError("--prometheus: omit it, or --json")
    found = ask("stats", socket_path=socket_path)
    if prometheus:
        click.echo(exposition(found), nl=False)
        return
    if as_json:
        print_json(found)
        return
    totals = ("opens", "granted", "refused", "waiting", "leases")
    print_table(totals, [[found[total] for total in totals]])
    columns = ("budget_bytes", "used_bytes", "blobs", "hits", "misses", "evictions")
    print_table(
        ("tier", *columns),
        [[tier, *(row[column] for column in columns)] for tier, row in found["tiers"].items()],
    )
    print_table(
        ("copied from", "to", "bytes", "seconds"),
        [
            [row["source"], row["target"], row["bytes"], float(row["seconds"])]
            for row in found["copies"]
        ],
    )


def _answer(result: dict[str, Any], line: str, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        say(line)
