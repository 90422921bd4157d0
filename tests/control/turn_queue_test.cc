#include "daemon/control/turn_queue.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <string>

namespace rdmad::control {
namespace {

class TurnQueueTest : public ::testing::Test {
 protected:
  // A step that says its name.
  std::function<void()> Say(const std::string& name) {
    return [this, name] { said_ += name; };
  }

  boost::asio::io_context loop_;
  TurnQueue turns_{loop_};
  std::string said_;
};

TEST_F(TurnQueueTest, NothingRunsAtOnce) {
  turns_.Add(Say("a"));
  EXPECT_EQ(said_, "");
  loop_.run();
  EXPECT_EQ(said_, "a");
}

TEST_F(TurnQueueTest, WhatIsReadyHasItsTurnBetweenTwoPieces) {
  for (const char* name : {"a", "b", "c"}) turns_.Add(Say(name));
  boost::asio::post(loop_, Say("1"));
  boost::asio::post(loop_, Say("2"));
  loop_.run();
  EXPECT_EQ(said_, "a12bc");
}

TEST_F(TurnQueueTest, APieceMayAddOthers) {
  turns_.Add([this] {
    said_ += "a";
    turns_.Add(Say("c"));
    boost::asio::post(loop_, Say("1"));
  });
  turns_.Add(Say("b"));
  loop_.run();
  EXPECT_EQ(said_, "a1bc");
}

TEST_F(TurnQueueTest, ItCanBeUsedAgainWhenItHasBeenEmpty) {
  turns_.Add(Say("a"));
  loop_.run();
  loop_.restart();
  turns_.Add(Say("b"));
  loop_.run();
  EXPECT_EQ(said_, "ab");
}

}  // namespace
}  // namespace rdmad::control
