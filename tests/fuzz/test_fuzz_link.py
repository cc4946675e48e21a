"""Whatever comes over the link: frames that are none are counted, whoever they are from; and a peer of the
right version, whatever it says in which order, breaks no invariant and raises nothing.

The socket is the user's own, so that peer would be a carpool with a bug, or another one. Level: `Peer` for
bytes, both real shells (`tests.kit.in_process_daemon`) for messages.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, get_args

import msgspec
from msgspec import msgpack

from carpool_protocol.link.codec import BadFrame, FrameData, SplitFrame, decode_frame, encode_frames
from carpool_protocol.link.messages import LINK_VERSION, Hello, SetPools, ToBroker, ToSupervisor
from carpool_protocol.link.peer import BROKER, Peer, PeerUp
from tests.behaviours import behaviour
from tests.fuzz.test_fuzz_agents import EVERYTHING_ENDS_S, PROGRAMS, SERVERS, greeted
from tests.kit.fuzzing import fuzz
from tests.kit.hostile import NAMES
from tests.kit.in_process_daemon import in_process_daemon

JSON: Final = (
    b"{}",
    b'{"name":"x"}',
    b"[]",
    b"null",
    b"1",
    b'""',
    b"",
    b"not json",
    b"\xff",
    b'{"tools":{}}',
)
OBJECTS: Final = {"params": (b"{}", b'{"a": 1}'), "meta": (b"", b"{}", b'{"a":1}')}
"""These go to servers as they are: that they are JSON is the contract of the message, and is held by whoever
reads an agent's line.
"""
BOTH: Final = tuple(dict.fromkeys((*get_args(ToBroker), *get_args(ToSupervisor))))


def garbage(rng: Random, depth: int = 3) -> Any:
    """Any value of msgpack."""
    roll = rng.randrange(10 if depth else 7)
    if roll < 7:
        return rng.choice(
            (None, True, 0, 1, -1, 1 << 63, 1.5, float("nan"), "", "sup1", b"", b"x", *NAMES[:6])
        )
    if roll < 9:
        return [garbage(rng, depth - 1) for _ in range(rng.randrange(5))]
    return {str(garbage(rng, 0)): garbage(rng, depth - 1) for _ in range(3)}


def hello(rng: Random) -> Hello:
    version = LINK_VERSION if rng.random() < 0.7 else rng.choice((0, -1, LINK_VERSION + 1, 1 << 62))
    name = "sup1" if rng.random() < 0.7 else rng.choice(NAMES[:8])
    return Hello(version, rng.choice(("e1", "e2", "", "b")), name, rng.choice((1, -1)), "9.9")  # type: ignore[arg-type]


def frame(rng: Random) -> FrameData:
    """Of this reader, of another epoch, of another direction, or none; some with a body beside it."""
    roll = rng.random()
    if roll < 0.15:
        return rng.randbytes(rng.randrange(30))
    if roll < 0.3:
        return msgpack.encode(_utf8(garbage(rng)))
    if roll < 0.5:
        greeting = hello(rng)
        sender = greeting.epoch if rng.random() < 0.8 else "other"
        return encode_frames(sender, rng.choice(("", "b", "x")), [greeting])[0]
    kind = rng.choice(BOTH)
    fields = [garbage(rng, 1) for _ in range(rng.randrange(6))]
    messages = [[kind.__struct_config__.tag, *fields]]
    whole_frame = msgpack.encode(_utf8([rng.choice(("e1", "e2", "")), rng.choice(("b", "", "x")), messages]))
    if rng.random() < 0.2:
        at = rng.randrange(len(whole_frame))
        whole_frame = whole_frame[:at] + rng.randbytes(1) + whole_frame[at + 1 :]
    if rng.random() < 0.02:
        whole_frame = b"\x91" * rng.choice((100, 5000, 100_000))
    return SplitFrame(whole_frame, rng.randbytes(9)) if rng.random() < 0.1 else whole_frame


def _utf8(value: Any) -> Any:
    """Half pairs cannot be encoded at all."""
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case list():
            return [_utf8(each) for each in value]
        case dict():
            return {_utf8(key): _utf8(each) for key, each in value.items()}
        case _:
            return value


def heard(rng: Random) -> None:
    """One end, and whoever speaks to it: it goes up by a greeting only."""
    peer = Peer(Hello(LINK_VERSION, "b", BROKER, 1, "t"), "sup1", 0.0)  # type: ignore[arg-type]  # an epoch
    for _ in range(rng.randrange(1, 30)):
        if rng.random() < 0.1:
            peer.connection_opened()
        data = frame(rng)
        was_up = peer.up
        said = peer.receive(data, 1.0)
        peer.check()
        if isinstance(decode_frame(data, "broker"), BadFrame):
            assert said == []
        assert was_up or not peer.up or any(isinstance(each, PeerUp) for each in said)
        peer.take_frames(1.0)


# --- a peer that speaks the language -----------------------------------------------------------------------


def spoken(rng: Random, kind: type[msgspec.Struct], known: "Known") -> msgspec.Struct:
    """A message of this kind, with values of its types."""
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: _of_type(rng, field.type, field.name, known) for field in fields})


class Known:
    """Values that mean something in the carpool at hand."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.by_name: dict[str, Sequence[Any]] = {
            "key": [*keys, "nobody"],
            "session": ["s1", "s2", "s99", ""],
            "call": range(6),
            "instance": range(5),
            "ask": [f"{at}" for at in range(3)] + ["", "x"],
            "target": ["echo", "never", ""],
            "method": [
                "tools/call",
                "prompts/get",
                "sampling/createMessage",
                "elicitation/create",
                "roots/list",
                "x",
            ],
            "fault": ["timed_out", "unavailable", "nonsense", ""],
        }


