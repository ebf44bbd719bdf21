"""The one native extension: a plain shared object that kernels/cpu/library.py loads with ctypes.

The extension is optional: where it cannot be built, the package installs without it and runs the plain torch kernels.
It holds no Python module, so it needs neither Python's headers nor an init function. Everything else about the
package is in pyproject.toml.
"""

from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent
CSRC = HERE / "hummingbird/kernels/cpu/csrc"


def files(suffix: str) -> list[str]:
    """Paths of the native extension's files, relative to this one, as setuptools wants them."""
    return sorted(str(path.relative_to(HERE)) for path in CSRC.glob(f"*{suffix}"))


NATIVE = Extension(
    "hummingbird.kernels.cpu._native",
    sources=files(".cpp"),
    depends=files(".h"),
    extra_compile_args=["-O3", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-pthread"],
    extra_link_args=["-pthread"],
    language="c++",
    py_limited_api=True,  # one wheel for all versions of Python: the file's name and the wheel's tag say abi3
    optional=True,
)

setup(ext_modules=[NATIVE], options={"bdist_wheel": {"py_limited_api": "cp310"}})
