/* Every function of the interface and every error, on the stand-in for the driver, with two devices of 1 GiB.
 * usage: interface [PART], a process for each part; without one, their names. */
/* For mkstemp. */
#define _XOPEN_SOURCE 700
#include <unistd.h>

#include "check.h"
#include "driver.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define PER_THREAD ((void *)(uintptr_t)2)

static streampool_pool *small_pool(uint64_t limit) {
    streampool_config config;
    streampool_pool *pool = NULL;
    MUST(streampool_config_init(&config));
    config.limit = limit;
    config.floor = 0;
    MUST(streampool_create(0, &config, &pool));
    return pool;
}

static void end(streampool_pool *pool) {
    MUST(streampool_close(pool));
    MUST(streampool_destroy(pool));
}

static void about(void) {
    CHECK(strcmp(streampool_version(), "0.1.0") == 0);
    CHECK(strcmp(streampool_last_error(), "") == 0);
    CHECK(strcmp(streampool_status_name(STREAMPOOL_UNKNOWN_ADDRESS), "STREAMPOOL_UNKNOWN_ADDRESS") == 0);
    CHECK(strcmp(streampool_status_name(STREAMPOOL_PANIC), "STREAMPOOL_PANIC") == 0);
    CHECK(strcmp(streampool_status_name(-7), "an unknown status") == 0);
}

static void options(void) {
    streampool_config config;
    streampool_pool *pool = (streampool_pool *)&config;
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_config_init(NULL));
    MUST(streampool_config_init(&config));
    CHECK(config.size == sizeof config && config.floor == STREAMPOOL_DEFAULT && config.late_waits == 1);
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_create(0, &config, NULL));

#define REFUSES(words, change)                                                     \
    do {                                                                           \
        MUST(streampool_config_init(&config));                                     \
        change;                                                                    \
        EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_create(0, &config, &pool)); \
        CHECK(says(words));                                                        \
    } while (0)
    REFUSES("streampool_config_init", config.size = 8);
    REFUSES("reuse is 0, 1 or 2, not 3", config.reuse = 3);
    REFUSES("growth is 0 or 1, not 2", config.growth = 2);
    REFUSES("late_waits", config.late_waits = 7);
    REFUSES("foreign_captures", config.foreign_captures = 7);
    REFUSES("limit_fraction", config.limit_fraction = 1.5);
    REFUSES("both", (config.limit = 1, config.limit_fraction = 0.5));
    CHECK(pool == (streampool_pool *)&config);

    /* Options of a later header: 0 is no option. */
    struct {
        streampool_config config;
        uint64_t later;
    } larger;
    MUST(streampool_config_init(&larger.config));
    larger.config.size = sizeof larger;
    larger.later = 1;
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_create(0, &larger.config, &pool));
    CHECK(says("does not have"));
    larger.later = 0;
    larger.config.reuse = STREAMPOOL_REUSE_SPEED;
    larger.config.growth = STREAMPOOL_GROWTH_SEGMENTS;
    larger.config.limit_fraction = 0.5;
    larger.config.soft_target = 64 * MIB;
    larger.config.reserve = 8 * MIB;
    MUST(streampool_create(0, &larger.config, &pool));
    CHECK(stats_of(pool).reserved >= 8 * MIB);
    end(pool);

    EXPECT(STREAMPOOL_DRIVER, streampool_create(7, NULL, &pool));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_create(-2, NULL, &pool));
    MUST(streampool_config_init(&config));
    config.reserve = (uint64_t)1 << 40;
    EXPECT(STREAMPOOL_OUT_OF_MEMORY, streampool_create(0, &config, &pool));
    MUST(streampool_destroy(NULL));
}

