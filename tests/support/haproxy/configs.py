"""HAProxy configurations as Ray writes them: the lines that matter here."""

from collections.abc import Sequence
from pathlib import Path

_GLOBAL = """\
global
    log 127.0.0.1:514 local0 info
    stats socket {folder}/admin.sock mode 666 level admin expose-fd listeners
    stats timeout 30s
    maxconn 4096
    nbthread 1
    tune.bufsize 65536
    hard-stop-after 120s
defaults
    mode http
    timeout connect 5s
    timeout client 3600s
    timeout server 3600s
    log global
    option httplog
    option abortonclose
    option redispatch 1
    retry-on 503 conn-failure empty-response
    retries 5
    errorfile 502 {folder}/500.http
    errorfile 503 {folder}/500.http
    errorfile 504 {folder}/500.http
    balance random(1)
frontend prometheus
    bind :{ports[0]}
    no log
frontend http_frontend
    bind {host}:{ports[1]}
"""
_BACKEND = """\
    acl is_http-app path_beg /
    use_backend http-app if is_http-app
    default_backend default_backend
backend http-app
    http-reuse always
    option httpchk GET /-/healthz
    http-check expect status 200
    default-server fastinter 250ms downinter 250ms fall 20 rise 2 inter {inter} check
"""
_END = """\
backend default_backend
    http-request return status 404 content-type text/plain string "no such path"
listen stats
  bind *:{ports[2]}
  stats enable
  stats uri /stats
"""
OPTIONS = "check observe layer4 error-limit 1 on-error mark-down"
_ERROR = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nerror"


def ray_config(
    folder: Path,
    host: str,
    ports: tuple[int, int, int],
    servers: Sequence[int] | None,
    proxy: int | None = None,
    inter: str = "500ms",
) -> str:
    """Return a configuration of a service on `host`.

    Its admin socket and its error file are in `folder`. The `ports` are those of the metrics, the
    service and the statistics. The `servers` are the ports of the replicas on this machine, None
    for no application; `proxy` is that of Serve's own proxy. `inter` is the time between checks.
    """
    (folder / "500.http").write_text(_ERROR)
    lines = [f"    server replica-{port} 127.0.0.1:{port} {OPTIONS}\n" for port in servers or ()]
    if proxy is not None:
        lines.append(f"    server SERVE_PROXY_ACTOR-head 127.0.0.1:{proxy} check backup\n")
    parts = [_GLOBAL, *([] if servers is None else [_BACKEND, *lines]), _END]
    return "".join(parts).format(folder=folder, host=host, ports=ports, inter=inter)
