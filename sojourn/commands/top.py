"""`sojourn top`: watch a running service in the terminal."""

import contextlib
import json
import os
import select
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from deployments.access.credentials import TOKEN_VARIABLE, authorization, read_token
from deployments.local.urls import NO_ANSWER, check_url
from policy.errors import InvalidInputError
from sojourn import option_types
from sojourn.commands.top_frame import frame
from sojourn.commands.top_view import ServiceView
from sojourn.output import json_option, print_json, token_file_option, url_option

ASK_TIMEOUT_S = 2.0
#: How often the keyboard is read while a frame stands.
KEY_PERIOD_S = 0.2
#: Of one frame: polls for each replica. Of two replicas, each is missed once in 256 times.
_THOROUGH_POLLS = 4


@click.command("top")
@url_option
@token_file_option
@click.option(
    "--interval-s",
    type=option_types.Number(0.1, 60.0),
    default=1.0,
    show_default=True,
    help="Time between two polls.",
)
@click.option("--once", is_flag=True, help="Print one frame, after two polls.")
@json_option
def command(
    url: str, token_file: Path | None, interval_s: float, once: bool, as_json: bool
) -> None:
    """Watch a running service in the terminal; q or Ctrl-C ends it.

    It shows the SLA and the share in time, the load and what became of it, predicted response times
    beside measured ones, replicas, and the autoscaler's last decisions with their reasons. With
    --json, one object after two polls.
    """
    check_url("--url", url)
    console = Console()
    if not (once or as_json or console.is_terminal):
        raise InvalidInputError("top needs a terminal; use --once or --json without one")
    view, ask = ServiceView(url.rstrip("/")), _asker(url.rstrip("/"), read_token(token_file))
    thoroughly = once or as_json
    _poll(view, ask, thoroughly)
    if thoroughly:
        time.sleep(interval_s)
        _poll(view, ask, thoroughly)
        snapshot = view.snapshot(time.monotonic())
        if as_json:
            print_json(snapshot)
        else:
            console.print(frame(snapshot, console.width, max(24, console.height)))
        return
    _watch(console, view, ask, interval_s)


def _watch(
    console: Console, view: ServiceView, ask: Callable[[str], Any], interval_s: float
) -> None:
    """Draw until q or Ctrl-C."""
    lock, stopped, polled = threading.Lock(), threading.Event(), threading.Event()

    def poll_forever() -> None:
        while not stopped.wait(interval_s):
            try:
                with lock:
                    polls = view.polls
                answers = _answers(ask, polls)
                with lock:
                    _add(view, answers)
            except Exception as error:
                # Whatever it is, the screen must not show old numbers as if they were new.
                with lock:
                    view.add_failure(time.monotonic(), str(error) or type(error).__name__)
            polled.set()

    def drawn() -> Any:
        with lock:
            snapshot = view.snapshot(time.monotonic())
        return frame(snapshot, console.width, console.height)

    # A poll that hangs must not keep the command from ending.
    threading.Thread(target=poll_forever, daemon=True).start()
    live = Live(drawn(), console=console, screen=True, auto_refresh=False)
    try:
        with contextlib.suppress(KeyboardInterrupt), _single_keys():
            live.start(refresh=True)
            size = console.size
            while _key(KEY_PERIOD_S) not in ("q", "Q"):
                if polled.is_set() or console.size != size:
                    polled.clear()
                    size = console.size
                    live.update(drawn(), refresh=True)
    finally:
        # Ctrl-C may come while the first frame is drawn; `with` would leave the screen as it is.
        live.stop()
        stopped.set()


def _poll(view: ServiceView, ask: Callable[[str], Any], thoroughly: bool) -> None:
    """Poll once; `thoroughly`: so often that each of a few replicas is reached, very likely."""
    if thoroughly:
        view.add_autoscaler(ask("/sojourn/autoscaler"))
    many = view.polls > 1 and thoroughly
    _add(view, _answers(ask, _THOROUGH_POLLS * view.polls if many else view.polls))


def _answers(ask: Callable[[str], Any], polls: int) -> tuple[list[Any], Any]:
    """Return what replicas say of themselves, each with its pipeline or None, and decisions."""
    replicas = []
    for _ in range(polls):
        policy = ask("/sojourn/policy")
        replicas.append((policy, ask("/sojourn/pipeline") if "stages" in policy else None))
    return replicas, ask("/sojourn/autoscaler")


def _add(view: ServiceView, answers: tuple[list[Any], Any]) -> None:
    replicas, autoscaler = answers
    view.add_autoscaler(autoscaler)
    now_s = time.monotonic()
    for policy, pipeline in replicas:
        view.add_policy(now_s, policy, pipeline)


def _asker(url: str, token: str | None) -> Callable[[str], Any]:
    """Return what asks for a path of the service.

    Each question has a connection of its own, so that a balancer sends it to any replica.
    """

    def ask(path: str) -> Any:
        request = urllib.request.Request(url + path, headers=authorization(token))
        try:
            with urllib.request.urlopen(request, timeout=ASK_TIMEOUT_S) as answer:
                content = json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            raise InvalidInputError(_refused(url, error.code)) from None
        except NO_ANSWER as error:
            reason = getattr(error, "reason", error)
            raise InvalidInputError(f"no service answers at {url} ({reason})") from None
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise InvalidInputError(f"{url}{path} is not that of a Sojourn service")
        return content

    return ask


def _refused(url: str, status: int) -> str:
    if status in (401, 403):
        return (
            f"the service at {url} wants a token for operations: give it with --token-file or in "
            f"{TOKEN_VARIABLE}"
        )
    if status == 404:
        return (
            f"there is no Sojourn service at {url}; --url ends with its route prefix, if it has one"
        )
    return f"the service at {url} is not ready: HTTP {status}"


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Hand keys over as they are pressed, without echo, until the end."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(timeout_s: float) -> str:
    """Return the key pressed within a time; an empty string if there is none."""
    if not sys.stdin.isatty():
        time.sleep(timeout_s)
        return ""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""
