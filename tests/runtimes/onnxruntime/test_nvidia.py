"""Options of NVIDIA's providers: what they become, what is refused, and that nothing runs elsewhere unnoticed."""

from __future__ import annotations

import importlib.metadata

import onnx
import onnxruntime as ort
import pytest

from planting import tiny_cnn
from unlag.assets.cache import cache_folder
from unlag.errors import UsageError
from unlag.model.variant import Variant, parse_spec
from unlag.report.folder_note import folder_note
from unlag.runtimes.contract import runtime_names
from unlag.runtimes.onnxruntime import RUNTIME, nvidia
from unlag.runtimes.onnxruntime.nvidia import CPU, CUDA, TENSORRT

WITHOUT_CUDA = pytest.mark.skipif(CUDA in ort.get_available_providers(), reason="this build of onnxruntime has CUDA")


def options(text: str) -> dict[str, str]:
    return parse_spec(f"model.onnx,{text}").options


def test_parts_of_a_runtime_are_no_runtimes():
    assert {"fake", "onnxruntime"} <= set(runtime_names())
    assert not {"nvidia", "bound_session", "contract"} & set(runtime_names())


def test_every_option_is_listed_for_help():
    assert {option.name for option in nvidia.OPTIONS} <= {option.name for option in RUNTIME.options}
    assert all(nvidia.is_known(option.name) for option in nvidia.OPTIONS)
    assert nvidia.is_known("provider.gpu_mem_limit")
    assert not nvidia.is_known("provider")


CUDA_OPTIONS = {
    "provider=cuda": {},
    "provider=cuda,tf32=off": {"use_tf32": "0"},
    "provider=cuda,tf32=on,device=1": {"use_tf32": "1", "device_id": "1"},
    "provider=cuda,io_binding=on,cuda_graph=on": {"enable_cuda_graph": "1"},
    "provider=cuda,attention=flash": {"sdpa_kernel": "1"},
    "provider=cuda,attention=cudnn,nhwc=on": {"sdpa_kernel": "8", "prefer_nhwc": "1"},
    "provider=cuda,provider.gpu_mem_limit=1000": {"gpu_mem_limit": "1000"},
}


@pytest.mark.parametrize(("text", "wanted"), CUDA_OPTIONS.items())
def test_cuda_gets_its_options_and_the_cpu_stays_behind_it(text, wanted):
    assert nvidia.providers_of(options(text), CUDA) == [(CUDA, wanted), (CPU, {})]


def test_tensorrt_has_cuda_behind_it_and_keeps_its_engines():
    given = options("provider=tensorrt,trt_fp16=on,tf32=off,io_binding=on,cuda_graph=on,device=2")
    (first, engine), (second, behind), (third, _) = nvidia.providers_of(given, TENSORRT)
    assert (first, second, third) == (TENSORRT, CUDA, CPU)
    assert behind == {"use_tf32": "0", "device_id": "2"}, "the recording is TensorRT's"
    folder = str(cache_folder() / "tensorrt")
    assert engine == {
        "trt_fp16_enable": "1", "trt_layer_norm_fp32_fallback": "1", "device_id": "2", "trt_cuda_graph_enable": "1",
        "trt_engine_cache_enable": "1", "trt_engine_cache_path": folder,
        "trt_timing_cache_enable": "1", "trt_timing_cache_path": folder,
    }  # fmt: skip


def test_engines_are_not_kept_where_nobody_wants_that():
    engine = nvidia.providers_of(options("provider=tensorrt,trt_cache=off,trt_bf16=on"), TENSORRT)[0][1]
    assert engine == {"trt_bf16_enable": "1"}


def test_the_cpu_is_named_once():
    assert nvidia.providers_of({}, CPU) == [(CPU, {})]
    assert nvidia.providers_of({"provider": "qnn"}, "QNNExecutionProvider") == [("QNNExecutionProvider", {}), (CPU, {})]


