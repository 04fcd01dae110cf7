from setuptools import setup

setup(cffi_modules=["build_engine.py:ffibuilder"])
