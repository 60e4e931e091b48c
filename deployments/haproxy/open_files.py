"""How many clients HAProxy may serve with the files that it may open."""

import resource

#: Clients that HAProxy serves at a time, where it may open enough files.
MAX_CONNECTIONS = 16_384
#: Files that HAProxy opens per client (client, server, and half a pipe each), and besides.
_FILES_PER_CONNECTION, _OTHER_FILES = 2.5, 256


def open_files_limit() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1 << 30 if limit == resource.RLIM_INFINITY else limit


def max_connections(open_files: int) -> int:
    """Return how many clients HAProxy may serve at a time if it may open so many files."""
    connections = int((open_files - _OTHER_FILES) / _FILES_PER_CONNECTION)
    return max(1, min(MAX_CONNECTIONS, connections))
