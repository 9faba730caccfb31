"""Builds the shared libraries with ninja. The environment decides what is built:

REDUCEOPS_CUDA        the CUDA library; 0: no, 1: yes, auto (the default): where torch has CUDA and
                      an nvcc >= 12.8 is found
TORCH_CUDA_ARCH_LIST  its architectures as torch writes them, "8.0;9.0a;12.0+PTX"; by default those
                      of the visible GPUs (development build) or RELEASE_ARCHITECTURES (wheel)
REDUCEOPS_CUDNN       a fused convolution on GPUs, which needs the headers of cuDNN, and nothing is
                      linked; 0: no, 1: yes, auto (the default): where the headers are found, in
                      the package nvidia-cudnn-cu13 or -cu12 of pip (torch for CUDA brings it) or
                      in CUDA_HOME; or the folder of cudnn_graph.h
REDUCEOPS_SANITIZE    address,undefined or thread: what is watched in the CPU library
CXX, CUDA_HOME, MAX_JOBS  as everywhere
"""

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import runpy
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import setuptools

if int(setuptools.__version__.partition(".")[0]) < 77:  # which would not know pyproject.toml's keys
    sys.exit("error: building customops needs setuptools >= 77: pip install -U setuptools")

from setuptools import Extension, setup  # noqa: E402
from setuptools.command.bdist_wheel import bdist_wheel  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402
from setuptools.command.build_py import build_py  # noqa: E402
from setuptools.errors import CompileError, SetupError  # noqa: E402

ROOT = Path(__file__).resolve().parent
VERSION = runpy.run_path(str(ROOT / "customops/version.py"))
MIN_TORCH = VERSION["MIN_TORCH"]
RELEASE_ARCHITECTURES = "8.0;9.0a;10.0;12.0+PTX"
RELEASE_GLIBC = (2, 28)  # that a wheel asks for
MIN_CUDA = (12, 8)  # the first whose nvcc knows --compress-mode
SOURCE = "https://github.com/reduceops/reduceops"
ISAS = {
    "baseline": ["-march=x86-64", "-Os"],  # for few machines by now: small, not fast
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}
# Sources to make small, not fast.
RARELY_RUN = {"autograd", "conv2d", "explain", "library", "pack", "settings", "torch_private"}
if platform.machine() not in ("x86_64", "AMD64"):
    ISAS = {"baseline": []}


def choice(variable: str, *values: str) -> str:
    """The value of an environment variable, the first where it is not set."""
    value = os.environ.get(variable) or values[0]
    if value not in values:
        known = ", ".join(filter(None, values))
        raise SetupError(f"{variable} is {value!r}; it takes one of {known}")
    return value


def torch_folder() -> Path | None:
    """Where torch is installed. It is not imported, which takes seconds. In an isolated build it is
    that of the environment for which pip builds: the headers of any torch will do."""
    spec = importlib.util.find_spec("torch")
    folders = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    paths = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    if sys.prefix == sys.base_prefix:  # a virtual environment does not see it, others first of all
        paths.insert(0, site.getusersitepackages())  # pip hides it from an isolated build
    elif sees_base():
        paths += [site.getusersitepackages(), *site.getsitepackages([sys.base_prefix])]
    folders += [Path(path, "torch") for path in paths]
    return next((folder for folder in folders if (folder / "version.py").exists()), None)


def sees_base() -> bool:
    """Whether this virtual environment was made with --system-site-packages."""
    settings = Path(sys.prefix, "pyvenv.cfg")
    lines = settings.read_text().lower().splitlines() if settings.exists() else []
    return "include-system-site-packages=true" in [line.replace(" ", "") for line in lines]


def find_torch() -> Path:
    needed = "torch >= {}.{}".format(*MIN_TORCH)
    folder = torch_folder()
    if folder is None:
        raise SetupError(f"building customops needs {needed}: pip install torch")
    version = runpy.run_path(str(folder / "version.py"))["__version__"]
    if tuple(map(int, version.split(".")[:2])) < MIN_TORCH:
        raise SetupError(f"building customops needs {needed}, and torch {version} is installed")
    return folder


