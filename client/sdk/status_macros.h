#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Early return of an error, for functions that return absl::Status or absl::StatusOr<T>. SDK_ASSIGN_OR_RETURN is two
// statements: give it braces after an `if`.

#define SDK_STATUS_CONCAT_INNER_(a, b) a##b
#define SDK_STATUS_CONCAT_(a, b) SDK_STATUS_CONCAT_INNER_(a, b)

#define SDK_RETURN_IF_ERROR(expression)                                 \
  do {                                                                  \
    if (::absl::Status sdk_status_ = (expression); !sdk_status_.ok()) { \
      return sdk_status_;                                               \
    }                                                                   \
  } while (false)

#define SDK_ASSIGN_OR_RETURN(target, expression) \
  SDK_ASSIGN_OR_RETURN_IMPL_(SDK_STATUS_CONCAT_(sdk_status_or_, __COUNTER__), target, expression)

#define SDK_ASSIGN_OR_RETURN_IMPL_(holder, target, expression) \
  auto holder = (expression);                                  \
  if (!holder.ok()) return std::move(holder).status();         \
  target = std::move(holder).value()
