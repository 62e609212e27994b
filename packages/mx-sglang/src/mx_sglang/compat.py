"""Which SGLang this package was written for, and whether that is the one that is installed."""

from importlib import metadata

SUPPORTED_SGLANG = "0.5.23"


def installed_sglang() -> str | None:
    """Version of the installed `sglang` distribution, or None where there is none."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def check_sglang_version(found: str | None) -> None:
    """Refuse an SGLang whose weight-update interface was not the one read for this package.

    Args:
        found: version string as `installed_sglang` gives it.

    Raises:
        RuntimeError: no SGLang, or another release series.
    """
    if found is None:
        raise RuntimeError(
            f"mx-sglang: expected sglang {SUPPORTED_SGLANG}, found none in this environment; "
            "install it with `pip install 'mx-sglang[sglang]'` (an environment of its own: SGLang "
            "and vLLM pin different versions of the same libraries)"
        )
    if found.split("+")[0].split(".post")[0] != SUPPORTED_SGLANG:
        raise RuntimeError(
            f"mx-sglang: expected sglang {SUPPORTED_SGLANG}, found {found}; its update routes and "
            "its MXFP8 layouts change between releases: install the pinned version, or an "
            "mx-sglang that names this one"
        )
