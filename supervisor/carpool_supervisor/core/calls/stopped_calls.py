"""Cancelled calls on instances that agents share: whether the server has stopped them (rule 5).

After a cancel the instance is pinged. A server reads its lines in order, so the answer to that ping shows
that it has read the cancel; a conforming server does no more for that call and never answers it. From then on
the call takes no slot, at once where the server has never asked anything, else after `STOPPED_S`. For so long
an ask may still be that call's. Progress of the call takes all of this back: the server goes on with it.

Invariant: at most one such ping of an instance is open. Refuses to know: what follows for pools (`targets`),
whose an ask is (`attribution`), pings that judge silence (`liveness`).
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from carpool_protocol.ids import WireId
from carpool_supervisor.core.calls.ask_evidence import known_to_ask
from carpool_supervisor.core.model.effects import AnyEffect, WriteProbe
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import STOPPED_S, Instance

Emit = Callable[[AnyEffect], None]
NO_PING: Final = 0


def cancel_written(instance: Instance, wire: WireId, out: Emit) -> None:
    """The cancel of this abandoned call was written: the next ping asks for it."""
    is_first = instance.stop_ping == NO_PING
    number = instance.pings + 1
    instance.abandoned[wire] = replace(instance.abandoned[wire], ping=number)
    if is_first:
        _ping(instance, out)


def _ping(instance: Instance, out: Emit) -> None:
    instance.pings += 1
    instance.stop_ping = instance.pings
    out(WriteProbe(instance.id, instance.pings))


def ping_answered(instance: Instance, number: int, now: float, out: Emit) -> bool:
    """This ping is answered. Returns True if calls count as stopped since then."""
    if number == NO_PING or number != instance.stop_ping:
        return False
    instance.stop_ping = NO_PING
    is_free = not known_to_ask(instance.pool)
    stopped = False
    for wire, each in instance.abandoned.items():
        if each.stopped_at is None and each.ping and each.ping <= number:
            instance.abandoned[wire] = replace(each, stopped_at=now, has_slot=not is_free)
            stopped = True
    is_writable = instance.state in (InstanceState.SERVING, InstanceState.DRAINING)
    is_more_due = any(each.ping > number for each in instance.abandoned.values())
    if is_more_due and is_writable and not instance.is_stdin_closed:
        _ping(instance, out)
    return stopped


def call_goes_on(instance: Instance, wire: WireId, now: float) -> None:
    """The server reports progress of a call that counted as stopped."""
    each = instance.abandoned.get(wire)
    if each is not None and each.stopped_at is not None:
        instance.abandoned[wire] = replace(each, ping=NO_PING, stopped_at=None, has_slot=True, since=now)


def free_slots(instance: Instance, now: float) -> float | None:
    """Free the slots of calls that have been stopped for long enough. Returns when the next one is due."""
    due: float | None = None
    for wire, each in instance.abandoned.items():
        if not each.can_ask or not each.has_slot or each.stopped_at is None:
            continue
        if each.stopped_at + STOPPED_S <= now:
            instance.abandoned[wire] = replace(each, has_slot=False)
        else:
            due = min(due or each.stopped_at + STOPPED_S, each.stopped_at + STOPPED_S)
    return due
