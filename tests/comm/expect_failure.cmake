# cmake -DCOMMAND=program|arguments -DTEXT=regex [-DRANKS=program] -P expect_failure.cmake: passes if
# the command fails within 30 s and prints the text. Open MPI's mpirun itself may hang where its
# processes end at the same time: then none that runs RANKS may be left.
set(limit 30)
string(REPLACE "|" ";" COMMAND "${COMMAND}")
execute_process(COMMAND ${COMMAND} TIMEOUT ${limit} RESULT_VARIABLE status
                OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(status STREQUAL "0")
  message(FATAL_ERROR "expected a failure, got success")
elseif(NOT status MATCHES "^[0-9]+$")
  file(GLOB processes /proc/[0-9]*/exe)
  foreach(process IN LISTS processes)
    get_filename_component(program ${process} REALPATH)
    if(NOT RANKS OR program STREQUAL RANKS)
      message(FATAL_ERROR "expected an end within ${limit} s, got: ${status}")
    endif()
  endforeach()
  message("all ranks have ended, but mpirun has not: ${status}")
endif()
if(NOT output MATCHES "${TEXT}")
  message(FATAL_ERROR "expected the output to contain '${TEXT}'")
endif()
