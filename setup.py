"""Compiles the C kernels into the wheel: it then serves on machines without a compiler. Everything else is in
pyproject.toml. Without a compiler the wheel is one for any platform, and the kernels are compiled where they run.
"""

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))

from limelight.kernels.cpu import build
from limelight.kernels.cpu.features import NEEDED_FLAGS


class BuildWithKernels(build_py):
    """The package, and in it a compiled library for each variant."""

    compiled = False

    def run(self) -> None:
        """Compile after the package has been copied."""
        super().run()
        try:
            command = build.compiler()
        except build.CompilationFailed as error:
            self.warn(f"the kernels are left out: {error}")
            return
        if self.editable_mode or command is None or sys.platform != "linux":
            return
        folder = Path(self.build_lib) / "limelight" / "kernels" / "cpu" / "compiled"
        shutil.rmtree(folder, ignore_errors=True)  # of earlier builds
        folder.mkdir(parents=True)
        for variant in NEEDED_FLAGS:
            try:
                build.compile_library(command, build.flags_of(variant), folder / build.packaged_name(variant))
            except build.CompilationFailed as error:
                self.warn(f"the kernels {variant} are left out: {error}")
            else:
                self.compiled = True


class WheelOfPlatform(bdist_wheel):
    """py3-none-PLATFORM if there are compiled kernels: they are not bound to a version of Python."""

    def run(self) -> None:
        """Build first: the tag depends on what could be compiled."""
        self.run_command("build_py")
        self.root_is_pure = not self.get_finalized_command("build_py").compiled
        # What distutils asks to tell a package of any platform from one of this platform.
        self.distribution.has_ext_modules = lambda: not self.root_is_pure
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Python tag, ABI tag, platform tag."""
        implementation, abi, platform = super().get_tag()
        return (implementation, abi, platform) if self.root_is_pure else ("py3", "none", platform)


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelOfPlatform})
