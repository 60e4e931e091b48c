"""A journal of the batches in which replicas of a machine died, so that no request kills them all.

HAProxy sends what a dying replica held to another one. Most of it is innocent and waited; but if a
request of the running batch ended the process, it ends the next one as well. A replica cannot tell
that by itself: what outlives it is its journal, a small file in memory that names the requests of
the running batch. The others look at it before each batch of their own:

- A request that was in the batch of one death is computed again alone, and is cleared if it is
  answered.
- If that replica dies, too, the request has seen two deaths, and no replica computes it again.
- A request that keeps the interpreter's lock makes its replica silent, and HAProxy sends on what it
  holds. So silence during a batch counts as a death, too. The last replica that still works refuses
  what was in it, unless it has answered the same before.

Each file is locked by its replica for as long as its device can be trusted. The kernel drops a
process's POSIX locks before it closes the process's sockets, and so before HAProxy can know of the
death: whoever gets the request next sees that the lock is gone.
"""

import fcntl
import hashlib
import logging
import mmap
import os
import struct
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.modelstore.private_folder import make_private

logger = logging.getLogger("sojourn.batcher")

#: A request that has seen so many deaths is not computed again.
MAX_DEATHS = 2
#: How often a replica shows that its event loop runs, and the silence after which its batch hangs:
#: HAProxy sends on what it holds after a second or two (`deployments.haproxy.server_checks`).
BEAT_S, SILENT_S = 0.2, 0.7
#: How long a death is remembered.
KEEP_S = 600.0
#: Slices in the largest batch.
_MAX_ENTRIES = 1024
_WORD_BYTES = 8
#: The first words: how many entries follow, when the replica last ran (`time.monotonic_ns`), and
#: whether a peer has logged its end.
_COUNT, _RAN_NS, _LOGGED, _ENTRIES = 0, 1, 2, 3
_FILE_BYTES = (_ENTRIES + _MAX_ENTRIES) * _WORD_BYTES
#: The lowest bits of an entry: the deaths that its request had seen before.
_DEATH_BITS = 2
_SUFFIX = ".journal"
#: Elements of a tensor that its digest covers at most, evenly spaced.
_SAMPLE = 4096
#: `struct flock`: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi")
_ASK = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_FREE = struct.pack("h", fcntl.F_UNLCK)


