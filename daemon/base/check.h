#pragma once

// Checks of our own invariants. A failed check is a bug of ours: it prints what was expected and
// where, and aborts. Nothing that a peer or a client sends may reach one; hostile input is answered
// with a drop reason or a Status.
//
//   RD_CHECK(expression)            always on
//   RD_CHECK(expression, "message") the message is a string literal that says what the invariant
//   means RD_DCHECK(...)                  the same on hot paths: compiled, but not evaluated, when
//   NDEBUG is defined
//
// Both work in noexcept functions, before main() and after it, and allocate nothing.

namespace rdmad {

// Prints "file:line: check failed: expression: message" to stderr in one write and aborts.
// `message` may be null.
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression,
                              const char* message = nullptr) noexcept;

}  // namespace rdmad

#define RD_CHECK(expression, ...) \
  (static_cast<bool>(expression)  \
       ? static_cast<void>(0)     \
       : ::rdmad::CheckFailed(__FILE__, __LINE__, #expression __VA_OPT__(, ) __VA_ARGS__))

#ifdef NDEBUG
// The expression is still compiled, so that it cannot rot and its variables count as used.
#define RD_DCHECK(expression, ...) \
  static_cast<void>(true || (RD_CHECK(expression __VA_OPT__(, ) __VA_ARGS__), true))
#else
#define RD_DCHECK(expression, ...) RD_CHECK(expression __VA_OPT__(, ) __VA_ARGS__)
#endif
