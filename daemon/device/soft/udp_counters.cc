#include "daemon/device/soft/udp_counters.h"

namespace rdmad::soft {
namespace {

struct Row {
  const char* name;
  const char* unit;
  const char* help;
  UdpCounter UdpCounters::*counter;
};

constexpr Row kRows[] = {
    {"udp_rx_packets", "packets", "RoCEv2 packets received with a good ICRC",
     &UdpCounters::rx_packets},
    {"udp_rx_bytes", "bytes", "UDP payload of these packets", &UdpCounters::rx_bytes},
    {"udp_rx_messages", "messages", "datagrams or merged batches that the socket yielded",
     &UdpCounters::rx_messages},
    {"udp_rx_syscalls", "calls", "receiving system calls", &UdpCounters::rx_syscalls},
    {"udp_rx_ecn_ce", "messages", "datagrams marked 'congestion experienced' on the way",
     &UdpCounters::rx_ecn_ce},
    {"udp_rx_drop_icrc", "packets", "dropped: ICRC does not match", &UdpCounters::rx_drop_icrc},
    {"udp_rx_drop_truncated", "messages", "dropped: larger than a receive buffer",
     &UdpCounters::rx_drop_truncated},
    {"udp_rx_drop_bad_source", "messages", "dropped: sender's address is not usable",
     &UdpCounters::rx_drop_bad_source},
    {"udp_rx_drop_forged", "messages",
     "dropped: from an address of this daemon, but sent by somebody else on this host",
     &UdpCounters::rx_drop_forged},
    {"udp_rx_errors", "calls", "receiving system calls that failed", &UdpCounters::rx_errors},
    {"udp_tx_packets", "packets", "RoCEv2 packets given to the kernel", &UdpCounters::tx_packets},
    {"udp_tx_bytes", "bytes", "UDP payload of these packets", &UdpCounters::tx_bytes},
    {"udp_tx_messages", "messages", "datagrams or segmented batches given to the kernel",
     &UdpCounters::tx_messages},
    {"udp_tx_syscalls", "calls", "sending system calls", &UdpCounters::tx_syscalls},
    {"udp_tx_path_full", "calls", "sends put off because the socket's buffer was full",
     &UdpCounters::tx_path_full},
    {"udp_tx_gso_fallbacks", "ports", "the kernel refused UDP_SEGMENT; packets are sent one by one",
     &UdpCounters::tx_gso_fallbacks},
    {"udp_tx_lost_too_big", "packets", "not sent: larger than the MTU of the route",
     &UdpCounters::tx_lost_too_big},
    {"udp_tx_lost_no_route", "packets", "not sent: no route, or the link is down",
     &UdpCounters::tx_lost_no_route},
    {"udp_tx_lost_denied", "packets", "not sent: a firewall forbids it",
     &UdpCounters::tx_lost_denied},
    {"udp_tx_lost_no_buffers", "packets", "not sent: the kernel is out of buffers",
     &UdpCounters::tx_lost_no_buffers},
    {"udp_tx_lost_other", "packets", "not sent: another error", &UdpCounters::tx_lost_other},
    {"mad_tx_packets", "packets", "connection management datagrams sent",
     &UdpCounters::mad_tx_packets},
    {"mad_tx_failed", "packets", "connection management datagrams that could not be sent",
     &UdpCounters::mad_tx_failed},
};

// In the order of wire::DropReason, without kNone.
constexpr struct {
  const char* name;
  const char* help;
} kParseRows[] = {
    {"udp_rx_drop_too_short", "dropped: too short for its headers"},
    {"udp_rx_drop_too_long", "dropped: more payload than any path MTU"},
    {"udp_rx_drop_not_word_sized", "dropped: length is not a multiple of four"},
    {"udp_rx_drop_bad_version", "dropped: transport header version is not 0"},
    {"udp_rx_drop_unknown_opcode", "dropped: opcode of no transport that this device speaks"},
    {"udp_rx_drop_bad_pad", "dropped: pad count does not fit"},
    {"udp_rx_drop_bad_payload", "dropped: payload where the opcode has none"},
};
static_assert(std::size(kParseRows) + 1 == UdpCounters::kParseReasons);

}  // namespace

void AppendUdpCounters(const UdpCounters& counters, std::vector<device::CounterValue>* out) {
  const bool first = out->empty();
  size_t index = 0;
  const auto add = [&](const char* name, const char* unit, const char* help, uint64_t value) {
    if (first) out->push_back({name, unit, help, 0});
    (*out)[index++].value += value;
  };
  for (const Row& row : kRows) add(row.name, row.unit, row.help, (counters.*row.counter).Get());
  for (size_t i = 0; i < std::size(kParseRows); ++i) {
    add(kParseRows[i].name, "packets", kParseRows[i].help, counters.rx_drop_parse[i + 1].Get());
  }
}

}  // namespace rdmad::soft
