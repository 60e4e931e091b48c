"""The commands of the CLI: `sojourn.commands.NAME.command` is the click command NAME."""
