import pytest

from sojourn.name_clashes import PACKAGES, clash_in, hidden_package
from tests.support.readme import ROOT


def test_the_checkout_and_its_environment_are_as_they_should_be():
    assert hidden_package() is None
    assert clash_in(ROOT) is None


@pytest.mark.parametrize("name", [*PACKAGES, "sojourn"])
def test_a_package_or_a_module_of_the_users_with_a_name_of_ours(tmp_path, name):
    (tmp_path / "model.py").touch()
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.md").touch()
    assert clash_in(tmp_path) is None
    (tmp_path / name / "rules.py").touch()
    message = clash_in(tmp_path) or ""
    assert message.startswith(f"{tmp_path / name} has the name of one of Sojourn's own packages")
    (tmp_path / f"{name}.py").touch()
    assert f"{name}.py has" in (clash_in(tmp_path) or "")


@pytest.mark.parametrize("command", ["serve digits", "pipeline serve --check digits-pipeline"])
def test_serving_from_such_a_folder_is_refused(refused, tmp_path, monkeypatch, command):
    (tmp_path / "policy.py").touch()
    monkeypatch.chdir(tmp_path)
    *words, config = command.split()
    said = refused(*words, ROOT / f"configs/{config}.yaml")
    assert said.startswith(f"sojourn: {tmp_path / 'policy.py'} has the name of one")