static void buffers(void) {
    make_current(primary_context(0));
    void *stream = new_stream(), *buffer = NULL, *other = (void *)1;
    size_t bytes = 1, capacity = 1;
    streampool_pool *pool = small_pool(64 * MIB);

    /* What was freed on the stream is allocated again with no driver call; so are frees. */
    buffer = allocate(pool, 100 * KIB, stream);
    CHECK(buffer != NULL && (uintptr_t)buffer % 256 == 0);
    memset(buffer, 1, 100 * KIB);
    MUST(streampool_size(pool, buffer, &bytes, &capacity));
    CHECK(bytes == 100 * KIB && capacity >= bytes && capacity <= bytes + bytes / 8);
    MUST(streampool_size(pool, buffer, NULL, NULL));
    reset_counts();
    MUST(streampool_free(pool, buffer));
    CHECK(allocate(pool, 100 * KIB, stream) == buffer);
    MUST(streampool_free(pool, buffer));
    CHECK(calls() == 0);
    CHECK(stats_of(pool).hits == 1 && stats_of(pool).frees == 2);

    /* Wrong addresses. */
    EXPECT(STREAMPOOL_UNKNOWN_ADDRESS, streampool_free(pool, buffer));
    CHECK(says("was freed already"));
    EXPECT(STREAMPOOL_UNKNOWN_ADDRESS, streampool_size(pool, buffer, &bytes, &capacity));
    EXPECT(STREAMPOOL_UNKNOWN_ADDRESS, streampool_use_on(pool, buffer, stream));
    EXPECT(STREAMPOOL_UNKNOWN_ADDRESS, streampool_move_to(pool, buffer, stream));
    buffer = allocate(pool, 4 * KIB, stream);
    EXPECT(STREAMPOOL_UNKNOWN_ADDRESS, streampool_free(pool, (char *)buffer + 256));
    EXPECT(STREAMPOOL_UNKNOWN_ADDRESS, streampool_free(pool, &bytes));
    streampool_pool *second = small_pool(0);
    EXPECT(STREAMPOOL_UNKNOWN_ADDRESS, streampool_free(second, buffer));
    MUST(streampool_free(pool, buffer));

    /* No bytes, no address. */
    MUST(streampool_allocate(pool, 0, stream, &other));
    CHECK(other == NULL);
    MUST(streampool_free(pool, NULL));
    MUST(streampool_size(pool, NULL, &bytes, &capacity));
    CHECK(bytes == 0 && capacity == 0);
    MUST(streampool_use_on(pool, NULL, stream));
    MUST(streampool_move_to(pool, NULL, stream));
    CHECK(stats_of(pool).live == 0);

    /* Sizes and alignments. On a failure the place is untouched. */
    other = &bytes;
    EXPECT(STREAMPOOL_TOO_LARGE, streampool_allocate(pool, SIZE_MAX - 3, stream, &other));
    EXPECT(STREAMPOOL_OUT_OF_MEMORY, streampool_allocate(pool, 65 * MIB, stream, &other));
    CHECK(says("over the pool's limit: requested 68157440") && other == &bytes);
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_allocate_aligned(pool, 1, 48, stream, &other));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_allocate_aligned(pool, 1, 0, stream, &other));
    MUST(streampool_allocate_aligned(pool, 100, 64 * KIB, stream, &other));
    CHECK((uintptr_t)other % (64 * KIB) == 0);
    MUST(streampool_free(pool, other));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_allocate(pool, 1, stream, NULL));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_allocate(NULL, 1, stream, &other));
    CHECK(says("the pool is null"));

    /* The device has no more. */
    fail("cuMemCreate", 0, 100, 2);
    EXPECT(STREAMPOOL_OUT_OF_MEMORY, streampool_allocate(second, 30 * MIB, stream, &other));
    CHECK(says("out of device memory"));
    end(second);
    end(pool);
    CHECK(count("cuStreamDestroy_v2") == 0);
    destroy_stream(stream);
}

struct pressed {
    streampool_pool *pool;
    void *spare;
    uint64_t wanted;
};

static void relieve(void *user, uint64_t bytes) {
    struct pressed *pressed = user;
    pressed->wanted = bytes;
    MUST(streampool_free(pressed->pool, pressed->spare));
    pressed->spare = NULL;
}

static void pressure(void) {
    make_current(primary_context(0));
    void *stream = new_stream();
    struct pressed pressed = {NULL, NULL, 0};
    streampool_config config;
    MUST(streampool_config_init(&config));
    config.limit = 16 * MIB;
    config.on_pressure = relieve;
    config.user = &pressed;
    MUST(streampool_create(0, &config, &pressed.pool));
    pressed.spare = allocate(pressed.pool, 10 * MIB, stream);
    void *buffer = allocate(pressed.pool, 12 * MIB, stream);
    CHECK(pressed.wanted == 12 * MIB && pressed.spare == NULL);
    MUST(streampool_free(pressed.pool, buffer));
    end(pressed.pool);
}

