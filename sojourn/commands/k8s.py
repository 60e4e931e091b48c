"""`sojourn k8s`: write Kubernetes manifests that serve a config with KubeRay."""

from pathlib import Path

import click

from sojourn.k8s_release import GPU_OVERLAYS, copy_manifests, write_release
from sojourn.output import existing_file, json_option, print_json, say


@click.group(name="k8s")
def command() -> None:
    """Write Kubernetes manifests that serve a config with KubeRay. `render` has --json."""


@command.command()
@click.option("--image", required=True, help="REGISTRY/NAME@sha256:DIGEST of the image.")
@click.option(
    "--config",
    type=existing_file,
    required=True,
    help="The Serve config of your model, as `sojourn package` writes it.",
)
@click.option(
    "--of",
    "base",
    type=click.Choice(["base", *GPU_OVERLAYS]),
    default="base",
    show_default=True,
    help="Manifests that the overlay is based on.",
)
@click.option("--token", help="Name of a token to make, with a Secret that holds it.")
@click.option("--insecure", is_flag=True, help="Allow a service without tokens.")
@click.option("--store", is_flag=True, help="Add a model store to each node.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("k8s"),
    show_default=True,
    help="Folder of the manifests; they are copied there unless it is the checkout's.",
)
@json_option
def render(
    image: str,
    config: Path,
    base: str,
    token: str | None,
    insecure: bool,
    store: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Write the overlay `release` with your image, config and token.

    It has room for as many pods as the config's max_replicas, and a quarter more for upgrades. A
    second run keeps the token, and the copied manifests that you changed.
    """
    kept = copy_manifests(out)
    release = write_release(out, image, base, config, token, insecure=insecure, store=store)
    if kept:
        files = ", ".join(map(str, kept))
        say(f"kept, though Sojourn's differ (delete a file to get Sojourn's): {files}")
    if as_json:
        print_json({"overlay": str(release), "kept": [str(path) for path in kept]})
    else:
        say(f"apply it with: kubectl apply -n sojourn -k {release}")
