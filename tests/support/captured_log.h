#pragma once

#include <string>
#include <string_view>

#include "llmc/core/log.h"

namespace llmc::testing {

/// Collects what the library logs until the end of the scope.
class CapturedLog {
 public:
  CapturedLog() {
    set_log_sink([this](LogLevel, std::string_view text) { text_ += text; });
  }
  ~CapturedLog() { set_log_sink({}); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace llmc::testing
