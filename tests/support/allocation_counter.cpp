#include "support/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

#ifdef LLMC_TEST_CUDA
#include "core/cuda/counters.h"
#endif

namespace {

std::atomic<std::int64_t> calls{0};
std::atomic<std::size_t> bytes_with_alignment{0};

}  // namespace

namespace llmc::testing {

std::int64_t allocations() {
  return calls;
}
std::size_t device_bytes() {
#ifdef LLMC_TEST_CUDA
  return cuda::counters().allocated_bytes;
#else
  return bytes_with_alignment;
#endif
}

}  // namespace llmc::testing

void* operator new(std::size_t size) {
  ++calls;
  if (void* p = std::malloc(size > 0 ? size : 1)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  ++calls;
  bytes_with_alignment += size;
  const auto multiple = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(multiple, (size + multiple - 1) / multiple * multiple)) return p;
  throw std::bad_alloc();
}
// The library's nothrow forms call those above, but not those of a sanitizer.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  try {
    return ::operator new(size, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
