#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

/// What memory is for; each kind is one allocation.
enum class MemoryKind { kParameters, kGradients, kOptimizer, kActivations, kScratch };

/// Memory planned first and allocated once. Segments are declared by name, dtype and shape; the
/// plan can be printed before anything is allocated; `allocate` makes one zeroed piece per kind;
/// `tensor` then gives the views, which stay valid when the Arena moves.
class Arena {
 public:
  /// Index of a declared segment.
  using Id = std::size_t;

  /// One row of the plan.
  struct Segment {
    MemoryKind kind;
    std::string name;
    DType dtype;
    Shape shape;
    std::size_t offset;  ///< bytes from the start of its kind's piece
    std::size_t bytes;   ///< without padding
    bool overlay;        ///< lies over the others of its kind
  };

  /// Adds a segment. Segments start at multiples of 64 bytes. Throws after `allocate`.
  Id declare(MemoryKind kind, std::string name, DType dtype, Shape shape);
  /// Adds a segment that lies over the others of its kind, from their start on: for data that are
  /// not needed while those are.
  Id overlay(MemoryKind kind, std::string name, DType dtype, Shape shape);
  /// Allocates every kind. Throws a memory error that names the shortfall and what would help.
  void allocate(const Device& device);
  bool allocated() const { return allocated_; }

  /// The view of a segment; throws before `allocate`.
  Tensor tensor(Id id) const;
  const std::vector<Segment>& segments() const { return segments_; }
  /// Planned bytes of a kind, padding included, and of all kinds.
  std::size_t bytes(MemoryKind kind) const;
  std::size_t bytes() const;
  /// The plan as a table: a line per kind and per group of segments (names up to the first dot
  /// count as one group, so that the blocks of a model share a line).
  std::string report() const;

 private:
  static constexpr std::size_t kKinds = 5;
  Id add(Segment segment);

  std::vector<Segment> segments_;
  std::array<std::size_t, kKinds> ends_{};   ///< of the segments that follow one another
  std::array<std::size_t, kKinds> sizes_{};  ///< with overlays
  std::array<Buffer, kKinds> pieces_;
  bool allocated_ = false;
};

/// "1.50 GiB", "12.0 MiB", "640 B".
std::string format_bytes(std::size_t bytes);

}  // namespace llmc
