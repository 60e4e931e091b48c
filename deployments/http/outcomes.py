"""What becomes of the outcomes of inference requests: answers, counts, and lines of the log."""

import logging

from deployments.errors import ModelError, RequestError
from deployments.http.answers import BINARY, JSON, Answer, error_answer
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.request import HEADER_LENGTH
from deployments.http.response_encoding import encode_response
from deployments.http.service_interface import Service
from deployments.http.signature import Tensors
from deployments.observability.inference_statistics import RequestTotals
from deployments.observability.request_info import RequestInfo
from deployments.observability.request_log import RequestLog

logger = logging.getLogger("sojourn.http")


class Outcomes:
    """Answers the requests to one model, on both ways through the HTTP interface.

    Parameters
    ----------
    model : str
        Its name, for the log.

    Attributes
    ----------
    totals : RequestTotals
        The requests that were answered, and those that failed.
    """

    def __init__(self, model: str) -> None:
        self.totals = RequestTotals()
        self._log = RequestLog(model)

    def success(
        self, request: InferenceRequest, outputs: Tensors, service: Service, arrival_s: float
    ) -> Answer:
        """Return the answer with the outputs that a service computed, and count the request.

        Raises
        ------
        RequestError
            The outputs cannot be encoded.
        """
        try:
            body, length = encode_response(
                service.model_name, service.model_version, request, outputs
            )
        except RequestError:
            raise
        except Exception:
            logger.exception("failed to encode the model's outputs")
            raise ModelError("the model returned outputs that cannot be encoded") from None
        self.totals.answered(request.rows, arrival_s)
        service.count_answered(request.rows, arrival_s)
        if length is None:
            return 200, body, [JSON]
        return 200, body, [BINARY, (HEADER_LENGTH, b"%d" % length)]

    def failure(self, error: Exception, info: RequestInfo, arrival_s: float) -> Answer:
        """Log a request that failed, and return its answer; only a `RequestError` is explained.

        Parameters
        ----------
        error : Exception
        info : RequestInfo
        arrival_s : float
            When it arrived, by `time.monotonic`.
        """
        if not isinstance(error, RequestError):
            logger.error("internal error while answering a request", exc_info=error)
            error = ModelError("internal error while answering this request")
        self.log_failure(error.status, str(error), info, arrival_s)
        return error_answer(error)

    def log_failure(
        self, status: int, error: str, info: RequestInfo, arrival_s: float, *, likewise: int = 0
    ) -> None:
        """Log a request that was refused or failed; too many lines are left out.

        So are those of `likewise` further requests.
        """
        self._log.failed(
            status,
            error,
            info.request_id,
            arrival_s,
            token=info.token,
            traceparent=info.traceparent,
            likewise=likewise,
        )
