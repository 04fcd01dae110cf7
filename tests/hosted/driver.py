"""A driver with queues that is Python: what it was given runs when `advance` or a look says so."""

from contextlib import contextmanager
from dataclasses import dataclass, field

from hal.core.errors import Failure, FailureKind, OperationFailed, Scope
from hal.hosted.machine import Part
from hal.hosted.streams import RUNNING, StreamMachine

QUEUED, DONE, BROKEN, DEPENDED = 3, 0, -5, -14


@dataclass(eq=False)
class Mark:
    work: object
    after: tuple
    state: int = QUEUED
    times: tuple = (0, 1)


@dataclass(eq=False)
class Launched:
    program: object
    args: list


@dataclass(eq=False)
class Stream:
    marks: list = field(default_factory=list)


class Driver(StreamMachine):
    """Runs what it has at each look, unless `paused`. A program named "stuck" never ends, one named
    "broken" ends badly, one named "refused" is not taken. As many drivers do, it says of what
    depends on a failure only that it depends on one."""

    def __init__(self):
        self.paused = False
        self.patient = False
        self.streams, self.released, self.abandoned, self.closed = [], 0, [], False

    def allocate(self, nbytes, options):
        return bytearray(nbytes)

    def release(self, memory):
        memory.clear()
        self.released += 1

    def read(self, memory, offset, nbytes):
        return bytes(memory[offset : offset + nbytes])

    def write(self, memory, offset, data):
        memory[offset : offset + len(data)] = data

    def compile(self, source):
        return source.text

    def close(self):
        self.closed = True

    def open_stream(self):
        self.streams.append(Stream())
        return self.streams[-1]

    def bind(self, program, args):
        return Launched(program, list(args))

    def rebind(self, bound, index, arg):
        bound.args[index] = arg

    @contextmanager
    def together(self, stream):
        gate = Mark(None, ())
        try:
            yield (gate,)
        finally:
            gate.state = DONE

    def launch(self, bound, grid, stream, after):
        if bound.program == "refused":
            failure = Failure(FailureKind.LAUNCH_FAULT, Scope.OPERATION, "py:0", "launch", "no")
            raise OperationFailed(failure)
        args, program = list(bound.args), bound.program

        def work():
            if program == "stuck":
                return RUNNING
            if program == "broken":
                return BROKEN
            for part in args:
                part.memory[part.offset : part.offset + part.nbytes] = bytes(
                    min(255, byte + 1) for byte in part.memory[part.offset :][: part.nbytes]
                )
            return DONE

        return self._given(work, stream, after)

    def copy(self, dst, src, nbytes, stream, after):
        def work():
            data = src.memory[src.offset :] if isinstance(src, Part) else src
            to, begin = (dst.memory, dst.offset) if isinstance(dst, Part) else (dst, 0)
            to[begin : begin + nbytes] = bytes(data[:nbytes])
            return DONE

        return self._given(work, stream, after)

    def fill(self, dst, pattern, nbytes, stream, after):
        def work():
            dst.memory[dst.offset : dst.offset + nbytes] = pattern * (nbytes // len(pattern))
            return DONE

        return self._given(work, stream, after)

    def nothing(self, stream, after):
        return self._given(lambda: DONE, stream, after)

    def state(self, mark):
        if not self.paused:
            self.advance()
        return mark.state

    def is_patient(self):
        return self.patient

    def failure(self, operation, state):
        kind = FailureKind.LAUNCH_FAULT
        return Failure(kind, Scope.OPERATION, "py:0", operation, f"status {state}")

    def times(self, mark):
        return mark.times

    def abandon(self, held):
        self.abandoned.extend(held)

    def advance(self):
        """Run all that can run."""
        moved = True
        while moved:
            moved = sum(self._advance(stream) for stream in self.streams) > 0

    def _advance(self, stream):
        head = next((mark for mark in stream.marks if mark.state > 0), None)
        if head is None or head.state == RUNNING:
            return False
        earlier = stream.marks[: stream.marks.index(head)][-1:]
        states = [mark.state for mark in (*head.after, *earlier)]
        if any(state > 0 for state in states):
            return False
        head.state = DEPENDED if any(state < 0 for state in states) else head.work()
        return head.state <= 0

    def _given(self, work, stream, after):
        stream.marks.append(Mark(work, tuple(after or ())))
        return stream.marks[-1]
