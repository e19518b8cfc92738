# Sets CMAKE_CUDA_ARCHITECTURES unless the caller did: that of this machine's GPUs, else a list that
# runs on Ampere, Ada, Hopper and Blackwell. Hopper's and Blackwell's own instructions need the "a".
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 86 89 90a 100a 120a)
  find_program(LLMC_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(LLMC_NVIDIA_SMI)
  if(LLMC_NVIDIA_SMI)
    execute_process(COMMAND ${LLMC_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE capabilities RESULT_VARIABLE status ERROR_QUIET)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${capabilities}")
    if(status EQUAL 0 AND capabilities)
      string(REPLACE "." "" capabilities "${capabilities}")
      list(REMOVE_DUPLICATES capabilities)
      list(TRANSFORM capabilities REPLACE "^(90|1[0-9][0-9])$" "\\1a")
      set(CMAKE_CUDA_ARCHITECTURES ${capabilities})
    endif()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES} CACHE STRING "CUDA architectures")
endif()
