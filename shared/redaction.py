"""Removes secrets from connection strings, URLs and messages that quote them.

    mongodb://ann:pw@db:27017/?tls=true&tlsCertificateKeyFilePassword=pw   ─▶ mongodb://db:27017/?tls=true&***
    http://ann:pw@gateway:8000/mcp?token=t                                 ─▶ http://gateway:8000/mcp?***

It shows known harmless parts and hides the rest: a URL that cannot be parsed unambiguously (for example a password with an
unescaped `/`, `?`, `#` or `@`) is reduced to its scheme.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import unquote, unquote_plus

T = TypeVar("T")

HIDDEN = "***"
SHORTEST_WORD = 2  # shortest part of a secret that is searched for on its own

# Options of connection strings whose values are not secret; all others are hidden, including unknown ones.
_HARMLESS = re.compile(
    r"""appName|authMechanism|authSource|compressors|connect|connectTimeoutMS|directConnection|heartbeatFrequencyMS|journal|loadBalanced
    |localThresholdMS|maxConnecting|maxIdleTimeMS|maxPoolSize|maxStalenessSeconds|minPoolSize|readConcernLevel|readPreference
    |readPreferenceTags|replicaSet|retryReads|retryWrites|serverMonitoringMode|serverSelectionTimeoutMS|socketTimeoutMS|srvMaxHosts
    |srvServiceName|ssl|timeoutMS|tls|tlsAllowInvalidCertificates|tlsAllowInvalidHostnames|tlsCAFile|tlsCertificateKeyFile|tlsCRLFile
    |tlsDisableOCSPEndpointCheck|tlsInsecure|uuidRepresentation|w|waitQueueTimeoutMS|wTimeoutMS|zlibCompressionLevel""",
    re.IGNORECASE | re.VERBOSE,
)

_URL_START = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SPACE = re.compile(r"\s")
_QUOTES = {"'": "'", '"': '"', "`": "`", "<": ">", "(": ")", "[": "]", "{": "}"}
_BREAKS = re.compile(r"[\s'\"<>`]")  # a URL has none; a password that nobody escaped may
_PLACE = re.compile(r"(?:[\w.%-]+|\[[0-9A-Fa-f:.%]+\])(?::[0-9]*)?")  # one host, or a socket's path as %2Frun%2F…
_PATH = re.compile(r"(?:/[^?#@]*)?")


def redacted(text: str, *secret_urls: str) -> str:
    """`text` without the secrets of any URL in it, and without any occurrence of the secrets of `secret_urls`."""
    for url in filter(str.strip, secret_urls):  # a blank one would be found everywhere
        text = text.replace(url, shown(url))
        for secret in sorted(_secrets_of(url), key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    parts, at = list[str](), 0
    while start := _URL_START.search(text, at):
        end = _end_of_url(text, start)
        parts += [text[at : start.start()], _shown_in_text(text[start.start() : end])]
        at = end
    return "".join([*parts, text[at:]])


def shown(url: str) -> str:
    """A URL without user, password and options that are not known to be harmless."""
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return HIDDEN
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    places, tail = authority.rpartition("@")[2], rest[len(authority) :]
    path, question, options = tail.partition("?")
    doubtful = "@" in tail or "#" in tail or not _PATH.fullmatch(path)
    if doubtful or not all(_PLACE.fullmatch(place) for place in places.split(",")):
        return f"{scheme}://{HIDDEN}"
    query = "&".join(_shown_option(option) for option in re.split("[&;]", options)) if options else ""
    return f"{scheme}://{places}{path}{question}{query}"


def is_plain(url: str) -> bool:
    """Whether the URL has no secret part."""
    return shown(url) == url


def redacted_values(value: object) -> object:
    """Apply `redacted` to every text in a configuration value."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_values(item) for key, item in value.items()}
    return [redacted_values(item) for item in value] if isinstance(value, list) else value


def without(secrets: Sequence[str], value: T) -> T:
    """Remove all of `secrets` from every text in a plain value."""
    cleaned: Any = value
    if isinstance(value, str):
        for secret in secrets:
            cleaned = cleaned.replace(secret, HIDDEN)
    elif isinstance(value, Mapping):
        cleaned = {without(secrets, key): without(secrets, item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        cleaned = [without(secrets, item) for item in value]
    return cast(T, cleaned)


def _end_of_url(text: str, start: re.Match[str]) -> int:
    """A URL goes on to the last `@` of its line, before the next URL: what is in between may be a password that nobody escaped,
    with blanks and quotes. From there to the next blank, or to the quote that was opened before it."""
    after = _URL_START.search(text, start.end())
    line = text.find("\n", start.end())
    limit = min(len(text) if line < 0 else line, len(text) if after is None else after.start())
    begin = max(text.rfind("@", start.end(), limit) + 1, start.end())
    blank = _SPACE.search(text, begin)
    end = len(text) if blank is None else blank.start()
    quote = _QUOTES.get(text[start.start() - 1 : start.start()])
    closed = -1 if quote is None else text.find(quote, begin, end)
    while closed >= 0 and text[closed + 1 : closed + 2].isalnum():
        closed = text.find(quote or "", closed + 1, end)
    return end if closed < 0 else closed


def _shown_in_text(url: str) -> str:
    """Punctuation after a URL is not part of it."""
    address = url if is_plain(url) else url.rstrip(".,;:!)]}'\"`>")
    if _BREAKS.search(address.rpartition("@")[0]):
        return f"{address.partition('://')[0]}://{HIDDEN}{url[len(address) :]}"
    return shown(address) + url[len(address) :]


def _shown_option(option: str) -> str:
    return option if _HARMLESS.fullmatch(option.partition("=")[0]) else HIDDEN


def _secrets_of(url: str) -> set[str]:
    """The password and the hidden options' values, whole and in parts, escaped and unescaped. The user name is not a secret."""
    rest = url.partition("://")[2]
    user_and_password, _, tail = rest.rpartition("@")
    password = user_and_password.partition(":")[2]
    options = re.split("[&;]", (tail if "?" in tail else rest).partition("?")[2])
    secrets = {password, *(option.partition("=")[2] for option in options if _shown_option(option) == HIDDEN)}
    parts = {part for secret in secrets for part in re.split(r"[/:@?&=#;,]", secret)}
    meant = {form(secret) for secret in secrets | parts for form in (unquote, unquote_plus)}
    return {secret for secret in secrets | parts | meant if len(secret) >= SHORTEST_WORD}
