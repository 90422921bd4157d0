#include "daemon/base/thread_owner.h"

#include <thread>

#include "gtest/gtest.h"

namespace rdmad {
namespace {

bool IsCurrentElsewhere(const ThreadOwner& owner) {
  bool result = false;
  std::thread([&] { result = owner.IsCurrent(); }).join();
  return result;
}

TEST(ThreadOwner, BindsToTheFirstThreadThatAsks) {
  ThreadOwner owner;
  EXPECT_TRUE(IsCurrentElsewhere(owner));
  EXPECT_FALSE(owner.IsCurrent());
}

TEST(ThreadOwner, IsCurrentOnlyForItsThread) {
  ThreadOwner owner;
  EXPECT_TRUE(owner.IsCurrent());
  EXPECT_FALSE(IsCurrentElsewhere(owner));
  EXPECT_TRUE(owner.IsCurrent());
}

TEST(ThreadOwner, DetachHandsOverToTheNextThread) {
  ThreadOwner owner;
  EXPECT_TRUE(owner.IsCurrent());
  owner.Detach();
  EXPECT_TRUE(IsCurrentElsewhere(owner));
  EXPECT_FALSE(owner.IsCurrent());
}

TEST(ThreadOwner, AttachTakesOwnershipFromAnother) {
  ThreadOwner owner;
  EXPECT_TRUE(IsCurrentElsewhere(owner));
  owner.Attach();
  EXPECT_TRUE(owner.IsCurrent());
}

}  // namespace
}  // namespace rdmad
