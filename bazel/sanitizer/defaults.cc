// Options and suppressions of the sanitizers, found by their run-time libraries under these names.
// The environment (ASAN_OPTIONS and the like) still overrides them.
//
// The system's libraries are not instrumented. What they do under their own locks looks like a race
// to TSan, and what they keep for the life of the process looks like a leak; nothing of our own
// code may be named here. Source: the "default options" hooks in
// sanitizer/{asan,lsan,tsan,ubsan}_interface.h.

extern "C" {

// No detect_stack_use_after_return: the frames that it takes from the heap are aligned to 32 bytes with GCC 12, whatever
// the variables in them ask for, and UBSan then stops at our cache-line types.
const char* __asan_default_options() {
  return "abort_on_error=1:detect_leaks=1:strict_init_order=1:check_initialization_order=1:"
         "detect_stack_use_after_return=0:allocator_may_return_null=1";
}

const char* __lsan_default_options() {
  return "print_suppressions=0";
}

const char* __lsan_default_suppressions() {
  // gRPC keeps its global state when the process ends before its clean-up thread has run.
  return "leak:libgrpc.so\n"
         "leak:libgrpc++.so\n";
}

const char* __tsan_default_options() {
  return "halt_on_error=1:second_deadlock_stack=1:ignore_noninstrumented_modules=1";
}

const char* __tsan_default_suppressions() {
  return "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libprotobuf.so\n"
         "called_from_lib:libprometheus-cpp-pull.so\n";
}

const char* __ubsan_default_options() {
  return "print_stacktrace=1:halt_on_error=1";
}

}  // extern "C"
