// RMM's pool over cudaMalloc.
#include <optional>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "peer.hpp"

namespace {
struct Rmm final : Peer {
  rmm::mr::cuda_memory_resource upstream;
  rmm::mr::pool_memory_resource pool;

  explicit Rmm(std::size_t initial) : pool(upstream, initial) {}

  void* alloc(std::size_t bytes, cudaStream_t stream) override {
    try {
      return pool.allocate(cuda::stream_ref{stream}, bytes, 256);
    } catch (...) {
      return nullptr;
    }
  }
  void free(void* pointer, std::size_t bytes, cudaStream_t stream) override {
    pool.deallocate(cuda::stream_ref{stream}, pointer, bytes, 256);
  }
  // It never gives memory back, so that its size is the most.
  std::size_t reserved() override { return pool.pool_size(); }
};
}  // namespace

void add_rmm(Makers& makers) {
  auto with = [](std::size_t initial) {
    return [initial] { return std::make_unique<Rmm>(initial); };
  };
  makers.push_back({"rmm pool", true, with(std::size_t(8) << 30)});
  // What it starts with decides whether it takes memory that other streams freed, or grows.
  makers.push_back({"rmm pool, 16 MiB at first", true, with(std::size_t(16) << 20)});
}
