"""Types of the ids that cross a process boundary.

Owns the types, and how calls and sessions are numbered and named. All are plain `str`, `int` or `bytes` at
run time; the types keep a session from being passed where an instance is meant. Refuses to know who stores an
id.
"""

from typing import Final, NewType

SessionId = NewType("SessionId", str)
"""An agent's attachment as people see it (`s12`). Not a secret."""

ServerName = NewType("ServerName", str)
"""A server as configured."""

PoolKey = NewType("PoolKey", str)
"""The name of a server and a keyed hash of what makes its instances interchangeable."""

SupervisorName = NewType("SupervisorName", str)
"""A supervisor as its broker and its launcher call it (`sup1`)."""

InstanceId = NewType("InstanceId", int)
"""One running process of a server. Unique among the supervisors of one carpool, and within the life of each;
never reused.
"""

CallId = NewType("CallId", int)
"""One call, from the broker's admission to its answer. Never reused.

Unique among all brokers that one launcher starts: the high bits are the number of the broker (`call_of`).
"""

MAX_WIRE_DIGITS: Final = 18
"""A longer number is no wire id of ours; Python refuses to parse one of more than 4,300 digits."""

WireId = NewType("WireId", int)
"""The JSON-RPC id of a call towards an instance. Unique within one instance's life, never reused."""

AskId = NewType("AskId", str)
"""One ask: a request of a server to the agent behind a call.

The supervisor chooses it, and it stays unique after the supervisor has ended (rule 4). It is also the
JSON-RPC id under which the agent is asked.
"""

Epoch = NewType("Epoch", str)
"""One life of a broker or of a supervisor."""

RawJson = NewType("RawJson", bytes)
"""One JSON value as UTF-8 bytes. `b""` stands for an absent value.

It holds no byte below 0x20, so that it stays on one line for every reader (rule 1).
"""

ABSENT = RawJson(b"")
EMPTY_OBJECT = RawJson(b"{}")


CALLS_OF_A_LIFE: Final = 1 << 40


def call_of(life: int, number: int) -> CallId:
    """The `number`-th call of the `life`-th broker, counted from 0."""
    return CallId(life * CALLS_OF_A_LIFE + number)


def life_of(call: CallId) -> int:
    """The number of the broker that created this call, counted from 0."""
    return call // CALLS_OF_A_LIFE


def call_name(call: CallId) -> str:
    """The call's name for people: `c17`, and after a broker died `c1.17`."""
    life, number = divmod(call, CALLS_OF_A_LIFE)
    return f"c{life}.{number}" if life else f"c{number}"


def call_named(name: str) -> CallId | None:
    """The call with this name, as `call_name` writes it: `c1.17` → call 17 of broker 1. None for any other
    text.
    """
    life, _, number = f"0.{name[1:]}".rpartition(".")
    parts = (life.removeprefix("0.") or "0", number)
    if not all(each.isascii() and each.isdecimal() and len(each) <= 13 for each in parts):
        return None
    call = call_of(int(parts[0]), int(number))
    return call if call_name(call) == name else None


def session_of(life: int, number: int) -> SessionId:
    """The `number`-th session of the `life`-th broker, counted from 0."""
    return SessionId(f"s{life}-{number}" if life else f"s{number}")


def supervisor_name(number: int) -> SupervisorName:
    """The name of the `number`-th supervisor, counted from 0: `sup1`, `sup2`, …"""
    return SupervisorName(f"sup{number + 1}")


def supervisor_number(name: SupervisorName) -> int:
    """The number of the supervisor with this name, counted from 0."""
    return int(name.removeprefix("sup")) - 1


MAX_SUPERVISORS: Final = 16
INSTANCES_OF_A_BLOCK: Final = 1_000_000
"""Instances get the numbers of one block after the other. The supervisors take the blocks in turn, so that
each has its own, however many instances it starts.
"""


def instance_of(supervisor: int, number: int) -> InstanceId:
    """The `number`-th instance, counted from 1, of the `supervisor`-th supervisor, counted from 0."""
    block, within = divmod(number - 1, INSTANCES_OF_A_BLOCK)
    return InstanceId((block * MAX_SUPERVISORS + supervisor) * INSTANCES_OF_A_BLOCK + within + 1)


def supervisor_of(instance: InstanceId) -> int:
    """The number of the supervisor that started this instance, counted from 0."""
    return (instance - 1) // INSTANCES_OF_A_BLOCK % MAX_SUPERVISORS


def server_of_pool(key: PoolKey) -> ServerName:
    """The server of a pool: `git:9c51…` → `git`."""
    return ServerName(key.partition(":")[0])


def part_of(session: SessionId, number: int) -> SessionId:
    """The id of one of several agents that share a session and do not know of each other: `s12` → `s12.3`."""
    return SessionId(f"{session}.{number}")


def whole_of(session: SessionId) -> SessionId:
    """The session that a part belongs to: `s12.3` → `s12`. A session without parts is returned unchanged."""
    return SessionId(session.partition(".")[0])
