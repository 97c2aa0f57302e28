"""How published systems quantise on the wire: their recipes, each with the algorithms that it belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass

from collemu.arguments import refuse_unknown
from collemu.recipe import Recipe


@dataclass(frozen=True)
class Published:
    """The recipe of a published system.

    Attributes
    ----------
    name : str
    recipe : Recipe
    algorithms : mapping of str to tuple of str
        By collective, those that the system uses it with; the first is the usual one.
    rule : str
        What is rounded, to what, and where.
    source : str
        Who published it.
    limits : str
        What differs from the system.
    """

    name: str
    recipe: Recipe
    algorithms: Mapping[str, tuple[str, ...]]
    rule: str
    source: str
    limits: str


_RING_AND_TREE = {"all_reduce": ("ring", "tree"), "reduce_scatter": ("ring",), "reduce": ("ring",)}
_SHOTS = {"all_reduce": ("two_shot", "one_shot"), "reduce_scatter": ("direct",)}
_TWO_SHOT = {"all_reduce": ("two_shot",), "reduce_scatter": ("direct",), "all_gather": ("direct",)}
_IN_SWITCH = {"all_reduce": ("nvls",), "reduce_scatter": ("nvls",), "reduce": ("nvls",)}
_TWO_HOPS = {"reduce_scatter": ("hierarchical", "direct")}
_EVERY_PEER = {"alltoallv": ("direct",), "alltoall": ("direct",)}


def _quickreduce(kind: str, what: str, limits: str = "") -> Published:
    return Published(
        f"quickreduce_{kind}",
        Recipe(wire=f"{kind}_lanes32", accumulate="float16_saturating", round_input=True, name=f"quickreduce_{kind}"),
        _TWO_SHOT,
        f"every rank encodes its own too; {what}, even and odd elements of 64 with a float16 scale each; float16 sums "
        "in rank order; the sum is encoded once, and its owner keeps the decoded copy; "
        "overflow gives the largest float16",
        "QuickReduce: csrc/quickreduce of vLLM" if kind.startswith("int") else "AMD QuickReduce",
        "bfloat16 as after its cast to float16, the default of vLLM; blocks begin at each chunk" + limits,
    )


PUBLISHED = {
    each.name: each
    for each in (
        Published(
            "nccl_fp8",
            Recipe(dtype="float8_e4m3fn", accumulate="float16", name="nccl_fp8"),
            _RING_AND_TREE,
            "contributions are float8_e4m3fn without a scale; every sum of two is formed in float16 and rounded to it, "
            "at every hop",
            "NCCL 2.24 and later, reduce_kernel.h, sm90 and later",
            "the first rounding, to float8_e4m3fn, is the caller's in NCCL",
        ),
        Published(
            "nccl_symmetric",
            Recipe(wire="dtype", name="nccl_symmetric"),
            _SHOTS,
            "the dtype travels; sums are formed in float32 and rounded to the dtype once",
            "NCCL 2.27.3 and later, symmetric kernels",
            "8-bit floats in switches are nvls_fp8",
        ),
        Published(
            "nvls_fp8",
            Recipe(dtype="float8_e4m3fn", name="nvls_fp8"),
            _IN_SWITCH,
            "contributions are float8_e4m3fn without a scale; the switch adds them in float16 and rounds once",
            "NCCL 2.27.3 release notes; MSCCL++",
            "the order of additions in a switch is not known; needs a system whose switches add 8-bit floats",
        ),
        Published(
            "zeropp_qgz",
            Recipe(
                wire="int4_block2048", scale_mode="clipped", accumulate="float16", round_input=True, name="zeropp_qgz"
            ),
            _TWO_HOPS,
            "INT4 with amax / 8 as the float32 scale, so that a positive largest number is clipped to 7/8 of itself; "
            "within nodes, then between them: decoded to float16, added in rank order, encoded again",
            "ZeRO++, arXiv 2306.10209; DeepSpeed, quantization_utils.h and coalesced_collectives.py",
            "groups are of 2,048 elements, in DeepSpeed as large as the tensor's shape makes them; an average divides "
            "the contributions, not the sum",
        ),
        _quickreduce("int8", "8-bit integers"),
        _quickreduce("int6", "6-bit integers"),
        _quickreduce("int4", "4-bit integers"),
        _quickreduce("fp8", "float8_e4m3fnuz"),
        _quickreduce("fp4", "float4_e2m1fn"),
        Published(
            "flash_comm_int8",
            Recipe(wire="int8_block32", round_input=True, name="flash_comm_int8"),
            _TWO_SHOT,
            "two steps: encode, exchange, decode and add; encode, gather",
            "Flash Communication, arXiv 2412.04964",
            "blocks of 32 with a symmetric float32 scale stand for its fine-grained groups, which the paper does not "
            "define to the bit",
        ),
        Published(
            "flash_comm_int4",
            Recipe(wire="int4_block32", round_input=True, name="flash_comm_int4"),
            _TWO_SHOT,
            "as flash_comm_int8, with 4 bits",
            "Flash Communication, arXiv 2412.04964",
            "as flash_comm_int8",
        ),
        Published(
            "deepep_dispatch",
            Recipe(wire="fp8_block128", scale_mode="margin", name="deepep_dispatch"),
            _EVERY_PEER,
            "float8_e4m3fn in blocks of 128 along the hidden dimension, float32 scales of an amax of at least 1e-4; "
            "encoded once",
            "DeepEP",
            "",
        ),
        Published(
            "deepep_combine",
            Recipe(dtype="bfloat16", name="deepep_combine"),
            _EVERY_PEER,
            "bfloat16; what comes back is weighted and added by the receiver",
            "DeepEP",
            "the weighted sum at the receiver is not part of the collective",
        ),
    )
}


def recipes() -> tuple[str, ...]:
    """Names of the published recipes."""
    return tuple(PUBLISHED)


def find_published(name: str) -> Published:
    """The published recipe of a name.

    Raises
    ------
    ValueError
        For an unknown name; the text lists the known ones.
    """
    refuse_unknown(name, PUBLISHED, "recipe")
    return PUBLISHED[name]


def find_recipe(name: str) -> Recipe:
    """The recipe of a name; ValueError as `find_published`."""
    return find_published(name).recipe
