"""Machines on this machine: each has a network, processes, and folders of its own.

A machine is a set of Linux namespaces (network, processes, mounts, names, shared memory) behind a
bridge. Killing its first process kills all others at once, and taking its link down leaves its
connections open, as pulling the plug does. Files are this machine's, but for what differs between
nodes of a cluster.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.inputs import ROOT

#: From the addresses that are set aside for benchmarks (RFC 2544).
_NETWORKS = {f"sojourn{number}": f"198.18.{number}" for number in range(8)}
_PROGRAMS = ("ip", "unshare", "nsenter", "mount")
_BIN = Path(sys.executable).parent
_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")


@dataclass(frozen=True)
class Machine:
    """A machine that runs.

    Attributes
    ----------
    name : str
    address : str
        Its IP address, which all machines and this one reach.
    first : psutil.Process
        Its first process.
    link : str
        This machine's end of its link.
    """

    name: str
    address: str
    first: psutil.Process
    link: str

    def run(self, script: str, timeout_s: float = 120) -> str:
        """Run a script of Bash here, and return what it prints.

        Raises
        ------
        SystemExit
            The script fails.
        """
        command = ["nsenter", "--target", str(self.first.pid), *_NAMESPACES]
        # Not a pipe: what the script leaves running would hold it open.
        with tempfile.TemporaryFile("w+") as output:
            ran = subprocess.run(
                [*command, f"--wd={ROOT}", "bash", "-c", f"set -e -o pipefail\n{script}"],
                env={
                    **os.environ,
                    "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
                    "PYTHONPATH": str(ROOT),
                    "RAY_USAGE_STATS_ENABLED": "0",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
            )
            output.seek(0)
            said = output.read()
        if ran.returncode:
            raise SystemExit(f"{self.name}: {said[-2000:]}")
        return said

    def processes(self) -> list[psutil.Process]:
        """Return the processes that run here."""
        with suppress(psutil.NoSuchProcess):
            return self.first.children(recursive=True)
        return []

    def kill(self) -> None:
        """Kill all processes at once; the kernel closes their connections."""
        with suppress(psutil.NoSuchProcess):
            self.first.kill()

    def unplug(self) -> None:
        """Cut it off: what it has open stays open at the other end."""
        _ip("link", "set", self.link, "down")


def why_not() -> str | None:
    """Return why this machine can have no machines; None if it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "only root can have networks of its own"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)}: not installed (iproute2 and util-linux have them)"
    return None


@contextmanager
def machines(*names: str) -> Iterator[tuple[Machine, ...]]:
    """Run machines while the context lasts.

    Raises
    ------
    SystemExit
        This machine cannot have them.
    """
    reason = why_not()
    if reason is not None:
        raise SystemExit(reason)
    with ExitStack() as stack:
        taken = {name for _, name in socket.if_nameindex()}
        bridge = next((name for name in _NETWORKS if name not in taken), None)
        if bridge is None:
            raise SystemExit(f"{', '.join(_NETWORKS)}: all these bridges exist")
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "delete", bridge)
        _ip("address", "add", f"{_NETWORKS[bridge]}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        yield tuple(
            stack.enter_context(_machine(bridge, names, number)) for number in range(len(names))
        )


@contextmanager
def _machine(bridge: str, names: Sequence[str], number: int) -> Iterator[Machine]:
    """Run one of the machines with these names."""
    network = _NETWORKS[bridge]
    addresses = [f"{network}.{host}" for host in range(2, len(names) + 2)]
    hosts = [f"'{one} {name}'" for one, name in zip(addresses, names, strict=True)]
    name, address, link = names[number], addresses[number], f"{bridge}-{number}"
    folders = ("/dev/shm", "/tmp/ray", "/tmp/haproxy-serve", f"/tmp/sojourn-{os.getuid()}")
    program = f"""
        exec 2>&1
        set -e
        for folder in {" ".join(folders)}; do
          mkdir -p $folder
          mount -t tmpfs -o mode=0700 sojourn $folder
        done
        # Names are known or unknown at once: nobody waits for a server that is out of reach.
        echo nameserver 127.0.0.1 >/dev/shm/resolv.conf
        printf '%s\\n' '127.0.0.1 localhost' {" ".join(hosts)} >/dev/shm/hosts
        mount --bind /dev/shm/resolv.conf /etc/resolv.conf
        mount --bind /dev/shm/hosts /etc/hosts
        hostname {name}
        echo ready
        sleep infinity &
        # Bash also waits for what becomes its child, as the first process of a machine must.
        wait
    """
    outside = subprocess.Popen(
        ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc", "bash", "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert outside.stdout is not None
    try:
        said = outside.stdout.readline().strip()
        if said != "ready":
            raise SystemExit(f"{name} did not start: {said or 'unshare failed'}")
        (first,) = psutil.Process(outside.pid).children()
        _ip(*f"link add {link} type veth peer name eth0 netns {first.pid}".split())
        _ip("link", "set", link, "master", bridge, "up")
        machine = Machine(name, address, first, link)
        machine.run(
            f"ip link set lo up; ip link set eth0 up; ip address add {address}/24 dev eth0;"
            f"ip route add default via {network}.1"
        )
        yield machine
    finally:
        outside.kill()
        outside.wait()
        outside.stdout.close()
        # The kernel deletes it later, or has done so.
        with suppress(SystemExit):
            _ip("link", "delete", link)


def _ip(*arguments: str) -> None:
    ran = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"ip {' '.join(arguments)}: {ran.stderr.strip()}")
