// Workloads of benches/gpu on other allocators: the same names, the same draws, the same method. One JSON
// object a line. benches/README.md says what each workload is, and how to build and run this.
//
// usage: peers [PART-OF-A-WORKLOAD'S-NAME [PART-OF-A-PEER'S-NAME]]    all without it
//        peers limit TRACE.csv OVER-LIVE [PART-OF-A-PEER'S-NAME]     whether a recorded trace runs with so much
//                                                                    memory: a process for each peer
//        peers list                                                  the peers
//        peers --quick ...                                           tiny counts: measures nothing
//
// KERNELS names the file of the kernels; kernels/bench.ptx by default.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>
#include <unordered_map>

#include "check.hpp"
#include "peer.hpp"

namespace {
using Clock = std::chrono::steady_clock;

bool quick = false;
CUcontext context{};
CUfunction spin_kernel{}, compute_kernel{};

double nanoseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::nano>(Clock::now() - since).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int count(int full, int tiny) { return quick ? tiny : full; }

// Non-blocking streams, destroyed at the end.
struct Streams {
  std::vector<CUstream> all;

  explicit Streams(int n) : all(n) {
    for (auto& stream : all) CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  ~Streams() {
    for (auto stream : all) cuStreamDestroy(stream);
  }
  CUstream operator[](std::size_t at) const { return all[at]; }
};

void launch(CUfunction kernel, CUstream stream, void** arguments) {
  CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
}

void spin(CUstream stream, std::uint64_t ns) {
  void* arguments[] = {&ns};
  launch(spin_kernel, stream, arguments);
}

void compute(void* buffer, CUstream stream, std::uint64_t ticks) {
  auto address = reinterpret_cast<std::uint64_t>(buffer);
  void* arguments[] = {&address, &ticks};
  launch(compute_kernel, stream, arguments);
}

void* need(void* pointer, const std::string& peer) {
  if (pointer) return pointer;
  std::fprintf(stderr, "%s: out of memory\n", peer.c_str());
  std::exit(1);
}

void line(const std::string& peer, const std::string& workload, const char* unit, double value,
          const std::string& more) {
  std::printf("{\"peer\":\"%s%s\",\"workload\":\"%s\",\"unit\":\"%s\",\"value\":%.3f%s}\n", peer.c_str(),
              quick ? ", quick" : "", workload.c_str(), unit, value, more.c_str());
  std::fflush(stdout);
}

template <class T>
std::string with(const char* name, T value) {
  char text[80];
  if constexpr (std::is_floating_point_v<T>)
    std::snprintf(text, sizeof text, ",\"%s\":%.3f", name, double(value));
  else
    std::snprintf(text, sizeof text, ",\"%s\":%llu", name, static_cast<unsigned long long>(value));
  return text;
}

// What two readings of the clock take, which is in each time of the tail.
double clock_cost() {
  const int readings = 100000;
  double total = 0;
  for (int i = 0; i < readings; ++i) {
    auto begun = Clock::now();
    total += nanoseconds(begun);
  }
  return total / readings;
}

// Pairs of 512 KiB, each timed on its own, every thread on its own stream.
void tail(const Maker& maker, int threads) {
  const std::size_t bytes = 512 << 10;
  auto peer = maker.make();
  Streams streams(threads);
  const int pairs = count(2000000, 2000) / threads;
  std::vector<std::vector<std::uint64_t>> times(threads);
  std::atomic<int> ready{0};
  std::vector<std::thread> running;
  for (int at = 0; at < threads; ++at)
    running.emplace_back([&, at] {
      CHECK(cuCtxSetCurrent(context));
      auto stream = streams[at];
      auto one = [&] { peer->free(need(peer->alloc(bytes, stream), maker.name), bytes, stream); };
      // Written once before, so that no page of it is new when it counts.
      std::vector<std::uint64_t> own(pairs, 1);
      for (int i = 0; i < 1000; ++i) one();
      ++ready;
      while (ready.load(std::memory_order_acquire) < threads) std::this_thread::yield();
      for (auto& time : own) {
        auto begun = Clock::now();
        one();
        time = std::uint64_t(nanoseconds(begun));
      }
      times[at] = std::move(own);
    });
  for (auto& thread : running) thread.join();
  CHECK(cuCtxSynchronize());
  std::vector<std::uint64_t> all;
  for (auto& own : times) all.insert(all.end(), own.begin(), own.end());
  std::sort(all.begin(), all.end());
  // The smallest time that this part of all pairs did not exceed.
  auto within = [&](double part) {
    return all[std::min(std::size_t(double(all.size()) * part), all.size() - 1)];
  };
  line(maker.name, "tail " + std::to_string(threads) + (threads == 1 ? " thread" : " threads"),
       "ns per alloc+free, median", double(within(0.5)),
       with("p99_ns", within(0.99)) + with("p99_9_ns", within(0.999)) + with("p99_99_ns", within(0.9999)) +
           with("max_ns", within(1.0)) + with("pairs", all.size()) + with("clock_ns", clock_cost()));
}

// Queues work again and again, each time on an idle device: the first time on an empty allocator.
template <class Queue>
void run(const Maker& maker, Peer& peer, const std::string& name, double ideal, Queue queue) {
  std::vector<double> rounds;
  for (int round = 0; round < 1 + count(21, 2); ++round) {
    CHECK(cuCtxSynchronize());
    auto begun = Clock::now();
    queue();
    CHECK(cuCtxSynchronize());
    rounds.push_back(nanoseconds(begun) / 1e6);
  }
  double cold = rounds.front();
  rounds.erase(rounds.begin());
  const char* queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  line(maker.name, name, "ms", median(rounds),
       with("cold_ms", cold) + (ideal > 0 ? with("ideal_ms", ideal) : "") +
           with("hardware_queues", queues ? std::strtoul(queues, nullptr, 10) : 8ul) +
           with("reserved_mib", peer.reserved() >> 20));
}

void multi_stream(const Maker& maker, int streams_count) {
  auto peer = maker.make();
  Streams streams(streams_count);
  run(maker, *peer, "multi-stream " + std::to_string(streams_count), 0, [&] {
    for (int at = 0; at < 4; ++at) {
      auto stream = streams[at % streams_count];
      void* buffer = need(peer->alloc(8, stream), maker.name);
      compute(buffer, stream, 1000000);
      peer->free(buffer, 8, stream);
    }
  });
}

void pipeline(const Maker& maker) {
  const int stages = 8, items = 64;
  const std::size_t bytes = 8 << 20;
  std::mt19937_64 random(42);
  std::uniform_real_distribution<double> draw(std::log2(2e4), std::log2(2e6));
  std::vector<std::vector<std::uint64_t>> times(items, std::vector<std::uint64_t>(stages));
  for (auto& item : times)
    for (auto& ns : item) ns = std::uint64_t(std::exp2(draw(random)));
  // What waits for its stream and for its input alone.
  std::vector<std::uint64_t> ends(stages);
  for (auto& item : times) {
    std::uint64_t input = 0;
    for (int stage = 0; stage < stages; ++stage)
      input = ends[stage] = std::max(input, ends[stage]) + item[stage];
  }
  auto peer = maker.make();
  Streams streams(stages);
  std::vector<CUevent> events(stages);
  for (auto& event : events) CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  run(maker, *peer, "pipeline 8 streams", double(ends.back()) / 1e6, [&] {
    for (auto& item : times) {
      void* input = nullptr;
      for (int stage = 0; stage < stages; ++stage) {
        auto stream = streams[stage];
        void* output = need(peer->alloc(bytes, stream), maker.name);
        if (input) {
          CHECK(cuEventRecord(events[stage - 1], streams[stage - 1]));
          CHECK(cuStreamWaitEvent(stream, events[stage - 1], 0));
        }
        spin(stream, item[stage]);
        if (input) peer->free_used(input, bytes, streams[stage - 1], stream);
        input = output;
      }
      peer->free(input, bytes, streams[stages - 1]);
    }
  });
  for (auto event : events) CHECK(cuEventDestroy(event));
}

// An operation of a recorded trace: time,action,address,bytes,stream.
struct Operation {
  bool allocates;
  std::uint64_t address;
  std::size_t bytes;
  int stream;
};

std::vector<Operation> read_trace(const std::string& path) {
  std::ifstream file(path);
  std::vector<Operation> operations;
  for (std::string text; std::getline(file, text);) {
    char action[16];
    unsigned long long address, bytes;
    int stream;
    // Comments and the names of the columns do not match.
    if (std::sscanf(text.c_str(), "%*f,%15[^,],%llx,%llu,%d", action, &address, &bytes, &stream) == 4)
      operations.push_back({std::string(action) == "allocate", address, std::size_t(bytes), stream});
  }
  if (operations.empty()) {
    std::fprintf(stderr, "no operation in %s\n", path.c_str());
    std::exit(2);
  }
  return operations;
}

std::size_t peak_of(const std::vector<Operation>& operations) {
  std::unordered_map<std::uint64_t, std::size_t> alive;
  std::size_t now = 0, peak = 0;
  for (auto& operation : operations) {
    if (operation.allocates) {
      now += alive[operation.address] = operation.bytes;
      peak = std::max(peak, now);
    } else if (auto own = alive.find(operation.address); own != alive.end()) {
      now -= own->second;
      alive.erase(own);
    }
  }
  return peak;
}

// Runs a trace twice, with all of the device's memory taken but so much of what the trace needs at most.
void limit(const Maker& maker, const std::string& path, double over_live) {
  auto operations = read_trace(path);
  int streams_count = 1;
  for (auto& operation : operations) streams_count = std::max(streams_count, operation.stream + 1);
  Streams streams(streams_count);
  const std::size_t page = 2 << 20, allowed = std::size_t(double(peak_of(operations)) * over_live) / page * page;
  // What a stream's and the allocator's first use take is not the trace's.
  {
    auto peer = maker.make();
    for (auto stream : streams.all) {
      void* small = need(peer->alloc(256, stream), maker.name);
      peer->free(small, 256, stream);
    }
    CHECK(cuCtxSynchronize());
  }
  // In smaller and smaller pieces: the driver gives the last of its memory only so.
  std::vector<CUdeviceptr> fillers;
  for (std::size_t piece = std::size_t(1) << 40; piece >= page; piece /= 2) {
    for (;;) {
      std::size_t free = 0, total = 0;
      CHECK(cuMemGetInfo(&free, &total));
      CUdeviceptr filler = 0;
      if (free < allowed + piece || cuMemAlloc(&filler, piece) != CUDA_SUCCESS) break;
      fillers.push_back(filler);
    }
  }
  std::size_t left = 0, total = 0;
  CHECK(cuMemGetInfo(&left, &total));
  std::size_t done = 0;
  bool refused = false;
  {
    auto peer = maker.make();
    std::unordered_map<std::uint64_t, std::pair<void*, Operation>> alive;
    auto free_one = [&](auto own) {
      auto& [pointer, from] = own->second;
      peer->free(pointer, from.bytes, streams[from.stream]);
      alive.erase(own);
    };
    for (int pass = 0; pass < 2 && !refused; ++pass) {
      for (auto& operation : operations) {
        if (operation.allocates) {
          void* pointer = peer->alloc(operation.bytes, streams[operation.stream]);
          refused = !pointer;
          if (refused) break;
          alive[operation.address] = {pointer, operation};
        } else if (auto own = alive.find(operation.address); own != alive.end()) {
          free_one(own);
        }
        ++done;
      }
      while (!alive.empty()) free_one(alive.begin());
      CHECK(cuCtxSynchronize());
    }
  }
  for (auto filler : fillers) CHECK(cuMemFree(filler));
  auto name = path.substr(path.find_last_of('/') + 1);
  line(maker.name, "limit " + name, "operations served", double(done),
       with("operations", 2 * operations.size()) + with("completes", int(!refused)) +
           with("allowed_mib", allowed >> 20) + with("left_mib", left >> 20) + with("over_live", over_live));
}

void load_kernels() {
  const char* path = std::getenv("KERNELS");
  std::ifstream file(path ? path : "kernels/bench.ptx");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.empty()) {
    std::fprintf(stderr, "no kernels in %s: KERNELS names the file\n", path ? path : "kernels/bench.ptx");
    std::exit(2);
  }
  CUmodule module{};
  CHECK(cuModuleLoadData(&module, text.c_str()));
  CHECK(cuModuleGetFunction(&spin_kernel, module, "spin"));
  CHECK(cuModuleGetFunction(&compute_kernel, module, "compute"));
}
}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "--quick") {
    quick = true;
    words.erase(words.begin());
  }
  Makers makers;
  add_driver(makers);
