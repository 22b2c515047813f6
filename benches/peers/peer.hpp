// One interface over every allocator that the program measures.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct Peer {
  virtual ~Peer() = default;

  // Device memory of `bytes` bytes for use on `stream`; nullptr when there is none.
  virtual void* alloc(std::size_t bytes, cudaStream_t stream) = 0;

  // Frees what was allocated for, and used on, `stream` alone.
  virtual void free(void* pointer, std::size_t bytes, cudaStream_t stream) = 0;

  // Frees what was allocated for `home` and last used on `user`, which has waited for `home` before. Most
  // allocators may free it on `user` then.
  virtual void free_used(void* pointer, std::size_t bytes, cudaStream_t home, cudaStream_t user) {
    (void)home;
    free(pointer, bytes, user);
  }

  // The most that was taken from the driver, in bytes.
  virtual std::size_t reserved() = 0;
};

// A way to make an allocator anew for each workload, as empty as it can be.
struct Maker {
  std::string name;
  // Whether memory may be used on another stream than it was allocated for.
  bool crosses;
  std::function<std::unique_ptr<Peer>()> make;
};

using Makers = std::vector<Maker>;
void add_driver(Makers&);
#ifdef WITH_RMM
void add_rmm(Makers&);
#endif
#ifdef WITH_TORCH
void add_torch(Makers&);
#endif
#ifdef WITH_CUB
void add_cub(Makers&);
#endif
