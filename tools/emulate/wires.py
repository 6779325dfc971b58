# SPDX-License-Identifier: Apache-2.0
"""Moves bytes between namespaces over TCP connections; messages of one connection take turns.

Both ends of every connection live in this one process, so that one clock times both. Bytes are
neither made nor looked at: they are sent from one page (sendfile(2)) and dropped on arrival
(MSG_TRUNC of tcp(7)).
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from railweave.tools.emulate.spaces import entered

if TYPE_CHECKING:
    from railweave.tools.emulate.loop import Loop

__all__ = ["Arrival", "Wires"]

_PIECE: Final = 1 << 18
_SEND_BUFFER: Final = 1 << 18
_CONNECT_S: Final = 5.0

Arrival = Callable[[int, int, int], None]
"""Called with the time of the last byte and the length and beginning of the longest silence, ns."""


@dataclass(eq=False)
class _Message:
    """Bytes on their way, and when something of them was heard last."""

    size: int
    arrived: Arrival
    left: int
    heard_ns: int = 0
    gap_ns: int = 0
    gap_began_ns: int = 0


@dataclass(eq=False)
class _Wire:
    """Both ends of a connection, and the messages that wait for their turn on it."""

    near: socket.socket
    far: socket.socket
    to_send: deque[int] = field(default_factory=deque)
    to_read: deque[_Message] = field(default_factory=deque)


class Wires:
    """The connections of an emulation."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._wires: dict[int, _Wire] = {}
        self._sink = bytearray(_PIECE)
        self._page = os.memfd_create("railweave", os.MFD_CLOEXEC)
        os.ftruncate(self._page, _PIECE)

    def __contains__(self, number: int) -> bool:
        return number in self._wires

    def open(
        self, connections: Sequence[dict[str, Any]], congestion: str, window: int
    ) -> dict[int, str]:
        """Open connections; return number -> why it could not be, for those that failed.

        Each has its ``number``, and a ``source`` and a ``target`` of ``(namespace, address,
        port)``. ``congestion`` names the congestion control, ``window`` is SO_RCVBUF in bytes.
        """
        failed: dict[int, str] = {}
        for asked in connections:
            try:
                wire = _connect(asked["source"], asked["target"], congestion, window)
            except OSError as error:
                failed[asked["number"]] = error.strerror or str(error)
            else:
                self._wires[asked["number"]] = wire
                self._loop.watch(wire.far.fileno(), selectors.EVENT_READ, partial(self._read, wire))
        return failed

    def close(self) -> None:
        """Close every connection; what is under way is lost."""
        for wire in self._wires.values():
            for end in (wire.near, wire.far):
                self._loop.forget(end.fileno())
                end.close()
        self._wires.clear()

    def send(self, number: int, size: int, arrived: Arrival) -> None:
        """Send a message of at least one byte after those that were given before."""
        wire = self._wires[number]
        wire.to_send.append(size)
        wire.to_read.append(_Message(size, arrived, size))
        if len(wire.to_read) == 1:
            wire.to_read[0].heard_ns = time.monotonic_ns()
        if len(wire.to_send) == 1:
            self._loop.watch(wire.near.fileno(), selectors.EVENT_WRITE, partial(self._write, wire))

    def _write(self, wire: _Wire) -> None:
        left = wire.to_send[0]
        try:
            left -= os.sendfile(wire.near.fileno(), self._page, 0, min(left, _PIECE))
        except BlockingIOError:
            return
        if left:
            wire.to_send[0] = left
            return
        wire.to_send.popleft()
        if not wire.to_send:
            self._loop.forget(wire.near.fileno())

    def _read(self, wire: _Wire) -> None:
        try:
            count = wire.far.recv_into(self._sink, _PIECE, socket.MSG_TRUNC)
        except BlockingIOError:
            return
        now = time.monotonic_ns()
        if not count:
            self._loop.forget(wire.far.fileno())
            return
        while count:
            message = wire.to_read[0]
            if now - message.heard_ns > message.gap_ns:
                message.gap_ns, message.gap_began_ns = now - message.heard_ns, message.heard_ns
            message.heard_ns = now
            taken = min(count, message.left)
            message.left -= taken
            count -= taken
            if not message.left:
                wire.to_read.popleft()
                if wire.to_read:
                    wire.to_read[0].heard_ns = now
                message.arrived(now, message.gap_ns, message.gap_began_ns)


def _connect(source: list[Any], target: list[Any], congestion: str, window: int) -> _Wire:
    with entered(target[0]):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with entered(source[0]):
        near = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        for end in (listener, near):
            end.settimeout(_CONNECT_S)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode("ascii"))
            # Closed at once, without TIME_WAIT: the same ports can be used again.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((target[1], target[2]))
        listener.listen(1)
        near.bind((source[1], source[2]))
        near.connect((target[1], target[2]))
        far, _ = listener.accept()  # inherits what was set on the listener
    except OSError:
        near.close()
        raise
    finally:
        listener.close()
    near.setblocking(False)
    far.setblocking(False)
    return _Wire(near, far)
