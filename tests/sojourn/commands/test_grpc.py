def test_what_is_no_url_of_a_service(refused):
    assert "--url: must be like http://127.0.0.1:8000" in refused("grpc", "--url", "h:8000")
