from deployments.modelstore.manager.shared_files import ClientFile, SharedFiles


def test_a_file_is_read_from_a_client_that_waits_when_another_with_the_same_has_died(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"weights")
    for survivor in (0, 1):
        shared = SharedFiles(None)
        with path.open("rb") as opened:
            clients = [ClientFile(opened.fileno()) for _ in range(2)]
        for client in clients:
            name, _ = shared.add(path.name, client.blob(), client)
        del client, clients[1 - survivor]
        assert b"".join(shared.read(name, path.name, 0)) == b"weights"
