"""Faults: what breaks while the bystanders send their requests."""

import resource
import signal
import time
import urllib.error
from contextlib import suppress
from copy import deepcopy
from http.client import HTTPException

import psutil

from benchmarks.live.local_service import get_json
from benchmarks.resilience.culprits import ERROR, HANG, POISON
from benchmarks.resilience.load import Load, request_bytes
from benchmarks.resilience.run import Run
from benchmarks.resilience.service import Document, emulated_document
from benchmarks.resilience.strangers import exchange

#: One request in three seconds; the clients wait for as long as it takes.
LONG_LOAD = Load(rate_per_s=1 / 3, large_every=0, idle_clients=0, timeout_s=90)
#: Memory that a replica may still ask for: less than a large body and its tensors.
_LEFT_BYTES = 1 << 20


def kill(processes: list[psutil.Process]) -> None:
    """Kill processes; at least one must exist, or nothing would be tested."""
    if not processes:
        raise SystemExit("the process to kill was not found")
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def one_replica(run: Run) -> None:
    """Kill a replica every ten seconds."""
    run.begin()
    for _ in range(2 if run.quick else 6):
        kill(run.service.replicas()[:1])
        time.sleep(10)
    run.service.wait_for_replicas(2)


def all_replicas(run: Run) -> None:
    """Kill all replicas at once."""
    run.begin()
    kill(run.service.replicas())
    run.service.wait_for_replicas(2)
    time.sleep(8)


def haproxy(run: Run) -> None:
    """Kill HAProxy."""
    before_s = {one: sum(one.cpu_times()[:2]) for one in run.service.supervisors()}
    run.begin()
    kill(run.service.haproxies())
    time.sleep(10)
    for one, cpu_s in before_s.items():
        # One that a successor has replaced, after the deployment, ends meanwhile.
        with suppress(psutil.NoSuchProcess):
            cpu_ms = 1e3 * (sum(one.cpu_times()[:2]) - cpu_s) / (time.monotonic() - run.fault_s)
            memory = one.memory_info().rss >> 20
            run.notes.append(f"the supervisor takes {cpu_ms:.1f} ms of CPU a second, {memory} MiB")


def haproxy_supervisor(run: Run) -> None:
    """Kill the supervisor of HAProxy, and when Ray has started another one, a replica."""
    before = run.service.haproxies()
    run.begin()
    kill(run.service.supervisors())
    until_s = time.monotonic() + 30
    while any(map(runs, before)) and time.monotonic() < until_s:
        time.sleep(0.2)
    if any(map(runs, before)):
        run.notes.append("Ray has not started another supervisor within 30 s")
    else:
        run.notes.append(f"replaced after {time.monotonic() - run.fault_s:.0f} s")
    kill(run.service.replicas()[:1])
    time.sleep(10)
    run.service.wait_for_replicas(2)


def haproxy_manager(run: Run) -> None:
    """Kill Serve's actor that manages HAProxy, then a replica."""
    run.begin()
    kill(run.service.actors("HAProxyManager"))
    time.sleep(10 if run.quick else 15)
    kill(run.service.replicas()[:1])
    time.sleep(10 if run.quick else 15)
    run.service.wait_for_replicas(2)


def haproxy_stopped(run: Run) -> None:
    """Stop HAProxy (SIGSTOP) for 15 s; for 8 s in a quick run."""
    stop_for(run, run.service.haproxies(), 8 if run.quick else 15)


def replica_stopped(run: Run) -> None:
    """Stop one of two replicas (SIGSTOP) for 15 s; for 8 s in a quick run."""
    stop_for(run, run.service.replicas()[:1], 8 if run.quick else 15)


def stop_for(run: Run, processes: list[psutil.Process], duration_s: float) -> None:
    """Stop processes and let them go on; they may have been killed meanwhile."""
    if not processes:
        raise SystemExit("the process to stop was not found")
    run.begin()
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(duration_s)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
    time.sleep(8)
    run.service.wait_for_replicas(2)


def controller(run: Run) -> None:
    """Kill Serve's controller."""
    run.begin()
    kill(run.service.actors("ServeController"))
    time.sleep(12 if run.quick else 20)


def idle_workers(run: Run) -> None:
    """Kill the raylet's pool of idle worker processes, then a replica."""
    run.begin()
    for process in run.service.actors("IDLE"):
        process.kill()
    kill(run.service.replicas()[:1])
    time.sleep(15)
    run.service.wait_for_replicas(2)


def gcs(run: Run) -> None:
    """Kill the GCS, Ray's directory of the cluster."""
    run.begin()
    kill(run.service.named("gcs_server"))
    time.sleep(20 if run.quick else 30)


def scaling(run: Run) -> None:
    """Change the number of replicas between one and three, again and again."""
    run.begin()
    for count in [3, 2] if run.quick else [3, 1, 2, 3, 2, 1, 3, 2]:
        document = deepcopy(run.service.document)
        document["applications"][0]["deployments"][0]["num_replicas"] = count
        run.service.deploy(document)
        if not run.service.wait_for_replicas(count, 40):
            run.notes.append(f"{count} replicas were not reached")
    run.service.wait_for_replicas(2)


def scale_in(run: Run) -> None:
    """Stop two of three replicas while requests of 20 s are in flight."""
    time.sleep(12)
    before = run.service.replicas()
    run.begin()
    document = deepcopy(run.service.document)
    document["applications"][0]["deployments"][0]["num_replicas"] = 1
    run.service.deploy(document)
    until_s = run.fault_s + 60
    while sum(map(runs, before)) > 1 and time.monotonic() < until_s:
        time.sleep(0.5)
    ended = len(before) - sum(map(runs, before))
    run.notes.append(f"{ended} replicas ended within {time.monotonic() - run.fault_s:.0f} s")


