"""What may be shown of a text that can hold secrets: connection strings, URLs, and messages that quote them. The one place.

    mongodb://ann:pw@db:27017/?tls=true&tlsCertificateKeyFilePassword=pw   ─▶ mongodb://db:27017/?tls=true&***
    http://ann:pw@gateway:8000/mcp?token=t                                 ─▶ http://gateway:8000/mcp?***

It shows what is known to be harmless, and hides the rest: a URL that cannot be taken apart without doubt (a password with an
unescaped `/`, `?`, `#` or `@`, say) shows its scheme alone.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import unquote, unquote_plus

T = TypeVar("T")

HIDDEN = "***"
SHORTEST_WORD = 2  # of a secret's parts that are looked for by themselves

# Options of connection strings whose values are no secrets; every other one is hidden, the unknown too.
_HARMLESS = re.compile(
    r"""appName|authMechanism|authSource|compressors|connect|connectTimeoutMS|directConnection|heartbeatFrequencyMS|journal|loadBalanced
    |localThresholdMS|maxConnecting|maxIdleTimeMS|maxPoolSize|maxStalenessSeconds|minPoolSize|readConcernLevel|readPreference
    |readPreferenceTags|replicaSet|retryReads|retryWrites|serverMonitoringMode|serverSelectionTimeoutMS|socketTimeoutMS|srvMaxHosts
    |srvServiceName|ssl|timeoutMS|tls|tlsAllowInvalidCertificates|tlsAllowInvalidHostnames|tlsCAFile|tlsCertificateKeyFile|tlsCRLFile
    |tlsDisableOCSPEndpointCheck|tlsInsecure|uuidRepresentation|w|waitQueueTimeoutMS|wTimeoutMS|zlibCompressionLevel""",
    re.IGNORECASE | re.VERBOSE,
)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>`]*")
_PLACE = re.compile(r"(?:[\w.%-]+|\[[0-9A-Fa-f:.%]+\])(?::[0-9]*)?")  # one host, or a socket's path as %2Frun%2F…
_PATH = re.compile(r"(?:/[^?#@]*)?")


def redacted(text: str, *secret_urls: str) -> str:
    """`text` without the secrets of any URL in it, and without those of `secret_urls` wherever they stand in it."""
    for url in secret_urls:
        text = text.replace(url, shown(url))
        for secret in sorted(_secrets_of(url), key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    return _URL.sub(lambda found: _shown_in_text(found[0]), text)


def shown(url: str) -> str:
    """A URL without user, password and any option that is not known to be harmless."""
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return HIDDEN
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    places, tail = authority.rpartition("@")[2], rest[len(authority) :]
    path, question, options = tail.partition("?")
    doubtful = "@" in tail or "#" in tail or not _PATH.fullmatch(path)
    if doubtful or not all(_PLACE.fullmatch(place) for place in places.split(",")):
        return f"{scheme}://{HIDDEN}"
    told = "&".join(_shown_option(option) for option in re.split("[&;]", options)) if options else ""
    return f"{scheme}://{places}{path}{question}{told}"


def is_plain(url: str) -> bool:
    """Has it nothing to hide?"""
    return shown(url) == url


def redacted_values(value: object) -> object:
    """The same of every text in a value of a configuration."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_values(item) for key, item in value.items()}
    return [redacted_values(item) for item in value] if isinstance(value, list) else value


def without(secrets: Sequence[str], value: T) -> T:
    """Every text in a plain value, without any of `secrets`."""
    found: Any = value
    if isinstance(value, str):
        for secret in secrets:
            found = found.replace(secret, HIDDEN)
    elif isinstance(value, Mapping):
        found = {without(secrets, key): without(secrets, item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        found = [without(secrets, item) for item in value]
    return cast(T, found)


def _shown_in_text(url: str) -> str:
    """Of a URL that ends a sentence, the full stop is not its."""
    kept = url.rstrip(".,;:!)]}") if not is_plain(url) else url
    return shown(kept) + url[len(kept) :]


def _shown_option(option: str) -> str:
    return option if _HARMLESS.fullmatch(option.partition("=")[0]) else HIDDEN


def _secrets_of(url: str) -> set[str]:
    """The password and the hidden options' values, whole and in parts, as written and as meant. The user's name is none."""
    rest = url.partition("://")[2]
    user_and_password, _, tail = rest.rpartition("@")
    password = user_and_password.partition(":")[2]
    options = re.split("[&;]", (tail if "?" in tail else rest).partition("?")[2])
    found = {password, *(option.partition("=")[2] for option in options if _shown_option(option) == HIDDEN)}
    parts = {part for secret in found for part in re.split(r"[/:@?&=#;,]", secret)}
    meant = {form(secret) for secret in found | parts for form in (unquote, unquote_plus)}
    return {secret for secret in found | parts | meant if len(secret) >= SHORTEST_WORD}
