"""Writes what README.md and docs/ show of measurements, from the JSON beside them.

Between `<!-- data: table FILE... -->` and `<!-- end -->` a document holds what the function of that
name makes of the files. A picture that a document shows is drawn from the JSON beside it, by
customops.bench, and ends with the hash of that JSON. `--check` changes nothing and fails where a
document or a hash differs.
"""

import argparse
import hashlib
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(<!-- data: (\w+) (\S+(?: \S+)*) -->\n).*?(<!-- end -->)", re.S)
H200, CPU = "h200/sweep.json", "cpu/sweep.json"
# What README.md shows: (file, case, what it is).
FIVE = (
    (H200, "argmin (128, 4096, 4095) dim=1 float32", "8.6 GB over dim 1"),
    (H200, "argmax (64, 151936) dim=-1 float32", "greedy tokens"),
    (H200, "argmax (8, 150, 512, 512) dim=1 float32 channels_last", "classes of pixels"),
    (CPU, "argmax (1, 19, 1024, 2048) dim=1 float32", "classes of pixels"),
    (CPU, "argmax (64, 151936) dim=-1 bfloat16", "greedy tokens"),
)
# What speed.svg shows, of h200/sweep.json.
SHOWN = (
    "argmin (128, 4096, 4095) dim=1 float32",
    "argmax (64, 4096, 4095) dim=1 int8",
    "argmax (64, 151936) dim=-1 float32",
    "argmax (8, 150, 512, 512) dim=1 float32 channels_last",
    "argmin (4194304, 32) dim=-1 float32",
    "scale_min (64, 128, 254, 254) dim=1 float32",
)
SPEED = DOCS / "speed.svg"
ON = {H200: "H200", CPU: "CPU, 2 cores"}


def load(file: str) -> dict:
    run = json.loads((DOCS / file).read_text())
    if why := run.get("machine", {}).get("convolutions_not_fused"):
        sys.exit(f"{file} is not of a library as users get it: {why}")
    return run


def find(file: str, name: str) -> dict:
    """The case of that name; with all threads, where there are several."""
    return next(case for case in load(file)["cases"] if case["name"] == name)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def microseconds(contender: dict | None) -> str:
    """Three digits; † for a wrong result, ‡ for one that says less, – where there is no figure."""
    if not contender or contender.get("seconds") is None:
        return "–"
    value = contender["seconds"] * 1e6
    text = f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"
    return text + {True: "", False: "†", None: "‡"}[contender.get("right", True)]


def share(contender: dict) -> str:
    value = contender.get("share")
    return "–" if value is None or value < 0.01 else f"{value:.2f}"


def conditions(file: str) -> str:
    """Where, when and by which command a file was made."""
    run = load(file)
    versions = {name: version for name, version in run["versions"].items() if version}
    of = ", ".join(f"{name} {version}" for name, version in versions.items())
    machine = run["machine"]
    cores = f"{machine['cores']} core{'s' * (machine['cores'] > 1)}"
    machine = machine.get("gpu") or f"{machine['cpu']}, {cores}"
    if "ranks" in run:
        machine = f"{run['ranks']} × {machine}, {run['backend']}, {run['dtype']}"
    bandwidth = run.get("read_bytes_per_second")
    lines = [f"{machine}, {run['date']}."]
    if bandwidth:
        lines.append(f"Read bandwidth measured in the same run: {bandwidth / 1e12:.2f} TB/s.")
    command = textwrap.wrap(run["command"], 90, break_on_hyphens=False)
    command = " \\\n        ".join(command)
    versions = textwrap.fill(f"Versions: {of}.", 99)
    return "\n".join([*lines, "", f"    {command}", "", versions, ""])


def sweep(file: str) -> str:
    """Every case of a file: µs of each contender, and the share of the limit that ours reaches."""
    cases = load(file)["cases"]
    names = list(dict.fromkeys(name for case in cases for name in case["contenders"]))
    has_threads = any(case["threads"] for case in cases)
    rows = []
    for case in cases:
        of = case["contenders"]
        threads = [str(case["threads"])] if has_threads else []
        figures = (microseconds(of.get(name)) for name in names)
        rows.append([case["name"], *threads, *figures, share(of.get("ours", {}))])
    return table(["case", *["threads"] * has_threads, *names, "share"], rows)


