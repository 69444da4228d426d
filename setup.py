"""The one thing that pyproject.toml cannot say: which C module cffi builds."""

from setuptools import setup

setup(cffi_modules=["protocol/native/build.py:ffibuilder"])
