"""Shapes that send a reduction through every walk of the GPU and every branch of it.

test_plan.py holds them to that without a GPU; test_cuda_reliability.py and sanitize_cuda.py run
them.
"""

from dataclasses import dataclass

import torch

from customops.plans import CudaPlan, Walk, cuda_plan


@dataclass(frozen=True)
class Shape:
    sizes: tuple[int, ...]
    dims: tuple[int, ...]  # that are reduced
    dtype: torch.dtype = torch.float32
    step: int = 1  # between neighbours in the last dim
    gap: int = 0  # elements after the last dim
    order: tuple[int, ...] | None = None  # permutes the dims of what lies in memory contiguously
    repeated: tuple[int, ...] = ()  # dims of stride 0

    def __str__(self):
        parts = ["x".join(map(str, self.sizes)), "dims", *map(str, self.dims)]
        parts += [str(self.dtype).removeprefix("torch.")] + ["step"] * (self.step > 1)
        parts += ["gap"] * (self.gap > 0)
        parts += ["permuted"] * bool(self.order) + ["repeated"] * bool(self.repeated)
        return "-".join(parts)

    def empty(self, device="meta", offset=0):
        """Without contents, `offset` elements into its storage."""
        order = self.order or range(len(self.sizes))
        inverse = sorted(order, key=lambda d: order[d])
        sizes = [1 if d in self.repeated else self.sizes[d] for d in inverse]
        length = sizes[-1] * self.step
        sizes[-1] = length + self.gap
        storage = torch.empty(offset + torch.Size(sizes).numel(), dtype=self.dtype, device=device)
        x = storage[offset:].view(sizes)[..., : length : self.step].permute(*order)
        return x.expand(self.sizes)

    def plan(self, tuning=None) -> CudaPlan:
        return cuda_plan(self.empty(), self.dims, tuning=tuning)


def parts(plan: CudaPlan) -> str:
    """Who combines the parts of the reduced extent."""
    if plan.partial_results > 1:
        return "clusters and workspace" if plan.cluster > 1 else "workspace"
    return "cluster" if plan.cluster > 1 else "one part"


# Of a size that fills a GPU, but for the small one, by the walk and what combines its parts.
WALKS = {
    (Walk.FILL, "one part"): Shape((1 << 20, 1, 8), (1,)),
    (Walk.SMALL, "one part"): Shape((90, 33, 5), (1,)),
    (Walk.WHOLE_ROWS, "one part"): Shape((1000, 4099), (1,)),
    (Walk.WHOLE_ROWS, "cluster"): Shape((64, 151936), (1,), torch.bfloat16),
    (Walk.WHOLE_ROWS, "workspace"): Shape((263 * 8320 + 1,), (0,)),  # of the last part, one element
    (Walk.ROWS, "one part"): Shape((2000, 4099), (1,), step=2),
    (Walk.ROWS, "cluster"): Shape((48, 100_003), (1,), step=2),
    (Walk.ROWS, "workspace"): Shape((2, 250_003), (1,), step=2),
    (Walk.WHOLE_COLUMNS, "one part"): Shape((2, 3_000_004), (0,)),
    (Walk.COLUMNS, "one part"): Shape((3000, 100, 65), (1,)),
    (Walk.COLUMNS, "workspace"): Shape((5000, 300), (0,), torch.bfloat16),
    (Walk.BOXES, "one part"): Shape((200_001, 33), (1,)),
    (Walk.TILES, "one part"): Shape((80, 16, 2, 5000), (0,), torch.bfloat16, order=(2, 1, 3, 0)),
    (Walk.GATHER, "one part"): Shape((300_000, 7, 3), (1,)),
    (Walk.BULK_COLUMNS, "one part"): Shape((64, 257, 4095), (1,), torch.int64),
    (Walk.BULK_COLUMNS, "cluster"): Shape((66, 600, 1001), (1,)),
    (Walk.BULK_COLUMNS, "workspace"): Shape((2 << 20, 7), (0,)),
    (Walk.BULK_COLUMNS, "clusters and workspace"): Shape((5000, 9001), (0,), torch.int64),
}

