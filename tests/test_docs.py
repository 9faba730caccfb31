"""README, the documents and the docstrings: their code runs, their figures are those of the data,
and their lines fit a screen."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest
import torch
from conftest import NEEDS

import customops

ROOT = Path(__file__).parent.parent
if not (ROOT / "docs").exists():
    pytest.skip("there are no documents beside the tests", allow_module_level=True)

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.S)
each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)

INSTALL = ROOT / "docs/install.md"
ELSEWHERE = {"export"}  # in test_onnx.py, for it needs onnxruntime and a compiler


def blocks(path, *languages):
    return [code for _, language, code in FENCED.findall(path.read_text()) if language in languages]


WITH_CODE = [path for path in DOCUMENTS if blocks(path, "python") and path.stem not in ELSEWHERE]


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.stem)
def test_python_runs(path, tmp_path, monkeypatch):
    if any("torch.compile" in code for code in blocks(path, "python")) and NEEDS["COMPILER"]:
        pytest.skip(NEEDS["COMPILER"])
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(path, "python"))
    try:
        exec(compile(code, path.name, "exec"), {"__name__": path.stem})
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert not customops.enabled()


@each_document
def test_commands_exist(path):
    """`make` knows its targets, and Python its modules."""
    rules = re.findall(r"^([\w./ -]+):", (ROOT / "Makefile").read_text(), re.M)
    targets = {target for rule in rules for target in rule.split()}
    for code in blocks(path, "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "make" in words:
                after = words[words.index("make") + 1 :]
                named = {word for word in after if "=" not in word}
                assert named <= targets, line
            for module in re.findall(r"python -m ([\w.]+)", line):
                assert importlib.util.find_spec(module), line


def example_call(name, dtype):
    """A call of the function with an input of the dtype."""
    if name.startswith("conv2d_"):
        x, weight = torch.zeros(1, 2, 2, 2, dtype=dtype), torch.zeros(1, 2, 1, 1, dtype=dtype)
        return getattr(customops, name)(x, weight, None, 2.0)
    scale = [2.0] * name.startswith("scale_")
    return getattr(customops, name)(torch.zeros(2, 2, dtype=dtype), *scale, dim=1)


def test_the_dtypes_that_are_listed_are_those_that_are_taken():
    text = (ROOT / "docs/using.md").read_text()
    rows = text.partition("| dtypes of the input |\n")[2].partition("\n\n")[0].splitlines()[1:]
    listed = {
        name: set(re.findall(r"\w+", row.split("|")[2]))
        for row in rows
        for name in re.findall(r"`(\w+)`", row)
    }
    public = inspect.getmembers(customops, inspect.isfunction)
    assert set(listed) == {
        name for name, of in public if "keepdim" in inspect.signature(of).parameters
    }
    dtypes = {one for one in vars(torch).values() if isinstance(one, torch.dtype)}
    for name, dtype in itertools.product(listed, dtypes):
        try:
            torch.zeros(1, dtype=dtype)
        except (RuntimeError, TypeError):  # of a dtype without zeros
            continue
        try:
            example_call(name, dtype)
            taken = True
        except RuntimeError:
            taken = False
        assert taken == (str(dtype).removeprefix("torch.") in listed[name]), (name, dtype)


@each_document
def test_who_runs_pytest_is_told_to_install_it(path):
    """`make build` does not bring it."""
    for code in blocks(path, "sh"):
        first = code.find("python -m pytest")
        assert first < 0 or ".venv/tools" in code[:first] or "REDUCEOPS_TEST" in code[:first], code


FOLDERS = [*(ROOT / name for name in ("csrc", "tests", "compile_examples", "docs"))]
FOLDERS.append(Path(customops.__file__).parent)
FILES = [f"/{path.as_posix()}" for folder in FOLDERS for path in folder.rglob("*.*")]


@each_document
def test_what_is_named_exists(path):
    """Files of the source, and names in the package."""
    if path.parent.name == "notes":  # of what is gone, too
        return
    text = FENCED.sub("", path.read_text())
    named = set(re.findall(r"`([\w./]+\.(?:h|cpp|cu|cuh|py))`", text))
    assert not [name for name in named if not any(file.endswith(f"/{name}") for file in FILES)]
    for name in set(re.findall(r"`(customops(?:\.\w+)+)", text)):
        pkgutil.resolve_name(name)


@each_document
def test_lines_fit(path):
    """Tables and pictures aside."""
    long = [
        (number, line)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100 and not line.lstrip().startswith(("|", "![", "<!--"))
    ]
    assert not long


def test_the_readme_takes_two_minutes():
    text = (ROOT / "README.md").read_text()
    prose = [line for line in FENCED.sub("", text).splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 700 and len(text.splitlines()) <= 110
    assert len(re.findall(r"^\|[-| ]+\|$", text, re.MULTILINE)) == 1  # that of operators


def links(path):
    targets = re.findall(r"\]\(([^)#\s]+)", path.read_text()) if path.suffix == ".md" else []
    return {(path.parent / target).resolve() for target in targets if ":" not in target}


def test_every_document_is_two_links_away():
    first = links(ROOT.resolve() / "README.md")
    found = first.union(*map(links, first))
    assert not [path for path in found if not path.exists()]
    known = {ROOT / "README.md", *found}
    assert not [path for path in DOCUMENTS if path not in known]


def test_every_file_of_tests_is_named():
    """Beside the promise that it looks after, or below."""
    text = (ROOT / "docs/testing.md").read_text()
    rows = text.partition("| Promise |")[2].partition("\n\n")[0].splitlines()[2:]
    named = {name.split()[0] for row in rows for name in row.split("|")[2].split(",")}
    files = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert named - {"all", "with"} <= files <= named | {*re.findall(r"`(\w+)`", text)}


def test_the_defaults_of_long_tests_are_those_of_the_tests():
    text = (ROOT / "docs/testing.md").read_text()
    for variable, files in {
        "REDUCEOPS_TEST_EXAMPLES": ("plan", "guard_pages", "cuda_on_cpu"),
        "REDUCEOPS_TEST_SECONDS": ("threads",),
    }.items():
        said = re.search(rf"^\| `{variable}` \| ([^|]+) \|", text, re.M)[1].replace(" ", "")
        sources = (Path(__file__).with_name(f"test_{file}.py").read_text() for file in files)
        defaults = [re.search(rf'"{variable}", "?([\d._]+)', source)[1] for source in sources]
        assert said == ";".join(defaults).replace("_", "")


def test_versions_are_those_of_the_package():
    """The lowest that it requires, and its own."""
    torch = "{}.{}".format(*customops.version.MIN_TORCH)
    python = re.search(r'requires-python = ">=(.+)"', (ROOT / "pyproject.toml").read_text())[1]
    for path, texts in {
        "README.md": (f"Python ≥ {python}, torch ≥ {torch}",),
        "docs/install.md": (
            f"every Python from {python} and every torch from {torch}:",
            f"customops-{customops.__version__}+cpu-py3-none-manylinux",
        ),
        "CHANGELOG.md": (f"first.\n\n## {customops.__version__}\n",),
        "docs/versioning.md": (f"| Python | {python} and", f"| torch | {torch} and"),
        ".github/workflows/ci.yml": (f'"{python}", torch: "torch=={torch}.0"',),
    }.items():
        assert not [text for text in texts if text not in (ROOT / path).read_text()], path


def test_the_classifiers_are_the_pythons_of_ci():
    ci = (ROOT / ".github/workflows/ci.yml").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert set(named) == set(re.findall(r'"(3\.\d+)"', ci))


def test_the_sizes_of_wheels_are_those_that_are_checked():
    said = re.findall(r"^\| `\+(c[pu])\w+` \|.*\| (\d+) kB \|$", INSTALL.read_text(), re.M)
    allowed = runpy.run_path(str(ROOT / ".ci/check_dist.py"))["MOST_BYTES"]
    assert {kind: int(size) * 1000 for kind, size in said} == {k[:2]: v for k, v in allowed.items()}


def test_figures_are_those_of_the_data():
    """If not: make docs-data."""
    command = [sys.executable, ROOT / ".ci/docs_data.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


IN_A_BLOCK = re.compile(r"<!-- data: .*?<!-- end -->", re.S)


def test_the_marks_of_results_are_those_of_the_benchmark():
    """A result that says less (null in JSON) is not a wrong one."""
    microseconds = runpy.run_path(str(ROOT / ".ci/docs_data.py"))["microseconds"]
    shown = {
        right: microseconds({"seconds": 1e-6, "right": right}) for right in (True, False, None)
    }
    assert shown == {True: "1", False: "1†", None: "1‡"}


@each_document
def test_every_mark_in_a_table_is_explained(path):
    tables = "".join(IN_A_BLOCK.findall(path.read_text()))
    text = IN_A_BLOCK.sub("", path.read_text())
    assert not [mark for mark in "†‡" if mark in tables and mark not in text]


NUMBER = r"(?:\d|\b(?:half|twice|two|three|four|five|several times|a \w+(?:th|third|quarter)))"
MEASURED = re.compile(
    r"\b\d[\d.,]* ?(?:µs|us|ms|ns|s|TB/s|GB/s)\b|\d ?× (?:as|faster|slower)|\b\d+\.\d ×"
    r"|\b[01]\.\d\d\b(?! is as)|\d\.\d ?[MG]i?B\b"
    rf"|{NUMBER}(?: times)?(?: as (?:fast|long|slow)| (?:longer|faster|slower|dearer))\b"
)
BY_HAND = {"versioning"}  # numbers of other kinds


@each_document
def test_no_figure_is_written_by_hand(path):
    """Those of measurements come from JSON, or are in a dated note."""
    if path.parent.name == "notes" or path.stem in BY_HAND:
        return
    text = FENCED.sub("", IN_A_BLOCK.sub("", path.read_text()))
    text = re.sub(r"\s+", " ", re.sub(r"`[^`]*`", "", text))
    assert not [text[m.start() - 60 : m.end() + 20] for m in MEASURED.finditer(text)]


# The public API: what these modules export, and two names that a star-import leaves out.
MODULES = ("", ".distributed", ".inductor", ".onnx", ".plans")
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (importlib.import_module(f"customops{name}") for name in MODULES)
    for name in module.__all__
} | {f"customops.{name}": getattr(customops, name) for name in ("min", "max")}
FUNCTIONS = [name for name, thing in PUBLIC.items() if inspect.isfunction(thing)]


@pytest.fixture
def one_rank():
    dist = torch.distributed
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings(name, request):
    """They have what a reader looks for, and their examples run."""
    function = PUBLIC[name]
    text = inspect.getdoc(function)
    parts = ["Returns:", "Example:"]
    if function.__code__.co_argcount + function.__code__.co_kwonlyargcount:
        parts += ["Args:", "Raises:"]
    assert not [part for part in parts if f"\n{part}\n" not in text]
    arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
    returned = text.partition("Returns:\n")[2].splitlines()[0]
    assert ":" not in returned, "mkdocstrings takes what is before it for a type"
    missing = [n for n in inspect.signature(function).parameters if f"    {n}: " not in arguments]
    assert not set(missing) - {"options", "names"}, missing
    if missing and not name.endswith("explain"):
        assert "lso `axis`" in arguments and "also `keepdims`" in arguments
    if "torch.compile(" in text and NEEDS["COMPILER"]:
        pytest.skip(NEEDS["COMPILER"])
    if ".distributed" in name:
        request.getfixturevalue("one_rank")
    globs = {"torch": torch, "customops": customops}
    test = doctest.DocTestParser().get_doctest(text, globs, name, None, None)
    assert test.examples
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test, clear_globs=False)  # torch.compile keeps them
    assert runner.failures == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_annotations_name_what_exists(name):
    assert "return" in typing.get_type_hints(PUBLIC[name])


def test_the_api_page_has_what_is_public():
    text = (ROOT / "docs/api.md").read_text()
    listed = re.findall(r"\w+", text)
    missing = [name for name in PUBLIC if name.rpartition(".")[2] not in listed]
    assert missing == ["customops.__version__"]


def test_the_api_page_explains_the_types_that_it_names():
    text = (ROOT / "docs/api.md").read_text()
    for name in FUNCTIONS:
        function = inspect.unwrap(PUBLIC[name])
        takes = ast.parse(inspect.getsource(function)).body[0]
        annotations = [of.annotation for of in (*takes.args.args, *takes.args.kwonlyargs)]
        for node in (node for a in (*annotations, takes.returns) for node in ast.walk(a)):
            known = function.__globals__.get(getattr(node, "id", None))
            of = getattr(known, "__module__", "")
            if isinstance(known, types.UnionType) or of.startswith("customops"):
                assert known in PUBLIC.values() or f"| `{node.id}` |" in text, (name, node.id)


def test_the_api_reference_shows_one_row_for_each_argument():
    import griffe

    own = griffe.load_extensions(str(ROOT / ".ci/griffe_parameters.py"))
    package = griffe.load(
        "customops", search_paths=[str(ROOT)], extensions=own, docstring_parser="google"
    )
    for name, arguments in (
        ("argmin", "input dim keepdim mask index_dtype"),
        ("min", "input dim keepdim mask index_dtype"),
        ("softmax_max", "input dim keepdim"),
        ("scale_min", "input scale dim keepdim"),
    ):
        (rows,) = (
            section.value
            for section in package[f"ops.{name}"].docstring.parsed
            if section.kind is griffe.DocstringSectionKind.parameters
        )
        assert " ".join(row.name for row in rows) == arguments
        shown = {parameter.name for parameter in package[f"ops.{name}"].parameters}
        assert shown == {*arguments.split(), "axis", "keepdims"}
        defaults = {row.name: row.value for row in rows}
        signature = inspect.signature(getattr(customops, name)).parameters
        for argument in ("dim", "keepdim"):
            assert (defaults[argument] or "(required)") == repr(signature[argument].default)


def test_star_import_hides_no_builtin():
    import builtins

    assert not [name for name in customops.__all__ if hasattr(builtins, name) and name[0] != "_"]
