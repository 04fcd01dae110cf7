from setuptools import Extension, setup

setup(
    cffi_modules=["build_engine.py:ffibuilder"],
    ext_modules=[
        Extension(
            "stack.recorder._walk",
            ["stack/recorder/native/walk.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O2", "-std=gnu11", "-Wall"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
