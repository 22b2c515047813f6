"""A small GPT trained by PyTorch twice, in a process each: with PyTorch's own allocator, and with streampool.
The losses must be the same to the last bit; memory and step times are put side by side.

    python3 pytorch_gpt.py --lib libstreampool.so [--steps 60] [--rounds 2] [--width 512] [--layers 6]

Prints one JSON object a line; everything else goes to standard error. The exit status is 0 when the losses
are the same, 1 when something failed or differed, and 2 when nothing was run.
"""

import argparse
import json
import os
import pathlib
import platform
import queue
import statistics
import subprocess
import sys
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import streampool  # noqa: E402

MIB = 1 << 20
NOTHING = 2
BLOCK = 5  # steps between two synchronizes


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True, help="the path of libstreampool.so")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each kind")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--reuse", choices=["balanced", "memory", "speed"], default="balanced")
    parser.add_argument("--timeout", type=int, default=240, help="seconds for each process")
    parser.add_argument("--allocator", choices=["torch", "pool"], help="run this process alone")
    return parser.parse_args()


def model(torch, width, layers, heads, vocabulary, longest):
    """A decoder: embeddings, blocks of causal attention and a two-layer perceptron, a linear head."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
            self.queries_keys_values = nn.Linear(width, 3 * width)
            self.mix = nn.Linear(width, width)
            self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def attention(self, x):
            batch, length, _ = x.shape
            parts = self.queries_keys_values(x).view(batch, length, 3, heads, width // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-2, -1) * (width // heads) ** -0.5
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            weights = functional.softmax(scores.masked_fill(later, float("-inf")), dim=-1)
            return self.mix((weights @ v).transpose(1, 2).reshape(batch, length, width))

        def forward(self, x):
            x = x + self.attention(self.before_attention(x))
            return x + self.narrow(functional.gelu(self.widen(self.before_perceptron(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.places = nn.Embedding(longest, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, tokens):
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.tokens(tokens) + self.places(places)
            for block in self.blocks:
                x = block(x)
            return self.head(self.last(x))

    return Gpt()


def batches(torch, steps, batch, vocabulary, longest):
    """Synthetic text: each token follows from the one before, with some noise. Lengths vary, so that sizes
    do."""
    generator = torch.Generator().manual_seed(7)
    for step in range(steps):
        length = longest - 32 * (step * 7 % 5)
        start = torch.randint(vocabulary, (batch, 1), generator=generator)
        noise = torch.randint(3, (batch, length), generator=generator)
        tokens = (start * 5 + noise.cumsum(1) * 3 + torch.arange(length) * 7) % vocabulary
        yield tokens.pin_memory()


class Releaser:
    """Frees tensors on a thread of its own, as data loaders and servers do."""

    def __init__(self):
        self.things = queue.Queue(maxsize=4)
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        while self.things.get() is not None:
            pass

    def end(self):
        self.things.put(None)
        self.thread.join()


def train(torch, args, free_now):
    """The losses as exact numbers, the times of the blocks of steps in ms, and the least memory that the
    driver had left."""
    vocabulary, longest = 256, 256
    torch.manual_seed(1)
    gpt = model(torch, args.width, args.layers, args.heads, vocabulary, longest).cuda()
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=3e-4)
    main, side, releaser = torch.cuda.current_stream(), torch.cuda.Stream(), Releaser()
    losses, times, least = [], [], free_now()
    begun = time.perf_counter()
    try:
        for step, host in enumerate(batches(torch, args.steps, args.batch, vocabulary, longest)):
            # Copied on another stream than it is used on, and so recorded.
            with torch.cuda.stream(side):
                tokens = host.to("cuda", non_blocking=True)
            main.wait_stream(side)
            tokens.record_stream(main)
            guesses = gpt(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(
                guesses.reshape(-1, vocabulary), tokens[:, 1:].reshape(-1)
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            releaser.things.put((guesses, tokens))
            del guesses, tokens, loss
            if (step + 1) % BLOCK == 0:
                torch.cuda.synchronize()
                now = time.perf_counter()
                times.append((now - begun) * 1e3 / BLOCK)
                least = min(least, free_now())
                begun = time.perf_counter()
    finally:
        releaser.end()
    torch.cuda.synchronize()
    return [float(loss) for loss in losses], times, least


def refusal(torch):
    """What an allocation that no device can serve raises."""
    try:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    except Exception as error:
        return {"kind": type(error).__name__, "text": str(error).splitlines()[0][:160]}
    return None


def run_one(args):
    """This process: one allocator. Prints its JSON line."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    library = streampool.Library(args.lib)
    import torch

    result = {"workload": "pytorch gpt, one process", "allocator": args.allocator, "torch": torch.__version__}
    result["python"], result["streampool"] = platform.python_version(), library.version()
    if args.allocator == "pool":
        library.configure_defaults(reuse=["balanced", "memory", "speed"].index(args.reuse))
        result["hooks"] = library.install_in_torch(torch)
        if not result["hooks"]["record_stream"]:
            say("this PyTorch has no hook for record_stream: the losses may differ")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.cuda.init()
    result["device"] = torch.cuda.get_device_name()

    def free_now():
        return torch.cuda.mem_get_info()[0]

    baseline = free_now()
    losses, times, least = train(torch, args, free_now)
    # The first block has what happens once: libraries that are loaded, memory that is taken.
    rest = times[1:] or times
    result.update(
        steps=args.steps,
        losses=losses,
        first_step_ms=round(times[0], 3),
        step_ms=round(statistics.median(rest), 3),
        step_ms_best=round(min(rest), 3),
        step_ms_worst=round(max(rest), 3),
        driver_peak_mib=round((baseline - least) / MIB, 1),
    )
    if args.allocator == "pool":
        stats = library.default_pool(torch.cuda.current_device()).stats()
        result["reserved_peak_mib"] = round(stats["peak_reserved"] / MIB, 1)
        result["in_use_peak_mib"] = round(stats["peak_in_use"] / MIB, 1)
        result["pool"] = stats
        result["refusal"] = refusal(torch)
        before = stats["reserved"]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        after = library.default_pool(torch.cuda.current_device()).stats()
        result["emptied_mib"] = round((before - after["reserved"]) / MIB, 1)
        result["stray_errors"] = after["stray_errors"]
    else:
        result["reserved_peak_mib"] = round(torch.cuda.max_memory_reserved() / MIB, 1)
        result["in_use_peak_mib"] = round(torch.cuda.max_memory_allocated() / MIB, 1)
        result["refusal"] = refusal(torch)
    print(json.dumps(result), flush=True)


