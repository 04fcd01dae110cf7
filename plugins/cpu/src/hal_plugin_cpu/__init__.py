"""The host's processor as a device: programs in LLVM IR, a native thread pool, timelines and
graphs."""
