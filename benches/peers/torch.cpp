// PyTorch's caching allocator. There is one in the process: each workload finds its cache empty.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

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

  // It frees to the stream that a block was allocated for, so that the other must be told to it, as a
  // tensor's `record_stream` does.
  void free_used(void* pointer, std::size_t, cudaStream_t, cudaStream_t user) override {
    c10::DataPtr lent(pointer, pointer, allocator::get()->raw_deleter(), c10::Device(c10::kCUDA, 0));
    allocator::recordStream(lent, c10::cuda::getStreamFromExternal(user, 0));
    lent.release_context();
    allocator::raw_delete(pointer);
  }
  std::size_t reserved() override { return allocator::getDeviceStats(0).reserved_bytes[0].peak; }
};
}  // namespace

void add_torch(Makers& makers) {
  makers.push_back({"PyTorch caching allocator", true, [] { return std::make_unique<Torch>(); }});
}
