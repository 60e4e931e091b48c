"""Errors of the model store; each message is one line for the user."""

from policy.errors import InvalidInputError, SojournError


class StoreError(SojournError):
    """Base class of the model store's errors."""


class UnknownModelError(StoreError):
    """The remote has no such model, or no valid list of its files."""


class UntrustedFileError(StoreError):
    """A file was refused and not cached: its digest, length or format is wrong."""


class FetchError(StoreError):
    """The remote, or this machine's disk or memory, failed. A retry may help."""


class StoreFullError(StoreError):
    """The model does not fit into the tier's budget while other models are in use."""


class InUseError(StoreError):
    """The model is in use or pinned, so it stays."""


class DeviceError(StoreError):
    """The device or its driver failed."""


class OutOfDeviceMemoryError(DeviceError):
    """The device has no free memory, whatever the budget."""


class UnavailableError(StoreError):
    """No manager answers on this machine, or it ended."""


#: Errors that cross the socket, by name.
ERRORS: dict[str, type[SojournError]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, StoreError | InvalidInputError)
}
