// The fuzz targets, all in one binary so that their common half is compiled once. RDMAD_FUZZ_TARGET
// names the one to run.
#pragma once

#include <cstdint>
#include <span>

namespace rdmad::fuzz {

// Packets to a transport with QPs in several states: records of
//   kind (1 byte) | how to fit it to the state (1) | length (2, little-endian) | UDP payload
void FuzzTransport(std::span<const uint8_t> input);
// MADs to a live connection manager, in records of the same form.
void FuzzCm(std::span<const uint8_t> input);
// Slots of a send and a receive queue, as a client could leave them in shared memory, read and
// posted to a live QP.
void FuzzWorkQueue(std::span<const uint8_t> input);

}  // namespace rdmad::fuzz
