"""OAuth for tool servers: a token by client credentials (RFC 6749, 4.4), with a secret or a signed assertion (RFC 7523).

The SDK finds the token endpoint as MCP specifies (the server's 401, its protected-resource metadata, the authorization
server's metadata); the credentials are sent only to the configured issuer. All sessions of a process with a server share one
token. While it is valid, requests run in parallel; when it expires, one of them requests the next.
"""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Literal

import httpx2
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

Method = Literal["client_secret_basic", "client_secret_post"]
_UNAUTHORIZED = (401, 403)  # 403: the token's scope is insufficient; a new token may have a wider one


@dataclass(frozen=True)
class ClientCredentials:
    """Either `client_secret` or `private_key` (PEM), which signs assertions with `algorithm`."""

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)
    algorithm: str = "RS256"
    method: Method = "client_secret_basic"
    scope: str | None = None


class SharedToken(httpx2.Auth):
    """The provider holds a lock from a request to its response, so it is used only when there is no valid token."""

    def __init__(self, provider: OAuthClientProvider) -> None:
        self._provider = provider

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        token = self._provider.context.current_tokens
        if token is not None and self._provider.context.is_token_valid():
            request.headers["Authorization"] = f"Bearer {token.access_token}"
            response = yield request
            if response.status_code not in _UNAUTHORIZED:
                return
            del request.headers["Authorization"]
        flow = self._provider.async_auth_flow(request)
        try:
            step = await anext(flow)
            while True:
                response = yield step
                step = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


class _InMemory(TokenStorage):
    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Not stored: the client is configured."""


_Shared = dict[tuple[str, ClientCredentials], SharedToken]
_shared: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared]" = weakref.WeakKeyDictionary()


def shared_token(url: str, credentials: ClientCredentials) -> SharedToken:
    """The shared token for a server, one per process (and event loop, to which its lock belongs)."""
    known = _shared.setdefault(asyncio.get_running_loop(), {})
    key = (url, credentials)
    if key not in known:
        make: Callable[[str, ClientCredentials], OAuthClientProvider] = (
            _signing if credentials.private_key else _telling_a_secret
        )
        known[key] = SharedToken(make(url, credentials))
    return known[key]


def _telling_a_secret(url: str, credentials: ClientCredentials) -> OAuthClientProvider:
    return ClientCredentialsOAuthProvider(
        url,
        _InMemory(),
        credentials.client_id,
        credentials.client_secret,
        token_endpoint_auth_method=credentials.method,
        scope=credentials.scope,
        issuer=credentials.issuer,
    )


def _signing(url: str, credentials: ClientCredentials) -> OAuthClientProvider:
    assertions = SignedJWTParameters(
        issuer=credentials.client_id,
        subject=credentials.client_id,
        signing_key=credentials.private_key,
        signing_algorithm=credentials.algorithm,
    )
    return PrivateKeyJWTOAuthProvider(
        url,
        _InMemory(),
        credentials.client_id,
        assertion_provider=assertions.create_assertion_provider(),
        scope=credentials.scope,
        issuer=credentials.issuer,
    )
