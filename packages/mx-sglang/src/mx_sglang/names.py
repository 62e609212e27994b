"""Names of one canonical tensor's parts in SGLang's serialized MXFP8 format.

SGLang keeps the Hugging Face name for the elements and stores the scales beside them under
`weight_scale_inv` (`srt/layers/quantization/fp8.py`, release 0.5.23). The suffix is historical: the
stored value is the scale itself, not its inverse.
"""

_WEIGHT = ".weight"
_SCALE = ".weight_scale_inv"


def element_name(name: str) -> str:
    """SGLang's name of the element bytes of canonical tensor `name` (the same name)."""
    _require_weight(name)
    return name


def scale_name(name: str) -> str:
    """SGLang's name of the scale bytes of canonical tensor `name`."""
    _require_weight(name)
    return name.removesuffix(_WEIGHT) + _SCALE


def canonical_name(engine_name: str) -> str:
    """Canonical tensor that an SGLang name belongs to; the inverse of both functions above."""
    if engine_name.endswith(_SCALE):
        return engine_name.removesuffix(_SCALE) + _WEIGHT
    return engine_name


def is_scale(engine_name: str) -> bool:
    """Whether an SGLang name denotes scales."""
    return engine_name.endswith(_SCALE)


def _require_weight(name: str) -> None:
    if not name.endswith(_WEIGHT):
        raise ValueError(
            f"{name}: expected a tensor on a grid to be named '<module>{_WEIGHT}'; "
            "SGLang has no name for the scales of any other parameter: send it without a grid"
        )
