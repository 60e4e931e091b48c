"""Access control of a replica: tokens, scopes and rates.

Both paths of a request (`deployments.http`) use the same check, before anything that costs more: a
request without access is not parsed and does not count as load.
"""

import math
from collections import Counter
from dataclasses import dataclass

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


@dataclass(slots=True)
class _Token:
    """A token, prepared for the check."""

    config: TokenConfig
    bucket: TokenBucket | None


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
        self._tokens: dict[bytes, _Token] = {}
        self._closed: frozenset[Scope] = frozenset()
        self.configure(config or AccessConfig())

    def configure(self, config: AccessConfig) -> None:
        """Apply a configuration; a token with an unchanged limit keeps its usage."""
        before = self._tokens
        self._closed = frozenset(scope for scope in (INFERENCE, OPERATIONS) if config.closed(scope))
        self._tokens = {}
        self._highest = {token.name: token.highest_priority for token in config.tokens or ()}
        for token in config.tokens or ():
            old = before.get(token.digest)
            if old is not None and _limit(old.config) == _limit(token):
                bucket = old.bucket
            else:
                bucket = self._make_bucket(token)
            self._tokens[token.digest] = _Token(token, bucket)

    @property
    def limits_rates(self) -> bool:
        return any(token.bucket is not None for token in self._tokens.values())

    def share_among(self, replicas: int, now_s: float) -> None:
        """Limit tokens to this replica's share of their rates, one of `replicas` equal shares."""
        replicas = max(1, replicas)
        if replicas == self._replicas:
            return
        self._replicas = replicas
        for token in self._tokens.values():
            if token.bucket is not None:
                token.bucket.resize(*self._share(token.config), now_s)

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
            bucket = token.bucket
            if bucket is not None and not bucket.take(now_s):
                raise _rate_limited(token.config, bucket.wait_s(now_s))
        except DENIALS as error:
            self.denied[error.status] += 1
            raise
        name = token.config.name
        self.admitted[name] += 1
        return name

    def check_priority(self, name: str | None, level: int, scope: Scope = INFERENCE) -> None:
        """Raise a `ForbiddenError` if a token may not claim a level of priority; 0 claims none."""
        highest = self._highest.get(name, 1) if name is not None else 1
        if 0 < level < highest:
            self.denied[ForbiddenError.status] += 1
            raise ForbiddenError(
                f"the token {name!r} may claim priorities from {highest} on, not {level}", scope
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

    def _allowed(self, authorization: bytes | None, scope: Scope) -> _Token:
        if authorization is None:
            raise UnauthorizedError("this needs a token: send the header Authorization: Bearer …")
        secret = bearer_token(authorization)
        if secret is None:
            raise UnauthorizedError("the header Authorization must be: Bearer, a space, the token")
        token = self._tokens.get(digest_of(secret))
        if token is None:
            raise UnauthorizedError("the token is unknown or was revoked", invalid=True)
        if scope not in token.config.scopes:
            raise ForbiddenError(
                f"the token {token.config.name!r} does not have the scope {scope}", scope
            )
        return token

    def _make_bucket(self, token: TokenConfig) -> TokenBucket | None:
        return None if token.requests_per_s is None else TokenBucket(*self._share(token))

    def _share(self, token: TokenConfig) -> tuple[float, float]:
        """Return this replica's share of a token's rate and burst."""
        assert token.requests_per_s is not None
        burst = token.requests_per_s if token.burst is None else token.burst
        return token.requests_per_s / self._replicas, max(1.0, burst / self._replicas)


def _limit(token: TokenConfig) -> tuple[float | None, float | None]:
    return token.requests_per_s, token.burst


def _rate_limited(token: TokenConfig, wait_s: float) -> RateLimitedError:
    assert token.requests_per_s is not None
    return RateLimitedError(
        f"the token {token.name!r} is limited to {token.requests_per_s:g} requests per second",
        retry_after_s=max(1, math.ceil(wait_s)),
    )
