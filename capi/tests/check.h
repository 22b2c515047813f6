/* Checks for the test programs: the first that fails says where, and ends the process. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "streampool.h"

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: not so: %s\n  the last error: %s\n", __FILE__, __LINE__, \
                    #condition, streampool_last_error());                                 \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

/* Checks what a call returns. */
#define EXPECT(status, call)                                                              \
    do {                                                                                  \
        int got_ = (int)(call);                                                           \
        if (got_ != (int)(status)) {                                                      \
            fprintf(stderr, "%s:%d: %s\n  is %s, not %s: %s\n", __FILE__, __LINE__, #call, \
                    streampool_status_name(got_), streampool_status_name((int)(status)),  \
                    streampool_last_error());                                             \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

#define MUST(call) EXPECT(STREAMPOOL_OK, call)

static inline int says(const char *words) { return strstr(streampool_last_error(), words) != NULL; }

static inline streampool_stats stats_of(streampool_pool *pool) {
    streampool_stats stats;
    stats.size = sizeof stats;
    MUST(streampool_get_stats(pool, &stats));
    return stats;
}

static inline void *allocate(streampool_pool *pool, size_t bytes, void *stream) {
    void *buffer = NULL;
    MUST(streampool_allocate(pool, bytes, stream, &buffer));
    return buffer;
}

#endif
