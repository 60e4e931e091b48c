"""The errors of a pipeline's stages."""

from deployments.errors import ModelError, RequestError


class StageError(ModelError):
    """A stage failed on one request; `status` is that of a `cause` that is a `RequestError`."""

    def __init__(self, stage: str, cause: BaseException) -> None:
        super().__init__(f"stage {stage!r}: {type(cause).__name__}: {cause}")
        self.stage = stage
        self.cause = cause
        self.__cause__ = cause
        if isinstance(cause, RequestError):
            self.status = cause.status

    def __reduce__(self) -> tuple[type["StageError"], tuple[str, BaseException]]:
        return type(self), (self.stage, self.cause)

    def for_client(self) -> RequestError:
        """Return the client's error, without the message of an unexpected cause."""
        if isinstance(self.cause, RequestError):
            return self.cause
        return ModelError(f"stage {self.stage!r} failed on this request")


class WorkerLostError(Exception):
    """A worker died or hung on an item, and again on its retry."""


class ResultError(Exception):
    """A stage's result could not be split into one result per item."""
