"""What ONNX Runtime computes with: a GPU where there is one, and a word where there is one that it does not use.

    SLUICE_PROVIDERS   ``cuda``, ``tensorrt``, ``cpu``, with commas between, in order of preference; by default ``cuda,cpu``

TensorRT is only taken where it is named: it compiles a network for every shape that comes, for minutes each.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence

VARIABLE = "SLUICE_PROVIDERS"
BY_NAME = {"tensorrt": "TensorrtExecutionProvider", "cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
DEFAULT = "cuda,cpu"
ON_GPU = (BY_NAME["cuda"], BY_NAME["tensorrt"])


def choose_providers(available: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Of what the environment names, what the installed ONNX Runtime has; the CPU always.

    Raises ``ValueError`` for a name that is none, and for one that is asked for and not there.
    """
    text = environment.get(VARIABLE)
    chosen = []
    for name in (text or DEFAULT).split(","):
        provider = BY_NAME.get(name.strip().lower())
        if provider is None:
            raise ValueError(f"{VARIABLE}: {text!r} is not allowed; allowed: {', '.join(BY_NAME)}, with commas between")
        if provider in available:
            chosen.append(provider)
        elif text is not None:
            raise ValueError(f"{VARIABLE}: {name.strip()!r} is not in this ONNX Runtime, which has {', '.join(available)}")
    cpu = BY_NAME["cpu"]
    return chosen if cpu in chosen else [*chosen, cpu]


def gpu_files() -> list[str]:
    """The device files of NVIDIA's GPUs on this machine."""
    return sorted(glob.glob("/dev/nvidia[0-9]*"))


def unused_gpu(gpus: Sequence[str], used: Sequence[str], available: Sequence[str], environment: Mapping[str, str]) -> str:
    """What to warn of: a GPU that is there and not computed with, though nobody said so; empty: nothing.

    ``used`` are the providers of the session, ``available`` those that ONNX Runtime was built with.
    """
    if not gpus or VARIABLE in environment or any(provider in used for provider in ON_GPU):
        return ""
    if BY_NAME["cuda"] in available:
        why = "its CUDA provider did not start (are CUDA and cuDNN installed, in the versions that it was built for?)"
    else:
        why = "it has no CUDA provider (pip install onnxruntime-gpu instead of onnxruntime)"
    return f"{gpus[0]} is there and ONNX Runtime computes on the CPU: {why}; {VARIABLE}=cpu if that is meant"
