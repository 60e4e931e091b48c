"""The state machine of the store: events in, actions out, on any clock."""
