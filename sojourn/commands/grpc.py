"""`sojourn grpc`: serve the Open Inference Protocol over gRPC in front of a running service."""

import os

import click

from deployments.local.urls import check_url
from sojourn.output import json_option, print_json, say, url_option


@click.command("grpc")
@url_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9000,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--max-message-mib",
    type=click.IntRange(1, 2047),
    default=64,
    show_default=True,
    help="Limit of a request in MiB. The service's own limits.max_body_bytes applies as well.",
)
@json_option
def command(url: str, host: str, port: int, max_message_mib: int, as_json: bool) -> None:
    """Serve the Open Inference Protocol over gRPC in front of a running service.

    Each call becomes an HTTP request with binary tensors to --url. Metadata such as
    `authorization`, the deadline, and errors pass through. With --json, the address is printed.
    """
    check_url("--url", url)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are ours to report
    import uvloop

    from deployments.grpc.front import run_front

    def ready(bound: int) -> None:
        if as_json:
            print_json({"host": host, "port": bound, "url": url})
        else:
            say(f"gRPC at {host}:{bound}, answered by {url}. Ctrl-C stops it.")

    uvloop.run(run_front(url.rstrip("/"), host, port, max_message_mib << 20, ready))