def summary(file: str) -> str:
    """How ours stands beside the others, over all inputs and over large ones."""
    rows = []
    for line in load(file)["summary"]:
        inputs = line["inputs"] + (f", {line['threads']} threads" if line["threads"] else "")
        ratios = (f"{line['torch_ratio']:.2f}", f"{line['best_peer_ratio']:.2f}")
        slower = str(len(line["slower_than_a_peer"]))
        rows.append([inputs, str(line["cases"]), *ratios, slower])
    return table(["inputs", "cases", "× torch", "× the best peer", "slower than a peer"], rows)


def model(*files: str) -> str:
    """The whole model: milliseconds and MiB at the peak, torch → ours."""
    runs = [load(file) for file in files]
    head = ["pass", *("channels_last" if run["channels_last"] else "contiguous" for run in runs)]
    rows = []
    for cases in zip(*(run["cases"] for run in runs), strict=True):
        row = [f"{cases[0]['pass']}, {cases[0]['mode']}"]
        for case in cases:
            torch, ours = case["torch"], case["ours"]
            times = (f"{of['seconds'] * 1e3:.3g}" for of in (torch, ours))
            peaks = (f"{of['peak_bytes'] / 2**20:.0f}" for of in (torch, ours))
            row.append(f"{' → '.join(times)} ms, {' → '.join(peaks)} MiB")
        rows.append(row)
    return table(head, rows)


def fused(file: str) -> str:
    """A convolution and its smallest channel: µs of each contender."""
    cases = load(file)["cases"]
    names = list(dict.fromkeys(name for case in cases for name in case["contenders"]))
    rows = (
        [case["name"], *(microseconds(case["contenders"].get(name)) for name in names)]
        for case in cases
    )
    return table(["case", *names], rows)


def kernelbench(file: str) -> str:
    """What KernelBench's harness says: ms of ours and of torch's model, eager and compiled."""
    run = load(file)
    rows = []
    for case in run["cases"]:
        name = f"{case['level'].replace('level', 'level ')}: {case['name']}"
        verdict = f"yes {case['trials']}" if case["accepted"] else "NO"
        times = (f"{seconds * 1e3:.3g}" for seconds in case["seconds"].values())
        rows.append([name, verdict, *times])
    names = [f"{name}, ms" for name in run["cases"][0]["seconds"]]
    return table(["problem", "accepted", *names], rows)


def ranks(file: str) -> str:
    """Several GPUs: µs for rows of 151 936 logits, and the bytes that a rank receives."""
    cases = [case for case in load(file)["cases"] if case["vocabulary"] == 151936]
    names = list(dict.fromkeys(name for case in cases for name in case["contenders"]))
    rows = []
    for case in cases:
        of = case["contenders"]
        wires = (of[name].get("wire_bytes") for name in ("ours", "all-gather + torch"))
        received = " / ".join("–" if wire is None else f"{wire:,}" for wire in wires)
        figures = (microseconds(of.get(name)) for name in names)
        rows.append([case["mode"], str(case["batch"]), *figures, received])
    return table(["mode", "batch", *names, "bytes received, ours / all-gather"], rows)


def quantiles(file: str) -> str:
    """How the best peer's time and the limit stand to ours, and how often ours is wrong."""
    run = load(file)
    summary = run["summary"]
    shown = ("0", "0.01", "0.05", "0.1", "0.5", "0.9")
    names = {"best_peer_ratio": "the best peer / ours", "limit_ratio": "limit / ours"}
    rows = []
    for key, name in names.items():
        of = summary[key]
        figures = (f"{of['quantiles'][q]:.2f}" for q in shown)
        rows.append([name, str(of["cases"]), *figures, str(of["below"]["0.9"])])
    head = ["", "cases", "least", "1 %", "5 %", "10 %", "median", "90 %", "below 0.9"]
    ours = [case["contenders"]["ours"] for case in run["cases"] if case["contenders"]]
    wrong = sum(not figures.get("right") for figures in ours)
    return table(head, rows) + f"\nOurs is wrong in {wrong} of these cases.\n"


