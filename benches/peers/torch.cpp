// PyTorch's caching allocator. There is one in the process: each workload finds its cache empty.
#include <c10/cuda/CUDACachingAllocator.h>

#include "peer.hpp"

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {
struct Torch final : Peer {
  Torch() {
    static bool once = (allocator::init(1), true);
    (void)once;
    allocator::emptyCache();
    allocator::resetPeakStats(0);
  }

  void* alloc(std::size_t bytes, cudaStream_t stream) override {
    try {
      return allocator::raw_alloc_with_stream(bytes, stream);
    } catch (...) {
      return nullptr;
    }
  }
  void free(void* pointer, std::size_t, cudaStream_t) override { allocator::raw_delete(pointer); }

  std::size_t reserved() override { return allocator::getDeviceStats(0).reserved_bytes[0].peak; }
};
}  // namespace

// It frees to the stream that a block was allocated for. To tell it of another takes `recordStream`, which ends
// the process here (PyTorch 2.11, `c10` without the rest): the workloads that cross streams are not run on it.
void add_torch(Makers& makers) {
  makers.push_back({"PyTorch caching allocator", false, [] { return std::make_unique<Torch>(); }});
}
