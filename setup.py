"""Which packages there are; everything else about the build is in ``pyproject.toml``."""

from __future__ import annotations

from setuptools import find_packages, setup

setup(
    # The list is looked up because rooms become folders as they grow, and a list kept by hand would ship a wheel
    # without the newest one.  `package-dir` in pyproject.toml says where the migrations lie, which no look-up can know.
    packages=[
        *find_packages(include=["xpucached", "xpucached.*"]),
        "xpucached.migrations",
        "xpucached.migrations.versions",
        "xpucached.units",
    ],
)
