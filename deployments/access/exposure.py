"""Refuse to open a service to a network by accident."""

from deployments.access.control import INFERENCE
from deployments.access.web_pages import is_loopback
from deployments.config.user_config import AccessConfig
from policy.errors import InvalidInputError


def check_exposure(host: str, access: AccessConfig, insecure: bool) -> None:
    """Raise an `InvalidInputError` if a service on a network needs no token for inference.

    `insecure`: the user has accepted that anyone may use it.
    """
    if insecure or is_loopback(host) or access.closed(INFERENCE):
        return
    raise InvalidInputError(
        f"host: anyone who reaches {host} could use the service; `sojourn token NAME` makes a "
        "token, or --insecure serves without"
    )