static void streams(void) {
    make_current(primary_context(1));
    void *foreign = new_stream();
    make_current(primary_context(0));
    void *first = new_stream(), *second = new_stream(), *buffer = NULL;
    streampool_pool *pool = small_pool(0);

    EXPECT(STREAMPOOL_WRONG_STREAM, streampool_allocate(pool, 1, PER_THREAD, &buffer));
    CHECK(says("per-thread default stream"));
    EXPECT(STREAMPOOL_WRONG_STREAM, streampool_register_stream(pool, foreign));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_register_stream(NULL, first));
    /* Two handles of the legacy stream. */
    buffer = allocate(pool, MIB, NULL);
    MUST(streampool_free(pool, buffer));
    CHECK(allocate(pool, MIB, (void *)(uintptr_t)1) == buffer);
    CHECK(stats_of(pool).streams == 1);
    MUST(streampool_free(pool, buffer));
    MUST(streampool_register_stream(pool, first));
    CHECK(stats_of(pool).streams == 2);

    /* A second user: one record and one wait, and home's memory waits for it. */
    buffer = allocate(pool, MIB, first);
    reset_counts();
    MUST(streampool_use_on(pool, buffer, second));
    CHECK(count("cuEventRecord") == 1 && count("cuStreamWaitEvent") == 1);
    MUST(streampool_use_on(pool, buffer, first));
    CHECK(count("cuEventRecord") == 1);
    hold(second);
    MUST(streampool_free(pool, buffer));
    void *next = allocate(pool, MIB, first);
    CHECK(next != buffer);
    let_go(second);
    MUST(streampool_free(pool, next));

    /* A stream leaves when nothing needs it, and its handle can be another's. */
    buffer = allocate(pool, MIB, second);
    EXPECT(STREAMPOOL_IN_USE, streampool_retire_stream(pool, second));
    MUST(streampool_move_to(pool, buffer, first));
    hold(second);
    void *pending = allocate(pool, MIB, second);
    MUST(streampool_free(pool, pending));
    MUST(streampool_retire_stream(pool, second));
    MUST(streampool_retire_stream(pool, second));
    destroy_stream(second);
    void *third = new_stream();
    CHECK(third == second);
    reset_counts();
    CHECK(allocate(pool, MIB, third) != pending || count("cuStreamWaitEvent") == 1);
    DRIVER(standin_release_all, void, (void))();
    EXPECT(STREAMPOOL_IN_USE, streampool_close(pool));
    CHECK(says("2 live buffers"));
    EXPECT(STREAMPOOL_IN_USE, streampool_destroy(pool));
    MUST(streampool_free(pool, buffer));
    CHECK(stats_of(pool).live == 1);

    /* A failed record keeps the stream where it is. */
    fail("cuEventRecord", 0, 1, 999);
    EXPECT(STREAMPOOL_DRIVER, streampool_retire_stream(pool, first));
    MUST(streampool_retire_stream(pool, first));

    /* Captures. */
    void *captures = new_stream();
    begin_capture(captures);
    EXPECT(STREAMPOOL_CAPTURING, streampool_allocate(pool, 1, captures, &buffer));
    buffer = allocate(pool, MIB, first);
    EXPECT(STREAMPOOL_CAPTURING, streampool_use_on(pool, buffer, captures));
    end_capture(captures);
    MUST(streampool_use_on(pool, buffer, captures));
    EXPECT(STREAMPOOL_IN_USE, streampool_retire_stream(pool, captures));
    MUST(streampool_free(pool, buffer));
    CHECK(current_context() == primary_context(0));
    /* One buffer is left, of the third stream. */
    CHECK(stats_of(pool).live == 1);
    EXPECT(STREAMPOOL_IN_USE, streampool_destroy(pool));
}

