# In a project without a build type the library's sources are optimised, unless flags forbid it, and
# those of the project are left alone.
cmake_minimum_required(VERSION 3.22)

# expect_levels(flags library kernels): the last -O of what compiles them.
function(expect_levels flags library kernels)
  file(REMOVE_RECURSE ${BUILD})
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${SOURCE}/tests/install/add_subdirectory -B ${BUILD}
      -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_FLAGS=${flags}
      -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DLLMC_SOURCE=${SOURCE}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${BUILD}/compile_commands.json commands)
  string(JSON count LENGTH ${commands})
  math(EXPR last "${count} - 1")
  foreach(i RANGE ${last})
    string(JSON file GET ${commands} ${i} file)
    string(JSON command GET ${commands} ${i} command)
    if(file MATCHES "/kernels/")
      set(expected ${kernels})
    elseif(file MATCHES "${SOURCE}/src/")
      set(expected ${library})
    else()
      set(expected "${flags}")
    endif()
    string(REGEX MATCHALL " -O[0-9]" levels "${command}")
    if(levels)
      list(POP_BACK levels level)
      string(STRIP "${level}" level)
    else()
      set(level "")
    endif()
    if(NOT level STREQUAL expected)
      message(FATAL_ERROR "${file}: expected '${expected}', got '${level}' in: ${command}")
    endif()
  endforeach()
endfunction()

expect_levels("" -O2 -O3)
expect_levels(-O1 -O1 -O1)
