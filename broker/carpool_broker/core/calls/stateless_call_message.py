"""What a call of the stateless era says on the link, beside what every call does.

Owns: what can be asked of its agent, per request; and as whose it counts at the supervisor. Agents of one
principal that share a session know nothing of each other: to lanes and attribution there (rules 5, 14) two of
them are not one. Only an instance of its own is the principal's, and nobody's who is nobody in particular.

Knows nothing of: admission, who is answered.
"""

from functools import cache

from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.session import OpenCall
from carpool_protocol.ids import part_of
from carpool_protocol.link.messages import Call, Need, PoolChanged


def stateless_call_message(open_call: OpenCall, state: PoolChanged | None) -> Call:
    """Its message. `state`: what the supervisor last said of its pool."""
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
    """See `messages.Call.can`. Shared by all who have declared the same: not to be changed."""
    found: list[tuple[Need, bool]] = [
        ("sampling", capabilities.sampling),
        ("sampling.tools", capabilities.sampling and capabilities.sampling_tools),
        ("elicitation.form", capabilities.form),
        ("elicitation.url", capabilities.url),
        ("roots", capabilities.roots),
    ]
    return [need for need, can in found if can]
