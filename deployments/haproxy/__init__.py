"""HAProxy kept alive by a supervisor that Ray starts in its place, and what HAProxy tells."""
