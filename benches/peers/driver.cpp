// The driver's own stream-ordered allocation, what cudaMallocAsync is: a pool of its own that keeps its memory.
#include <cuda.h>

#include <cstdint>

#include "check.hpp"
#include "peer.hpp"

namespace {
struct Driver final : Peer {
  CUmemoryPool pool{};

  Driver() {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CHECK(cuMemPoolCreate(&pool, &properties));
    std::uint64_t keep = UINT64_MAX;
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  }
  ~Driver() override { cuMemPoolDestroy(pool); }

  void* alloc(std::size_t bytes, cudaStream_t stream) override {
    CUdeviceptr address = 0;
    if (cuMemAllocFromPoolAsync(&address, bytes, pool, stream) != CUDA_SUCCESS) return nullptr;
    return reinterpret_cast<void*>(address);
  }
  void free(void* pointer, std::size_t, cudaStream_t stream) override {
    CHECK(cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(pointer), stream));
  }
  std::size_t reserved() override {
    std::uint64_t bytes = 0;
    CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &bytes));
    return bytes;
  }
};
}  // namespace

void add_driver(Makers& makers) {
  makers.push_back({"cudaMallocAsync", true, [] { return std::make_unique<Driver>(); }});
}
