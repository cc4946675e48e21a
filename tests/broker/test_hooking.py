"""The process of a hook: runs that nobody waits for any more."""

import asyncio

import msgspec

from carpool_broker import hook_child
from carpool_protocol.hook_lines import Begin, Told, line_of
from carpool_protocol.hooks import Telling


def test_a_run_that_is_ended_before_it_has_begun_is_over() -> None:
    said: list[Told] = []
    told = Telling(
        hook="slow", phase="before", call="c1", method="tools/call", server="good", name="echo", session="s1",
        arguments=msgspec.Raw(b"{}"),
    )  # fmt: skip
    begin = Begin(run=1, call=msgspec.Raw(msgspec.json.encode(told)))

    async def run(number: int, call: bytes) -> Told:
        raise AssertionError("nobody waits for it")

    async def main() -> None:
        lines = asyncio.StreamReader()
        lines.feed_data(line_of(begin) + line_of(Begin(run=1)))  # as both stand in a pipe that was not read
        lines.feed_eof()
        await hook_child.serve(lines, run, said.append)
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert said == [Told(run=1, failed="it was ended")]
