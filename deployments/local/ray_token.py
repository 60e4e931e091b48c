"""The token by which Ray knows its user: everybody else on the machine is turned away."""

import os
import secrets
import stat
from pathlib import Path

from deployments.errors import StartError


def ray_access() -> dict[str, str]:
    """Return the environment with which this user's processes may talk to a local run's Ray.

    Ray asks for a token, which it finds where it always does; one is made if there is none. Other
    users of the machine may not read it.

    Raises
    ------
    StartError
        The token cannot be written.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if mode == "token" and "RAY_AUTH_TOKEN" not in os.environ:
        try:
            _make_token(path)
        except OSError as error:
            raise StartError(
                f"Ray's token: {path}: {error.strerror}; set RAY_AUTH_TOKEN_PATH to another file"
            ) from error
    return {"RAY_AUTH_MODE": mode}


def _make_token(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.stat().st_uid == os.getuid() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)  # Ray lets everybody read the one that it makes
        return
    with open(descriptor, "w") as file:
        file.write(secrets.token_hex(32))


def ray_headers() -> dict[str, str]:
    """Return the HTTP headers with which Ray's dashboard answers this user."""
    access = ray_access()
    if access["RAY_AUTH_MODE"] != "token":
        return {}
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    token = os.environ.get("RAY_AUTH_TOKEN") or Path(path).read_text().strip()
    return {"Authorization": f"Bearer {token}"}
