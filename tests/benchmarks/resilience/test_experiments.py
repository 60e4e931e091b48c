"""The list of experiments, and what a stranger makes of an answer."""

import socket
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import yaml

from benchmarks.resilience import experiments
from benchmarks.resilience.experiments import EXPERIMENTS, Experiment, run_experiment
from benchmarks.resilience.load import Bystanders, Load, Target
from benchmarks.resilience.run import Run
from benchmarks.resilience.service import Document, Service
from benchmarks.resilience.strangers import exchange
from deployments.config import load_service_config
from deployments.models.loading import load_model
from deployments.service_loading import profile_of


def test_each_experiment_has_a_name_of_its_own_and_says_what_it_does() -> None:
    names = [one.name for one in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert all(one.fault.__doc__ for one in EXPERIMENTS)


def test_experiments_share_services_where_they_can() -> None:
    """Starting a service takes longer than most experiments."""
    kinds = [one.kind for one in EXPERIMENTS if not one.fatal]
    changes = sum(before != after for before, after in pairwise(kinds))
    assert changes < len(set(kinds))
    assert [one.fatal for one in EXPERIMENTS] == sorted(one.fatal for one in EXPERIMENTS)


@pytest.mark.parametrize(
    "document", dict.fromkeys(one.document for one in EXPERIMENTS), ids=lambda one: one.__name__
)
def test_the_profile_of_each_config_fits_its_largest_batch(
    tmp_path: Path, document: Callable[[], Document]
) -> None:
    """One was for larger batches, and no replica started."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(document()))
    model_config = load_service_config(config).args.model
    model = load_model(model_config.import_path, model_config.options, "cpu")
    profile = profile_of(model_config, model, "cpu", 1.0)
    assert profile.max_batch_size <= model_config.max_batch_size


def answer_once(parts: list[bytes]) -> tuple[Target, threading.Thread]:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    def run() -> None:
        with server:
            client, _ = server.accept()
            with client:
                client.recv(100)
                for part in parts:
                    client.sendall(part)

    thread = threading.Thread(target=run)
    thread.start()
    return Target("127.0.0.1", port, "m", 0.5, 99), thread


def test_everything_that_comes_back_is_seen_also_a_second_answer() -> None:
    one, two = (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + body for body in (b"ab", b"cd"))
    target, server = answer_once([one, two])
    assert exchange(target, b"GET / HTTP/1.1\r\n\r\n") == one + two
    server.join()


def test_nothing_comes_back_from_a_port_that_nobody_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert exchange(Target("127.0.0.1", port, "m", 0.5, 99), b"x") == b""


def test_each_group_of_clients_has_a_row_and_the_first_has_the_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def noting(run: Run) -> None:
        """Break nothing."""
        run.notes.append("nothing broke")

    monkeypatch.setattr(experiments, "BEFORE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    load = Load(rate_per_s=200, idle_clients=0, timeout_s=1)
    service = TwoGroups(Target("127.0.0.1", port, "m", 0.5, 99), "", psutil.Process(), {})
    one, other = run_experiment(Experiment("calm", noting, load=load), service, quick=True)
    assert (one["experiment"], other["experiment"]) == ("calm", "calm, others")
    assert (one["notes"], other["notes"]) == (["nothing broke"], [])
    assert one["lost"] == one["sent"] > 0
    assert other["lost"] == other["sent"] > 0


class TwoGroups(Service):
    def bystanders(self, load: Load) -> dict[str, Bystanders]:
        return {name: Bystanders(self.target, load) for name in ("", "others")}
