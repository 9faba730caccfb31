"""Random compiled graphs against eager mode: `make fuzz-graphs EXAMPLES=20000`.

An example is a producer, a reduction of ours and a consumer on an input of some layout and dtype.
Many share a graph, for compiling takes long: a graph has inputs of several kinds, and runs on
several values of each. Numbers are small, so that arithmetic on them is exact and eager mode's
answer is the only one; they tie, and some are NaN, infinite or negative zeros. The exit status is 1
if an answer differs.
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
OPERATORS = (
    *("argmin", "argmax", "argmin.dims", "argmax.dims"),
    *(
        "min",
        "max",
        "min.values",
        "max.values",
        "max.indices",
    ),  # the last three: one result is read
)
KINDS_OF_A_GRAPH, REDUCTIONS_OF_A_KIND = 5, 4

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
    "of an extreme": lambda x, y: x - (y + 5).amax(-1, keepdim=True),
    "joined": lambda x, y: torch.cat([x + 1, y], 0),
    "flattened": lambda x, y: (x - y).flatten(0, 1),
    "filled": lambda x, y: x.masked_fill(y > 1, -2),
    "absolute": lambda x, y: x.abs() * y,
    "broadcast": lambda x, y: x[:1] + y,
}
# Of a zero and a negative one eager mode and Inductor may take either.
ANY_ZERO = ("relu", "maximum")
# And a value alone may be a zero of either sign.
ALONE = ("min.values", "max.values", "scale_min", "scale_max")
OF_BOOLS = ("itself", "where", "flip", "float", "doubled")
CONSUMERS = ("", "", "compared", "counted", "gathered", "and what is reduced")

# What the values of an input are drawn from.
NUMBERS = [0.0, -0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 4.0]
POOLS = (
    NUMBERS,
    NUMBERS * 6 + [math.nan, math.inf, -math.inf],
    [0.0, -0.0, 1.0, 2.0],
    [-0.0, -1.0, -2.0] * 20 + [0.0],
    NUMBERS * 400 + [math.nan],
    [-math.inf, math.inf],
    [-0.0],
)


def _consume(kind, z, values, indices, dim):
    if kind == "compared":
        return indices == 1
    if kind == "counted":
        return (indices % 3 == 0).sum()
    results = (indices,) if values is None else (values, indices)
    if kind == "gathered" and isinstance(dim, int):
        return (*results, z.gather(dim, indices.unsqueeze(dim)))
    if kind == "and what is reduced":
        return (*results, z)
    return results


class Kind:
    """Inputs of one dtype, shape and layout, and what is done with them."""

    def __init__(self, pick: random.Random):
        self.dtype = pick.choice((*FLOATS, torch.float32, *INTEGERS))
        self.shape = [pick.choice(SIZES) for _ in range(pick.choice((2, 2, 3, 3, 4)))]
        while math.prod(self.shape) > MOST_ELEMENTS:
            self.shape[self.shape.index(max(self.shape))] = pick.choice(SIZES)
        self.order = pick.sample(range(len(self.shape)), len(self.shape))
        self.parts = [self._part(pick) for _ in range(REDUCTIONS_OF_A_KIND)]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape} {self.order}"

    def _part(self, pick: random.Random):
        names = OF_BOOLS if self.dtype == torch.bool else PRODUCERS
        producer = pick.choice(list(names))
        operators = OPERATORS
        if self.dtype in FLOATS:
            operators = (*operators, "scale_min", "scale_max")
        dims = len(self.shape) - (producer == "flattened")
        some = pick.sample(range(dims), pick.randint(1, dims))
        return (
            producer,
            pick.choice(operators),
            pick.randrange(dims),
            some,
            pick.choice(CONSUMERS),
            pick.choice((False, False, False, True)),
            pick.choice((2.0, -0.5)),
        )

    def inputs(self, pick: random.Random, device: str):
        """`x`, `y` and a mask."""
        generator = torch.Generator().manual_seed(pick.randrange(1 << 30))
        memory = [self.shape[d] for d in self.order]
        back = [self.order.index(d) for d in range(len(self.order))]
        pool = torch.tensor(pick.choice(POOLS if self.dtype in FLOATS else POOLS[::2]))
        if self.dtype not in FLOATS:
            pool = pool[pool.isfinite()]
        if self.dtype in (torch.uint8, torch.bool):
            pool = pool.abs()
        made = []
        for _ in range(2):
            x = pool[torch.randint(len(pool), memory, generator=generator)].to(self.dtype)
            made.append(x.to(device).permute(back))
        mask = (torch.rand(self.shape, generator=generator) < pick.choice((0.01, 0.7))).to(device)
        return *made, mask

    def __call__(self, x, y, mask):
        results, produced = [], {part[0]: PRODUCERS[part[0]](x, y) for part in self.parts}
        for producer, operator, dim, dims, consumer, masked, scale in self.parts:
            z = produced[producer]
            options = {"mask": mask} if masked and z.shape == mask.shape else {}
            name, _, form = operator.partition(".")
            function = getattr(torch.ops.reduceops, name)
            if name.startswith("scale_"):
                results.append((function(z, scale, dim, False),))
            elif name.startswith("arg"):
                reduced = dims if form == "dims" else dim
                index = function(z, reduced, **options)
                results.append(_consume(consumer, z, None, index, reduced))
            elif form:
                results.append((function(z, dim, **options)[int(form == "indices")],))
            else:
                results.append(_consume(consumer, z, *function(z, dim, **options), dim))
        return results


class Graph:
    """One compiled function: several reductions of inputs of several kinds."""

    def __init__(self, seed: str, device: str):
        self.random, self.device = random.Random(seed), device
        self.kinds = [Kind(self.random) for _ in range(KINDS_OF_A_GRAPH)]
        self.dynamic = self.random.choice((False, False, False, True))
        self.prefer = self.random.choice(("auto", "loop", "loop"))

    def __call__(self, inputs):
        return [kind(*of_kind) for kind, of_kind in zip(self.kinds, inputs, strict=True)]

    def check(self, count: int) -> tuple[int, list[str]]:
        """How many examples, and those that went wrong; each part is run `count` times."""
        torch._dynamo.reset()
        customops.inductor.prefer = self.prefer
        compiled = torch.compile(lambda inputs: self(inputs), fullgraph=True, dynamic=self.dynamic)
        examples, wrong = 0, []
        for _ in range(count):
            inputs = [kind.inputs(self.random, self.device) for kind in self.kinds]
            for kind, *results in zip(self.kinds, compiled(inputs), self(inputs), strict=True):
                for part, found, expected in zip(kind.parts, *results, strict=True):
                    examples += 1
                    exact = part[0] not in ANY_ZERO and part[1] not in ALONE
                    if not _is_same(found, expected, exact):
                        wrong.append(f"{kind} {self.prefer} dynamic={self.dynamic} {part}")
        return examples, wrong


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


def run(arguments: tuple[str, str, int]) -> tuple[int, list[str]]:
    seed, device, values = arguments
    torch.set_num_threads(1)
    raising = _Raise(logging.WARNING)
    logging.getLogger("customops").addHandler(raising)
    try:
        count, wrong = Graph(seed, device).check(values)
    except Exception as error:
        count, wrong = 0, [f"{type(error).__name__}: {str(error)[:300]}"]
    finally:
        logging.getLogger("customops").removeHandler(raising)
    return count, [f"seed {seed}: {line}" for line in wrong]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", type=int, nargs="?", default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--values", type=int, default=16, help="that each graph runs on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    graphs = -(-options.examples // (KINDS_OF_A_GRAPH * REDUCTIONS_OF_A_KIND * options.values))
    count, wrong = 0, []
    work = [(f"{options.seed}/{i}", options.device, options.values) for i in range(graphs)]
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
