from hypothesis import given
from hypothesis import strategies as st

from deployments.modelstore.device.layout import ALIGNMENT_BYTES, offsets, pieces
from deployments.modelstore.files.safetensors_header import TensorEntry

FILES = st.tuples(st.integers(8, 700), st.lists(st.integers(0, 900), max_size=12))


def entries_of(data_begin, sizes):
    found, position = [], data_begin
    for number, size_bytes in enumerate(sizes):
        end = position + size_bytes
        found.append(TensorEntry(str(number), "U8", (size_bytes,), position, end))
        position = end
    return found


@given(FILES)
def test_tensors_are_aligned_and_do_not_overlap(file):
    data_begin, sizes = file
    *begins, end = offsets(data_begin, entries_of(data_begin, sizes))
    assert all(begin % ALIGNMENT_BYTES == 0 for begin in begins)
    ends = [begin + size_bytes for begin, size_bytes in zip(begins, sizes, strict=True)]
    assert all(
        before <= begin < before + ALIGNMENT_BYTES
        for before, begin in zip([data_begin, *ends], [*begins, end], strict=True)
    )


@given(FILES, st.integers(1, 1000))
def test_a_copy_by_pieces_puts_each_byte_where_it_belongs(file, piece_bytes):
    data_begin, sizes = file
    content = [number % 251 for number in range(data_begin + sum(sizes))]
    entries = entries_of(data_begin, sizes)
    places = offsets(data_begin, entries)
    device = [-1] * places[-1]
    for begin, offset, size_bytes in pieces(data_begin, entries, piece_bytes):
        assert 0 < size_bytes <= piece_bytes
        target = slice(offset, offset + size_bytes)
        assert set(device[target]) == {-1}, "a byte was copied twice"
        device[target] = content[begin:][:size_bytes]
    assert device[:data_begin] == content[:data_begin]
    for entry, place in zip(entries, places, strict=False):
        assert device[place:][: entry.end - entry.begin] == content[entry.begin : entry.end]
