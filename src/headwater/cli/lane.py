"""One direction of one connection through the proxy: bytes in, a bucket, a delay line, bytes out.

The bucket comes before the line, as on a real link: what waits for its turn has not left the sender.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from headwater.cli.faults import LASTING, Direction, Fault, Kind, Shape

READ_BYTES = 16 << 10
# What a link that was idle passes at once.
BURST_BYTES = 32 << 10
BURST_SECONDS = 0.003
# Shorter sleeps cost more of the core than they smooth the flow.
NAP_SECONDS = 0.002
# How late a machine that is busy may wake the proxy without a loss of rate.
LATE_SECONDS = 0.25
# How much may be on its way; without a delay only as much as a socket would hold.
LINE_BYTES = 8 << 20
SHORT_LINE_BYTES = 128 << 10
# Waits are cut into pieces this long, so that a link that heals or changes is noticed.
TICK_SECONDS = 0.02

Ending = Literal["close", "reset"]
Item = bytes | Fault | None
"""What lies on a delay line: bytes, a fault that strikes when it comes out, or None: the stream's end."""


class Bucket:
    """A rate, shared in the order of asking by all who take from it."""

    def __init__(self, bits_per_second: float | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self.set_rate(bits_per_second)

    def set_rate(self, bits_per_second: float | None) -> None:
        self._bytes_per_second = math.inf if bits_per_second is None else bits_per_second / 8
        self._level, self._filled_at = 0.0, self._clock()

    @property
    def piece_bytes(self) -> int:
        """What to take at once: at low rates less, so that the bytes of a slow link trickle."""
        return int(max(512, min(READ_BYTES, self._bytes_per_second * TICK_SECONDS)))

    async def take(self, count: int, *, idle: bool) -> None:
        """Return when `count` bytes may pass; `idle` says that the one who asks had nothing to pass before.

        Idle time is lost, but for a burst. Time in which bytes waited is not: a machine that is busy and
        runs the proxy late must not cost the link its rate.
        """
        late = self._bytes_per_second * LATE_SECONDS
        async with self._turn:
            self._fill(most=max(BURST_BYTES, self._bytes_per_second * BURST_SECONDS) if idle else late)
            self._level -= count
            while self._level < 0:
                wait = max(-self._level / self._bytes_per_second, NAP_SECONDS)
                await asyncio.sleep(min(wait, TICK_SECONDS))
                self._fill(most=self._bytes_per_second * LATE_SECONDS)

    def _fill(self, *, most: float) -> None:
        now = self._clock()
        if self._bytes_per_second == math.inf:
            self._level = math.inf
        elif self._level < most:
            self._level = min(most, self._level + (now - self._filled_at) * self._bytes_per_second)
        self._filled_at = now


class Line:
    """A delay line: what goes in comes out in order, not before its time, and no more than fits is inside."""

    def __init__(self) -> None:
        self._items: deque[tuple[float, Item]] = deque()
        self._bytes = 0
        self._filled, self._emptied = asyncio.Event(), asyncio.Event()

    def has_room(self, most_bytes: int) -> bool:
        return self._bytes < most_bytes

    async def wait_for_room(self, most_bytes: int) -> None:
        while not self.has_room(most_bytes):
            self._emptied.clear()
            await self._emptied.wait()

    def put(self, item: Item, release_at: float) -> None:
        self._items.append((release_at, item))
        self._bytes += len(item) if isinstance(item, bytes) else 0
        self._filled.set()

    async def get(self) -> tuple[float, Item]:
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
        release_at, item = self._items.popleft()
        self._bytes -= len(item) if isinstance(item, bytes) else 0
        self._emptied.set()
        return release_at, item


class Road:
    """What all connections share: the shape, a bucket each way, and the count of bytes passed on."""

    def __init__(self, shape: Shape, *, seed: int, clock: Callable[[], float]) -> None:
        rate = shape.bits_per_second
        self.shape, self.seed, self.clock = shape, seed, clock
        self.buckets: dict[Direction, Bucket] = {"up": Bucket(rate, clock), "down": Bucket(rate, clock)}
        self.passed: Counter[Direction] = Counter()

    def reshape(self, shape: Shape) -> None:
        self.shape = shape
        for bucket in self.buckets.values():
            bucket.set_rate(shape.bits_per_second)


class Lane:
    """Carries one direction of the connection of that number; `end` ends the whole connection."""

    def __init__(
        self, road: Road, direction: Direction, *, number: int, end: Callable[[Ending], object]
    ) -> None:
        self._road, self._direction, self._end = road, direction, end
        self._bucket, self._clock = road.buckets[direction], road.clock
        self._random = random.Random(f"{road.seed} {number} {direction}")
        self._line, self._last_release = Line(), 0.0
        self._position, self._mask, self._deaf = 0, 0, False
        self._carried, self._written, self._held_from = 0, 0, 0
        self._armed: list[tuple[int, Fault]] = []
        self._lasting: dict[Kind, tuple[float, Fault]] = {}
        self._own_bucket: Bucket | None = None
        # True when the bytes to come were not waiting for the link alone.
        self._idle = True

    def arm(self, fault: Fault) -> None:
        """Let a fault strike `after_bytes` from where the stream is now; without it, at once."""
        if fault.after_bytes:
            self._armed.append((self._position + fault.after_bytes, fault))
            self._armed.sort(key=lambda entry: entry[0])
        else:
            self._strike(fault)

    def heal(self) -> None:
        """End what lasts and disarm what waits; what was lost stays lost."""
        self._armed.clear()
        self._lasting.clear()

    async def read(self, source: socket.socket) -> None:
        """Take all that the source sends, until it ends its stream."""
        while data := await self._receive(source):
            await self._wait_out("pause")
            while data:
                room = self._armed[0][0] - self._position if self._armed else len(data)
                await self._forward(data[:room])
                data = data[room:]
        # A black hole swallows the end of a stream too; TCP would say it again later.
        await self._wait_out("pause", "swallow")
        if not self._deaf:
            self._line.put(None, self._next_release())

    async def write(self, target: socket.socket) -> None:
        """Pass on what comes out of the line, until the stream's end."""
        loop = asyncio.get_running_loop()
        while True:
            release_at, item = await self._line.get()
            if (early := release_at - self._clock()) > 0:
                await asyncio.sleep(early)
            if self._written >= self._held_from:
                await self._wait_out("hold")
            if item is None:
                break
            if isinstance(item, Fault):
                self._end("reset" if item.kind == "reset" else "close")
            else:
                # Before it is sent, so that nobody who has the bytes finds a counter without them.
                self._road.passed[self._direction] += len(item)
                self._written += len(item)
                await loop.sock_sendall(target, item)
        with suppress(OSError):  # the target may have gone first
            target.shutdown(socket.SHUT_WR)

    async def _receive(self, source: socket.socket) -> bytes:
        slow = self._own_bucket if self._find("slow") else None
        most = min(self._bucket.piece_bytes, slow.piece_bytes if slow else READ_BYTES)
        try:
            with suppress(BlockingIOError):
                return source.recv(most)
            self._idle = True
            return await asyncio.get_running_loop().sock_recv(source, most)
        except OSError:
            await self._wait_out("pause", "hold", "swallow")  # where bytes do not pass, no reset does
            raise

    async def _forward(self, data: bytes) -> None:
        self._position += len(data)
        if self._mask:
            data, self._mask = bytes([data[0] ^ self._mask]) + data[1:], 0
        if not self._deaf and self._find("swallow") is None:
            await self._carry(data)
        while self._armed and self._armed[0][0] <= self._position:
            self._strike(self._armed.pop(0)[1])

    async def _carry(self, data: bytes) -> None:
        if self._own_bucket and self._find("slow"):
            await self._own_bucket.take(len(data), idle=self._idle)
            self._idle = True
        await self._bucket.take(len(data), idle=self._idle)
        release = self._next_release()
        room = LINE_BYTES if release > self._clock() else SHORT_LINE_BYTES
        if not self._line.has_room(room):
            await asyncio.sleep(0)  # the writer may only have had no turn
        self._idle = not self._line.has_room(room)
        await self._line.wait_for_room(room)
        self._line.put(data, release)
        self._carried += len(data)

    def _strike(self, fault: Fault) -> None:
        if fault.kind in LASTING:
            self._lasting[fault.kind] = (self._clock() + fault.lasts_seconds, fault)
            if fault.kind == "slow":
                self._own_bucket = Bucket(fault.bits_per_second, self._clock)
            elif fault.kind == "hold":  # bytes before its place in the stream still come out of the line
                self._held_from = self._carried if fault.after_bytes else 0
        elif fault.kind == "corrupt":
            self._mask ^= fault.mask
        elif fault.kind == "half-close":
            if not self._deaf:
                self._line.put(None, self._next_release())
            self._deaf = True
        elif fault.after_bytes:
            # Through the line, so that exactly the bytes before it arrive.
            self._line.put(fault, self._next_release())
            self._deaf = True
        else:
            self._end("reset" if fault.kind == "reset" else "close")

    def _find(self, kind: Kind) -> Fault | None:
        until, fault = self._lasting.get(kind, (0.0, None))
        return fault if self._clock() < until else None

    async def _wait_out(self, *kinds: Kind) -> None:
        while ends := [self._lasting[kind][0] for kind in kinds if self._find(kind)]:
            self._idle = True
            await asyncio.sleep(min(max(ends) - self._clock(), TICK_SECONDS))

    def _next_release(self) -> float:
        """When bytes that come now may leave: never before those that came earlier."""
        shape, delay, jitter = self._road.shape, self._find("delay"), self._find("jitter")
        span = shape.jitter_seconds + (jitter.delay_seconds if jitter else 0.0)
        wait = shape.delay_seconds + (delay.delay_seconds if delay else 0.0)
        wait += self._random.uniform(0.0, span) if span else 0.0
        self._last_release = max(self._last_release, self._clock() + wait)
        return self._last_release
