# Finds what attention by cuDNN needs: the library, as the target CUDNN::cudnn, and the headers of its
# frontend in CUDNN_FRONTEND_INCLUDE_DIR: under CUDNN_FRONTEND_ROOT, installed, or downloaded. Sets
# LLMC_USES_CUDNN.
set(LLMC_USES_CUDNN FALSE)
if(NOT LLMC_CUDNN)
  return()
endif()
set(llmc_cudnn_oldest 9.6)
set(llmc_cudnn_frontend_oldest 1.15)

# llmc_download_cudnn_frontend(folder): unpacks the headers into folder/include, from the Python
# package, which is where they are published; leaves nothing where there is no network.
function(llmc_download_cudnn_frontend folder)
  set(package nvidia_cudnn_frontend-1.18.0-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl)
  set(url https://files.pythonhosted.org/packages/c6/52/08f98262e77b1cbcc834cc1a5db494d0661ea1dbdea58c2e2d51a57fdaca/${package})
  set(hash 6c023539ca6de99234cf5102c3ec0d6af817f5396fc93028a22ba5b834a35b8a)
  if(EXISTS "${folder}/include/cudnn_frontend.h" OR FETCHCONTENT_FULLY_DISCONNECTED)
    return()
  endif()
  file(DOWNLOAD ${url} "${folder}/${package}" STATUS status INACTIVITY_TIMEOUT 20 TIMEOUT 120)
  list(GET status 0 failed)
  if(failed)
    list(GET status 1 reason)
    message(STATUS "Could not download the frontend of cuDNN: ${reason}")
    file(REMOVE "${folder}/${package}")
    return()
  endif()
  file(SHA256 "${folder}/${package}" got)
  if(NOT got STREQUAL hash)
    file(REMOVE "${folder}/${package}")
    message(FATAL_ERROR "${url}: expected SHA-256 ${hash}, got ${got}")
  endif()
  file(ARCHIVE_EXTRACT INPUT "${folder}/${package}" DESTINATION "${folder}" PATTERNS include/*)
endfunction()

list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
find_package(CUDNN ${llmc_cudnn_oldest} QUIET)
list(POP_FRONT CMAKE_MODULE_PATH)
if(CUDNN_FOUND)
  find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
            HINTS ${CUDNN_FRONTEND_ROOT} ENV CUDNN_FRONTEND_ROOT ${CUDNN_INCLUDE_DIR}
            PATH_SUFFIXES include)
  if(NOT CUDNN_FRONTEND_INCLUDE_DIR)
    llmc_download_cudnn_frontend("${FETCHCONTENT_BASE_DIR}/cudnn_frontend")
    find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h NO_DEFAULT_PATH
              PATHS "${FETCHCONTENT_BASE_DIR}/cudnn_frontend/include")
  endif()
  mark_as_advanced(CUDNN_FRONTEND_INCLUDE_DIR)
endif()
if(CUDNN_FRONTEND_INCLUDE_DIR)
  file(STRINGS "${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend_version.h" lines
       REGEX "#define CUDNN_FRONTEND_(MAJOR|MINOR|PATCH)_VERSION +[0-9]+")
  string(REGEX REPLACE ".*MAJOR[^0-9]+([0-9]+).*MINOR[^0-9]+([0-9]+).*PATCH[^0-9]+([0-9]+).*"
                       "\\1.\\2.\\3" CUDNN_FRONTEND_VERSION "${lines}")
  if(CUDNN_FRONTEND_VERSION VERSION_GREATER_EQUAL llmc_cudnn_frontend_oldest)
    set(LLMC_USES_CUDNN TRUE)
  else()
    message(STATUS "${CUDNN_FRONTEND_INCLUDE_DIR}: expected the frontend of cuDNN in version "
                   "${llmc_cudnn_frontend_oldest} or higher, got ${CUDNN_FRONTEND_VERSION}")
  endif()
endif()

if(NOT LLMC_USES_CUDNN AND NOT LLMC_CUDNN STREQUAL "auto")
  message(FATAL_ERROR
    "LLMC_CUDNN=${LLMC_CUDNN}: expected cuDNN ${llmc_cudnn_oldest} or higher (CUDNN_ROOT names its "
    "folder; found: ${CUDNN_LIBRARY} ${CUDNN_VERSION}) and the headers of its frontend "
    "${llmc_cudnn_frontend_oldest} or higher (CUDNN_FRONTEND_ROOT names their folder; found: "
    "${CUDNN_FRONTEND_INCLUDE_DIR} ${CUDNN_FRONTEND_VERSION})")
endif()
