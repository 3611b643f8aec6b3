"""AMQP 0-9-1 frames: their layout, and the frames of a published message."""

import struct

METHOD, HEADER, BODY = 1, 2, 3
"""The frame types that carry a message. The highest type that exists is `MAX_FRAME_TYPE`, a heartbeat."""

MAX_FRAME_TYPE = 8

FRAME_END = 0xCE
"""The last byte of every frame."""

FRAME_START = struct.Struct(">BHI")
"""The start of every frame: type, channel and size of its content."""

BASIC, ACK, NACK = 60, 80, 120
"""The class `basic`, and the methods by which the broker confirms or refuses messages."""

CONFIRM = struct.Struct(">BHIHHQBB")
"""A whole frame with `basic.ack` or `basic.nack`: type, channel, size, class, method, delivery tag, flags and end."""

CONFIRM_SIZE = CONFIRM.size - FRAME_START.size - 1
"""Bytes of such a frame's content."""

DELIVER = 60
"""The method of the class `basic` with which the broker delivers a message."""

METHOD_START = struct.Struct(">HH")
"""The start of a method: class and method."""

HEADER_START = struct.Struct(">HHQ")
"""The start of a header: class, weight and body size."""

TAG = struct.Struct(">QB")
"""Delivery tag, and whether the message was delivered before."""

MULTIPLE = 1
"""The flag of a confirm that covers all messages up to its delivery tag."""

HEADER_FRAME_OVERHEAD = 20
"""Bytes of a header frame without the message's properties: frame start and end, class, weight and body size."""

BODY_FRAME_OVERHEAD = 8
"""Bytes of a body frame without the body: frame start and end."""

_END_BYTE = bytes([FRAME_END])
# The end of one frame together with the start of the next: one piece fewer to join per frame.
_END_AND_START = struct.Struct(">BBHI")
_END_AND_HEADER_START = struct.Struct(">BBHIHHQ")


def append_message(
    frames: list[bytes], channel: int, encoded: tuple[bytes, bytes], payload: bytes, frame_max: int
) -> None:
    """Append the frames of a message, in pieces, with the payload in several frames of `frame_max` bytes if necessary.

    `encoded` is the content of the method frame (`basic.publish` with its arguments), and the message's properties.
    """
    method, properties = encoded
    size = len(payload)
    max_part = frame_max - BODY_FRAME_OVERHEAD
    frames += (
        FRAME_START.pack(METHOD, channel, len(method)),
        method,
        _END_AND_HEADER_START.pack(FRAME_END, HEADER, channel, len(properties) + 12, BASIC, 0, size),
        properties,
    )
    for start in range(0, size, max_part):
        part = payload if size <= max_part else payload[start : start + max_part]
        frames += (_END_AND_START.pack(FRAME_END, BODY, channel, len(part)), part)
    frames.append(_END_BYTE)
