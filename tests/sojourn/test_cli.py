"""What the command line says before a command runs."""

import pytest

from sojourn.cli import main


@pytest.mark.parametrize(
    ("word", "said"),
    [("serv", "there is no command 'serv'; did you mean 'serve'?"), ("xyz", "No such command")],
)
def test_an_unknown_command_is_one_line(
    capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    assert main([word]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
