/* A first program: a pool, a buffer with a tag, and a snapshot for https://pytorch.org/memory_viz.
 *
 *     cargo build --release -p streampool-capi
 *     cc capi/examples/first.c -I capi/include -L target/release -lstreampool -Wl,-rpath,"$PWD/target/release"
 *     ./a.out snapshot.pickle
 */
#include <stdio.h>
#include <stdlib.h>

#include "streampool.h"

static void must(streampool_status status) {
    if (status == STREAMPOOL_OK) return;
    fprintf(stderr, "%s: %s\n", streampool_status_name(status), streampool_last_error());
    exit(1);
}

int main(int argc, char **argv) {
    streampool_config config;
    streampool_pool *pool;
    void *buffer, *stream = NULL; /* The default stream; else a CUstream or a cudaStream_t. */

    must(streampool_config_init(&config));
    config.history = 1000; /* Tags and events are kept. */
    must(streampool_create(0, &config, &pool));

    must(streampool_tag_push("activations"));
    must(streampool_allocate(pool, 1 << 20, stream, &buffer));
    must(streampool_tag_pop());
    /* Here: kernels on `stream` that use the buffer. */
    if (argc > 1) must(streampool_write_snapshot(pool, argv[1]));
    must(streampool_free(pool, buffer)); /* No driver call, and no wait for the kernels. */

    streampool_stats stats = {.size = sizeof stats};
    must(streampool_get_stats(pool, &stats));
    printf("%llu allocations, %llu MiB reserved\n", (unsigned long long)(stats.hits + stats.misses),
           (unsigned long long)(stats.reserved >> 20));
    must(streampool_close(pool));
    must(streampool_destroy(pool));
    puts("first: well");
    return 0;
}
