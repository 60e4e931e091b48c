import os
import socket

from deployments.modelstore.client import Hold


def test_a_closed_hold_does_not_write_to_the_next_file_with_its_descriptor(tmp_path):
    connection, manager = socket.socketpair()
    descriptor = connection.fileno()
    hold = Hold(connection, "host")
    with manager, open(tmp_path / "next", "wb") as file:
        hold.close()
        os.dup2(file.fileno(), descriptor)
        hold.attached("host", 0.0)
        os.close(descriptor)
    assert (tmp_path / "next").read_bytes() == b""
