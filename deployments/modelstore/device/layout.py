"""The layout of a safetensors file in device memory.

The header comes first, so that a client can read it from there. Each tensor follows at a multiple
of `ALIGNMENT_BYTES`, which kernels require; in the file, tensors are not aligned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deployments.modelstore.files.safetensors_header import TensorEntry

#: The alignment of CUDA's own allocator.
ALIGNMENT_BYTES = 256


@dataclass(frozen=True)
class Piece:
    """Bytes that are contiguous both in the file and on the device."""

    file_offset: int
    device_offset: int
    size_bytes: int


def offsets(data_begin: int, entries: Sequence[TensorEntry]) -> list[int]:
    """Return the offset of each tensor on the device, in the order of their bytes, and the end."""
    position, found = data_begin, []
    for entry in entries:
        position = -(-position // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        found.append(position)
        position += entry.end - entry.begin
    return [*found, position]


def pieces(data_begin: int, entries: Sequence[TensorEntry]) -> list[Piece]:
    """Return the pieces to copy, in order; adjacent pieces are joined."""
    found = [Piece(0, 0, data_begin)]
    for entry, offset in zip(entries, offsets(data_begin, entries), strict=False):
        last, size_bytes = found[-1], entry.end - entry.begin
        if offset == last.device_offset + last.size_bytes:
            # The file has no gaps, so they are adjacent there, too.
            found[-1] = Piece(last.file_offset, last.device_offset, last.size_bytes + size_bytes)
        elif size_bytes:
            found.append(Piece(entry.begin, offset, size_bytes))
    return found


def windows(
    all_pieces: Sequence[Piece], window_bytes: int
) -> Iterator[tuple[int, int, list[Piece]]]:
    """Split a copy into parts that fit a staging buffer.

    Yield where each begins on the device, its size, and its pieces, whose `device_offset` counts
    from there.
    """
    begin = 0
    inside: list[Piece] = []
    for piece in all_pieces:
        done = 0
        while done < piece.size_bytes:
            offset = piece.device_offset + done
            if offset >= begin + window_bytes:
                yield begin, _end(inside), inside
                begin, inside = offset, []
            size_bytes = min(piece.size_bytes - done, begin + window_bytes - offset)
            inside.append(Piece(piece.file_offset + done, offset - begin, size_bytes))
            done += size_bytes
    if inside:
        yield begin, _end(inside), inside


def _end(inside: Sequence[Piece]) -> int:
    return inside[-1].device_offset + inside[-1].size_bytes