/* Streams that come and go, as those of a program that makes one for each request. */
static void many_streams(void) {
    make_current(primary_context(0));
    streampool_pool *pool = small_pool(64 * MIB);
    void *alive[16] = {NULL};
    for (int round = 0; round < 4000; round++) {
        void **place = &alive[round % 16];
        if (*place != NULL) {
            MUST(streampool_retire_stream(pool, *place));
            destroy_stream(*place);
        }
        *place = new_stream();
        for (int i = 1; i < 4; i++) {
            void *buffer = allocate(pool, (size_t)i * 300 * KIB, *place);
            MUST(streampool_use_on(pool, buffer, alive[round * 7 % 16] ? alive[round * 7 % 16] : *place));
            MUST(streampool_free(pool, buffer));
        }
    }
    CHECK(stats_of(pool).streams == 16 && stats_of(pool).live == 0);
    /* Those that are left go with the pool, and may be destroyed then. */
    MUST(streampool_destroy(pool));
    for (int i = 0; i < 16; i++) destroy_stream(alive[i]);
}

static void scopes(void) {
    make_current(primary_context(0));
    void *stream = new_stream(), *all[100];
    streampool_pool *pool = small_pool(0);
    streampool_scope outer = 0, inner = 0;
    streampool_report report;
    for (int i = 0; i < 100; i++) all[i] = allocate(pool, MIB / 4, stream);
    reset_counts();
    MUST(streampool_quiesce_begin(pool, &outer));
    for (int i = 0; i < 100; i++) MUST(streampool_free(pool, all[i]));
    MUST(streampool_quiesce_begin(pool, &inner));
    CHECK(inner != outer && outer != 0);
    MUST(streampool_quiesce_end(inner, NULL));
    MUST(streampool_quiesce_end(outer, &report));
    CHECK(report.freed == 100 && report.clean == 100 && report.deferred == 0);
    CHECK(report.bytes == 100 * MIB / 4);
    CHECK(count("cuCtxSynchronize") == 2 && count("cuEventRecord") + count("cuCtxRecordEvent") <= 2);
    EXPECT(STREAMPOOL_UNKNOWN_SCOPE, streampool_quiesce_end(outer, NULL));
    EXPECT(STREAMPOOL_WRONG_THREAD, streampool_quiesce_end(0, NULL));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_quiesce_begin(pool, NULL));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_quiesce_begin(NULL, &outer));
    fail("cuCtxSynchronize", 0, 1, 999);
    EXPECT(STREAMPOOL_DRIVER, streampool_quiesce_begin(pool, &outer));
    /* A scope may outlive its pool. */
    MUST(streampool_quiesce_begin(pool, &outer));
    end(pool);
    MUST(streampool_quiesce_end(outer, &report));
    CHECK(report.freed == 0);
}

