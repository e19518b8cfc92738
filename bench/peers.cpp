#include "bench/peers.h"

#include <dlfcn.h>

#include <cstdlib>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace llmc::bench {
namespace {

void* load_first_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

std::vector<Peer> load_peers(int threads) {
  std::vector<Peer> peers;
#ifdef _OPENMP
  omp_set_num_threads(threads);  // oneDNN asks OpenMP
#endif
  using DnnlSgemm =
      int (*)(char, char, std::int64_t, std::int64_t, std::int64_t, float, const float*,
              std::int64_t, const float*, std::int64_t, float, float*, std::int64_t);
  if (void* library = load_first_of({"libdnnl.so.3", "libdnnl.so.2"})) {
    if (const auto sgemm = symbol<DnnlSgemm>(library, "dnnl_sgemm")) {
      peers.push_back({"oneDNN", [sgemm](float* c, const float* a, bool ta, const float* b, bool tb,
                                         std::int64_t m, std::int64_t n, std::int64_t k) {
                         sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, ta ? m : k, b,
                               tb ? k : n, 0.0f, c, n);
                       }});
    }
  }

  // These choose kernels for another processor than the one we run on.
  unsetenv("OPENBLAS_CORETYPE");
  unsetenv("OPENBLAS_L2_SIZE");
  using CblasSgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*,
                              int, float, float*, int);
  using SetThreads = void (*)(int);
  if (void* library = load_first_of({"libopenblas.so.0", "libopenblas.so"})) {
    const auto sgemm = symbol<CblasSgemm>(library, "cblas_sgemm");
    const auto set_threads = symbol<SetThreads>(library, "openblas_set_num_threads");
    if (sgemm != nullptr && set_threads != nullptr) {
      set_threads(threads);
      peers.push_back(
          {"OpenBLAS", [sgemm](float* c, const float* a, bool ta, const float* b, bool tb,
                               std::int64_t m, std::int64_t n, std::int64_t k) {
             constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
             const auto mi = static_cast<int>(m), ni = static_cast<int>(n),
                        ki = static_cast<int>(k);
             sgemm(kRowMajor, ta ? kTranspose : kNoTranspose, tb ? kTranspose : kNoTranspose, mi,
                   ni, ki, 1.0f, a, ta ? mi : ki, b, tb ? ki : ni, 0.0f, c, ni);
           }});
    }
  }
  return peers;
}

}  // namespace llmc::bench
