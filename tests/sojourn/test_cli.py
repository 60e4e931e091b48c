import pytest


@pytest.mark.parametrize(
    ("word", "said"),
    [("serv", "there is no command 'serv'; did you mean 'serve'?"), ("xyz", "No such command")],
)
def test_an_unknown_command(refused, word, said):
    assert said in refused(word)
