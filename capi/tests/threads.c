/* Threads on one pool: each with a stream of its own and all with one in common, frees of what others have
 * allocated, uses of one buffer by several at once, scopes of threads. Then what a pair costs.
 * usage: threads [PAIRS] */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <time.h>

#include "check.h"
#include "driver.h"

#define THREADS 8
#define ROUNDS 4000
#define SLOTS 64

static streampool_pool *pool;
static void *context, *common;
static void *volatile slots[SLOTS];

static uint32_t next(uint32_t *seed) {
    *seed ^= *seed << 13, *seed ^= *seed >> 17, *seed ^= *seed << 5;
    return *seed;
}

/* Writes its own pattern into memory that it was given, which is host memory here: whoever else was given it
 * too would see it. */
static void *work(void *argument) {
    uint32_t own = (uint32_t)(uintptr_t)argument, seed = own * 2654435761u;
    make_current(context);
    void *stream = new_stream();
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = (size_t)256 << next(&seed) % 9;
        uint32_t *buffer = allocate(pool, bytes, next(&seed) % 4 == 0 ? common : stream);
        buffer[0] = own, buffer[bytes / 4 - 1] = own + (uint32_t)round;
        if (next(&seed) % 8 == 0) MUST(streampool_use_on(pool, buffer, common));
        CHECK(buffer[0] == own && buffer[bytes / 4 - 1] == own + (uint32_t)round);
        /* Frees what was in a place, whoever allocated it. */
        void *old = __atomic_exchange_n(&slots[next(&seed) % SLOTS], buffer, __ATOMIC_ACQ_REL);
        MUST(streampool_free(pool, old));
        if (round % 512 == 0) {
            streampool_scope scope;
            MUST(streampool_quiesce_begin(pool, &scope));
            /* The last one is left open, for the thread's end. */
            if (round + 512 < ROUNDS) MUST(streampool_quiesce_end(scope, NULL));
        }
    }
    return stream;
}

/* One buffer, used on one stream and another by many at once, while it is freed by exactly one. */
static void *shared;
static int freed;

static void *use_shared(void *stream) {
    make_current(context);
    for (int round = 0; round < 200; round++) {
        int status = (int)streampool_use_on(pool, shared, stream);
        if (status == STREAMPOOL_UNKNOWN_ADDRESS) break;
        MUST(status);
    }
    if (streampool_free(pool, shared) == STREAMPOOL_OK) __atomic_fetch_add(&freed, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void *end_scope(void *scope) {
    EXPECT(STREAMPOOL_WRONG_THREAD, streampool_quiesce_end(*(streampool_scope *)scope, NULL));
    CHECK(says("on the thread that has begun it"));
    return NULL;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void *pairs(void *count) {
    make_current(context);
    void *stream = new_stream();
    MUST(streampool_free(pool, allocate(pool, 1 << 19, stream)));
    for (long left = *(long *)count; left > 0; left--) {
        void *buffer;
        if (streampool_allocate(pool, 1 << 19, stream, &buffer) != STREAMPOOL_OK) abort();
        if (streampool_free(pool, buffer) != STREAMPOOL_OK) abort();
    }
    return NULL;
}

static void measure(int threads, long count) {
    pthread_t all[THREADS];
    double begun = now();
    for (int i = 0; i < threads; i++) CHECK(pthread_create(&all[i], NULL, pairs, &count) == 0);
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
    printf("{\"workload\":\"C pairs of 512 KiB\",\"threads\":%d,\"ns\":%.1f}\n", threads,
           (now() - begun) / (double)count);
}

int main(int argc, char **argv) {
    pthread_t all[THREADS];
    void *streams[THREADS];
    context = primary_context(0);
    make_current(context);
    common = new_stream();
    MUST(streampool_create(0, NULL, &pool));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&all[i], NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], &streams[i]);
    for (int i = 0; i < SLOTS; i++) MUST(streampool_free(pool, slots[i]));
    streampool_stats stats = stats_of(pool);
    CHECK(stats.live == 0 && stats.in_use == 0 && stats.streams == THREADS + 1);
    CHECK(stats.hits + stats.misses == THREADS * ROUNDS && stats.frees == THREADS * ROUNDS);

    for (int round = 0; round < 20; round++) {
        shared = allocate(pool, 4096, common);
        freed = 0;
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_create(&all[i], NULL, use_shared, streams[i]) == 0);
        for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
        CHECK(freed == 1 && stats_of(pool).live == 0);
    }

    streampool_scope scope;
    MUST(streampool_quiesce_begin(pool, &scope));
    CHECK(pthread_create(&all[0], NULL, end_scope, &scope) == 0);
    pthread_join(all[0], NULL);
    MUST(streampool_quiesce_end(scope, NULL));

    for (int i = 0; i < THREADS; i++) {
        MUST(streampool_retire_stream(pool, streams[i]));
        destroy_stream(streams[i]);
    }
    long count = argc > 1 ? atol(argv[1]) : 1000;
    measure(1, count);
    measure(2, count);
    MUST(streampool_close(pool));
    MUST(streampool_destroy(pool));
    puts("threads: well");
    return 0;
}
