"""What a replica leaves behind when it dies, and what the others make of it."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from deployments.batcher import crash_journal
from deployments.batcher.crash_journal import (
    KEEP_S,
    CrashJournal,
    digest_of,
)
from tests.support.batching.journal_peer import Peer


@contextmanager
def opened(directory: Path) -> Iterator[CrashJournal]:
    journal = CrashJournal(directory)
    try:
        yield journal
    finally:
        journal.close()


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers of the test are silent for seconds on a busy machine."""
    monkeypatch.setattr(crash_journal, "SILENT_S", 50.0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "journals"


def test_requests_of_the_running_batch_have_seen_a_death_and_no_others(directory: Path) -> None:
    with opened(directory) as journal:
        peer = Peer(directory)
        journal.refresh()
        peer.tell("begin 1 2")
        peer.tell("end")
        peer.tell("begin 3 4 5")
        journal.look()
        assert journal.deaths == {}
        peer.die()
        journal.look()
        assert journal.deaths == {3: 1, 4: 1, 5: 1}
        journal.clear(4)
        journal.look()
        assert journal.deaths == {3: 1, 5: 1}


def test_silence_during_a_batch_counts_once_as_a_death_and_its_end_changes_nothing(
    directory: Path,
) -> None:
    with opened(directory) as journal:
        assert journal.is_last
        peer = Peer(directory)
        journal.refresh()
        assert not journal.is_last
        peer.tell("hang 1 2")
        journal.look()
        assert (journal.deaths, journal.hung, journal.is_last) == ({1: 1, 2: 1}, {1, 2}, True)
        journal.clear(2)
        journal.look()
        assert (journal.deaths, journal.hung) == ({1: 1}, {1})
        other = Peer(directory)
        journal.look()
        assert not journal.is_last
        other.die()
        peer.die()
        journal.look()
        # The file is for those that start later.
        assert len(list(directory.iterdir())) == 2
        assert (journal.deaths, journal.hung, journal.is_last) == ({1: 1}, {1}, True)


def test_a_batch_has_no_part_in_a_stopped_process(directory: Path) -> None:
    """What SIGSTOP kept from its answer was refused by the only other replica."""
    with opened(directory) as journal:
        peer = Peer(directory)
        journal.refresh()
        peer.tell("hang 1 2")
        peer.stop()
        journal.look()
        assert journal.deaths == {}
        assert journal.is_last
        peer.die()


def test_a_replica_that_started_later_is_noticed_when_it_dies(directory: Path) -> None:
    """Even before the next refresh."""
    with opened(directory) as journal:
        peer = Peer(directory)
        peer.tell("begin 1")
        peer.die()
        journal.look()
        assert journal.deaths == {1: 1}


def test_a_second_death_counts_unless_the_request_was_answered_between(directory: Path) -> None:
    """The second replica reads the journal of the first: it started after its death."""
    first = Peer(directory)
    first.tell("begin 7")
    first.die()
    second = Peer(directory)
    second.tell("look")
    second.tell("begin 7 8")
    second.die()
    with opened(directory) as journal:
        journal.look()
        assert journal.deaths == {7: 2, 8: 1}


def test_a_replica_that_stops_leaves_nothing(directory: Path) -> None:
    peer = Peer(directory)
    with opened(directory) as journal:
        peer.tell("begin 1")
        peer.tell("end")
        peer.tell("close")
        journal.look()
        assert journal.deaths == {}
        peer.die()
        assert len(list(directory.iterdir())) == 1
    assert not directory.exists()


def test_what_was_on_a_lost_device_has_seen_a_death_though_its_replica_lives(
    directory: Path,
) -> None:
    with opened(directory) as journal:
        peer = Peer(directory)
        journal.refresh()
        peer.tell("begin 1 2")
        peer.tell("device_lost")
        peer.tell("end")
        journal.look()
        assert journal.deaths == {1: 1, 2: 1}
        peer.die()
        journal.refresh()
        journal.look()
        assert journal.deaths == {1: 1, 2: 1}


def test_a_journal_has_all_its_memory_from_the_start(directory: Path) -> None:
    """Where memory is full, a write into a hole of the file kills the process by SIGBUS."""
    with opened(directory):
        (file,) = (path.stat() for path in directory.iterdir())
        assert 512 * file.st_blocks >= file.st_size


def test_a_journal_for_which_there_is_no_memory_is_an_error_and_leaves_no_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        CrashJournal(directory)
    assert list(directory.iterdir()) == []


def test_a_second_journal_of_the_process_is_no_death(directory: Path) -> None:
    """A model that is loaded again: each of its journals took the other for that of a dead peer."""
    with opened(directory) as first:
        peer = Peer(directory)
        first.begin([1, 2])
        with opened(directory) as second:
            for journal in (first, second):
                journal.refresh()
                journal.look()
                assert journal.deaths == {}
        first.end()
        # Where the lock is gone, a peer takes the file of an idle replica away.
        peer.tell("look")
        assert (directory / first._name).exists()
        peer.die()


@pytest.mark.parametrize(
    ("passed_s", "known"),
    [(0.0, True), (KEEP_S - 60, True), (KEEP_S + 1, False), (-30.0, False)],
    ids=["just now", "lately", "long ago", "before the machine was started"],
)
def test_old_deaths_are_forgotten(
    directory: Path, monkeypatch: pytest.MonkeyPatch, passed_s: float, known: bool
) -> None:
    peer = Peer(directory)
    peer.tell("begin 1")
    peer.die()
    (file,) = directory.iterdir()
    later_ns = time.monotonic_ns() + int(1e9 * passed_s)
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    with opened(directory) as journal:
        journal.look()
        assert journal.deaths == ({1: 1} if known else {})
        assert file.exists() == known


@pytest.mark.parametrize("step_s", [-7200, 7200])
def test_a_step_of_the_time_of_day_changes_nothing(directory: Path, step_s: float) -> None:
    """The kernel writes the time of day to files; a step makes them look older or younger."""
    peer = Peer(directory)
    peer.tell("begin 1")
    peer.die()
    (file,) = directory.iterdir()
    os.utime(file, (time.time() - step_s, time.time() - step_s))
    with opened(directory) as journal:
        journal.look()
        assert journal.deaths == {1: 1}


def test_a_file_that_is_no_journal_is_left_alone(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    (directory / "1-1.journal").write_bytes(b"short")
    (directory / "notes.txt").write_bytes(b"x")
    (directory / "2-2.journal").symlink_to("/etc/passwd")
    with opened(directory) as journal:
        journal.look()
        assert journal.deaths == {}


def test_digests_tell_inputs_apart() -> None:
    generator = np.random.default_rng(3)
    inputs = [generator.random(shape, np.float32) for shape in ((1, 3), (2, 3), (1, 3, 224, 224))]
    words = [np.array([[b"a", b"bc"]], object), np.array([[b"ab", b"c"]], object)]
    digests = {digest_of({"x": array}) for array in [*inputs, *words]}
    assert len(digests) == 5
    image = inputs[2].copy()
    assert digest_of({"x": image}) in digests
    image[0, 1] += 1
    assert digest_of({"x": image}) not in digests
    strided = np.asfortranarray(inputs[1])
    assert digest_of({"x": strided}) in digests
