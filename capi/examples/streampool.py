"""streampool for Python, by ctypes: the C interface (streampool.h has its documentation), and what PyTorch and
CuPy need to allocate from it. No package is needed but the standard library's.

    library = streampool.Library("libstreampool.so")
    pool = library.pool(device=0, limit=8 << 30)
    address = pool.allocate(1 << 20, stream)      # a stream's handle as a number, 0 for the default stream
    pool.free(address)
"""

import contextlib
import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_size_t, c_uint32, c_uint64, c_void_p


class Error(RuntimeError):
    """A call that failed. `status` is the name of its code in C."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status


class OutOfMemory(Error, MemoryError):
    """Neither the pool nor, within its limit, the device has the memory."""


PRESSURE_HOOK = ctypes.CFUNCTYPE(None, c_void_p, c_uint64)


class Config(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("reuse", c_uint32),
        ("growth", c_uint32),
        ("late_waits", c_uint32),
        ("foreign_captures", c_uint32),
        ("history", c_uint32),
        ("limit", c_uint64),
        ("limit_fraction", c_double),
        ("reserve", c_uint64),
        ("floor", c_uint64),
        ("soft_target", c_uint64),
        ("on_pressure", PRESSURE_HOOK),
        ("user", c_void_p),
    ]


class Stats(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("version", c_uint32)] + [
        (name, c_uint64)
        for name in (
            "reserved peak_reserved in_use peak_in_use free_clean free_pending on_lists largest_free "
            "in_transit quarantined live streams granules hits misses frees covered asked gathered "
            "early_steals late_steals growths ladders stray_errors driver_calls event_records "
            "stream_waits context_synchronizes memory_calls synchronized remapped revived"
        ).split()
    ]


class Report(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("freed", "bytes", "clean", "deferred")]


# The functions that return a status, with their parameters.
FUNCTIONS = {
    "config_init": [POINTER(Config)],
    "create": [c_int, POINTER(Config), POINTER(c_void_p)],
    "close": [c_void_p],
    "destroy": [c_void_p],
    "reserve": [c_void_p, c_uint64],
    "trim": [c_void_p, c_uint64, POINTER(c_uint64)],
    "synchronize": [c_void_p],
    "get_stats": [c_void_p, POINTER(Stats)],
    "reset_peak": [c_void_p],
    "take_error": [c_void_p],
    "allocate": [c_void_p, c_size_t, c_void_p, POINTER(c_void_p)],
    "allocate_aligned": [c_void_p, c_size_t, c_size_t, c_void_p, POINTER(c_void_p)],
    "free": [c_void_p, c_void_p],
    "size": [c_void_p, c_void_p, POINTER(c_size_t), POINTER(c_size_t)],
    "use_on": [c_void_p, c_void_p, c_void_p],
    "move_to": [c_void_p, c_void_p, c_void_p],
    "register_stream": [c_void_p, c_void_p],
    "retire_stream": [c_void_p, c_void_p],
    "quiesce_begin": [c_void_p, POINTER(c_uint64)],
    "quiesce_end": [c_uint64, POINTER(Report)],
    "tag_push": [c_char_p],
    "tag_pop": [],
    "set_tag": [c_void_p, c_void_p, c_char_p],
    "write_snapshot": [c_void_p, c_char_p],
    "write_trace": [c_void_p, c_char_p],
    "default_configure": [POINTER(Config)],
    "default_pool": [c_int, POINTER(c_void_p)],
}

# The functions that are given to PyTorch by their addresses.
TORCH_HOOKS = {
    "record_stream": ("set_record_stream_fn", "streampool_torch_record_stream"),
    "empty_cache": ("set_reset_fn", "streampool_torch_empty_cache"),
}


class Library:
    """libstreampool.so, loaded."""

    def __init__(self, path):
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        for name, parameters in FUNCTIONS.items():
            function = getattr(self._library, "streampool_" + name)
            function.restype, function.argtypes = c_int, parameters
        for name, parameters in (("version", []), ("status_name", [c_int]), ("last_error", [])):
            function = getattr(self._library, "streampool_" + name)
            function.restype, function.argtypes = c_char_p, parameters

    def version(self):
        return self._library.streampool_version().decode()

    def last_error(self):
        return self._library.streampool_last_error().decode(errors="replace")

    def call(self, name, *arguments):
        """Calls a function by its name without the prefix; raises where it fails."""
        status = getattr(self._library, "streampool_" + name)(*arguments)
        if status != 0:
            name = self._library.streampool_status_name(status).decode()
            kind = OutOfMemory if name == "STREAMPOOL_OUT_OF_MEMORY" else Error
            raise kind(name, self.last_error())

    def address(self, function):
        """A function's address, for code that takes one."""
        return ctypes.cast(getattr(self._library, function), c_void_p).value

    def config(self, **options):
        """A configuration: the fields of streampool_config by their names."""
        config = Config()
        self.call("config_init", byref(config))
        for name, value in options.items():
            if name not in dict(Config._fields_):
                raise TypeError(f"there is no option {name}")
            setattr(config, name, value)
        return config

    def pool(self, device=0, **options):
        """A pool of a device, or with device=-1 of the current context."""
        config, handle = self.config(**options), c_void_p()
        self.call("create", device, byref(config), byref(handle))
        return Pool(self, handle, config)

    def configure_defaults(self, **options):
        """Chooses the options of the default pools that are not made yet."""
        self.call("default_configure", byref(self.config(**options)))

    def default_pool(self, device=0):
        """The pool of a device that lives as long as the process, and that PyTorch's hooks use."""
        handle = c_void_p()
        self.call("default_pool", device, byref(handle))
        return Pool(self, handle, None)

    @contextlib.contextmanager
    def tag(self, text):
        """What this thread allocates inside is for this; shown by pools with a history."""
        self.call("tag_push", text.encode())
        try:
            yield
        finally:
            self.call("tag_pop")

    def install_in_torch(self, torch):
        """Makes PyTorch allocate from the default pools. To be called before anything of torch.cuda is
        used. Says which of the further hooks this PyTorch has."""
        allocator = torch.cuda.memory.CUDAPluggableAllocator(
            self.path, "streampool_torch_alloc", "streampool_torch_free"
        )
        hooks = {}
        for name, (setter, function) in TORCH_HOOKS.items():
            setter = getattr(allocator.allocator(), setter, None)
            hooks[name] = setter is not None
            if setter is not None:
                setter(self.address(function))
        torch.cuda.memory.change_current_allocator(allocator)
        # Whoever lets it go takes the functions away from tensors that are still alive.
        self.torch_allocator = allocator
        return hooks

    def install_in_cupy(self, cupy):
        """Makes CuPy allocate from the default pools, on its current stream. Streams that have allocated are
        kept alive from then on, because a stream must not be destroyed while a pool knows it."""
        pools, streams = {}, {}

        def malloc(size, device):
            stream = cupy.cuda.get_current_stream()
            if stream.ptr not in streams:
                streams[stream.ptr] = stream
            if device not in pools:
                pools[device] = self.default_pool(device)
            return pools[device].allocate(size, stream.ptr)

        def free(address, device):
            pools[device].free(address)

        allocator = cupy.cuda.PythonFunctionAllocator(malloc, free)
        cupy.cuda.set_allocator(allocator.malloc)
        return allocator


