#include "llmc/comm/communicator.h"

#include <exception>

#include "llmc/core/error.h"

namespace llmc {
namespace {

void check_reducible(std::string_view what, const Tensor& values) {
  if (values.dtype() != DType::kF32 && values.dtype() != DType::kBF16) {
    fail(ErrorKind::kInput, "comm", what, ": expected f32 or bf16, got ", name_of(values.dtype()));
  }
}

/// `whole` must hold one `slice` per rank.
void check_slices(std::string_view what, const Tensor& whole, const Tensor& slice, int size) {
  if (whole.dtype() != slice.dtype()) {
    fail(ErrorKind::kInput, "comm", what, ": expected one dtype, got ", name_of(whole.dtype()),
         " and ", name_of(slice.dtype()));
  }
  if (whole.numel() != slice.numel() * size) {
    fail(ErrorKind::kInput, "comm", what, ": expected ", slice.numel() * size, " elements for ",
         size, " ranks with ", slice.numel(), " each, got ", whole.numel());
  }
}

}  // namespace

std::unique_ptr<Communicator> Communicator::open(const Device& device, const StartUp& options) {
  return open(device, ProcessGroup::join(options));
}

void Communicator::all_reduce(Stream& stream, const Tensor& values) {
  check_reducible("all_reduce", values);
  if (values.numel() == 0) return;
  do_all_reduce(stream, values);
}

void Communicator::reduce_scatter(Stream& stream, const Tensor& out, const Tensor& in) {
  check_reducible("reduce_scatter", in);
  check_slices("reduce_scatter", in, out, size());
  if (in.numel() == 0) return;
  do_reduce_scatter(stream, out, in);
}

void Communicator::all_gather(Stream& stream, const Tensor& out, const Tensor& in) {
  check_slices("all_gather", out, in, size());
  if (out.numel() == 0) return;
  do_all_gather(stream, out, in);
}

void Communicator::broadcast(Stream& stream, const Tensor& values, int root) {
  if (root < 0 || root >= size()) {
    fail(ErrorKind::kInput, "comm", "broadcast: expected a root of 0 to ", size() - 1, ", got ",
         root);
  }
  if (values.numel() == 0) return;
  do_broadcast(stream, values, root);
}

CommGroup::~CommGroup() noexcept(false) {
  try {
    comm_.group_end();
  } catch (...) {
    if (std::uncaught_exceptions() == 0) throw;
  }
}

}  // namespace llmc
