// Assertions on absl::Status and absl::StatusOr that print what went wrong.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rdmad::testing {

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

template <typename T>
::testing::AssertionResult IsOk(const char* expression, const T& result) {
  if (StatusOf(result).ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << expression << "\n  is " << StatusOf(result).ToString();
}

}  // namespace rdmad::testing

// `result` is a Status or a StatusOr.
#define ASSERT_OK(result) ASSERT_PRED_FORMAT1(::rdmad::testing::IsOk, result)
#define EXPECT_OK(result) EXPECT_PRED_FORMAT1(::rdmad::testing::IsOk, result)

// ASSERT_OK_AND_ASSIGN(Client client, Client::Attach(options));
#define ASSERT_OK_AND_ASSIGN(target, expression) \
  RD_TEST_ASSIGN_(RD_TEST_CONCAT_(rd_test_result_, __LINE__), target, expression)
#define RD_TEST_ASSIGN_(result, target, expression) \
  auto result = (expression);                       \
  ASSERT_OK(result);                                \
  target = std::move(result).value()
#define RD_TEST_CONCAT_(a, b) RD_TEST_CONCAT_IMPL_(a, b)
#define RD_TEST_CONCAT_IMPL_(a, b) a##b
