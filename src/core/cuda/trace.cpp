#include "core/trace.h"

#include <nvtx3/nvToolsExt.h>

namespace llmc {

TraceRange::TraceRange(const char* name) {
  nvtxRangePushA(name);
}
TraceRange::~TraceRange() {
  nvtxRangePop();
}

}  // namespace llmc
