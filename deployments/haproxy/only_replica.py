"""What HAProxy and a replica tell each other where no other replica should be asked.

HAProxy sends a request that is answered 503 to another replica, or again to the same one if there
is no other. That has no more room a millisecond later, and refusing six times leaves it no time for
answers. So HAProxy marks the requests of an only replica, which refuses them by a status of its
own. HAProxy makes it a 503 for the client. (`disable-l7-retry` would also keep HAProxy from trying
again what a dying replica held, and its clients would get no answer.)
"""

#: The header that HAProxy adds; what clients send under this name is removed.
HEADER = b"x-sojourn-only-replica"
#: The status that is not tried again.
REFUSED_STATUS = 529

#: HAProxy's rules, for each backend.
RULES = (
    f"http-request del-header {HEADER.decode()}",
    f"http-request set-header {HEADER.decode()} 1 if {{ nbsrv le 1 }}",
    f"http-response set-status 503 if {{ status {REFUSED_STATUS} }}",
)


def status_on_wire(status: int, *, only_replica: bool) -> int:
    """Return the status to send to HAProxy.

    Parameters
    ----------
    status : int
        Of the answer, as clients are to see it.
    only_replica : bool
        Whether the request has `HEADER`.
    """
    return REFUSED_STATUS if only_replica and status == 503 else status
