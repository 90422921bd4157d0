#include "tests/sim/shared_receives.h"

#include "daemon/base/check.h"
#include "daemon/device/soft/receive_queue.h"

namespace rdmad::sim {

using device::PostResult;

namespace {

constexpr uint64_t kIova = 0x6000'0000'0000;
constexpr uint32_t kBadKey = 0xdead00;
constexpr uint32_t kSpareCells = 16;  // for what ends hold, or have lost
constexpr size_t kMostReceives = 1500;

}  // namespace

SharedReceives::SharedReceives(soft::Transport& transport, device::AsyncSink* async,
                               const Terms& terms, Random& random, Verdict& verdict)
    : transport_(transport),
      terms_(terms),
      depth_(terms.recv_depth + random.Below(16)),
      random_(random),
      verdict_(verdict),
      arena_(terms.max_message_bytes, depth_ + kSpareCells, random) {
  auto mr = soft::SoftMr::Create(transport, pd_,
                                 {.host_addr = arena_.at(0),
                                  .length_bytes = arena_.size(),
                                  .iova = kIova,
                                  .access = device::kAccessLocalWrite});
  RD_CHECK(mr.ok());
  mr_ = std::move(*mr);
  mr_->Activate(0);
  auto srq = soft::SoftSrq::Create(async, pd_,
                                   {.max_wr = depth_,
                                    .max_sge = terms.max_sge,
                                    .owner_token = reinterpret_cast<uintptr_t>(this)});
  RD_CHECK(srq.ok());
  srq_ = std::move(*srq);
  srq_->Activate(0);
}

SharedReceives::~SharedReceives() {
  srq_->Deactivate(0);
  mr_->Deactivate(0);
}

bool SharedReceives::Post(TimeNs now) {
  if (!arena_.HasCell() || receives_.size() >= kMostReceives) return false;
  RecvRecord record;
  record.cell = arena_.TakeCell();
  const bool short_one = terms_.naughty && random_.Chance(0.02);
  const uint32_t bytes =
      short_one ? random_.Below(uint64_t{terms_.max_message_bytes} + 1) : terms_.max_message_bytes;
  record.capacity = bytes;
  record.pieces = arena_.Scatter(record.cell, bytes, terms_.max_sge, random_);
  record.broken = bytes > 0 && terms_.naughty && random_.Chance(0.01);
  std::vector<device::Sge> sges;
  for (const Piece& piece : record.pieces) {
    const bool bad = record.broken || piece.bytes == 0;
    sges.push_back({kIova + piece.offset, piece.bytes, bad ? kBadKey : mr_->lkey()});
  }
  const uint64_t wr_id = receives_.size();
  const uint32_t cell = record.cell;
  receives_.push_back({std::move(record)});
  const PostResult result = srq_->PostRecv({.wr_id = wr_id, .sges = sges});
  if (result == PostResult::kOk) {
    verdict_.Trace(now, " srq post receive ", wr_id);
    return true;
  }
  receives_.pop_back();
  arena_.ReturnCell(cell);
  if (result != PostResult::kQueueFull || open() < depth_) {
    verdict_.Fail("srq: post refused: ", static_cast<int>(result));
  }
  return false;
}

void SharedReceives::Arm() {
  limit_ = random_.Below(depth_ + 1);
  armed_from_ = receives_.size();
  verdict_.Trace(" srq limit ", limit_);
  if (srq_->SetLimit(limit_) != device::QpResult::kOk) verdict_.Fail("srq: limit refused");
}

void SharedReceives::OnLimit() {
  verdict_.Trace("  srq limit event");
  if (limit_ == 0) return verdict_.Fail("srq: a limit event that nobody armed");
  // At most so many have left the queue.
  const uint64_t gone = completed_ + may_be_lost_ + users_;
  if (gone < receives_.size() && receives_.size() - gone >= limit_) {
    verdict_.Fail("srq: a limit event at ", receives_.size() - gone, " or more, limit ", limit_);
  }
  limit_ = 0;
}

const RecvRecord* SharedReceives::Complete(uint64_t wr_id, uint64_t* last) {
  if (wr_id >= receives_.size() || receives_[wr_id].fate != Fate::kPosted) {
    verdict_.Fail("srq: receive ", wr_id, " completes twice, or was never posted");
    return nullptr;
  }
  if (*last != kNone && wr_id <= *last) {
    verdict_.Fail("srq: receive ", wr_id, " completes behind ", *last);
  }
  *last = wr_id;
  receives_[wr_id].fate = Fate::kCompleted;
  ++completed_;
  // When it was taken no more than these were left behind it.
  if (limit_ != 0 && wr_id >= armed_from_ && receives_.size() - wr_id - 1 < limit_) {
    verdict_.Fail("srq: no event, limit ", limit_, " and at most ", receives_.size() - wr_id - 1,
                  " left");
  }
  return &receives_[wr_id].record;
}

void SharedReceives::Return(uint64_t wr_id) {
  const RecvRecord& record = receives_[wr_id].record;
  arena_.ReturnCell(record.cell);
}

void SharedReceives::Close() {
  soft::ReceiveWqe wqe;
  uint64_t before = kNone;
  uint64_t left = 0;
  (void)srq_->SetLimit(0);
  limit_ = 0;
  while (srq_->Take(&wqe)) {
    ++left;
    if (wqe.wr_id >= receives_.size() || receives_[wqe.wr_id].fate != Fate::kPosted ||
        (before != kNone && wqe.wr_id != before + 1)) {
      return verdict_.Fail("srq: receive ", wqe.wr_id, " is still there behind ", before);
    }
    before = wqe.wr_id;
    receives_[wqe.wr_id].fate = Fate::kLeft;
  }
  if (left > 0 && before + 1 != receives_.size()) verdict_.Fail("srq: the latest are missing");
  uint64_t lost = 0;
  for (const Receive& receive : receives_) {
    if (receive.fate != Fate::kPosted) continue;
    ++lost;
    arena_.Accept(receive.record.pieces);  // a message may have begun to use it
  }
  if (lost > may_be_lost_) {
    verdict_.Fail("srq: ", lost, " receives are lost, ", may_be_lost_, " may be");
  }
  const size_t at = arena_.FirstDifference();
  if (at != arena_.size()) verdict_.Fail("srq: byte ", at, " has changed and was not named");
}

}  // namespace rdmad::sim
