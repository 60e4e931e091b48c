import errno
import os
import sys

import pytest

from sojourn.commands import solve
from tests.support.readme import ROOT

GOOGLENET_P4 = ROOT / "configs/profiles/googlenet-p4.json"


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


def test_a_file_in_the_place_of_a_folder_of_manifests_is_named(refused, tmp_path):
    (tmp_path / "base").touch()
    manifests = ["--image=registry/sojourn@sha256:00", f"--config={ROOT}/configs/digits.yaml"]
    said = refused("k8s", "render", *manifests, f"--out={tmp_path}")
    assert said == f"sojourn: [Errno {errno.EEXIST}] File exists: '{tmp_path}/base'"


def test_a_full_disk_is_one_line(refused):
    arguments = ["--arrival-rate=900", "--sla=50ms@95", "--export=/dev/full"]
    said = refused("solve", f"--profile={GOOGLENET_P4}", *arguments)
    assert said == "sojourn: No space left on device"


@pytest.fixture
def solve_that_fails(refused, monkeypatch):
    def run(number):
        def fail(**_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(solve.command, "callback", fail)
        return refused("solve", f"--profile={GOOGLENET_P4}", "--arrival-rate=9")

    return run


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_an_error_of_a_disk_without_a_file_is_one_line(solve_that_fails, number):
    assert solve_that_fails(number) == f"sojourn: {os.strerror(number)}"


def test_an_error_of_no_file_or_disk_keeps_its_traceback(solve_that_fails):
    with pytest.raises(ConnectionResetError):
        solve_that_fails(errno.ECONNRESET)


def test_a_package_of_an_extra_that_is_missing(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("sojourn.reporting.policy_plot", "matplotlib.axes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    said = refused("solve", "--profile", GOOGLENET_P4, "--arrival-rate", "9", "--plot", "plot.png")
    assert said == "sojourn: matplotlib is missing: pip install 'sojourn[reports]'"
