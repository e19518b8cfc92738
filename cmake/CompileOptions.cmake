# One interface target carries what every translation unit of the project is compiled with; it is
# linked privately and never reaches those who use the library.
add_library(llmc_compile_options INTERFACE)
target_compile_features(llmc_compile_options INTERFACE cxx_std_20)
target_compile_options(llmc_compile_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wno-pass-failed>
  $<$<BOOL:${LLMC_WERROR}>:-Werror>)

if(LLMC_SANITIZE)
  target_compile_options(llmc_compile_options INTERFACE
    -fsanitize=${LLMC_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(llmc_compile_options INTERFACE -fsanitize=${LLMC_SANITIZE})
endif()
