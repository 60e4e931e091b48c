"""Compiling functions with numba, typed for those who check types."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Without numba's reference counts: a compiled function that is handed twenty arrays would count
# each up and down again, which took 25 times as long as its work. Such a function allocates
# nothing; whoever calls it holds the arrays.
_OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False}
_njit: Any = numba.njit
# What is kept is used for as long as the function's own file stays the same. So a compiled function
# calls none of another file: that one might change.


def compiled(function: F) -> F:
    """Compile `function` when it is first called, and keep the result beside its source."""
    return cast(F, _njit(**_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile `function` into those that call it."""
    return cast(F, _njit(forceinline=True, **_OPTIONS)(function))
