import pytest

from mx_sglang import check_server_args


def test_sound_settings_pass():
    check_server_args({"moe_runner_backend": "triton"}, checkpoint_is_mxfp8=True)


def test_online_quantization_is_refused_with_its_remedy():
    with pytest.raises(ValueError, match="serialized MXFP8 checkpoint"):
        check_server_args({"quantization": "mxfp8"}, checkpoint_is_mxfp8=False)


def test_every_refused_setting_is_named_in_one_error():
    with pytest.raises(ValueError, match=r"quantization=mxfp8.*moe_runner_backend"):
        check_server_args(
            {"quantization": "mxfp8", "moe_runner_backend": "flashinfer_trtllm"},
            checkpoint_is_mxfp8=False,
        )
