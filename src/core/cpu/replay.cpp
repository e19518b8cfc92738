#include "core/replay.h"

namespace llmc {

struct Replay::Impl {};

Replay::Replay() = default;
Replay::~Replay() = default;
Replay::Replay(Replay&&) noexcept = default;
Replay& Replay::operator=(Replay&&) noexcept = default;

void Replay::run(Stream&, const std::function<void()>& work) {
  work();
}

}  // namespace llmc
