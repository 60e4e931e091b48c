"""Access control of a replica: tokens, scopes and rates.

Both paths of a request (`deployments.http`) use the same check, before anything that costs more: a
request without access is not parsed and does not count as load.
"""

import math
from collections import Counter

from deployments.access.tokens import bearer_token, digest_of
from deployments.config.user_config import AccessConfig, Scope, TokenConfig
from deployments.errors import ForbiddenError, RateLimitedError, UnauthorizedError
from deployments.token_bucket import TokenBucket

#: The errors of denied requests.
DENIALS = (UnauthorizedError, ForbiddenError, RateLimitedError)
INFERENCE: Scope = "inference"
OPERATIONS: Scope = "operations"
#: Probes of load balancers and Kubernetes carry no token, and learn only whether the model runs.
#: The console's page asks for the token itself; its files hold no data.
_OPEN_PATHS = ("/v2/health/live", "/v2/health/ready", "/sojourn")
_OPEN_FILES = "/sojourn/static/"
_OPERATIONS_PATHS = ("/sojourn/", "/metrics/")


def scope_of(path: str) -> Scope | None:
    """Return the scope that a path (without its prefix) requires, or None for an open path."""
    if path in _OPEN_PATHS or path.startswith(_OPEN_FILES):
        return None
    if f"{path}/".startswith(_OPERATIONS_PATHS):
        return OPERATIONS
    return INFERENCE


class AccessControl:
    """Admit or deny requests by their Authorization header; by default, everything is open.

    `local_only`: the service is for this machine, and what needs no token is closed to web pages.
    """

    def __init__(self, config: AccessConfig | None = None) -> None:
        self.admitted: Counter[str] = Counter()
        self.denied: Counter[int] = Counter()
        self.local_only = False
        self._replicas = 1
        #: By digest. The duration of a search reveals nothing: nobody can choose a token by that.
        self._tokens: dict[bytes, TokenConfig] = {}
        self._by_name: dict[str, TokenConfig] = {}
        #: Of the tokens with a rate, by name.
        self._buckets: dict[str, TokenBucket] = {}
        self._closed: frozenset[Scope] = frozenset()
        self.configure(config or AccessConfig())

    def configure(self, config: AccessConfig) -> None:
        """Apply a configuration; a token with an unchanged limit keeps its usage."""
        before, tokens = self._buckets, config.tokens or ()
        self._closed = frozenset(scope for scope in (INFERENCE, OPERATIONS) if config.closed(scope))
        self._tokens = {token.digest: token for token in tokens}
        self._by_name = {token.name: token for token in tokens}
        self._buckets = {}
        for token in tokens:
            if token.requests_per_s is not None:
                share, bucket = self._share(token), before.get(token.name)
                if bucket is None or (bucket.rate_per_s, bucket.burst) != share:
                    bucket = TokenBucket(*share)
                self._buckets[token.name] = bucket

    @property
    def limits_rates(self) -> bool:
        return bool(self._buckets)

    def share_among(self, replicas: int, now_s: float) -> None:
        """Limit tokens to this replica's share of their rates, one of `replicas` equal shares."""
        replicas = max(1, replicas)
        if replicas == self._replicas:
            return
        self._replicas = replicas
        for name, bucket in self._buckets.items():
            bucket.resize(*self._share(self._by_name[name]), now_s)

    def admit(
        self,
        authorization: bytes | None,
        scope: Scope | None,
        now_s: float,
        *,
        is_foreign: bool = False,
    ) -> str | None:
        """Admit and count a request; return the name of its token, or None if it needs none.

        `scope` is that of its path (`scope_of`); `is_foreign`: it may come from a web page. Raises
        one of `DENIALS`.
        """
        if scope not in self._closed:
            if is_foreign and self.local_only and scope is not None:
                self.denied[ForbiddenError.status] += 1
                raise ForbiddenError(
                    "without tokens, this service answers http://localhost and http://127.0.0.1 "
                    "only, and no pages of other sites",
                    scope,
                )
            return None
        try:
            token = self._allowed(authorization, scope)
            bucket = self._buckets.get(token.name)
            if bucket is not None and not bucket.take(now_s):
                raise RateLimitedError(
                    f"the token {token.name!r} is limited to {token.requests_per_s:g} requests per "
                    "second",
                    retry_after_s=max(1, math.ceil(bucket.wait_s(now_s))),
                )
        except DENIALS as error:
            self.denied[error.status] += 1
            raise
        self.admitted[token.name] += 1
        return token.name

    def check_priority(self, name: str | None, level: int, scope: Scope = INFERENCE) -> None:
        """Raise a `ForbiddenError` if a token may not claim a level of priority; 0 claims none."""
        token = self._by_name.get(name) if level and name is not None else None
        if token is not None and level < token.highest_priority:
            self.denied[ForbiddenError.status] += 1
            raise ForbiddenError(
                f"the token {name!r} may claim priorities from {token.highest_priority} on, not "
                f"{level}",
                scope,
            )

    def allows(self, authorization: bytes | None, scope: Scope) -> bool:
        """Return whether a request has a token for `scope`, whatever its rate, without counting it.

        This is for requests whose bodies have not arrived yet.
        """
        if scope not in self._closed:
            return True
        try:
            self._allowed(authorization, scope)
        except (UnauthorizedError, ForbiddenError):
            return False
        return True

    def _allowed(self, authorization: bytes | None, scope: Scope) -> TokenConfig:
        if authorization is None:
            raise UnauthorizedError("this needs a token: send the header Authorization: Bearer …")
        secret = bearer_token(authorization)
        if secret is None:
            raise UnauthorizedError("the header Authorization must be: Bearer, a space, the token")
        token = self._tokens.get(digest_of(secret))
        if token is None:
            raise UnauthorizedError("the token is unknown or was revoked", invalid=True)
        if scope not in token.scopes:
            raise ForbiddenError(f"the token {token.name!r} does not have the scope {scope}", scope)
        return token

    def _share(self, token: TokenConfig) -> tuple[float, float]:
        """Return this replica's share of a token's rate and burst."""
        assert token.requests_per_s is not None
        burst = token.requests_per_s if token.burst is None else token.burst
        return token.requests_per_s / self._replicas, max(1.0, burst / self._replicas)
