"""Other users of the machine who may open some models of a store."""

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from deployments.modelstore.names import ModelName
from policy.errors import InvalidInputError

#: The user whose manager a client trusts, in addition to its own user and root.
OWNER_VARIABLE = "SOJOURN_STORE_OWNER"


@dataclass(frozen=True)
class Reader:
    """A user who may open the models that match a pattern, such as ``pytorch/resnet*``."""

    uid: int
    models: str

    @classmethod
    def parse(cls, text: str) -> "Reader":
        """Parse ``USER=PATTERN``; the user is a name or a number.

        Raises
        ------
        InvalidInputError
            The text does not have this form, or there is no such user.
        """
        user, equals, models = text.partition("=")
        if not equals or models.count("/") != 1 or not all(models.split("/")):
            raise InvalidInputError(
                f"reader {text!r}: must be USER=FRAMEWORK/NAME, such as alice=pytorch/resnet*"
            )
        return cls(uid_of(user), models)


class Readers:
    """Access to a store: its owner may do everything, readers may open matching models."""

    def __init__(self, readers: Iterable[Reader] = ()) -> None:
        self._readers = tuple(readers)
        #: Users who may connect, the owner included.
        self.users = 1 + len({reader.uid for reader in self._readers})

    def __bool__(self) -> bool:
        return bool(self._readers)

    def admit(self, uid: int) -> bool:
        """Return whether a user may connect."""
        return uid == os.getuid() or any(reader.uid == uid for reader in self._readers)

    def may_open(self, uid: int, model: ModelName) -> bool:
        path = f"{model.framework}/{model.name}"
        return uid == os.getuid() or any(
            reader.uid == uid and fnmatchcase(path, reader.models) for reader in self._readers
        )


def trusted_owners() -> set[int]:
    """Return the users whose manager this process trusts.

    Raises
    ------
    InvalidInputError
        `OWNER_VARIABLE` names no user.
    """
    named = os.environ.get(OWNER_VARIABLE)
    return {0, os.getuid()} | ({uid_of(named)} if named else set())


def uid_of(user: str) -> int:
    """Return the number of a user, from a name or a number.

    Raises
    ------
    InvalidInputError
        There is no user of that name.
    """
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise InvalidInputError(f"there is no user {user!r} on this machine") from None
