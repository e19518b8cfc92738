#pragma once

// Matrix products of other libraries, loaded at run time where they are installed.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace llmc::bench {

/// c = op(a)·op(b) in fp32, row-major, tightly packed; c: (m, n).
using PeerMatmul =
    std::function<void(float* c, const float* a, bool transpose_a, const float* b, bool transpose_b,
                       std::int64_t m, std::int64_t n, std::int64_t k)>;

struct Peer {
  std::string name;
  PeerMatmul matmul;
};

/// oneDNN and OpenBLAS, each where its library can be loaded, set to `threads` threads.
std::vector<Peer> load_peers(int threads);

}  // namespace llmc::bench
