// What libFuzzer calls.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/fuzz/targets.h"

namespace {
void (*target)(std::span<const uint8_t>) = nullptr;
}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const name = std::getenv("RDMAD_FUZZ_TARGET");
  const std::string wanted = name == nullptr ? "" : name;
  if (wanted == "transport") target = rdmad::fuzz::FuzzTransport;
  if (wanted == "cm") target = rdmad::fuzz::FuzzCm;
  if (wanted == "work_queue") target = rdmad::fuzz::FuzzWorkQueue;
  if (wanted == "engine") target = rdmad::fuzz::FuzzEngine;
  if (wanted == "grpc") target = rdmad::fuzz::FuzzGrpc;
  if (target != nullptr) return 0;
  std::fprintf(stderr, "RDMAD_FUZZ_TARGET must be cm, engine, grpc, transport or work_queue\n");
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  target({data, size});
  return 0;
}