def digest_of(inputs: Mapping[str, NDArray[Any]]) -> int:
    """Return a checksum of a request's inputs; of a sample of them, if there are many.

    Equal inputs have equal digests in every process. Different inputs with the same digest can
    only be mistaken for each other after a death.
    """
    digest = 0
    for array in inputs.values():
        if array.size > _SAMPLE:
            array = array.reshape(-1)[:: array.size // _SAMPLE]
        if array.dtype.hasobject:
            digest = zlib.crc32(b"\0".join(array.reshape(-1).tolist()), digest)
        else:
            digest = zlib.crc32(np.ascontiguousarray(array).data, digest)
    return digest


@dataclass
class _Peer:
    """The open journal of another process."""

    process: int
    descriptor: int
    words: memoryview
    #: `_RAN_NS` when it was last read.
    read_ns: int = 0

    def hangs(self) -> bool:
        """Return whether it has been silent for too long, with a batch."""
        silent_ns = time.monotonic_ns() - self.words[_RAN_NS]
        return bool(self.words[_COUNT]) and silent_ns > 1e9 * SILENT_S

    def is_stopped(self) -> bool:
        """Return whether a signal keeps it from running, which its batch has no part in."""
        try:
            status = Path(f"/proc/{self.process}/stat").read_bytes()
        except OSError:
            return False  # it has a namespace of its own
        return status.rpartition(b") ")[2][:1] in b"Tt"

    def close(self) -> None:
        self.words.release()
        os.close(self.descriptor)


#: The journals of this process: it may host a model a second time, as when it is loaded again.
_OWN: set[Path] = set()


class CrashJournal:
    """The journal of this process, and its view of those of its peers.

    The directory is for replicas of the same model on this machine only, and made if it is missing.
    `deaths` says how many deaths a request has seen, by its digest, if any. `OSError`: the
    directory or the file cannot be made, or belongs to another user.
    """

    def __init__(self, directory: Path) -> None:
        self.deaths: dict[int, int] = {}
        self.hung: set[int] = set()
        self._directory = directory
        self._read_s: dict[int, float] = {}
        self._lost: Counter[int] = Counter()
        self._peers: dict[str, _Peer] = {}
        self._known: set[str] = set()
        self._name = f"{os.getpid()}-{time.monotonic_ns()}{_SUFFIX}"
        try:
            self._descriptor = _create(directory / self._name)
        except FileNotFoundError:  # a peer that stopped has just removed the directory
            self._descriptor = _create(directory / self._name)
        _OWN.add(directory / self._name)
        self._words = _map(self._descriptor, writable=True)
        self._trusted = True
        #: When a file was last added to the directory, or taken from it.
        self._changed_ns = 0
        self.refresh()

    def refresh(self) -> None:
        """Find peers, and forget deaths of long ago; to be called every second or so."""
        now_s = time.monotonic()
        self.beat()
        self._find_peers()
        for digest in [one for one, at_s in self._read_s.items() if now_s - at_s > KEEP_S]:
            self.clear(digest)

    def _find_peers(self) -> None:
        for name in self._names():
            if name not in self._known:
                self._open(name)

    def _names(self) -> list[str]:
        try:
            names = [one for one in os.listdir(self._directory) if one.endswith(_SUFFIX)]
        except OSError:
            return []  # someone has emptied the directory: there is nothing to learn
        self._known.intersection_update(names)
        # A process does not see its own locks, and closing a second descriptor would drop them.
        return [name for name in names if self._directory / name not in _OWN]

    def _open(self, name: str) -> None:
        path = self._directory / name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return  # it has just been removed
        try:
            peer = _Peer(int(name.partition("-")[0]), descriptor, _map(descriptor))
        except (OSError, ValueError):
            os.close(descriptor)  # it is none of ours
            return
        if _is_old(peer.words[_RAN_NS]) and not _is_locked(descriptor):
            peer.close()
            path.unlink(missing_ok=True)
            return
        self._peers[name] = peer
        self._known.add(name)

    def look(self) -> None:
        """Notice peers that started, died or began to hang since the last call."""
        try:
            changed_ns = os.stat(self._directory).st_mtime_ns
        except OSError:
            changed_ns = 0
        if changed_ns != self._changed_ns:
            self._changed_ns = changed_ns
            self._find_peers()
        dead = [name for name, peer in self._peers.items() if not _is_locked(peer.descriptor)]
        for name in dead:
            peer = self._peers.pop(name)
            self._read(peer, "died")
            # Otherwise the file stays for those that have not seen it.
            if not peer.words[_COUNT]:
                (self._directory / name).unlink(missing_ok=True)
            peer.close()
        for peer in self._peers.values():
            if peer.hangs() and not peer.is_stopped():
                self.hung.update(self._read(peer, "hangs"))

    @property
    def is_last(self) -> bool:
        """Whether no peer is known that works."""
        return all(peer.hangs() for peer in self._peers.values())

    def _read(self, peer: _Peer, what: str) -> list[int]:
        """Record what is in the journal of a peer that ended or hangs, once; return the digests."""
        count = min(peer.words[_COUNT], _MAX_ENTRIES)
        entries = peer.words[_ENTRIES : _ENTRIES + count].tolist()
        if not entries or peer.words[_RAN_NS] == peer.read_ns:
            return []
        peer.read_ns = peer.words[_RAN_NS]
        digests = [entry >> _DEATH_BITS for entry in entries]
        for digest, entry in zip(digests, entries, strict=True):
            deaths = 1 + (entry & (1 << _DEATH_BITS) - 1)
            self.deaths[digest] = max(deaths, self.deaths.get(digest, 0))
            self._read_s[digest] = time.monotonic()
            self._lost[digest] += 1
        if not peer.words[_LOGGED]:
            os.pwrite(peer.descriptor, b"\1", _LOGGED * _WORD_BYTES)
            logger.warning(
                "a replica (process %d) %s on a batch of %d requests", peer.process, what, count
            )
        return digests

    def beat(self) -> None:
        """Show that this replica runs; to be called every `BEAT_S`."""
        self._words[_RAN_NS] = time.monotonic_ns()

    def begin(self, digests: Sequence[int]) -> None:
        """Record the requests of the batch that starts now, by their digests."""
        deaths = self.deaths
        for place, digest in enumerate(digests[:_MAX_ENTRIES], _ENTRIES):
            self._words[place] = digest << _DEATH_BITS | (deaths.get(digest, 0) if deaths else 0)
        self.beat()
        self._words[_LOGGED] = 0
        self._words[_COUNT] = min(len(digests), _MAX_ENTRIES)

    def end(self) -> None:
        if self._trusted:
            self._words[_COUNT] = 0

    def clear(self, digest: int) -> None:
        """Forget the deaths that a request has seen: it has been answered since."""
        self.deaths.pop(digest, None)
        self._read_s.pop(digest, None)
        self._lost.pop(digest, None)
        self.hung.discard(digest)

    def answered_lost(self, digest: int) -> None:
        """Record that a lost request got its error; once all have, its deaths are forgotten.

        A request that is equal to it has not been computed before.
        """
        self._lost[digest] -= 1
        if self._lost[digest] <= 0:
            self.clear(digest)

    def device_lost(self) -> None:
        """Show the requests of the running batch to the peers, as after a death."""
        if self._trusted:
            self._trusted = False
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close all files. The peers see a batch that is still running as after a death."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        if not self._words[_COUNT]:
            (self._directory / self._name).unlink(missing_ok=True)
        self._words.release()
        os.close(self._descriptor)
        _OWN.discard(self._directory / self._name)
        with suppress(OSError):
            self._directory.rmdir()  # the last one


def journal_directory(*owner: str) -> Path:
    """Return the directory for the replicas of this user that share the names of `owner`."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() else Path(tempfile.gettempdir())
    name = hashlib.sha256("\0".join(owner).encode()).hexdigest()[:32]
    # Not below a directory of all users: the first of them could replace it.
    return parent / f"sojourn-{os.getuid()}-{name}"


def _create(path: Path) -> int:
    """Make a journal that is locked before its peers can find it; return its descriptor."""
    make_private(path.parent)
    hidden = path.with_suffix(".new")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # Without holes: where memory is full, to write into one would kill the process.
        os.posix_fallocate(descriptor, 0, _FILE_BYTES)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        hidden.rename(path)
    except OSError:
        os.close(descriptor)
        hidden.unlink(missing_ok=True)
        raise
    return descriptor


def _map(descriptor: int, *, writable: bool = False) -> memoryview:
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    return memoryview(mmap.mmap(descriptor, _FILE_BYTES, access=access)).cast("Q")


def _is_old(ran_ns: int) -> bool:
    """Return whether a replica ran too long ago, or before this machine was started."""
    return not 0 <= time.monotonic_ns() - ran_ns <= 1e9 * KEEP_S


def _is_locked(descriptor: int) -> bool:
    answer: bytes = fcntl.fcntl(descriptor, fcntl.F_GETLK, _ASK)
    return not answer.startswith(_FREE)
