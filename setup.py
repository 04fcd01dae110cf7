from setuptools import setup

setup(
    cffi_modules=["build_engine.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