WRONG = {
    "tf32=on": "option tf32 needs provider=cuda or provider=tensorrt, not cpu",
    "provider=cuda,trt_fp16=on": "option trt_fp16 needs provider=tensorrt, not cuda",
    "provider=cuda,tf32=maybe": "option tf32=maybe is not one of on, off",
    "provider=cuda,attention=fast": "option attention=fast is not one of flash, efficient, tensorrt, cudnn, math",
    "provider=cuda,device=first": "option device=first is not the number of a GPU",
    "provider=cuda,cuda_graph=on": "cuda_graph=on needs io_binding=on",
    "provider=cuda,cuda_graph=on,io_binding=off": "cuda_graph=on needs io_binding=on",
    "io_binding=perhaps": "option io_binding=perhaps is not one of on, off",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_wrong_options_are_refused_before_a_session_is_opened(text, message):
    for ask in (nvidia.check, lambda given: nvidia.providers_of(given, CUDA)):
        with pytest.raises(UsageError) as refused:
            ask(options(text))
        assert refused.value.message.startswith(message)


def test_a_recording_is_left_out_of_a_profile():
    recorded = Variant("onnxruntime", "model.onnx", options("provider=cuda,io_binding=on,cuda_graph=on"))
    assert nvidia.without_recording(recorded).options["cuda_graph"] == "off"
    plain = Variant("onnxruntime", "model.onnx", options("provider=cuda"))
    assert nvidia.without_recording(plain) == plain


@WITHOUT_CUDA
@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_build_without_the_provider_is_told_with_the_command_that_installs_it(provider):
    with pytest.raises(UsageError) as refused:
        RUNTIME.check(Variant("onnxruntime", "model.onnx", {"provider": provider}))
    assert f"'{provider}' is not available here" in refused.value.message
    assert nvidia.INSTALL in refused.value.hint
    assert "onnxruntime-gpu" in nvidia.INSTALL


@WITHOUT_CUDA
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_session_never_runs_on_the_cpu_in_silence(tmp_path):
    """ONNX Runtime itself only warns, and opens the session on the CPU."""
    onnx.save(tiny_cnn(), tmp_path / "cnn.onnx")
    assert ort.InferenceSession(tmp_path / "cnn.onnx", providers=[CUDA, CPU]).get_providers() == [CPU]
    with pytest.raises(UsageError, match="can't start its provider cuda"):
        RUNTIME.open(Variant("onnxruntime", str(tmp_path / "cnn.onnx"), {"provider": "cuda"}), 1)


def test_what_runs_is_held_against_what_was_asked_for():
    nvidia.check_running(CUDA, [CUDA, CPU])
    nvidia.check_running(CPU, [CPU])
    with pytest.raises(UsageError) as refused:
        nvidia.check_running(CUDA, [CPU])
    assert refused.value.hint == nvidia.INSTALL
    with pytest.raises(UsageError) as refused:
        nvidia.check_running(TENSORRT, [CUDA, CPU])
    assert "tensorrt" in refused.value.hint


def test_the_installed_build_is_named_whichever_it_is():
    assert nvidia.runtime_version().startswith("onnxruntime")
    assert nvidia.runtime_version(["no-such-build", "numpy"]) == f"numpy {importlib.metadata.version('numpy')}"
    assert nvidia.runtime_version(["no-such-build"]) == ""


def test_a_folders_note_opens_plain_onnxruntime_with_the_same_options():
    note = folder_note(parse_spec("m.onnx,provider=cuda,tf32=off,io_binding=on,cuda_graph=on"), 2)
    assert "providers=[('CUDAExecutionProvider', {'use_tf32': '0'}), 'CPUExecutionProvider']" in note
    assert "What only `unlag.load` sets: io_binding=on, cuda_graph=on." in note
    engines = folder_note(parse_spec("m.onnx,provider=tensorrt,trt_fp16=on"), 2)
    assert "'trt_fp16_enable': '1'" in engines
    assert str(cache_folder()) not in engines, "this machine's folder is no use elsewhere"
