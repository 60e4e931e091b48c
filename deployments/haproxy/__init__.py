"""HAProxy kept alive: a supervisor that Ray starts in HAProxy's place, and what it changes."""
