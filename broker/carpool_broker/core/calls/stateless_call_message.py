"""The link message of a call of the stateless era.

Owns what the agent of the call can be asked, and the session that the supervisor takes it for. Agents of one
principal that share a session do not know each other, so for slots and attribution (docs/rules.md, rules 5
and 14) each call is a session of its own. Only an instance of its own belongs to the principal; anonymous
agents have none. Refuses to know: admission, how the call is answered. Stands apart from the table so that
the table stays readable.
"""

from functools import cache

from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.session import OpenCall
from carpool_protocol.ids import part_of
from carpool_protocol.link.messages import Call, Need, PoolChanged


def stateless_call_message(open_call: OpenCall, state: PoolChanged | None) -> Call:
    """Return the message of this call. `state` is the last state of its pool."""
    asked, session = open_call.asked, open_call.session
    assert asked.by is not None
    speaker = session.id
    if session.shared and (session.anonymous or state is None or state.mode != "session"):
        speaker = open_call.speaker = part_of(session.id, open_call.call)
    return Call(
        open_call.call,
        open_call.key,
        speaker,
        asked.method,
        open_call.target,
        asked.rest,
        asked.meta,
        bool(asked.token),
        asked.trace,
        can=declared_needs(asked.by.capabilities),
        log_level=asked.by.level,
        tasks=open_call.tasks,
        instance=open_call.instance,
        request=asked.id,
        digest=asked.digest,
        principal=session.principal,
    )


@cache
def declared_needs(capabilities: Capabilities) -> list[Need]:
    """Return `messages.Call.can` for these capabilities. The list is shared and must not be changed."""
    found: list[tuple[Need, bool]] = [
        ("sampling", capabilities.sampling),
        ("sampling.tools", capabilities.sampling and capabilities.sampling_tools),
        ("elicitation.form", capabilities.form),
        ("elicitation.url", capabilities.url),
        ("roots", capabilities.roots),
    ]
    return [need for need, can in found if can]
