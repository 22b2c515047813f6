// A pool as a memory resource in the style of RMM's device_memory_resource: a class with allocate(bytes,
// stream) and deallocate(pointer, bytes, stream), and a vector on top of it.
//
// On a machine with a CUDA driver:
//     c++ -std=c++17 -I capi/include capi/examples/rmm_style.cpp -L target/release -lstreampool -ldl
//
// It needs no CUDA toolkit: the few driver calls of the demonstration are looked up at run time. In a
// program of your own the stream is a cudaStream_t.
#include <streampool.h>

#include <cstdio>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include <dlfcn.h>

namespace streampool {

/// A call that failed: its status, and the library's text.
class error : public std::runtime_error {
  public:
    explicit error(streampool_status status)
        : std::runtime_error(std::string(streampool_status_name(status)) + ": " + streampool_last_error()),
          status_(status) {}
    streampool_status status() const noexcept { return status_; }

  private:
    streampool_status status_;
};

/// The same, where memory has run out: a std::bad_alloc too, for code that catches that.
class out_of_memory : public std::bad_alloc {
  public:
    out_of_memory() : text_(std::make_shared<std::string>(streampool_last_error())) {}
    const char *what() const noexcept override { return text_->c_str(); }

  private:
    std::shared_ptr<std::string> text_; // copying an exception must not throw
};

inline void check(streampool_status status) {
    if (status == STREAMPOOL_OK) return;
    if (status == STREAMPOOL_OUT_OF_MEMORY || status == STREAMPOOL_TOO_LARGE) throw out_of_memory();
    throw error(status);
}

/// A stream-ordered memory resource on a pool of its own.
class memory_resource {
  public:
    explicit memory_resource(int device, const streampool_config *config = nullptr) {
        check(streampool_create(device, config, &pool_));
    }
    memory_resource(const memory_resource &) = delete;
    memory_resource &operator=(const memory_resource &) = delete;
    ~memory_resource() {
        // With buffers alive it is refused: the pool is then left, not the memory taken away.
        if (streampool_destroy(pool_) != STREAMPOOL_OK)
            std::fprintf(stderr, "a pool is left behind: %s\n", streampool_last_error());
    }

    /// Memory for use on `stream`, aligned to 256 bytes.
    void *allocate(std::size_t bytes, void *stream) {
        void *pointer = nullptr;
        check(streampool_allocate(pool_, bytes, stream, &pointer));
        return pointer;
    }

    /// Gives it back. `stream` may be another than it was allocated on: its work so far is waited for by
    /// whoever gets the memory next.
    void deallocate(void *pointer, std::size_t, void *stream) noexcept {
        // It is a driver call or two where the stream is another one, and nothing where it is the same.
        streampool_status status = streampool_use_on(pool_, pointer, stream);
        if (status == STREAMPOOL_OK) status = streampool_free(pool_, pointer);
        // A destructor calls this: rather a leak than memory in use handed out.
        if (status != STREAMPOOL_OK)
            std::fprintf(stderr, "memory is not freed: %s\n", streampool_last_error());
    }

    /// To be called before `stream` is destroyed.
    void forget(void *stream) { check(streampool_retire_stream(pool_, stream)); }

    bool is_equal(const memory_resource &other) const noexcept { return pool_ == other.pool_; }

    streampool_stats stats() const {
        streampool_stats stats{};
        stats.size = sizeof stats;
        check(streampool_get_stats(pool_, &stats));
        return stats;
    }

    /// Frees many buffers after one synchronize: `clear` frees them.
    template <typename Clear> streampool_report release(Clear &&clear) {
        streampool_scope scope = 0;
        check(streampool_quiesce_begin(pool_, &scope));
        struct end_anyway {
            streampool_scope scope;
            ~end_anyway() {
                if (scope != 0) (void)streampool_quiesce_end(scope, nullptr);
            }
        } guard{scope};
        std::forward<Clear>(clear)();
        guard.scope = 0;
        streampool_report report{};
        check(streampool_quiesce_end(scope, &report));
        return report;
    }

