"""The failures of a model, for the person who wrote it: each kind is shown once, then counted."""

import logging
import traceback
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

logger = logging.getLogger("sojourn.batcher")

_OUR_FRAMES = Path(__file__).parent
#: Kinds that are told apart; a message or a line may differ each time.
_MAX_KINDS = 1000


class ModelErrors:
    """Log the requests that a model failed on, and count them.

    Two exceptions are of one kind if they have the same type and were raised at the same line. The
    first is logged with its traceback, from the model's first frame on; later ones when their count
    reaches 10, 100, 1,000 and so on.
    """

    def __init__(self) -> None:
        self.count = 0
        self.model = ""
        self._last: str | None = None
        self._kinds: Counter[tuple[str, str, int]] = Counter()

    def record(self, error: BaseException, rows: int, request_id: bytes = b"") -> None:
        """Count a request; log the error if it is new."""
        self.count += 1
        frames = _model_frames(error.__traceback__)
        where = traceback.extract_tb(frames)[-1:] if frames else []
        file, line = (where[0].filename, where[0].lineno or 0) if where else ("", 0)
        name = type(error).__name__
        self._last = f"{name} ({Path(file).name}:{line})" if file else name
        kind = (name, file, line)
        if kind not in self._kinds and len(self._kinds) >= _MAX_KINDS:
            return
        self._kinds[kind] += 1
        count = self._kinds[kind]
        if count == 1:
            text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
            which = f"request {request_id.decode('latin-1')}" if request_id else "a request"
            logger.error("%s failed on %s (rows: %d)\n%s", self._who(), which, rows, text)
        elif count >= 10 and set(str(count)[1:]) == {"0"} and str(count)[0] == "1":
            logger.error("%s failed: %s, and %d like it", self._who(), self._last, count - 1)

    def _who(self) -> str:
        return f"model {self.model!r}" if self.model else "the model"

    def report(self) -> dict[str, Any]:
        """Return the number of failed requests, and the kind and place of the last error, for JSON.

        Its text may hold what a client sent, so only the log has that.
        """
        return {"requests": self.count, "last": self._last}


def _model_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames from the model's first on: ours say nothing to the model's author."""
    while frames is not None and Path(frames.tb_frame.f_code.co_filename).parent == _OUR_FRAMES:
        frames = frames.tb_next
    return frames
