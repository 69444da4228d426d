"""Builds `protocol._runs` from the C files beside this one, when the package is built (see `setup.py`)."""

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent
PARTS = ("runs", "deliveries", "sessions", "delivery_ids", "frames", "large_payloads")

declarations = "".join((HERE / f"{part}.h").read_text() for part in PARTS)
ffibuilder = FFI()
ffibuilder.cdef(declarations)
ffibuilder.set_source(
    "protocol._runs",
    "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <sys/types.h>\n" + declarations,
    sources=[f"protocol/native/{part}.c" for part in PARTS],
    include_dirs=["protocol/native"],
    extra_compile_args=["-std=c99", "-O2"],
)
