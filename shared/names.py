"""Names of runs, policies, splits and sources. They become names of databases, folders, logs and document fields, and parts
of ids (`main:train:0:t1`). One rule holds for all of them and is checked on input."""

import re
from typing import Annotated

from pydantic import AfterValidator

from shared.errors import ConfigError

LONGEST = 60  # bytes: MongoDB takes 63 for a database
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
LONGEST_LABEL = 256
OWN_DATABASES = ("admin", "local", "config")  # MongoDB's

DEFAULT_POLICY = "main"  # in a run with one policy

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")  # a service there needs no token

# The splits that the services know.
TRAIN_SPLIT = "train"  # opened within the off-policy budget; their groups become training data
EVAL_SPLIT = "eval"  # the held-out set: played once per evaluated version, never trained on
FORK_SPLIT = "fork"  # continuations of stored turns (`tandem fork`): never trained on
SPLITS = (TRAIN_SPLIT, EVAL_SPLIT, FORK_SPLIT)  # that samplers play

# Roles of chat messages. Those of the first two are instructions, which no one outside the run writes.
INSTRUCTING_ROLES = ("system", "developer")
ROLES = (*INSTRUCTING_ROLES, "user", "assistant", "tool")


def bare_host(host: str) -> str:
    """Without the brackets that an IPv6 address has in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_loopback_host(host: str) -> bool:
    """Only this machine reaches a service there, so it needs no token."""
    return bare_host(host) in LOOPBACK_HOSTS


def check_name(kind: str, name: str) -> str:
    """Return `name`. Raises ConfigError for an invalid name of this `kind`."""
    if not _NAME.fullmatch(name) or len(name) > LONGEST:
        raise ConfigError(
            f"{kind} name {shortened(name)}: expected 1 to {LONGEST} of A-Z, a-z, 0-9, _ and -, the first a letter or digit"
        )
    return name


def check_run_name(name: str) -> str:
    """Return `name`. A run's name is its database's too. Raises ConfigError."""
    if name in OWN_DATABASES:
        raise ConfigError(f"run name {name!r} is a system database of MongoDB; choose another")
    return check_name("run", name)


def check_label(kind: str, text: str) -> str:
    """Check a text that is only stored and displayed: a task's id, a task line's source (`openai/gsm8k`). Raises ConfigError."""
    if not text.strip() or _UNPRINTABLE.search(text) or len(text.encode()) > LONGEST_LABEL:
        raise ConfigError(
            f"{kind} is {shortened(text)}; expected text on one line, of 1 to {LONGEST_LABEL} bytes in UTF-8"
        )
    return text


def shortened(value: object, longest: int = 80) -> str:
    """`repr` of a value, with the middle cut out of a long one."""
    return cut(repr(value), longest)


def cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]}…{text[-longest // 4 :]} ({len(text)} characters)"


def _policy(name: str) -> str:
    return check_name("policy", name)


def _split(name: str) -> str:
    return check_name("split", name)


def _source(name: str) -> str:
    return check_name("source", name)


def _sampler(name: str) -> str:
    return check_name("sampler", name)


RunName = Annotated[str, AfterValidator(check_run_name)]
PolicyName = Annotated[str, AfterValidator(_policy)]
SplitName = Annotated[str, AfterValidator(_split)]
SourceName = Annotated[str, AfterValidator(_source)]
SamplerName = Annotated[str, AfterValidator(_sampler)]
