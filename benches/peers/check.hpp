// Driver calls that must succeed.
#pragma once
#include <cuda.h>

#include <cstdio>
#include <cstdlib>

inline void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString(result, &text);
  std::fprintf(stderr, "%s: %s\n", call, text ? text : "an unknown error");
  std::exit(1);
}
#define CHECK(call) check((call), #call)
