import pytest

from policy.profile import Profile
from sojourn.cli import main

#: Without energy, whose measurement takes seconds.
OPTION = "profile={latency_ms: [0.5, 0.75]}"
EMULATED = ["profile", "--model", "emulated", "--option", OPTION, "--repeats", "2"]
DEVICE_ONLY = [*EMULATED, "--no-event-loop"]


@pytest.fixture
def cpus(monkeypatch):
    limits: list[float] = []
    monkeypatch.setattr("sojourn.commands.profile.limit_threads", limits.append)
    return limits


@pytest.fixture
def out(tmp_path, monkeypatch, cpus):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "profile.json"


@pytest.mark.slow
def test_json_is_one_profile_and_the_file_is_the_same(out, as_json):
    option = OPTION.replace("}", ", energy_mj: [1, 2]}")
    words = [option if word == OPTION else word for word in DEVICE_ONLY]
    printed = as_json(*words, "--out", out)
    profile = Profile.from_dict(printed)
    assert Profile.load(out).to_dict() == printed
    assert (profile.model, profile.device, profile.max_batch_size) == ("emulated", "cpu", 2)
    assert list(profile.energy_mj) == [1, 2]
    assert profile.measured["date"]


def test_a_users_model_in_the_working_directory_and_the_table(out, capsys):
    (out.parent / "own_model_of_test_profile.py").write_text(
        "from sojourn import Model, TensorSpec\n"
        "class Echo(Model):\n"
        "    inputs = outputs = (TensorSpec('x', 'FP32', (2,)),)\n"
        "    def load(self, device): ...\n"
        "    def forward(self, batch): return batch\n"
    )
    words = ["profile", "--model", "own_model_of_test_profile:Echo", "--out", str(out)]
    words += ["--name", "mine", "--max-batch-size", "4", "--repeats", "2", "--no-event-loop"]
    assert main(words) == 0
    profile = Profile.load(out)
    assert (profile.model, profile.max_batch_size) == ("mine", 4)
    printed = capsys.readouterr()
    assert "mine on cpu" in printed.out
    assert "│ 4 " in printed.out
    assert "energy: none; " in printed.err


def test_the_cpus_asked_for_limit_the_threads_and_are_in_the_profile(out, cpus):
    words = [*DEVICE_ONLY, "--out", str(out)]
    assert main(words) == 0
    assert main([*words, "--cpus", "2.5"]) == 0
    assert cpus == [1.0, 2.5]
    profile = Profile.load(out)
    assert profile.cpus == 2.5
    assert profile.latency_quantiles is not None
    assert profile.event_loop is None


@pytest.mark.slow
def test_the_event_loop_is_measured_beside_a_device_that_leaves_the_processor_alone(out, capsys):
    # On a busy machine, batches of one and of two alone do not tell requests and batches apart.
    of_sixteen = OPTION.replace("0.5, 0.75", ", ".join(["0.75"] * 16))
    words = [of_sixteen if word == OPTION else word for word in EMULATED]
    assert main([*words, "--out", str(out)]) == 0
    event_loop = Profile.load(out).event_loop
    assert not event_loop.shares_cpu
    assert event_loop.request_ms > 0
    assert "per batch, in parallel with the batches" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model digits", "Missing option '--out'"),
        ("--model nothing --out p.json", "must be package.module:Class"),
        ("--model digits --out absent/p.json", "there is no folder absent"),
        ("--model digits --out .", "is a directory"),
        ("--model digits --out p.json --option threads", "must be KEY=VALUE"),
        ("--model digits --out p.json --option a=1 --option a=2", "--option: a is given twice"),
        ("--model digits --out p.json --option depth=3", "the options are: threads"),
    ],
)
def test_a_user_error(out, refused, words, message):
    assert message in refused("profile", *words.split())
    assert not (out.parent / "p.json").exists()


def test_a_batch_larger_than_the_models_own_profile(out, refused):
    assert "profile ends at 2, not 3" in refused(*EMULATED, "--out", out, "--max-batch-size", "3")


def test_another_models_profile_is_not_overwritten(out, as_json, refused):
    command = [*DEVICE_ONLY, "--out", out]
    for _ in range(2):
        as_json(*command, "--name", "mine")
    before = out.read_bytes()
    assert f"{out} is the profile of 'mine'; choose another file" in refused(*command)
    assert out.read_bytes() == before
    out.write_text("notes")
    assert f"{out} is no profile" in refused(*command)
