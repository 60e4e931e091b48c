"""The commands of the CLI, which `sojourn.cli` imports one by one."""
