// A libibverbs of one device that does what a test tells it to: linked instead of the real one, so
// that drivers can refuse, forget and break in ways that no driver at hand does.
//
// Posts are recorded; completions and events come when the test puts them there. Nothing is moved.
// Thread: the test's.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

namespace rdmad::testing {

struct PostedSend {
  uint64_t wr_id;
  ibv_wr_opcode opcode;
  unsigned int flags;
  uint32_t bytes;
  uint32_t invalidates = 0;
  decltype(ibv_send_wr::bind_mw) bind{};
  uint32_t bind_from = 0;  // the window's key when the driver got the WR
  decltype(ibv_send_wr::wr.ud) ud{};
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
  void RaiseAsync(ibv_event_type type);

  // What was posted, in order; `posts` counts doorbells of sends, `recv_posts` of receives.
  std::vector<PostedSend> sends;
  std::vector<uint64_t> recvs;
  std::vector<uint64_t> srq_recvs;
  int posts = 0;
  int recv_posts = 0;
  int recv_posts_before_sends = 0;
  int qp_queries = 0;
  // The next chain of sends is taken up to this many; then ENOMEM.
  uint32_t sends_taken = UINT32_MAX;
  uint32_t then_taken = UINT32_MAX;  // of the chain after it
  uint32_t recvs_taken = UINT32_MAX;  // of those to come; then ENOMEM
  uint32_t max_send_sge = 0;  // that the QP was made with
  std::vector<ibv_qp_state> moves;
  ibv_qp_attr last_modify{};
  int last_mask = 0;
  std::optional<ibv_qp_state> entered;  // by the hardware itself, without having been told to
  int modify_error = 0;
  int arms = 0;
  uint32_t srq_limit = 0;
  int create_ah_error = 0;
  std::function<void()> during_slow_call;  // while a region or an address handle is made
  ibv_ah_attr ah_attr{};
  ibv_gid attached{};
  uint32_t ifindex = 0;
  uint8_t gid_port = 1;
  int event_port = 1;  // of port events
  struct Port {
    ibv_mtu active_mtu = IBV_MTU_1024;
    uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
    uint16_t lid = 0;
    uint8_t lmc = 0;
  } port;
  int port_queries = 0;
  bool present = true;   // in the list of devices
  // The GIDs of a device with this many ports are 10.0.PORT.1; 0: one of `gid_port`, without an
  // address.
  uint8_t ports = 0;
  uint32_t next_lkey = 11;
  uint32_t next_window_key = 0;
  int windows = 0;       // that are allocated
  int open_objects = 0;  // of all kinds that the library has made and not destroyed

  // For the functions of the library.
  int PollCq(int count, ibv_wc* wcs);
  std::deque<ibv_wc> completions;
  ibv_context context{};
  ibv_cq cq{};
  ibv_qp qp{};
  ibv_srq srq{};
  int channel_pipe[2];
  int async_pipe[2];

 private:
  ibv_device device_{};
};

}  // namespace rdmad::testing
