"""`python -m customops` prints what a bug report needs."""

import platform

import torch

from . import __version__, _torch_private, libraries


def _report() -> list[tuple[str, str]]:
    lines = [
        ("customops", __version__),
        ("torch", f"{torch.__version__} (CUDA {torch.version.cuda or 'none'})"),
        ("python", platform.python_version()),
        ("platform", platform.platform()),
    ]
    for name in ("cpu", "cuda"):
        library = getattr(libraries, name)
        state = "loaded" if library.loaded else f"not loaded: {library.reason}"
        lines.append((f"{name} library", f"{library.path}: {state}"))

    isa, runnable = (libraries.cpu.ask(f"reduceops_cpu_{what}") for what in ("isa", "isas"))
    lines.append(("cpu kernels", f"{isa} (can run: {runnable})"))
    lines.append(("cpu threads", str(torch.get_num_threads())))

    if libraries.cuda.loaded:
        lines.append(("cuda kernels", str(libraries.cuda.ask("reduceops_cuda_architectures"))))
        why = libraries.cuda.ask("reduceops_cuda_not_fused")
        form = f"with scale_min a kernel of its own: {why}" if why else "one kernel of cuDNN"
        lines.append(("convolutions", form))
    if libraries.cuda.doubt:
        lines.append(("", libraries.cuda.doubt))
    gpus = range(torch.cuda.device_count())
    for gpu in gpus:
        capability = "{}.{}".format(*torch.cuda.get_device_capability(gpu))
        lines.append((f"gpu {gpu}", f"{torch.cuda.get_device_name(gpu)}, capability {capability}"))
        if libraries.cuda.loaded:
            problem = libraries.cuda.ask("reduceops_cuda_problem", gpu)
            lines += [("", f"cannot be used: {problem}")] if problem else []
    if not gpus:
        lines.append(("gpu", "none that torch can use"))
    for name, without in _torch_private.felt().items():
        lines.append(("torch lacks", f"{name}: {without}"))
    return lines


for label, value in _report():
    print(f"{label:<14}{value}")
