"""Clients that were refused for a wrong token: how long each waits for its answer, and what is told of them.

Owns the delay of such an answer, by address, and the report of at most one a minute. Only the answer to a
wrong token waits: a right one from the same address is never held up. Invariants: a delay is at most
`MAX_DELAY_S`; of one address at most `MAX_WAITING` answers wait, and beyond that the connection ends with the
answer; at most `MAX_ADDRESSES` are remembered, and what is dropped is still counted.

Pure. Knows nothing of: tokens, connections, logs, other reasons for a refusal.
"""

import ipaddress
from collections import deque
from typing import Final, Literal, NamedTuple

WrongSecret = Literal["wrong_token", "wrong_code"]

FREE: Final = 3
"""This many wrong tokens of one address are answered at once: a person may have an old one."""
FIRST_DELAY_S: Final = 0.1
MAX_DELAY_S: Final = 2.0
FORGET_S: Final = 60.0
"""An address without a wrong token for so long begins anew."""
MAX_WAITING: Final = 32
MAX_ADDRESSES: Final = 256
REPORT_S: Final = 60.0
OTHERS: Final = "other addresses"
"""Stands for the addresses that are not remembered any more."""


class Penalty(NamedTuple):
    """The treatment of one refused request."""

    delay_s: float
    """Its answer waits so long."""
    ends: bool
    """Its connection ends with the answer."""


class RefusedAddress(NamedTuple):
    """The wrong secrets of one address since the last report."""

    address: str
    why: WrongSecret
    times: int


class _Record:
    __slots__ = ("last_at", "strikes", "waiting")

    def __init__(self) -> None:
        self.strikes = 0
        self.last_at = float("-inf")
        self.waiting: deque[float] = deque()
        """The times at which its answers that wait are due."""


class RefusedClients:
    """The addresses from which wrong tokens came."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        """By address, that of the last wrong token last."""
        self._unreported: dict[tuple[str, WrongSecret], int] = {}
        self._reported_at = float("-inf")

    def refused(self, address: str, why: WrongSecret, now: float) -> Penalty:
        """A request with a wrong secret came from this address."""
        network = network_of(address)
        record = self._records.pop(network, None) or _Record()
        if now - record.last_at >= FORGET_S:
            record.strikes = 0
        self._records[network] = record
        if len(self._records) > MAX_ADDRESSES:
            del self._records[next(iter(self._records))]
        record.strikes, record.last_at = record.strikes + 1, now
        self._count(network, why)
        while record.waiting and record.waiting[0] <= now:
            record.waiting.popleft()
        over = record.strikes - FREE
        if over <= 0:
            return Penalty(0.0, ends=False)
        if len(record.waiting) >= MAX_WAITING:
            return Penalty(0.0, ends=True)
        delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** min(over - 1, 10))
        record.waiting.append(now + delay_s)
        return Penalty(delay_s, ends=False)

    def take_report(self, now: float) -> list[RefusedAddress]:
        """Return what came since the last report, the most first; nothing before a minute has passed."""
        if not self._unreported or now - self._reported_at < REPORT_S:
            return []
        self._reported_at = now
        found = [RefusedAddress(*key, times) for key, times in self._unreported.items()]
        self._unreported.clear()
        return sorted(found, key=lambda each: -each.times)

    def check(self) -> None:
        """Assert every invariant."""
        assert len(self._records) <= MAX_ADDRESSES
        assert len(self._unreported) <= 2 * (MAX_ADDRESSES + 1)
        assert all(len(each.waiting) <= MAX_WAITING for each in self._records.values())

    def _count(self, network: str, why: WrongSecret) -> None:
        key = (network, why)
        if key not in self._unreported and len(self._unreported) >= MAX_ADDRESSES:
            key = (OTHERS, why)
        self._unreported[key] = self._unreported.get(key, 0) + 1


def network_of(address: str) -> str:
    """Return the address, or the /64 network of an IPv6 address: one client has all addresses in it."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if not found.is_loopback:
            return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
