"""Client credentials: the source of a token, and its header field.

A token is never a command-line argument, which every user of the machine could read.
"""

import os
from pathlib import Path

from policy.errors import InvalidInputError

#: The environment variable that holds a token.
TOKEN_VARIABLE = "SOJOURN_TOKEN"


def read_token(path: Path | None = None) -> str | None:
    """Return the token in a file, or else in `TOKEN_VARIABLE`, or None.

    `InvalidInputError` if the file cannot be read, or does not hold one word.
    """
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        words = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise InvalidInputError(f"{path}: {reason}") from None
    if len(words) != 1:
        raise InvalidInputError(f"{path}: must hold one token and nothing else")
    return words[0]


def authorization(token: str | None) -> dict[str, str]:
    """Return the client's header fields for a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}
