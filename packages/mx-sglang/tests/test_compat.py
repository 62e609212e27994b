import pytest

from mx_sglang import SUPPORTED_SGLANG, check_sglang_version


@pytest.mark.parametrize(
    "found", [SUPPORTED_SGLANG, SUPPORTED_SGLANG + "+mx1", SUPPORTED_SGLANG + ".post1"]
)
def test_the_supported_release_and_its_rebuilds_are_accepted(found):
    check_sglang_version(found)


@pytest.mark.parametrize("found", [None, "0.4.9", "0.5.230"])
def test_any_other_version_is_refused_with_what_was_found(found):
    with pytest.raises(RuntimeError, match=r"expected sglang 0\.5\.23, found"):
        check_sglang_version(found)
