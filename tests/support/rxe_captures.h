// The golden packets: every RoCE packet of the captures in tests/data/rxe-pcaps, made by the
// kernel's soft-RoCE. The README beside them says what each file holds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/support/pcap.h"

namespace rdmad::testing {

inline constexpr size_t kRxeCaptureFiles = 37;
inline constexpr size_t kRxeCapturePackets = 163;

struct RxePacket {
  std::string file;  // "rping-1", without folder and extension
  int number = 0;    // of the RoCE packets in the file, from 0
  UdpDatagram udp;   // its spans point into memory that lives as long as the program

  // "rping-1 #3", for test messages.
  [[nodiscard]] std::string ToString() const;
};

// All packets, by file name and then in order of capture. Reads the files once.
const std::vector<RxePacket>& RxePackets();

// The packets of one file, in order; ends the program if there are none.
std::vector<RxePacket> RxePacketsOf(const std::string& file);

}  // namespace rdmad::testing