def long_document() -> Document:
    """Return the config of a service whose batches take 20 s."""
    document = emulated_document(
        3,
        import_path="benchmarks.resilience.culprits:Long",
        max_batch_size=8,
        expert={"hang_after_s": 60},
    )
    document["applications"][0]["args"]["model"]["options"]["profile"]["max_batch_size"] = 8
    user_config = document["applications"][0]["deployments"][0]["user_config"]
    user_config["sla"]["response_time_ms"] = 60_000
    user_config["limits"] |= {"late": "serve", "expert": {"max_timeout_ms": 90_000}}
    return document


def upgrade(run: Run) -> None:
    """Replace all replicas by a new version."""
    before = {process.pid for process in run.service.replicas()}
    run.begin()
    document = deepcopy(run.service.document)
    document["applications"][0]["args"]["model"]["version"] = "2"
    run.service.deploy(document)
    until_s = time.monotonic() + 60
    while before & {one.pid for one in run.service.replicas()} and time.monotonic() < until_s:
        time.sleep(0.5)
    run.service.wait_for_replicas(2)


def broken_upgrade(run: Run) -> None:
    """Deploy a version that cannot start, then the old one again."""
    run.begin()
    document = deepcopy(run.service.document)
    document["applications"][0]["args"]["model"]["import_path"] = "deployments.models.none:None"
    _try_to_deploy(run, document)
    time.sleep(15)
    run.service.deploy(run.service.document)
    time.sleep(5)
    run.service.wait_for_replicas(2)


def bad_config(run: Run) -> None:
    """Deploy a config with an impossible SLA, then the old one again."""
    run.begin()
    document = deepcopy(run.service.document)
    deployment = document["applications"][0]["deployments"][0]
    deployment["user_config"]["sla"]["percentile"] = 101
    _try_to_deploy(run, document)
    time.sleep(10)
    run.service.deploy(run.service.document)
    run.service.wait_for_replicas(2)
    time.sleep(5)


def memory_limit(run: Run) -> None:
    """Let one of two replicas have no more memory, for 15 s."""
    replica = run.service.replicas()[0]
    before = resource.prlimit(replica.pid, resource.RLIMIT_AS)
    run.begin()
    limit = replica.memory_info().vms + _LEFT_BYTES
    resource.prlimit(replica.pid, resource.RLIMIT_AS, (limit, before[1]))
    time.sleep(15)
    with suppress(ProcessLookupError):
        resource.prlimit(replica.pid, resource.RLIMIT_AS, before)
    run.notes.append(f"the replica {'lived on' if runs(replica) else 'died'}")
    run.service.wait_for_replicas(2)
    time.sleep(5)


def erring_device(run: Run) -> None:
    """Send one request in about a thousand on which the device fails."""
    run.begin()
    statuses = _culprits(run, ERROR, count=3 if run.quick else 5, every_s=4)
    run.notes.append(f"culprits were answered {statuses}")


def hanging_device(run: Run) -> None:
    """Send one request on which the device hangs."""
    run.begin()
    statuses = _culprits(run, HANG, count=1, every_s=25)
    run.notes.append(f"the culprit was answered {statuses}")
    run.service.wait_for_replicas(2)


def poison(run: Run) -> None:
    """Send one request that kills the process that computes it."""
    before = {process.pid for process in run.service.replicas()}
    run.begin()
    statuses = _culprits(run, POISON, count=1, every_s=15)
    dead = len(before - {process.pid for process in run.service.replicas()})
    run.notes.append(f"the culprit was answered {statuses}; it killed {dead} of the first replicas")
    run.service.wait_for_replicas(2)
    time.sleep(5)


def solver(run: Run) -> None:
    """Change the SLA, and kill the processes that solve its policy tables, for 10 s."""
    run.begin()
    document = deepcopy(run.service.document)
    deployment = document["applications"][0]["deployments"][0]
    deployment["user_config"]["sla"]["percentile"] = 98.5
    run.service.deploy(document)
    killed = 0
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        for process in run.service.solvers():
            process.kill()
            killed += 1
        time.sleep(0.1)
    run.service.wait_for_tables()
    time.sleep(5)
    table = get_json(f"http://{run.service.target.host}:{run.service.target.port}/sojourn/policy")
    run.notes.append(f"{killed} solvers were killed; the table is {table['table']}")
    run.service.deploy(run.service.document)
    run.service.wait_for_tables()


def terminated(run: Run) -> None:
    """End the whole service (SIGTERM) under load."""
    everything = run.service.process.children(recursive=True)
    run.begin()
    run.service.process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs([run.service.process, *everything], timeout=60)
    run.notes.append(f"{len(alive)} processes were left")


def culprit_document() -> Document:
    """Return the config of a service whose device can fail."""
    return emulated_document(import_path="benchmarks.resilience.culprits:Culprits")


def _culprits(run: Run, value: float, count: int, every_s: float) -> list[str]:
    target = run.service.target
    statuses = []
    for _ in range(count):
        begun_s = time.monotonic()
        answer = exchange(target, request_bytes(target, value), timeout_s=every_s)
        statuses.append(answer.split(b" ", 2)[1].decode() if answer else "nothing")
        time.sleep(max(0.0, every_s - (time.monotonic() - begun_s)))
    return statuses


def _try_to_deploy(run: Run, document: Document) -> None:
    try:
        run.service.deploy(document)
    except (OSError, HTTPException) as error:
        code = error.code if isinstance(error, urllib.error.HTTPError) else error
        run.notes.append(f"the config was rejected ({code})")