static void accounts(void) {
    make_current(primary_context(0));
    void *stream = new_stream();
    streampool_pool *pool = small_pool(0);
    uint64_t given = 0;
    MUST(streampool_reserve(pool, 32 * MIB));
    CHECK(stats_of(pool).reserved >= 32 * MIB);
    void *buffer = allocate(pool, 8 * MIB, stream);
    CHECK(stats_of(pool).in_use == 8 * MIB && stats_of(pool).live == 1);
    MUST(streampool_free(pool, buffer));
    MUST(streampool_synchronize(pool));
    MUST(streampool_trim(pool, 0, &given));
    CHECK(given >= 32 * MIB && stats_of(pool).reserved == 0);
    MUST(streampool_trim(pool, 0, NULL));
    CHECK(stats_of(pool).peak_reserved == given && stats_of(pool).peak_in_use == 8 * MIB);
    MUST(streampool_reset_peak(pool));
    CHECK(stats_of(pool).peak_reserved == 0);
    EXPECT(STREAMPOOL_OUT_OF_MEMORY, streampool_reserve(pool, (uint64_t)1 << 40));

    /* A structure of an older header, and of a later one. */
    struct {
        streampool_stats stats;
        uint64_t later;
    } larger;
    memset(&larger, 0x5a, sizeof larger);
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, (larger.stats.size = 4, streampool_get_stats(pool, &larger.stats)));
    larger.stats.size = 16;
    MUST(streampool_get_stats(pool, &larger.stats));
    CHECK(larger.stats.size == 16 && larger.stats.version == 2);
    CHECK(larger.stats.peak_reserved == UINT64_C(0x5a5a5a5a5a5a5a5a));
    larger.stats.size = sizeof larger;
    MUST(streampool_get_stats(pool, &larger.stats));
    CHECK(larger.stats.size == sizeof larger.stats && larger.later == UINT64_C(0x5a5a5a5a5a5a5a5a));
    CHECK(larger.stats.driver_calls > 0 && larger.stats.memory_calls > 0);
    CHECK(larger.stats.synchronized == 0 && larger.stats.remapped == 0 && larger.stats.revived == 0);
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_get_stats(pool, NULL));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_get_stats(NULL, &larger.stats));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_reset_peak(NULL));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_synchronize(NULL));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_close(NULL));

    /* An error that no call could tell: the scope's end. */
    MUST(streampool_take_error(pool));
    streampool_scope scope;
    MUST(streampool_quiesce_begin(pool, &scope));
    MUST(streampool_free(pool, allocate(pool, MIB, stream)));
    fail("cuCtxRecordEvent", 0, 1, 999);
    fail("cuEventRecord", 0, 1, 999);
    MUST(streampool_quiesce_end(scope, NULL));
    CHECK(stats_of(pool).stray_errors > 0);
    EXPECT(STREAMPOOL_DRIVER, streampool_take_error(pool));
    CHECK(says("record"));
    while (streampool_take_error(pool) != STREAMPOOL_OK) {}

    MUST(streampool_close(pool));
    EXPECT(STREAMPOOL_CLOSED, streampool_allocate(pool, 1, stream, &buffer));
    EXPECT(STREAMPOOL_CLOSED, streampool_quiesce_begin(pool, &scope));
    EXPECT(STREAMPOOL_CLOSED, streampool_reserve(pool, 1));
    EXPECT(STREAMPOOL_CLOSED, streampool_trim(pool, 0, NULL));
    MUST(streampool_close(pool));
    MUST(streampool_destroy(pool));
}

/* Free memory in pieces gets behind other addresses, and is found there again: in the account's latest
 * fields. */
static void pieces(void) {
    make_current(primary_context(0));
    void *stream = new_stream(), *parts[4];
    streampool_config config;
    streampool_pool *pool = NULL;
    MUST(streampool_config_init(&config));
    config.limit = 16 * MIB;
    MUST(streampool_create(0, &config, &pool));
    for (int i = 0; i < 4; i++) {
        parts[i] = allocate(pool, 4 * MIB, stream);
    }
    MUST(streampool_free(pool, parts[0]));
    MUST(streampool_free(pool, parts[2]));
    CHECK(stats_of(pool).remapped == 0 && stats_of(pool).revived == 0);
    void *whole = allocate(pool, 8 * MIB, stream);
    CHECK(stats_of(pool).remapped > 0 && stats_of(pool).revived == 0);
    MUST(streampool_free(pool, whole));
    MUST(streampool_free(pool, parts[1]));
    MUST(streampool_free(pool, parts[3]));
    /* All of it, where it was taken. */
    uint64_t remapped = stats_of(pool).remapped;
    whole = allocate(pool, 16 * MIB, stream);
    CHECK(stats_of(pool).remapped == remapped && stats_of(pool).revived > 0);
    MUST(streampool_free(pool, whole));
    end(pool);
}

static void contexts(void) {
    streampool_pool *pool = NULL;
    EXPECT(STREAMPOOL_DRIVER, streampool_create(STREAMPOOL_CURRENT_CONTEXT, NULL, &pool));
    CHECK(says("cuCtxGetCurrent"));
    /* One that is nobody's primary. */
    void *own = new_context(0), *stream = new_stream();
    MUST(streampool_create(STREAMPOOL_CURRENT_CONTEXT, NULL, &pool));
    make_current(NULL);
    MUST(streampool_free(pool, allocate(pool, MIB, stream)));
    CHECK(current_context() == NULL);
    end(pool);
    CHECK(count("cuCtxDestroy_v2") == 0);
    /* The primary one, whoever else holds it. */
    make_current(primary_context(1));
    void *other = new_stream();
    MUST(streampool_create(STREAMPOOL_CURRENT_CONTEXT, NULL, &pool));
    make_current(own);
    EXPECT(STREAMPOOL_WRONG_STREAM, streampool_register_stream(pool, stream));
    MUST(streampool_register_stream(pool, other));
    CHECK(current_context() == own);
    end(pool);
}

