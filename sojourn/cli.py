"""The command line: `sojourn COMMAND`, each command a module of `sojourn.commands`.

Modules are imported only when their command is asked for, so that `sojourn solve` waits for
neither ray nor torch.
"""

import importlib
import sys
from collections.abc import Sequence

import click

from policy.errors import SojournError

COMMANDS = {
    "loadtest": "Send Locust load to a running service and check every answer.",
    "plan": "How many replicas an arrival rate needs under an SLA.",
    "profile": "Measure what a model costs on a device, per batch size.",
    "serve": "Serve a model on this machine under its SLA.",
    "simulate": "What a fleet would do on your trace, beside other autoscalers.",
    "solve": "The optimal batching policy of a profile at an arrival rate.",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"sojourn.commands.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sojourn", message="%(prog)s %(version)s")
def cli() -> None:
    """Keep a response-time SLA with the fewest replicas and the least energy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    A user's mistake ends in one line on stderr and status 2, never in a traceback.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after `sojourn`; those of the process if not given.

    Returns
    -------
    int
        The exit status.
    """
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
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
