#include "daemon/memory/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/status/status.h"

namespace rdmad::memory {
namespace {

PoolOptions Named(const std::string& name) {
  PoolOptions options;
  options.size_bytes = 10000;
  options.name = name;
  return options;
}

TEST(Pool, IsZeroedRoundedAndHasNoHeader) {
  const absl::StatusOr<Pool> pool = Pool::Create(Named("frames"));
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(pool->size_bytes(), 12288u);
  EXPECT_EQ(pool->page_bytes(), 4096u);
  EXPECT_EQ(pool->name(), "frames");
  EXPECT_TRUE(std::all_of(pool->data(), pool->data() + pool->size_bytes(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Pool, NamesUpToTheLimitAndOfPrintableBytesPass) {
  for (const std::string& name : {std::string(), std::string("a b/c:~"), std::string(64, 'x')}) {
    EXPECT_TRUE(Pool::Create(Named(name)).ok()) << name;
  }
}

TEST(Pool, OtherNamesAreRefused) {
  for (const std::string& name : {std::string(65, 'x'), std::string("a\nb"),
                                  std::string("\xc3\xa4"), std::string("a\0b", 3)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Pool::Create(Named(name)).status())) << name;
  }
}

TEST(Pool, SizeZeroIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(Pool::Create(PoolOptions{}).status()));
}

}  // namespace
}  // namespace rdmad::memory
