"""The `collemu` command: one file a command, each with ``add_parser(subparsers)`` and ``run(arguments) -> exit code``."""
