#include "ops/cuda/flash_launch.cuh"

namespace llmc::cuda {

template void launch_flash_forward<Tf32Products>(Stream::Impl&, const FlashForward&);
template void launch_flash_backward<Tf32Products>(Stream::Impl&, const FlashBackward&,
                                                  const float2*);

}  // namespace llmc::cuda
