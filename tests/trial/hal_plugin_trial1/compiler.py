"""LLVM in a process of its own, so that a damaged program ends that process and not ours.

As a script: reads lines of JSON (text, entry), answers each with a line (object code or a log).
"""

import base64
import ctypes
import json
import subprocess
import sys
import threading

import llvmlite.binding as llvm

ENTRY = "void (ptr, ptr, i64, i64)"
NAMES = "exp log sin cos tanh erf pow fmod sqrt floor fma fabs rint nearbyint roundeven ceil trunc"
CALLS = {name + suffix for name in NAMES.split() for suffix in ("", "f")}
CALLS |= {"memcpy", "memmove", "memset"}


def machine():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=2, codemodel="jitdefault")


def compiled(text, entry):
    module = llvm.parse_assembly(text)
    module.verify()
    kinds = {f.name: str(f.global_value_type) for f in module.functions if not f.is_declaration}
    if kinds.get(entry) != ENTRY:
        raise RuntimeError(f"no {entry} of type {ENTRY}")
    names = {f.name for f in module.functions if f.is_declaration} - CALLS
    if strange := [name for name in names if not name.startswith("llvm.")]:
        raise RuntimeError(f"unknown symbols {strange}")
    module.triple = llvm.get_process_triple()
    return base64.b64encode(machine().emit_object(module)).decode()


def serve():
    for line in sys.stdin:
        text, entry = json.loads(line)
        try:
            answer = {"code": compiled(text, entry)}
        except RuntimeError as error:
            answer = {"log": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class Compiler:
    def __init__(self):
        self.lock, self.child, self.engine = threading.Lock(), None, None

    def compile(self, text, entry):
        """The entry as a C function, or the log of what is wrong."""
        with self.lock:
            answer = self.ask(json.dumps([text, entry]))
            return (
                self.linked(base64.b64decode(answer["code"]), entry)
                if "code" in answer
                else answer["log"]
            )

    def ask(self, line):
        if self.child is None:
            pipe, command = subprocess.PIPE, [sys.executable, __file__]
            self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        killer = threading.Timer(20, self.child.kill)
        killer.start()
        try:
            self.child.stdin.write(line + "\n")
            self.child.stdin.flush()
            if answer := self.child.stdout.readline():
                return json.loads(answer)
        except BrokenPipeError:
            pass
        finally:
            killer.cancel()
            killer.join(10)
        self.close()
        return {"log": "the compiler died of this program"}

    def linked(self, code, entry):
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        kinds = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        function = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(entry))
        function.engine = engine  # the code lives as long as its function
        return function

    def close(self):
        if self.child is not None:
            self.child.kill()
            self.child.communicate(timeout=10)
            self.child = None


if __name__ == "__main__":
    serve()
