"""Write the tables of docs/fidelity.md anew: ``python scripts/make_fidelity_page.py COLLECTIVES.csv MOE.csv``.

Each table is what a command prints; a comment before it has the words of the command. Takes some minutes.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "fidelity.md"
TABLE = re.compile(r"<!-- (collemu validate .*?) -->\n\n```\n.*?```\n", re.DOTALL)


def main(collectives: str, moe: str) -> None:
    files = {"COLLECTIVES.csv": collectives, "MOE.csv": moe}

    def printed(found: re.Match[str]) -> str:
        words = [files.get(word, word) for word in shlex.split(found[1])]
        run = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True)
        lines = [line.rstrip() for line in run.stdout.splitlines() if not line.startswith("#")]
        return f"<!-- {found[1]} -->\n\n```\n" + "\n".join(lines).strip("\n") + "\n```\n"

    PAGE.write_text(TABLE.sub(printed, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