def find_compiler() -> str:
    compiler = os.environ.get("CXX") or "c++"
    ask = [*shlex.split(compiler), "-std=c++20", "-x", "c++", "-fsyntax-only", os.devnull]
    try:
        known = subprocess.run(ask, capture_output=True).returncode == 0
    except OSError:
        known = False
    if not known:
        raise SetupError(
            f"building customops needs a C++20 compiler, and {compiler} is none: install GCC >= 11 "
            "or Clang >= 16 (as in apt install g++), or set CXX to one"
        )
    return compiler


@functools.cache  # warns once
def find_nvcc() -> str | None:
    """The nvcc to build the CUDA library with, None for no CUDA library."""
    mode = choice("REDUCEOPS_CUDA", "auto", "0", "1")
    if mode == "0":
        return None
    if mode == "auto":
        torch = torch_folder()
        if torch is None or runpy.run_path(str(torch / "version.py"))["cuda"] is None:
            return None
    homes = [os.environ.get("CUDA_HOME"), None, "/usr/local/cuda"]  # None: the PATH
    found = (shutil.which("nvcc", path=home and f"{home}/bin") for home in homes)
    nvcc = next(filter(None, found), None)
    if nvcc is None and mode == "1":
        raise SetupError(
            "REDUCEOPS_CUDA=1, and there is no nvcc in CUDA_HOME, on the PATH or in /usr/local/cuda"
        )
    if nvcc is not None and cuda_version(nvcc) < MIN_CUDA:
        needed, version = (".".join(map(str, of)) for of in (MIN_CUDA, cuda_version(nvcc)))
        problem = f"building the CUDA library needs nvcc >= {needed}, and {nvcc} is {version}"
        if mode == "1":
            raise SetupError(f"{problem}: install a newer CUDA, or set REDUCEOPS_CUDA=0")
        print(f"warning: {problem}: building for the CPU alone", file=sys.stderr)
        return None
    return nvcc


def cuda_version(nvcc: str) -> tuple[int, int]:
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = re.search(r"release (\d+)\.(\d+)", text).groups()
    return int(major), int(minor)


def variant() -> str:
    """The local version of a wheel, as torch has it: cpu, or cu130 for CUDA 13.0."""
    nvcc = find_nvcc()
    return "cpu" if nvcc is None else "cu{}{}".format(*cuda_version(nvcc))


def older_symbols() -> str:
    """For objcopy: functions of this machine's glibc, and an older version of each that has one, so
    that a library also runs with RELEASE_GLIBC."""
    lines = []
    for name in ("libc.so.6", "libm.so.6"):
        ask = [*shlex.split(find_compiler()), f"-print-file-name={name}"]
        path = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
        nm = ["nm", "--dynamic", "--with-symbol-versions", path]
        table = subprocess.run(nm, capture_output=True, text=True, check=True).stdout
        versions: dict[str, list[tuple[int, ...]]] = {}
        newest = {}
        for function, default, version in re.findall(r" (\w+)@(@?)GLIBC_([\d.]+)$", table, re.M):
            number = tuple(map(int, version.split(".")))
            versions.setdefault(function, []).append(number)
            if default:
                newest[function] = number
        for function, number in newest.items():
            older = [v for v in versions[function] if v <= RELEASE_GLIBC]
            if number > RELEASE_GLIBC and older:
                lines.append(f"{function} {function}@GLIBC_{'.'.join(map(str, max(older)))}\n")
    return "".join(lines)


def check_tools() -> None:
    """Raises for what building the libraries lacks, before setuptools lists all that it copies."""
    if sys.platform != "linux":
        raise SetupError("customops needs Linux")
    variables = runpy.run_path(str(ROOT / "customops/environment.py"))
    try:
        variables["check"](variables["OF_BUILD"])
    except ImportError as error:
        raise SetupError(str(error)) from None
    ninja = importlib.util.find_spec("ninja")
    if not (ninja and ninja.origin):  # any folder ninja/ is a package, of no file
        raise SetupError("building customops needs ninja: pip install ninja")
    find_torch()
    find_nvcc()
    find_compiler()


