"""Random compiled graphs against eager mode: `make fuzz-graphs EXAMPLES=20000`.

An example is a producer, a reduction of ours and a consumer on an input of some layout and dtype.
Many share a graph, for compiling takes long, and each graph runs on several inputs. Numbers are
small, so that arithmetic on them is exact and eager mode's answer is the only one; they tie, and
some are NaN, infinite or negative zeros. The exit status is 1 if an answer differs.
"""

import argparse
import logging
import math
import multiprocessing
import os
import random
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch  # noqa: E402

import customops  # noqa: E402

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 100, 130, 600, 1100)
MOST_ELEMENTS = 400_000
OPERATORS = ("argmin", "argmax", "argmin.dims", "argmax.dims", "min", "max")
REDUCTIONS_OF_A_GRAPH, INPUTS_OF_A_GRAPH = 20, 4

PRODUCERS = {
    "itself": lambda x, y: x,
    "relu": lambda x, y: torch.relu(x),
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "affine": lambda x, y: x * 2 + 1,
    "maximum": lambda x, y: torch.maximum(x, y),
    "where": lambda x, y: torch.where(x > y, x, y),
    "flip": lambda x, y: x.flip(0) + y,
    "transposed": lambda x, y: (x + y).transpose(0, -1),
    "sliced": lambda x, y: (x + 1)[:, ::2],
    "gathered": lambda x, y: x[torch.arange(x.size(0) - 1, -1, -1, device=x.device)] + y,
    "float": lambda x, y: x.float() + y.float(),
    "of a sum": lambda x, y: x + y.abs().sum(0, keepdim=True),
    "doubled": lambda x, y: (x + y).double(),
}
# Of a zero and a negative one eager mode and Inductor may take either.
ANY_ZERO = ("relu", "maximum")
OF_BOOLS = ("itself", "where", "flip", "float", "doubled")


def _consume(kind, values, indices):
    if kind == "compared":
        return indices == 1
    if kind == "counted":
        return (indices % 3 == 0).sum()
    return (indices,) if values is None else (values, indices)


class Graph:
    """One compiled function: several reductions of the same inputs."""

    def __init__(self, seed: str, device: str):
        self.random, self.device = random.Random(seed), device
        pick = self.random.choice
        self.dtype = pick((*FLOATS, torch.float32, *INTEGERS))
        self.shape = [pick(SIZES) for _ in range(pick((2, 2, 3, 3, 4)))]
        while math.prod(self.shape) > MOST_ELEMENTS:
            self.shape[self.shape.index(max(self.shape))] = pick(SIZES)
        self.order = self.random.sample(range(len(self.shape)), len(self.shape))
        self.parts = [self._part() for _ in range(REDUCTIONS_OF_A_GRAPH)]
        self.dynamic = pick((False, False, False, True))
        self.prefer = pick(("auto", "loop", "loop"))

    def _part(self):
        pick = self.random.choice
        names = OF_BOOLS if self.dtype == torch.bool else PRODUCERS
        operators = OPERATORS
        if self.dtype in FLOATS:
            operators = (*operators, "scale_min", "scale_max")
        dims = len(self.shape)
        some = self.random.sample(range(dims), self.random.randint(1, dims))
        return (
            pick(list(names)),
            pick(operators),
            self.random.randrange(dims),
            some,
            pick(("", "", "compared", "counted")),
            pick((False, False, False, True)),
            pick((2.0, -0.5)),
        )

    def inputs(self, number: int):
        generator = torch.Generator().manual_seed(self.random.randrange(1 << 30) + number)
        memory = [self.shape[d] for d in self.order]
        back = [self.order.index(d) for d in range(len(self.order))]
        pool = torch.tensor([0.0, -0.0, 1, 2, 3, -1, -2, 4])
        if self.dtype in FLOATS and number % 2:
            pool = torch.cat([pool] * 6 + [torch.tensor([torch.nan, torch.inf, -torch.inf])])
        if self.dtype in (torch.uint8, torch.bool):
            pool = pool.abs()
        made = []
        for _ in range(2):
            x = pool[torch.randint(len(pool), memory, generator=generator)].to(self.dtype)
            made.append(x.to(self.device).permute(back))
        mask = (torch.rand(self.shape, generator=generator) < 0.7).to(self.device)
        return *made, mask

    def __call__(self, x, y, mask):
        results = []
        for producer, operator, dim, dims, consumer, masked, scale in self.parts:
            z = PRODUCERS[producer](x, y)
            options = {"mask": mask} if masked and z.shape == mask.shape else {}
            name, _, several = operator.partition(".")
            function = getattr(torch.ops.reduceops, name)
            if name.startswith("scale_"):
                results.append((function(z, scale, dim, False),))
            elif name.startswith("arg"):
                index = function(z, dims if several else dim, **options)
                results.append(_consume(consumer, None, index))
            else:
                results.append(_consume(consumer, *function(z, dim, **options)))
        return results

    def check(self) -> tuple[int, list[str]]:
        """How many examples, and those that went wrong."""
        torch._dynamo.reset()
        customops.inductor.prefer = self.prefer
        compiled = torch.compile(
            lambda *inputs: self(*inputs), fullgraph=True, dynamic=self.dynamic
        )
        count, wrong = 0, []
        for number in range(INPUTS_OF_A_GRAPH):
            inputs = self.inputs(number)
            pairs = zip(compiled(*inputs), self(*inputs), self.parts, strict=True)
            for found, expected, part in pairs:
                count += 1
                if not _is_same(found, expected, part[0] not in ANY_ZERO):
                    wrong.append(f"{self.dtype} {self.shape} {self.order} {self.prefer} {part}")
        return count, wrong


def _is_same(found, expected, zeros: bool) -> bool:
    found = found if isinstance(found, tuple) else (found,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip(found, expected, strict=True):
        same = (a == b) | ((a != a) & (b != b))
        if zeros and a.dtype.is_floating_point:
            same &= (a != 0) | (a.signbit() == b.signbit())
        if a.dtype != b.dtype or a.shape != b.shape or not bool(same.all()):
            return False
    return True


class _Raise(logging.Handler):
    """A loop that fails, for which a kernel is called, is an error here."""

    def emit(self, record):
        raise AssertionError(record.getMessage()) from (record.exc_info or (None, None))[1]


def run(arguments: tuple[str, str]) -> tuple[int, list[str]]:
    seed, device = arguments
    torch.set_num_threads(1)
    logging.getLogger("customops").handlers = [_Raise(logging.WARNING)]
    try:
        count, wrong = Graph(seed, device).check()
    except Exception as error:
        count, wrong = 0, [f"{type(error).__name__}: {str(error)[:300]}"]
    return count, [f"seed {seed}: {line}" for line in wrong]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", type=int, nargs="?", default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    graphs = -(-options.examples // (REDUCTIONS_OF_A_GRAPH * INPUTS_OF_A_GRAPH))
    count, wrong = 0, []
    work = [(f"{options.seed}/{i}", options.device) for i in range(graphs)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for done, failed in pool.imap_unordered(run, work):
            count += done
            wrong += failed
            print(*failed, sep="\n", end="\n" if failed else "", flush=True)
    print(
        f"{count} examples in {graphs} graphs on {options.device}, {len(wrong)} wrong", flush=True
    )
    return int(bool(wrong) or not count)


if __name__ == "__main__":
    sys.exit(main())
