import sys

import pytest

from tests.support.readme import ROOT


@pytest.mark.parametrize(
    ("word", "said"),
    [("serv", "No such command 'serv'. Did you mean 'serve'?"), ("xyz", "No such command 'xyz'.")],
)
def test_an_unknown_command(refused, word, said):
    assert said in refused(word)


def test_a_folder_that_cannot_be_made_is_named(refused, tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file/folder"
    manifests = ["--image=registry/sojourn@sha256:00", f"--config={ROOT}/configs/digits.yaml"]
    for words in (["init", folder], ["k8s", "render", *manifests, f"--out={folder}"]):
        assert refused(*words) == f"sojourn: {folder}: Not a directory"


def test_a_package_of_an_extra_that_is_missing(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("sojourn.reporting.policy_plot", "matplotlib.axes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    profile = ROOT / "configs/profiles/googlenet-p4.json"
    said = refused("solve", "--profile", profile, "--arrival-rate", "9", "--plot", "plot.png")
    assert said == "sojourn: matplotlib is missing: pip install 'sojourn[reports]'"
