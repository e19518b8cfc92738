# cmake -DCOMMAND=program|arguments -DTEXT=regex [-DLIMIT=seconds] -P expect_failure.cmake: passes if
# the program fails within the limit and prints the text.
if(NOT LIMIT)
  set(LIMIT 30)
endif()
string(REPLACE "|" ";" COMMAND "${COMMAND}")
execute_process(COMMAND ${COMMAND} TIMEOUT ${LIMIT} RESULT_VARIABLE status
                OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(status STREQUAL "0")
  message(FATAL_ERROR "expected a failure, got success")
elseif(NOT status MATCHES "^[0-9]+$")
  message(FATAL_ERROR "expected an end within ${LIMIT} s, got: ${status}")
elseif(NOT output MATCHES "${TEXT}")
  message(FATAL_ERROR "expected the output to contain '${TEXT}'")
endif()
