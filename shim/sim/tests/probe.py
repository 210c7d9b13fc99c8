# SPDX-License-Identifier: Apache-2.0
"""A process under test: calls whatever its standard input says, one JSON line each.

Run as a program. Integers go as they are; {"out": N} is a 64-bit output that
starts as N, {"text": N} a buffer of N bytes, {"bytes": "hex"} a buffer in and
out, {"value": "hex"} a structure by value. The answer holds the return code and
all outputs in order.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

LIBRARIES = {"cu": "libcuda.so.1", "nv": "libnvidia-ml.so.1"}


def structure(data: bytes) -> ctypes.Structure:
    """One to be passed by value."""

    class Given(ctypes.Structure):
        _fields_ = (("data", ctypes.c_char * len(data)),)

    return Given.from_buffer_copy(data)


def pack(argument: Any) -> Any:
    match argument:
        case {"out": value}:
            return ctypes.c_uint64(value)
        case {"text": size}:
            return ctypes.create_string_buffer(size)
        case {"bytes": text}:
            return ctypes.create_string_buffer(bytes.fromhex(text), len(text) // 2)
        case {"value": text}:
            return structure(bytes.fromhex(text))
        case str():
            return ctypes.c_char_p(argument.encode())
        case _:
            return ctypes.c_uint64(argument)


def unpack(packed: Any, argument: Any) -> Any:
    match argument:
        case {"out": _}:
            return packed.value
        case {"text": _}:
            return packed.value.decode()
        case {"bytes": _}:
            return packed.raw.hex()
        case _:
            return None


def call(name: str, *arguments: Any) -> dict[str, Any]:
    function = getattr(ctypes.CDLL(LIBRARIES[name[:2]]), name)
    packed = [pack(argument) for argument in arguments]
    outgoing = [isinstance(a, dict) and "value" not in a for a in arguments]
    passed = [ctypes.byref(p) if out else p for p, out in zip(packed, outgoing, strict=True)]
    code = function(*passed)
    outputs = [unpack(p, a) for p, a, out in zip(packed, arguments, outgoing, strict=True) if out]
    return {"code": code, "outputs": outputs}


def in_thread(name: str, *arguments: Any) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(call(name, *arguments)))
    thread.start()
    thread.join()
    return answers[0]


def in_fork(name: str, *arguments: Any) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(call(name, *arguments)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer: dict[str, Any] = json.load(stream)
    os.waitpid(child, 0)
    return answer


def fork_sleeper() -> dict[str, Any]:
    """A child that does nothing but live on, with all that it inherited."""
    child = os.fork()
    if child == 0:
        signal.pause()
    return {"code": 0, "outputs": [child]}


def close_descriptors() -> dict[str, Any]:
    os.closerange(3, 4096)
    return {"code": 0, "outputs": []}


MAILBOX: list[socket.socket] = []


def open_mailbox(path: str) -> dict[str, Any]:
    """A place where others leave descriptors for this process."""
    MAILBOX.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    MAILBOX[-1].bind(path)
    return {"code": 0, "outputs": []}


def post_descriptor(path: str, descriptor: int) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(path)
        socket.send_fds(sender, [b"1"], [descriptor])
    return close_descriptor(descriptor)


def collect_descriptor() -> dict[str, Any]:
    _, descriptors, _, _ = socket.recv_fds(MAILBOX[-1], 1, 1)
    return {"code": 0, "outputs": [descriptors[0]]}


def close_descriptor(descriptor: int) -> dict[str, Any]:
    os.close(descriptor)
    return {"code": 0, "outputs": []}


STARTED: list[tuple[threading.Thread, list[dict[str, Any]]]] = []


def begin_in_thread(name: str, *arguments: Any) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(call(name, *arguments)), daemon=True)
    thread.start()
    STARTED.append((thread, answers))
    return {"code": 0, "outputs": []}


def thread_has_ended() -> dict[str, Any]:
    return {"code": 0, "outputs": [not STARTED[-1][0].is_alive()]}


def finish_thread() -> dict[str, Any]:
    thread, answers = STARTED.pop()
    thread.join()
    return answers[0]


def pipe_end() -> dict[str, Any]:
    """Any descriptor will do for external memory."""
    reader, writer = os.pipe()
    os.close(writer)
    return {"code": 0, "outputs": [reader]}


def ask_pointer(address: int, attributes: list[int]) -> dict[str, Any]:
    """cuPointerGetAttributes; each answer in a zeroed word."""
    answers = (ctypes.c_uint64 * len(attributes))()
    places = (ctypes.c_void_p * len(attributes))(
        *(ctypes.addressof(answers) + 8 * i for i in range(len(answers)))
    )
    driver = ctypes.CDLL(LIBRARIES["cu"])
    code = driver.cuPointerGetAttributes(
        len(attributes), (ctypes.c_int * len(attributes))(*attributes), places, ctypes.c_uint64(address)
    )
    return {"code": code, "outputs": list(answers)}


HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
host_calls: list[list[int]] = []
gate = threading.Event()
at_gate = threading.Event()


def note_on_host(value: int | None) -> None:
    """Note the value, and what a call of the driver answers here."""
    if value == 0 or value is None:
        at_gate.set()
        gate.wait()
    host_calls.append([value or 0, ctypes.CDLL(LIBRARIES["cu"]).cuCtxSynchronize()])


run_on_host = HOST_FUNCTION(note_on_host)


def launch_host(stream: int, value: int) -> dict[str, Any]:
    """Launch a host function that notes `value`; 0 waits for open_gate first."""
    library = ctypes.CDLL(LIBRARIES["cu"])
    code = library.cuLaunchHostFunc(ctypes.c_void_p(stream), run_on_host, ctypes.c_void_p(value))
    return {"code": code, "outputs": []}


def make_user_object(value: int, references: int) -> dict[str, Any]:
    """One whose end notes `value` among the host's calls."""
    made = ctypes.c_uint64(0)
    library = ctypes.CDLL(LIBRARIES["cu"])
    code = library.cuUserObjectCreate(
        ctypes.byref(made), ctypes.c_void_p(value), run_on_host, ctypes.c_uint(references), ctypes.c_uint(1)
    )
    return {"code": code, "outputs": [made.value]}


def called_on_host() -> dict[str, Any]:
    return {"code": 0, "outputs": list(host_calls)}


def is_at_gate() -> dict[str, Any]:
    """Whether a host function waits for open_gate."""
    return {"code": 0, "outputs": [at_gate.is_set()]}


def open_gate() -> dict[str, Any]:
    gate.set()
    return {"code": 0, "outputs": []}


def become_another_program() -> dict[str, Any]:
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> None:
    functions = (in_thread, in_fork, fork_sleeper, close_descriptors)
    descriptors = (open_mailbox, post_descriptor, collect_descriptor, close_descriptor)
    threads = (begin_in_thread, thread_has_ended, finish_thread)
    hosts = (launch_host, make_user_object, called_on_host, is_at_gate, open_gate)
    own: dict[str, Callable[..., Any]] = {
        function.__name__: function
        for function in (*functions, *threads, *descriptors, *hosts, pipe_end, ask_pointer)
    }
    own["become_another_program"] = become_another_program
    print(json.dumps({"code": 0, "outputs": [os.getpid()]}), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer = own[name](*arguments) if name in own else call(name, *arguments)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