def compiled(file: str) -> str:
    """Compiled graphs: µs with ours and with torch's reductions, and what the choice was."""
    rows = []
    for case in load(file)["cases"]:
        ours, torch = (case["contenders"].get(name) for name in ("ours", "compile"))
        chosen = "; ".join(dict.fromkeys(re.findall(r"-> (loop|kernel)", " ".join(case["chosen"]))))
        ratio = case.get("compile_ratio")
        ratio = f"{ratio:.2f}" if ratio else "–"
        rows.append([case["name"], microseconds(ours), microseconds(torch), ratio, chosen])
    return table(["producer -> reduction", "ours", "torch", "torch / ours", "a"], rows)


def producers(file: str) -> str:
    """Compiled graphs: torch's time over ours, for each producer and three reductions."""
    cases = {case["name"]: case.get("compile_ratio") for case in load(file)["cases"]}
    ends = ("argmax", "max", "scale_min")
    names = dict.fromkeys(name.partition(" -> ")[0] for name in cases)
    rows = []
    for name in names:
        ratios = [cases.get(f"{name} -> {end}") for end in ends]
        if all(ratios):
            rows.append([name, *(f"{ratio:.2f}" for ratio in ratios)])
    text = table(["producer, then", *ends], rows)
    for what, wanted in (("that want a position", False), ("of `scale_min`", True)):
        of = [ratio for name, ratio in cases.items() if ratio and ("scale_" in name) == wanted]
        mean = math.exp(sum(map(math.log, of)) / len(of))
        text += (
            f"\nAll {len(of)} cases {what}: geometric mean {mean:.2f}, smallest {min(of):.2f}.\n"
        )
    return text


def five(*files: str) -> str:
    """The figures of README.md."""
    said = []
    for file in files[:-1]:
        said.append(textwrap.fill(f"{ON[file]} ({where(load(file))}):", 99) + "\n")
        for name, what in ((name, what) for of, name, what in FIVE if of == file):
            contenders, best = (case := find(file, name))["contenders"], case["best_peer"]
            ours = contenders["ours"]
            # Eager torch is not always the fastest that one can write.
            others = ", ".join(
                f"{'eager torch' if peer == 'torch' else peer} {microseconds(contenders[peer])}"
                f" ({contenders[peer]['seconds'] / ours['seconds']:.1f} ×)"
                for peer in dict.fromkeys(("torch", best))
            )
            line = f"- {what}, `{name}`: **{microseconds(ours)} µs**, {share(ours)} of the limit; "
            said += textwrap.wrap(line + others, 99, subsequent_indent="  ", break_on_hyphens=False)
        said.append("")
    return "\n".join(said) + f"\n{kernelbench_says(files[-1])}"


def where(run: dict) -> str:
    """The conditions of a file in a line."""
    machine = run["machine"]
    versions = (f"{name} {run['versions'][name]}" for name in ("torch", "customops"))
    processor = machine.get("gpu") or f"{machine['cpu']}, {machine['cpu_kernels']}"
    return f"{processor}, {', '.join(versions)}, {run['date']}"


def kernelbench_says(file: str) -> str:
    """What KernelBench's harness says of one model, in a sentence."""
    run = load(file)
    (case,) = run["cases"]
    times = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in case["seconds"].items())
    trials = case["trials"].strip("()")
    verdict = f"accepted in {trials} trials" if case["accepted"] else "not accepted"
    tf32 = "with TF32" if run["tf32"] else "without TF32"
    problem = f"`{case['name']}` of {case['level'].replace('level', 'level ')}"
    said = (
        "The forward pass of a whole model, whose parameters need gradients, by KernelBench's "
        f"harness: {problem}, {tf32}: {times}; "
    )
    return textwrap.fill(f"{said}{verdict}. {where(run)}.", 99) + "\n"


def correctness(file: str) -> str:
    """What torch.compile gives for the programs of tests/corpus.py, a section for each torch and
    device."""
    parts = []
    for run in load(file)["environments"]:
        rows, wrong = [], {"torch": 0, "ours": 0}
        for case in run["cases"]:
            links = ", ".join(
                f"[#{number}](https://github.com/pytorch/pytorch/issues/{number})"
                for number in re.findall(r"\d+", case["issue"])
            )
            for who in wrong:
                wrong[who] += case[who] != "right"
            verdicts = ("right" if case[who] == "right" else f"**{case[who]}**" for who in wrong)
            inputs = "the report's" if case["reported"] else "ours"
            rows.append([links, case["what"], inputs, *verdicts])
        count = f"torch {wrong['torch']} of {len(rows)}, customops {wrong['ours']}"
        head = ("issue", "what", "input", "torch, compiled", "customops, compiled")
        parts.append(
            f"## torch {run['torch']}, {run['device']}\n\n"
            f"{run['date']}. Not right: {count}.\n\n{table(head, rows)}"
        )
    return "\n".join(parts)


