"""Array work by CuPy on several streams, with CuPy's own pool and then with streampool: the results must be
the same to the last bit; memory and times are put side by side.

    python3 cupy_arrays.py --lib libstreampool.so [--rounds 60] [--size 1000000]

Prints one JSON object a line; everything else goes to standard error. The exit status is 0 when the results
are the same, 1 when something failed or differed, and 2 when nothing was run.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import streampool  # noqa: E402

MIB = 1 << 20
NOTHING = 2


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True, help="the path of libstreampool.so")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--size", type=int, default=1_000_000, help="elements of the largest array")
    parser.add_argument("--streams", type=int, default=4)
    return parser.parse_args()


def work(cupy, args, streams, share, shared):
    """Chains of operations, each on a stream, with arrays that pass from one to the next; a digest of all
    that comes out. Sizes vary."""
    digest = hashlib.sha256()
    kept = []

    def settle():
        for stream, low, total, other in kept:
            for array, owner in ((low, stream), (total, other)):
                host = cupy.asnumpy(array, stream=owner)
                owner.synchronize()
                digest.update(host.tobytes())
        kept.clear()

    for turn in range(args.rounds):
        stream, other = streams[turn % len(streams)], streams[(turn + 1) % len(streams)]
        size = args.size // (1 + turn * 7 % 5) + turn * 257
        with stream:
            # Integers: no order of a sum changes them.
            numbers = (cupy.arange(size, dtype=cupy.int64) * 2654435761 + turn) % 1000003
            ordered = cupy.sort(numbers)
            sums = cupy.cumsum(ordered[::-1])
            low = numbers[numbers < 5000]
        # The next stream reads what this one has made.
        share(sums, stream, other)
        with other:
            mixed = sums[::3] * 31 + int(turn)
            total = (mixed ^ (mixed >> 7)).sum()
        shared(stream, other)
        kept.append((stream, low, total, other))
        # Freed while the work that uses them is under way.
        del numbers, ordered, sums, mixed
        if len(kept) == 8:
            settle()
    settle()
    return digest.hexdigest()


def measure(cupy, run):
    """A result, the time of the second run in ms (the first compiles kernels and takes memory), and the
    driver's memory that is gone since before the first."""
    cupy.cuda.Device().synchronize()
    free_before = cupy.cuda.runtime.memGetInfo()[0]
    results, spent = [], 0.0
    for _ in range(2):
        begun = time.perf_counter()
        results.append(run())
        cupy.cuda.Device().synchronize()
        spent = (time.perf_counter() - begun) * 1e3
    taken = free_before - cupy.cuda.runtime.memGetInfo()[0]
    return results, spent, taken


def both(cupy, library, args):
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(args.streams)]

    def with_cupy():
        """CuPy's pool gives memory back to the stream that it came from: so that one must wait for the use."""
        return work(
            cupy,
            args,
            streams,
            lambda array, owner, user: user.wait_event(owner.record()),
            lambda owner, user: owner.wait_event(user.record()),
        )

    def with_pool():
        return work(
            cupy,
            args,
            streams,
            lambda array, owner, user: pool.use_on(array.data.ptr, user.ptr),
            lambda owner, user: None,
        )

    # Kernels are compiled, and their modules take memory, before anything is measured.
    with_cupy()
    cupy.get_default_memory_pool().free_all_blocks()
    theirs, their_time, their_memory = measure(cupy, with_cupy)
    their_peak = cupy.get_default_memory_pool().total_bytes()
    cupy.get_default_memory_pool().free_all_blocks()

    allocator = library.install_in_cupy(cupy)
    pool = library.default_pool(cupy.cuda.Device().id)
    ours, our_time, our_memory = measure(cupy, with_pool)
    stats = pool.stats()
    try:
        cupy.empty(1 << 42, dtype=cupy.uint8)
        refusal = None
    except Exception as error:
        refusal = {"kind": type(error).__name__, "text": str(error)[:160]}
    same = len(set(theirs + ours)) == 1
    total = max(1, stats["hits"] + stats["misses"])
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    result = {
        "workload": "cupy arrays",
        "ok": same and refusal is not None and stats["stray_errors"] == 0,
        "same_results": same,
        "rounds": args.rounds,
        "cupy_ms": round(their_time, 3),
        "pool_ms": round(our_time, 3),
        "cupy_driver_mib": round(their_memory / MIB, 1),
        "pool_driver_mib": round(our_memory / MIB, 1),
        "cupy_reserved_mib": round(their_peak / MIB, 1),
        "pool_reserved_peak_mib": round(stats["peak_reserved"] / MIB, 1),
        "pool_live": stats["live"],
        "pool_hit_rate": round(stats["hits"] / total, 4),
        "pool": stats,
        "refusal": refusal,
        "device": properties["name"].decode(),
        "cupy": cupy.__version__,
    }
    if not same:
        print("digests:", theirs, ours, file=sys.stderr)
    # Back to CuPy's own pool, for what is allocated at exit.
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    del allocator
    result["not_retired"] = []
    for stream in streams:
        try:
            pool.retire_stream(stream.ptr)
        except streampool.Error as error:
            result["not_retired"].append(str(error))
    return result


def cannot_run(args):
    """Why nothing can be run here, or a library and CuPy."""
    if not os.path.isfile(args.lib):
        return f"there is no library {args.lib}", None, None
    try:
        library = streampool.Library(os.path.abspath(args.lib))
    except OSError as error:
        return f"the library cannot be loaded: {error}", None, None
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
        cupy.cuda.Device().use()
    except Exception as error:
        return f"CuPy cannot be used: {type(error).__name__}: {error}", None, None
    return None, library, cupy


def main():
    args = options()
    reason, library, cupy = cannot_run(args)
    if reason:
        print(f"NOTHING WAS RUN: {reason}")
        return NOTHING
    try:
        result = both(cupy, library, args)
    except Exception:
        traceback.print_exc()
        print(json.dumps({"workload": "cupy arrays", "ok": False, "failed": "see the text above"}))
        return 1
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
