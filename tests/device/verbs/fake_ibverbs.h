// A libibverbs of one device that does what a test tells it to: linked instead of the real one, so
// that drivers can refuse, forget and break in ways that no driver at hand does.
//
// Posts are recorded; completions and events come when the test puts them there. Nothing is moved.
// Thread: the test's.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <vector>

namespace rdmad::testing {

struct PostedSend {
  uint64_t wr_id;
  ibv_wr_opcode opcode;
  unsigned int flags;
  uint32_t bytes;
};

class FakeIbverbs {
 public:
  // The only one; reset by its construction.
  FakeIbverbs();
  ~FakeIbverbs();
  static FakeIbverbs& Get();

  ibv_device* device() { return &device_; }

  // Puts a completion into the (only) CQ.
  void Complete(uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS,
                ibv_wc_opcode opcode = IBV_WC_SEND, uint32_t byte_len = 0);
  // As the hardware does for a CQ that is armed.
  void RaiseCompletionEvent();
  void RaiseDeviceFatal();

  // What was posted, in order; `posts` counts doorbells.
  std::vector<PostedSend> sends;
  std::vector<uint64_t> recvs;
  int posts = 0;
  // The next chain of sends is taken up to this many; then ENOMEM.
  uint32_t sends_taken = UINT32_MAX;
  bool refuse_recvs = false;
  std::vector<ibv_qp_state> moves;
  int modify_error = 0;
  int arms = 0;
  int open_objects = 0;  // of all kinds that the library has made and not destroyed

  // For the functions of the library.
  int PollCq(int count, ibv_wc* wcs);
  std::deque<ibv_wc> completions;
  ibv_context context{};
  ibv_cq cq{};
  ibv_qp qp{};
  int channel_pipe[2];
  int async_pipe[2];

 private:
  ibv_device device_{};
};

}  // namespace rdmad::testing
