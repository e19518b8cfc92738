# Finds PCRE2's 8-bit library: PCRE2_FOUND, PCRE2_VERSION and the target PCRE2::8BIT.
find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)
if(PCRE2_INCLUDE_DIR)
  file(STRINGS "${PCRE2_INCLUDE_DIR}/pcre2.h" lines REGEX "#define PCRE2_(MAJOR|MINOR)")
  string(REGEX REPLACE ".*PCRE2_MAJOR +([0-9]+).*PCRE2_MINOR +([0-9]+).*" "\\1.\\2" PCRE2_VERSION
                       "${lines}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PCRE2 REQUIRED_VARS PCRE2_LIBRARY PCRE2_INCLUDE_DIR
                                  VERSION_VAR PCRE2_VERSION)
mark_as_advanced(PCRE2_INCLUDE_DIR PCRE2_LIBRARY)

if(PCRE2_FOUND AND NOT TARGET PCRE2::8BIT)
  add_library(PCRE2::8BIT UNKNOWN IMPORTED)
  set_target_properties(PCRE2::8BIT PROPERTIES
    IMPORTED_LOCATION "${PCRE2_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${PCRE2_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS PCRE2_CODE_UNIT_WIDTH=8)
endif()
