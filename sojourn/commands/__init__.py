"""The commands of the CLI, one module each: `command` in `sojourn.commands.NAME`."""