static void defaults(void) {
    streampool_config config;
    streampool_pool *pool = NULL, *again = NULL;
    make_current(primary_context(0));
    void *stream = new_stream(), *other = new_stream();
    MUST(streampool_config_init(&config));
    config.limit = 16 * MIB;
    MUST(streampool_default_configure(&config));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_default_pool(-1, &pool));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_default_pool(0, NULL));
    EXPECT(STREAMPOOL_DRIVER, streampool_default_pool(9, &pool));
    MUST(streampool_default_pool(0, &pool));
    MUST(streampool_default_pool(0, &again));
    CHECK(pool == again);
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_destroy(pool));
    config.size = 1;
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_default_configure(&config));
    MUST(streampool_default_configure(NULL));
    MUST(streampool_default_pool(1, &again));
    CHECK(pool != again);

    /* PyTorch's functions, in a process with no C++ runtime: null. */
    void *buffer = streampool_torch_alloc(10 * (ssize_t)MIB, 0, stream);
    CHECK(buffer != NULL && stats_of(pool).live == 1);
    CHECK(streampool_torch_alloc(10 * (ssize_t)MIB, 0, stream) == NULL);
    CHECK(says("over the pool's limit"));
    CHECK(streampool_torch_alloc(-1, 0, stream) == NULL && streampool_torch_alloc(1, 77, stream) == NULL);
    CHECK(streampool_torch_alloc(0, 0, stream) == NULL);
    reset_counts();
    streampool_torch_record_stream(buffer, other);
    CHECK(count("cuStreamWaitEvent") == 1);
    streampool_torch_record_stream(NULL, other);
    streampool_torch_record_stream(&config, PER_THREAD);
    CHECK(count("cuStreamWaitEvent") == 1);
    streampool_torch_free(buffer, 10 * (ssize_t)MIB, 0, stream);
    CHECK(stats_of(pool).live == 0);
    streampool_torch_free(buffer, 10 * (ssize_t)MIB, 0, stream);
    CHECK(says("was freed already"));
    streampool_torch_free(NULL, 0, 0, NULL);
    MUST(streampool_synchronize(pool));
    streampool_torch_empty_cache();
    CHECK(stats_of(pool).reserved == 0);
    MUST(streampool_close(pool));
    CHECK(streampool_torch_alloc(1, 0, stream) == NULL);
    CHECK(says("closed"));
}

static void no_driver(void) {
    streampool_pool *pool = NULL;
    EXPECT(STREAMPOOL_NO_DRIVER, streampool_create(0, NULL, &pool));
    EXPECT(STREAMPOOL_NO_DRIVER, streampool_create(STREAMPOOL_CURRENT_CONTEXT, NULL, &pool));
    EXPECT(STREAMPOOL_NO_DRIVER, streampool_default_pool(0, &pool));
    CHECK(streampool_torch_alloc(1, 0, NULL) == NULL);
}

static int has_text(const char *path, const char *words) {
    static char text[1 << 16];
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    size_t length = fread(text, 1, sizeof text - 1, file), size = strlen(words);
    fclose(file);
    for (size_t at = 0; at + size <= length; at++)
        if (memcmp(text + at, words, size) == 0) return 1;
    return 0;
}

