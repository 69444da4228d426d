"""Builds `protocol._runs` from `runs.c`, when the package is built (see `setup.py`)."""

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent

ffibuilder = FFI()
ffibuilder.cdef((HERE / "runs.h").read_text())
ffibuilder.set_source(
    "protocol._runs",
    "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <sys/types.h>\n" + (HERE / "runs.h").read_text(),
    sources=["protocol/native/runs.c"],
    include_dirs=["protocol/native"],
    extra_compile_args=["-std=c99", "-O2"],
)
