"""The one thing that pyproject.toml cannot say: which C modules are built, from `protocol/native`,
`storage/native` and `broker/native`."""

from setuptools import Extension, setup

SLOTS = "broker/native/slots.h"


def of_messages(name: str, source: str) -> Extension:
    """A module that walks encoded values."""
    return Extension(name, [source], include_dirs=["protocol/native"], depends=["protocol/native/values.h"])


setup(
    cffi_modules=["protocol/native/build.py:ffibuilder"],
    ext_modules=[
        Extension("protocol._spans", ["protocol/native/spans.c"]),
        of_messages("protocol._sections", "protocol/native/sections.c"),
        Extension(
            "protocol._exchange",
            ["protocol/native/exchange.c"],
            include_dirs=["protocol/native"],
            depends=[f"protocol/native/{name}.h" for name in ("sessions", "delivery_ids", "runs")],
        ),
        Extension("storage._commits", ["storage/native/commits.c"]),
        Extension("broker.base._sizes", ["broker/native/sizes.c"]),
        Extension("broker.partition._untracked", ["broker/native/untracked.c"]),
        Extension("broker.partition._references", ["broker/native/references.c"], depends=[SLOTS]),
        Extension("broker.partition._new_references", ["broker/native/new_references.c"], depends=[SLOTS]),
        of_messages("broker.message._stored", "broker/native/stored.c"),
        of_messages("broker.message._changes", "broker/native/changes.c"),
        Extension("broker.namespace._placing", ["broker/native/placing.c"]),
        of_messages("broker.message._annotations", "broker/native/annotations.c"),
        Extension("broker.frontend.links._unsettled", ["broker/native/unsettled.c"]),
    ],
)