  private:
    streampool_pool *pool_ = nullptr;
};

/// Memory that frees itself, in the style of rmm::device_buffer.
class device_buffer {
  public:
    device_buffer(std::size_t bytes, void *stream, memory_resource &resource)
        : resource_(&resource), pointer_(resource.allocate(bytes, stream)), bytes_(bytes),
          stream_(stream) {}
    device_buffer(device_buffer &&other) noexcept
        : resource_(other.resource_), pointer_(std::exchange(other.pointer_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)), stream_(other.stream_) {}
    device_buffer &operator=(device_buffer &&other) noexcept {
        std::swap(resource_, other.resource_);
        std::swap(pointer_, other.pointer_);
        std::swap(bytes_, other.bytes_);
        std::swap(stream_, other.stream_);
        return *this;
    }
    ~device_buffer() {
        if (pointer_ != nullptr) resource_->deallocate(pointer_, bytes_, stream_);
    }
    void *data() const noexcept { return pointer_; }
    std::size_t size() const noexcept { return bytes_; }
    void set_stream(void *stream) noexcept { stream_ = stream; }

  private:
    memory_resource *resource_;
    void *pointer_;
    std::size_t bytes_;
    void *stream_;
};

} // namespace streampool

// ---- A demonstration ----------------------------------------------------------------------------------

#include <vector>

namespace {

template <typename Function> Function driver(const char *name) {
    static void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) library = dlopen("libcuda.so", RTLD_NOW);
    void *symbol = library == nullptr ? nullptr : dlsym(library, name);
    if (symbol == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<Function>(symbol);
}

void *new_stream() {
    void *stream = nullptr;
    if (driver<int (*)(void **, unsigned)>("cuStreamCreate")(&stream, 1) != 0)
        throw std::runtime_error("cuStreamCreate failed");
    return stream;
}

void require(bool condition, const char *what) {
    if (!condition) throw std::runtime_error(std::string("not so: ") + what);
}

void demonstrate() {
    constexpr std::size_t mib = std::size_t{1} << 20;
    streampool_config config;
    streampool::check(streampool_config_init(&config));
    config.limit = 256 * mib;
    streampool::memory_resource resource(0, &config);

    // The device's primary context, as the CUDA runtime would make it current.
    void *context = nullptr;
    require(driver<int (*)(void **, int)>("cuDevicePrimaryCtxRetain")(&context, 0) == 0, "a context");
    require(driver<int (*)(void *)>("cuCtxSetCurrent")(context) == 0, "a current context");
    void *stream = new_stream(), *other = new_stream();

    void *address = nullptr;
    {
        streampool::device_buffer buffer(10 * mib, stream, resource);
        address = buffer.data();
    }
    streampool::device_buffer again(10 * mib, stream, resource);
    require(again.data() == address && resource.stats().hits == 1, "the same memory, by a hit");
    again.set_stream(other);

    std::vector<streampool::device_buffer> layer;
    for (int i = 0; i < 64; i++) layer.emplace_back(mib, i % 2 == 0 ? stream : other, resource);
    streampool_report report = resource.release([&] { layer.clear(); });
    require(report.freed == 64 && report.clean == 64, "a layer that is cleared at once");

    try {
        streampool::device_buffer much(512 * mib, stream, resource);
        require(false, "an allocation over the limit throws");
    } catch (const std::bad_alloc &error) {
        std::printf("refused: %s\n", error.what());
    }
    {
        streampool::device_buffer moved = std::move(again);
    }
    require(resource.stats().live == 0, "everything is freed");
    for (void *leaving : {stream, other}) {
        resource.forget(leaving);
        driver<int (*)(void *)>("cuStreamDestroy_v2")(leaving);
    }
    streampool_stats stats = resource.stats();
    std::printf("%llu allocations, %llu of them by a hit; %llu MiB taken at most\n",
                (unsigned long long)(stats.hits + stats.misses), (unsigned long long)stats.hits,
                (unsigned long long)(stats.peak_reserved / mib));
}

} // namespace

int main() {
    try {
        demonstrate();
        std::puts("rmm_style: well");
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "rmm_style: %s\n", error.what());
        return 1;
    }
}
