// CUB's caching allocator: bins of powers of two from 512 B to 2 GiB. It frees on the stream that a block was
// allocated for, whoever used it.
#include <cub/util_allocator.cuh>

#include "peer.hpp"

namespace {
struct Cub final : Peer {
  cub::CachingDeviceAllocator allocator{2, 9, 31, std::size_t(100) << 30, true};

  void* alloc(std::size_t bytes, cudaStream_t stream) override {
    void* pointer = nullptr;
    return allocator.DeviceAllocate(&pointer, bytes, stream) == cudaSuccess ? pointer : nullptr;
  }
  void free(void* pointer, std::size_t, cudaStream_t) override { allocator.DeviceFree(pointer); }
  std::size_t reserved() override {
    auto& bytes = allocator.cached_bytes[0];
    return bytes.free + bytes.live;
  }
};
}  // namespace

void add_cub(Makers& makers) {
  makers.push_back({"cub::CachingDeviceAllocator", false, [] { return std::make_unique<Cub>(); }});
}
