# What the chosen parts need: an installed package first, else a pinned download.
include(FetchContent)

find_package(Threads REQUIRED)

if(LLMC_OPENMP)
  find_package(OpenMP COMPONENTS CXX)
  if(NOT OpenMP_CXX_FOUND)
    message(WARNING "OpenMP not found: the CPU backend will use one thread. "
                    "With clang on Debian or Ubuntu: apt install libomp-dev")
  endif()
endif()

find_package(nlohmann_json 3.10 QUIET)
if(NOT nlohmann_json_FOUND)
  set(JSON_Install OFF)
  FetchContent_Declare(nlohmann_json
    URL https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
    URL_HASH SHA256=d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)
  FetchContent_MakeAvailable(nlohmann_json)
endif()

if(LLMC_BUILD_APPS)
  find_package(CLI11 2.1 QUIET)
  if(NOT CLI11_FOUND)
    FetchContent_Declare(CLI11
      URL https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.1.tar.gz
      URL_HASH SHA256=73b7ec52261ce8fe980a29df6b4ceb66243bb0b779451dbd3d014cfec9fdbb58)
    FetchContent_MakeAvailable(CLI11)
  endif()
endif()

if(LLMC_BUILD_TESTS)
  find_package(PCRE2 QUIET MODULE)
  find_package(GTest 1.11 QUIET)
  if(NOT GTest_FOUND)
    set(INSTALL_GTEST OFF)
    FetchContent_Declare(googletest
      URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
      URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7)
    FetchContent_MakeAvailable(googletest)
  endif()
endif()

if(LLMC_BUILD_BENCH)
  find_package(benchmark 1.6 QUIET)
  if(NOT benchmark_FOUND)
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    FetchContent_Declare(benchmark
      URL https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz
      URL_HASH SHA256=6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce)
    FetchContent_MakeAvailable(benchmark)
  endif()
endif()
