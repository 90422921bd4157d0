// Work that may take a millisecond, one piece in a turn of the event loop: between two pieces
// everything else that is ready has its turn, however many pieces wait.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <deque>
#include <functional>
#include <utility>

namespace rdmad::control {

class TurnQueue {
 public:
  // Whoever adds pieces bounds how many.
  explicit TurnQueue(boost::asio::io_context& loop) : loop_(loop) {}
  TurnQueue(const TurnQueue&) = delete;
  TurnQueue& operator=(const TurnQueue&) = delete;

  // Runs `piece` in a later turn, after those that were added before.
  void Add(std::function<void()> piece) {
    pieces_.push_back(std::move(piece));
    if (pieces_.size() == 1) AskForTurn();
  }

 private:
  void AskForTurn() {
    boost::asio::post(loop_, [this] {
      // It stays in the queue while it runs, so that what it adds asks for no second turn.
      const std::function<void()> piece = std::move(pieces_.front());
      piece();
      pieces_.pop_front();
      if (!pieces_.empty()) AskForTurn();
    });
  }

  boost::asio::io_context& loop_;
  std::deque<std::function<void()>> pieces_;
};

}  // namespace rdmad::control