class Pool:
    """A pool. Made by a library."""

    def __init__(self, library, handle, config):
        self._library, self._handle = library, handle
        # The hook in it must live as long as the pool.
        self._config = config

    def _call(self, name, *arguments):
        self._library.call(name, self._handle, *arguments)

    def allocate(self, size, stream=0, alignment=None):
        """The address of `size` bytes for use on a stream; 0 for no bytes."""
        address = c_void_p()
        if alignment is None:
            self._call("allocate", size, stream, byref(address))
        else:
            self._call("allocate_aligned", size, alignment, stream, byref(address))
        return address.value or 0

    def free(self, address):
        self._call("free", address)

    def size(self, address):
        """What was asked for, and the block's size."""
        size, capacity = c_size_t(), c_size_t()
        self._call("size", address, byref(size), byref(capacity))
        return size.value, capacity.value

    def use_on(self, address, stream):
        self._call("use_on", address, stream)

    def move_to(self, address, stream):
        self._call("move_to", address, stream)

    def register_stream(self, stream):
        self._call("register_stream", stream)

    def retire_stream(self, stream):
        self._call("retire_stream", stream)

    @contextlib.contextmanager
    def quiesce(self):
        """A scope on this thread; its value has the report once it has ended."""
        scope, report = c_uint64(), Report()
        self._call("quiesce_begin", byref(scope))
        try:
            yield report
        finally:
            self._library.call("quiesce_end", scope, byref(report))

    def reserve(self, size):
        self._call("reserve", size)

    def trim(self, keep=0):
        """Gives unused memory back, and says how many bytes went."""
        given_back = c_uint64()
        self._call("trim", keep, byref(given_back))
        return given_back.value

    def synchronize(self):
        self._call("synchronize")

    def stats(self):
        stats = Stats(size=ctypes.sizeof(Stats))
        self._call("get_stats", byref(stats))
        return {name: getattr(stats, name) for name, _ in Stats._fields_[2:]}

    def set_tag(self, address, text):
        """Says what a buffer is for; shown by pools with a history."""
        self._call("set_tag", address, text.encode())

    def write_snapshot(self, path):
        """A file for https://pytorch.org/memory_viz."""
        self._call("write_snapshot", os.fsencode(path))

    def write_trace(self, path):
        """A file for https://ui.perfetto.dev."""
        self._call("write_trace", os.fsencode(path))

    def reset_peak(self):
        self._call("reset_peak")

    def take_error(self):
        """Raises the last error that no call could tell."""
        self._call("take_error")

    def close(self):
        self._call("close")

    def destroy(self):
        self._call("destroy")
        self._handle = None
