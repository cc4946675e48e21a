"""Whatever an agent writes and a server answers: a shim passes it on as it was, and when its broker dies it
can say what is not done with.

Level: the pump over real pipes and a real socket; what it keeps, and what it makes of that.
"""

import os
import socket
from random import Random
from typing import Final

from carpool.shim.kept_lines import OURS, KeptLines
from carpool.shim.pump import BROKER_GONE, ShimPump
from carpool.shim.resume import resume as resume_session
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, name_of
from carpool_protocol.carrier.attach_line import (
    Attach,
    Settled,
    attach_line,
    attached_line,
    parse_attach,
    settled_line,
)
from tests.behaviours import behaviour
from tests.kit import hostile_agents
from tests.kit.fuzzing import fuzz
from tests.kit.hostile import bomb, fresh_ids, value

HELLO: Final = attach_line(Attach(version=ATTACH_VERSION, carrier="shim", keeps=True))
ATTACHED: Final = attached_line("s1", [], "0.secret", "e1")
MOST_BYTES: Final = 30_000
"""Of each direction: what a pipe and a socket take at once."""


def said(rng: Random) -> list[bytes]:
    """Lines of an agent, sound or not, without their ends."""
    fresh, ids = fresh_ids(), []  # type: ignore[var-annotated]
    lines = []
    for _ in range(rng.randrange(12)):
        line = hostile_agents.line(rng, fresh, ids).line
        others = (b"", b"\r", b"[%b,%b]" % (line, line), bomb(rng))
        lines.append(line if rng.random() < 0.8 else rng.choice(others))
    return [line.replace(b"\n", b" ") for line in lines]


def told(rng: Random) -> list[bytes]:
    """Lines for the agent, as a broker writes them: nothing of ours at the start of one."""
    whole = (
        b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (rng.choice((b"1", b'"h2"', b"-3", b"null")), value(rng)),
        b'{"jsonrpc":"2.0","id":"ask","method":"sampling/createMessage","params":%b}' % value(rng),
        b'{"text":' + OURS + b'settled"}',
        value(rng),
        b"",
    )
    lines = [rng.choice(whole).replace(b"\n", b" ") for _ in range(rng.randrange(8))]
    return [line for line in lines if not line.startswith(OURS)]


def ended(lines: list[bytes]) -> bytes:
    """As many of them as fit, with their ends."""
    found = b""
    for line in lines:
        if len(found) + len(line) < MOST_BYTES:
            found += line + b"\n"
    return found


def passed(rng: Random) -> None:
    """Both directions at once, and the death of the broker within a line."""
    kept = KeptLines()
    up, down = ended(said(rng)) + rng.choice((b"", b'{"half":')), ended(told(rng))
    ours = b"".join(
        rng.choice((b"", settled_line(Settled("e1", 0, 0, [], [], [], [], ["s"])))) for _ in range(2)
    )
    stdin, agent_out = os.pipe()
    agent_in, stdout = os.pipe()
    near, far = socket.socketpair()
    with near, far:
        os.write(agent_out, up)
        far.sendall(ATTACHED + ours + down + b'{"jsonrpc":"2.0","id":9,"resu')
        far.shutdown(socket.SHUT_WR)
        assert ShimPump(near, HELLO, kept, stdin, stdout).run() == BROKER_GONE
        near.close()
        os.close(stdout)
        with os.fdopen(agent_in, "rb") as heard, far.makefile("rb") as arrived:
            assert heard.read() == down
            assert arrived.readline() == HELLO
            assert up.startswith(arrived.read())
    os.close(stdin)
    os.close(agent_out)
    comes_back(kept, up)


def comes_back(kept_lines: KeptLines, up: bytes, untaken_bytes: int = 0) -> None:
    """What it says next is an attach line, as many lines as that says, and nothing that was never said."""
    for again in (True, False):
        first, *lines = resume_session(kept_lines, HELLO, again=again, untaken_bytes=untaken_bytes).split(
            b"\n"
        )
        attach = parse_attach(first)
        assert isinstance(attach, Attach)
        resume = attach.resume
        assert resume is not None
        assert len(lines) > resume.kept + resume.open
        for line in lines:
            assert line in up or line.strip().startswith((b"{", b"[")), line


def settled(rng: Random) -> None:
    """A broker that settles what it likes of what it has had."""
    kept = KeptLines()
    kept.broker_attached(ATTACHED)
    lines, answers = said(rng), told(rng)
    kept.agent_lines_sent(b"".join(line + b"\n" for line in lines))
    up = 0
    for line in answers:
        kept.broker_lines_passed(line + b"\n")
        if rng.random() < 0.4:
            new = [name_of(each) for each in lines[up:]][: rng.randint(0, len(lines) - up)]
            up += len(new)
            known = [*map(name_of, {**kept.made, **kept.open}.values()), *new]
            parts: list[list[int]] = [[], [], [], []]
            for each in known:
                parts[min(rng.randrange(8), 3)].append(each)
            held = [name_of(line)] * (rng.random() < 0.3)
            last = new[-1] if new else 0
            wrong = rng.random() < 0.05
            if wrong:
                rng.choice((parts[0], parts[1], parts[2], held)).append(name_of(b"never said"))
            before = bytes(kept.fresh)
            how_far = Settled("e2", last, new.count(last), parts[0], parts[1], parts[2], held)
            kept.lines_settled(settled_line(how_far))
            assert kept.in_doubt == wrong
            if wrong:
                assert kept.fresh == before
                break
            assert sorted(map(name_of, kept.open.values())) == sorted(parts[0] + parts[2])
            assert sorted(map(name_of, kept.made.values())) == sorted(parts[1] + parts[2])
            assert kept.fresh == b"".join(each + b"\n" for each in lines[up:])
    comes_back(kept, b"\n".join(lines), rng.randrange(len(kept.fresh) + 2))


@behaviour("bad-input:shim")
def test_whatever_passes_through_a_shim_arrives_as_it_was() -> None:
    fuzz(passed, examples=4, seeds=40)


@behaviour("bad-input:shim")
def test_whatever_passed_and_was_settled_the_shim_knows_what_to_say_to_the_next_broker() -> None:
    fuzz(settled, examples=4, seeds=60)
