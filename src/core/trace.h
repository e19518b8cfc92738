#pragma once

namespace llmc {

/// Names what is queued in its scope, for profilers that show such ranges (NVTX on GPUs; nothing on
/// the CPU). `name` is a literal.
class TraceRange {
 public:
  explicit TraceRange(const char* name);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
};

}  // namespace llmc
