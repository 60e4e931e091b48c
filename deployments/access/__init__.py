"""Access to a service: bearer tokens, their scopes and their rates."""
