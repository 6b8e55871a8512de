"""Builds what pyproject.toml describes, and adds the files that are not Python (lakefork/resources.py finds them)."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
RESOURCES = [
    "schema/**/*.sql",
    "include/config/*",
    "include/log4j2.properties",
    "include/expectations/*",
    "dags/*.py",
    "jobs/*.py",
    "plugins/**/*",
    "plugins/.airflowignore",
]


class BuildWithResources(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a checkout has them at its top
        target = Path(self.build_lib) / "lakefork" / "_resources"
        shutil.rmtree(target, ignore_errors=True)
        for path in sorted(path for pattern in RESOURCES for path in ROOT.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                copy = target / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


setup(cmdclass={"build_py": BuildWithResources})
