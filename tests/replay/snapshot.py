#!/usr/bin/env python3
"""Writes snapshot.pickle beside it: what `pickle.dump(torch.cuda.memory._snapshot(), file)` writes of a small
program, with the fields that PyTorch 2.11 has. Nothing but Python is needed. The program is made up: weights that
were there before the record began, activations on two streams, a tensor that another stream has used, a cache
that is freed and was there before, a request that did not fit, and two devices of which the second is idle.
"""

import pathlib
import pickle

MIB = 1 << 20
BASE = 0x7F20_0000_0000
SIDE = 0x55D0_1234_5670  # a stream's handle; 0 is the default stream

events = []


def event(action, addr, size, stream=0):
    frames = [
        {"name": "forward", "filename": "/home/user/model.py", "line": 41},
        {"name": "main", "filename": "/home/user/train.py", "line": 7},
    ]
    events.append(
        {
            "action": action,
            "addr": addr,
            "size": size,
            "stream": stream,
            "time_us": 1_700_000_000_000_000 + 10 * len(events),
            "compile_context": "N/A",
            "user_metadata": "",
            "frames": frames,
        }
    )


def freed(addr, size, stream=0):
    event("free_requested", addr, size, stream)
    event("free_completed", addr, size, stream)


def block(address, size, requested, state):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": []}


def segment(address, stream, blocks):
    def sum_of(field, states):
        return sum(own[field] for own in blocks if own["state"] in states)

    active = ("active_allocated", "active_pending_free", "active_awaiting_free")
    return {
        "device": 0,
        "address": address,
        "total_size": sum(own["size"] for own in blocks),
        "allocated_size": sum_of("size", active[:1]),
        "active_size": sum_of("size", active),
        "requested_size": sum_of("requested_size", active),
        "stream": stream,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


WEIGHTS, CACHE, FIRST, SECOND = (BASE + at * MIB for at in (0, 20, 32, 48))
OTHER = BASE + (1 << 36)

event("segment_alloc", BASE + 32 * MIB, 32 * MIB)
event("alloc", FIRST, 10 * MIB - 100)
event("segment_alloc", OTHER, 20 * MIB, SIDE)
event("alloc", OTHER, 3 * MIB, SIDE)
# Was there before.
freed(CACHE, 12 * MIB - 8)
# Another stream uses it still.
event("free_requested", FIRST, 10 * MIB - 100)
event("alloc", SECOND, 16 * MIB)
event("free_completed", FIRST, 10 * MIB - 100)
event("oom", 5 * MIB, 900 * MIB)
event("snapshot", 0, 0)
# The same address again.
event("alloc", FIRST, 8 * MIB)
freed(OTHER, 3 * MIB, SIDE)
event("alloc", OTHER, 1 * MIB, SIDE)
freed(SECOND, 16 * MIB)

snapshot = {
    "segments": [
        segment(
            BASE,
            0,
            [
                block(WEIGHTS, 20 * MIB, 20 * MIB - 4000, "active_allocated"),
                block(CACHE, 12 * MIB, 12 * MIB - 8, "inactive"),
            ],
        ),
        segment(
            FIRST,
            0,
            [
                block(FIRST, 8 * MIB, 8 * MIB, "active_allocated"),
                block(FIRST + 8 * MIB, 24 * MIB, 0, "inactive"),
            ],
        ),
        segment(
            OTHER,
            SIDE,
            [
                block(OTHER, 1 * MIB, 1 * MIB, "active_allocated"),
                block(OTHER + 1 * MIB, 19 * MIB, 0, "inactive"),
            ],
        ),
    ],
    "device_traces": [events, []],
    "allocator_settings": {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power_of_two_divisions": {"1": 0, "2": 0},
    },
    "external_annotations": [],
}

path = pathlib.Path(__file__).with_suffix(".pickle")
path.write_bytes(pickle.dumps(snapshot))
