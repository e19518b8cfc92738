#pragma once

#include <functional>
#include <string_view>

namespace llmc {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel level, std::string_view message)>;

/// Replaces the process-wide sink; an empty one silences the library. The default writes warnings
/// and errors to stderr. The sink is called from any thread, one call at a time.
void set_log_sink(LogSink sink);

/// Hands one message, without a trailing newline, to the sink.
void log(LogLevel level, std::string_view message);

}  // namespace llmc
