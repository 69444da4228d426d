"""The one thing that pyproject.toml cannot say: which C modules are built, from `protocol/native`,
`storage/native` and `broker/native`."""

from setuptools import Extension, setup

SLOTS, SECTIONS = "broker/native/slots.h", "protocol/native/sections.h"


def walking_values(name: str, source: str, *headers: str) -> Extension:
    """A module that walks encoded values, and includes these other headers."""
    depends = ["protocol/native/values.h", *headers]
    return Extension(name, [source], include_dirs=["protocol/native"], depends=depends)


setup(
    cffi_modules=["protocol/native/build.py:ffibuilder"],
    ext_modules=[
        Extension("protocol._spans", ["protocol/native/spans.c"]),
        walking_values("protocol._sections", "protocol/native/sections.c", SECTIONS),
        Extension(
            "protocol._exchange",
            ["protocol/native/exchange.c"],
            include_dirs=["protocol/native"],
            depends=[f"protocol/native/{name}.h" for name in ("sessions", "delivery_ids", "runs")],
        ),
        Extension("storage._commits", ["storage/native/commits.c"]),
        Extension("broker.base._sizes", ["broker/native/sizes.c"]),
        Extension("broker.partition._untracked", ["broker/native/untracked.c"]),
        walking_values("broker.partition._references", "broker/native/references.c", SLOTS),
        Extension("broker.partition._new_references", ["broker/native/new_references.c"], depends=[SLOTS]),
        walking_values("broker.message._stored", "broker/native/stored.c", SECTIONS),
        walking_values("broker.message._changes", "broker/native/changes.c"),
        Extension("broker.namespace._placing", ["broker/native/placing.c"]),
        walking_values("broker.message._annotations", "broker/native/annotations.c"),
        Extension("broker.frontend.links._unsettled", ["broker/native/unsettled.c"]),
    ],
)
