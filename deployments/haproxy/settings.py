"""The environment variables by which the supervisor is told what Ray does not say."""

#: Where Ray reads which program is its HAProxy.
RAYS_HAPROXY = "RAY_SERVE_HAPROXY_BINARY_PATH"
#: The HAProxy to supervise, instead of the one that Ray would run.
HAPROXY = "SOJOURN_HAPROXY"
#: Where the service is to listen, instead of where Serve was told; Ray's pages then stay closed.
HTTP_HOST = "SOJOURN_HTTP_HOST"
#: The backends of applications that are never scaled to zero, with commas between them.
ALWAYS_SERVED = "SOJOURN_ALWAYS_SERVED"
