from setuptools import Extension, setup

SOURCES = {
    "stack.recorder._walk": "stack/recorder/native/walk.c",
    "stack.bridge.torch._parts": "stack/bridge/torch/native/parts.c",
}

setup(
    cffi_modules=["build_engine.py:ffibuilder"],
    ext_modules=[
        Extension(
            name,
            [source],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O2", "-std=gnu11", "-Wall"],
            py_limited_api=True,
        )
        for name, source in SOURCES.items()
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