static void tags(void) {
    make_current(primary_context(0));
    void *stream = new_stream();
    char path[] = "/tmp/streampool-tags-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    streampool_config config;
    streampool_pool *pool = NULL;
    MUST(streampool_config_init(&config));
    CHECK(config.history == 0);
    config.history = 100;
    MUST(streampool_create(0, &config, &pool));

    MUST(streampool_tag_push("of the outer"));
    MUST(streampool_tag_push("of the inner"));
    void *inner = allocate(pool, MIB, stream);
    MUST(streampool_tag_pop());
    void *outer = allocate(pool, 2 * MIB, stream);
    MUST(streampool_tag_pop());
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_tag_pop());
    CHECK(says("no tag is pushed"));
    void *later = allocate(pool, 3 * MIB, stream);
    MUST(streampool_set_tag(pool, later, "set later"));
    MUST(streampool_set_tag(pool, NULL, "of nothing"));
    EXPECT(STREAMPOOL_UNKNOWN_ADDRESS, streampool_set_tag(pool, &config, "of nobody"));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_set_tag(pool, later, NULL));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_set_tag(NULL, later, "x"));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_tag_push(NULL));

    reset_counts();
    MUST(streampool_write_snapshot(pool, path));
    CHECK(has_text(path, "of the inner") && has_text(path, "of the outer") && has_text(path, "set later"));
    MUST(streampool_free(pool, inner));
    MUST(streampool_write_trace(pool, path));
    CHECK(has_text(path, "traceEvents") && has_text(path, "of the inner"));
    CHECK(calls() == 0);
    EXPECT(STREAMPOOL_FILE, streampool_write_trace(pool, "/nowhere/at/all"));
    CHECK(says("/nowhere/at/all"));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_write_snapshot(pool, NULL));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_write_snapshot(NULL, path));

    /* What was freed has no tag any more. */
    MUST(streampool_free(pool, outer));
    MUST(streampool_free(pool, later));
    end(pool);
    MUST(streampool_create(0, NULL, &pool));
    MUST(streampool_tag_push("not kept"));
    inner = allocate(pool, MIB, stream);
    MUST(streampool_write_snapshot(pool, path));
    CHECK(has_text(path, "segments") && !has_text(path, "not kept"));
    MUST(streampool_free(pool, inner));
    end(pool);
    for (int depth = 1; depth < 1024; depth++) MUST(streampool_tag_push("deep"));
    EXPECT(STREAMPOOL_INVALID_ARGUMENT, streampool_tag_push("deep"));
    CHECK(remove(path) == 0);
}

static void lost(void) {
    void *context = primary_context(0);
    make_current(context);
    void *stream = new_stream(), *buffer = NULL, *next = NULL;
    streampool_pool *pool = small_pool(0);
    buffer = allocate(pool, MIB, stream);
    stick(context, 700);
    EXPECT(STREAMPOOL_DEVICE_LOST, streampool_synchronize(pool));
    EXPECT(STREAMPOOL_DEVICE_LOST, streampool_allocate(pool, MIB, stream, &next));
    MUST(streampool_free(pool, buffer));
    EXPECT(STREAMPOOL_DEVICE_LOST, streampool_close(pool));
    MUST(streampool_destroy(pool));
}

static streampool_pool *left;

static void at_exit(void) {
    void *buffer = NULL;
    EXPECT(STREAMPOOL_EXITING, streampool_reserve(left, 300 * MIB));
    /* A miss: its first call of the driver is the look whether the stream captures. */
    EXPECT(STREAMPOOL_EXITING, streampool_allocate(left, 300 * MIB, NULL, &buffer));
    CHECK(buffer == NULL && says("the process is exiting"));
    streampool_scope scope = 0;
    EXPECT(STREAMPOOL_EXITING, streampool_quiesce_begin(left, &scope));
    EXPECT(STREAMPOOL_UNKNOWN_ADDRESS, streampool_free(left, &buffer));
    puts("at exit: well");
}

static void exiting(void) {
    /* Registered before the library's hook, and so called after it. */
    atexit(at_exit);
    left = small_pool(0);
    MUST(streampool_free(left, allocate(left, MIB, NULL)));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"about", about},       {"options", options},   {"buffers", buffers}, {"pressure", pressure},
        {"streams", streams},   {"scopes", scopes},     {"accounts", accounts}, {"pieces", pieces},     {"contexts", contexts},
        {"tags", tags},
        {"many_streams", many_streams},
        {"defaults", defaults}, {"no_driver", no_driver}, {"lost", lost},     {"exiting", exiting},
    };
    size_t number = sizeof parts / sizeof parts[0];
    for (size_t i = 0; i < number; i++) {
        if (argc < 2) {
            puts(parts[i].name);
        } else if (strcmp(argv[1], parts[i].name) == 0) {
            parts[i].run();
            printf("%s: well\n", argv[1]);
            return 0;
        }
    }
    return argc < 2 ? 0 : 2;
}