# Of more than 2^31 elements of 8 bits, by regime, and the walk that they take.
HUGE = {
    "few rows": (Shape((2, (1 << 30) + 5), (1,), torch.int8), Walk.WHOLE_ROWS),
    "long rows": (Shape((30_000, 71_583), (1,), torch.int8), Walk.WHOLE_ROWS),
    "whole rows": (Shape((300_000, 7159), (1,), torch.int8), Walk.WHOLE_ROWS),
    "short whole rows": (Shape((67_200_000, 32), (1,), torch.int8), Walk.WHOLE_ROWS),
    "rows with a step": (Shape((1 << 14, 140_001), (1,), torch.int8, step=2), Walk.ROWS),
    "rows over two dims": (Shape((7, 3, 102_261_127), (0, 2), torch.int8), Walk.WHOLE_ROWS),
    "many runs of rows": (Shape((480_000, 3, 1501), (0, 2), torch.int8), Walk.ROWS),
    "rows of two dims, swapped": (
        Shape((3000, 10, 71_583), (0, 1), torch.int8, order=(2, 1, 0)),
        Walk.WHOLE_ROWS,
    ),
    "short rows": (Shape((65_100_000, 33), (1,), torch.int8), Walk.BOXES),
    "small groups": (Shape((4_300_000, 17, 31), (1,), torch.int8), Walk.GATHER),  # in slices
    "whole columns": (Shape((4, 540_000_000), (0,), torch.int8), Walk.WHOLE_COLUMNS),
    "columns": (Shape((16, 32_768, 4099), (1,), torch.int8), Walk.BULK_COLUMNS),
    "two tall columns": (Shape(((1 << 31) + 16, 2), (0,), torch.int8), Walk.BULK_COLUMNS),
    "short columns": (Shape((130, 16_519_200), (0,), torch.int8), Walk.COLUMNS),
    "columns over two dims": (Shape((1291, 2, 1664, 500), (0, 2), torch.int8), Walk.COLUMNS),
    "columns with a step": (Shape((46_341, 46_342), (0,), torch.int8, step=2), Walk.COLUMNS),
}

# REDUCEOPS_CUDA_TUNING that sends small inputs where the plan sends large ones, whatever else would
# be cheaper for them.
TUNINGS = {
    "before Hopper": "margin=0,small_elements=0,bulk=0",
    "whole rows": "margin=0,small_elements=0,bulk=0,whole_row_bytes=0",
    "in parts": "margin=0,small_elements=0,whole_rows=0,whole_column=0,bulk=0",
    "batches": "margin=0,small_elements=0,whole_row_bytes=0,whole_vectors=0",
    "bulk copies": "margin=0,small_elements=0,whole_rows=0,whole_column=0,bulk_bytes=0,"
    "short_row_bytes=64",
    "short stages": "margin=0,small_elements=0,whole_rows=0,whole_column=0,bulk_bytes=0,"
    "stage_bytes=256,tile_bytes=256,segment_bytes=128,least_segment_bytes=16,split_segment_bytes=16,"
    "short_row_bytes=0",
    "tiles of groups": "margin=0,small_elements=0,whole_rows=0,whole_column=0,bulk_bytes=0,"
    "short_row_bytes=4096,small_group_bytes=49152,small_tile_bytes=8192,part_loads=64",
    "folded columns": "fold=1000000,fold_bytes=0,small_elements=0,bulk_bytes=0",
    "held as if many": "small_elements=0,held_threads=0,held_row_bytes=0",
    "tiles of any layout": "walk=9,small_elements=0,bulk_bytes=0",
    "gathered": "walk=10,small_elements=0",
    "gathered by large tiles": "walk=10,small_elements=0,tile_rounds=0",
    "gathered by few threads": "walk=10,small_elements=0,share_threads=2",
    "gathered by results": "walk=10,small_elements=0,gather_tiles=0",
    "gathered as if many": "walk=10,small_elements=0,gather_tiles=0,gather_few=0",
}


def constants(tuning: str) -> dict[str, int]:
    pairs = (item.split("=") for item in tuning.split(",") if item)
    return {name: int(value) for name, value in pairs}


