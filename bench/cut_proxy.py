"""A proxy on loopback in front of a server, that can be cut: it passes bytes, or holds them back.

While it is cut nothing passes and no connection ends, as with a network cable that is pulled; new connections
are taken and get no answer.

Knows nothing of: what the bytes mean.
"""

import trio

READ_BYTES = 1 << 16


class CutProxy:
    """Passes connections at `port` on to `target_port`, both on 127.0.0.1."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.port = 0
        self.delay_s = 0.0
        """How long each piece of data waits."""
        self._passing = trio.Event()
        self._passing.set()

    def cut(self) -> None:
        """Pass nothing any more."""
        self._passing = trio.Event()

    def heal(self) -> None:
        """Pass everything that was held back, and go on."""
        self._passing.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, near: trio.SocketStream) -> None:
        await self._passing.wait()
        try:
            far = await trio.open_tcp_stream("127.0.0.1", self._target_port)
        except OSError:
            await near.aclose()
            return
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, near, far, nursery.cancel_scope)
            nursery.start_soon(self._copy, far, near, nursery.cancel_scope)

    async def _copy(
        self, source: trio.SocketStream, target: trio.SocketStream, end: trio.CancelScope
    ) -> None:
        try:
            while data := await source.receive_some(READ_BYTES):
                if self.delay_s:
                    await trio.sleep(self.delay_s)
                await self._passing.wait()
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        end.cancel()
