"""Another replica of this machine, as its peers know it: a process with a death journal."""

import os
import signal
import subprocess
import sys
from pathlib import Path

PEER = """
import os, sys
from pathlib import Path
from deployments.batcher.crash_journal import _RAN_NS, CrashJournal

journal = CrashJournal(Path(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    word, *digests = line.split()
    journal.look()
    if word in ("begin", "hang"):
        journal.begin([int(digest) for digest in digests])
        if word == "hang":
            journal._words[_RAN_NS] -= 100 * 10**9
    else:
        getattr(journal, word)()
    print("done", flush=True)
os._exit(9)
"""


class Peer:
    """A process with a journal of its own.

    `tell` calls a method of its journal by name; numbers after the name are digests. After "hang",
    it has been silent for 100 s.
    """

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PEER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._wait_for("ready\n")

    def _wait_for(self, word: str) -> None:
        assert self._process.stdout.readline() == word

    def tell(self, command: str) -> None:
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._wait_for("done\n")

    def stop(self) -> None:
        """Stop it by a signal."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def die(self) -> None:
        self._process.kill()
        self._process.communicate()
