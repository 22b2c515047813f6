/* What the test programs need of the driver and of its stand-in (standin/README.md), found by name at run
 * time: the library itself is not linked against a driver, and neither are they. */
#ifndef DRIVER_H
#define DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void *driver_library;

static void *driver_symbol(const char *name) {
    if (driver_library == NULL) driver_library = dlopen("libcuda.so", RTLD_NOW);
    void *symbol = driver_library == NULL ? NULL : dlsym(driver_library, name);
    if (symbol == NULL) {
        fprintf(stderr, "the stand-in has no %s\n", name);
        exit(1);
    }
    return symbol;
}

/* A driver function as an expression: DRIVER(cuInit, int, (unsigned))(0). */
#define DRIVER(name, result, parameters) ((result(*) parameters)(uintptr_t)driver_symbol(#name))

static void driver_must(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "%s failed: %d\n", what, code);
    exit(1);
}

static inline void *new_context(int device) {
    void *context = NULL;
    driver_must(DRIVER(cuInit, int, (unsigned))(0), "cuInit");
    driver_must(DRIVER(cuCtxCreate_v4, int, (void **, void *, unsigned, int))(&context, NULL, 0, device),
                "cuCtxCreate");
    return context;
}

static inline void *primary_context(int device) {
    void *context = NULL;
    driver_must(DRIVER(cuInit, int, (unsigned))(0), "cuInit");
    driver_must(DRIVER(cuDevicePrimaryCtxRetain, int, (void **, int))(&context, device),
                "cuDevicePrimaryCtxRetain");
    return context;
}

static inline void make_current(void *context) {
    driver_must(DRIVER(cuCtxSetCurrent, int, (void *))(context), "cuCtxSetCurrent");
}

/* A stream of the current context that synchronizes with no other. */
static inline void *new_stream(void) {
    void *stream = NULL;
    driver_must(DRIVER(cuStreamCreate, int, (void **, unsigned))(&stream, 1), "cuStreamCreate");
    return stream;
}

static inline void destroy_stream(void *stream) {
    driver_must(DRIVER(cuStreamDestroy_v2, int, (void *))(stream), "cuStreamDestroy");
}

static inline void begin_capture(void *stream) {
    driver_must(DRIVER(cuStreamBeginCapture_v2, int, (void *, int))(stream, 2), "cuStreamBeginCapture");
}

static inline void end_capture(void *stream) {
    void *graph = NULL;
    driver_must(DRIVER(cuStreamEndCapture, int, (void *, void **))(stream, &graph), "cuStreamEndCapture");
}

/* The stand-in: how often a function was called, failures, streams that do not run. */
static inline uint64_t count(const char *name) {
    return DRIVER(standin_count, uint64_t, (const char *))(name);
}
static inline void reset_counts(void) { DRIVER(standin_reset, void, (void))(); }
static inline uint64_t calls(void) { return DRIVER(standin_calls, uint64_t, (void))(); }
static inline void fail(const char *name, uint64_t skip, uint64_t times, uint32_t code) {
    DRIVER(standin_fail, void, (const char *, uint64_t, uint64_t, uint32_t))(name, skip, times, code);
}
static inline void hold(void *stream) { DRIVER(standin_hold, void, (void *))(stream); }
static inline void let_go(void *stream) { DRIVER(standin_release, void, (void *))(stream); }
static inline void stick(void *context, uint32_t code) {
    DRIVER(standin_stick, void, (void *, uint32_t))(context, code);
}
static inline void *current_context(void) {
    return (void *)DRIVER(standin_current_context, uintptr_t, (void))();
}

#endif
