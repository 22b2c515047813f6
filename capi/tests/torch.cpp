// PyTorch's functions as PyTorch calls them: from C++, by std::function, with exceptions.
#include <functional>
#include <stdexcept>
#include <string>

#include <sys/types.h>

#include "check.h"
#include "driver.h"

struct counted {
    int *count;
    ~counted() { ++*count; }
};

// What a call throws, or "". The frames in between must be unwound.
template <typename Call> static std::string thrown(Call call) {
    int unwound = 0;
    std::string text;
    try {
        counted frame{&unwound};
        call();
    } catch (const std::runtime_error &error) {
        text = error.what();
    }
    CHECK(unwound == 1);
    return text;
}

static bool begins(const std::string &text, const char *words) { return text.rfind(words, 0) == 0; }

int main() {
    std::function<void *(ssize_t, int, void *)> alloc = streampool_torch_alloc;
    std::function<void(void *, ssize_t, int, void *)> release = streampool_torch_free;
    std::function<void(void *, void *)> record = streampool_torch_record_stream;

    streampool_config config;
    MUST(streampool_config_init(&config));
    config.limit = 64 << 20;
    MUST(streampool_default_configure(&config));
    make_current(primary_context(0));
    void *stream = new_stream(), *captures = new_stream();
    streampool_pool *pool = nullptr;
    MUST(streampool_default_pool(0, &pool));

    for (int round = 0; round < 1000; round++) {
        std::string text = thrown([&] { alloc(65 << 20, 0, stream); });
        CHECK(begins(text, "CUDA out of memory. streampool: over the pool's limit"));
    }
    CHECK(begins(thrown([&] { alloc(-5, 0, stream); }), "streampool: a request of -5 bytes"));
    CHECK(begins(thrown([&] { alloc(1, 5, stream); }), "streampool: "));
    CHECK(alloc(0, 0, stream) == nullptr);

    void *buffer = alloc(1 << 20, 0, nullptr);
    CHECK(thrown([&] { record(buffer, stream); }) == "");
    CHECK(thrown([&] { record(nullptr, stream); }) == "");
    CHECK(thrown([&] { record(&config, stream); }) == "");
    begin_capture(captures);
    CHECK(thrown([&] { record(buffer, captures); }).find("capture") != std::string::npos);
    end_capture(captures);
    release(buffer, 1 << 20, 0, nullptr);
    release(buffer, 1 << 20, 0, nullptr);
    CHECK(says("was freed already"));
    streampool_torch_empty_cache();
    CHECK(stats_of(pool).live == 0);
    puts("torch: well");
}
