#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Early return of an error, for functions that return absl::Status or absl::StatusOr<T>.
//
//   RD_RETURN_IF_ERROR(Bind(address));
//   RD_ASSIGN_OR_RETURN(UniqueFd socket, OpenSocket(address));
//   RD_ASSIGN_OR_RETURN(qp_, pd_->CreateQp(init));
//
// The error is handed on as it is: context is added once, where it is known. RD_ASSIGN_OR_RETURN is
// two statements, so it needs braces after an `if`; a type with a comma on the left side needs
// parentheses or an alias.

#define RD_STATUS_CONCAT_INNER_(a, b) a##b
#define RD_STATUS_CONCAT_(a, b) RD_STATUS_CONCAT_INNER_(a, b)

#define RD_RETURN_IF_ERROR(expression)                                \
  do {                                                                \
    if (::absl::Status rd_status_ = (expression); !rd_status_.ok()) { \
      return rd_status_;                                              \
    }                                                                 \
  } while (false)

#define RD_ASSIGN_OR_RETURN(target, expression) \
  RD_ASSIGN_OR_RETURN_IMPL_(RD_STATUS_CONCAT_(rd_status_or_, __COUNTER__), target, expression)

#define RD_ASSIGN_OR_RETURN_IMPL_(holder, target, expression) \
  auto holder = (expression);                                 \
  if (!holder.ok()) return std::move(holder).status();        \
  target = std::move(holder).value()
