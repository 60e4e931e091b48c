"""Typed wrappers around numba's compiler."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Numba's reference counting is off. A compiled function that takes twenty arrays would increment
# and decrement the count of each on every call, which took 25 times as long as the work itself.
# This is safe because the functions allocate nothing and their callers hold the arrays.
_OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False}
_njit: Any = numba.njit
# Numba reuses a cached function until that function's own file changes. A compiled function must
# therefore neither call compiled functions of another file nor use that file's constants.


def compiled(function: F) -> F:
    """Compile `function` on its first call and cache the result next to its source."""
    return cast(F, _njit(**_OPTIONS)(function))


def inlined(function: F) -> F:
    return cast(F, _njit(forceinline=True, **_OPTIONS)(function))


def internal(function: F) -> F:
    """Compile `function` into its callers, which must be compiled functions.

    A call from Python would crash. The wrapper that such a call needs takes longer to compile than
    the function, if the arguments are tuples of many arrays.
    """
    without: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, _njit(forceinline=True, **without, **_OPTIONS)(function))
