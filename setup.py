"""The distribution: the plugin package and what it runs on."""

from setuptools import find_packages, setup

# Upstream fairseq 0.12.2 cannot be imported on Python 3.11, so one of two repaired builds of it stands in: a compiled
# wheel for Linux on x86-64, a source distribution elsewhere.
FAIRSEQ = [
    've-fairseq>=0.12.3,<0.13; platform_system == "Linux" and platform_machine == "x86_64"',
    'fairseq-fixed>=0.12.3.1,<0.13; platform_system != "Linux" or platform_machine != "x86_64"',
]
CORPUS = ["lxml>=5", "py3langid>=0.4"]
CLEAN = ["rensa>=0.5"]
PLOTS = ["matplotlib>=3.8"]
TENSORBOARD = ["tensorboardX>=2.6"]
BENCH = ["ctranslate2>=4.5"]
EXTRAS = {
    "corpus": CORPUS,
    "clean": CLEAN,
    "plots": PLOTS,
    "bench": BENCH,
    "tensorboard": TENSORBOARD,
    "dev": [
        "pytest>=8",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "ruff>=0.9",
        "mypy>=1.14",
        *CORPUS,
        *CLEAN,
        *PLOTS,
        *TENSORBOARD,
        *BENCH,
    ],
}

setup(
    name="fairseq-gad",
    version="0.1.0",
    description="Lossless block-speculative translation (GAD) as a fairseq plugin",
    license="MIT",
    package_data={"block_plugins": ["config/*.yaml"]},
    python_requires=">=3.11",
    packages=find_packages(include=["block_plugins", "block_plugins.*"]),
    install_requires=[
        *FAIRSEQ,
        "torch>=2.6",
        "numpy>=2",
        "numba>=0.61",
        "hydra-core>=1.3.2,<1.4",
        "omegaconf>=2.3,<2.4",
        "regex>=2024.4.16",
        "sacrebleu>=2.4",
        "sacremoses>=0.1",
        "subword-nmt>=0.3.8",
        "tqdm>=4.66",
    ],
    extras_require=EXTRAS,
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
