"""Unpack a wheel, give it another version, and pack it so that equal input gives equal bytes."""

import base64
import hashlib
import re
import time
import zipfile
from pathlib import Path

from engines.errors import EngineError

DEFAULT_EPOCH = 315_532_800
"""1980-01-01, the first moment that a zip file can hold; SOURCE_DATE_EPOCH overrides it."""


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unpack(wheel: Path, *, into: Path) -> None:
    """Extract every member; the permissions that matter in a wheel are kept."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            target = Path(archive.extract(member, into))
            if not member.is_dir() and (member.external_attr >> 16) & 0o111:
                target.chmod(0o755)


def dist_info(root: Path) -> Path:
    """The one ``*.dist-info`` folder of an unpacked wheel."""
    found = list(root.glob("*.dist-info"))
    if len(found) != 1:
        raise EngineError(f"expected one .dist-info in the wheel, found {[p.name for p in found]}")
    return found[0]


def relabel(root: Path, *, version: str, local: str, requires_python: str) -> Path:
    """Turn ``version`` into ``version+local`` in the metadata and return the new dist-info.

    ``requires_python``, if not empty, replaces what the wheel declares.
    """
    info = dist_info(root)
    new = f"{version}+{local}"
    for folder in sorted(root.glob(f"*-{version}.*")):
        name, kind = folder.name.split(f"-{version}.", 1)
        folder.rename(root / f"{name}-{new}.{kind}")
    info = dist_info(root)
    metadata = info / "METADATA"
    text = metadata.read_text(encoding="utf-8")
    text = _replace(text, "Version", expected=version, value=new)
    if requires_python:
        text = _replace(text, "Requires-Python", expected=None, value=requires_python)
    metadata.write_text(text, encoding="utf-8")
    return info


def _replace(text: str, field: str, *, expected: str | None, value: str) -> str:
    old = re.escape(expected) if expected is not None else r"[^\n]*"
    head, blank, body = text.partition("\n\n")
    head, count = re.subn(rf"(?m)^{field}: {old}$", f"{field}: {value}", head)
    if count != 1:
        raise EngineError(f"METADATA: expected one '{field}: {expected or '...'}', found {count}")
    return head + blank + body


def pack(root: Path, *, wheel: Path, epoch: int) -> None:
    """Write ``wheel`` from the tree at ``root``: a fresh RECORD, members sorted, dated alike."""
    record = dist_info(root) / "RECORD"
    for stale in (record, *record.parent.glob("RECORD.*")):
        stale.unlink(missing_ok=True)
    files = sorted(
        (p for p in root.rglob("*") if p.is_file()),
        key=lambda p: (p.parent.name.endswith(".dist-info"), p.relative_to(root).as_posix()),
    )
    lines = [_record_line(path, root) for path in files]
    lines.append(f"{record.relative_to(root).as_posix()},,")
    record.write_text("\n".join(lines) + "\n", encoding="utf-8")
    date = time.gmtime(max(epoch, DEFAULT_EPOCH))[:6]
    partial = wheel.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for path in [*files, record]:
            info = zipfile.ZipInfo(path.relative_to(root).as_posix(), date_time=date)
            mode = 0o755 if path.stat().st_mode & 0o111 else 0o644
            info.external_attr = (0o100000 | mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            archive.writestr(info, path.read_bytes())
    partial.replace(wheel)


def _record_line(path: Path, root: Path) -> str:
    data = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    name = path.relative_to(root).as_posix()
    quoted = f'"{name}"' if "," in name else name
    return f"{quoted},sha256={digest},{len(data)}"
