"""``python -m collemu`` is the `collemu` command."""

from collemu.cli.main import console

if __name__ == "__main__":
    console()
