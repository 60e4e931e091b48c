"""The priorities of requests, numbered as Triton numbers them: 1 is the highest, 0 the default."""

import reprlib
from dataclasses import dataclass

from deployments.errors import BadRequestError

#: The largest number that may stand for a priority.
MAX_PRIORITY_LEVELS = 100
#: Levels of priority, unless the config says otherwise.
LEVELS = 2


@dataclass(frozen=True)
class PriorityLevels:
    """The priorities that requests may have, numbered as Triton numbers them.

    Attributes
    ----------
    levels : int
        Level 1 is the highest priority, this one the lowest.
    default : int
        The level of requests that name none, or 0.
    """

    levels: int = LEVELS
    default: int = LEVELS

    def steps(self, first: int, second: int = 0) -> int:
        """Return how many steps above the lowest level a request is.

        Parameters
        ----------
        first, second : int
            Valid priorities, of which the higher one applies.
        """
        return self.levels - (min(first, second) or first or second or self.default)

    def check(self, value: object, where: str) -> int:
        """Return `value` if it is a valid priority.

        Raises
        ------
        BadRequestError
            It is not a whole number from 0 to `levels`.
        """
        if type(value) is not int or not 0 <= value <= self.levels:
            raise BadRequestError(
                f"{where} must be from 1 (highest) to {self.levels} (lowest), or 0 for the "
                f"default, {self.default}; not {reprlib.repr(value)}"
            )
        return value


#: Two levels, the lower one by default.
DEFAULT_PRIORITIES = PriorityLevels()