# Under one of TUNINGS, or none, each branch is reached by one of these.
SMALL = (
    Shape((33,), (0,)),
    Shape((3, 5, 1100), (0, 2)),
    Shape((3, 5, 50, 100), (0, 2, 3), order=(0, 1, 3, 2)),
    Shape((5, 3), (1,), torch.float64),
    Shape((3, 64), (1,), torch.int8),
    Shape((7, 100), (1,), torch.bfloat16),
    Shape((7, 200), (1,), torch.int8),
    Shape((100, 257), (1,)),
    Shape((2, 4096), (1,), torch.float64),
    Shape((20_001,), (0,), torch.float64),
    Shape((17, 5), (0, 1), torch.int8, order=(1, 0)),
    Shape((4096, 3), (0, 1), torch.int8, order=(1, 0)),
    Shape((1024, 2), (0, 1), torch.int8, order=(1, 0)),
    Shape((33, 8), (0, 1), torch.int8, order=(1, 0)),
    Shape((40, 8), (1,)),
    Shape((33, 7), (1,), torch.int8),
    Shape((45, 21), (1,), torch.bfloat16),
    Shape((2, 3, 2), (1,), torch.int8),
    Shape((5, 7, 33), (1,), torch.bfloat16),
    Shape((2, 8), (0,), torch.bfloat16),
    Shape((17, 2, 8), (0,), order=(0, 2, 1)),
    Shape((90, 4), (1,)),
    Shape((2, 100, 40), (0,), order=(1, 2, 0)),
    Shape((2, 20, 40), (0,), torch.bfloat16, order=(1, 2, 0)),
    Shape((3, 40, 20), (0,), order=(2, 1, 0)),
    Shape((4, 40, 45), (0,), order=(2, 1, 0)),
    Shape((5, 3, 7, 30, 9), (1,), order=(4, 0, 2, 1, 3)),
    Shape((6, 2, 5, 300), (1, 3)),
    Shape((3, 5, 1000), (0, 2), torch.bfloat16, step=2),
    Shape((500, 3), (1,)),
    Shape((500, 5), (1,)),
    Shape((500, 6), (1,), torch.float64),
    Shape((500, 7), (1,)),
    Shape((500, 11), (1,)),
    Shape((500, 15), (1,)),
    Shape((500, 20), (1,)),
    Shape((500, 9), (1,), gap=40),
    Shape((500, 9), (1,), torch.int8, gap=40),
    Shape((5, 30, 20), (0,), torch.int8, order=(2, 1, 0)),
    Shape((9, 30, 20), (0,), torch.bfloat16, order=(2, 1, 0)),
    Shape((25, 30, 20), (0,), torch.bfloat16, order=(2, 1, 0)),
    Shape((500, 3, 7), (1, 2), gap=1),
    Shape((500, 3, 5), (1, 2), torch.int8, order=(0, 2, 1)),
    Shape((500, 9), (1,), torch.bfloat16, step=3),
    Shape((40, 1), (1,), torch.float64),
    Shape((30, 7, 1), (2,), torch.int8, order=(1, 0, 2)),
    Shape((30, 1), (1,), repeated=(0,)),
    Shape((9, 300, 40), (2,), repeated=(1,)),
    Shape((300, 5, 40, 3), (2,), torch.bfloat16, repeated=(0, 3)),
    Shape((300, 5, 12, 3), (2,), torch.bfloat16, repeated=(3,)),
    Shape((40, 3, 5, 2), (3,), order=(3, 2, 1, 0)),  # a tile goes across two dims
    Shape((31, 5, 2), (0,), torch.bfloat16, step=2),
    Shape((500, 3, 8), (0,), torch.bfloat16, step=2),
    Shape((5, 3, 8), (0, 2), torch.bfloat16, order=(2, 0, 1)),
    Shape((2, 257), (0,), torch.int8),
    Shape((2, 1028), (0,), torch.bfloat16),
    Shape((7, 3, 12), (1,), torch.float64),
    Shape((5, 4, 20), (1,), torch.int8),
    Shape((6, 36), (0,)),
    Shape((3, 7, 100), (1,)),
    Shape((64, 257, 8), (0,), torch.int8),
    Shape((17, 3, 1000), (0,)),
    Shape((257, 62), (0,), torch.float64),
    Shape((3, 64, 1001), (1,), torch.bfloat16),
    Shape((64, 100, 100), (0,), torch.float64),
    Shape((100, 5, 257), (0,)),
    Shape((2, 64, 8190), (1,), torch.int8),
    Shape((5, 64, 527), (1,), torch.bfloat16),
    Shape((2, 30_001), (0,), torch.bfloat16),
    Shape((2, 540_000), (0,), torch.int8),
    Shape((264, 3, 5761), (1,), torch.int8),  # its last subtile is not a whole one
    Shape((300, 4095), (0,), torch.bfloat16),
    Shape((300, 4, 70), (0, 1), order=(1, 0, 2)),
    Shape((300, 3, 16), (0, 2)),  # aligned runs
    Shape((300, 4095), (0,), torch.float64),
    Shape((64, 400, 3), (0, 2), torch.int8),  # reduced dims on either side of the kept one
    Shape((20, 33, 60, 5), (0, 1, 3), torch.float64, order=(1, 0, 2, 3)),
    Shape((30_000, 3), (0,), torch.int8),  # narrow columns
    Shape((7, 2, 9000, 3), (0, 2), torch.bfloat16),
    Shape((64, 100, 8), (1,), torch.int8),
    Shape((2, 600, 40), (1,), torch.bfloat16),
    Shape((3, 33_000), (1,)),
    Shape((140, 16_501), (1,), torch.bfloat16),
)


