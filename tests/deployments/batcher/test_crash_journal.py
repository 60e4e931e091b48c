import errno
import os
import re
import time
from contextlib import contextmanager

import numpy as np
import pytest

from deployments.batcher.crash_journal import KEEP_S, CrashJournal, digest_of
from tests.support.batching.journal_peer import Peer


@contextmanager
def opened(directory):
    journal = CrashJournal(directory)
    try:
        yield journal
    finally:
        journal.close()


def test_what_was_on_a_device_has_seen_a_death_once_that_or_its_process_is_lost(directory):
    with opened(directory) as journal:
        peer = Peer(directory)
        journal.refresh()
        for word in ("begin 1 2", "end", "begin 3 4 5"):
            peer.tell(word)
        journal.look()
        assert journal.deaths == {}
        for word in ("device_lost", "end"):
            peer.tell(word)
        journal.look()
        assert journal.deaths == {3: 1, 4: 1, 5: 1}
        journal.clear(4)
        peer.die()
        journal.refresh()
        journal.look()
        assert journal.deaths == {3: 1, 5: 1}


def test_a_death_is_logged_once_by_whoever_sees_it_first(directory, caplog):
    peer = Peer(directory)
    peer.tell("begin 1 2")
    peer.die()
    for _ in range(2):
        with opened(directory) as journal:
            journal.refresh()
            journal.look()
            assert journal.deaths == {1: 1, 2: 1}
    (message,) = caplog.messages
    assert re.fullmatch(r"a replica \(process \d+\) died on a batch of 2 requests", message)


def test_silence_during_a_batch_counts_once_as_a_death_and_its_end_changes_nothing(directory):
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


def test_a_batch_has_no_part_in_a_stopped_process(directory):
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


def test_a_replica_that_stops_leaves_nothing(directory):
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


def test_a_journal_for_which_there_is_no_memory_is_an_error_and_leaves_no_file(
    directory, monkeypatch
):
    """Into a hole of its file, a write would kill the process by SIGBUS."""

    def full(descriptor, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        CrashJournal(directory)
    assert list(directory.iterdir()) == []


def test_a_second_journal_of_the_process_is_no_death(directory):
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


def dead(directory):
    """Return the journal of a peer that died on a batch of request 1."""
    peer = Peer(directory)
    peer.tell("begin 1")
    peer.die()
    (file,) = directory.iterdir()
    return file


@pytest.mark.parametrize(
    ("passed_s", "known"),
    [(KEEP_S - 60, True), (KEEP_S + 1, False), (-30.0, False)],
    ids=["lately", "long ago", "before the machine was started"],
)
def test_old_deaths_are_forgotten(directory, monkeypatch, passed_s, known):
    file = dead(directory)
    later_ns = time.monotonic_ns() + int(1e9 * passed_s)
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    with opened(directory) as journal:
        journal.look()
        assert journal.deaths == ({1: 1} if known else {})
        assert file.exists() == known


def test_a_step_of_the_time_of_day_changes_nothing(directory):
    """The kernel writes the time of day to files; a step makes them look older or younger."""
    file = dead(directory)
    for step_s in (-7200, 7200):
        os.utime(file, (time.time() - step_s, time.time() - step_s))
        with opened(directory) as journal:
            journal.look()
            assert journal.deaths == {1: 1}


def test_a_file_that_is_no_journal_is_left_alone(directory):
    directory.mkdir(mode=0o700)
    (directory / "1-1.journal").write_bytes(b"short")
    (directory / "notes.txt").write_bytes(b"x")
    (directory / "2-2.journal").symlink_to("/etc/passwd")
    with opened(directory) as journal:
        journal.look()
        assert journal.deaths == {}


def test_digests_tell_inputs_apart():
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
