#!/usr/bin/env python3
"""Reads a snapshot that streampool has written as a pickle, and says what is in it.

    scripts/open-snapshot.py FILE [--html FOLDER]

Needs nothing but Python. Where torch is installed, its own summary (torch.cuda._memory_viz.segsum) is
printed as well, and with --html its plots are written into a folder, to be opened in a browser.
https://pytorch.org/memory_viz opens the same file.
"""

import argparse
import collections
import pathlib
import pickle
import sys

MIB = 1 << 20


class PlainData(pickle.Unpickler):
    """Loads nothing but numbers, texts and what holds them: a snapshot names no class."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"a snapshot names no class, and this one names {module}.{name}")


def check(snapshot):
    """What the viewer relies on."""
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address, f"a gap at {address:#x}"
            assert block["state"] in ("active_allocated", "active_pending_free", "inactive"), block
            address += block["size"]
        assert address - segment["address"] == segment["total_size"], f"{segment['address']:#x}"
    for trace in snapshot["device_traces"]:
        for event in trace:
            assert {"action", "addr", "size", "stream", "time_us"} <= event.keys(), event


def play_back(snapshot, device):
    """Goes back from the snapshot as the viewer does; it draws no block that lies in no segment."""
    mapped = [
        (segment["address"], segment["address"] + segment["total_size"])
        for segment in snapshot["segments"]
        if segment["device"] == device
    ]
    live = {
        block["address"]: block["size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if segment["device"] == device and block["state"] == "active_allocated"
    }
    for event in reversed(snapshot["device_traces"][device]):
        start, end = event["addr"], event["addr"] + event["size"]
        if event["action"] == "segment_unmap":
            assert all(end <= low or high <= start for low, high in mapped), event
            mapped.append((start, end))
        elif event["action"] == "free_completed":
            assert any(low <= start < high for low, high in mapped), event
            assert start not in live, event
            live[start] = event["size"]
        elif event["action"] == "alloc":
            assert start in live, event
            del live[start]


def summary(snapshot):
    segments = snapshot["segments"]
    total = sum(segment["total_size"] for segment in segments)
    print(f"segments: {len(segments)}, {total / MIB:.1f} MiB")
    blocks = collections.Counter()
    sizes = collections.Counter()
    for segment in segments:
        for block in segment["blocks"]:
            blocks[block["state"]] += 1
            sizes[block["state"]] += block["size"]
    for state in sorted(blocks):
        print(f"  {state}: {blocks[state]} blocks, {sizes[state] / MIB:.1f} MiB")
    for device, trace in enumerate(snapshot["device_traces"]):
        actions = collections.Counter(event["action"] for event in trace)
        told = ", ".join(f"{count} {action}" for action, count in sorted(actions.items()))
        print(f"device {device}: {len(trace)} events{': ' if told else ''}{told}")
        play_back(snapshot, device)
        print("  played back to its beginning")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--html", type=pathlib.Path, help="a folder for torch's plots")
    options = parser.parse_args()
    with options.file.open("rb") as file:
        snapshot = PlainData(file).load()
    check(snapshot)
    summary(snapshot)
    try:
        from torch.cuda import _memory_viz
    except ImportError:
        print("torch is not installed: its own summary and plots are left out")
        return 1 if options.html else 0
    print(_memory_viz.segsum(snapshot))
    if options.html:
        options.html.mkdir(parents=True, exist_ok=True)
        for name in ("trace_plot", "segment_plot"):
            path = options.html / f"{name}.html"
            path.write_text(getattr(_memory_viz, name)(snapshot))
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