def branches(shape: Shape, plan: CudaPlan) -> set[tuple]:
    """What the kernel of the plan does, as the kernel's code distinguishes it."""
    walk = plan.walk
    found = {(walk, parts(plan))}
    if plan.partial_results > 1:
        found.add(("candidates", "packed" if plan.candidate_bytes == 8 else "not packed"))
    if plan.folded > 1:
        found.add(("folded", "parts" if plan.parts > plan.cluster else "one part"))
    if walk == Walk.SMALL:
        lanes = {1: "a lane", 32: "a warp", 64: "warps", plan.threads: "a block"}
        found.add((walk, lanes.get(plan.lanes, "lanes")))
    elif walk not in (Walk.WHOLE_COLUMNS, Walk.BOXES, Walk.TILES, Walk.FILL, Walk.GATHER):
        found.add((walk, "vector" if plan.vector else "no vector"))
    if walk == Walk.WHOLE_ROWS:
        lanes = {1: "a lane", 32: "a warp"}
        some = "warps" if plan.lanes > 32 else "lanes"
        if plan.batches:
            found.add((walk, "a batch" if plan.batches == 1 else "batches"))
        else:
            found.add((walk, lanes.get(plan.lanes, some) + " to a row"))
            found.add((walk, f"{plan.loads} loads"))
        if plan.mapped:
            found.add((walk, "mapped batches" if plan.batches else "mapped"))
        if plan.folded > 1:
            found.add((walk, "mapped and folded" if plan.mapped else "folded"))
    elif walk == Walk.ROWS:
        lanes = {1: "a lane", 32: "a warp", plan.threads: "a block"}
        found.add((walk, lanes.get(plan.lanes, "lanes") + " to a row"))
        if plan.flat and plan.vector:
            found.add((walk, "packs anywhere" if plan.realigned else "packs"))
        found.add((walk, "a run" if plan.runs == 1 else "runs"))
    elif walk == Walk.WHOLE_COLUMNS:
        extent = shape.empty().size(shape.dims[0])
        found.add((walk, f"{extent + extent % 2 if extent > 4 else extent} rows"))
    elif walk == Walk.BOXES:
        scanned = "a lane to a row" if plan.lanes == 1 else "lanes to a row"
        reading = {-3: "scattered", -2: "elements", -1: "columns", 0: scanned}
        found.add((walk, reading.get(plan.reading, f"{plan.reading} vectors held")))
        found.add((walk, "pieces" if plan.pieces else "a span"))
    elif walk in (Walk.COLUMNS, Walk.BULK_COLUMNS):
        found.add((walk, "alone" if plan.shares == 1 else "shared"))
        if plan.shifted:
            found.add((walk, "shifted"))
    elif walk == Walk.TILES:
        reading = {-2: "scattered", -1: "slots"}
        found.add((walk, reading.get(plan.reading, f"{plan.reading} vectors held")))
        found.add((walk, "a lane" if plan.lanes == 1 else "lanes"))
    elif walk == Walk.GATHER:
        extent = shape.empty().size(shape.dims[0])
        packs = "packs anywhere" if plan.realigned else "packs"
        found.add((walk, packs if plan.packed else "row" if plan.row_loads else "elements"))
        known = 4 if plan.cross_side or shape.dtype.itemsize < 4 else 8
        rows = f"{extent} rows" if extent <= known else "rows"
        found.add((walk, f"{rows} of a tile" if plan.cross_side else rows))
        if not plan.copied and plan.inner_lanes < plan.inner_side:
            found.add((walk, "a side between others"))
        if plan.cross_side:
            further = "across" if plan.cross_side > plan.cross_lanes else "along memory"
            found.add((walk, f"units {further}"))
            found.add((walk, f"{plan.units} units of a tile"))
        found |= {(walk, "copies across a tile")} if plan.copied else set()
        if plan.shares > 1:
            found.add((walk, "shared packs" if plan.packed else "shared elements"))
            in_warp = plan.threads < 32 * plan.shares
            found.add((walk, "lanes of a warp share" if in_warp else "warps share"))
            width = 4 // shape.dtype.itemsize if plan.packed else 1
            found |= {(walk, "fewer shares than a pack has")} if plan.shares < width else set()
            found |= {(walk, "512 threads")} if plan.threads == 512 else set()
    one_span = {
        Walk.BULK_COLUMNS: plan.contiguous,
        Walk.TILES: plan.outer_rows == 1,
    }
    if walk in one_span:
        found.add((walk, "one span" if one_span[walk] else "a span to a row"))
    if walk == Walk.BULK_COLUMNS:
        found |= {(walk, "subtiles")} if plan.tile > plan.subtile else set()
        found |= {(walk, "mapped")} if plan.mapped else set()
    return found


