import pydoc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from deployments.config.document import load_service_configs
from deployments.config.replica_args import StoreConfig
from deployments.config.serve_schema import ActorOptions
from deployments.config.user_config import parse_user_config
from deployments.errors import StartError
from deployments.haproxy.request_environment import RequestTraits, traits_of
from deployments.local.check import check_model, check_pipeline, check_service, read_traits
from deployments.models.emulated import Emulated
from deployments.modelstore.files.publishing import publish
from deployments.modelstore.names import ModelName
from deployments.pipelines.serving.config import PipelineConfig, PipelineUserConfig
from policy.errors import InfeasibleError, InvalidInputError

ROOT = Path(__file__).parents[3]
P4 = load_service_configs(ROOT / "configs" / "emulated-p4.yaml")[0]
#: The table of this objective is the fastest to solve.
FAST = {"policy": {"objective": "weights"}}
LATE = {"limits": {"late": "serve"}}


def test_an_sla_out_of_reach_is_told_unless_late_answers_are_wanted():
    short = {**FAST, "sla": {"response_time_ms": 3, "percentile": 99}}
    with pytest.raises(InfeasibleError, match=r"within 3 ms is out of reach: .* 99% within 49 ms"):
        check_model(P4.args.model, parse_user_config(short))
    check_model(P4.args.model, parse_user_config(short | LATE))


def test_a_history_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "past.csv").write_text("when,how many\n1,5\n")
    for history, message in (
        (str(tmp_path / "gone.csv"), "gone.csv: No such file"),
        (str(tmp_path / "past.csv"), "past.csv: "),
    ):
        user_config = parse_user_config({"autoscaler": {"history": history}})
        with pytest.raises(InvalidInputError, match=message):
            check_service(P4.model_copy(update={"user_config": user_config}))


def in_this_process(function, *arguments, **_):
    found: Any = pydoc.locate(function.replace(":", "."))
    return found(*arguments)


@pytest.mark.slow
def test_every_model_is_checked_with_its_own_sla(monkeypatch):
    monkeypatch.setattr("autoscaler.worker.run", in_this_process)
    second = P4.args.model.model_copy(update={"name": "second"})
    args = P4.args.model_copy(update={"models": (second,)})
    slas: dict[str, Any] = {**FAST, "sla": {"response_time_ms": 500, "percentile": 99}}
    both = P4.model_copy(update={"args": args, "user_config": parse_user_config(slas)})
    assert check_service(both).traits == read_traits(both) == traits_of(Emulated)
    short = {"sla": {"response_time_ms": 3, "percentile": 99}}
    own = parse_user_config({**slas, "models": {"second": short}})
    with pytest.raises(InfeasibleError, match=r"within 3 ms is out of reach"):
        check_service(both.model_copy(update={"user_config": own}))
    elsewhere = second.model_copy(update={"import_path": "nowhere:Net"})
    gone = args.model_copy(update={"models": (elsewhere,)})
    assert read_traits(both.model_copy(update={"args": gone})) == RequestTraits()


def test_what_is_configured_for_a_model_that_there_is_not():
    unknown = parse_user_config({"models": {"googlenets": {"version": "2"}}})
    with pytest.raises(InvalidInputError, match=f"user_config.*did you mean {P4.args.model.name}"):
        check_service(P4.model_copy(update={"user_config": unknown}))


@pytest.mark.slow
def test_what_only_a_batch_shows_is_found_if_models_are_loaded(tmp_path, monkeypatch):
    (tmp_path / "texts.py").write_text(
        "from sojourn import Model, TensorSpec\n"
        "class Texts(Model):\n"
        "    inputs = outputs = (TensorSpec('x', 'BYTES'),)\n"
        "    def load(self, device): ...\n"
        "    def forward(self, batch): return {'x': ['a' for _ in batch['x']]}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model = P4.args.model.model_copy(update={"import_path": "texts:Texts", "options": {}})
    service = P4.model_copy(update={"args": P4.args.model_copy(update={"model": model})})
    assert check_service(service).notes == ()
    with pytest.raises(StartError, match=r"BYTES expected, got str; return text\.encode\(\)"):
        check_service(service, load=True)
    assert check_service(P4, load=True).notes == ()


@pytest.mark.slow
def test_the_store_of_the_config_is_opened_if_models_are_loaded(tmp_path, monkeypatch):
    (tmp_path / "stored.py").write_text(
        "from sojourn import Model, TensorSpec, load_state_dict\n"
        "class Stored(Model):\n"
        "    inputs = outputs = (TensorSpec('x', 'FP32'),)\n"
        "    def load(self, device): self.a = load_state_dict('net')['a'].numpy()\n"
        "    def forward(self, batch): return {'x': self.a * batch['x']}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    store = StoreConfig.model_validate(
        {"remote": tmp_path.as_uri(), "expert": {"disk": str(tmp_path / "disk")}}
    )
    model = P4.args.model.model_copy(update={"import_path": "stored:Stored", "options": {}})
    args = P4.args.model_copy(update={"model": model, "store": store})
    service = P4.model_copy(update={"args": args})
    with pytest.raises(StartError, match="net@1: the remote has no SHA256SUMS"):
        check_service(service, load=True)
    save_file({"a": torch.ones(())}, tmp_path / "a.safetensors")
    publish({ModelName.parse("net"): [tmp_path / "a.safetensors"]}, tmp_path)
    assert check_service(service, load=True).notes == ()
    assert not store.settings().socket.exists()


@pytest.mark.slow
def test_what_only_an_item_shows_is_found_if_a_pipeline_is_run(tmp_path, monkeypatch):
    (tmp_path / "steps.py").write_text(
        "def example(): return {'x': b'a'}\n"
        "def right(item): return item['x']\n"
        "def wrong(item): return item['x'].decode()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    tensor = [{"name": "x", "datatype": "BYTES"}]
    content = {"name": "texts", "inputs": tensor, "outputs": tensor, "example": "steps:example"}
    for code, message in (
        ("right", None),
        ("wrong", r"BYTES expected, got str; return text\.encode\(\)"),
        ("gone", "module 'steps' has no attribute 'gone'"),
    ):
        steps = [{"stage": {"code": f"steps:{code}"}}]
        pipeline = PipelineConfig.model_validate({**content, "steps": steps})
        told = nullcontext() if message is None else pytest.raises(StartError, match=message)
        with told:
            check_pipeline(pipeline, PipelineUserConfig())


@pytest.mark.slow
def test_the_model_is_imported_in_a_process_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text("print('hello')\nraise SystemExit(3)\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for module, message in (
        ("loud", "its import ended with status 3; its last line: 'hello'"),
        ("broken", "import failed: ZeroDivisionError"),
    ):
        model = P4.args.model.model_copy(update={"import_path": f"{module}:Model"})
        args = P4.args.model_copy(update={"model": model})
        with pytest.raises(StartError, match=message):
            check_service(P4.model_copy(update={"args": args}))


def test_replicas_without_room_are_told(monkeypatch):
    monkeypatch.setattr("autoscaler.worker.run", in_this_process)
    scaled = {"replicas": (1, 9), "actor": ActorOptions(num_cpus=0.5)}
    many = P4.model_copy(update={**scaled, "user_config": parse_user_config(LATE)})
    assert check_service(many, cpu_count=2).notes == (
        "max_replicas is 9, and this machine has CPUs for 4: 2 CPUs, 0.5 for each replica",
    )
    assert check_service(many, cpu_count=5).notes == ()
