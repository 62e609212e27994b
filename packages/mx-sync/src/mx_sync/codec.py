"""Manifests as bytes: plain JSON, one schema, nothing taken on trust.

    {"schema": "mx-sync/manifest/1",
     "version": {"run": "r", "step": 3},
     "tensors": [{"name": "a", "shape": [64, 32], "dtype": "e4m3", "grid": "mxfp8",
                  "digest": "<32 hex>"}, ...],
     "aliases": [["alias", "name"], ...]}

Decoding executes nothing and sizes nothing by a number in the input: its memory is bounded by a
small multiple of the encoded length, which is itself bounded.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from mx_quant import grids
from mx_sync.errors import ManifestError, explain
from mx_sync.manifest import MAX_RANK, MAX_TENSORS, Manifest, TensorSpec
from mx_sync.version import WeightVersion

SCHEMA: Final = "mx-sync/manifest/1"
MAX_ENCODED_BYTES: Final = 2**25
_MAX_DIGITS: Final = 16


def encode_manifest(manifest: Manifest) -> bytes:
    """UTF-8 JSON without spaces. Raises ManifestError above MAX_ENCODED_BYTES."""
    tensors = [
        {
            "name": spec.name,
            "shape": list(spec.shape),
            "dtype": spec.dtype,
            "grid": None if spec.grid is None else spec.grid.id,
            "digest": spec.digest,
        }
        for spec in manifest.tensors
    ]
    version = {"run": manifest.version.run, "step": manifest.version.step}
    aliases = [list(pair) for pair in manifest.aliases]
    document = {"schema": SCHEMA, "version": version, "tensors": tensors, "aliases": aliases}
    try:
        data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        _fail("tensors", "names that UTF-8 can hold", str(error))
    if len(data) > MAX_ENCODED_BYTES:
        _fail("manifest", f"at most {MAX_ENCODED_BYTES} encoded bytes", len(data))
    return data


def decode_manifest(data: bytes) -> Manifest:
    """The inverse of ``encode_manifest``.

    Raises:
        ManifestError: naming the place in the document, what it must be and what was found.

    """
    document = _fields(
        load_json(data, max_bytes=MAX_ENCODED_BYTES),
        "manifest",
        {"schema": str, "version": dict, "tensors": list, "aliases": list},
    )
    if document["schema"] != SCHEMA:
        _fail("schema", SCHEMA, repr(document["schema"]))
    version = _version(document["version"])
    for key in ("tensors", "aliases"):
        if len(document[key]) > MAX_TENSORS:
            _fail(key, f"at most {MAX_TENSORS}", len(document[key]))
    tensors = tuple(_tensor(item, i) for i, item in enumerate(document["tensors"]))
    aliases = tuple(_alias(item, i) for i, item in enumerate(document["aliases"]))
    return Manifest(version, tensors, aliases)


def load_json(data: bytes, *, max_bytes: int) -> Any:
    """Strict JSON: bounded length, no repeated key, no NaN, no integer beyond 16 digits.

    Raises ManifestError.
    """
    if len(data) > max_bytes:
        _fail("document", f"at most {max_bytes} bytes", len(data))
    try:
        return json.loads(
            bytes(data).decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_bounded_int,
            parse_constant=_no_constant,
        )
    except RecursionError:
        _fail("document", "JSON of little depth", "nesting beyond the parser's limit")
    except ValueError as error:
        _fail("document", "UTF-8 JSON", f"{error!s:.200}")


def _version(item: dict[str, Any]) -> WeightVersion:
    fields = _fields(item, "version", {"run": str, "step": int})
    try:
        return WeightVersion(fields["run"], fields["step"])
    except ValueError as error:
        _fail("version", "a run name and a step", str(error))


def _tensor(item: object, index: int) -> TensorSpec:
    where = f"tensors[{index}]"
    kinds = {"name": str, "shape": list, "dtype": str, "grid": (str, type(None)), "digest": str}
    fields = _fields(item, where, kinds)
    shape = fields["shape"]
    if len(shape) > MAX_RANK or any(type(size) is not int for size in shape):
        _fail(f"{where}.shape", f"at most {MAX_RANK} integers", f"{shape!r:.120}")
    grid = None
    if fields["grid"] is not None:
        try:
            grid = grids.by_id(fields["grid"])
        except ValueError as error:
            _fail(f"{where}.grid", "a grid that mx_quant knows", f"{error!s:.300}")
    return TensorSpec(fields["name"], tuple(shape), fields["dtype"], grid, fields["digest"])


def _alias(item: object, index: int) -> tuple[str, str]:
    if not isinstance(item, list) or len(item) != 2 or not all(isinstance(s, str) for s in item):
        _fail(f"aliases[{index}]", "[alias, name]", f"{item!r:.120}")
    return item[0], item[1]


def _fields(item: object, where: str, kinds: dict[str, Any]) -> dict[str, Any]:
    """``item`` if it is an object with exactly the keys of ``kinds``, each of its type."""
    if not isinstance(item, dict):
        _fail(where, "an object", f"{type(item).__name__}")
    if item.keys() != kinds.keys():
        _fail(where, f"the keys {sorted(kinds)}", f"{sorted(item)!r:.200}")
    for key, kind in kinds.items():
        if not isinstance(item[key], kind) or isinstance(item[key], bool):
            names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            _fail(f"{where}.{key}", names, type(item[key]).__name__)
    return item


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key repeats among {[key[:40] for key, _ in pairs][:12]}")
    return found


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits, expected at most {_MAX_DIGITS}")
    return int(digits)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _fail(where: str, expected: str, found: object) -> NoReturn:
    raise ManifestError(
        explain(f"malformed manifest at {where}", expected=expected, found=found), where=where
    )
