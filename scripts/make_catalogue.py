"""Write fitted constants into the systems that they were fitted for: ``python scripts/make_catalogue.py``.

Reads collemu/fidelity/constants.toml, which scripts/make_constants.py writes, and changes the numbers of
collemu/catalogue/systems in place: launch, link efficiency, copies, and the steps of protocols.
"""

import re
import tomllib

from collemu import load_system
from collemu.catalogue.load import CATALOGUE
from collemu.fidelity.constants import SHIPPED, load_constants
from collemu.fidelity.mesh import LINE_RATE as MESH_RATE
from collemu.fidelity.nccl import ARCHITECTURES, LINE_RATE

TITLE = (
    "fitted to public nccl-tests tables; collemu/fidelity/constants.toml, [{form}.{group}], names their {cases} cases"
)
TAKEN = {"reduce_bytes_per_s": 1, "quantize_bytes_per_s": 4, "dequantize_bytes_per_s": 4}  # times the rate of copies
PROTOCOLS = {"simple": "simple_step_us", "ll": "ll_step_us", "ll128": "ll128_step_us"}


def main() -> None:
    for form, group, name, line in _systems():
        path = CATALOGUE / f"{name}.toml"
        text = path.read_text(encoding="utf-8")
        source = f"{form}-{group}-fit".upper()
        for key, value, note in _numbers(form, group, name, line):
            text = _with(text, key, value, source, note)
        for key, of_copies in TAKEN.items():
            taken = of_copies * load_constants()[form][group]["copy_GBps", ""] * 1e9
            text = re.sub(rf"(?m)^({key} = \{{ value = )[^,]+", rf"\g<1>{taken:.4g}", text)
        used = set(re.findall(r'source = "([^"]+)"', text))
        lines = [each for each in text.splitlines() if not _unused(each, used)]
        title = TITLE.format(form=form, group=group, cases=_cases(form, group))
        lines = [each for each in lines if not each.startswith(f"{source} = ")]
        lines.append(f'{source} = {{ title = "{title}" }}')
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        load_system(path)


def _systems() -> list[tuple[str, str, str, float]]:
    """Form, group, system, and GB/s of its links, or of those to a peer."""
    behind = [("nccl", group, name, LINE_RATE[group]) for name, group in ARCHITECTURES.items()]
    return behind + [("mesh", name, name, rate) for name, rate in MESH_RATE.items()]


def _numbers(form: str, group: str, name: str, line: float) -> list[tuple[str, float, str]]:
    fitted = load_constants()[form][group]

    def value(constant: str) -> float:
        return fitted.get((constant, name), fitted.get((constant, ""), 0.0))

    domain = load_system(name).domain
    shares = domain.packet_payload_bytes / (domain.packet_payload_bytes + domain.packet_header_bytes)
    hops, in_words = (1, "one hop") if form == "mesh" else (2, "two hops")
    way_us = hops * domain.hop_latency_s * 1e6
    link = value("link_GBps")
    percent = f"{domain.packet_payload_bytes}/{domain.packet_payload_bytes + domain.packet_header_bytes}"
    numbers = [
        ("launch_s", value("launch_us") * 1e-6, ""),
        (
            "link_efficiency",
            min(1.0, link / line / shares),
            f"{link:.4g} GB/s of {line:g}, over the {percent} of packets",
        ),
        ("copy_bytes_per_s", value("copy_GBps") * 1e9, "of all channels"),
    ]
    for protocol, constant in PROTOCOLS.items():
        step = value(constant)
        note = f"{step:.4g} us less {in_words}"
        numbers.append((f"{protocol}.step_latency_s", max(0.0, step - way_us) * 1e-6, note))
    return numbers


def _cases(form: str, group: str) -> int:
    with SHIPPED.open("rb") as file:
        return len(tomllib.load(file)[form][group]["cases"])


def _with(text: str, key: str, value: float, source: str, note: str) -> str:
    """The text with another number at a key, of a protocol if the key names one."""
    protocol, _, key = key.rpartition(".")
    begin = text.index(f"[protocol.{protocol}]") if protocol else 0
    said = f', note = "{note}"' if note else ""
    line = f'{key} = {{ value = {value:.4g}, source = "{source}", confidence = "fitted"{said} }}'
    pattern = re.compile(rf"^{key} = .*$", re.MULTILINE)
    if not pattern.search(text, begin):
        raise ValueError(f"no {key} in [{protocol}]")
    return text[:begin] + pattern.sub(line, text[begin:], count=1)


def _unused(line: str, used: set[str]) -> bool:
    """Whether it is a source of fits that nothing names any more."""
    return line.partition(" = ")[0].endswith("-FIT") and line.partition(" = ")[0] not in used


if __name__ == "__main__":
    main()
