#include "core/trace.h"

namespace llmc {

TraceRange::TraceRange(const char*) {}
TraceRange::~TraceRange() = default;

}  // namespace llmc
