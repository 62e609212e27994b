"""SGLang's names and layouts, and the settings under which a weight sync fails silently."""

from mx_sglang.compat import SUPPORTED_SGLANG, check_sglang_version, installed_sglang
from mx_sglang.layout import from_engine, quantization_config, to_engine
from mx_sglang.names import element_name, scale_name
from mx_sglang.refusals import check_server_args

__all__ = [
    "SUPPORTED_SGLANG",
    "check_server_args",
    "check_sglang_version",
    "element_name",
    "from_engine",
    "installed_sglang",
    "quantization_config",
    "scale_name",
    "to_engine",
]
