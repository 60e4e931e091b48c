"""The command line, `sojourn COMMAND`: each command is in a module of `sojourn.commands`.

A command's module is imported only when that command runs, so `sojourn solve` does not wait for Ray
or torch to load.
"""

import errno
import importlib
import sys
from collections.abc import Sequence

import click

from sojourn.name_clashes import hidden_package

COMMANDS = {
    "deploy": "Deploy a config, or another SLA, to a running service, and wait for it.",
    "explain": "Explain why a running service refused requests or was late, and what to change.",
    "grpc": "Serve the Open Inference Protocol over gRPC in front of a running service.",
    "init": "Write a project to start from: a model, its config, and a test.",
    "k8s": "Write Kubernetes manifests that serve a config with KubeRay.",
    "loadtest": "Send Locust load to a running service and check every answer.",
    "package": "Pack the models of a config, to bring them along to a cluster.",
    "pipeline": "Serve, plan, measure and run pipelines of stages under one SLA.",
    "plan": "Compute how many replicas an arrival rate needs under an SLA.",
    "profile": "Measure a model's time and energy on a device, per batch size.",
    "serve": "Serve models and pipelines on this machine under their SLAs.",
    "simulate": "Simulate a fleet on your trace and compare autoscalers.",
    "solve": "Compute the optimal batching policy of a profile at an arrival rate.",
    "store": "Share one copy of each model's weights among this machine's processes.",
    "top": "Watch a running service in the terminal: its SLA, replicas, and decisions.",
    "token": "Make a token that lets a client use a service.",
}
#: Modules that have a second command, by its name.
_MODULES = {"explain": "top"}
#: Their matrices are small: several threads would spend more time waiting for each other.
_COMMANDS_OF_ONE_THREAD = ("plan", "simulate", "solve")

#: The extra of pyproject.toml that brings a package.
_EXTRAS = {"matplotlib": "reports", "obstore": "store", "torch": "torch"}
#: What a write or a close says of a disk, without the name of the file.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


def load_command(name: str) -> click.Command:
    """Import one of `COMMANDS`."""
    if name in _COMMANDS_OF_ONE_THREAD:
        from deployments.models.threads import limit_threads

        limit_threads(1)
    module = importlib.import_module(f"sojourn.commands.{_MODULES.get(name, name)}")
    command: click.Command = getattr(module, name if name in _MODULES else "command")
    return command


class _LazyGroup(click.Group):
    """A group whose commands have a name and a short help until one of them is run."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(name or ""), rest


@click.group(
    cls=_LazyGroup,
    commands=[click.Command(name, short_help=text) for name, text in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="sojourn", message="%(prog)s %(version)s")
def cli() -> None:
    """Keep a response-time SLA with the fewest replicas and the least energy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: `arguments`, or those of this process.

    A user error prints one line on stderr and exits with status 2, never with a traceback.
    """
    if clash := hidden_package():
        click.echo(f"sojourn: {clash}", err=True)
        return 2
    from policy.errors import SojournError  # not before the check that it is Sojourn's

    try:
        status = cli.main(args=arguments, prog_name="sojourn", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error), err=True)
        return 2
    except click.Abort:
        return 130
    except (click.ClickException, SojournError) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"sojourn: {' '.join(message.split())}", err=True)
        return 2
    except OSError as error:
        if error.filename is None and error.errno not in _DISK_ERRORS:
            raise  # no file or disk that a user could have chosen
        path = "" if error.filename is None else f"{error.filename}: "
        click.echo(f"sojourn: {path}{error.strerror}", err=True)
        return 2
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _EXTRAS:
            raise
        remedy = f"pip install 'sojourn[{_EXTRAS[package]}]'"
        click.echo(f"sojourn: {package} is missing: {remedy}", err=True)
        return 2
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
