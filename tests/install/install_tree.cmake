# Installs the built tree of BUILD into PREFIX and checks what arrived.
cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} --config ${CONFIG}
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

file(GLOB_RECURSE expected RELATIVE ${SOURCE}/include ${SOURCE}/include/llmc/*)
file(GLOB_RECURSE installed RELATIVE ${PREFIX}/${INCLUDES} ${PREFIX}/${INCLUDES}/*)
if(NOT "${installed}" STREQUAL "${expected}")
  message(FATAL_ERROR "Headers: expected ${expected}, got ${installed}")
endif()

# Programs carry the project's name, start, and explain themselves.
file(GLOB programs ${PREFIX}/bin/*)
foreach(program IN LISTS programs)
  cmake_path(GET program FILENAME name)
  if(NOT name MATCHES "^llmc-[a-z]+$")
    message(FATAL_ERROR "Installed program ${name}: expected llmc-<app>")
  endif()
  execute_process(COMMAND ${program} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
  if(NOT help MATCHES "--help")
    message(FATAL_ERROR "${name} --help: expected a list of options, got: ${help}")
  endif()
endforeach()

# No file may lead back to the source or build tree.
file(GLOB_RECURSE configs ${PREFIX}/*.cmake)
foreach(config IN LISTS configs)
  file(READ ${config} text)
  foreach(folder ${SOURCE} ${BUILD})
    string(FIND "${text}" "${folder}/" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${config} refers to ${folder}")
    endif()
  endforeach()
endforeach()
