"""Prints what a bug report needs: versions, which libraries are loaded and why one is not, the
instruction set of the CPU's kernels, and the GPUs."""

import argparse

import torch

from . import _torch_private, failure, libraries


def _report() -> list[tuple[str, str]]:
    lines = failure.versions(f"{torch.__version__} (CUDA {torch.version.cuda or 'none'})")
    for name in ("cpu", "cuda"):
        library = getattr(libraries, name)
        state = "loaded" if library.loaded else f"not loaded: {library.reason}"
        lines.append((f"{name} library", f"{library.path}: {state}"))
        if library.doubt:
            lines.append((f"{name} warning", library.doubt))

    isa, runnable = (libraries.cpu.ask(f"reduceops_cpu_{what}") for what in ("isa", "isas"))
    lines.append(("cpu kernels", f"{isa} (can run: {runnable})"))
    lines.append(("cpu threads", str(torch.get_num_threads())))

    if libraries.cuda.loaded:
        lines.append(("cuda kernels", str(libraries.cuda.ask("reduceops_cuda_architectures"))))
        why = libraries.cuda.ask("reduceops_cuda_not_fused")
        lines.append(("fused conv2d", f"no: {why}" if why else "yes (cuDNN)"))
    gpus = range(torch.cuda.device_count())
    for gpu in gpus:
        capability = "{}.{}".format(*torch.cuda.get_device_capability(gpu))
        lines.append((f"gpu {gpu}", f"{torch.cuda.get_device_name(gpu)}, capability {capability}"))
        if libraries.cuda.loaded:
            problem = libraries.cuda.ask("reduceops_cuda_problem", gpu)
            lines += [(f"gpu {gpu} warning", f"cannot be used: {problem}")] if problem else []
    if not gpus:
        lines.append(("gpu", "none that torch can use"))
    for name, without in _torch_private.relevant().items():
        lines.append(("torch lacks", f"{name}: {without}"))
    return lines


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m customops", description=__doc__).parse_args()
    failure.show(failure.table(_report()))
