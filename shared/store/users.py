"""The users of a run's database with a password: a role for each service, with the rights that it needs and no more.

    operator   imports tasks, pauses, evaluates and audits runs      keeper    engines, the first version of the weights
    sampler    episodes, and the data that they settle to            viewer    reads everything; writes notes
    trainer    marks on data, steps, versions of the weights

A right names a collection in every database of the server, since a run is a database; a service's user of one run has it in
that database alone. MongoDB bounds rights by collection, not by field: what several services write (`runs`, `workers`, `tasks`),
each of them may write as a whole.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure

Document = dict[str, Any]
Client = MongoClient[Document]

READ = ("find",)
ADD = ("find", "insert", "update")  # an insertion is an update with `upsert`
WRITE = (*ADD, "remove")
INDEX = ("createIndex",)
SIGNAL = ("find", "insert", "createCollection", "convertToCapped")
BROWSE = (
    *READ,
    "listCollections",
    "listIndexes",
    "collStats",
    "dbStats",
    "indexStats",
    "planCacheRead",
    "changeStream",
)

DATA = (
    "tasks",
    "records",
    "dispatched_sampling_tasks",
    "record_data",
    "tool_schemas",
    "images",
    "image_chunks",
    "routed_experts",
)
RULES = ("run_rules",)  # what decides what is learned: read, and declared by the first sampler
TOLD = ("runs", "settings", "workers", "malformed_documents")  # what every service says of itself
PUBLISHED = ("policy_versions", "inference_services", "environment_services", "leases")
TRAINED = ("trained_steps", "trainer_logprobs")  # what the trainer says of its steps
SIGNALED = ("signals",)  # that something has changed
WRITTEN = ("notes", "saved_views")  # what people write while they read a run
COLLECTIONS = (*DATA, *RULES, *TOLD, *PUBLISHED, *TRAINED, *WRITTEN, *SIGNALED)
EVERY = ""  # in a role's resource: every database, every collection

USER_EXISTS, ROLE_EXISTS = 51003, 51002
ADMIN = "root"


@dataclass(frozen=True, eq=False)
class Role:
    """{collection: actions}, and actions on the server itself."""

    name: str
    rights: Mapping[str, tuple[str, ...]]
    on_server: tuple[str, ...] = ()

    def privileges(self, database: str = EVERY) -> list[Document]:
        of_collections: list[Document] = [
            {"resource": {"db": database, "collection": name}, "actions": list(actions)}
            for name, actions in self.rights.items()
        ]
        on_server = [{"resource": {"cluster": True}, "actions": list(self.on_server)}] if self.on_server else []
        return of_collections + on_server


def _rights(**groups: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """{collection: its actions} of {actions: collections}; every collection of a run gets its indexes."""
    actions = {"read": READ, "add": ADD, "write": WRITE}
    rights: dict[str, tuple[str, ...]] = dict.fromkeys(COLLECTIONS, INDEX)
    for kind, collections in groups.items():
        for name in collections:
            rights[name] = (*INDEX, *actions[kind])
    return rights | dict.fromkeys(SIGNALED, SIGNAL)


ROLES = (
    Role(
        "sampler",
        _rights(
            add=(*DATA, *RULES, *TOLD), read=("policy_versions", "inference_services"), write=("environment_services",)
        ),
    ),
    Role("keeper", _rights(add=(*TOLD, "policy_versions", "leases"), write=("inference_services",), read=("tasks",))),
    Role(
        "trainer",
        _rights(add=(*DATA, *TOLD, "policy_versions", "leases", *TRAINED), read=("inference_services", *RULES)),
    ),
    Role("operator", _rights(write=COLLECTIONS), on_server=("listDatabases",)),
    Role("viewer", {EVERY: BROWSE, **dict.fromkeys(WRITTEN, WRITE)}, on_server=("listDatabases",)),
)


SERVICES = ("sampler", "keeper", "trainer")  # roles of programs, which work for one run each


@dataclass(frozen=True)
class Account:
    """A user of the database. `run`: the only one that it may open; None: every run of the server."""

    role: Role
    run: str | None = None

    @property
    def name(self) -> str:
        return self.role.name if self.run is None else f"{self.role.name}-{self.run}"


def accounts(run: str | None = None) -> tuple[Account, ...]:
    """A user for each role. `run`: those of services are limited to this run; people's open every run."""
    return tuple(Account(role, run if role.name in SERVICES else None) for role in ROLES)


def prepare_users(admin: Client, passwords: Mapping[Account, str]) -> None:
    """Create or update every account and its role. Repeatable.

    A role is what this version of the program says, also after an upgrade.
    """
    for account, password in passwords.items():
        name = f"tandem-{account.name}"
        privileges = account.role.privileges(EVERY if account.run is None else account.run)
        _create_or_update(admin, "Role", name, ROLE_EXISTS, {"privileges": privileges, "roles": []})
        rights = [{"role": name, "db": "admin"}]
        user: Document = {"pwd": password, "roles": rights, "mechanisms": ["SCRAM-SHA-256"]}
        _create_or_update(admin, "User", account.name, USER_EXISTS, user)


def create_admin(local: Client, password: str) -> None:
    """The first user, which MongoDB lets be created without one, over a connection from its own machine."""
    local.admin.command("createUser", ADMIN, pwd=password, roles=["root"], mechanisms=["SCRAM-SHA-256"])


def set_admin_password(admin: Client, password: str) -> None:
    admin.admin.command("updateUser", ADMIN, pwd=password, mechanisms=["SCRAM-SHA-256"])


def _create_or_update(admin: Client, kind: str, name: str, exists: int, definition: Document) -> None:
    try:
        admin.admin.command(f"create{kind}", name, **definition)
    except OperationFailure as exc:
        if exc.code != exists:
            raise
        admin.admin.command(f"update{kind}", name, **definition)
