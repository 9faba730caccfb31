"""The plots: shares of the limit, times of calls, or times against sizes. Needs matplotlib."""

import math
from collections.abc import Callable

from .peers import OPERATOR, OURS
from .report import on_threads

MOST_ROWS = 30


def write(path: str, rows: list[dict], suite: str, title: str) -> None:
    """A picture of the rows in which ours was measured: PNG or SVG, as the name ends."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if "seconds" in row["contenders"].get(OURS, {})]
    figure = Figure(layout="constrained")
    if suite == "scaling":
        _draw_scaling(figure, rows)
    elif suite == "latency" or any("share" not in row["contenders"][OURS] for row in rows):
        _draw_bars(
            figure,
            rows,
            lambda figures: figures["seconds"] * 1e6,
            "µs for a call (shorter is better)",
        )
    else:
        label = (
            "share of what the memory bandwidth allows (longer is better; the line is all of it)"
        )
        _draw_bars(figure, rows, lambda figures: figures["share"], label, longest=1.5)
        for axes in figure.axes:
            axes.axvline(1, color="black", linewidth=0.8)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _draw_bars(
    figure,
    rows: list[dict],
    value: Callable[[dict], float],
    label: str,
    longest: float = math.inf,
) -> None:
    """Two bars for each row, cut at `longest`: ours and the fastest peer whose result is right. A
    panel for each number of threads."""
    panels: dict[int | None, list[dict]] = {}
    for row in rows:
        panels.setdefault(row["threads"], []).append(row)
    panels = {threads: _that_matter(of) for threads, of in panels.items()} or {None: []}
    figure.set_size_inches(11 * len(panels), 1.8 + 0.34 * max(map(len, panels.values())))
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, of_panel in zip(all_axes, panels.values(), strict=True):
        _draw_panel(axes, of_panel, value, label, longest)


def _that_matter(rows: list[dict]) -> list[dict]:
    """As many as can be read: where ours is the least ahead of the best peer."""
    worst = sorted(rows, key=lambda row: row["best_peer_ratio"] or math.inf)[:MOST_ROWS]
    return [row for row in rows if row in worst]


def _draw_panel(
    axes, rows: list[dict], value: Callable[[dict], float], label: str, longest: float
) -> None:
    def cut(lengths: list[float]) -> list[float]:
        return [min(length, longest) for length in lengths]

    ours = [value(row["contenders"][OURS]) for row in rows]
    bars = axes.barh([i - 0.19 for i in range(len(rows))], cut(ours), 0.36, label="ours")
    axes.bar_label(bars, [f"{length:.2f}" for length in ours], padding=3, fontsize=7)
    compared = {i: row["best_peer"] for i, row in enumerate(rows) if row["best_peer"]}
    best = [value(rows[i]["contenders"][name]) for i, name in compared.items()]
    places = [i + 0.19 for i in compared]
    bars = axes.barh(places, cut(best), 0.36, label="the fastest right peer")
    labels = [f"{length:.2f} {name}" for length, name in zip(best, compared.values(), strict=True)]
    axes.bar_label(bars, labels, padding=3, fontsize=7)
    axes.margins(x=0.12)  # for the labels
    names = [row["name"] + on_threads(row) for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(label)
    if len(rows) == MOST_ROWS:
        axes.set_title(f"the {MOST_ROWS} with the least lead", loc="left", fontsize=9)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)


def _draw_scaling(figure, rows: list[dict]) -> None:
    """A panel for each group of cases and number of threads, a line for each right contender."""
    panels: dict[str, list[dict]] = {}
    for row in rows:
        panels.setdefault(f"{row['op']}, {row['group']}{on_threads(row)}", []).append(row)
    names = dict.fromkeys(name for row in rows for name in row["contenders"] if name != OPERATOR)
    figure.set_size_inches(1 + 4.5 * len(panels), 5.5)
    all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    fastest = math.inf
    for axes, (title, of_panel) in zip(all_axes, panels.items(), strict=True):
        for name in names:
            found = [(row, row["contenders"].get(name, {})) for row in of_panel]
            measured = [row for row, of in found if of.get("right") and "seconds" in of]
            times = [row["contenders"][name]["seconds"] * 1e6 for row in measured]
            style = {"linewidth": 2.5, "zorder": 3} if name == OURS else {"linewidth": 1.2}
            axes.plot(_elements(measured), times, marker="o", markersize=3, label=name, **style)
            fastest = min([fastest, *times])
        limits = [row["limit_seconds"] * 1e6 for row in of_panel]
        axes.plot(_elements(of_panel), limits, "k--", linewidth=0.9, label="limit")
        axes.set(title=title, xlabel="elements", yscale="log")
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
    all_axes[0].set(ylabel="µs", ylim=(fastest / 2, None))  # the limit of tiny inputs says nothing
    all_axes[0].legend(frameon=False)


def _elements(rows: list[dict]) -> list[int]:
    return [math.prod(row["shape"]) for row in rows]
