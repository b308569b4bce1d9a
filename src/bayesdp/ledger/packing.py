"""Packing arrays for the file: counts as bytes without the zeros, costs as 16-bit floats that are rounded up."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.validation import FloatArray

_HEADER = struct.Struct("<BQQQQ")  # compressed or not, rows, columns, bytes of large numbers, bytes of the body
_SMALL_HEADER = struct.Struct("<BII")  # rows, numbers in a row, bytes of large numbers
_LARGE = 255  # the byte that stands for a number from 255 on, which is kept separately
_COST_BITS = 15  # dropped of the 23 mantissa bits of a 32-bit float: 8 are kept, and no sign


def pack(counts: NDArray[Any], *, tight: bool) -> bytes:
    """Pack whole numbers from 0 to 2^32 - 1, [K, n]: a bit for each that says whether it is 0, and a byte if it is not.

    The few that do not fit into a byte are kept separately. ``tight`` compresses: half the size, three times the time.
    """
    present = counts != 0
    numbers, large = _to_bytes(counts[present])
    body = np.packbits(present).tobytes() + numbers
    if tight:
        body = zlib.compress(body, 6)
    return _HEADER.pack(tight, *counts.shape, len(large), len(body)) + large + body


def unpack(data: bytes) -> tuple[NDArray[Any], bytes]:
    """Return the array that ``pack`` wrote, in a small unsigned type, and the bytes that follow it."""
    tight, rows, columns, large_bytes, length = _HEADER.unpack_from(data)
    start = _HEADER.size + large_bytes
    end = start + length
    body = np.frombuffer(zlib.decompress(data[start:end]) if tight else data[start:end], np.uint8)
    cells = rows * columns
    present = np.unpackbits(body[: -(-cells // 8)], count=cells).view(bool)
    numbers = _from_bytes(body[-(-cells // 8) :], data[_HEADER.size : start])
    counts = np.zeros(cells, numbers.dtype)
    counts[present] = numbers
    return counts.reshape(rows, columns), data[end:]


def loosen(data: bytes) -> bytes:
    """Return the bytes of the same arrays without compression, which are faster to unpack."""
    parts: list[bytes] = []
    while data:
        tight, rows, columns, large_bytes, length = _HEADER.unpack_from(data)
        start = _HEADER.size + large_bytes
        body = zlib.decompress(data[start : start + length]) if tight else data[start : start + length]
        parts += [_HEADER.pack(False, rows, columns, large_bytes, len(body)), data[_HEADER.size : start], body]
        data = data[start + length :]
    return b"".join(parts)


def pack_small(numbers: NDArray[Any]) -> bytes:
    """Pack a few thousand whole numbers from 0 to 2^32 - 1, [rows, n], compressed fast."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, wbits=12, strategy=zlib.Z_RLE)
    body, large = _to_bytes(numbers)
    return _SMALL_HEADER.pack(*numbers.shape, len(large)) + large + compressor.compress(body) + compressor.flush()


def unpack_small(data: bytes) -> NDArray[np.int64]:
    """Return the numbers that ``pack_small`` wrote, [rows, n]."""
    rows, length, large_bytes = _SMALL_HEADER.unpack_from(data)
    start = _SMALL_HEADER.size + large_bytes
    body = np.frombuffer(zlib.decompress(data[start:]), np.uint8)
    return _from_bytes(body, data[_SMALL_HEADER.size : start]).astype(np.int64).reshape(rows, length)


def _to_bytes(numbers: NDArray[Any]) -> tuple[bytes, bytes]:
    """Return one byte for each number, and in order the numbers that are too large for a byte."""
    large = numbers[numbers >= _LARGE]
    return np.minimum(numbers, _LARGE).astype(np.uint8).tobytes(), large.astype("<u4").tobytes()


def _from_bytes(numbers: NDArray[np.uint8], large: bytes) -> NDArray[Any]:
    if not large:
        return numbers
    wide = numbers.astype(np.uint32)
    wide[numbers == _LARGE] = np.frombuffer(large, "<u4")
    return wide


def pack_costs(costs: FloatArray) -> NDArray[np.uint16]:
    """Return costs (at least 0) in 16 bits: never below the cost, at most 1/256 above it. Infinity stays infinite.

    Costs above the range of 32-bit floats become infinite.
    """
    with np.errstate(over="ignore"):
        single = costs.astype(np.float32)
    single = np.where(single < costs, np.nextafter(single, np.float32(np.inf)), single)
    return ((single.view(np.uint32) + ((1 << _COST_BITS) - 1)) >> _COST_BITS).astype(np.uint16)


def unpack_costs(packed: NDArray[np.uint16]) -> FloatArray:
    """Return the costs that ``pack_costs`` kept."""
    return (packed.astype(np.uint32) << _COST_BITS).view(np.float32).astype(np.float64)
