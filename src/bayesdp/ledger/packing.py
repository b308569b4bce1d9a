"""Small forms of arrays for the file: counts as bytes without zeros, costs as 16-bit floats that are rounded up."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.validation import FloatArray

_HEADER = struct.Struct("<BBQQQ")  # compressed or not, bytes per number, rows, columns, length of the body
_SMALL_HEADER = struct.Struct("<BBI")  # bytes per number, rows, numbers in a row
_COST_BITS = 15  # dropped of the 23 mantissa bits of a 32-bit float: 8 are kept, and no sign


def pack(counts: NDArray[Any], *, tight: bool) -> bytes:
    """Whole numbers of at least 0, [K, n]: where they are not 0, then those, lowest bytes first.

    ``tight`` compresses: half the size, three times the time.
    """
    present = counts != 0
    numbers = counts[present]
    width = max(1, (int(numbers.max(initial=0)).bit_length() + 7) // 8)
    planes = [(numbers >> (8 * i) if i else numbers).astype(np.uint8).tobytes() for i in range(width)]
    body = np.packbits(present).tobytes() + b"".join(planes)
    if tight:
        body = zlib.compress(body, 6)
    return _HEADER.pack(tight, width, *counts.shape, len(body)) + body


def unpack(data: bytes) -> tuple[NDArray[Any], bytes]:
    """The array that ``pack`` wrote, in its smallest unsigned type, and the bytes that follow it."""
    tight, width, rows, columns, length = _HEADER.unpack_from(data)
    end = _HEADER.size + length
    body = zlib.decompress(data[_HEADER.size : end]) if tight else data[_HEADER.size : end]
    cells = rows * columns
    bits = np.frombuffer(body, np.uint8)
    present = np.unpackbits(bits[: -(-cells // 8)], count=cells).view(bool)
    planes = bits[-(-cells // 8) :].reshape(width, -1)
    kind = np.dtype(f"u{1 << (width - 1).bit_length()}").type
    numbers = planes[0].astype(kind)
    for i in range(1, width):
        numbers |= planes[i].astype(kind) << kind(8 * i)
    counts = np.zeros(cells, kind)
    counts[present] = numbers
    return counts.reshape(rows, columns), data[end:]


def loosen(data: bytes) -> bytes:
    """The same arrays, not compressed: faster to unpack."""
    parts: list[bytes] = []
    while data:
        tight, width, rows, columns, length = _HEADER.unpack_from(data)
        end = _HEADER.size + length
        body = zlib.decompress(data[_HEADER.size : end]) if tight else data[_HEADER.size : end]
        parts.append(_HEADER.pack(False, width, rows, columns, len(body)) + body)
        data = data[end:]
    return b"".join(parts)


def pack_small(numbers: NDArray[Any]) -> bytes:
    """A few thousand whole numbers of at least 0, [rows, n], compressed fast: lowest bytes first."""
    width = max(1, (int(numbers.max(initial=0)).bit_length() + 7) // 8)
    planes = b"".join((numbers >> (8 * i)).astype(np.uint8).tobytes() for i in range(width))
    compressor = zlib.compressobj(1, zlib.DEFLATED, wbits=12, strategy=zlib.Z_RLE)
    return _SMALL_HEADER.pack(width, *numbers.shape) + compressor.compress(planes) + compressor.flush()


def unpack_small(data: bytes) -> NDArray[np.int64]:
    """The numbers that ``pack_small`` wrote, [rows, n]."""
    width, rows, length = _SMALL_HEADER.unpack_from(data)
    planes = np.frombuffer(zlib.decompress(data[_SMALL_HEADER.size :]), np.uint8)
    planes = planes.reshape(width, rows, length).astype(np.int64)
    shifts = 8 * np.arange(width, dtype=np.int64)
    return np.sum(planes << shifts[:, None, None], axis=0)


def pack_costs(costs: FloatArray) -> NDArray[np.uint16]:
    """Costs of at least 0 as 16 bits, at most 1/256 above themselves and never below; infinity stays."""
    with np.errstate(over="ignore"):
        single = costs.astype(np.float32)
    single = np.where(single < costs, np.nextafter(single, np.float32(np.inf)), single)
    return ((single.view(np.uint32) + ((1 << _COST_BITS) - 1)) >> _COST_BITS).astype(np.uint16)


def unpack_costs(packed: NDArray[np.uint16]) -> FloatArray:
    """The costs that ``pack_costs`` kept."""
    return (packed.astype(np.uint32) << _COST_BITS).view(np.float32).astype(np.float64)