def find_cudnn() -> Path | None:
    """The folder of cuDNN's headers, None to do without."""
    mode = os.environ.get("REDUCEOPS_CUDNN") or "auto"
    if mode == "0":
        return None
    if mode not in ("1", "auto"):
        folders = [Path(mode)]
    else:
        spec = importlib.util.find_spec("nvidia")
        packages = list((spec and spec.submodule_search_locations) or [])
        packages += [sysconfig.get_path("purelib") + "/nvidia"]  # in an isolated build
        folders = [Path(package, "cudnn/include") for package in packages]
        homes = (os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/usr")
        folders += [Path(home, "include") for home in homes if home]
    found = next((folder for folder in folders if (folder / "cudnn_graph.h").exists()), None)
    if found is None and mode != "auto":
        where = ", ".join(map(str, folders))
        raise SetupError(
            f"REDUCEOPS_CUDNN={mode}, and there is no cudnn_graph.h in {where}: "
            "pip install --no-deps nvidia-cudnn-cu13 brings it, or give its folder"
        )
    return found and found.resolve()


def visible_architectures() -> str:
    """The architectures of this machine's GPUs; an H200's where there is none."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return "9.0a"
    capabilities = sorted(set(re.findall(r"^\d+\.\d+$", result.stdout, re.MULTILINE)))
    return ";".join(capabilities).replace("9.0", "9.0a") or "9.0a"


def gencode(architectures: list[str]) -> list[str]:
    """nvcc's flags for architectures in torch's notation."""
    flags = []
    for architecture in architectures:
        match = re.fullmatch(r"(\d+)\.(\d[af]?)(\+PTX)?", architecture)
        if match is None:
            raise SetupError(
                f"TORCH_CUDA_ARCH_LIST: {architecture!r} is no architecture; write 9.0a or 12.0+PTX"
            )
        number = match[1] + match[2]
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if match[3]:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


class Library:
    """The rules and edges of one shared library in a build.ninja; in a release it is made for
    RELEASE_GLIBC, with `archives` linked in, and its functions may be `ordered` to be small."""

    def __init__(
        self,
        ninja,
        name: str,
        compiler: str,
        linker: str,
        archives: list[Path] | None,
        ordered: bool = False,
    ):
        self.ninja, self.name, self.objects = ninja, name, []
        self.scripts = ["csrc/link_order.py"] * ordered  # that linking runs
        compile = f"{compiler} $flags -MD -MF $out.d -c $in -o $out"
        ninja.rule(f"{name}_compile", compile, "$out", depfile="$out.d", deps="gcc")
        link = f"{linker} $in -o $out $flags"
        if archives is not None:
            archives = shlex.join(map(str, archives))
            order = f"{shlex.quote(sys.executable)} csrc/link_order.py $in > $out.ld && "
            before, script = (order, "-T $out.ld ") if ordered else ("", "")
            link = (
                f"{before}ld -r {script}$in {archives} -o $out.o && "
                # What the standard library's templates export would only be looked up.
                "objcopy --wildcard --keep-global-symbol='reduceops_*' "
                "--redefine-syms=$builddir/older_symbols $out.o && "
                f"{linker} $out.o -o $out -s $flags"
            )
        ninja.rule(f"{name}_link", link, "$out")

    def compile(self, source: Path, flags: list[str], suffix: str = "") -> None:
        from ninja.ninja_syntax import escape

        source = source.relative_to(ROOT)
        self.objects.append(f"$builddir/{source}{suffix}.o")
        variables = {"flags": escape(shlex.join(flags))}
        self.ninja.build(self.objects[-1], f"{self.name}_compile", str(source), variables=variables)

    def link(self, flags: list[str]) -> None:
        from ninja.ninja_syntax import escape

        flags = [*flags, f"-Wl,-soname,{self.name}.so"]
        variables = {"flags": escape(shlex.join(flags))}
        output = f"$builddir/{self.name}.so"
        self.ninja.build(
            output, f"{self.name}_link", self.objects, implicit=self.scripts, variables=variables
        )


def write_cpu(ninja, flags: list[str], libs: list[str], sanitize: str, release: bool) -> None:
    # No contraction: a fused multiply-add rounds once where torch rounds twice.
    flags = [*flags, "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"]
    libs = ["-shared", "-Wl,--no-as-needed", *libs]
    if sanitize:
        flags += ["-O1", "-g", "-fno-omit-frame-pointer"]
        flags += [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"]
        libs += [f"-fsanitize={sanitize}"]
    else:
        # What -O3 adds to this is a tenth of the bytes, and less speed than can be measured. Clang
        # does so anyway, and says that it ignores the options.
        flags += ["-O2", "-fpeel-loops", "-fvect-cost-model=dynamic"]
        # What distributions' compilers add by themselves is a fiftieth of the bytes.
        flags += ["-fcf-protection=none", "-fno-stack-protector", "-fno-stack-clash-protection"]
        flags += ["-U_FORTIFY_SOURCE"]
        flags += ["-Wno-ignored-optimization-argument"]
        # A thread that somebody else started may have a small stack. GCC makes it an error; Clang,
        # which does not know the second option, a warning.
        flags += ["-Wframe-larger-than=32768", "-Werror=frame-larger-than=32768"]
        flags += ["-Wno-unknown-warning-option"]
    compiler = find_compiler()
    library = Library(ninja, "libreduceops", compiler, compiler, [] if release else None, True)
    kernels = ROOT / "csrc/cpu/kernels.cpp"
    sources = {*ROOT.glob("csrc/*.cpp"), *ROOT.glob("csrc/cpu/*.cpp")} - {kernels}
    # Vectors are for kernels, and only theirs need to begin at a line: where their loops lie in it
    # would else follow from what is linked before, and be worth up to a third of the time.
    plain = ["-fno-tree-vectorize", "-fno-peel-loops", "-fno-align-functions", "-fno-align-jumps"]
    plain += ["-fno-align-loops", "-finline-limit=30"]  # a fiftieth of the bytes, and as fast
    # Of kernels and plans, which throw nothing: the tables that say how to unwind them would be a
    # twentieth of the bytes.
    no_unwinding = ["-fno-exceptions", "-fno-asynchronous-unwind-tables"]
    for_kernels = [
        *flags,
        # GCC's own headers of vector instructions make it warn of what they leave undefined on
        # purpose.
        *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
        # Loads stay in the order of the source, which is that of memory: hardware prefetches no
        # other.
        "-fno-schedule-insns2",
        *no_unwinding,
        *("-falign-functions=64", "-fno-align-jumps"),
        *["-ffunction-sections"] * release,  # which csrc/link_order.py orders
    ]
    # What takes longest is compiled first.
    for isa, march in reversed(ISAS.items()):
        library.compile(kernels, [*for_kernels, f"-DREDUCEOPS_ISA={isa}", *march], f".{isa}")
    newest_first, library.objects = library.objects, []
    small = {source for source in sources if source.stem in RARELY_RUN}
    for source in sorted(sources - small) + sorted(small):
        # Instructions in the order of the source are alike more often: less when compressed.
        own = ["-Os", "-fno-schedule-insns2"] if source in small else plain
        if source.stem == "explain":
            own = [*own, *no_unwinding]
        library.compile(source, flags if sanitize else [*flags, *own])
    # The linker keeps an inline function's first copy, for all users: not one that is made small,
    # nor one for an instruction set that the machine may lack.
    library.objects += reversed(newest_first)
    library.link(libs)


def write_cuda(ninja, flags: list[str], libs: list[str], nvcc: str, release: bool) -> None:
    default = RELEASE_ARCHITECTURES if release else visible_architectures()
    architectures = re.findall(r"[^;,\s]+", os.environ.get("TORCH_CUDA_ARCH_LIST") or default)
    code = gencode(architectures)
    flags = [*flags, *code, "-DUSE_CUDA", "-Xcompiler=-fPIC,-fvisibility=hidden"]
    flags += ["--expt-relaxed-constexpr"]  # std::numeric_limits and the like in kernels
    flags += ["--compress-mode=size"]  # a fifth of the bytes
    if compiler := os.environ.get("CXX"):
        words = [word for word in shlex.split(compiler) if not word.startswith("-")]
        flags += ["-ccbin", words[-1]]  # without ccache
    own = {"entry": [f'-DREDUCEOPS_CUDA_ARCHITECTURES="{";".join(architectures)}"']}
    if cudnn := find_cudnn():
        own["cudnn"] = ["-DREDUCEOPS_CUDNN"]
        if cudnn != Path("/usr/include"):  # it has to stay the last that is searched
            own["cudnn"] += ["-isystem", str(cudnn)]
    # The CUDA runtime is linked in, and kept apart from torch's.
    runtime = find_runtime(nvcc)
    library = Library(
        *(ninja, "libreduceops_cuda", shlex.quote(nvcc), find_compiler()),
        [runtime] if release else None,
    )
    for source in sorted(ROOT.glob("csrc/cuda/*.cu")):
        library.compile(source, flags + own.get(source.stem, []))
    library.compile(ROOT / "csrc/glibc.cpp", flags, ".cuda")
    runtime = [] if release else [str(runtime)]
    system = ["-lrt", "-lpthread", "-ldl"]
    library.link(
        ["-shared", *runtime, "-Wl,--no-as-needed,--exclude-libs=ALL", *libs, *system],
    )


def find_runtime(nvcc: str) -> Path:
    """The static library of the CUDA runtime."""
    # nvcc may be a script that calls another one; it says itself where it lies.
    said = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True
    )
    top = re.search(r"^#\$ TOP=(.+)$", said.stderr, re.MULTILINE)
    home = (Path(top[1]) if top else Path(nvcc).parent.parent).resolve()
    folders = [home / name for name in ("lib64", "lib", "targets/x86_64-linux/lib")]
    folders += sorted(home.glob("targets/*/lib"))
    for folder in folders:
        if (folder / "libcudart_static.a").exists():
            return folder / "libcudart_static.a"
    raise SetupError(f"there is no libcudart_static.a beside {nvcc}: install CUDA's runtime")


class BuildLibraries(build_ext):
    """Writes build/<kind>/build.ninja, runs ninja and copies the libraries to customops/lib."""

    def run(self) -> None:
        check_tools()
        from ninja.ninja_syntax import Writer

        torch, nvcc = find_torch(), find_nvcc()
        sanitize = choice(
            "REDUCEOPS_SANITIZE", "", "address", "undefined", "address,undefined", "thread"
        )
        release = not self.inplace and not sanitize
        kind = "develop" if self.inplace else "release"
        folder = Path("build", f"sanitize-{sanitize}".replace(",", "-") if sanitize else kind)
        (ROOT / folder).mkdir(parents=True, exist_ok=True)

        target = "0x{:02x}{:02x}".format(*MIN_TORCH) + "0" * 12
        flags = ["-std=c++20", "-O3", f"-DTORCH_TARGET_VERSION={target}"]
        flags += ["-Icsrc", "-isystem", str(torch / "include")]
        libs = [f"-L{torch / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
        with open(ROOT / folder / "build.ninja", "w") as file:
            ninja = Writer(file)
            ninja.variable("builddir", str(folder))
            write_cpu(ninja, flags, libs, sanitize, release)
            if nvcc:
                write_cuda(ninja, flags, libs, nvcc, release)
        if release:
            (ROOT / folder / "older_symbols").write_text(older_symbols())

        self.run_ninja(folder)
        built = ["libreduceops.so"] + ["libreduceops_cuda.so"] * bool(nvcc)
        self.install(folder, built)

    def run_ninja(self, folder: Path) -> None:
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count())
        if not re.fullmatch(r"[1-9]\d*", jobs):
            raise SetupError(f"MAX_JOBS is {jobs!r}; it takes a positive number")
        jobs = int(jobs)
        command = [sys.executable, "-m", "ninja", "-f", str(folder / "build.ninja"), f"-j{jobs}"]
        # Cores that the files leave idle go to their architectures; through the environment, for
        # their number is no reason to compile again.
        threads = max(1, jobs // max(1, len(list(ROOT.glob("csrc/cuda/*.cu")))))
        append = f"--threads={threads} {os.environ.get('NVCC_APPEND_FLAGS', '')}"
        env = {**os.environ, "NVCC_APPEND_FLAGS": append}
        if subprocess.run(command, cwd=ROOT, env=env).returncode:
            raise CompileError("the libraries did not build; the compiler's messages are above")

    def install(self, folder: Path, built: list[str]) -> None:
        """Leaves what was just built in customops/lib, and nothing of an earlier build."""
        lib = (ROOT if self.inplace else Path(self.build_lib)) / "customops/lib"
        lib.mkdir(parents=True, exist_ok=True)
        for old in lib.iterdir():
            if old.name not in built:
                old.unlink()
        for name in built:
            # A new file, not new contents: a running process may have the old one mapped.
            shutil.copy2(ROOT / folder / name, lib / f"{name}.new")
            os.replace(lib / f"{name}.new", lib / name)

    def get_outputs(self) -> list[str]:
        return []  # setuptools would name a Python extension module here

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildModules(build_py):
    """Leaves no module of an earlier build, which a wheel would have, too."""

    def run(self) -> None:
        shutil.rmtree(Path(self.build_lib, "customops"), ignore_errors=True)
        super().run()


class AnyPython(bdist_wheel):
    """The libraries use no Python API, so one wheel serves every Python."""

    def run(self) -> None:
        super().run()
        wheel = self.distribution.dist_files[-1][-1]
        with zipfile.ZipFile(wheel) as archive:
            files = [(file, archive.read(file)) for file in archive.infolist()]
        try:  # what `make dist` installs: a slow search, for smaller archives of the same format
            from zopfli import ZipFile

            # As many blocks as pay, and a search long enough for the CPU wheel's megabyte.
            options = {"block_splitting_max": 0, "iterations": 60}
        except ImportError:
            from zipfile import ZipFile

            options = {}
        with ZipFile(wheel, "w", **options) as archive:  # smaller than setuptools asks for
            for file, contents in files:
                archive.writestr(file, contents, zipfile.ZIP_DEFLATED, 9)

    def get_tag(self) -> tuple[str, str, str]:
        platform = super().get_tag()[2]
        if platform.startswith("linux_"):
            platform = platform.replace("linux", "manylinux_{}_{}".format(*RELEASE_GLIBC), 1)
        return "py3", "none", platform


def main() -> None:
    version = VERSION["__version__"]
    commands = set(sys.argv)
    try:
        if commands & {"bdist_wheel", "editable_wheel"}:
            check_tools()
        # (Not in a source distribution: its PKG-INFO has the version that pip wants in the wheel.)
        named = commands & {"bdist_wheel", "dist_info", "editable_wheel"}
        if named and not (ROOT / "PKG-INFO").exists():
            version += f"+{variant()}"
    except SetupError as error:
        raise SystemExit(f"error: {error}") from None
    torch = "torch>={}.{}".format(*MIN_TORCH)
    # An index shows README.md without the files beside it.
    readme = (ROOT / "README.md").read_text()
    for link, kind in ((r"!\[[^]]*\]", "raw"), (r"(?<!!)\[[^]]*\]", "blob")):
        readme = re.sub(rf"({link}\()(?!http)", rf"\1{SOURCE}/{kind}/main/", readme)
    setup(
        version=version,
        long_description=readme,
        long_description_content_type="text/markdown",
        install_requires=[torch],
        ext_modules=[Extension("customops.lib", [])],  # makes setuptools run build_ext
        cmdclass={"build_py": BuildModules, "build_ext": BuildLibraries, "bdist_wheel": AnyPython},
    )


if __name__ == "__main__":
    main()