def spawn(args, allocator):
    """Another process with one allocator: its result, or None."""
    say(f"-- {allocator}")
    command = [sys.executable, os.path.abspath(__file__), "--allocator", allocator]
    for name in ("lib", "steps", "width", "layers", "heads", "batch", "reuse"):
        command += [f"--{name}", str(getattr(args, name))]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=args.timeout, check=False)
    except subprocess.TimeoutExpired:
        say(f"the process with {allocator} was stopped after {args.timeout} s")
        return None
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        say(f"the process with {allocator} failed: exit status {done.returncode}")
        return None
    return json.loads(lines[-1])


def first_difference(left, right):
    if len(left) != len(right):
        return min(len(left), len(right))
    return next((at for at, (one, other) in enumerate(zip(left, right)) if one != other), None)


def compare(results):
    ours, theirs = results["pool"], results["torch"]
    reference = theirs[0]["losses"]
    differences = {
        f"{kind} {number + 1}": first_difference(reference, one["losses"])
        for kind in results
        for number, one in enumerate(results[kind])
    }
    same = all(difference is None for difference in differences.values())

    def best(all_of, key):
        return min(one[key] for one in all_of)

    pool = ours[0]["pool"]
    total = max(1, pool["hits"] + pool["misses"])
    learns = reference[-1] < reference[0]
    refused = (ours[0]["refusal"] or {}).get("text", "")
    return {
        "workload": "pytorch gpt",
        "ok": same and learns and "CUDA out of memory" in refused,
        "same_losses": same,
        "losses_differ_at": {name: at for name, at in differences.items() if at is not None},
        "first_loss": reference[0],
        "last_loss": reference[-1],
        "torch_step_ms": best(theirs, "step_ms"),
        "pool_step_ms": best(ours, "step_ms"),
        "step_ratio": round(best(ours, "step_ms") / best(theirs, "step_ms"), 4),
        "torch_driver_peak_mib": best(theirs, "driver_peak_mib"),
        "pool_driver_peak_mib": best(ours, "driver_peak_mib"),
        "torch_reserved_peak_mib": best(theirs, "reserved_peak_mib"),
        "pool_reserved_peak_mib": best(ours, "reserved_peak_mib"),
        "pool_hit_rate": round(pool["hits"] / total, 4),
        "pool_driver_calls": pool["driver_calls"],
        "refusal": ours[0]["refusal"],
        "device": ours[0]["device"],
        "torch": ours[0]["torch"],
        "hooks": ours[0]["hooks"],
    }


def cannot_run(args):
    """Why nothing can be run here, or None."""
    if not os.path.isfile(args.lib):
        return f"there is no library {args.lib}"
    try:
        streampool.Library(args.lib)
    except OSError as error:
        return f"the library cannot be loaded: {error}"
    # In a process of its own: to ask makes PyTorch choose its allocator.
    probe = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"
    code = subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL, check=False).returncode
    return {0: None, 3: "PyTorch sees no GPU"}.get(code, "PyTorch cannot be imported")


def main():
    args = options()
    args.lib = os.path.abspath(args.lib)
    if args.allocator:
        try:
            run_one(args)
        except Exception:
            traceback.print_exc()
            return 1
        return 0
    reason = cannot_run(args)
    if reason:
        print(f"NOTHING WAS RUN: {reason}")
        return NOTHING
    results = {"torch": [], "pool": []}
    for _ in range(args.rounds):
        for allocator, found in results.items():
            result = spawn(args, allocator)
            if result is None:
                print(json.dumps({"workload": "pytorch gpt", "ok": False, "failed": allocator}))
                return 1
            found.append(result)
            print(json.dumps({key: value for key, value in result.items() if key != "losses"}), flush=True)
    comparison = compare(results)
    print(json.dumps(comparison))
    if not comparison["ok"]:
        say("first losses:", [[one["losses"][:5] for one in results[kind]] for kind in results])
    return 0 if comparison["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