#ifdef WITH_RMM
  add_rmm(makers);
#endif
#ifdef WITH_TORCH
  add_torch(makers);
#endif
#ifdef WITH_CUB
  add_cub(makers);
#endif
  if (!words.empty() && words[0] == "list") {
    for (auto& maker : makers) std::puts(maker.name.c_str());
    return 0;
  }
  CUdevice device{};
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS) {
    std::fprintf(stderr, "!!! NOTHING WAS MEASURED: no CUDA device can be used\n");
    return 2;
  }
  // The primary context, which is the one of the runtime API too.
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  load_kernels();

  auto holds = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  if (!words.empty() && words[0] == "limit") {
    double over_live = words.size() > 2 ? std::atof(words[2].c_str()) : 0;
    if (over_live < 1) {
      std::fprintf(stderr, "peers limit TRACE.csv OVER-LIVE [PEER]: how much, at least 1, of the trace's peak\n");
      return 2;
    }
    std::string peer = words.size() > 3 ? words[3] : "";
    bool measured = false;
    for (auto& maker : makers) {
      if (!holds(maker.name, peer)) continue;
      limit(maker, words[1], over_live);
      measured = true;
    }
    if (!measured) std::fprintf(stderr, "no peer is named so\n");
    return measured ? 0 : 2;
  }
  std::string part = !words.empty() ? words[0] : "", peer = words.size() > 1 ? words[1] : "";
  bool measured = false;
  for (auto& maker : makers) {
    if (!holds(maker.name, peer)) continue;
    auto chosen = [&](const std::string& name) {
      bool is = holds(name, part);
      measured |= is;
      return is;
    };
    if (chosen("tail 1 thread")) tail(maker, 1);
    if (chosen("tail 16 threads")) tail(maker, 16);
    for (int streams : {1, 2, 4})
      if (chosen("multi-stream " + std::to_string(streams))) multi_stream(maker, streams);
    if (maker.crosses && chosen("pipeline 8 streams")) pipeline(maker);
  }
  if (!measured) std::fprintf(stderr, "no workload and peer are named so\n");
  return measured ? 0 : 2;
}
