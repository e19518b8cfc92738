# One interface target carries what every translation unit of the project is compiled with; it is
# linked privately and never reaches those who use the library.
add_library(llmc_compile_options INTERFACE)
target_compile_features(llmc_compile_options INTERFACE cxx_std_20)
set(llmc_warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(LLMC_WERROR)
  list(APPEND llmc_warnings -Werror)
endif()
string(REPLACE ";" "," llmc_host_warnings "${llmc_warnings}")
# CMake knows of CUDA in C++20 only from 3.26 on, hence the plain flag.
target_compile_options(llmc_compile_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${llmc_warnings};-Wpedantic>"
  $<$<COMPILE_LANG_AND_ID:CXX,Clang,AppleClang>:-Wno-pass-failed>
  "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-lineinfo;-Xcompiler=${llmc_host_warnings}>")

# Without a build type the compiler would not optimise at all. The project that adds this one decides
# about its own code; that of the library is too slow to be of use then, unless flags say otherwise.
set(llmc_kernel_level "")
set(llmc_level "")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND NOT CMAKE_CXX_FLAGS MATCHES "-O")
  set(llmc_kernel_level -O3)
  set(llmc_level -O2)
  message(STATUS "llmc is optimised although there is no build type; for your own code as well: "
                 "-DCMAKE_BUILD_TYPE=Release")
endif()

if(LLMC_SANITIZE)
  target_compile_options(llmc_compile_options INTERFACE
    -fsanitize=${LLMC_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(llmc_compile_options INTERFACE -fsanitize=${LLMC_SANITIZE})
endif()
