# What the chosen parts need: an installed package first, else a pinned download.
include(FetchContent)

# llmc_find_or_fetch(name oldest-version url sha256). A macro, so that <name>_FOUND and
# <name>_VERSION reach the table at the end of configuring.
macro(llmc_find_or_fetch name version url sha256)
  find_package(${name} ${version} QUIET)
  if(NOT ${name}_FOUND)
    FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${sha256})
    FetchContent_MakeAvailable(${name})
  endif()
endmacro()

find_package(Threads REQUIRED)

if(LLMC_BACKEND STREQUAL "cuda")
  find_package(CUDAToolkit 12.5 REQUIRED)
  include(cmake/Cudnn.cmake)
endif()

set(LLMC_USES_MPI FALSE)
if(LLMC_COMM STREQUAL "mpi" OR (LLMC_COMM STREQUAL "nccl" AND LLMC_MPI))
  set(MPI_CXX_SKIP_MPICXX TRUE)
  find_package(MPI 3.0 QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(LLMC_USES_MPI TRUE)
  elseif(LLMC_COMM STREQUAL "mpi" OR NOT LLMC_MPI STREQUAL "auto")
    message(FATAL_ERROR "LLMC_COMM=${LLMC_COMM}: expected MPI 3.0 or higher, found none. "
                        "On Debian or Ubuntu: apt install libopenmpi-dev openmpi-bin")
  endif()
endif()
if(LLMC_COMM STREQUAL "nccl")
  list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
  find_package(NCCL 2.18 QUIET)
  list(POP_FRONT CMAKE_MODULE_PATH)
  if(NOT NCCL_FOUND)
    message(FATAL_ERROR "LLMC_COMM=nccl: expected NCCL 2.18 or higher (NCCL_ROOT names its folder), "
                        "found: ${NCCL_LIBRARY} ${NCCL_VERSION}. On Debian or Ubuntu with NVIDIA's "
                        "packages: apt install libnccl-dev")
  endif()
endif()

if(LLMC_BACKEND STREQUAL "cpu" AND LLMC_OPENMP)
  find_package(OpenMP COMPONENTS CXX)
  if(NOT OpenMP_CXX_FOUND)
    message(WARNING "OpenMP not found: the CPU backend will use one thread. "
                    "With clang on Debian or Ubuntu: apt install libomp-dev")
  endif()
endif()

llmc_find_or_fetch(nlohmann_json 3.10
  https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
  d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)

find_package(ZLIB 1.2 QUIET)
set(LLMC_USES_FETCHED_ZLIB FALSE)
if(NOT ZLIB_FOUND)
  set(LLMC_USES_FETCHED_ZLIB TRUE)
  set(ZLIB_BUILD_EXAMPLES OFF)
  set(SKIP_INSTALL_ALL ON)
  FetchContent_Declare(zlib
    URL https://github.com/madler/zlib/releases/download/v1.3.1/zlib-1.3.1.tar.gz
    URL_HASH SHA256=9a93b2b7dfdac77ceba5a558a580e74667dd6fede4585b91eefb60f03b72df23)
  FetchContent_MakeAvailable(zlib)
  # zlib names its targets otherwise than CMake's module does, and sets no include folders.
  target_include_directories(zlibstatic SYSTEM INTERFACE
    $<BUILD_INTERFACE:${zlib_SOURCE_DIR}> $<BUILD_INTERFACE:${zlib_BINARY_DIR}>)
  set_target_properties(zlibstatic PROPERTIES POSITION_INDEPENDENT_CODE ON)
  add_library(ZLIB::ZLIB ALIAS zlibstatic)
endif()

if(LLMC_BUILD_APPS OR LLMC_BUILD_BENCH)
  llmc_find_or_fetch(CLI11 2.1
    https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.1.tar.gz
    73b7ec52261ce8fe980a29df6b4ceb66243bb0b779451dbd3d014cfec9fdbb58)
endif()

if(LLMC_BUILD_TESTS)
  set(INSTALL_GTEST OFF)
  llmc_find_or_fetch(GTest 1.11
    https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
    8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7)
  find_package(PCRE2 QUIET)
endif()

if(LLMC_BUILD_BENCH)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  llmc_find_or_fetch(benchmark 1.6
    https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz
    6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce)
endif()
