#pragma once

namespace llmc::cpu {

/// Instruction sets that the kernels are compiled for, each one including those before it.
enum class Isa { kPortable, kAvx2, kAvx512 };

}  // namespace llmc::cpu
