// The fuzz targets, all in one binary so that their common half is compiled once. RDMAD_FUZZ_TARGET
// names the one to run.
#pragma once

#include <cstdint>
#include <span>

namespace rdmad::fuzz {

// Packets to a transport with QPs of every type in several states, windows, an SRQ and a multicast
// group: records of
//   kind (1 byte) | how to fit it to the state (1) | length (2, little-endian) | UDP payload
void FuzzTransport(std::span<const uint8_t> input);
// MADs to a live connection manager that listens, connects and asks in both port spaces, in records
// of the same form.
void FuzzCm(std::span<const uint8_t> input);
// Slots of a send and a receive queue, as a client could leave them in shared memory, read and
// posted to a live QP.
void FuzzWorkQueue(std::span<const uint8_t> input);
// All that a client shares with an engine, changed between its turns: records of
//   kind (1 byte) | what (1) | length (2) | bytes
void FuzzEngine(std::span<const uint8_t> input);

// A connection to rdmad.sock: records of
//   what to do afterwards (1 byte) | length (2) | bytes
void FuzzGrpc(std::span<const uint8_t> input);

}  // namespace rdmad::fuzz
