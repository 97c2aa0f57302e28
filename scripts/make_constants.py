"""Fit the constants that are shipped: ``python scripts/make_constants.py COLLECTIVES.csv MOE.csv``.

Healthy cases alone; the tables' columns are those of collemu validate.
"""

import sys

from collemu.fidelity.constants import SHIPPED, constants_text
from collemu.fidelity.fit import fit
from collemu.fidelity.measured import joined, read_csv
from collemu.fidelity.predict import assigned


def main(collectives: str, moe: str) -> None:
    rows = joined([read_csv(collectives, ["health=healthy"])[0], read_csv(moe)[0]])
    found, cases = {}, {}
    for form, group, mask in assigned(rows):
        found[form.name, group] = fit(form, group, rows.where(mask))
        cases[form.name, group] = set(rows.case[mask].tolist())
        # at once: networks, which come last, take the constants of domains from here
        SHIPPED.write_text(constants_text(found, cases) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
