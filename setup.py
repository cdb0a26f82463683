"""Which packages there are, and what the build writes; everything else about it is in ``pyproject.toml``."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithCompletions(build_py):
    """Build the package, with the shells' completions where the source archive brings none."""

    def run(self) -> None:
        """Write them from the parsers, so that ``pip install .`` brings them as ``make dist`` does."""
        super().run()
        target = Path(self.build_lib) / "xpucached" / "data" / "manual" / "completions"
        if self.editable_mode or target.is_dir():
            return
        sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
        try:
            import completions  # noqa: PLC0415 - it imports the program, which only a build needs
        except ImportError as error:
            # Whoever builds without isolation brings what is needed, or does without.
            print(f"xpucached: no completions of the shells are packed: {error}", file=sys.stderr)  # noqa: T201
            return
        completions.write(target)


setup(
    cmdclass={"build_py": BuildWithCompletions},
    # The list is looked up because rooms become folders as they grow, and a list kept by hand would ship a wheel
    # without the newest one.  `package-dir` in pyproject.toml says where the migrations lie, which no look-up can know.
    packages=[
        *find_packages(include=["xpucached", "xpucached.*"]),
        "xpucached.migrations",
        "xpucached.migrations.versions",
        "xpucached.units",
    ],
)
