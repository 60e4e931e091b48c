"""Who may use a service: bearer tokens, their scopes and their rates."""