def _of_type(rng: Random, hint: Any, name: str, known: Known) -> Any:  # noqa: C901 - an arm per type
    if name in OBJECTS:
        return rng.choice(OBJECTS[name])
    if name in known.by_name and rng.random() < 0.9:
        return rng.choice(known.by_name[name])
    match msgspec.inspect.type_info(_bare(hint)):
        case msgspec.inspect.BoolType():
            return rng.random() < 0.5
        case msgspec.inspect.IntType():
            return rng.choice((0, 1, 2, -1, 1000, 1 << 40))
        case msgspec.inspect.FloatType():
            return rng.choice((0.0, 1.0, -1.0, 1e308, 0.001))
        case msgspec.inspect.StrType():
            return rng.choice(("", "x", "info", "2025-11-25", "carpool-1", *_utf8(list(NAMES))))
        case msgspec.inspect.BytesType():
            return rng.choice(JSON)
        case msgspec.inspect.LiteralType(values):
            return rng.choice(values)
        case msgspec.inspect.NoneType():
            return None
        case msgspec.inspect.UnionType():
            return _of_type(rng, rng.choice(get_args(_bare(hint))), name, known)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            inner = get_args(_bare(hint))[0]
            return [_of_type(rng, inner, name, known) for _ in range(rng.randrange(3))]
        case msgspec.inspect.DictType():
            return {}
        case msgspec.inspect.StructType(cls):
            return spoken(rng, cls, known)
        case other:
            raise AssertionError(f"no value is made for {other}")


def _bare(hint: Any) -> Any:
    return _bare(hint.__origin__) if hasattr(hint, "__metadata__") else hint


def told(rng: Random, house: Path) -> None:
    """One side hears what its peer may say, in no order that makes sense."""
    with in_process_daemon(house, SERVERS, PROGRAMS) as one:
        good = greeted(one)
        specs = list(one.supervisor._specs)
        known = Known(specs)
        to_broker = rng.random() < 0.5
        shell = one.broker if to_broker else one.supervisor
        kinds = [
            each
            for each in get_args(ToBroker if to_broker else ToSupervisor)
            if each not in {Hello, SetPools}
        ]
        for _ in range(rng.randrange(1, 25)):
            if rng.random() < 0.2:
                good.send(
                    b'{"jsonrpc":"2.0","id":"%d","method":"tools/call","params":{"name":"good__never"}}\n'
                    % rng.randrange(99)
                )
            message = spoken(rng, rng.choice(kinds), known)
            data = encode_frames("x", "y", [message])[0]  # type: ignore[list-item]  # any of both directions
            read = decode_frame(data, "broker" if to_broker else "supervisor")
            assert not isinstance(read, BadFrame), message
            messages = list(read.messages)
            shell._deliver("sup1" if to_broker else BROKER, messages)
            shell._flush_burst()
            one.settle()
        one.wait(EVERYTHING_ENDS_S)


@behaviour("bad-input:link")
def test_whatever_bytes_come_over_the_link_an_end_stays_sound() -> None:
    fuzz(heard, examples=60, seeds=400)


@behaviour("bad-input:link")
def test_whatever_a_peer_says_in_whatever_order_nothing_is_raised(house: Path) -> None:
    fuzz(lambda rng: told(rng, house), examples=8, seeds=60)
