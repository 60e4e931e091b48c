"""What every ASGI app does beside answering: the server's lifespan, and paths below a prefix."""

from starlette.types import Receive, Scope, Send


def path_of(scope: Scope) -> str:
    """Return the path of a request, without the application's prefix and slashes at its end."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")).rstrip("/")


async def lifespan(receive: Receive, send: Send) -> None:
    """Answer the events of a server that starts and stops, until it has stopped."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
