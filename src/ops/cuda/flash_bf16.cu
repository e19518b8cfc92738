#include "ops/cuda/flash_launch.cuh"

namespace llmc::cuda {

template void launch_flash_forward<Bf16Products>(Stream::Impl&, const FlashForward&);
template void launch_flash_backward<Bf16Products>(Stream::Impl&, const FlashBackward&,
                                                  const float2*);

}  // namespace llmc::cuda
