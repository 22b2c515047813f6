"""The Python bindings, on the stand-in for the driver. usage: bindings.py --lib libstreampool.so"""

import argparse
import ctypes
import json
import pathlib
import pickle
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
import streampool  # noqa: E402

MIB = 1 << 20


def driver():
    """The stand-in, with a context current."""
    cuda = ctypes.CDLL("libcuda.so")
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return cuda


def new_stream(cuda):
    stream = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    return stream.value


def status_of(call, *arguments):
    try:
        call(*arguments)
    except streampool.Error as error:
        return error.status
    return "STREAMPOOL_OK"


def every_call(library, cuda):
    stream, other = new_stream(cuda), new_stream(cuda)
    wanted = []
    hook = streampool.PRESSURE_HOOK(lambda user, size: wanted.append(size))
    pool = library.pool(0, limit=32 * MIB, on_pressure=hook)
    address = pool.allocate(MIB, stream)
    assert address % 256 == 0 and pool.size(address) == (MIB, MIB)
    pool.free(address)
    assert pool.allocate(MIB, stream) == address and pool.stats()["hits"] == 1
    pool.use_on(address, other)
    pool.move_to(address, other)
    pool.free(address)
    assert status_of(pool.free, address) == "STREAMPOOL_UNKNOWN_ADDRESS"
    assert status_of(pool.allocate, 1, 2) == "STREAMPOOL_WRONG_STREAM"
    try:
        pool.allocate(64 * MIB, stream)
        raise AssertionError("over the limit")
    except MemoryError as error:
        assert "over the pool's limit" in str(error) and wanted == [64 * MIB]
    aligned = pool.allocate(100, 0, alignment=1 << 16)
    assert aligned % (1 << 16) == 0
    with pool.quiesce() as report:
        pool.free(aligned)
    assert (report.freed, report.clean) == (1, 1)
    assert pool.allocate(0) == 0
    pool.free(0)
    pool.register_stream(stream)
    pool.retire_stream(stream)
    pool.reserve(8 * MIB)
    pool.synchronize()
    assert pool.trim() > 0 and pool.stats()["reserved"] == 0
    assert {"synchronized", "remapped", "revived"} <= pool.stats().keys()
    pool.reset_peak()
    pool.take_error()
    try:
        library.pool(0, colour=3)
        raise AssertionError("no such option")
    except TypeError:
        pass
    pool.close()
    assert status_of(pool.allocate, 1) == "STREAMPOOL_CLOSED"
    pool.destroy()


def threads(library, cuda):
    pool = library.default_pool(0)

    def work(number):
        cuda_context = ctypes.c_void_p()
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(cuda_context), 0)
        cuda.cuCtxSetCurrent(cuda_context)
        stream = new_stream(cuda)
        for size in range(1, 400):
            pool.free(pool.allocate(size * 1000 + number, stream))

    all_threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    stats = pool.stats()
    assert stats["live"] == 0 and stats["hits"] + stats["misses"] == 4 * 399


class FakeTorch:
    """What install_in_torch uses of PyTorch, which calls the functions as PyTorch does."""

    class Native:
        def __init__(self):
            self.hooks = {}

        def set_record_stream_fn(self, address):
            kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
            self.hooks["record_stream"] = kind(address)

        def set_reset_fn(self, address):
            self.hooks["empty_cache"] = ctypes.CFUNCTYPE(None)(address)

    class Allocator:
        def __init__(self, path, allocate, free):
            library = ctypes.CDLL(path)
            self.alloc, self.free = getattr(library, allocate), getattr(library, free)
            size, handle = ctypes.c_ssize_t, ctypes.c_void_p
            self.alloc.restype, self.alloc.argtypes = handle, [size, ctypes.c_int, handle]
            self.free.restype, self.free.argtypes = None, [handle, size, ctypes.c_int, handle]
            self.native = FakeTorch.Native()

        def allocator(self):
            return self.native

    def __init__(self):
        self.cuda = self.memory = self
        self.CUDAPluggableAllocator = FakeTorch.Allocator
        self.current = None

    def change_current_allocator(self, allocator):
        self.current = allocator


def torchs_hooks(library, cuda):
    torch = FakeTorch()
    assert library.install_in_torch(torch) == {"record_stream": True, "empty_cache": True}
    stream, pool = new_stream(cuda), library.default_pool(0)
    address = torch.current.alloc(3 * MIB, 0, stream)
    assert address and pool.stats()["live"] == 1
    torch.current.native.hooks["record_stream"](address, 0)
    torch.current.free(address, 3 * MIB, 0, stream)
    assert pool.stats()["live"] == 0
    pool.synchronize()
    torch.current.native.hooks["empty_cache"]()
    assert pool.stats()["reserved"] == 0


class FakeCupy:
    """What install_in_cupy uses of CuPy."""

    def __init__(self):
        self.cuda = self
        self.stream, self.pair, self.allocator = None, None, None

    def PythonFunctionAllocator(self, malloc, free):
        self.pair, self.malloc = (malloc, free), None
        return self

    def set_allocator(self, allocator):
        self.allocator = allocator

    def get_current_stream(self):
        return self.stream


def cupys_functions(library, cuda):
    cupy = FakeCupy()
    cupy.stream = type("Stream", (), {"ptr": new_stream(cuda)})()
    library.install_in_cupy(cupy)
    malloc, free = cupy.pair
    address = malloc(MIB, 0)
    assert address and library.default_pool(0).size(address) == (MIB, MIB)
    free(address, 0)
    assert library.default_pool(0).stats()["live"] == 0


def tags_and_files(library, cuda):
    stream = new_stream(cuda)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        pool = library.pool(0, history=100)
        with library.tag("layer 3 → out"):
            kept = pool.allocate(MIB, stream)
            with library.tag("inner"):
                inner = pool.allocate(2 * MIB, stream)
        plain = pool.allocate(3 * MIB, stream)
        pool.set_tag(inner, "set later")
        assert status_of(library.call, "tag_pop") == "STREAMPOOL_INVALID_ARGUMENT"
        pool.write_snapshot(folder / "snapshot.pickle")
        data = pickle.loads((folder / "snapshot.pickle").read_bytes())
        blocks = {block["address"]: block for own in data["segments"] for block in own["blocks"]}
        tags = [blocks[address].get("user_metadata") for address in (kept, inner, plain)]
        assert tags == ["layer 3 → out", "set later", None], tags
        assert [event["action"] for event in data["device_traces"][0]] == ["alloc"] * 3
        pool.write_trace(folder / "trace.json")
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        told = [event["args"].get("tag") for event in events if event["name"] == "allocate (miss)"]
        assert told == ["layer 3 → out", "inner", None], told
        assert status_of(pool.write_trace, folder / "no" / "trace.json") == "STREAMPOOL_FILE"
        assert str(folder / "no") in library.last_error()
        for address in (kept, inner, plain):
            pool.free(address)
        pool.close()
        pool.destroy()


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lib", required=True)
    library = streampool.Library(options.parse_args().lib)
    assert library.version() == "0.1.0"
    cuda = driver()
    for part in (every_call, threads, tags_and_files, torchs_hooks, cupys_functions):
        part(library, cuda)
    print("bindings: well")


if __name__ == "__main__":
    main()
