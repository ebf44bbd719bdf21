"""Metadata, and the one native extension: a plain shared object that kernels/cpu/library.py loads with ctypes.

The extension is optional: where it cannot be built, the package installs without it and runs the plain torch kernels.
It holds no Python module, so it needs neither Python's headers nor an init function.
"""

from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
README = HERE / "README.md"
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
    optional=True,
)

setup(
    name="hummingbird-mpc",
    version="0.1.0",
    description="Private inference for PyTorch networks over CrypTen, sending only the bits of a ReLU that matter",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    packages=find_packages(include=["hummingbird", "hummingbird.*"]),
    include_package_data=False,
    package_data={"hummingbird.kernels.gpu": ["sizes.json"], "hummingbird.capacity": ["profiles/asplos23.json"]},
    ext_modules=[NATIVE],
    entry_points={"console_scripts": ["hummingbird = hummingbird.__main__:main"]},
    # crypten 0.4.1 asks for the retired package `sklearn`: set SKLEARN_ALLOW_DEPRECATED_SKLEARN_PACKAGE_INSTALL=True
    # when installing with plain pip (the Makefile does).
    install_requires=[
        "torch>=2.6",
        "torchvision",
        "crypten==0.4.1",
        "numpy",
        "tqdm",
        "cryptography>=42",
        "grpcio",
        "grpcio-health-checking",
        "prometheus-client",
        "cloudpickle",
        "safetensors",
    ],
    extras_require={
        "docs": ["sphinx>=8", "myst-nb", "sphinx-book-theme", "sphinx-copybutton"],
        "test": [
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "scikit-learn",
            "matplotlib",
            "nbclient",
            "nbformat",
            "ipykernel",
            "ruff",
            "mypy",
            "setuptools>=77",
            "timm",
            "transformers",
            "simpy",
        ],
    },
    classifiers=[
        "Programming Language :: Python :: 3",
        "Programming Language :: C++",
        "Topic :: Security :: Cryptography",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
