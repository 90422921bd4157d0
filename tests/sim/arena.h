// One end's memory, and beside it what the model says should be in there.
//
//   | source: never changes | target: for the peer | words: for atomics | landing cells, one per WR
//   |
//
// Only what a WR names may change, and only to what the model says: when nothing is under way any
// more, memory and model are compared whole. Bytes between the pieces of a scatter list, and behind
// the end of a short message, are thereby canaries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "tests/sim/random.h"

namespace rdmad::sim {

// A run of bytes, by its offset in the arena.
struct Piece {
  uint32_t offset;
  uint32_t bytes;
};

class Arena {
 public:
  static constexpr uint32_t kWordCount = 8;
  static constexpr uint32_t kGap = 64;
  static constexpr uint32_t kMaxPieces = 6;
  static constexpr uint32_t kNoCell = UINT32_MAX;

  Arena(uint32_t max_message_bytes, uint32_t cells, Random& random)
      : source_bytes_(Round(2 * max_message_bytes + kMaxPieces * kGap)),
        target_bytes_(Round(max_message_bytes + max_message_bytes / 2 + 64)),
        cell_bytes_(Round(max_message_bytes + (kMaxPieces + 1) * kGap)),
        memory_(words_offset() + kWordCount * 8 + kGap + size_t{cells} * cell_bytes_),
        free_cells_(cells) {
    std::memset(memory_.data(), 0xa5, memory_.size());
    random.Fill(std::span(memory_).first(source_bytes_));
    Renew(random);
    for (uint32_t i = 0; i < cells; ++i) free_cells_[i] = cells - 1 - i;
  }

  // New contents for target and words, as at the beginning.
  void Renew(Random& random) {
    random.Fill(std::span(memory_).subspan(target_offset(), target_bytes_));
    std::memset(memory_.data() + words_offset(), 0, kWordCount * 8);
    model_ = memory_;
  }

  uint32_t source_bytes() const { return source_bytes_; }
  uint32_t target_offset() const { return source_bytes_ + kGap; }
  uint32_t target_bytes() const { return target_bytes_; }
  uint32_t words_offset() const { return target_offset() + target_bytes_; }
  uint32_t word_offset(uint32_t word) const { return words_offset() + word * 8; }
  // What the peer may name: target and words.
  Piece exposed() const { return {target_offset(), target_bytes_ + kWordCount * 8}; }

  bool HasCell() const { return !free_cells_.empty(); }
  uint32_t TakeCell() {
    const uint32_t cell = free_cells_.back();
    free_cells_.pop_back();
    return cell;
  }
  void ReturnCell(uint32_t cell) {
    if (cell != kNoCell) free_cells_.push_back(cell);
  }

  // `bytes` bytes of source, in up to `max_pieces` pieces at random places.
  std::vector<Piece> Gather(uint32_t bytes, uint32_t max_pieces, Random& random) const {
    return Split(bytes, max_pieces, random,
                 [&](uint32_t piece) { return random.Below(source_bytes_ - piece + 1); });
  }
  // The same inside a cell, where pieces lie apart.
  std::vector<Piece> Scatter(uint32_t cell, uint32_t bytes, uint32_t max_pieces,
                             Random& random) const {
    uint32_t at = words_offset() + kWordCount * 8 + kGap + cell * cell_bytes_;
    return Split(bytes, max_pieces, random, [&](uint32_t piece) {
      const uint32_t here = at + random.Below(kGap / 2);
      at += piece + kGap;
      return here;
    });
  }

  std::byte* at(uint32_t offset) { return memory_.data() + offset; }
  const std::byte* at(uint32_t offset) const { return memory_.data() + offset; }
  std::byte* model(uint32_t offset) { return model_.data() + offset; }
  size_t size() const { return memory_.size(); }

  uint64_t model_word(uint32_t offset) const {
    uint64_t value;
    std::memcpy(&value, model_.data() + offset, sizeof(value));
    return value;
  }
  void set_model_word(uint32_t offset, uint64_t value) {
    std::memcpy(model(offset), &value, sizeof(value));
  }

  std::vector<std::byte> Read(std::span<const Piece> pieces) const {
    std::vector<std::byte> bytes;
    for (const Piece& piece : pieces) {
      bytes.insert(bytes.end(), at(piece.offset), at(piece.offset) + piece.bytes);
    }
    return bytes;
  }
  // What is in the first `bytes` bytes of `pieces` is right.
  void Accept(std::span<const Piece> pieces, uint64_t bytes = UINT64_MAX) {
    for (const Piece& piece : pieces) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(piece.bytes, bytes));
      std::memcpy(model(piece.offset), at(piece.offset), count);
      bytes -= count;
    }
  }
  // The first byte that is not what the model says; size() if there is none.
  size_t FirstDifference() const {
    if (std::memcmp(memory_.data(), model_.data(), memory_.size()) == 0) return memory_.size();
    size_t i = 0;
    while (memory_[i] == model_[i]) ++i;
    return i;
  }

 private:
  static uint32_t Round(uint32_t bytes) { return (bytes + 63) & ~63u; }

  template <class Place>
  static std::vector<Piece> Split(uint32_t bytes, uint32_t max_pieces, Random& random,
                                  const Place& place) {
    std::vector<Piece> pieces;
    const uint32_t count = 1 + random.Below(std::min(max_pieces, kMaxPieces));
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t piece = i + 1 == count ? bytes : random.Below(uint64_t{bytes} + 1);
      pieces.push_back({place(piece), piece});
      bytes -= piece;
    }
    return pieces;
  }

  const uint32_t source_bytes_;
  const uint32_t target_bytes_;
  const uint32_t cell_bytes_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> model_;
  std::vector<uint32_t> free_cells_;
};

}  // namespace rdmad::sim