BRANCHES = {
    Walk.SMALL: ("a lane", "lanes", "a warp", "warps", "a block"),
    Walk.ROWS: ("vector", "no vector", "a lane to a row", "lanes to a row", "a warp to a row")
    + ("a block to a row", "a run", "runs", "packs", "packs anywhere"),
    Walk.WHOLE_ROWS: ("vector", "no vector", "a lane to a row", "lanes to a row", "a warp to a row")
    + ("warps to a row", "1 loads", "2 loads", "3 loads", "4 loads", "a batch", "batches")
    + ("mapped", "mapped batches", "folded", "mapped and folded"),
    Walk.WHOLE_COLUMNS: ("2 rows", "3 rows", "4 rows", "6 rows", "8 rows"),
    Walk.COLUMNS: ("vector", "no vector", "shifted", "alone", "shared"),
    Walk.BOXES: (
        "1 vectors held",
        "2 vectors held",
        "3 vectors held",
        "4 vectors held",
        "a lane to a row",
        "lanes to a row",
        "columns",
        "elements",
        "scattered",
        "a span",
        "pieces",
    ),
    Walk.GATHER: ("packs", "packs anywhere", "row", "elements", "2 rows", "3 rows", "4 rows")
    + ("5 rows", "6 rows", "7 rows", "8 rows", "rows")
    + ("2 rows of a tile", "3 rows of a tile", "4 rows of a tile", "rows of a tile")
    + ("units across", "units along memory", "4 units of a tile", "8 units of a tile")
    + ("12 units of a tile", "16 units of a tile")
    + ("a side between others", "copies across a tile", "shared packs", "shared elements")
    + ("lanes of a warp share", "warps share", "fewer shares than a pack has", "512 threads"),
    Walk.TILES: ("1 vectors held", "2 vectors held", "4 vectors held", "slots", "scattered")
    + ("a lane", "lanes", "one span", "a span to a row"),
    Walk.BULK_COLUMNS: ("vector", "no vector", "alone", "shared", "one span", "a span to a row")
    + ("subtiles", "mapped"),
}
ALL_BRANCHES = {(walk, branch) for walk, names in BRANCHES.items() for branch in names} | set(WALKS)
ALL_BRANCHES |= {("candidates", "packed"), ("candidates", "not packed")}
ALL_BRANCHES |= {("folded", "parts"), ("folded", "one part")}
