"""A measured profile shared by replicas, so that only the first one measures."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from policy.errors import InvalidInputError
from policy.profile import Profile

logger = logging.getLogger("sojourn.service")


@dataclass(frozen=True)
class ProfileCache:
    """The profile that an earlier replica measured with the same model, config and machine.

    `read` returns the bytes of the last `write`, or None.
    """

    read: Callable[[], bytes | None]
    write: Callable[[bytes], None]

    def load(self) -> Profile | None:
        content = self.read()
        if content is None:
            return None
        try:
            return Profile.from_dict(json.loads(content))
        except (ValueError, TypeError, KeyError, InvalidInputError) as error:
            logger.warning("the profile of an earlier replica cannot be used: %s", error)
            return None

    def save(self, profile: Profile) -> None:
        self.write(json.dumps(profile.to_dict()).encode())
