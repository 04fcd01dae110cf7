from setuptools import setup

setup(
    cffi_modules=["build_native.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
