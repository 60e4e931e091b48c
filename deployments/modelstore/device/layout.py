"""The layout of a safetensors file in device memory.

The header comes first, so that a client can read it from there. Each tensor follows at a multiple
of `ALIGNMENT_BYTES`, which kernels require; in the file, tensors are not aligned.
"""

from collections.abc import Iterator, Sequence

from deployments.modelstore.files.safetensors_header import TensorEntry

#: The alignment of CUDA's own allocator.
ALIGNMENT_BYTES = 256


def offsets(data_begin: int, entries: Sequence[TensorEntry]) -> list[int]:
    """Return the offset of each tensor on the device, in the order of their bytes, and the end."""
    position, found = data_begin, []
    for entry in entries:
        position = -(-position // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        found.append(position)
        position += entry.end - entry.begin
    return [*found, position]


def pieces(
    data_begin: int, entries: Sequence[TensorEntry], piece_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Yield what to copy: an offset in the file, one on the device, and at most `piece_bytes`."""
    begins = [0, *(entry.begin for entry in entries)]
    ends = [data_begin, *(entry.end for entry in entries)]
    for begin, end, place in zip(begins, ends, [0, *offsets(data_begin, entries)], strict=False):
        for offset in range(begin, end, piece_bytes):
            yield offset, place + offset - begin, min(piece_bytes, end - offset)
