"""KernelBench level 2, problem 32 as a whole: time and peak memory beside torch's.

Forward, and forward with the backward to the parameters, eager and compiled. Results and gradients
are held to those of eager torch up to the rounding of convolutions; the exit status is 1 where one
differs. Peak memory is what a pass allocates besides the parameters and the input.

    python -m compile_examples.whole_model
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from customops.bench import measure, report

from . import level2_32_conv_scale_min as problem
from .timing import add_device, default_device

CPU_BATCH = 1
ROUNDING = 2e-3  # of a norm: convolutions on a GPU multiply in TF32
MODES = {"eager": lambda model: model, "compile": partial(torch.compile, fullgraph=True)}


@torch.no_grad()
def forward(model: nn.Module, x: Tensor) -> list[Tensor]:
    return [model(x)]


def forward_backward(model: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).sum(), list(model.parameters())))


PASSES = {"forward": forward, "forward + backward": forward_backward}


def make(device: str, batch: int, channels_last: bool, **sizes) -> tuple[dict, Tensor]:
    """Torch's model and ours with the same parameters, and an input."""
    torch.manual_seed(0)
    models = {"torch": problem.Model(*problem.get_init_inputs())}
    models["ours"] = problem.ModelNew(*problem.get_init_inputs())
    models["ours"].load_state_dict(models["torch"].state_dict())
    (x,) = problem.get_inputs(batch_size=batch, **sizes)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    models = {name: model.to(device, memory_format=layout) for name, model in models.items()}
    return models, x.to(device, memory_format=layout)


def close(actual: list[Tensor], expected: list[Tensor]) -> bool:
    pairs = zip(actual, expected, strict=True)
    return all((a - e).norm() <= ROUNDING * e.norm() for a, e in pairs)


def compare(models: dict, x: Tensor, seconds: float, on_step: Callable[[str], None]) -> list[dict]:
    """A row for each pass and mode."""
    rows = []
    sampler = measure.cold if x.is_cuda else measure.wall
    for pass_, run in PASSES.items():
        expected = run(models["torch"], x)
        for mode, prepare in MODES.items():
            on_step(f"{mode}, {pass_}")
            torch.compiler.reset()
            calls = {name: partial(run, prepare(model), x) for name, model in models.items()}
            figures = {name: {"right": close(call(), expected)} for name, call in calls.items()}
            for name, call in calls.items():
                measure.free()
                figures[name]["peak_bytes"] = measure.peak_bytes(call, x.device.type)
            samplers = {name: sampler(call) for name, call in calls.items()}
            for name, samples in measure.in_turns(samplers, seconds).items():
                figures[name] |= measure.summary_of(samples)
            ratio = figures["torch"]["seconds"] / figures["ours"]["seconds"]
            rows.append({"pass": pass_, "mode": mode, **figures, "ratio": ratio})
    return rows


def show(rows: list[dict], title: str) -> None:
    header = ["pass", "torch", "ours", "ratio", "torch's peak", "our peak", "right"]
    cells = [
        [f"{row['pass']}, {row['mode']}"]
        + [report.format_time(row[name]["seconds"]) for name in ("torch", "ours")]
        + [report.format_ratio(row["ratio"])]
        + [_mebibytes(row[name]["peak_bytes"]) for name in ("torch", "ours")]
        + ["yes" if row["ours"]["right"] else "NO"]
        for row in rows
    ]
    report.show_table(header, cells, title)


def _mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.0f} MiB"


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_device(parser, choices=("cpu", "cuda"), help="by default a GPU if there is one")
    parser.add_argument("--batch", type=report.count, help="the problem's on a GPU, 1 on a CPU")
    parser.add_argument("--size", type=report.count, default=problem.height, help="of the images")
    parser.add_argument("--channels-last", action="store_true", help="the input and the weights")
    parser.add_argument(
        "--seconds", type=report.seconds, default=1.0, help="for each pass, mode and model"
    )
    parser.add_argument("--json", type=report.file, metavar="FILE", help="write every figure")
    options = parser.parse_args(arguments)
    device = options.device or default_device()
    batch = options.batch or (CPU_BATCH if device == "cpu" else problem.batch_size)

    sizes = {"height": options.size, "width": options.size}
    models, x = make(device, batch, options.channels_last, **sizes)
    header = report.header(["compile_examples.whole_model", *arguments], device)
    header |= {"shape": list(x.shape), "channels_last": options.channels_last}
    header |= {"tf32": torch.backends.cudnn.allow_tf32}
    with report.progress(len(PASSES) * len(MODES)) as on_step:
        rows = compare(models, x, options.seconds, on_step)
    show(rows, f"level 2, problem 32, {tuple(x.shape)} {report.where(header)}")
    if options.json:
        report.write_json(options.json, header | {"cases": rows})
    return 0 if all(row["ours"]["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