TABLES = {
    made.__name__: made
    for made in (
        *(conditions, sweep, summary, model, ranks, quantiles, compiled, producers, five),
        *(fused, kernelbench, correctness),
    )
}


def speed() -> str:
    """Bars: how many times as fast as eager torch, ours and torch.compile."""
    width, left, unit, row = 860, 400, 24, 46
    height = row * len(SHOWN) + 62
    texts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="10" y="22" font-size="15">Times as fast as eager torch on an NVIDIA H200 '
        "(longer is better; the line is torch)</text>",
    ]
    for i, name in enumerate(SHOWN):
        of, top = find("h200/sweep.json", name)["contenders"], 40 + i * row
        texts.append(f'<text x="{left - 8}" y="{top + 20}" text-anchor="end">{name}</text>')
        for j, (contender, color) in enumerate((("ours", "#2563eb"), ("compile", "#9ca3af"))):
            ratio = of["torch"]["seconds"] / of[contender]["seconds"]
            right = of[contender]["right"]
            color = color if right else "none"
            length, y = ratio * unit, top + 18 * j
            label = {"ours": "customops", "compile": "torch.compile"}[contender]
            texts.append(
                f'<rect x="{left}" y="{y}" width="{length:.1f}" height="15" fill="{color}" '
                'stroke="#9ca3af" stroke-width="0.5"/>'
                f'<text x="{left + length + 5:.1f}" y="{y + 12}" font-size="11">'
                f"{ratio:.1f} {label}{'' if right else ': wrong indices'}</text>"
            )
    bottom = 40 + row * len(SHOWN)
    texts.append(
        f'<line x1="{left + unit}" y1="34" x2="{left + unit}" y2="{bottom}" stroke="black"/>'
        f'<text x="{left + unit}" y="{bottom + 14}" text-anchor="middle" font-size="11">1</text>'
    )
    return "\n".join([*texts, "</svg>\n"])


def draw(path: Path) -> None:
    """The picture that customops.bench draws of a JSON file, with the same name but .svg."""
    import matplotlib

    from customops.bench import distributed, plot, report

    os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in it
    matplotlib.rcParams.update({"svg.hashsalt": path.stem, "svg.fonttype": "none"})
    figures = json.loads(path.with_suffix(".json").read_text())
    title = report.where(figures)
    if path.stem == "distributed":
        distributed.plot(str(path), figures["cases"], title)
    else:
        plot.write(str(path), figures["cases"], path.stem, title)
    lines = (line.rstrip() for line in path.read_text().splitlines())
    path.write_text("\n".join([*lines, stamp(path), ""]))


def stamp(picture: Path) -> str:
    """What a picture ends with."""
    data = picture.with_suffix(".json").read_bytes()
    return f"<!-- drawn from the JSON of sha256 {hashlib.sha256(data).hexdigest()} -->"


def documents() -> dict[Path, str]:
    """Every document as it should be, and the picture of README.md."""
    paths = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

    def fill(match: re.Match) -> str:
        begin, name, files, end = match.groups()
        return begin + "\n" + TABLES[name](*files.split()) + "\n" + end

    return {path: BLOCK.sub(fill, path.read_text()) for path in paths} | {SPEED: speed()}


def pictures() -> list[Path]:
    """Those that documents show, and other programs draw."""
    shown = (
        (path.parent / name).resolve()
        for path in DOCS.rglob("*.md")
        for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", path.read_text())
    )
    return sorted(set(shown) - {SPEED})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    differing = []
    for path, text in documents().items():
        if not path.exists() or path.read_text() != text:
            differing.append(path)
            if not check:
                path.write_text(text)
    for path in pictures():
        if not path.exists() or not path.read_text(errors="replace").rstrip().endswith(stamp(path)):
            differing.append(path)
            if not check:
                draw(path)
    for path in differing:
        print(f"{path.relative_to(ROOT)}: {'differs from its data' if check else 'written'}")
    return int(check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
