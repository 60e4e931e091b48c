import pytest

from deployments.access.credentials import TOKEN_VARIABLE, read_token
from policy.errors import InvalidInputError


def test_a_file_wins_over_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert read_token() is None
    monkeypatch.setenv(TOKEN_VARIABLE, " from-env\n")
    assert read_token() == "from-env"
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert read_token(file) == "from-file"


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff\xfe\x00"])
def test_a_file_holds_one_token(tmp_path, content):
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InvalidInputError, match="token: "):
        read_token(file)
    with pytest.raises(InvalidInputError, match="No such file"):
        read_token(tmp_path / "missing")
