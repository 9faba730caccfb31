"""k-means by Lloyd's algorithm, which is also how a vector-quantisation codebook is learnt.

A step finds each point's nearest centroid, by a matrix product and an argmin, and moves the
centroids to the means of their points. The assignments and the inertia are those of torch.argmin,
step by step, or it raises.

    python -m compile_examples.kmeans
"""

import argparse
import sys

import torch
from torch import Tensor

import customops
from customops.bench import report

from .timing import HEADER, Row, add_device, default_device, describe, milliseconds


def distances(points: Tensor, centroids: Tensor) -> Tensor:
    """Squared distances (points, centroids), each less the square of its point."""
    return torch.addmm(centroids.square().sum(1), points, centroids.t(), alpha=-2)


def assign_by_torch(points: Tensor, centroids: Tensor) -> Tensor:
    return distances(points, centroids).argmin(1)


def assign(points: Tensor, centroids: Tensor) -> Tensor:
    return customops.argmin(distances(points, centroids), 1)


def argmin_of(distances):
    """An assignment that takes torch's argmin of ready distances."""
    return lambda points, centroids: distances(points, centroids).argmin(1)


def update(points: Tensor, centroids: Tensor, nearest: Tensor) -> Tensor:
    """The means of the points assigned to each centroid, which stays where it has none."""
    members = torch.zeros(len(centroids), len(points), device=points.device)
    members.scatter_(0, nearest.unsqueeze(0), 1)
    counts = members.sum(1, keepdim=True)
    return torch.where(counts > 0, members @ points / counts.clamp(min=1), centroids)


def lloyd(assign, points: Tensor, centroids: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
    """The assignments and the inertia, the sum of squared distances, of each step."""
    history = []
    for _ in range(steps):
        nearest = assign(points, centroids)
        history.append((nearest, (points - centroids[nearest]).square().sum()))
        centroids = update(points, centroids, nearest)
    return history


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_device(parser)
    parser.add_argument("--points", type=report.count, default=20_000)
    parser.add_argument("--centroids", type=report.count, default=1024)
    parser.add_argument("--width", type=report.count, default=64)
    parser.add_argument("--steps", type=report.count, default=5)
    options = parser.parse_args(arguments)
    device = options.device or default_device()

    torch.manual_seed(0)
    points = torch.randn(options.points, options.width).to(device)
    # Drawn with replacement, so that some are equal: a tie for every point near them.
    start = points[torch.randint(options.points, (options.centroids,), device=device)]
    print(describe(device), HEADER, sep="\n")
    for mode in ("eager", "compile"):
        compile = torch.compile(fullgraph=True) if mode == "compile" else lambda call: call
        theirs, ours = compile(assign_by_torch), compile(assign)
        theirs(points, start)
        # Compiled distances may round in their own way, so the argmin is torch's on those.
        expected = lloyd(argmin_of(compile(distances)), points, start, options.steps)
        history = lloyd(ours, points, start, options.steps)
        equal = all(
            torch.equal(nearest, expected_nearest) and torch.equal(inertia, expected_inertia)
            for (nearest, inertia), (expected_nearest, expected_inertia) in zip(
                history, expected, strict=True
            )
        )
        times = (milliseconds(call, (points, start)) for call in (theirs, ours))
        shape = (options.points, options.centroids)
        print(Row("kmeans", shape, device, mode, *times, equal))
        if not equal:
            raise AssertionError(f"{mode}: the clusters are not those of torch.argmin")
    print("\ninertia:", *(f"{inertia.item():.6g}" for _, inertia in history))


if __name__ == "__main__":
    sys.exit(main())
