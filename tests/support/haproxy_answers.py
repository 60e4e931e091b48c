"""Answers of HAProxy's admin socket about a server whose name ends with ``-x7``."""

#: The columns that matter, of the hundred that HAProxy 2.8 prints.
HEADER = "# pxname,svname,stot,qtime,ctime,rtime,ttime,bck,addr,dreq,"
#: HAProxy's total time, which counts how long clients had nothing to ask.
WITH_IDLE_CLIENTS_MS = 5000


def table(requests: int, total_ms: int, earlier_tries_ms: int = 0) -> str:
    """Return its statistics, and those of another server and their backend."""
    connect_ms = min(1, total_ms - earlier_tries_ms)
    response_ms = total_ms - earlier_tries_ms - connect_ms
    times_ms = f"{earlier_tries_ms},{connect_ms},{response_ms},{WITH_IDLE_CLIENTS_MS}"
    return (
        f"{HEADER}\n"
        f"http-a,SERVE_REPLICA__a-Replica-x7,{requests},{times_ms},0,unix,,\n"
        f"http-a,SERVE_REPLICA__a-Replica-other,{requests},0,1,2,3,0,10.0.0.2:9,,\n"
        f"http-a,BACKEND,{requests},0,1,2,3,0,,0,\n\n"
    )
